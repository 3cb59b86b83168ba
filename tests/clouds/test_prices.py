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
from voxbatch.config import Config
from voxbatch.engines import previews
from voxbatch.platforms.tasks.known import PLATFORMS

SCRIPTED = ("--engine", "scripted", "--log-format", "json")


PRICES: list[prices.Price] = [*prices.machines().values(), *prices.services()]


@pytest.mark.parametrize("price", PRICES, ids=lambda price: price.quote[:30])
def test_each_price_has_a_source_and_a_date(price: prices.Price) -> None:
    """Each price has a source, a quote and the date when it was read, so that it can be verified. A price is not dated
    after the day on which it was read."""
    assert 0.01 < price.usd_per_hour < 10
    assert price.read_on >= date(2026, 11, 21)
    assert price.source
    assert price.quote
    assert price.priced_on is None or f"{price.priced_on}" < f"{price.read_on}"


def test_services_are_sorted_and_quote_their_prices() -> None:
    """The services are sorted by price, have an address as their source, and the quote has the price of an hour or of a
    minute."""
    services = prices.services()
    assert services == sorted(services, key=lambda service: service.usd_per_hour)
    for service in services:
        assert service.source.startswith("https://")
        quoted = [float(usd) for usd in re.findall(r"\$(\d[\d.]*\d)", service.quote)]
        assert [usd for usd in quoted if service.usd_per_hour in (pytest.approx(usd), pytest.approx(60 * usd))]


def test_prices_between_two_sizes_are_calculated_from_them() -> None:
    """A g2-standard-8 costs what a g2-standard-4 costs, and 4 of the 28 vCPU that a g2-standard-32 has more."""
    for name in ("g2-standard-8", "g2-standard-8-spot"):
        entry = prices.machines()[name]
        small, large = (float(usd) for usd in re.findall(r"(?:hour|hour_spot) ([\d.]+\d)", entry.quote))
        assert entry.usd_per_hour == pytest.approx(small + 4 * (large - small) / 28, abs=0.0005)


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
RESULTS = "".join(page.read_text() for page in sorted((ROOT / "benchmarks" / "results").glob("*.md")))


def rows(page: str) -> list[list[str]]:
    """Return the cells of all rows of the tables of a page."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]


def speed(model: str, gpu: str) -> prices.Speed:
    """Return the table's speed of a model on a GPU."""
    (found,) = [speed for speed in prices.speeds() if (speed.model, speed.gpu) == (model, gpu)]
    return found


L4, H100, H200 = "NVIDIA L4", "NVIDIA H100 80GB HBM3", "NVIDIA H200"


def test_modelled_speeds_are_those_of_the_forecast() -> None:
    """A modelled speed is the forecast's, or follows from it by the ratio that its source names, in two digits."""
    forecasts = {
        ("Voxtral Realtime", L4): "vllm", ("Parakeet", L4): "transducers", ("Parakeet", H100): "transducers",
    }  # fmt: skip
    for (model, gpu), engine in forecasts.items():
        expected, listed = previews.expected_speed(engine, None, {}, None, gpu), speed(model, gpu)
        assert expected is not None
        assert (listed.rtfx, listed.error, listed.kind) == (expected.rtfx, expected.error, "modelled")
    realtime = speed("Voxtral Realtime", L4).rtfx
    by_ratio = [entry for entry in prices.speeds() if " times " in entry.source]
    assert [entry.model for entry in by_ratio] == ["Voxtral Realtime, 8 bits", "Voxtral Mini 3B"]
    for entry in by_ratio:
        first, above, below = re.findall(r"[\d,]+", entry.source)[:3]
        assert float(first) == realtime
        ratio = float(above.replace(",", "")) / float(below.replace(",", ""))
        assert (entry.rtfx, entry.kind) == (float(f"{realtime * ratio:.2g}"), "modelled")
    assert "**2,237**" in RESULTS
    assert "| 1,567 |" in RESULTS
    modelled = [entry for entry in prices.speeds() if entry.kind == "modelled"]
    assert len(modelled) == len(forecasts) + len(by_ratio)


def test_measured_speeds_are_those_of_the_results() -> None:
    """Each measured speed is on a page of benchmarks/results, and has no error."""
    measured = [entry for entry in prices.speeds() if entry.kind == "measured"]
    assert len(measured) == 7
    for entry in measured:
        assert re.search(rf"(?<![\d,]){entry.rtfx:,}(?![\d,])", RESULTS), entry
        assert entry.error == 0.0


def test_the_page_calculates_runs_from_the_forecast() -> None:
    """The price of a run of one hour, of ten and of a hundred follows from the price of the machine, the start and the
    forecast of its GPU, which may be off by 30 %.
    """
    expected = previews.expected_speed("vllm", None, {}, None, L4)
    assert expected is not None
    high, low = 1.3 * expected.rtfx, 0.7 * expected.rtfx
    (start,) = {
        submit.CloudRun().start_time("vllm"),
        submit.SageMaker(
            "123456789012.dkr.ecr.us-east-1.amazonaws.com/v:1", "arn:aws:iam::123456789012:role/r"
        ).start_time("vllm"),
    }
    assert start is not None
    per_hour = prices.machines()[prices.CLOUD_RUN_L4].usd_per_hour
    start_usd = start.average_s / 3600 * per_hour
    for hours in (1, 10, 100):
        work = [hours / rtfx * per_hour for rtfx in (high, low)]
        each = [(usd + start_usd) / hours for usd in work]
        cells = " to ".join(dict.fromkeys(f"{usd:.2f}" for usd in work))
        assert [f"{hours}", cells, f"{start_usd:.2f}", f"{each[0]:.3f} to {each[1]:.3f}"] in rows(PAGE)
    assert f"270 s x {expected.rtfx:g} / 3600 = {start.average_s * expected.rtfx / 3600:.1f} hours" in PAGE
    parakeet = speed("Parakeet", L4).rtfx
    assert f"270 s x {parakeet:g} / 3600 = {start.average_s * parakeet / 3600:g} hours" in PAGE


def test_the_page_calculates_what_an_interruption_costs() -> None:
    """An interruption costs an average start and the work that a kill loses, as a part of an hour's price."""
    start = submit.CloudRun().start_time("vllm")
    assert start is not None
    lost_s = start.average_s + Config(source="m.jsonl", out="out").part_seconds
    assert f"(270 + 30) / 3600 = {lost_s / 36:.0f} %" in PAGE


def test_the_page_calculates_prices_of_others_from_their_sources() -> None:
    """AWS's price of an hour of Parakeet follows from its price of a minute, omi's from its speeds and the price of an
    L4."""
    found = {cells[0]: cells[1] for cells in rows(PAGE) if len(cells) == 4}
    (article,) = (usd for name, usd in found.items() if "AWS's article" in name)
    low, high = map(float, re.findall(r"(0\.000\d+) (?:USD a minute|on demand)", PAGE.replace("\nmachines, ", " ")))
    assert article == f"{low * 60:.3f} to {high * 60:.4f}"
    per_hour = prices.machines()[prices.CLOUD_RUN_L4].usd_per_hour
    assert found["Parakeet by omi on an L4, RTFx 164 to 286 over clips of 5 s"] == (
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
