"""The table of prices is dated and sourced, and a task finds its machine in it."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from conftest import ManifestWriter, Voxbatch

from voxbatch import engines, prices, tasks

SCRIPTED = ("--engine", "scripted", "--log-format", "json")


@pytest.mark.parametrize("name", prices.table())
def test_each_price_says_where_it_is_from(name: str) -> None:
    """A price without a source, or a date, could not be checked."""
    price = prices.table()[name]
    assert 0.1 < price.usd_per_hour < 10
    assert date.fromisoformat(price.read) >= date(2026, 11, 21)
    assert price.source
    assert price.said
    assert price.machine


def test_cloud_run_is_the_sum_of_its_parts() -> None:
    """One L4, 8 vCPU and 32 GiB, by the second as the sources have it."""
    cpu, memory, gpu = 8 * 0.000018 * 3600, 32 * 0.000002 * 3600, 0.0001867 * 3600
    assert prices.usd_per_hour(prices.CLOUD_RUN_L4) == pytest.approx(cpu + memory + gpu, abs=0.001)
    assert prices.usd_per_hour(prices.CLOUD_RUN_CPU) == pytest.approx(cpu + memory, abs=0.001)


def test_machines() -> None:
    """Cloud Run's by whether there is a GPU, SageMaker's by its type; of the others nobody knows what they cost."""
    assert prices.machine("cloud-run", None, True) == prices.CLOUD_RUN_L4
    assert prices.machine("cloud-run", None, False) == prices.CLOUD_RUN_CPU
    assert prices.machine("sagemaker", "ml.g6.xlarge", True) == "ml.g6.xlarge"
    for engine in set(tasks.ENGINES) - {"cloud-run", "sagemaker"}:
        assert prices.machine(engine, None, True) is None
    assert prices.usd_per_hour(None) is None
    assert prices.usd_per_hour("ml.g99.xlarge") is None


CLOUD_RUN = {"CLOUD_RUN_TASK_INDEX": "0", "CLOUD_RUN_TASK_COUNT": "1"}


@pytest.mark.slow
def test_a_task_says_what_it_cost(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """In its last event, and with the machines of all shards in the summary; a price that was given goes first, and one
    that nobody knows is null."""
    manifest(1.0, 2.0)
    root = tmp_path / "ml"
    (root / "config").mkdir(parents=True)
    host = {"current_host": "algo-1", "hosts": ["algo-1"], "current_instance_type": "ml.g6.2xlarge"}
    (root / "config" / "resourceconfig.json").write_text(json.dumps(host))
    own = ("--usd-per-hour", "3600")
    this = prices.usd_per_hour(prices.machine("cloud-run", None, engines.has_gpu()))
    for args, env, price in (
        ((), CLOUD_RUN, this),
        (own, CLOUD_RUN, 3600),
        ((), {**CLOUD_RUN, "VOXBATCH_USD_PER_HOUR": "7200"}, 7200),
        (("--profile", "cpu", "--model", "m"), CLOUD_RUN, this),
        ((), {"SAGEMAKER_BASE_DIR": str(root)}, prices.usd_per_hour("ml.g6.2xlarge")),
        (own, {}, 3600),
        ((), {}, None),
    ):
        done = voxbatch("run", "m.jsonl", "-o", "out", "--overwrite", *SCRIPTED, *args, env=env)
        assert done.returncode == 0, done.stderr
        event = json.loads(done.stderr.splitlines()[-1])
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert (event["message"], summary["config"]["usd_per_hour"]) == ("run_finished", price)
        if price is None:
            assert (event["usd"], summary["usd"], "cost" in done.stdout) == (None, None, False)
        else:
            assert event["usd"] == pytest.approx(event["wall_s"] * price / 3600, abs=0.02 * price / 3600 + 1e-6)
            assert 0 < summary["usd"] <= event["usd"]
            assert f"cost about ${summary['usd']:,.2f}, the start of machines left out" in done.stdout
