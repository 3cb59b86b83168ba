"""Real words through vLLM: the main job with real Whisper weights is as good as transformers on the same weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, environment

from voxbatch.engines.pieces import Piece
from voxbatch.records import TRANSLATE, Hints
from voxbatch.scoring.corpus import CorpusScore
from voxbatch.scoring.counts import count_errors
from voxbatch.vllm.engine.families.choice import resolve
from voxbatch.vllm.engine.families.whisper import CONTEXT, TEXT_TOKENS, Whisper
from voxbatch.vllm.engine.model import locate

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

FIRST = 5
"""Index of the first recording of speech/'s manifest that is transcribed."""
REFERENCE = {60: 19 / 192, 30: 31 / 248}
"""Word error rate of transformers 5.19 with the same weights, by the distance of the recordings: greedy, in float32,
with the given language, each chunk by itself, counted by scoring form 3."""
SLOW_TRANSFORMERS = """
import multiprocessing, sys, threading, time

def delay(event, arguments):
    if event == "import" and arguments[0] == "transformers.utils" and not multiprocessing.parent_process():
        time.sleep(0 if threading.current_thread().name == "vllm-parent" else 30)

sys.addaudithook(delay)
"""
"""A sitecustomize.py: an import of transformers takes long in the program, except in the thread that imports vLLM."""
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "2",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "HF_HUB_OFFLINE": "1",
}

OPTIONS = ("dtype=float32", "enforce_eager=true", "max_num_batched_tokens=2048")
FLAGS = [flag for option in OPTIONS for flag in ("--engine-option", option)]


@pytest.fixture(scope="module")
def whisper() -> Path:
    """Return the folder of multilingual Whisper tiny. It is made once, and kept in the user's cache."""
    import whisper_tiny

    try:
        return whisper_tiny.whisper_tiny(whisper_tiny.default_cache())
    except whisper_tiny.UnavailableError as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module", params=[60, pytest.param(30, marks=pytest.mark.long)])
def step(request: pytest.FixtureRequest) -> int:
    """Return the distance of the recordings in speech/'s manifest that are transcribed."""
    distance: int = request.param
    return distance


@pytest.fixture(scope="module")
def speech(corpus: Path) -> list[dict[str, Any]]:
    """Return the rows of speech/'s manifest with absolute paths."""
    folder = corpus / "speech"
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    return [{**row, "id": row["audio_filepath"], "audio_filepath": str(folder / row["audio_filepath"])} for row in rows]


@pytest.fixture(scope="module")
def unnamed(speech: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in three languages, and one with hotwords. The run is not told their languages."""
    rows = [next(row for row in speech if row["lang"] == lang and row["duration"] > 5) for lang in ("fr", "de", "en")]
    named = next(row for row in speech if row["id"].endswith("LJ001-0028.flac"))
    rows.append({**named, "hotwords": ["Strasburg", "Basle", "Lubeck"]})
    return [{**row, "id": f"unnamed {number}"} for number, row in enumerate(rows)]


@pytest.fixture(scope="module")
def out(
    whisper: Path,
    speech: list[dict[str, Any]],
    unnamed: list[dict[str, Any]],
    step: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Return the output of a run over both kinds of rows, and over one with an unknown language.

    The tokenizer is not loaded while another thread imports vLLM, which would see half of transformers and fail.
    """
    folder = tmp_path_factory.mktemp("whisper")
    (folder / "sitecustomize.py").write_text(SLOW_TRANSFORMERS)
    lines = [{key: value for key, value in row.items() if key != "lang"} for row in unnamed]
    lines += [*speech[FIRST::step], {**lines[-1], "id": "unknown", "lang": "xx"}]
    (folder / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ["--engine", "vllm", "--model", str(whisper), *FLAGS, "--allow-outside"]
    command = [sys.executable, "-m", "voxbatch", "run", str(folder / "m.jsonl"), "-o", str(folder / "out"), *options]
    variables = environment(**{**ENVIRONMENT, "PYTHONPATH": f"{folder}:{ROOT}"})
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 3, ended.stderr[-3000:]
    return folder / "out"


def rows_of(out: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a file of a run, by their ids."""
    return {row["id"]: row for row in map(json.loads, (out / name).read_text().splitlines())}


def test_the_main_job_is_as_good_as_transformers(out: Path, speech: list[dict[str, Any]], step: int) -> None:
    """Every row of real recordings is done, with a word error rate within half a point of transformers on the same
    weights.

    The job is `voxbatch run --engine vllm`.
    """
    score, transcripts = CorpusScore(), rows_of(out, "transcripts.jsonl")
    for row in speech[FIRST::step]:
        score.add(row["lang"], count_errors(row["text"], transcripts[row["id"]]["pred_text"], row["lang"]))
    assert abs(score.to_dict()["words"]["wer"] - REFERENCE[step]) <= 0.005


def test_the_language_is_heard_where_nobody_says_it(out: Path, unnamed: list[dict[str, Any]]) -> None:
    """The model detects the language of a row without `lang`, such as French and German; an unknown language fails its
    item. Each text has a confidence, although its words have no times. A name that the model misspells is right if it
    is among the hotwords.
    """
    (failure,) = rows_of(out, "failures.jsonl").values()
    assert "does not know the language 'xx'" in failure["message"]
    transcripts = rows_of(out, "transcripts.jsonl")
    for row in unnamed:
        transcript = transcripts[row["id"]]
        rate = count_errors(row["text"], transcript["pred_text"], row["lang"]).rate
        assert rate is not None
        assert rate < 0.6
        assert 0.4 < transcript["confidence"] < 1
    assert "Basle" in transcripts[unnamed[-1]["id"]]["pred_text"]


def test_hints_and_the_task_stand_before_the_text(whisper: Path) -> None:
    """The tokens are those of transformers. The first hotwords that fit are taken, and the end of a long prompt, so
    that the text has all of its room.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(whisper, language="german", task="translate", predict_timestamps=False)
    family = Whisper(locate(str(whisper), None), resolve("whisper", {}))
    family.load(whisper)

    def decoder_prompt(hints: Hints) -> tuple[list[int], str | None]:
        request = family.request(Piece(np.zeros(16_000, np.float32), "de", hints=hints, task=TRANSLATE))
        return request.prompt["decoder_prompt"]["prompt_token_ids"], request.warning

    start = tokenizer.prefix_tokens
    assert decoder_prompt(Hints("Basle, Lubeck", "About printing.")) == (
        [*tokenizer.get_prompt_ids("Basle, Lubeck About printing.").tolist(), *start], None,
    )  # fmt: skip
    tokens, warning = decoder_prompt(Hints(", ".join(f"Term{number}" for number in range(100)), "word " * 300))
    assert len(tokens) == CONTEXT - TEXT_TOKENS
    assert tokens[-len(start) :] == start
    assert tokenizer.decode(tokens[1:]).startswith(" Term0, Term1, Term2")
    assert warning is not None
    assert warning.endswith("of 100 hotwords have no room")


def test_reproducible_results_do_not_depend_on_company(
    whisper: Path, speech: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Recordings have the same tokens and scores twice in one batch, in another order with half the company, and
    alone, without compiled code.

    On a CPU oneDNN chooses its kernels by the number of rows, so that scores agree in four digits only.
    """
    import soundfile
    from engine_runs import streamed

    rows = [row for row in speech if row["lang"] == "en" and row["audio_filepath"].endswith(".flac")][:4]
    audio = {row["id"]: soundfile.read(row["audio_filepath"], dtype="float32")[0] for row in rows}
    twice = {**audio, **{f"{name} again": samples.copy() for name, samples in audio.items()}}
    options = ("dtype=float32", "max_num_batched_tokens=2048", "watch=false", "reproducible=true")
    together = streamed(whisper, twice, tmp_path, *options, "max_num_seqs=3")
    mixed = streamed(whisper, dict([*audio.items()][::-2]), tmp_path, *options, "max_num_seqs=2")
    alone = streamed(whisper, dict([*audio.items()][:2]), tmp_path, *options, "max_num_seqs=1")
    others = {f"{name} again": name for name in audio}
    for results, names in ((together, others), (mixed, {name: name for name in mixed["texts"]}),
                           (alone, {name: name for name in alone["texts"]})):  # fmt: skip
        for name, first in names.items():
            assert results["tokens"][name] == together["tokens"][first]
            (scores,), (expected,) = results["logprobs"][name], together["logprobs"][first]
            assert scores == pytest.approx(expected, abs=1e-4)
    assert len({*together["texts"].values()}) == len(audio)
