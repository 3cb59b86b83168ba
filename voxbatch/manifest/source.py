"""Open manifest lines as a stream: from a JSON-lines file, plain or gzip, local or at an address; from standard input;
or from a folder of recordings, local or in a bucket.

Every Source is a file that can be streamed any number of times. An unnamed temporary file keeps what cannot be rewound
(standard input, a pipe), what is remote, and what may change between passes (a folder's listing). A local manifest may
be rewritten in place: each pass compares its blocks with those of the first pass, and yields no line of a block that
differs. This module does not interpret lines, and does not open recordings.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from voxbatch.errors import BadLine, ConfigError, ManifestError, StorageError
from voxbatch.manifest.folder import RECORDING_SUFFIXES, folder_manifest
from voxbatch.manifest.json_line import MAX_LINE_BYTES, LongLine
from voxbatch.manifest.prefix import prefix_manifest
from voxbatch.storage import (
    DEFAULT_STORE_OPTIONS,
    LocalReadError,
    StoreOptions,
    is_remote,
    open_remote,
    read_at,
    redacted,
)
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

BLOCK_BYTES = 1 << 18
"""Bytes of a block that is read and compared as a whole. A manifest of 10 GB has 38,000 blocks, whose digests take
3 MB."""
CHANGED_ADVICE = (
    "let its writer finish, then start again. A run that has begun continues only with the lines that it began with: "
    "restore them, or choose another OUT with -o"
)
"""Advice for a manifest that changed, for messages."""


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
    size: int
    """Bytes of the file when it was first opened."""
    digests: tuple[bytes, ...]
    """Digest of each block that was read so far."""
    grows: bool = False
    """See Source.grows."""

    def open(self) -> Source:
        """Return the Source, in a process that has inherited the descriptor."""
        return Source(self.name, self.base, os.fdopen(self.fd, "rb"), self.size, self.digests, self.grows)


class Source:
    """Manifest lines that can be streamed any number of times. Close it, or use it as a context manager."""

    def __init__(
        self,
        name: str,
        base: str,
        file: BinaryIO,
        size: int | None = None,
        digests: Iterable[bytes] = (),
        grows: bool = False,
    ):
        """Wrap an open file.

        Args:
            name: the manifest's name, for messages.
            base: folder or address of a folder that relative paths are resolved against.
            file: seekable file, which is closed together with the Source.
            size: number of bytes to read; None takes the file's current size.
            digests: digests of the blocks that another process has read; see InheritableSource.
            grows: voxbatch lists the recordings itself at each start, so that another start may find more of them. The
                rows then have the state of each recording.
        """
        self.name = name
        self.base = base if is_remote(base) else os.path.abspath(base)
        self._file = file
        self._opened = os.fstat(file.fileno())
        self.size = self._opened.st_size if size is None else size
        self._digests = list(digests)
        self.grows = grows

    def inheritable(self) -> InheritableSource:
        """Return the form for a process that inherits the descriptor. The Source must stay open meanwhile."""
        return InheritableSource(self.name, self.base, self._file.fileno(), self.size, tuple(self._digests), self.grows)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (1-based line number, bytes without line end and byte order mark) of each line that is not blank.

        Of a line that is longer than MAX_LINE_BYTES, only the length is given, as a LongLine.

        Raises:
            ManifestError: the file changed since an earlier pass, is UTF-16, or cannot be read to its end.
            StorageError: the file cannot be read.
        """
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
        except _BlockChangedError as error:
            raise _manifest_error(
                self.name, f"changed while it was being read, after line {number:,}; {CHANGED_ADVICE}"
            ) from error
        except LocalReadError as error:
            raise StorageError(f"cannot read {self.name}: {error}") from error
        except (EOFError, zlib.error, OSError) as error:
            raise _manifest_error(self.name, f"cannot be read to its end: {error}; create the file again") from error

    def close(self) -> None:
        """Close the file. A temporary file vanishes with that."""
        self._file.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def has_changed(self) -> bool:
        """Return whether the file was written to since it was opened, as its size and modification time tell."""
        now = os.fstat(self._file.fileno())
        return (now.st_size, now.st_mtime_ns) != (self._opened.st_size, self._opened.st_mtime_ns)

    def _reader(self) -> io.BufferedReader[io.RawIOBase]:
        verified = _VerifiedReader(self._file.fileno(), self.size, self._digests)
        reader: io.BufferedReader[io.RawIOBase] = io.BufferedReader(verified, BLOCK_BYTES)
        if reader.peek(2).startswith(_GZIP_MAGIC):
            # GzipFile is a raw stream in all but its declared type. BufferedReader saves a Python call per line.
            return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=reader)), 1 << 18)
        if self.name.lower().endswith(".gz"):
            raise _manifest_error(
                self.name, "is not gzip, though its name says so; compress it, or remove .gz from the name"
            )
        return reader


class _BlockChangedError(Exception):
    """A block of the file is not what an earlier pass read."""


class _VerifiedReader(io.RawIOBase):
    """Reads the first `size` bytes of an open file from its own position, so that passes do not disturb each other.

    The first pass appends the digest of each block to `digests`. Later passes compare, and raise _BlockChangedError.
    """

    def __init__(self, fd: int, size: int, digests: list[bytes]):
        self._fd, self._size, self._digests = fd, size, digests
        self._num_blocks = 0
        """Number of blocks that were read."""
        self._block = memoryview(b"")
        """Bytes of the last block that were not given out."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill the buffer as far as the block goes. Return 0 at the end of the file.

        Raises:
            _BlockChangedError: the block was changed or cut off since the first pass.
            LocalReadError: the file cannot be read.
        """
        view = memoryview(buffer)
        if not self._block:
            self._block = memoryview(self._next_block())
        count = min(len(view), len(self._block))
        view[:count] = self._block[:count]
        self._block = self._block[count:]
        return count

    def _next_block(self) -> bytes:
        at = self._num_blocks * BLOCK_BYTES
        wanted = max(0, min(BLOCK_BYTES, self._size - at))
        block = read_at(self._fd, wanted, at)
        if len(block) < wanted:
            raise _BlockChangedError
        if not block:
            return b""
        digest = hashlib.blake2b(block, digest_size=16).digest()
        if self._num_blocks == len(self._digests):
            self._digests.append(digest)
        elif digest != self._digests[self._num_blocks]:
            raise _BlockChangedError
        self._num_blocks += 1
        return block


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
        return _folder_source(name, folder_manifest(name, include=include, with_state=True), include)
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
        return _folder_source(uri, prefix_manifest(uri, store_options, include, with_state=True), include)
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
    source = Source(name, name, temporary_file(name, ((line + "\n").encode() for line in lines)), grows=True)
    if source.size == 0:
        source.close()
        known = " ".join(sorted(RECORDING_SUFFIXES))
        which = f" that match --include {' '.join(include)}" if include else ""
        raise _manifest_error(name, f"holds no recordings{which}; only files with these endings are used: {known}")
    return source


def _temporary_source(name: str, base: str, stream: BinaryIO) -> Source:
    return Source(name, base, temporary_file(name, iter(lambda: stream.read(1 << 20), b"")))


def _manifest_error(name: str, reason: str) -> ManifestError:
    return ManifestError(name, [BadLine(0, reason)])
