"""Tests for `voxbatch.ray`, on a real Ray cluster of several nodes on this machine: every node works, the outputs are
those of `voxbatch run`, and a killed actor or a lost node costs only its shard.
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

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray warns of its own old names

SLOWLY = {"delay_s": 0.05, "concurrency": 1}
CPU_ONLY: Any = {"num_gpus": 0, "num_cpus": 1, "engine": "scripted", "part_items": 1}


NODES = 3


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    """Start a Ray cluster with its processes in this checkout: a head that runs no actor, and nodes for one actor
    each.
    """
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", IMPORT_PATH)
        small = {"object_store_memory": 80 << 20, "num_gpus": 0}
        cluster = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
        for _ in range(NODES):
            cluster.add_node(num_cpus=1, **small)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


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
    return any(parent.pid == os.getpid() for parent in process.parents()) and "ShardTranscriber" in " ".join(
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


def test_every_node_works_and_a_lost_one_costs_only_its_shard(
    cluster: Any, rows: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As many actors are at work as there are nodes. When a node is lost for ever, the others do its shard again, and
    no other shard is repeated.
    """
    voxbatch.run(rows, tmp_path / "alone", engine="scripted", decoders=1, formats="srt")
    out, hold = tmp_path / "out", Hold(tmp_path / "hold")
    actors = set[int]()

    def lose_a_node() -> None:
        """Kill a node with all its processes while all actors hold a result."""
        hold.reached(NODES)
        actors.update(hold.pids())
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        until(lambda: not all(map(psutil.pid_exists, actors)))
        hold.release()

    thread = threading.Thread(target=lose_a_node, daemon=True)
    thread.start()
    waiting = {**SLOWLY, **hold.engine_options}
    with caplog.at_level("INFO", logger="voxbatch"):
        summary = voxbatch.ray.run(
            rows, out, concurrency=NODES, shards=4, formats="srt", engine_options=waiting, **CPU_ONLY
        )
    thread.join()
    assert len(actors) == NODES
    assert (summary.done, summary.failed) == (12, 0)
    assert outputs(out) == outputs(tmp_path / "alone")
    repeated = [record.message for record in caplog.records if "is repeated" in record.message]
    assert len(repeated) == 1, repeated
