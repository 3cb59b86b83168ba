"""Real words through vLLM: the whole main job with real Whisper weights, beside transformers on the same weights."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sounds
from conftest import ROOT, Voxbatch

from voxbatch.audio import decode
from voxbatch.chunking import cut_into_chunks
from voxbatch.scoring import CorpusScore, count_errors
from voxbatch.storage import open_recording

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SUPPORT = Path(__file__).parents[1] / "support" / "engine_vllm"
WINDOW = 480_000
SLOW_TRANSFORMERS = """
import sys, threading, time

def delay(event, arguments):
    if event == "import" and arguments[0] == "transformers.utils" and threading.current_thread().name != "vllm-parent":
        time.sleep(30)

sys.addaudithook(delay)
"""
"""A sitecustomize.py: an import of transformers takes long, except in the thread that imports vLLM."""
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "2",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture(scope="module")
def whisper() -> Path:
    """Return the folder of multilingual Whisper tiny. It is made once, and kept in the user's cache."""
    import whisper_tiny

    try:
        return whisper_tiny.whisper_tiny(whisper_tiny.default_cache())
    except whisper_tiny.UnavailableError as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def rows(corpus: Path) -> list[dict[str, Any]]:
    """Return every tenth row of speech/'s manifest, or all of them if VOXBATCH_TEST_ALL is set."""
    return _speech(corpus) if os.environ.get("VOXBATCH_TEST_ALL") else _speech(corpus)[5::10]


def _speech(corpus: Path) -> list[dict[str, Any]]:
    """Return the rows of speech/'s manifest with absolute paths."""
    folder = corpus / "speech"
    found = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    return [
        {**row, "id": row["audio_filepath"], "audio_filepath": str(folder / row["audio_filepath"])} for row in found
    ]


@pytest.fixture(scope="module")
def reference(whisper: Path, rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return transformers' text of each row, chunk by chunk. It takes minutes, so it is kept in the user's cache."""
    chunks = [(i, samples) for i, row in enumerate(rows) for samples in _chunks(row["audio_filepath"])]
    given = {
        "samples": np.concatenate([samples for _, samples in chunks]),
        "lengths": np.array([len(samples) for _, samples in chunks]),
        "languages": np.array([rows[i]["lang"] for i, _ in chunks]),
    }
    digest = hashlib.sha256((SUPPORT / "whisper_reference.py").read_bytes())
    for array in given.values():
        digest.update(array.tobytes())
    kept = whisper.parent / f"{whisper.name}-reference-{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        _transcribe(whisper, given, kept, tmp_path_factory.mktemp("reference"))
    texts: list[list[str]] = [[] for _ in rows]
    for (i, _), result in zip(chunks, json.loads(kept.read_text()), strict=True):
        texts[i].append(result["text"])
    return [" ".join(filter(None, each)) for each in texts]


def _chunks(path: str) -> list[np.ndarray]:
    """Return the chunks that the main job cuts for an engine without word times."""
    with closing(open_recording(path)) as recording:
        return [samples for samples, _ in cut_into_chunks(decode(recording, path), WINDOW, 0)]


def _transcribe(model: Path, given: dict[str, np.ndarray], kept: Path, folder: Path) -> None:
    sounds.save(folder / "chunks.npz", given)
    command: list[str | Path] = [
        sys.executable,
        SUPPORT / "whisper_reference.py",
        model,
        folder / "chunks.npz",
        folder / "out.json",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert ended.returncode == 0, ended.stderr[-3000:]
    partial = kept.with_suffix(".partial")
    partial.write_text((folder / "out.json").read_text())
    partial.replace(kept)


def test_the_main_job_is_as_good_as_transformers(
    voxbatch: Voxbatch, whisper: Path, rows: list[dict[str, Any]], reference: list[str], tmp_path: Path
) -> None:
    """Every row of real recordings is done, with a word error rate within half a point of transformers on the same
    weights.

    The job is `voxbatch run --engine vllm`.
    """
    score = CorpusScore()
    for row, text in zip(rows, reference, strict=True):
        score.add(row["lang"], count_errors(row["text"], text, row["lang"]))
    expected = score.to_dict()["words"]["wer"]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["dtype=float32", "enforce_eager=true", "max_num_batched_tokens=2048"]
    flags = [flag for option in options for flag in ("--engine-option", option)]
    command = ["run", tmp_path / "m.jsonl", "-o", tmp_path / "out", "--engine", "vllm", "--model", whisper]
    ended = voxbatch(*command, "--allow-outside", *flags, env=ENVIRONMENT, timeout=1200)
    assert ended.returncode == 0, ended.stderr[-3000:]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["done"], summary["failed"]) == (len(rows), 0)
    wer = summary["score"]["words"]["wer"]
    print(f"WER {wer:.2%} through vLLM, {expected:.2%} through transformers; RTFx {summary['rtfx']}")
    assert abs(wer - expected) <= 0.005
    assert expected < 0.25


def test_vllm_is_not_imported_beside_transformers(
    voxbatch: Voxbatch, whisper: Path, corpus: Path, tmp_path: Path
) -> None:
    """The tokenizer is not loaded while another thread imports vLLM, which would see half of transformers and fail."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW_TRANSFORMERS)
    (tmp_path / "m.jsonl").write_text(json.dumps(_speech(corpus)[0]) + "\n")
    command = ["run", tmp_path / "m.jsonl", "-o", tmp_path / "out", "--engine", "vllm", "--model", whisper]
    flags = ["--engine-option", "dtype=float32", "--engine-option", "enforce_eager=true"]
    path = f"{tmp_path / 'slow'}:{ROOT}"
    ended = voxbatch(*command, "--allow-outside", *flags, env={**ENVIRONMENT, "PYTHONPATH": path}, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]


def test_the_language_is_heard_where_nobody_says_it(
    voxbatch: Voxbatch, whisper: Path, corpus: Path, tmp_path: Path
) -> None:
    """The model detects the language of a row without `lang`, such as French and German; an unknown language fails its
    item. Each text has a confidence, although its words have no times."""
    picked = [
        next(r for r in _speech(corpus) if r["lang"] == lang and r["duration"] > 5) for lang in ("fr", "de", "en")
    ]
    lines = [{key: value for key, value in row.items() if key != "lang"} for row in picked]
    lines.append({**lines[-1], "id": "unknown", "lang": "xx"})
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    command = ["run", tmp_path / "m.jsonl", "-o", tmp_path / "out", "--engine", "vllm", "--model", whisper]
    flags = ["--engine-option", "dtype=float32", "--engine-option", "enforce_eager=true"]
    ended = voxbatch(*command, "--allow-outside", *flags, env=ENVIRONMENT)
    assert ended.returncode == 3, ended.stderr[-3000:]
    (failure,) = [json.loads(line) for line in (tmp_path / "out" / "failures.jsonl").read_text().splitlines()]
    assert "does not know the language 'xx'" in failure["message"]
    for line in (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines():
        row = json.loads(line)
        lang = next(each["lang"] for each in picked if each["id"] == row["id"])
        rate = count_errors(row["text"], row["pred_text"], lang).rate
        assert rate is not None
        assert rate < 0.6
        assert 0.4 < row["confidence"] < 1
