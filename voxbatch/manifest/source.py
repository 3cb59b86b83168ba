"""Where manifest lines come from: a JSON-lines file, plain or gzip, standard input, or a folder of recordings.

Whatever the kind, a Source is a file that can be streamed any number of times: what cannot be rewound (standard input,
a pipe) and what may change between passes (a folder's listing) is kept in an unnamed temporary file. It does not know
what a line means, and opens no recording.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from voxbatch.errors import BadLine, ManifestError, StorageError
from voxbatch.manifest.folder import RECORDING_SUFFIXES, folder_manifest
from voxbatch.manifest.row import MAX_LINE_BYTES

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Handle:
    """An open Source as another process sees it that has inherited its descriptor: the same bytes, or none."""

    name: str
    base: str
    fd: int
    stamp: tuple[int, int]

    def open(self) -> Source:
        return Source(self.name, self.base, os.fdopen(self.fd, "rb"), self.stamp)


class Source:
    """Manifest lines that can be streamed again and again. Close it, or use it as a context manager."""

    def __init__(self, name: str, base: str, file: BinaryIO, stamp: tuple[int, int] | None = None):
        """`name` is for messages; relative paths resolve against `base`; `file` is seekable, and closed with this.

        `stamp` is the file's state (size, modification time) when it was first seen, if that was not now.
        """
        self.name = name
        self.base = os.path.abspath(base)
        self._file = file
        self._stamp = stamp or self._stat()

    def handle(self) -> Handle:
        return Handle(self.name, self.base, self._file.fileno(), self._stamp)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(1-based line number, bytes without line end and byte order mark) of each line that is not blank.

        Of a line longer than MAX_LINE_BYTES only the first MAX_LINE_BYTES + 1 bytes are given. Raises ManifestError.
        """
        if self._stat() != self._stamp:
            raise _refused(self.name, "changed while it was being read; let its writer finish, then start again")
        number = 0
        try:
            reader = self._reader()
            while raw := reader.readline(MAX_LINE_BYTES + 1):
                number += 1
                if number == 1 and raw.startswith(_UTF16_BOMS):
                    raise _refused(self.name, "is UTF-16; a manifest is UTF-8: save it again as UTF-8")
                if len(raw) > MAX_LINE_BYTES:
                    _skip_to_line_end(reader, raw)
                    yield number, raw
                elif (line := raw.rstrip(b"\r\n").removeprefix(_BOM)) and not line.isspace():
                    yield number, line
        except (EOFError, zlib.error, OSError) as error:
            raise _refused(self.name, f"cannot be read to its end: {error}; make the file anew") from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _stat(self) -> tuple[int, int]:
        state = os.fstat(self._file.fileno())
        return state.st_size, state.st_mtime_ns

    def _reader(self) -> io.BufferedReader[io.RawIOBase]:
        size = self._stamp[0]
        reader: io.BufferedReader[io.RawIOBase] = io.BufferedReader(_Pass(self._file, size), 1 << 18)
        if reader.peek(2).startswith(_GZIP_MAGIC):
            # GzipFile is a raw stream in all but its declared type; BufferedReader spares a Python call a line.
            return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=reader)), 1 << 18)
        if self.name.lower().endswith(".gz"):
            raise _refused(self.name, "is not gzip, though its name says so; compress it, or take .gz off the name")
        return reader


class _Pass(io.RawIOBase):
    """Reads the first `size` bytes of an open file from a position of its own: passes do not disturb each other."""

    def __init__(self, file: BinaryIO, size: int):
        self._file, self._size, self._position = file, size, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        wanted = min(len(view), self._size - self._position)
        data = os.pread(self._file.fileno(), wanted, self._position)
        if wanted and not data:
            raise OSError("the file became shorter while it was being read")
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


def open_source(spec: str | os.PathLike[str], stdin: BinaryIO | None = None) -> Source:
    """Open a manifest (.jsonl, .jsonl.gz; gzip is known by its content), a folder of recordings, or "-".

    Relative paths resolve against the manifest's folder, or against the current directory for standard input and pipes.
    Raises ManifestError, and StorageError where the temporary file cannot be written.
    """
    name = os.fspath(spec)
    if name == "-":
        return _spooled("standard input", os.curdir, stdin or sys.stdin.buffer)
    if os.path.isdir(name):
        return _folder_source(name)
    file = _open_file(name)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return Source(name, os.path.dirname(name), file)
    with file:
        return _spooled(name, os.curdir, file)


def _open_file(name: str) -> BinaryIO:
    if os.path.splitext(name)[1].lower() in RECORDING_SUFFIXES:
        raise _refused(name, "is a recording; give the folder that holds it, or a manifest that names it")
    try:
        return open(name, "rb")
    except FileNotFoundError:
        seen = "is remote, which this version does not read" if "://" in name else "does not exist"
        raise _refused(name, f"{seen}; give a local .jsonl or .jsonl.gz manifest, a folder, or -") from None
    except OSError as error:
        raise _refused(name, f"cannot be opened: {error.strerror}; check its permissions and its path") from error


def _folder_source(name: str) -> Source:
    lines = ((line + "\n").encode() for line in folder_manifest(name))
    source = Source(name, name, _spool(name, lines))
    if source._stamp[0] == 0:
        source.close()
        known = " ".join(sorted(RECORDING_SUFFIXES))
        raise _refused(name, f"holds no recordings; files that end in one of these are taken in: {known}")
    return source


def _spooled(name: str, base: str, stream: BinaryIO) -> Source:
    return Source(name, base, _spool(name, iter(lambda: stream.read(1 << 20), b"")))


def _spool(name: str, blocks: Iterator[bytes]) -> BinaryIO:
    """A temporary file that has no name, so that it is gone with the process however that ends."""
    try:
        with tempfile.TemporaryFile() as file:
            file.writelines(blocks)
            file.flush()
            return os.fdopen(os.dup(file.fileno()), "rb")
    except OSError as error:
        where = tempfile.gettempdir()
        raise StorageError(f"{name}: cannot be kept in {where}: {error}; free space there, or set TMPDIR") from error


def _skip_to_line_end(reader: io.BufferedReader[io.RawIOBase], raw: bytes) -> None:
    while raw and not raw.endswith(b"\n"):
        raw = reader.readline(1 << 20)


def _refused(name: str, reason: str) -> ManifestError:
    return ManifestError(name, [BadLine(0, reason)])
