"""Import onnxruntime so that it sends no statistics."""

from __future__ import annotations

import os
from typing import Any


def import_onnxruntime() -> Any:
    """Return the module `onnxruntime`.

    Raises:
        ImportError: it is not installed.
    """
    # Version 1.31 otherwise sends statistics to its makers and keeps a device id on disk.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime
