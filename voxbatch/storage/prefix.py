"""A folder of a bucket (a model) brought to a local folder, once for each content that it has had.

The local folder bears a digest of what the bucket lists. A file appears in it whole or not at all, so whatever is there
is not fetched again, and a marker, written last, says that nothing is missing. The lock only saves the work of fetching
twice; where there is none, the result is the same.
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
from voxbatch.storage import connect, steady
from voxbatch.storage.access import USUAL, Access
from voxbatch.storage.address import Address, in_bucket
from voxbatch.storage.local import TEMPORARY, LocalStore
from voxbatch.storage.objects import Interrupted, Stat
from voxbatch.storage.steady import SteadyBucket, wait_s

MARKER = ".voxbatch-complete"
"""The listing, one line an object; the start of its SHA-256 is the revision."""

STREAMS = 6
"""Objects fetched at a time. Weights come in a few large files, and a handful of connections fills most networks."""
ATTEMPTS = steady.ATTEMPTS
"""For each object. Their time has no bound, as a single one may take many minutes."""

_REVISION_DIGITS = 16
_READABLE_LENGTH = 100
"""Far enough from the 255 bytes that a file's name may have."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Fetched:
    path: Path
    """The local folder, complete."""
    revision: str
    """16 hexadecimal digits that stand for the names, sizes and contents of all objects: equal means unchanged."""


def _say_nothing(line: str) -> None:
    pass


def fetch_prefix(uri: str, cache: Path, log: Say = _say_nothing, access: Access = USUAL) -> Fetched:
    """Everything below `gs://bucket/prefix` or `s3://bucket/prefix`, in a folder of its own in the cache.

    The bucket is listed each time; only files that are not there are fetched. One that is damaged in the cache without
    a change of its length is not noticed. `log` gets a line when something is fetched, tried again or waited for, from
    any thread.

    Raises:
        StorageError: there is nothing below the prefix, or a name that leads out of the folder; the client library or
            the credentials are missing; the bucket cannot be read or the cache not written.
    """
    place = _address(uri)
    bucket = connect.bucket(place.scheme, place.bucket, access)
    found = _listed(place, bucket)
    listing = _listing(found)
    revision = hashlib.sha256(listing).hexdigest()[:_REVISION_DIGITS]
    name = f"{_readable(place)}-{revision}"
    if not (cache / name / MARKER).exists() or _missing(cache / name, found):
        with _turn(cache, name, log):
            _complete(place, cache / name, found, listing, log)
    return Fetched(cache / name, revision)


def _address(uri: str) -> Address:
    """Its key is empty or ends in /, so that model/ does not take in model-v2/."""
    try:
        place = in_bucket(uri)
    except ValueError as e:
        raise StorageError(f"cannot read {uri}: {e}") from e
    prefix = place.key.rstrip("/")
    return place._replace(key=f"{prefix}/" if prefix else "")


@dataclass(frozen=True, slots=True)
class Remote:
    """An object that is to become a file."""

    name: str
    """Without the prefix; with / between folders."""
    stat: Stat
    bucket: SteadyBucket

    @property
    def size(self) -> int:
        return self.stat.size

    @property
    def tag(self) -> str:
        """Changes with the content, and where the store knows a checksum with nothing else."""
        return self.stat.checksum or self.stat.tag


def _listed(place: Address, bucket: SteadyBucket) -> list[Remote]:
    """The objects that become files, by name. Consoles make empty objects `x/` to show a folder; a marker is there when
    somebody has uploaded a fetched folder, and would lie here."""
    listed = [Remote(stat.key.removeprefix(place.key), stat, bucket) for stat in bucket.list(place.key)]
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
            f"cannot fetch {place}: the object {place}{name} has no place in a local folder: "
            "names may have no empty part, no . and no .. between slashes; rename it, or give another folder"
        )


def _listing(files: Sequence[Remote]) -> bytes:
    return "".join(f"{json.dumps([each.name, each.size, each.tag])}\n" for each in files).encode()


def _readable(place: Address) -> str:
    """ "gs://models/voxtral/mini/" → "models-voxtral-mini"; the end of it where that is long."""
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", f"{place.bucket}/{place.key}")
    return plain[-_READABLE_LENGTH:].strip("-.")


def _missing(folder: Path, files: Sequence[Remote]) -> list[Remote]:
    return [each for each in files if _length(folder / each.name) != each.size]


def _length(path: Path) -> int | None:
    """In bytes; None where there is nothing."""
    try:
        return path.stat().st_size
    except OSError:
        return None


@contextlib.contextmanager
def _turn(cache: Path, name: str, log: Say) -> Iterator[None]:
    """One process at a time works on a folder, where the file system has locks; a killed one gives its turn back, and
    what it left unfinished goes away. The lock file stays: to delete it would let two in."""
    lock = f".{name}.lock"
    _store(cache).create(lock, [])
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(cache / lock, "r+b"))
            _wait_for(file.fileno(), f"another process is fetching {cache / name}: waiting for it", log)
        except OSError:  # no locks here (some FUSE), or another user's file
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
    """Only file systems without nameless files keep anything of a killed process."""
    for path in folder.rglob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            path.unlink()


def _store(folder: Path) -> LocalStore:
    return LocalStore(str(folder), instead="choose another cache folder")


def _complete(place: Address, folder: Path, files: Sequence[Remote], listing: bytes, log: Say) -> None:
    missing = _missing(folder, files)
    if missing:
        size = sum(each.size for each in missing) / 1e6
        log(f"fetching {len(missing)} of {len(files)} files, {size:,.1f} MB, from {place} to {folder}")
        _fetch_all(_store(folder), missing, log)
    _store(folder).create(MARKER, [listing])


def _fetch_all(store: LocalStore, missing: Sequence[Remote], log: Say) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(STREAMS, thread_name_prefix="fetch") as pool:
        tasks = [pool.submit(_fetch, store, each, stop, log) for each in missing]
        try:
            for task in as_completed(tasks):
                task.result()
        finally:  # one failure, or Ctrl-C, ends the others at their next piece
            stop.set()
            pool.shutdown(cancel_futures=True)


def _fetch(store: LocalStore, remote: Remote, stop: threading.Event, log: Say) -> None:
    import tenacity

    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Interrupted),
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=wait_s,
        sleep=tenacity.sleep_using_event(stop),
        before_sleep=lambda state: log(f"trying again: {state.outcome and state.outcome.exception()}"),
        reraise=True,
    )
    attempts(_write, store, remote, stop)


def _write(store: LocalStore, remote: Remote, stop: threading.Event) -> None:
    """What has another length was spoiled after it was fetched, and goes. What has this one meanwhile is another
    process's, and stays."""
    if _length(Path(store.place, remote.name)) not in (None, remote.size):
        store.delete(remote.name)
    store.create(remote.name, _whole(remote, stop))


def _whole(remote: Remote, stop: threading.Event) -> Iterator[bytes]:
    """The object's bytes; an error in place of the end where they are too few or too many, so that no file appears."""
    count = 0
    for piece in remote.bucket.stream(remote.stat):
        if stop.is_set():
            raise StorageError(f"{remote.name}: given up, as another file failed")
        count += len(piece)
        yield piece
    if count != remote.size:
        raise Interrupted(f"{remote.name}: {count:,} bytes came, {remote.size:,} are listed: start again")
