"""Tests for the choice of a model by what the machine can do."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import Recorder, Voxbatch

from voxbatch.cli.models_command import models
from voxbatch.engines import quality
from voxbatch.engines.known_models import KNOWN_MODELS, find
from voxbatch.engines.quality import (
    QUALITIES,
    Candidate,
    candidates,
    choices,
    gmac_per_s,
    knows,
    recommended,
    take_quality,
)
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
@pytest.mark.parametrize("cpu", [LAPTOP, SERVER, SMALL], indirect=True)
def test_the_choices_hold_what_each_quality_takes() -> None:
    """In the table of `models`, each model is slower and more accurate than the one before, and a quality stands at the
    model that it takes, for each language."""
    for language in (*sorted({code for model in KNOWN_MODELS for code in model.languages}), None):
        if not any(candidate.rtfx for candidate in candidates(language)):
            continue
        ladder = choices(language)
        for worse, better in pairwise(candidate for candidate, _ in ladder):
            assert (worse.errors or 0) > (better.errors or 0)
            assert (worse.rtfx or 0) > (better.rtfx or 0)
        marked = {quality: candidate for candidate, qualities in ladder for quality in qualities}
        assert marked == {name: recommended(name, language) for name in QUALITIES}


@pytest.mark.parametrize(
    ("rtfx", "hour"),
    [
        (2253.0, "1.6 s"),
        (26.0, "2 min"),
        (3.6, "17 min"),
        (1.1, "55 min"),
        (0.56, "1.8 h"),
        (1.004, "1.0 h"),
        (None, ""),
    ],
)
def test_the_time_of_an_hour_is_for_people(rtfx: float | None, hour: str) -> None:
    """Seconds, minutes or hours, with as many digits as a calculation deserves."""
    assert Candidate(KNOWN_MODELS[0], rtfx).hour == hour


@pytest.mark.parametrize("language", [(), ("de",), ("en",), ("yue",)])
def test_the_choice_of_a_model_fits_a_screen(language: tuple[str, ...], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """`models` says in 80 columns and 24 lines, prompt included, how many errors each model makes, how long an hour
    takes and what it downloads; and it names the next command. `doctor` and --quality take the same models."""
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    shown = voxbatch("models", *language, env=environment).stdout.splitlines()
    lines = [line for line in shown if not line.startswith("engine scripted")]  # of the package of the tests
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 79
    assert lines[0].split("  ")[-1] == "--quality"
    best = next(line.split()[0] for line in lines if line.endswith((", best", "  all")))
    asked = ("--language", *(language or ("en",)))
    (recording := tmp_path / "talk.wav").write_bytes(b"")
    planned = voxbatch("run", str(recording), *asked, "--quality", "best", "--dry-run", env=environment)
    assert f"quality best: {best}, about " in planned.stderr
    if not language:
        assert f"best model for English: {best}, about " in voxbatch("doctor", env=environment).stdout


def test_the_choice_on_a_gpu_fits_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU, the figures are those of an H200 and of the leaderboard."""
    monkeypatch.setattr(quality, "has_gpu", lambda: True)
    monkeypatch.setattr(quality, "install_command", lambda name: "")
    monkeypatch.setattr(quality, "free_bytes", lambda uses_gpu: 80e9)
    for language in ((), ("ja",)):
        lines = CliRunner().invoke(models, language).stdout.splitlines()
        assert len(lines) <= 23
        assert max(map(len, lines)) <= 79
        assert "on one H200" in " ".join(lines)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("cpu", [SMALL], indirect=True)
def test_a_quality_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is the speed that a model must have; where none has it, the fastest one is taken."""
    settings = {"language": "en", "engine": ENGINE}
    assert take_quality("best", settings, ()).endswith("; the most accurate one of at least 1.5 times real time")
    monkeypatch.setattr(quality, "gmac_per_s", lambda: 1.0)
    assert take_quality("best", settings, ()).endswith("; the fastest one, none has 1.5 times real time")


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
