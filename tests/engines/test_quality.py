"""Tests for the choice of a model by what the machine can do."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import Recorder, Voxbatch

from voxbatch.engines import quality
from voxbatch.engines.known_models import KNOWN_MODELS, find
from voxbatch.engines.quality import QUALITIES, candidates, gmac_per_s, knows, recommended
from voxbatch.errors import ConfigError

ENGINE = "faster-whisper"


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Be a machine with a CPU of a given speed and memory, and without a GPU."""
    rate, memory = request.param
    monkeypatch.setattr(quality, "gmac_per_s", lambda: rate)
    monkeypatch.setattr(quality, "free_bytes", lambda uses_gpu: 0 if uses_gpu else memory)


LAPTOP, SERVER, SMALL = (24.0, 16e9), (400.0, 64e9), (24.0, 0.8e9)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize(
    ("cpu", "language", "names"),
    [
        (LAPTOP, "en", ["tiny.en", "small.en", "small.en"]),
        (LAPTOP, "de", ["base", "small", "small"]),
        (LAPTOP, None, ["base", "small", "small"]),
        (SERVER, "en", ["tiny.en", "small.en", "large-v3"]),
        (SERVER, "yue", ["large-v3", "large-v3", "large-v3"]),
        (SMALL, "en", ["tiny.en", "base.en", "base.en"]),
    ],
    indirect=["cpu"],
)
def test_the_model_depends_on_machine_and_language(language: str | None, names: list[str]) -> None:
    """A faster machine takes a larger model; a model fits into the memory and knows the language."""
    assert [recommended(name, language, ENGINE).model.name for name in QUALITIES] == names


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("cpu", [LAPTOP, SERVER], indirect=True)
def test_a_better_quality_is_never_less_accurate_and_never_faster() -> None:
    """From fast to best, the published error rate falls, and so does the speed."""
    for language in ("en", "de", None):
        models = [recommended(name, language, ENGINE) for name in QUALITIES]
        for worse, better in pairwise(models):
            assert (worse.model.clean or 0) >= (better.model.clean or 0)
            assert (worse.rtfx or 0) >= (better.rtfx or 0)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("cpu", [LAPTOP], indirect=True)
def test_a_language_that_no_model_knows_is_refused() -> None:
    """The error names the quality and the language, and says what to do."""
    with pytest.raises(ConfigError, match=r"--quality best: no model of the table runs here for tlh; .*--model"):
        recommended("best", "tlh", ENGINE)


def test_the_smallest_model_is_for_english_alone() -> None:
    """Multilingual tiny errs too often in other languages than English."""
    tiny, base = find("tiny", ENGINE), find("base", ENGINE)
    assert tiny
    assert base
    assert (knows(tiny, "en"), knows(tiny, "de"), knows(base, "de"), knows(base, None)) == (True, False, True, True)


def test_the_cpu_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement is kept in the cache folder, and made again on another CPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rate = gmac_per_s()
    assert 1 < rate < 100_000
    assert gmac_per_s() == rate
    place = tmp_path / "voxbatch" / "cpu.json"
    place.write_text(json.dumps({"cpu": "another", "gmac_per_s": 1.0}))
    assert gmac_per_s() != 1.0


def test_each_figure_of_the_table_is_for_one_network() -> None:
    """Models of one size take as many operations, with and without .en, and a larger file takes more."""
    models = [model for model in KNOWN_MODELS if model.engine == ENGINE and not model.name.startswith("distil")]
    sizes = sorted({(model.megabytes, model.gmac) for model in models if "turbo" not in model.name})
    assert len(sizes) == 5
    assert [gmac for _, gmac in sizes] == sorted(gmac or 0 for _, gmac in sizes)
    assert candidates("en", ENGINE)


def test_a_run_says_what_it_took(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """--quality is the same run as --model with the model that it took, and excludes it."""
    recording("talk.wav", 1.1)
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = ("run", "talk.wav", "--language", "en")
    done = voxbatch(*command, "--quality", "fast", env=environment)
    assert done.returncode == 0, done.stderr
    assert "quality fast: tiny.en, about " in done.stderr
    assert json.loads((tmp_path / "talk.voxbatch" / "run.json").read_text())["identity"]["model"] == "tiny.en"
    assert "1 item done before" in voxbatch(*command, "--model", "tiny.en", env=environment).stderr
    refused = voxbatch(*command, "--quality", "fast", "--model", "base")
    assert (refused.returncode, "--quality and --model both choose" in refused.stderr) == (2, True)


@pytest.mark.parametrize("language", ["English", "en-GB"])
def test_a_quality_takes_a_language_by_name(
    language: str, voxbatch: Voxbatch, recording: Recorder, tmp_path: Path
) -> None:
    """The language of a model is that of the name or the tag."""
    recording("talk.wav", 1.1)
    command = ("run", "talk.wav", "--language", language, "--quality", "fast", "--dry-run")
    planned = voxbatch(*command, env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert (planned.returncode, planned.stderr.count("quality fast: tiny.en")) == (0, 1), planned.stderr
