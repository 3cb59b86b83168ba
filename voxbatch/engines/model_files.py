"""The folder for the files that voxbatch caches; models in buckets, which are fetched to it; and models in local
folders, told apart by the content of their files.

    fingerprint(Path("/models/whisper"), ["model.bin", "*.json"])  →  "9f2c…" (a SHA-256)

The modification times are left out: every machine has its own copy of a model, with its own times, and a run may
continue on another machine. Reading 9 GB of weights before each run would take seconds to minutes. Therefore a large
file counts with its size and with samples of its bytes. Another model, another version, a fine-tuning or a conversion
changes weights in all or many places, and is noticed. A change of a few bytes of a large file is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from voxbatch.errors import ConfigError, StorageError
from voxbatch.log import Log
from voxbatch.storage import Stores
from voxbatch.storage.address import is_bucket_address

if TYPE_CHECKING:
    from voxbatch.storage.model_download import DownloadedModel

WHOLE_FILE_BYTES = 32 << 20
"""Largest file that is read as a whole, in bytes: configurations and tokenizers (Voxtral's has 15 MB)."""
END_BYTES = 64 << 10
"""Bytes that are read at the start of a large file, where safetensors names its tensors, and at its end."""
SAMPLES, SAMPLE_BYTES = 128, 4 << 10
"""Number and bytes of the samples at equal distances within a large file. If a fine-tuning changes a tenth of the
weights, all samples miss it with a probability of 0.9^128 = 1e-6."""

_LOG: ContextVar[Log | None] = ContextVar("log of downloads", default=None)
"""The log of the run that locates a model. Engines get no log, so that those of other packages keep their interface."""


_FETCHES: ContextVar[bool] = ContextVar("whether models are fetched", default=True)


class NotFetched(ConfigError):
    """A model that is not on this machine, inside `nothing_fetched`."""

    def __init__(self, name: str, revision: str | None = None, num_bytes: int | None = None) -> None:
        """Create the error.

        Args:
            name: the name on the hub, or the address in a bucket.
            num_bytes: the bytes of the files that are missing. None if they are unknown.
        """
        super().__init__(f"{name} is not on this machine")
        self.name, self.revision, self.num_bytes = name, revision, num_bytes


@contextlib.contextmanager
def nothing_fetched() -> Iterator[None]:
    """Raise NotFetched in the context for a model that would be fetched, or looked for on the hub."""
    token = _FETCHES.set(False)
    try:
        yield
    finally:
        _FETCHES.reset(token)


def may_fetch() -> bool:
    """Return False inside `nothing_fetched`."""
    return _FETCHES.get()


@contextlib.contextmanager
def downloads_logged(log: Log) -> Iterator[None]:
    """Log in the context each download of a model from a bucket, its retries and its waits."""
    token = _LOG.set(log)
    try:
        yield
    finally:
        _LOG.reset(token)


def cache_folder() -> Path:
    """Return the folder in which voxbatch caches files: `voxbatch` in XDG_CACHE_HOME, or else in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "voxbatch"


def local_path(name: str, stores: Stores) -> Path:
    """Return the path of a model that is given by its path, or by the address of its folder in a bucket, which is
    fetched. Any other name becomes a path that leads nowhere.

    Raises:
        StorageError: the bucket cannot be read, or the cache cannot be written.
    """
    return fetched(name, stores).path if is_bucket_address(name) else Path(name)


def fetched(address: str, stores: Stores) -> DownloadedModel:
    """Return a model in a bucket, after a download of the files that are not in the cache.

    Raises:
        StorageError: see `local_path`.
        NotFetched: files are missing, inside `nothing_fetched`.
    """
    from voxbatch.storage.model_download import download_model, missing_bytes

    log, cache = _LOG.get() or Log(quiet=True), cache_folder() / "models"
    if not may_fetch() and (num_bytes := missing_bytes(address, cache, stores)):
        raise NotFetched(address, num_bytes=num_bytes)
    return download_model(address, cache, lambda line: log.info("model", text=line), stores)


def outline(address: str, folder: Path, stores: Stores) -> None:
    """Write into an empty folder what tells the engine of a model in a bucket: its config.json, and an empty file for
    each of the others. No weights are fetched.

    Raises:
        StorageError: the bucket cannot be read.
    """
    prefix = f"{address.rstrip('/')}/"
    start = len(prefix.split("/", 3)[3])
    try:
        names = [stat.key[start:] for stat in stores.list(prefix)]
    except ValueError as e:
        raise StorageError(f"cannot read {address}: {e}") from e
    for name in names:
        if {"", ".", ".."}.isdisjoint(name.split("/")):  # the download refuses other names
            with contextlib.suppress(OSError, ValueError):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).touch()
    if (config := folder / "config.json").is_file():
        with stores.open(f"{prefix}config.json") as file:
            config.write_bytes(file.read())


def fingerprint(folder: Path, patterns: Iterable[str]) -> str:
    """Return the SHA-256 of the names, sizes and contents of the files in a folder that match a pattern.

    Raises:
        ConfigError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}):
        try:
            with path.open("rb", buffering=0) as file:
                size = path.stat().st_size
                digest.update(f"{path.name}\0{size}\0".encode())
                for data in _samples(file, size):
                    digest.update(data)
        except OSError as e:
            raise ConfigError(f"{path} cannot be read: {e.strerror}; correct its permissions, or copy it again") from e
    return digest.hexdigest()


def _samples(file: BinaryIO, size: int) -> Iterator[bytes]:
    if size <= WHOLE_FILE_BYTES:
        yield file.read()
        return
    yield file.read(END_BYTES)
    for number in range(SAMPLES):
        file.seek((size - SAMPLE_BYTES) * number // SAMPLES)
        yield file.read(SAMPLE_BYTES)
    file.seek(size - END_BYTES)
    yield file.read(END_BYTES)
