"""Tests for prices: each has a date and a source, and a task finds the price of its machine."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest
from conftest import ROOT, ManifestWriter, Voxbatch

from voxbatch import engines, prices
from voxbatch.clouds import submit
from voxbatch.engines import previews
from voxbatch.platforms.tasks.known import PLATFORMS

SCRIPTED = ("--engine", "scripted", "--log-format", "json")


@pytest.mark.parametrize("name", prices.price_table())
def test_each_price_has_a_source_and_a_date(name: str) -> None:
    """Each price has a source and the date when it was read, so that it can be verified."""
    price = prices.price_table()[name]
    assert price.keys() == {"usd_per_hour", "machine", "source", "quote", "read_on"}
    assert 0.1 < price["usd_per_hour"] < 10
    assert price["read_on"] >= date(2026, 11, 21)
    assert all(price.values())


def test_cloud_run_price_is_the_sum_of_its_parts() -> None:
    """The price of Cloud Run is the sum of one L4, 8 vCPU and 16 GiB, which are what the Terraform module gives a task,
    at the published prices per second; without a GPU of the rest.
    """
    cpu, gib, gpu = 8 * 0.000018 * 3600, 0.000002 * 3600, 0.0001867 * 3600
    assert prices.usd_per_hour(prices.CLOUD_RUN_L4) == pytest.approx(cpu + 16 * gib + gpu, abs=0.001)
    assert prices.usd_per_hour(prices.CLOUD_RUN_CPU) == pytest.approx(cpu + 16 * gib, abs=0.001)
    module = (ROOT / "jobs" / "cloudrun" / "terraform" / "jobs" / "variables.tf").read_text()
    defaults = dict(re.findall(r'variable "(memory_gib|usd_per_hour)" \{[^}]*?default += (\S+)', module))
    assert defaults == {"memory_gib": "16", "usd_per_hour": f"{prices.usd_per_hour(prices.CLOUD_RUN_L4)}"}


def test_machine_depends_on_platform_and_gpu() -> None:
    """The machine is known for Cloud Run, with or without a GPU, and for SageMaker by its type; other platforms have no
    price.
    """
    assert prices.machine("cloud-run", None, True) == prices.CLOUD_RUN_L4
    assert prices.machine("cloud-run", None, False) == prices.CLOUD_RUN_CPU
    assert prices.machine("sagemaker", "ml.g6.xlarge", True) == "ml.g6.xlarge"
    for engine in set(PLATFORMS) - {"cloud-run", "sagemaker"}:
        assert prices.machine(engine, None, True) is None
    assert prices.usd_per_hour(None) is None
    assert prices.usd_per_hour("ml.g99.xlarge") is None


PAGE = (ROOT / "docs" / "costs.md").read_text()


def rows(page: str) -> list[list[str]]:
    """Return the cells of all rows of the tables of a page."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]


def hourly_prices() -> dict[str, list[str]]:
    """Return the rows of the table of prices of an hour of audio: what it is → price, kind and date."""
    found = (cells for cells in rows(PAGE) if len(cells) == 4 and re.fullmatch(r"2026-\d\d(-\d\d)?", cells[3]))
    return {cells[0]: cells[1:] for cells in found}


def test_the_page_has_each_price_with_its_date() -> None:
    """The table of machines has each price of the program, with the day on which it was read."""
    found = {cells[0].split("`")[1]: cells[1:] for cells in rows(PAGE) if cells[0].startswith("`")}
    assert found == {
        name: [f"{each['usd_per_hour']}", f"{each['read_on']}"] for name, each in prices.price_table().items()
    }


def test_the_page_calculates_our_prices_from_the_forecast() -> None:
    """Our prices of an hour of audio follow from the price of the machine and the forecast of its GPU, which may be off
    by 30 %, and each price of the table says whether it is modelled, measured or published, and when.
    """
    speed = previews.expected_speed("vllm", None, {}, None, "NVIDIA L4")
    assert speed is not None
    high, low = 1.3 * speed.rtfx, 0.7 * speed.rtfx
    (start,) = {
        submit.CloudRun().start_time("vllm"),
        submit.SageMaker("i", "arn:aws:iam::123456789012:role/r").start_time("vllm"),
    }
    assert start is not None
    beside = hourly_prices()
    assert len(beside) == 15
    assert all(re.search("modelled|measured|published", kind) for _, kind, _ in beside.values())
    for name in ("cloudrun-l4", "ml.g6.2xlarge"):
        price = prices.price_table()[name]
        assert beside[f"voxbatch on `{name}`, RTFx {low:g} to {high:g}"] == [
            f"{price['usd_per_hour'] / high:.4f} to {price['usd_per_hour'] / low:.4f}",
            "modelled, without the start",
            f"{price['read_on']}",
        ]
    per_hour = prices.price_table()[prices.CLOUD_RUN_L4]["usd_per_hour"]
    start_usd = start.average_s / 3600 * per_hour
    for hours in (1, 10, 100):
        work = [hours / rtfx * per_hour for rtfx in (high, low)]
        each = [(usd + start_usd) / hours for usd in work]
        cells = " to ".join(dict.fromkeys(f"{usd:.2f}" for usd in work))
        assert [f"{hours}", cells, f"{start_usd:.2f}", f"{each[0]:.3f} to {each[1]:.3f}"] in rows(PAGE)
    assert f"270 s x {speed.rtfx:g} / 3600 = {start.average_s * speed.rtfx / 3600:.1f} hours" in PAGE


@pytest.mark.parametrize(
    ("machine", "gpu", "usd"),
    [("`cloudrun-l4`", "NVIDIA L4", 1.306), ("`ml.g6.2xlarge`", "NVIDIA L4", 1.222),
     ("an H100 rented for 4 USD an hour", "NVIDIA H100 80GB HBM3", 4)],
)  # fmt: skip
def test_the_page_calculates_the_prices_of_parakeet(machine: str, gpu: str, usd: float) -> None:
    """Prices of Parakeet, too, follow from the price of the machine and the forecast of its GPU."""
    speed, start = (
        previews.expected_speed("transducers", None, {}, None, gpu),
        submit.CloudRun().start_time("transducers"),
    )
    assert speed is not None
    assert start is not None
    low, high = (speed.rtfx * (1 + sign * speed.error) for sign in (-1, 1))
    assert usd == prices.usd_per_hour(machine.strip("`")) or machine.startswith("an H100")
    price, kind, _ = hourly_prices()[f"Parakeet on {machine}, RTFx {low:,.0f} to {high:,.0f}"]
    assert price == f"{usd / high:.4f} to {usd / low:.4f}"
    assert kind.startswith("modelled, without the start")
    if gpu == "NVIDIA L4":
        assert f"270 s x {speed.rtfx:g} / 3600 = {start.average_s * speed.rtfx / 3600:g} hours" in PAGE


def test_the_page_calculates_other_prices_of_parakeet_from_their_sources() -> None:
    """The price on an H200 follows from the speed of a whole run in RESULTS.md, AWS's from its price of a minute, omi's
    from its speeds and the price of an L4."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    (rtfx,) = re.findall(r"^\| 1 \| 200 \| [\d.]+ s \| ([\d,]+) \|", results, flags=re.MULTILINE)
    found = hourly_prices()
    price, kind, _ = found[f"Parakeet on an H200 rented for 5 USD an hour, RTFx {rtfx} with start and end"]
    assert price == f"{5 / float(rtfx.replace(',', '')):.2g}"
    assert kind.startswith("the speed is measured [with made-up weights]")
    (article,) = (cells for name, cells in found.items() if "AWS's article" in name)
    low, high = map(float, re.findall(r"(0\.000\d+) (?:USD a minute|on demand)", PAGE))
    assert article[0] == f"{low * 60:.3f} to {high * 60:.4f}"
    per_hour = prices.price_table()[prices.CLOUD_RUN_L4]["usd_per_hour"]
    assert found["Parakeet by omi on an L4, RTFx 164 to 286 over clips of 5 s"][0] == (
        f"{per_hour / 286:.4f} to {per_hour / 164:.4f}"
    )


CLOUD_RUN = {"CLOUD_RUN_TASK_INDEX": "0", "CLOUD_RUN_TASK_COUNT": "1"}


def test_cost_is_in_events_and_summary(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """The cost is in the last event, and for the machines of all shards in the summary. A given price has priority, and
    an unknown one is null.
    """
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
        ((), {"SAGEMAKER_BASE_DIR": str(root)}, prices.usd_per_hour("ml.g6.2xlarge")),
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
            assert f"cost about ${summary['usd']:,.2f}, without the start of the machines" in done.stdout
