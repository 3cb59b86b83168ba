"""Recordings inside Parquet files, as Hugging Face's datasets write them, read where they are:
`train-0.parquet#row=3+17,audio,a.wav` is row 17 of row group 3, in the column `audio` of `bytes` and `path`.

Nothing is unpacked. Parquet gives no single value, so the recordings of one row group are held in memory, which serve
the rows that follow. Of a remote file, only the other columns are fetched to list it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from voxbatch.failure_kinds import FailureKind
from voxbatch.storage.address import redacted
from voxbatch.storage.errors import UnusableObject
from voxbatch.storage.local import write_at
from voxbatch.storage.objects import ReadRange, Stat
from voxbatch.storage.recording import FileRecording
from voxbatch.storage.tar_members import changed
from voxbatch.storage.temporary_files import temporary_errors, temporary_file

BYTES = ".bytes"
"""End of the path of each column that holds recordings."""
_ADDRESS = re.compile(
    r"(?P<file>.+\.parquet)#row=(?P<group>[0-9]{1,9})\+(?P<row>[0-9]{1,9}),(?P<column>[^/,]+),(?P<name>[^/]+)",
    re.IGNORECASE,
)
_FETCHED_BYTES = 8 << 20
"""Most bytes of one request."""
_FOOTER_BYTES = 64 << 10
"""Bytes that are fetched first: the footers of most files."""
_GAP_BYTES = 64 << 10
"""Bytes between two columns up to which one request fetches both."""
_NO_NAME = "audio"
_LOCK = threading.Lock()
_kept: dict[tuple[object, ...], Any] = {}
"""The recordings of the last row group, by its file, its revision, its number and the column. _LOCK guards it, so that
the threads that prefetch rows of one group fetch it once. The pool gives all tasks of a group to one decoder."""


@dataclass(frozen=True, slots=True)
class ParquetMember:
    """A recording in a Parquet file."""

    file: str
    """Path or address."""
    group: int
    """Number of the row group, from 0."""
    row: int
    """Number of the row in its group, from 0."""
    column: str
    name: str
    """Name of the recording, without folders; see `member_name`."""

    def __str__(self) -> str:
        """Return the address. It holds no /, which would be a path outside of the file."""
        column, name = quote(self.column, safe=""), quote(self.name, safe=" ")
        return f"{self.file}#row={self.group}+{self.row},{column},{name}"


def parse_member(address: str) -> ParquetMember | None:
    """Return the recording that an address names; None if it is not in a Parquet file."""
    if (match := _ADDRESS.fullmatch(address)) is None:
        return None
    column, name = unquote(match["column"]), unquote(match["name"])
    return ParquetMember(match["file"], int(match["group"]), int(match["row"]), column, name)


def member_name(value: dict[str, Any] | None) -> str:
    """Return the name of a recording by the value of its column, whose `path` may be a path or null."""
    return os.path.basename((value or {}).get("path") or "") or _NO_NAME


def open_member(member: ParquetMember, read: ReadRange, stat: Stat) -> FileRecording:
    """Return a copy of a recording.

    Args:
        read: reads the Parquet file.
        stat: size and revision of that file.

    Raises:
        UnusableObject: the file has no such recording there any more, or its bytes are null.
        AudioError, StorageError: the file cannot be read; see Stores.recording.
    """
    from pyarrow import ArrowException

    try:
        value = _recordings(member, read, stat)[member.row].as_py()
    except (ArrowException, IndexError, KeyError, OSError) as e:
        raise changed(member.file, member.name) from e
    if member_name(value) != member.name:
        raise changed(member.file, member.name)
    if not value or value["bytes"] is None:
        place = f"row {member.row} of row group {member.group} of {redacted(member.file)}"
        text = f"{place} has no recording: the bytes of its column {member.column} are null"
        raise UnusableObject(f"{text}; write the recordings into the table", FailureKind.EMPTY)
    return FileRecording.in_memory(value["bytes"])


def _recordings(member: ParquetMember, read: ReadRange, stat: Stat) -> Any:
    """Return the column of a row group, from memory if it is that of the last call."""
    from pyarrow import PythonFile, parquet

    with _LOCK:
        key = (member.file, stat.tag, member.group, member.column)
        if key not in _kept:
            _kept.clear()
            table = parquet.ParquetFile(
                PythonFile(_Bytes(read, stat.size), "r"), buffer_size=_FETCHED_BYTES, pre_buffer=False
            )
            columns = table.read_row_group(member.group, [member.column], use_threads=False)
            _kept[key] = columns.column(member.column)
        return _kept[key]


class _Bytes(io.RawIOBase):
    """The bytes of a file, of one revision."""

    def __init__(self, read: ReadRange, size: int):
        self.size, self._read, self._at = size, read, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seek(self, at: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        self._at = at + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes, fewer at the end."""
        end = self.size if count < 0 else min(self.size, self._at + count)
        blocks = []
        while self._at < end:
            blocks.append(self._read(min(_FETCHED_BYTES, end - self._at), self._at))
            self._at += len(blocks[-1])
            if not blocks[-1]:  # it was cut off
                break
        return b"".join(blocks)


def open_listing(address: str, read: ReadRange, size: int) -> BinaryIO:
    """Return an unnamed temporary file that is like a remote Parquet file, without the bytes of recordings: it takes no
    place on the disk for them, and they are not fetched.

    Args:
        read: reads the Parquet file.
        size: bytes of that file.

    Raises:
        StorageError: the file cannot be read, or the temporary file cannot be written.
    """
    with temporary_file(redacted(address), []) as file:
        os.truncate(file.fileno(), size)

        def fetch(begin: int, end: int) -> None:
            for at in range(max(0, begin), end, _FETCHED_BYTES):
                data = read(min(_FETCHED_BYTES, end - at), at)
                with temporary_errors(redacted(address)):
                    write_at(file.fileno(), data, at)

        fetch(size - _FOOTER_BYTES, size)
        footer = int.from_bytes(os.pread(file.fileno(), 4, max(0, size - 8)), "little")
        if footer < size:
            fetch(size - 8 - footer, size - _FOOTER_BYTES)
            for begin, end in _listed(file):
                fetch(begin, end)
        file.seek(0)
        return os.fdopen(os.dup(file.fileno()), "rb")


def _listed(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the columns that do not hold recordings, by a file that has its footer. There are none if it
    is no Parquet file."""
    from pyarrow import ArrowException, parquet

    with contextlib.suppress(ArrowException):
        metadata, last = parquet.read_metadata(file), (0, 0)
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        columns = (group.column(index) for group in groups for index in range(group.num_columns))
        for column in columns:
            if column.path_in_schema.endswith(BYTES):
                continue
            begin = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
            end = begin + column.total_compressed_size
            if 0 <= begin - last[1] <= _GAP_BYTES and last[1]:
                last = last[0], end
                continue
            yield last
            last = begin, end
        yield last
