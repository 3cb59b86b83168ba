"""The samples of a recording."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from voxbatch.audio.waveforms import decode
from voxbatch.records import Samples
from voxbatch.storage import Stores


def decoded(path: Path, **options: Any) -> tuple[Samples, list[str]]:
    """Return the samples of a recording, and the warnings. `options` are those of `decode`."""
    warnings: list[str] = []
    with closing(Stores().recording(str(path))) as recording:
        blocks = [block.samples for block in decode(recording, str(path), warn=warnings.append, **options)]
    return np.concatenate(blocks), warnings
