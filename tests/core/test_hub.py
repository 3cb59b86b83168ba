"""Tests for models of the hub with faster-whisper: found, downloaded with a report, and refused with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import Recorder, Voxbatch
from hub import COMMIT, serving, variables

from voxbatch import engines
from voxbatch.engines.known_models import KNOWN_MODELS, LATER_LANGUAGES, bundled_folder, find

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NOWHERE = "http://127.0.0.1:9"
"""An address where no server listens."""


@pytest.fixture
def source(recording: Recorder, tmp_path: Path) -> Path:
    """Return a folder with one short recording."""
    recording("in/a.wav", 1)
    return tmp_path / "in"


def test_a_hub_model_is_downloaded_and_kept(voxbatch: Voxbatch, source: Path, base_model: Path, tmp_path: Path) -> None:
    """`--model base` downloads the model, says so, and records its commit. Later it needs no hub: the same
    run continues without one, and another run starts.
    """
    with serving({"Systran/faster-whisper-base": base_model}, tmp_path / "hf", seconds_per_block=0.05) as hub:
        done = voxbatch("run", source, "--model", "base", "-o", "out", env=hub.environment)
    assert done.returncode == 0, done.stderr
    assert "downloading Systran/faster-whisper-base: 145 MB" in done.stderr
    assert "Fetching" not in done.stderr
    facts = json.loads((tmp_path / "out" / "summary.json").read_text())["engine"]
    assert (facts["model"], facts["license"], facts["decoding"]["revision"]) == ("base", "MIT", COMMIT)
    for out, offline in (("out", {}), ("other", {"HF_HUB_OFFLINE": "1"})):
        again = voxbatch("run", source, "--model", "base", "-o", out, env={**hub.environment, **offline})
        assert again.returncode == 0, again.stderr


def test_a_dry_run_fetches_no_model(voxbatch: Voxbatch, source: Path, base_model: Path, tmp_path: Path) -> None:
    """A dry run says which model the run will fetch, and its size, and fetches nothing. The hub is asked only for a
    model that is not in the table, whose name may be wrong."""
    models = {"Systran/faster-whisper-base": base_model, "some/fine-tuned": base_model}
    with serving(models, tmp_path / "hf") as hub:

        def plan(*options: str) -> list[str]:
            done = voxbatch("run", source, "--dry-run", *options, env=hub.environment)
            assert (done.returncode, done.stderr) == (0, "")
            return done.stdout.splitlines()

        for model in ("base", "Systran/faster-whisper-base"):
            assert "fetch    Systran/faster-whisper-base: about 145 MB" in plan("--model", model)
        assert sum(line.startswith("fetch ") for line in plan("--cascade", "base,small:0.5")) == 2
        refused = voxbatch("run", source, "--dry-run", "--model", "small.en", "--language", "de", env=hub.environment)
        assert (refused.returncode, "model small.en knows only en" in refused.stderr) == (2, True)
        assert hub.asked == []
        size = sum(path.stat().st_size for path in base_model.iterdir()) / 1e6
        assert f"fetch    some/fine-tuned: at most {size:,.0f} MB" in plan("--model", "some/fine-tuned")
        wrong = voxbatch("run", source, "--dry-run", "--model", "some/fine-tuend", env=hub.environment)
        assert (wrong.returncode, "no such model on the hub" in wrong.stderr) == (2, True)
        assert {request.split("/")[1] for request in hub.asked} == {"api"}
        assert not list((tmp_path / "hf").rglob("*.json"))
        assert voxbatch("run", source, "--model", "base", "-o", "out", env=hub.environment).returncode == 0
        asked = len(hub.asked)
        here = plan("--model", "base")
        assert (len(hub.asked), [line for line in here if line.startswith("fetch")]) == (asked, [])
        assert "chunks   at least 1" in here
        weights = next((tmp_path / "hf").rglob("model.bin"))
        weights.unlink()
        assert "fetch    Systran/faster-whisper-base: about 145 MB" in plan("--model", "base")


def test_a_dry_run_scales_the_speed_by_the_model(voxbatch: Voxbatch, source: Path, tmp_path: Path) -> None:
    """The speed of the profile is that of tiny.en. A larger model has more multiply-adds; those of a folder are
    unknown. A speed that `models` has measured on this machine counts more."""
    environment = variables(NOWHERE, tmp_path / "hf") | {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def planned(model: str) -> str:
        done = voxbatch("run", source, "--dry-run", "--model", model, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    shutil.copytree(bundled_folder() or "", tmp_path / "folder")
    for model, time in (("tiny.en", "RTFx 23,"), ("large-v3", "RTFx 0.49,"), ("folder", "unknown: give --expected-r")):
        assert time in planned(model)
    assert voxbatch("models", "de", env=environment).returncode == 0
    cpu = tmp_path / "cache" / "voxbatch" / "cpu.json"
    cpu.write_text(json.dumps({**json.loads(cpu.read_text()), "gmac_per_s": 84.1}))
    assert "RTFx 10," in planned("small")
    assert "   6 min" in next(
        line for line in voxbatch("models", "de", env=environment).stdout.splitlines() if "small" in line
    )


def test_bundled_weights_are_found_without_a_hub(voxbatch: Voxbatch, source: Path, tmp_path: Path) -> None:
    """`--model tiny.en` is the bundled model: the same run as without --model, on a machine without network."""
    env = variables(NOWHERE, tmp_path / "hf")
    for model in ((), ("--model", "tiny.en")):
        done = voxbatch("run", source, "-o", "out", *model, env=env)
        assert done.returncode == 0, done.stderr


def test_bundled_and_hub_weights_are_different_runs(voxbatch: Voxbatch, source: Path, tmp_path: Path) -> None:
    """The weights of the hub have a revision, so that OUT of the bundled ones refuses them."""
    bundled = bundled_folder()
    assert bundled is not None
    assert voxbatch("run", source, "-o", "out").returncode == 0
    with serving({"Systran/faster-whisper-tiny.en": bundled}, tmp_path / "hf") as hub:
        done = voxbatch("run", source, "-o", "out", "--model", "Systran/faster-whisper-tiny.en", env=hub.environment)
    assert (done.returncode, "another" in done.stderr) == (2, True), done.stderr


def test_a_wrong_name_and_an_unreachable_hub_are_told_apart(
    voxbatch: Voxbatch, source: Path, base_model: Path, tmp_path: Path
) -> None:
    """A wrong name is exit code 2 with a suggestion; an unreachable hub is exit code 1, and says what is here. Neither
    reserves OUT.
    """
    for_transformers = tmp_path / "transformers"
    for_transformers.mkdir()
    shutil.copy(base_model / "config.json", for_transformers)
    with serving({"owner/whisper-base": for_transformers}, tmp_path / "hf") as hub:
        here = hub.environment
        nowhere = variables(NOWHERE, tmp_path / "hf")
        offline = {**nowhere, "HF_HUB_OFFLINE": "1"}
        for model, env, code, *reasons in (
            ("bse", nowhere, 2, "no model of this name; did you mean base? `voxbatch models` lists the names"),
            ("owner/absent", here, 2, "there is no such folder here and no such model on the hub; if it is private"),
            ("a b/c", here, 2, "there is no such folder here, and a hub name is owner/name"),
            ("owner/whisper-base", here, 2, "has no model.bin, so it is not in CTranslate2's format"),
            (
                "small", nowhere, 1, f"--model Systran/faster-whisper-small: the hub {NOWHERE} cannot be reached (",
                "the cache has owner/whisper-base; or copy the model into a folder",
            ),
            ("small", offline, 2, "HF_HUB_OFFLINE is set, and the model is not in the cache"),
        ):  # fmt: skip
            done = voxbatch("run", source, "-o", "out", "--model", model, "--log-format", "text", env=env)
            assert (done.returncode, all(reason in done.stderr for reason in reasons)) == (code, True), done.stderr
            assert "Traceback" not in done.stderr
            assert not (tmp_path / "out").exists()


@pytest.mark.skipif(engines.has_gpu(), reason="this machine has a GPU")
def test_a_model_for_gpus_is_refused_before_the_hub_is_asked(voxbatch: Voxbatch, source: Path, tmp_path: Path) -> None:
    """A model of an owner who has models for GPUs alone is refused here, with one for the CPU if known."""
    for model, remedy in (
        ("openai/whisper-small", "on a CPU: --model small"),
        ("Qwen/Qwen3-ASR-0.6B", "`voxbatch mod"),
    ):
        done = voxbatch("run", source, "--model", model, env=variables(NOWHERE, tmp_path / "hf"))
        assert done.returncode == 2
        assert f"--model {model}: models of {model.split('/')[0]} are for NVIDIA GPUs, and this" in done.stderr
        assert remedy in done.stderr


def test_short_names_are_those_of_faster_whisper() -> None:
    """Each short name of faster-whisper means the same model of the hub here, and Whisper's languages are the same."""
    from faster_whisper.tokenizer import _LANGUAGE_CODES
    from faster_whisper.utils import _MODELS

    assert {name: (find(name, "faster-whisper") or KNOWN_MODELS[0]).hub for name in _MODELS} == _MODELS
    assert set(LATER_LANGUAGES) ^ set(_LANGUAGE_CODES) == {"jv", "jw"}


def test_models_lists_what_is_here(voxbatch: Voxbatch, base_model: Path, tmp_path: Path) -> None:
    """`models --all` shows which models are bundled, cached or absent, in 80 columns; with a name, it explains one, by
    the engine that this machine can run."""
    env = {"HF_HUB_CACHE": str(tmp_path / "hub")}
    snapshot = tmp_path / "hub" / "models--Systran--faster-whisper-base" / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(base_model)
    shown = voxbatch("models", "--all", env=env).stdout.splitlines()
    places = {line.split()[0]: line.split()[-1] for line in shown if line.startswith("  ")}
    assert {name: places[name] for name in ("tiny.en", "base", "small", "large-v3-turbo")} == {
        "tiny.en": "bundled", "base": "cached", "small": "no", "large-v3-turbo": "no",
    }  # fmt: skip
    assert "mistralai/Voxtral-Mini-4B-Realtime-2602" in places
    explained = [" ".join(voxbatch("models", name, env=env).stdout.split()) for name in ("base", "tiny.en", "turbo")]
    assert f"yes, in {tmp_path}/hub" in explained[0]
    assert "English only: for other languages take" in explained[1]
    assert "hf download mobiuslabsgmbh/faster-whisper-large-v3-turbo" in explained[2]
    assert all(len(line) < 80 for line in shown)
    assert "engine onnx-asr" in " ".join(voxbatch("models", "parakeet").stdout.split())
    wrong = voxbatch("models", "smal")
    assert (wrong.returncode, "did you mean small?" in wrong.stderr) == (2, True)
