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
from voxbatch.storage import connect, retry
from voxbatch.storage.address import Address, parse_bucket_address
from voxbatch.storage.local import TEMPORARY_PREFIX, LocalStore
from voxbatch.storage.objects import Stat, TransientError
from voxbatch.storage.options import DEFAULT_STORE_OPTIONS, StoreOptions
from voxbatch.storage.retry import RetryingBucket, wait_s

MARKER = ".voxbatch-complete"
"""Name of the file that holds the listing, one line for each object. The first digits of its SHA-256 are the
revision."""

STREAMS = 6
"""Number of objects fetched at a time. Weights come in a few large files, and a handful of connections fills most
networks."""
ATTEMPTS = retry.ATTEMPTS
"""Attempts for each object. There is no time limit, because a single attempt may take many minutes."""

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


def _say_nothing(line: str) -> None:
    pass


def download_model(
    uri: str, cache: Path, log: Say = _say_nothing, store_options: StoreOptions = DEFAULT_STORE_OPTIONS
) -> DownloadedModel:
    """Fetch everything below `gs://bucket/prefix` or `s3://bucket/prefix` to a separate folder in the cache.

    The bucket is listed each time, and only missing files are fetched. A file that was damaged in the cache without a
    change of its length is not detected. `log` receives a line for each fetch, retry and wait, from any thread.

    Raises:
        StorageError: there is nothing below the prefix, or a name leads out of the folder; the client library or the
            credentials are missing; the bucket cannot be read, or the cache cannot be written.
    """
    place = _address(uri)
    bucket = connect.bucket(place.scheme, place.bucket, store_options)
    found = _listed(place, bucket)
    listing = _listing(found)
    revision = hashlib.sha256(listing).hexdigest()[:_REVISION_DIGITS]
    name = f"{_readable(place)}-{revision}"
    if not (cache / name / MARKER).exists() or _missing(cache / name, found):
        with _turn(cache, name, log):
            _complete(place, cache / name, found, listing, log)
    return DownloadedModel(cache / name, revision)


def _address(uri: str) -> Address:
    """Return the parts of the address. The key is empty or ends in /, so that model/ does not include model-v2/."""
    try:
        place = parse_bucket_address(uri)
    except ValueError as e:
        raise StorageError(f"cannot read {uri}: {e}") from e
    prefix = place.key.rstrip("/")
    return place._replace(key=f"{prefix}/" if prefix else "")


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


def _listed(place: Address, bucket: RetryingBucket) -> list[RemoteFile]:
    """Return the objects that become files, sorted by name.

    Consoles create empty objects `x/` to show a folder. A marker exists if somebody has uploaded a fetched folder; here
    it would be false.
    """
    listed = [RemoteFile(stat.key.removeprefix(place.key), stat, bucket) for stat in bucket.list(place.key)]
    found = sorted(listed, key=lambda remote: remote.name)
    files = [each for each in found if each.name and not each.name.endswith("/") and each.name != MARKER]
    if not files:
        raise StorageError(
            f"cannot fetch {place}: there is no object below it: give the folder that holds the model's files, "
            f"as in {place.scheme}://bucket/models/name"
        )
    for each in files:
        _check_name(place, each.name)
    return files


def _check_name(place: Address, name: str) -> None:
    if "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise StorageError(
            f"cannot fetch {place}: the object {place}{name} cannot be stored in a local folder: "
            "names may have no empty part, no . and no .. between slashes; rename it, or give another folder"
        )


def _listing(files: Sequence[RemoteFile]) -> bytes:
    return "".join(f"{json.dumps([each.name, each.size, each.tag])}\n" for each in files).encode()


def _readable(place: Address) -> str:
    """Return a readable part of a folder's name: "gs://models/voxtral/mini/" → "models-voxtral-mini". A long name keeps
    its end."""
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", f"{place.bucket}/{place.key}")
    return plain[-_READABLE_LENGTH:].strip("-.")


def _missing(folder: Path, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    return [each for each in files if _length(folder / each.name) != each.size]


def _length(path: Path) -> int | None:
    """Return the length of a file in bytes, or None if there is no file."""
    try:
        return path.stat().st_size
    except OSError:
        return None


@contextlib.contextmanager
def _turn(cache: Path, name: str, log: Say) -> Iterator[None]:
    """Let one process at a time work on a folder, if the file system has locks.

    The lock of a killed process is released, and the temporary files of that process are removed. The lock file stays,
    because deleting it would let two processes in.
    """
    lock = f".{name}.lock"
    _store(cache).create(lock, [])
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(cache / lock, "r+b"))
            _wait_for(file.fileno(), f"another process is fetching {cache / name}: waiting for it", log)
        except OSError:  # the file system has no locks (some FUSE), or the lock file is another user's
            pass
        else:
            _sweep(cache / name)
        yield


def _wait_for(fd: int, busy: str, log: Say) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log(busy)
        fcntl.flock(fd, fcntl.LOCK_EX)


def _sweep(folder: Path) -> None:
    """Remove the temporary files of killed processes. They exist only on file systems without unnamed files."""
    for path in folder.rglob(f"{TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError):
            path.unlink()


def _store(folder: Path) -> LocalStore:
    return LocalStore(str(folder), alternative="choose another cache folder")


def _complete(place: Address, folder: Path, files: Sequence[RemoteFile], listing: bytes, log: Say) -> None:
    missing = _missing(folder, files)
    if missing:
        size = sum(each.size for each in missing) / 1e6
        log(f"fetching {len(missing)} of {len(files)} files, {size:,.1f} MB, from {place} to {folder}")
        _fetch_all(_store(folder), missing, log)
    _store(folder).create(MARKER, [listing])


def _fetch_all(store: LocalStore, missing: Sequence[RemoteFile], log: Say) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(STREAMS, thread_name_prefix="fetch") as pool:
        tasks = [pool.submit(_fetch, store, each, stop, log) for each in missing]
        try:
            for task in as_completed(tasks):
                task.result()
        finally:  # one failure, or Ctrl-C, stops the other fetches at their next piece
            stop.set()
            pool.shutdown(cancel_futures=True)


def _fetch(store: LocalStore, remote: RemoteFile, stop: threading.Event, log: Say) -> None:
    import tenacity

    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(TransientError),
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=wait_s,
        sleep=tenacity.sleep_using_event(stop),
        before_sleep=lambda state: log(f"trying again: {state.outcome and state.outcome.exception()}"),
        reraise=True,
    )
    attempts(_write, store, remote, stop)


def _write(store: LocalStore, remote: RemoteFile, stop: threading.Event) -> None:
    """Write one file. A file with another length was damaged after it was fetched, and is deleted. A file with the
    right length was written by another process meanwhile, and stays."""
    if _length(Path(store.place, remote.name)) not in (None, remote.size):
        store.delete(remote.name)
    store.create(remote.name, _whole(remote, stop))


def _whole(remote: RemoteFile, stop: threading.Event) -> Iterator[bytes]:
    """Yield the object's bytes. Raise an error at the end if there are too few or too many bytes, so that no file
    appears."""
    count = 0
    for piece in remote.bucket.stream(remote.stat):
        if stop.is_set():
            raise StorageError(f"{remote.name}: stopped, because another file failed")
        count += len(piece)
        yield piece
    if count != remote.size:
        raise TransientError(f"{remote.name}: received {count:,} bytes, but {remote.size:,} are listed: start again")
