"""Tests for the cache of compiled kernels: what one start compiles, the next one fetches, and no fault ends a run."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from servers import Server, led_through

from voxbatch.engines import gpu, kernel_cache
from voxbatch.engines.kernel_cache import FOLDERS, KernelCache
from voxbatch.storage import DEFAULT_STORES
from voxbatch.vllm.engine.kernel_key import cache_key
from voxbatch.vllm.engine.model import REALTIME, Model
from voxbatch.vllm.engine.settings import VllmSettings

KEY = "0123456789abcdef"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a new folder of caches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def compiled(cache: KernelCache) -> None:
    """Write kernels as vLLM's processes do."""
    for name, folder in cache.environment().items():
        Path(folder, "deep").mkdir(parents=True, exist_ok=True)
        Path(folder, "deep", "kernel.so").write_bytes(name.encode() * 1000)
        Path(folder, "deep", "kernel.lock").touch()


def started(place: str) -> KernelCache:
    return KernelCache(place, KEY, DEFAULT_STORES)


def forget(home: Path) -> None:
    """Remove all that this machine knows, as at the start of another task."""
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(params=["local", pytest.param("google", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a place for archives: a folder, and a prefix of a bucket."""
    if request.param == "local":
        yield str(tmp_path / "kernels")
        return
    server: Server = request.getfixturevalue(request.param)
    with led_through(server, monkeypatch):
        server.make(bucket := f"kernels-{os.urandom(4).hex()}")
        yield f"gs://{bucket}/kernels/"


def test_the_next_task_fetches_what_one_compiled(place: str, home: Path) -> None:
    """The first task stores its kernels at its end, without locks; the next one gets them, and stores nothing."""
    first = started(place)
    assert first.fetch().text.endswith("is not there yet; this run stores it at its end")
    compiled(first)
    stored = first.store()
    assert stored
    assert f"stored {place.rstrip('/')}/{KEY}.tar.gz" in stored.text
    assert first.store() is None
    forget(home)
    second = started(place)
    assert f"fetched {place.rstrip('/')}/{KEY}.tar.gz" in second.fetch().text
    for name, folder in second.environment().items():
        assert Path(folder).relative_to(home) == Path("voxbatch", "kernels", KEY, FOLDERS[name])
        assert [path.name for path in Path(folder).rglob("*")] == ["deep", "kernel.so"]
        assert Path(folder, "deep", "kernel.so").read_bytes() == name.encode() * 1000
    assert second.store() is None
    assert not list((home / "voxbatch" / "kernels").glob(".*"))


def test_one_of_two_tasks_stores_its_archive(place: str, home: Path) -> None:
    """Two tasks end together: the second finds the archive of the first and drops its own."""
    both = [started(place), started(place)]
    for each in both:
        each.fetch()
    messages = []
    for number, each in enumerate(both):
        compiled(each)
        (each.folder / "vllm" / f"{number}.bin").touch()
        messages.append(each.store())
    assert [message.is_warning for message in messages if message] == [False, False]
    assert messages[1]
    assert "another task has stored" in messages[1].text


def damaged(data: bytes) -> dict[str, bytes]:
    """Return archives that cannot be used, by what is wrong with them."""
    return {
        "empty": b"",
        "no archive": b"\0" * 1000,
        "cut off": data[: len(data) // 2],
        "changed": data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :],
        "changed checksum": data[:-8] + b"????" + data[-4:],
    }


@pytest.mark.parametrize("fault", damaged(b""))
def test_damaged_archive_is_ignored_and_replaced(tmp_path: Path, home: Path, fault: str) -> None:
    """A start with a damaged archive says so and compiles; its end replaces the archive."""
    place = tmp_path / "kernels"
    first = started(str(place))
    first.fetch()
    compiled(first)
    first.store()
    archive = place / f"{KEY}.tar.gz"
    whole = archive.read_bytes()
    archive.write_bytes(damaged(whole)[fault])
    forget(home)
    second = started(str(place))
    message = second.fetch()
    assert message.is_warning
    assert "cannot be used" in message.text
    assert not (home / "voxbatch" / "kernels" / KEY).exists()
    compiled(second)
    stored = second.store()
    assert stored
    assert "stored" in stored.text
    forget(home)
    assert "fetched" in started(str(place)).fetch().text


def packed(place: Path, *members: tarfile.TarInfo) -> None:
    """Write an archive of these members, whose content is zeros."""
    place.mkdir()
    with tarfile.open(place / f"{KEY}.tar.gz", "w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(bytes(member.size)))


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: Any) -> tarfile.TarInfo:
    """Return a member of an archive."""
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../out", tarfile.REGTYPE), ("../../out", tarfile.REGTYPE), ("vllm/../../../out", tarfile.REGTYPE),
        ("/OUT", tarfile.REGTYPE), ("//OUT", tarfile.REGTYPE), ("../out", tarfile.DIRTYPE), ("/OUT", tarfile.DIRTYPE),
        ("out", tarfile.SYMTYPE), ("out", tarfile.LNKTYPE), ("out", tarfile.FIFOTYPE), ("out", tarfile.CHRTYPE),
    ],
)  # fmt: skip
def test_archive_writes_only_into_its_folder(tmp_path: Path, home: Path, name: str, kind: bytes) -> None:
    """An archive is refused as a whole if a member leads out of the folder, or is no file or folder."""
    outside = tmp_path / "out"
    name = name.replace("/OUT", str(outside))
    packed(tmp_path / "kernels", member("vllm/first", size=3), member(name, kind, linkname="/etc", size=0))
    message = started(str(tmp_path / "kernels")).fetch()
    assert message.is_warning
    assert "leads out of its folder" in message.text or "neither a file nor a folder" in message.text
    assert list((home / "voxbatch" / "kernels").iterdir()) == []
    assert not outside.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "kernels"]


def test_archive_gives_no_rights(tmp_path: Path) -> None:
    """A file keeps its time, and of its mode the owner's right to execute it alone."""
    packed(
        tmp_path / "kernels",
        member("triton", tarfile.DIRTYPE, mode=0),
        member("triton/tool", mode=0o6777, mtime=1_700_000_000, size=5),
        member("triton/deep/kernel.so", mode=0, mtime=1_600_000_000.5, size=7),
    )
    cache = started(str(tmp_path / "kernels"))
    assert "fetched" in cache.fetch().text
    tool, kernel = cache.folder / "triton" / "tool", cache.folder / "triton" / "deep" / "kernel.so"
    assert (tool.read_bytes(), kernel.read_bytes()) == (bytes(5), bytes(7))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tool, kernel)] == [0o755, 0o644]
    assert [path.stat().st_mtime for path in (tool, kernel)] == [1_700_000_000, 1_600_000_000.5]
    assert (cache.folder / "triton").stat().st_mode & stat.S_IRWXU == stat.S_IRWXU


def test_unusable_place_is_a_warning(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that cannot be read or written gives warnings with the reason."""
    (tmp_path / "file").touch()
    cache = started(str(tmp_path / "file"))
    assert cache.fetch().is_warning
    compiled(cache)
    message = cache.store()
    assert message
    assert message.is_warning
    assert "a file stands where a folder is needed" in message.text
    assert cache.store() is None  # it is not tried again after each run of a listener


def test_key_names_all_that_decides_the_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The key changes with the GPU, the driver, versions, model and settings, and not with other options."""
    model = Model("m", tmp_path, REALTIME, True, revision="1")
    card = gpu.GpuInfo("0", "NVIDIA L4", 24, 24, capability=(8, 9))
    monkeypatch.setattr(gpu, "visible_gpus", lambda: [card, card])
    monkeypatch.setattr(gpu, "driver", lambda: gpu.Driver("580.95.05", (13, 0)))

    def key(**changes: Any) -> str:
        changed = replace(VllmSettings(), **changes.pop("settings", {}))
        return cache_key(replace(model, **changes), changed, True, tmp_path)

    same = key()
    unused = {"watch": False, "restarts": 1, "kernel_cache": "gs://b/k", "gpu_memory_gb": 20.0, "devices": "1"}
    assert key(settings=unused) == same
    changed = [
        key(revision="2"), key(fingerprint="f"), key(settings={"dtype": "float16"}),
        key(settings={"tensor_parallel_size": 2}), key(settings={"max_model_len": 1024}),
        cache_key(model, VllmSettings(), False, tmp_path), cache_key(model, VllmSettings(), True, tmp_path / "a"),
    ]  # fmt: skip
    monkeypatch.setattr(gpu, "driver", lambda: gpu.Driver("580.105.08", (13, 0)))
    assert key() == same
    monkeypatch.setattr(gpu, "driver", lambda: gpu.Driver("590.1", (13, 1)))
    changed.append(key())
    monkeypatch.setattr(gpu, "visible_gpus", lambda: [replace(card, name="NVIDIA H100", capability=(9, 0))])
    changed.append(key())
    monkeypatch.setattr(kernel_cache, "_cpu_flags", lambda: "fpu avx512f")
    changed.append(key())
    assert len({same, *changed}) == len(changed) + 1
