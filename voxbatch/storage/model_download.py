"""Fetch a folder of a bucket (a model) to a local folder, once for each content of the folder.

The name of the local folder contains a digest of the bucket's listing. A file appears in it completely or not at all,
so that existing files are not fetched again. A marker, written last, means that no file is missing. The lock only
avoids that two processes fetch the same files. Without locks the result is the same.

A connection to a store gives some tens of MB/s, and weights come in a few large files. Therefore all files are fetched
in stretches, several at a time, each pinned to the listed revision. A stretch that fails is retried alone. The
stretches of a killed process are not fetched again (see partial_file).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

from voxbatch.errors import StorageError
from voxbatch.storage.address import Address, parse_bucket_address
from voxbatch.storage.errors import TransientError, stored_compressed
from voxbatch.storage.local import TEMPORARY_PREFIX, LocalStore
from voxbatch.storage.objects import Stat
from voxbatch.storage.partial_file import PartialFile
from voxbatch.storage.retry import MODEL_FILE, Retries
from voxbatch.storage.retrying_client import RetryingBucket
from voxbatch.storage.stores import DEFAULT_STORES, Stores

MARKER = ".voxbatch-complete"
"""Name of the file that holds the listing, one line for each object. The first digits of its SHA-256 are the
revision."""

STREAMS = 16
"""Number of stretches fetched at a time."""
FILES = 4
"""Number of files fetched at a time, so that requests go on while the end of a file is checked and synced to disk."""
ALTERNATIVE = "choose another cache folder"

_REVISION_DIGITS = 16
_READABLE_LENGTH = 100
"""Characters of a folder's name, well below the 255 bytes that a file's name may have."""

Say = Callable[[str], None]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DownloadedModel:
    """Complete local copy of a folder of a bucket."""

    path: Path
    """Local folder."""
    revision: str
    """16 hexadecimal digits that stand for the names, sizes and contents of all objects. Equal digits mean an unchanged
    folder."""


def download_model(
    uri: str, cache: Path, log: Say = lambda line: None, stores: Stores = DEFAULT_STORES
) -> DownloadedModel:
    """Fetch everything below `gs://bucket/prefix` or `s3://bucket/prefix` to a separate folder in the cache.

    The bucket is listed each time, and only missing files are fetched. A file that was damaged in the cache without a
    change of its length is not detected. `log` receives a line for each fetch, retry and wait, from any thread.

    Raises:
        StorageError: there is nothing below the prefix, or a name leads out of the folder; the client library or the
            credentials are missing; the bucket cannot be read, or the cache cannot be written.
    """
    listed = _listed(uri, cache, stores)
    folder, files = listed.folder, listed.files
    if not (folder / MARKER).exists() or _missing(folder, files):
        with _locked(folder, log) as is_alone:
            if missing := _missing(folder, files):
                size = sum(file.size for file in missing) / 1e6
                log(f"fetching {len(missing)} of {len(files)} files, {size:,.1f} MB, from {listed.address} to {folder}")
                partial = folder.with_name(f".{folder.name}.partial{'' if is_alone else f'-{token_hex(4)}'}")
                _download_files(folder, partial, missing, log)
                shutil.rmtree(partial, ignore_errors=True)
            _store(folder).create(MARKER, [listed.listing])
    return DownloadedModel(folder, _digits(listed.listing))


def missing_bytes(uri: str, cache: Path, stores: Stores = DEFAULT_STORES) -> int:
    """Return the bytes that `download_model` would fetch. The bucket is listed, and nothing is fetched.

    Raises:
        StorageError: see `download_model`.
    """
    listed = _listed(uri, cache, stores)
    return sum(file.size for file in _missing(listed.folder, listed.files))


@dataclass(frozen=True, slots=True)
class _Listed:
    """The files of a folder of a bucket."""

    address: Address
    files: Sequence[RemoteFile]
    listing: bytes
    """See MARKER."""
    folder: Path
    """Local folder for these files."""


def _listed(uri: str, cache: Path, stores: Stores) -> _Listed:
    """List a folder of a bucket; see `download_model`."""
    try:
        address = parse_bucket_address(uri)
    except ValueError as e:
        raise StorageError(f"cannot read {uri}: {e}") from e
    prefix = address.key.rstrip("/")
    address = address._replace(key=f"{prefix}/" if prefix else "")  # with /, so that model/ does not include model-v2/
    files = _list_files(address, stores.bucket(address.scheme, address.bucket))
    listing = "".join(f"{json.dumps([file.name, file.size, file.tag])}\n" for file in files).encode()
    # "gs://models/voxtral/mini/" → "models-voxtral-mini-…". A long name keeps its end.
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", f"{address.bucket}/{address.key}")[-_READABLE_LENGTH:].strip("-.")
    return _Listed(address, files, listing, cache / f"{readable}-{_digits(listing)}")


def _digits(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_REVISION_DIGITS]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Object that is to become a file."""

    name: str
    """Key without the prefix, with / between folders."""
    stat: Stat
    bucket: RetryingBucket

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return self.stat.size

    @property
    def tag(self) -> str:
        """Value that changes with the content: the checksum, which changes with nothing else, or the revision if the
        store gives no checksum."""
        return self.stat.checksum or self.stat.tag

    def checksum(self) -> str:
        """Return the checksum of the object's bytes, which some stores do not list, or ""."""
        return self.stat.checksum or self.bucket.stat(self.stat.key, self.stat.tag).checksum

    def read(self, start: int, end: int) -> bytes:
        """Return bytes [start, end) of the listed revision.

        Raises:
            TransientError: the store fails, or gives too few bytes.
            UnusableObject: the object was replaced, or is stored compressed.
        """
        reply = self.bucket.get_once(self.stat.key, start, end, self.stat.tag)
        if reply.is_gzipped:
            raise stored_compressed(self.bucket.where(self.stat.key))
        if len(reply.data) != end - start:
            raise TransientError(
                f"{self.name}: received {len(reply.data):,} bytes, but {end - start:,} of {self.size:,} were asked for"
            )
        return reply.data


def _list_files(address: Address, bucket: RetryingBucket) -> list[RemoteFile]:
    """Return the objects that become files, sorted by name.

    Consoles create empty objects `x/` to show a folder. A marker exists if somebody has uploaded a fetched folder; here
    it would be false.
    """
    objects = [RemoteFile(stat.key.removeprefix(address.key), stat, bucket) for stat in bucket.list(address.key)]
    objects.sort(key=lambda file: file.name)
    files = [file for file in objects if file.name and not file.name.endswith("/") and file.name != MARKER]
    if not files:
        raise StorageError(
            f"cannot fetch {address}: there is no object below it: give the folder that holds the model's files, "
            f"as in {address.scheme}://bucket/models/name"
        )
    for name in (file.name for file in files):
        if "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise StorageError(
                f"cannot fetch {address}: the object {address}{name} cannot be stored in a local folder: "
                "names may have no empty part, no . and no .. between slashes; rename it, or give another folder"
            )
    return files


def _missing(folder: Path, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    return [file for file in files if _length(folder / file.name) != file.size]


def _length(path: Path) -> int | None:
    """Return the length of a file in bytes, or None if there is no file."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def _store(folder: Path) -> LocalStore:
    return LocalStore(str(folder), alternative=ALTERNATIVE)


@contextlib.contextmanager
def _locked(folder: Path, log: Say) -> Iterator[bool]:
    """Let one process at a time work on a folder, if the file system has locks. Yield whether it has.

    The lock of a killed process is released, and the temporary files of that process are removed: they exist only on
    file systems without unnamed files. The lock file stays, because deleting it would let two processes in.
    """
    lock, is_alone = folder.with_name(f".{folder.name}.lock"), False
    _store(lock.parent).create(lock.name, [])
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(lock, "r+b"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log(f"another process is fetching {folder}: waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # the file system has no locks (some FUSE), or the lock file is another user's
            pass
        else:
            is_alone = True
            for temporary in folder.rglob(f"{TEMPORARY_PREFIX}*"):
                with contextlib.suppress(OSError):
                    temporary.unlink()
        yield is_alone


def _download_files(folder: Path, partial: Path, files: Sequence[RemoteFile], log: Say) -> None:
    """Fetch the files, FILES at a time, with STREAMS requests at a time. `partial` is the folder of partial files."""
    fetch = _Fetch(ThreadPoolExecutor(STREAMS, thread_name_prefix="fetch"), threading.Event(), log)
    with fetch.pool, ThreadPoolExecutor(FILES, thread_name_prefix="file") as pool:
        tasks = [
            # names of one length, without folders; the same for the process that continues
            pool.submit(_download_file, fetch, file, folder / file.name, partial / _digits(file.name.encode()))
            for file in files
        ]
        try:
            for task in as_completed(tasks):
                if (error := task.exception()) and not isinstance(error, _Stopped):
                    raise error
        finally:  # one failure, or Ctrl-C, stops the other fetches at their next stretch
            # stretches that wait end by this too; if they were cancelled, the file that waits for them would never know
            fetch.stop.set()
            pool.shutdown(cancel_futures=True)


class _Stopped(StorageError):
    """The download of this file ends because that of another file failed, whose error is reported."""


@dataclass(frozen=True, slots=True)
class _Fetch:
    """The objects that all files of one model share."""

    pool: ThreadPoolExecutor
    stop: threading.Event
    log: Say

    def retry(self, call: Callable[[], _T]) -> _T:
        """Return call(). A call that fails with a transient error is repeated.

        Raises:
            _Stopped: `stop` is set.
            TransientError: the last attempt failed.
        """

        def call_unless_stopped() -> _T:
            if self.stop.is_set():
                raise _Stopped("the download of another file of the model failed")
            return call()

        def wait_for_stop(seconds: float) -> None:
            self.stop.wait(seconds)

        return Retries(MODEL_FILE).call(
            call_unless_stopped,
            lambda error: isinstance(error, TransientError),
            lambda error, wait_s: self.log(f"trying again: {error}"),
            wait_for_stop,
        )


def _download_file(fetch: _Fetch, file: RemoteFile, target: Path, partial: Path) -> None:
    """Fetch one file. If its bytes do not match its checksum, all of it is fetched once more.

    Raises:
        _Stopped: another file failed.
    """
    checksum = fetch.retry(file.checksum) if file.size else ""
    for _ in range(2):
        with closing(PartialFile(target, partial, file.size, checksum, ALTERNATIVE)) as written:
            tasks = [fetch.pool.submit(_download_stretch, fetch, file, written, start) for start in written.missing()]
            try:
                for task in as_completed(tasks):
                    task.result()
            except BaseException:
                fetch.stop.set()
                wait(tasks)  # the file stays open until no thread writes it
                raise
            if written.finish():
                return
        fetch.log(f"trying again: {file.name}: the received data does not match its checksum, {checksum}")
    raise StorageError(
        f"cannot read {file.bucket.where(file.stat.key)}: the received data does not match its checksum, {checksum}, "
        "for the second time: upload the object again, or check the network and the disk"
    )


def _download_stretch(fetch: _Fetch, file: RemoteFile, written: PartialFile, start: int) -> None:
    written.write(start, fetch.retry(lambda: file.read(start, written.end_of(start))))
