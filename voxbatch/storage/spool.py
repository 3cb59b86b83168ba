"""Temporary files without a name: gone with the process, however that ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from typing import BinaryIO

from voxbatch.errors import StorageError


class Unkept(StorageError):
    """The folder of temporary files is full, or cannot be written. The message names the folder, and not the temporary
    file that the error may name: it is called differently each time."""

    def __init__(self, what: str, error: OSError):
        self.folder = tempfile.gettempdir()
        reason = error.strerror or error
        super().__init__(f"{what}: cannot be kept in {self.folder}: {reason}; free space there, or set TMPDIR")


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
        raise Unkept(name, error) from error
