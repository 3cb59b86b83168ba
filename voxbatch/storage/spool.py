"""Temporary files without a name: gone with the process, however that ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from typing import BinaryIO

from voxbatch.errors import StorageError


class Unkept(StorageError):
    """The folder of temporary files is full, or cannot be written."""

    def __init__(self, message: str, folder: str):
        super().__init__(message)
        self.folder = folder


def spool(name: str, blocks: Iterable[bytes]) -> BinaryIO:
    """A file of these bytes, at its start. `name` says in errors whose they are.

    Raises:
        Unkept: the file cannot be written.
        and what `blocks` raises.
    """
    try:
        with tempfile.TemporaryFile() as file:
            file.writelines(blocks)
            file.seek(0)
            return os.fdopen(os.dup(file.fileno()), "rb")
    except OSError as error:
        where = tempfile.gettempdir()
        raise Unkept(f"{name}: cannot be kept in {where}: {error}; free space there, or set TMPDIR", where) from error
