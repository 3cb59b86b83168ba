"""Temporary files without a name: gone with the process, however that ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from typing import BinaryIO

from voxbatch.errors import StorageError


def spool(name: str, blocks: Iterable[bytes]) -> BinaryIO:
    """A file of these bytes, at its start. `name` says in errors whose they are.

    Raises:
        StorageError: the file cannot be written; and what `blocks` raises.
    """
    try:
        with tempfile.TemporaryFile() as file:
            file.writelines(blocks)
            file.seek(0)
            return os.fdopen(os.dup(file.fileno()), "rb")
    except OSError as error:
        where = tempfile.gettempdir()
        raise StorageError(f"{name}: cannot be kept in {where}: {error}; free space there, or set TMPDIR") from error
