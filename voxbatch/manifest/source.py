"""Open manifest lines as a stream: from a JSON-lines file, plain or gzip, local or at an address; from standard input;
or from a folder of recordings, local or in a bucket.

Every Source is a file that can be streamed any number of times. An unnamed temporary file keeps what cannot be rewound
(standard input, a pipe), what is remote, and what may change between passes (a folder's listing). This module does not
interpret lines, and does not open recordings.
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
from voxbatch.manifest.json_line import MAX_LINE_BYTES, LongLine
from voxbatch.manifest.prefix import prefix_manifest
from voxbatch.storage import DEFAULT_STORE_OPTIONS, StoreOptions, is_remote, open_remote, redacted
from voxbatch.storage.address import folder_of, is_folder, normalized
from voxbatch.storage.objects import ObjectNotFound
from voxbatch.storage.temporary_files import temporary_file

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SUFFIXES = (".jsonl", ".jsonl.gz")
_SUFFIX = re.compile(r"(\.jsonl?)?(\.gz)?$", re.IGNORECASE)
_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_GZIP_MAGIC = b"\x1f\x8b"


def without_suffix(name: str) -> str:
    """Return a manifest's name, or its address, without the suffix that marks a manifest: "calls.jsonl.gz" →
    "calls"."""
    return _SUFFIX.sub("", name, count=1)


@dataclass(frozen=True, slots=True)
class InheritableSource:
    """Open Source in the form that another process can inherit: the process has the descriptor, and reads the same
    bytes or fails."""

    name: str
    base: str
    fd: int
    file_state: tuple[int, int]
    """State of the file (size, modification time) when it was first opened. Source.lines refuses a file that has
    changed."""

    def open(self) -> Source:
        """Return the Source, in a process that has inherited the descriptor."""
        return Source(self.name, self.base, os.fdopen(self.fd, "rb"), self.file_state)


class Source:
    """Manifest lines that can be streamed any number of times. Close it, or use it as a context manager."""

    def __init__(self, name: str, base: str, file: BinaryIO, file_state: tuple[int, int] | None = None):
        """Wrap an open file.

        Args:
            name: the manifest's name, for messages.
            base: folder or address of a folder that relative paths are resolved against.
            file: seekable file, which is closed together with the Source.
            file_state: the file's state (size, modification time) when it was first seen; None takes the current state.
        """
        self.name = name
        self.base = base if is_remote(base) else os.path.abspath(base)
        self._file = file
        self._file_state = file_state or self._current_state()

    def inheritable(self) -> InheritableSource:
        """Return the form for a process that inherits the descriptor. The Source must stay open meanwhile."""
        return InheritableSource(self.name, self.base, self._file.fileno(), self._file_state)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (1-based line number, bytes without line end and byte order mark) of each line that is not blank.

        Of a line that is longer than MAX_LINE_BYTES, only the length is given, as a LongLine.

        Raises:
            ManifestError: the file changed, is UTF-16, or cannot be read to its end.
        """
        if self._current_state() != self._file_state:
            raise _manifest_error(self.name, "changed while it was being read; let its writer finish, then start again")
        number = 0
        try:
            reader = self._reader()
            while raw := reader.readline(MAX_LINE_BYTES + 1):
                number += 1
                if number == 1 and raw.startswith(_UTF16_BOMS):
                    raise _manifest_error(self.name, "is UTF-16; a manifest is UTF-8: save it again as UTF-8")
                if len(raw) > MAX_LINE_BYTES:
                    yield number, _long_line(raw, reader)
                elif (line := raw.rstrip(b"\r\n").removeprefix(_BOM)) and not line.isspace():
                    yield number, line
        except (EOFError, zlib.error, OSError) as error:
            raise _manifest_error(self.name, f"cannot be read to its end: {error}; create the file again") from error

    def close(self) -> None:
        """Close the file. A temporary file vanishes with that."""
        self._file.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _current_state(self) -> tuple[int, int]:
        state = os.fstat(self._file.fileno())
        return state.st_size, state.st_mtime_ns

    def _reader(self) -> io.BufferedReader[io.RawIOBase]:
        size = self._file_state[0]
        reader: io.BufferedReader[io.RawIOBase] = io.BufferedReader(_PositionalReader(self._file, size), 1 << 18)
        if reader.peek(2).startswith(_GZIP_MAGIC):
            # GzipFile is a raw stream in all but its declared type. BufferedReader saves a Python call per line.
            return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=reader)), 1 << 18)
        if self.name.lower().endswith(".gz"):
            raise _manifest_error(
                self.name, "is not gzip, though its name says so; compress it, or remove .gz from the name"
            )
        return reader


class _PositionalReader(io.RawIOBase):
    """Reads the first `size` bytes of an open file from its own position, so that passes do not disturb each other."""

    def __init__(self, file: BinaryIO, size: int):
        self._file, self._size, self._position = file, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill the buffer as far as the file goes.

        Raises:
            OSError: the file became shorter.
        """
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
    store_options: StoreOptions = DEFAULT_STORE_OPTIONS,
    include: Sequence[str] = (),
) -> Source:
    """Open a manifest (.jsonl, .jsonl.gz; gzip is detected by its content), a folder of recordings, or "-" for standard
    input.

    A manifest may be at a gs://, s3:// or http(s):// address. A folder may be at a gs:// or s3:// address, which then
    ends in /. Relative paths resolve against the manifest's folder; for standard input and pipes, they resolve against
    the current directory.

    Args:
        spec: path, address, or "-".
        stdin: stream to read for "-"; None is the process's standard input.
        store_options: credentials and settings of the stores.
        include: patterns that choose among a folder's recordings, see folder.is_included.

    Raises:
        ManifestError: there is no such manifest, or it holds nothing.
        ConfigError: `include` is given for a manifest.
        StorageError: a store cannot be read, or the temporary file cannot be written.
    """
    name = os.fspath(spec)
    if is_remote(name):
        return _remote_source(name, store_options, include)
    if name != "-" and os.path.isdir(name):
        return _folder_source(name, folder_manifest(name, include=include), include)
    _refuse_include(name, include)
    if name == "-":
        return _temporary_source("standard input", os.curdir, stdin or sys.stdin.buffer)
    file = _open_file(name)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return Source(name, os.path.dirname(name), file)
    with file:
        return _temporary_source(name, os.curdir, file)


def _remote_source(spec: str, store_options: StoreOptions, include: Sequence[str]) -> Source:
    name = redacted(spec)
    try:
        uri = normalized(spec)
    except ValueError as error:
        raise _manifest_error(name, f"cannot be opened: {error}") from error
    if is_folder(uri):
        return _folder_source(uri, prefix_manifest(uri, store_options, include), include)
    _refuse_include(name, include)
    _refuse_recording(redacted(uri, ""), name)
    try:
        return Source(name, folder_of(uri), open_remote(uri, store_options))
    except ObjectNotFound:
        what = "give a .jsonl or .jsonl.gz manifest; the address of a folder in a bucket ends in /"
        raise _manifest_error(name, f"does not exist; {what}") from None


def _refuse_include(name: str, include: Sequence[str]) -> None:
    if include:
        globs = " ".join(f"--include {glob!r}" for glob in include)
        raise ConfigError(f"{globs} selects recordings of a folder, and {name} is not a folder; leave it out")


def _refuse_recording(path: str, name: str) -> None:
    if os.path.splitext(path)[1].lower() in RECORDING_SUFFIXES:
        raise _manifest_error(name, "is a recording; give the folder that holds it, or a manifest that names it")


def _open_file(name: str) -> BinaryIO:
    _refuse_recording(name, name)
    try:
        return open(name, "rb")
    except FileNotFoundError:
        seen = "is of an unsupported kind" if "://" in name else "does not exist"
        what = "give a .jsonl or .jsonl.gz manifest, here or at a gs://, s3:// or http(s):// address, a folder, or -"
        raise _manifest_error(name, f"{seen}; {what}") from None
    except OSError as error:
        raise _manifest_error(
            name, f"cannot be opened: {error.strerror}; check its permissions and its path"
        ) from error


def _long_line(begin: bytes, reader: io.BufferedReader[io.RawIOBase]) -> LongLine:
    """Read the rest of a line that is too long, without keeping it."""
    line = LongLine(begin[:1])
    line.num_bytes, rest = len(begin), begin
    while rest and not rest.endswith(b"\n"):
        rest = reader.readline(1 << 20)
        line.num_bytes += len(rest)
    line.num_bytes -= rest.endswith(b"\n")
    return line


def _folder_source(name: str, lines: Iterable[str], include: Sequence[str]) -> Source:
    source = Source(name, name, temporary_file(name, ((line + "\n").encode() for line in lines)))
    if source._file_state[0] == 0:
        source.close()
        known = " ".join(sorted(RECORDING_SUFFIXES))
        which = f" that match --include {' '.join(include)}" if include else ""
        raise _manifest_error(name, f"holds no recordings{which}; only files with these endings are used: {known}")
    return source


def _temporary_source(name: str, base: str, stream: BinaryIO) -> Source:
    return Source(name, base, temporary_file(name, iter(lambda: stream.read(1 << 20), b"")))


def _manifest_error(name: str, reason: str) -> ManifestError:
    return ManifestError(name, [BadLine(0, reason)])
