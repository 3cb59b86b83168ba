"""`voxbatch run` with tiny models of the Parakeet family, as a user starts it."""

from __future__ import annotations

import json
import signal
import tomllib
from pathlib import Path
from typing import Any

import killed_at
import psutil
import pytest
import soundfile
from conftest import Starter, environment
from outputs import output_files
from waits import until
from warm_python import python

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import parakeets  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ITEMS = 24
PROGRAM = "voxbatch.engines.engine_program"
FLAGS = ("--engine", "transducers", "--part-items", "2", "--formats", "srt,txt", "--no-report")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a manifest of ITEMS recordings, from one too short for the model to a minute."""
    folder = tmp_path_factory.mktemp("recordings")
    rows = []
    for number in range(ITEMS):
        num_samples = 200 if number == 3 else 60 * 16_000 if number == 5 else 12_000 + 4_000 * (number % 9)
        soundfile.write(folder / f"r{number}.wav", parakeets.sound(num_samples, number), 16_000, subtype="PCM_16")
        rows.append({"audio_filepath": f"r{number}.wav", "text": "the a so"})
    (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "m.jsonl"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny TDT model."""
    return Path(parakeets.folder(tmp_path_factory.mktemp("tdt"), "tdt"))


@pytest.fixture(scope="module")
def undisturbed(recordings: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the OUT of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run(folder, recordings, "--model", model, "-o", folder / "out", *FLAGS)
    return folder / "out"


def run(folder: Path, source: Path, *arguments: Any, code: int = 0) -> str:
    """Run voxbatch, check its exit code, and return what it says."""
    from engine_runs import command

    ended = command(folder, "run", source, *arguments)
    assert ended.returncode == code, ended.stderr[-3000:]
    return str(ended.stdout + ended.stderr)


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()]


def test_a_run_gives_words_with_times_confidences_scores_and_subtitles(undisturbed: Path) -> None:
    """Each word is inside its recording and after the one before. A recording that is too short has no text."""
    outputs = lines(undisturbed)
    assert len(outputs) == ITEMS
    assert outputs[3]["pred_text"] == ""
    for line in outputs:
        times = [time for word in line["words"] for time in (word["start"], word["end"])]
        assert times == sorted(times)
        assert not times or (times[0] >= 0 and times[-1] <= line["audio_duration"] + 1e-3)
        assert all(0 <= word["confidence"] <= 1 for word in line["words"])
        assert "".join(word["word"] for word in line["words"]).replace(" ", "") == line["pred_text"].replace(" ", "")
    assert sum(len(line["words"]) for line in outputs) > 100
    assert all(line["wer"] is not None for line in outputs)
    assert len(list((undisturbed / "srt").iterdir())) == ITEMS


def test_killed_runs_end_in_the_same_bytes(recordings: Path, model: Path, undisturbed: Path, tmp_path: Path) -> None:
    """A run that is killed (SIGKILL) three times after some parts and then ends has the files of an undisturbed run."""
    arguments = ("run", recordings, "--model", model, *FLAGS, "-o", tmp_path / "out")
    code = f"import sys; sys.path.append({str(Path(killed_at.__file__).parent)!r}); import killed_at; "
    code += "killed_at.install(5); from voxbatch.cli import main; main()"
    for _ in range(3):
        killed = python("-c", code, *arguments, folder=tmp_path, environment=environment())
        assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    run(tmp_path, recordings, *arguments[2:])
    assert output_files(tmp_path / "out") == output_files(undisturbed)


def test_a_killed_engine_costs_no_item(
    start: Starter, recordings: Path, model: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """An engine's process that somebody kills, before and while it works, is started again, and no line changes."""
    running = start("run", recordings, "--model", model, *FLAGS, "-o", tmp_path / "out")
    killed = set[int]()
    while len(killed) < 2:
        until(lambda: engine_of(running.pid, killed), process=running)
        if killed:
            until(lambda: list((tmp_path / "out").glob("parts/*/part-*")) or running.poll() is not None)
        for process in engine_of(running.pid, killed):
            killed.add(process.pid)
            process.kill()
        if running.poll() is not None:
            break
    assert running.wait(300) == 0
    assert output_files(tmp_path / "out") == output_files(undisturbed)


def engine_of(parent: int, killed: set[int]) -> list[psutil.Process]:
    """Return the engine's process below a process, if it was not killed yet."""
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        try:
            if process.pid not in killed and PROGRAM in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("kind", ["rnnt", "ctc", "nemotron"])
def test_each_family_runs_from_a_folder(recordings: Path, kind: str, tmp_path: Path) -> None:
    """Each family runs from its folder; the one that is told the language gets it."""
    model = parakeets.folder(tmp_path / kind, kind)
    language = ("--language", "es") if kind == "nemotron" else ()
    run(tmp_path, recordings, "--model", model, *FLAGS, *language, "--limit", 8, "-o", tmp_path / "out")
    assert any(line["words"] for line in lines(tmp_path / "out"))


def test_a_cascade_takes_its_second_pass_with_another_family(recordings: Path, model: Path, tmp_path: Path) -> None:
    """The second pass does the least sure items again, with the other model."""
    large = parakeets.folder(tmp_path / "ctc", "ctc")
    models = f"{model},{large}:0.3"
    run(tmp_path, recordings, "--cascade", models, *FLAGS, "-o", tmp_path / "out")
    by_model = [line["model"] for line in lines(tmp_path / "out")]
    assert 0 < by_model.count(str(large)) <= 0.35 * ITEMS + 1


def test_weights_that_do_not_fit_are_refused(recordings: Path, tmp_path: Path) -> None:
    """Weights that are missing, of another shape or pickled, and a blank that is a piece of text, are errors that say
    where and what to do. transformers would fill them with random numbers and write plausible text."""
    from safetensors.torch import load_file, save_file

    from voxbatch.errors import ConfigError, EngineError
    from voxbatch.transducers import model as models
    from voxbatch.transducers.loading import load

    def refused(change: Any, match: str) -> None:
        folder = parakeets.folder(tmp_path / str(len(list(tmp_path.iterdir()))), "tdt")
        change(folder)
        with pytest.raises((ConfigError, EngineError), match=match):
            load(models.locate(str(folder)), "cpu", torch.float32)

    def weights(change: Any) -> Any:
        def apply(folder: Path) -> None:
            state = load_file(folder / "model.safetensors")
            change(state)
            save_file(state, folder / "model.safetensors", metadata={"format": "pt"})

        return apply

    def config(**changes: Any) -> Any:
        def apply(folder: Path) -> None:
            content = json.loads((folder / "config.json").read_text())
            for name, value in changes.items():
                (content if name in content else content["encoder_config"])[name] = value
            (folder / "config.json").write_text(json.dumps(content))

        return apply

    def pickled(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    def blank_shifted(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        content["added_tokens"][-1]["content"] = "<pad>"
        content["added_tokens"][-1]["id"] = parakeets.BLANK
        (folder / "tokenizer.json").write_text(json.dumps(content))
        config(blank_token_id=parakeets.BLANK - 1)(folder)

    refused(weights(lambda state: state.pop("joint.head.bias")), "it lacks weights: joint.head.bias")
    refused(config(num_hidden_layers=1), "weights that its config.json knows nothing of: encoder.layers.1")
    refused(config(decoder_hidden_size=20), "another shape|size mismatch|cannot be loaded")
    refused(config(num_mel_bins=8), "takes 8 mel bins, and its preprocessor gives 16")
    refused(config(model_type="whisper"), "the engine transducers runs parakeet_ctc, parakeet_rnnt, parakeet_tdt")
    refused(pickled, "weights in another format may run code")
    refused(blank_shifted, f"blank is token {parakeets.BLANK - 1} in config.json, which the tokenizer writes as")


def test_vllms_environment_has_what_the_extra_needs() -> None:
    """The image for GPUs installs vLLM's packages alone: they meet the requirements of the extra `parakeet`."""
    from importlib.metadata import version

    from conftest import ROOT
    from packaging.requirements import Requirement

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    # vLLM's build for CPUs, which is here, needs no NVML; the one for GPUs does.
    wanted = [Requirement(line) for line in extras["parakeet"] if not line.startswith("nvidia-ml-py")]
    assert {each.name for each in wanted} >= {"torch", "transformers"}
    assert [str(each) for each in wanted if not each.specifier.contains(version(each.name))] == []
