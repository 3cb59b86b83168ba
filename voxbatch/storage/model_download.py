"""Fetch a folder of a bucket (a model) to a local folder, once for each content of the folder.

The name of the local folder contains a digest of the bucket's listing. A file appears in it completely or not at all,
so that existing files are not fetched again. A marker, written last, means that no file is missing. The lock only
avoids that two processes fetch the same files. Without locks the result is the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from voxbatch.errors import StorageError
from voxbatch.storage import connect
from voxbatch.storage.address import Address, parse_bucket_address
from voxbatch.storage.local import TEMPORARY_PREFIX, LocalStore
from voxbatch.storage.objects import Stat, TransientError
from voxbatch.storage.options import DEFAULT_STORE_OPTIONS, StoreOptions
from voxbatch.storage.retry import MODEL_FILE, Attempts
from voxbatch.storage.retrying_client import RetryingBucket

MARKER = ".voxbatch-complete"
"""Name of the file that holds the listing, one line for each object. The first digits of its SHA-256 are the
revision."""

STREAMS = 6
"""Number of objects fetched at a time. Weights come in a few large files, and a handful of connections fills most
networks."""

_REVISION_DIGITS = 16
_READABLE_LENGTH = 100
"""Characters of a folder's name, well below the 255 bytes that a file's name may have."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DownloadedModel:
    """Complete local copy of a folder of a bucket."""

    path: Path
    """Local folder."""
    revision: str
    """16 hexadecimal digits that stand for the names, sizes and contents of all objects. Equal digits mean an unchanged
    folder."""


def download_model(
    uri: str, cache: Path, log: Say = lambda line: None, store_options: StoreOptions = DEFAULT_STORE_OPTIONS
) -> DownloadedModel:
    """Fetch everything below `gs://bucket/prefix` or `s3://bucket/prefix` to a separate folder in the cache.

    The bucket is listed each time, and only missing files are fetched. A file that was damaged in the cache without a
    change of its length is not detected. `log` receives a line for each fetch, retry and wait, from any thread.

    Raises:
        StorageError: there is nothing below the prefix, or a name leads out of the folder; the client library or the
            credentials are missing; the bucket cannot be read, or the cache cannot be written.
    """
    try:
        address = parse_bucket_address(uri)
    except ValueError as e:
        raise StorageError(f"cannot read {uri}: {e}") from e
    prefix = address.key.rstrip("/")
    address = address._replace(key=f"{prefix}/" if prefix else "")  # with /, so that model/ does not include model-v2/
    files = _list_files(address, connect.bucket(address.scheme, address.bucket, store_options))
    listing = "".join(f"{json.dumps([each.name, each.size, each.tag])}\n" for each in files).encode()
    revision = hashlib.sha256(listing).hexdigest()[:_REVISION_DIGITS]
    # "gs://models/voxtral/mini/" → "models-voxtral-mini-…". A long name keeps its end.
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", f"{address.bucket}/{address.key}")[-_READABLE_LENGTH:].strip("-.")
    folder = cache / f"{readable}-{revision}"
    if not (folder / MARKER).exists() or _missing(folder, files):
        with _locked(folder, log):
            if missing := _missing(folder, files):
                size = sum(each.size for each in missing) / 1e6
                log(f"fetching {len(missing)} of {len(files)} files, {size:,.1f} MB, from {address} to {folder}")
                _download_files(_store(folder), missing, log)
            _store(folder).create(MARKER, [listing])
    return DownloadedModel(folder, revision)


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

    def blocks(self, stop: threading.Event) -> Iterator[bytes]:
        """Yield the object's bytes.

        Raises:
            StorageError: `stop` is set.
            TransientError: all bytes have come, and they are too few or too many.
        """
        count = 0
        for block in self.bucket.stream(self.stat):
            if stop.is_set():
                raise StorageError(f"{self.name}: stopped, because another file failed")
            count += len(block)
            yield block
        if count != self.size:
            raise TransientError(f"{self.name}: received {count:,} bytes, but {self.size:,} are listed: start again")


def _list_files(address: Address, bucket: RetryingBucket) -> list[RemoteFile]:
    """Return the objects that become files, sorted by name.

    Consoles create empty objects `x/` to show a folder. A marker exists if somebody has uploaded a fetched folder; here
    it would be false.
    """
    found = [RemoteFile(stat.key.removeprefix(address.key), stat, bucket) for stat in bucket.list(address.key)]
    found.sort(key=lambda file: file.name)
    files = [each for each in found if each.name and not each.name.endswith("/") and each.name != MARKER]
    if not files:
        raise StorageError(
            f"cannot fetch {address}: there is no object below it: give the folder that holds the model's files, "
            f"as in {address.scheme}://bucket/models/name"
        )
    for name in (each.name for each in files):
        if "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise StorageError(
                f"cannot fetch {address}: the object {address}{name} cannot be stored in a local folder: "
                "names may have no empty part, no . and no .. between slashes; rename it, or give another folder"
            )
    return files


def _missing(folder: Path, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    return [each for each in files if _length(folder / each.name) != each.size]


def _length(path: Path) -> int | None:
    """Return the length of a file in bytes, or None if there is no file."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def _store(folder: Path) -> LocalStore:
    return LocalStore(str(folder), alternative="choose another cache folder")


@contextlib.contextmanager
def _locked(folder: Path, log: Say) -> Iterator[None]:
    """Let one process at a time work on a folder, if the file system has locks.

    The lock of a killed process is released, and the temporary files of that process are removed: they exist only on
    file systems without unnamed files. The lock file stays, because deleting it would let two processes in.
    """
    lock = folder.with_name(f".{folder.name}.lock")
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
            for temporary in folder.rglob(f"{TEMPORARY_PREFIX}*"):
                with contextlib.suppress(OSError):
                    temporary.unlink()
        yield


def _download_files(store: LocalStore, files: Sequence[RemoteFile], log: Say) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(STREAMS, thread_name_prefix="fetch") as pool:
        tasks = [pool.submit(_download_file, store, each, stop, log) for each in files]
        try:
            for task in as_completed(tasks):
                task.result()
        finally:  # one failure, or Ctrl-C, stops the other fetches at their next block
            stop.set()
            pool.shutdown(cancel_futures=True)


def _download_file(store: LocalStore, file: RemoteFile, stop: threading.Event, log: Say) -> None:
    """Write one file. A file with another length was damaged after it was fetched, and is deleted. A file with the
    right length was written by another process meanwhile, and stays."""
    attempts = Attempts(MODEL_FILE)
    while True:
        try:
            if _length(Path(store.place, file.name)) not in (None, file.size):
                store.delete(file.name)
            store.create(file.name, file.blocks(stop))
            return
        except TransientError as e:
            wait_s = attempts.next_wait_s(e)
            if wait_s is None:
                raise
            log(f"trying again: {e}")
        stop.wait(wait_s)
