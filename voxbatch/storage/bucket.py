"""Store of outputs (OUT) in a bucket: storage.Store on objects.

An object store writes whole objects or none, and creates an object only if absent, or replaces only the revision that
is named, when the request says so. This module makes these requests, and tests at the start whether the store obeys
them.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from io import BytesIO
from posixpath import splitext
from typing import BinaryIO, cast

from voxbatch.errors import StorageError
from voxbatch.storage.address import Address
from voxbatch.storage.errors import ObjectNotFound
from voxbatch.storage.retrying_client import RetryingBucket, read_blocks

IN_MEMORY_BYTES = 8 << 20
"""Largest object that is gathered in memory. Larger ones are gathered in a temporary file."""
HEAD_BYTES, BLOCK_BYTES = 256 << 10, 1 << 20
"""Sizes of the first read and of later reads. Of many parts only the first line is needed."""
STREAMS = 16
"""Number of concurrent calls that is worthwhile."""
PROBE = ".voxbatch-probe"
"""Name of the object that `prepare` writes."""

CONTENT_TYPES = {
    ".json": "application/json",
    ".jsonl": "application/jsonl; charset=utf-8",
    ".srt": "application/x-subrip; charset=utf-8",
    ".ass": "text/x-ssa; charset=utf-8",
    ".vtt": "text/vtt; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".ctm": "text/plain; charset=utf-8",
    ".TextGrid": "text/plain; charset=utf-8",
    ".tsv": "text/tab-separated-values; charset=utf-8",
    ".ttml": "application/ttml+xml",
    ".html": "text/html; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".parquet": "application/vnd.apache.parquet",
}


class BucketStore:
    """Store in a bucket. See storage.Store for what each method promises."""

    concurrency = STREAMS
    max_open = 64
    """So the lines take 64 MB."""

    def __init__(self, place: Address, objects: RetryingBucket):
        self.place = str(place).rstrip("/")
        self._prefix = f"{place.key.rstrip('/')}/" if place.key.rstrip("/") else ""
        self._objects = objects

    def prepare(self) -> str | None:
        """Write one object twice; the store must refuse the second write.

        The object stays. Deleting it needs a permission that nothing else here needs, and the next run then asks only
        once.
        """
        for _ in range(2):
            text = f"voxbatch tests here whether this store supports create-if-absent. {secrets.token_hex(8)}\n"
            if not self._put(PROBE, [text.encode()], ""):
                return None
        return (
            f"{self.place}: this store overwrites objects despite create-if-absent: two writers at a "
            "time, as with shards, retried tasks or a second start, can lose each other's results here; run one at a "
            "time, or choose another store"
        )

    def read(self, name: str) -> bytes | None:
        """See storage.Store."""
        try:
            return b"".join(read_blocks(self._objects, self._prefix + name, HEAD_BYTES, IN_MEMORY_BYTES))
        except ObjectNotFound:
            return None

    def exists(self, name: str) -> bool:
        """See storage.Store."""
        if name.endswith("/"):
            return any(True for _ in self._objects.list(self._prefix + name))
        try:
            self._objects.stat(self._prefix + name)
        except ObjectNotFound:
            return False
        return True

    def checksum(self, name: str) -> str:
        """See storage.Store."""
        try:
            return self._objects.stat(self._prefix + name).checksum
        except ObjectNotFound:
            return ""

    def lines(self, name: str) -> Generator[bytes]:
        """Yield the object's lines, from reads of HEAD_BYTES and then BLOCK_BYTES.

        Raises:
            ObjectNotFound: there is no such object.
        """
        begun: list[bytes] = []
        with closing(read_blocks(self._objects, self._prefix + name, HEAD_BYTES, BLOCK_BYTES)) as blocks:  # type: ignore[type-var]
            for block in blocks:
                for line in BytesIO(block):  # which shares the bytes of the block
                    begun.append(line)
                    if line.endswith(b"\n"):
                        yield b"".join(begun)
                        begun = []
        if begun:
            yield b"".join(begun)

    def names(self, prefix: str) -> list[str]:
        """See storage.Store. The object of `prepare` is left out."""
        folder = self._prefix + (f"{prefix.rstrip('/')}/" if prefix else "")
        names = [stat.key.removeprefix(self._prefix) for stat in self._objects.list(folder)]
        return sorted(name for name in names if name != PROBE)

    def create(self, name: str, blocks: Iterable[bytes], durable: bool = True) -> bool:
        """See storage.Store. Every object is durable."""
        return self._put(name, blocks, "")

    def write(self, name: str, blocks: Iterable[bytes], durable: bool = True) -> None:
        """See storage.Store. Every object is durable. The revision that is replaced is read before the first block: a
        request that is delayed, or repeated for minutes, cannot replace a later one."""
        try:
            replaced = self._objects.stat(self._prefix + name).tag
        except ObjectNotFound:
            replaced = ""
        if not self._put(name, blocks, replaced):
            raise StorageError(f"cannot write {self.place}/{name}: another process wrote it meanwhile: start again")

    def sync(self) -> None:
        """Do nothing: every object is durable."""

    def delete(self, name: str, check: Callable[[], None] | None = None) -> None:
        """See storage.Store."""
        tag = ""
        if check:
            try:
                tag = self._objects.stat(self._prefix + name).tag
            except ObjectNotFound:
                return
            check()
        self._objects.delete(self._prefix + name, tag)

    def _put(self, name: str, blocks: Iterable[bytes], replaced: str) -> bool:
        kind = CONTENT_TYPES.get(splitext(name)[1], "application/octet-stream")
        try:
            with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as body:
                for piece in blocks:  # not writelines: in Python 3.11, it moves to disk only after all is in memory
                    body.write(piece)
                return self._objects.put(self._prefix + name, cast(BinaryIO, body), kind, replaced)
        except OSError as e:
            where = f"{self.place}/{name}"
            raise StorageError(
                f"cannot write {where}: its temporary copy in {tempfile.gettempdir()} failed ({e.strerror or e}): "
                "free space there, or set TMPDIR"
            ) from e
