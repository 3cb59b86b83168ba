"""Tests for `voxbatch.ray`, on a real Ray cluster of this machine: the same outputs as those of `voxbatch run`, also if
an actor is killed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import IMPORT_PATH, ManifestWriter
from holds import Hold
from waits import until

import voxbatch.ray
from voxbatch.errors import ConfigError, RunError
from voxbatch.output.layout import part_names
from voxbatch.output.parts import read_part
from voxbatch.storage import Stores

ray = pytest.importorskip("ray", reason="ray is missing: pip install 'voxbatch[ray]'")
pytest.importorskip("ray.data", reason="ray.data is missing: pip install 'voxbatch[ray]'")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray warns of its own old names

SLOWLY = {"delay_s": 0.05, "concurrency": 1}
CPU_ONLY: Any = {"num_gpus": 0, "num_cpus": 1, "engine": "scripted", "part_items": 1}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Start Ray on this machine, with its processes in this checkout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", IMPORT_PATH)
        patch.setenv("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
        ray.init(
            num_cpus=2, num_gpus=0, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False,
            logging_level="ERROR",
        )  # fmt: skip
        yield
        ray.shutdown()


@pytest.fixture
def rows(manifest: ManifestWriter) -> Path:
    """Return the path of a manifest of 12 recordings."""
    return manifest(*(1.0 + i % 3 for i in range(12)))


def outputs(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in ("transcripts.jsonl", "srt/r3.srt")}


def test_killed_actors_change_nothing(rows: Path, tmp_path: Path) -> None:
    """Actors that are killed at work give the bytes of a run in this process; each item is in one part."""
    voxbatch.run(rows, tmp_path / "alone", engine="scripted", decoders=1, formats="srt")
    out, killed, hold = tmp_path / "out", list[int](), Hold(tmp_path / "hold")

    def kill() -> None:
        """Kill all actors when something is committed."""
        hold.reached()
        until(lambda: any(out.glob("parts/*/part-*")))
        for process in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(psutil.NoSuchProcess):  # any process of the machine may end
                if _is_actor(process):
                    process.kill()
                    killed.append(process.pid)
        hold.release()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    waiting = {**SLOWLY, **hold.engine_options}
    summary = voxbatch.ray.run(rows, out, concurrency=2, shards=4, formats="srt", engine_options=waiting, **CPU_ONLY)
    thread.join()
    assert killed
    assert (summary.done, summary.failed) == (12, 0)
    assert outputs(out) == outputs(tmp_path / "alone")
    store = Stores().out(str(out))
    assert sorted(entry.index for name in part_names(store) for entry in read_part(store, name)) == list(range(12))


def _is_actor(process: psutil.Process) -> bool:
    """Return whether a process is an actor that transcribes, of this test."""
    return any(parent.pid == os.getpid() for parent in process.parents()) and "MapWorker" in " ".join(
        process.info["cmdline"] or ()
    )


def test_errors_of_shards_are_raised(rows: Path, tmp_path: Path) -> None:
    """An engine that dies is an error of the run, and the same call continues; a wrong manifest and a wrong option are
    usage errors.
    """
    with pytest.raises(RunError, match=r"of 2 shards could not be completed: .*scripted to die"):
        voxbatch.ray.run(rows, tmp_path / "out", shards=2, engine_options={"die_after": 2}, **CPU_ONLY)
    (tmp_path / "bad.jsonl").write_text("no json\n")
    with pytest.raises(ConfigError, match=r"bad\.jsonl"):
        voxbatch.ray.run(tmp_path / "bad.jsonl", tmp_path / "other", shards=1, **CPU_ONLY)
    with pytest.raises(ConfigError, match="option overwrite: unknown"):
        voxbatch.ray.run(rows, tmp_path / "out", overwrite=True)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="standard input"):
        voxbatch.ray.run("-", tmp_path / "out")
