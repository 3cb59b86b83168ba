"""Temporary files without a name, which vanish with the process, however it ends, and folders of named ones."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from voxbatch.errors import StorageError


class TemporaryFileError(StorageError):
    """The folder of temporary files is full, or cannot be written.

    The message names the folder, and not the temporary file that the error may name, because that name is different
    each time.
    """

    def __init__(self, name: str, error: OSError):
        try:
            self.folder = tempfile.gettempdir()
        except FileNotFoundError:  # no folder can be written; the message of `error` names those that were tried
            self.folder = "TMPDIR"
        reason = error.strerror or error
        super().__init__(f"{name}: cannot be stored in {self.folder}: {reason}; free space there, or set TMPDIR")


@contextlib.contextmanager
def temporary_errors(name: str) -> Iterator[None]:
    """Raise TemporaryFileError for an OSError. `name` is the name of what is stored, for the message."""
    try:
        yield
    except OSError as error:
        raise TemporaryFileError(name, error) from error


@contextlib.contextmanager
def temporary_folder(name: str) -> Iterator[str]:
    """Yield the path of a temporary folder, which is deleted at the end. In the context, each OSError is one of its
    files. `name` is the name of what is made there.

    Raises:
        TemporaryFileError: a file cannot be written there.
    """
    with temporary_errors(name), tempfile.TemporaryDirectory(prefix="voxbatch-") as folder:
        yield folder


def temporary_file(name: str, blocks: Iterable[bytes]) -> BinaryIO:
    """Return a temporary file of these bytes, positioned at the start. `name` is the name of their source, for errors.

    Raises:
        TemporaryFileError: the file cannot be written.
        Exception: an error that `blocks` raises.
    """
    with temporary_errors(name), tempfile.TemporaryFile() as file:
        file.writelines(blocks)
        file.seek(0)
        return os.fdopen(os.dup(file.fileno()), "rb")
