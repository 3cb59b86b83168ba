"""The lines of a manifest as a stream that can be read any number of times.

A Source is an open file, plain or gzip. A local manifest may be rewritten in place: each pass compares its blocks with
those of the first pass, and yields no line of a block that differs. This module does not interpret lines, and does not
open recordings. `sources/opening` decides which file it is.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import json
import os
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from voxbatch.errors import BadLine, ManifestError, StorageError
from voxbatch.manifest.encoding import UTF16_BOMS, TextDecoder
from voxbatch.manifest.json_line import AUDIO_KEY, MAX_LINE_BYTES, LongLine
from voxbatch.storage import DEFAULT_STORES, LocalReadError, Stores, is_remote, read_at

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BOM = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"
SNIFFED_BYTES = 4096
"""Number of the first bytes of a file that show whether it is binary."""
PLAYLIST = b"#EXTM3U"
"""Begin of a playlist."""
PLAYLIST_ADVICE = (
    "an HLS playlist has one recording in segments; join them, and give that: ffmpeg -i LIST -c copy talk.ts"
)

_ABSOLUTE_PATH = re.compile(rb'"audio_filepath"\s*:\s*"(/[^"]+)"')
_NOT_NORMAL = re.compile(rb"//|/\.\.?/")

_REST_BYTES = 1 << 20
"""Bytes that are read at a time of the rest of a line that is too long."""
BLOCK_BYTES = 1 << 18
"""Bytes of a block that is read and compared as a whole. A manifest of 10 GB has 38,000 blocks, whose digests take
3 MB."""
MAX_EXPANSION = 200
"""Largest number of bytes for each compressed byte, besides MAX_LINE_BYTES. JSON lines have 5 to 30; gzip can give
1,000, so that 3 MB would make an OUT of 6 GB."""
CHANGED_ADVICE = (
    "let its writer finish, then start again. A run that has begun continues only with the lines that it began with: "
    "restore them, or choose another OUT with -o"
)
"""Advice for a manifest that changed, for messages."""


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
    id_root: str = ""
    """See Source.id_root."""

    def open(self) -> Source:
        """Return the Source, in a process that has inherited the descriptor."""
        source = Source(self.name, self.base, os.fdopen(self.fd, "rb"), self.size, self.digests, self.grows)
        source.id_root = self.id_root
        return source


@dataclass(frozen=True, slots=True)
class Shard:
    """One of the files of a manifest that has several."""

    name: str
    """Name below the folder of the manifest, for messages."""
    first_line: int
    """Number of its first line among the lines of all files, from 1."""


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
        note: str = "",
        shards: Sequence[Shard] = (),
        decoder: TextDecoder | None = None,
        stores: Stores = DEFAULT_STORES,
    ):
        """Wrap an open file.

        Args:
            base: folder or address of a folder that relative paths are resolved against.
            file: seekable file, which is closed together with the Source.
            size: number of bytes to read; None takes the file's current size.
            digests: digests of the blocks that another process has read; see InheritableSource.
            grows: voxbatch lists the recordings itself at each start, so that another start may find more of them. The
                rows then have the state of each recording.
            note: sentence for people about what was made of the source, or "".
            shards: files that the lines come from, in order, if there are several.
            decoder: decodes lines; its note says which files are not in UTF-8.
            stores: open the files beside it.
        """
        self.name = name
        self.base = base if is_remote(base) else os.path.abspath(base)
        self._file = file
        self._opened = os.fstat(file.fileno())
        self.size = self._opened.st_size if size is None else size
        self._digests = list(digests)
        self.grows = grows
        self.note = note
        self.decoder = decoder or TextDecoder()
        self.stores = stores
        self._shards = shards

    def inheritable(self) -> InheritableSource:
        """Return the form for a process that inherits the descriptor. The Source must stay open meanwhile."""
        return InheritableSource(
            self.name, self.base, self._file.fileno(), self.size, tuple(self._digests), self.grows, self.id_root
        )

    @functools.cached_property
    def id_root(self) -> str:
        """Begin of the absolute paths of all recordings, with a final slash, that ids made of paths leave out. "" if a
        line names no absolute path. A run that continues sets that of its first list, so that its ids stay."""
        root = b""
        for _, line in self.lines():
            if not (folder := _absolute_folder(line)):
                return ""
            root = root or folder
            while not folder.startswith(root):
                root = root[: root.rindex(b"/", 0, -1) + 1]
        return "" if root == b"/" else os.fsdecode(root)

    def begin(self) -> bytes:
        """Return the first bytes of the file, as they are."""
        return os.pread(self._file.fileno(), SNIFFED_BYTES, 0)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (1-based line number, bytes without line end and byte order mark) of each line that is not blank.

        Of a line that is longer than MAX_LINE_BYTES, only the length is given, as a LongLine.

        Raises:
            ManifestError, StorageError: see `pieces`.
        """
        for number, raw in self.raw_lines():
            if isinstance(raw, LongLine):
                yield number, raw
            elif (line := raw.rstrip(b"\r\n").removeprefix(_BOM)) and not line.isspace():
                yield number, line

    def raw_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (1-based line number, bytes with the line end) of each line. See `lines` about long lines.

        Raises:
            ManifestError, StorageError: see `pieces`.
        """
        number, long_line = 0, None
        for piece in self.pieces():
            is_end = piece.endswith(b"\n")
            number += long_line is None
            if long_line is None and (is_end or len(piece) <= MAX_LINE_BYTES):
                yield number, piece
                continue
            long_line = long_line or LongLine(piece[:1])
            long_line.num_bytes += len(piece) - is_end
            if is_end:
                yield number, long_line
                long_line = None
        if long_line is not None:
            yield number, long_line

    def text(self, line: bytes) -> str:
        """Return a line as a text. One that is not UTF-8 is read as Windows-1252, and `decoder` remembers it."""
        return self.decoder.decode(line, self.name)

    def pieces(self) -> Iterator[bytes]:
        """Yield all bytes, a line at a time; a line that is longer than MAX_LINE_BYTES comes in several pieces. UTF-16
        becomes UTF-8, and the line ends of old spreadsheets (CR) become LF.

        Raises:
            ManifestError: the file changed since an earlier pass, expands too much, or cannot be read to its end.
            StorageError: the file cannot be read.
        """
        number, limit = 0, MAX_LINE_BYTES + 1
        bytes_left = MAX_EXPANSION * self.size + MAX_LINE_BYTES
        try:
            reader = self._reader()
            while piece := reader.readline(limit):
                bytes_left -= len(piece)
                if bytes_left < 0:
                    reason = f"expands to more than {MAX_EXPANSION} times its size; if that is right, unpack it"
                    raise manifest_error(self.name, f"{reason}: gunzip {self.name}")
                is_end = piece.endswith(b"\n")
                number += is_end
                limit = MAX_LINE_BYTES + 1 if is_end else _REST_BYTES
                yield piece
        except _BlockChangedError as error:
            raise manifest_error(
                self.name, f"changed while it was being read, after line {number:,}; {CHANGED_ADVICE}"
            ) from error
        except LocalReadError as error:
            raise StorageError(f"cannot read {self.name}: {error}") from error
        except (EOFError, zlib.error, OSError, UnicodeError) as error:
            raise manifest_error(self.name, f"cannot be read to its end: {error}; create the file again") from error

    def name_below(self) -> str:
        """Return the name of the file below `base`, as a row names it: "de/clips-000.tar"."""
        name = self.name if is_remote(self.name) else os.path.abspath(self.name)
        return name.removeprefix(os.path.join(self.base, ""))

    def place(self, line: int) -> str:
        """Return where a line is, for messages: "line 3", or with several files "part-00001.parquet:3"."""
        return self.placed(BadLine(line, "")).place

    def placed(self, bad: BadLine) -> BadLine:
        """Return a bad line with its number in the file that it comes from, if there are several."""
        if not self._shards or not bad.line:
            return bad
        shard = self._shards[bisect_right(self._shards, bad.line, key=lambda shard: shard.first_line) - 1]
        return BadLine(bad.line - shard.first_line + 1, bad.reason, shard.name)

    @property
    def file(self) -> BinaryIO:
        """The open file, for a reader of a binary format."""
        return self._file

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
        if reader.peek(2).startswith(GZIP_MAGIC):
            # GzipFile is a raw stream in all but its declared type. BufferedReader saves a Python call per line.
            reader = io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=reader)), 1 << 18)
        begin = reader.peek(2)
        is_utf16, has_cr_only = begin.startswith(UTF16_BOMS), b"\r" in begin[:-1] and b"\n" not in begin
        if is_utf16 or has_cr_only:
            return io.BufferedReader(_ConvertedReader(reader, "utf-16" if is_utf16 else "utf-8"), 1 << 18)
        return reader


def _absolute_folder(line: bytes) -> bytes:
    """Return the folder of the recording of a line, with a final slash; b"" if the line names no absolute path."""
    path = b""
    if b"\\" in line:  # escapes
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            path = json.loads(line).get(AUDIO_KEY).encode()
    elif match := _ABSOLUTE_PATH.search(line):
        path = match[1]
    folder = path[: path.rfind(b"/") + 1]
    return folder if folder.startswith(b"/") and not _NOT_NORMAL.search(folder) else b""


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
        at = self._num_blocks * BLOCK_BYTES
        if not self._block and at < self._size:
            size = min(BLOCK_BYTES, self._size - at)
            block = read_at(self._fd, size, at)
            if len(block) < size:
                raise _BlockChangedError
            digest = hashlib.blake2b(block, digest_size=16).digest()
            if self._num_blocks == len(self._digests):
                self._digests.append(digest)
            elif digest != self._digests[self._num_blocks]:
                raise _BlockChangedError
            self._block, self._num_blocks = memoryview(block), self._num_blocks + 1
        count = min(len(view), len(self._block))
        view[:count] = self._block[:count]
        self._block = self._block[count:]
        return count


def is_binary(begin: bytes) -> bool:
    """Return whether a file that begins so is not a text, and not a compressed one."""
    return b"\0" in begin and not begin.startswith((GZIP_MAGIC, *UTF16_BOMS))


class _ConvertedReader(io.RawIOBase):
    """Converts a text to UTF-8 with LF as the line end. Bytes that are not UTF-8 stay as they are."""

    def __init__(self, reader: io.BufferedReader[io.RawIOBase], encoding: str):
        self._text = io.TextIOWrapper(reader, encoding, "surrogateescape" if encoding == "utf-8" else "strict")
        self._bytes = b""
        """Converted bytes that were not given out."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill the buffer as far as one read goes. Return 0 at the end of the text.

        Raises:
            UnicodeError: the text is not UTF-16.
        """
        view = memoryview(buffer)
        self._bytes = self._bytes or self._text.read(BLOCK_BYTES).encode("utf-8", "surrogateescape")
        count = min(len(view), len(self._bytes))
        view[:count] = self._bytes[:count]
        self._bytes = self._bytes[count:]
        return count


def manifest_error(name: str, reason: str) -> ManifestError:
    """Return the error of a manifest as a whole."""
    return ManifestError(name, [BadLine(0, reason)])


class BadLines:
    """Collects the first ManifestError.LIMIT bad lines of a manifest, and counts all."""

    def __init__(self) -> None:
        self.first: list[BadLine] = []
        self.total = 0

    def add(self, line: int, reason: str, shard: str = "") -> None:
        """Add a bad line; see BadLine. Lines come in ascending order."""
        self.total += 1
        if len(self.first) < ManifestError.LIMIT:
            self.first.append(BadLine(line, reason, shard))

    def __iadd__(self, other: BadLines) -> BadLines:
        self.first = sorted(self.first + other.first, key=lambda bad: bad.line)[: ManifestError.LIMIT]
        self.total += other.total
        return self
