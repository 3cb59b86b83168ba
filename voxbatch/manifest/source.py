"""Where manifest lines come from: a JSON-lines file, plain or gzip, here or at an address, standard input, or a folder
of recordings, here or in a bucket.

Whatever the kind, a Source is a file that can be streamed any number of times: what cannot be rewound (standard input,
a pipe), what is far away and what may change between passes (a folder's listing) is kept in an unnamed temporary file.
It does not know what a line means, and opens no recording.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from voxbatch.errors import BadLine, ConfigError, ManifestError
from voxbatch.manifest.folder import RECORDING_SUFFIXES, folder_manifest
from voxbatch.manifest.prefix import prefix_manifest
from voxbatch.manifest.row import MAX_LINE_BYTES
from voxbatch.storage import USUAL, Access, is_remote, open_remote, shown
from voxbatch.storage.address import folder_of, is_folder, tidied
from voxbatch.storage.objects import Absent
from voxbatch.storage.spool import spool

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SUFFIXES = (".jsonl", ".jsonl.gz")
_SUFFIX = re.compile(r"(\.jsonl?)?(\.gz)?$", re.IGNORECASE)
_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_GZIP_MAGIC = b"\x1f\x8b"


def stem(name: str) -> str:
    """A manifest's name, or its address, without what says that it is one: "calls.jsonl.gz" → "calls"."""
    return _SUFFIX.sub("", name, count=1)


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
        """`name` is for messages; relative paths resolve against `base`, a folder here or the address of one; `file` is
        seekable, and closed with this.

        `stamp` is the file's state (size, modification time) when it was first seen, if that was not now.
        """
        self.name = name
        self.base = base if is_remote(base) else os.path.abspath(base)
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


def open_source(
    spec: str | os.PathLike[str],
    stdin: BinaryIO | None = None,
    access: Access = USUAL,
    include: Sequence[str] = (),
) -> Source:
    """Open a manifest (.jsonl, .jsonl.gz; gzip is known by its content), a folder of recordings, or "-".

    A manifest may be at a gs://, s3:// or http(s):// address, a folder at a gs:// or s3:// one, which ends in / then;
    `access` says how such a place is entered. Of a folder's recordings `include` chooses some (folder.is_included).
    Relative paths resolve against the manifest's folder, or against the current directory for standard input and pipes.

    Raises:
        ManifestError: there is no such manifest, or it holds nothing.
        ConfigError: `include` is given for a manifest.
        StorageError: a store cannot be read, or the temporary file not written.
    """
    name = os.fspath(spec)
    if is_remote(name):
        return _remote_source(name, access, include)
    if name != "-" and os.path.isdir(name):
        return _folder_source(name, folder_manifest(name, include=include), include)
    _refuse_include(name, include)
    if name == "-":
        return _spooled("standard input", os.curdir, stdin or sys.stdin.buffer)
    file = _open_file(name)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return Source(name, os.path.dirname(name), file)
    with file:
        return _spooled(name, os.curdir, file)


def _remote_source(spec: str, access: Access, include: Sequence[str]) -> Source:
    name = shown(spec)
    try:
        uri = tidied(spec)
    except ValueError as error:
        raise _refused(name, f"cannot be opened: {error}") from error
    if is_folder(uri):
        return _folder_source(uri, prefix_manifest(uri, access, include), include)
    _refuse_include(name, include)
    _refuse_recording(shown(uri, ""), name)
    try:
        return Source(name, folder_of(uri), open_remote(uri, access))
    except Absent:
        what = "give a .jsonl or .jsonl.gz manifest; the address of a folder in a bucket ends in /"
        raise _refused(name, f"does not exist; {what}") from None


def _refuse_include(name: str, include: Sequence[str]) -> None:
    if include:
        globs = " ".join(f"--include {glob!r}" for glob in include)
        raise ConfigError(f"{globs} chooses among a folder's recordings, and {name} is no folder; leave it out")


def _refuse_recording(path: str, name: str) -> None:
    if os.path.splitext(path)[1].lower() in RECORDING_SUFFIXES:
        raise _refused(name, "is a recording; give the folder that holds it, or a manifest that names it")


def _open_file(name: str) -> BinaryIO:
    _refuse_recording(name, name)
    try:
        return open(name, "rb")
    except FileNotFoundError:
        seen = "is of a kind that is not read" if "://" in name else "does not exist"
        what = "give a .jsonl or .jsonl.gz manifest, here or at a gs://, s3:// or http(s):// address, a folder, or -"
        raise _refused(name, f"{seen}; {what}") from None
    except OSError as error:
        raise _refused(name, f"cannot be opened: {error.strerror}; check its permissions and its path") from error


def _folder_source(name: str, lines: Iterable[str], include: Sequence[str]) -> Source:
    source = Source(name, name, spool(name, ((line + "\n").encode() for line in lines)))
    if source._stamp[0] == 0:
        source.close()
        known = " ".join(sorted(RECORDING_SUFFIXES))
        which = f" that --include {' '.join(include)} lets in" if include else ""
        raise _refused(name, f"holds no recordings{which}; files that end in one of these are taken in: {known}")
    return source


def _spooled(name: str, base: str, stream: BinaryIO) -> Source:
    return Source(name, base, spool(name, iter(lambda: stream.read(1 << 20), b"")))


def _skip_to_line_end(reader: io.BufferedReader[io.RawIOBase], raw: bytes) -> None:
    while raw and not raw.endswith(b"\n"):
        raw = reader.readline(1 << 20)


def _refused(name: str, reason: str) -> ManifestError:
    return ManifestError(name, [BadLine(0, reason)])
