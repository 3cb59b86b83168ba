"""Tests for engines: the registration and the choice, one result per chunk, and what stops a run."""

from __future__ import annotations

import dataclasses
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from conftest import ROOT, ManifestWriter, Recorder
from scripted_engine import ScriptedTestEngine
from whisper_base import needs_tiny_en

from voxbatch import engines
from voxbatch.config import Config
from voxbatch.engines import Feed, choice
from voxbatch.engines.engine_process import EngineProcess
from voxbatch.engines.results import GIVE_UP_AFTER, stop_if_all_fail
from voxbatch.errors import ConfigError, EngineError
from voxbatch.log import Log
from voxbatch.records import SAMPLING_RATE, Chunk, ChunkFailure, Hypothesis, Span
from voxbatch.runner import run
from voxbatch.storage import DEFAULT_STORES


def chunk(item: int) -> Chunk:
    return Chunk(item, 0, np.zeros(32_000, np.float32), Span(0, 32_000, 0, 32_000))


def fed(engine: engines.Engine, chunks: list[Chunk]) -> list[Hypothesis | ChunkFailure]:
    """Return all results of the engine for these chunks."""
    feed = Feed(10**9)
    for each in chunks:
        feed.put(each)
    feed.close()
    return [each for each in engine.stream(feed) if isinstance(each, Hypothesis | ChunkFailure)]


@pytest.mark.parametrize(("name", "text", "kind"), [("delay_s", "x", "float"), ("concurrency", "1.5", "int"),
                                                    ("shuffle", "yes", "bool")])  # fmt: skip
def test_an_option_of_the_wrong_type_is_refused(name: str, text: str, kind: str) -> None:
    """The error names the option, its value and the permitted type."""
    with pytest.raises(ConfigError) as caught:
        ScriptedTestEngine(None, {name: text})
    assert str(caught.value) == f"engine option {name}={text!r}: scripted takes a value of type {kind} here"


def test_choose_by_name() -> None:
    """The engine is chosen by name, or as the best installed one, with one line that says which and why."""
    assert choice.choose("scripted") == choice.EngineChoice("scripted", "scripted: asked for")
    with pytest.raises(ConfigError, match="engine 'x' is unknown; known are auto, "):
        choice.choose("x")


@needs_tiny_en
def test_auto_chooses_faster_whisper_without_a_gpu() -> None:
    """`auto` selects the embedded engine on a machine without a GPU."""
    assert choice.choose("auto").reason.startswith("faster-whisper: ")


@needs_tiny_en
def test_the_spec_needs_no_model() -> None:
    """The spec is known before the model is loaded."""
    spec = engines.create("faster-whisper", None, {}).spec
    assert (spec.model, spec.max_chunk_samples, spec.languages) == ("tiny.en", 300 * SAMPLING_RATE, frozenset({"en"}))
    assert (spec.license, spec.word_times) == ("MIT", True)
    assert spec.versions["faster-whisper"] == "1.2.1"


@needs_tiny_en
@pytest.mark.parametrize("model", ["/nowhere/model", "./model", "a/b/c"])
def test_a_missing_model_directory_is_refused(model: str) -> None:
    """A value that looks like a path is not looked up on a hub; a missing folder is refused."""
    with pytest.raises(ConfigError) as caught:
        engines.create("faster-whisper", model, {})
    reason = "no such folder; give a CTranslate2 model directory, gs:// or s3://, or a hub name"
    assert str(caught.value) == f"--model {model}: {reason}"


@needs_tiny_en
def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    """A folder without a model is refused with the name of the missing file."""
    with pytest.raises(ConfigError) as caught:
        engines.create("faster-whisper", str(tmp_path), {})
    assert str(caught.value) == f"--model {tmp_path}: no model.bin there; a CTranslate2 model directory has one"


@needs_tiny_en
def test_a_fine_tuned_model_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    """A folder in Hugging Face's format is answered with the converter, which copies the files that are there."""
    folder = tmp_path / "my model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes(b"{}")
    with pytest.raises(ConfigError) as caught:
        engines.create("faster-whisper", str(folder), {})
    command = f"ct2-transformers-converter --model '{folder}' --output_dir '{folder}-ct2' --copy_files tokenizer.json"
    assert str(caught.value) == (
        f"--model {folder}: no model.bin there; it is in Hugging Face's format, which takes a GPU and --engine vllm. "
        f"For a CPU convert it: `pip install transformers torch`, then `{command}`"
    )


@needs_tiny_en
def test_a_model_without_its_tokenizer_is_refused_with_the_missing_file(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A converted folder without tokenizer.json, which the hub cannot give, is answered with what to copy."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    folder = Path(shutil.copytree(base_model, tmp_path / "model", ignore=shutil.ignore_patterns("tokenizer.json")))
    reason = r"; there is no tokenizer\.json: copy that of the original model there$"
    with (
        closing(engines.create("faster-whisper", str(folder), {})) as engine,
        pytest.raises(EngineError, match=reason),
    ):
        fed(engine, [chunk(0)])


@needs_tiny_en
def test_whisper_reports_the_given_language_and_none_for_silence(base_model: Path) -> None:
    """A multilingual model reports the language that it is told for speech, and no language for silence."""
    speech, rate = soundfile.read(ROOT / "examples" / "recordings" / "weather.flac", dtype="float32")
    waveforms = [np.zeros(SAMPLING_RATE * 3, np.float32), soxr.resample(speech, rate, SAMPLING_RATE)]
    chunks = [
        Chunk(item, 0, samples, Span(0, len(samples), 0, len(samples)), lang)
        for item, (samples, lang) in enumerate(zip(waveforms, (None, "nl"), strict=True))
    ]
    with closing(engines.create("faster-whisper", str(base_model), {})) as engine:
        results = fed(engine, chunks)
    assert {result.item: getattr(result, "language", "failed") for result in results} == {0: None, 1: "nl"}


def test_the_run_stops_if_the_first_chunks_all_fail() -> None:
    """Failures are held back until a chunk succeeds; if all of the first chunks fail, the run stops
    and records none.
    """
    failures = [ChunkFailure(i // 4, i % 4, "no", retryable=True) for i in range(GIVE_UP_AFTER)]
    good = Hypothesis(0, 99, "yes")
    assert list(stop_if_all_fail([*failures[1:], good, *failures])) == [*failures[1:], good, *failures]
    assert list(stop_if_all_fail(failures[1:])) == failures[1:]
    # permanent failures of the chunks themselves
    unfit = [ChunkFailure(0, i, "too long") for i in range(2 * GIVE_UP_AFTER)]
    assert list(stop_if_all_fail(unfit)) == unfit
    with pytest.raises(EngineError, match="the first 8 chunks all failed, the last with: no"):
        list(stop_if_all_fail(failures))


def test_one_recording_does_not_stop_the_run() -> None:
    """If all chunks of one recording fail, that recording fails, and the others are transcribed, also if it is the
    first one or the only one.
    """
    failures = [ChunkFailure(7, i, "no", retryable=True) for i in range(2 * GIVE_UP_AFTER)]
    good = [Hypothesis(8, i, "yes") for i in range(3)]
    assert list(stop_if_all_fail([*failures, *good])) == [*failures, *good]
    assert list(stop_if_all_fail(failures)) == failures
    with pytest.raises(EngineError, match="the first 17 chunks all failed, the last with: no"):
        list(stop_if_all_fail([*failures, ChunkFailure(8, 0, "no", retryable=True)]))


def test_the_engine_cache_returns_the_same_engine() -> None:
    """The engine cache returns the same engine for the same arguments, and closes it for others."""
    engine_cache = engines.EngineCache()
    first = engine_cache.get("scripted", None, {"delay_s": "0"}, DEFAULT_STORES)
    assert engine_cache.get("scripted", None, {"delay_s": "0"}, DEFAULT_STORES) is first
    assert engine_cache.get("scripted", None, {"delay_s": "1"}, DEFAULT_STORES) is not first
    engine_cache.close()
    assert engine_cache.get("scripted", None, {"delay_s": "1"}, DEFAULT_STORES) is not first


@needs_tiny_en
def test_a_kind_of_work_has_its_own_engine_of_a_name() -> None:
    """The table of a kind decides which engine a name means, also in a cache that holds another one of that name."""
    table = {"faster-whisper": engines.Registration(class_path="scripted_engine:ScriptedTestEngine")}
    engine_cache = engines.EngineCache()
    engine = engine_cache.get("faster-whisper", "tiny", {}, DEFAULT_STORES, table)
    assert (engine.spec.name, engine.spec.model) == ("scripted", "tiny")
    assert engine_cache.get("faster-whisper", None, {}, DEFAULT_STORES).spec.name == "faster-whisper"
    engine_cache.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("uses_language", "lang", "language", "told"),
    [(False, "de", None, 1), (False, None, "de", 1), (False, None, None, 0), (True, "de", "de", 0)],
)
def test_a_run_warns_if_the_language_is_not_used(
    manifest: ManifestWriter, tmp_path: Path, uses_language: bool, lang: str | None, language: str | None, told: int
) -> None:
    """A run warns once, and only if a language was given to a model that detects the language itself."""
    engine = ScriptedTestEngine(None, {})
    engine.spec = dataclasses.replace(engine.spec, uses_language=uses_language)
    engine_cache = engines.EngineCache()
    engine_cache._engine, engine_cache._asked = engine, (engines.registered("scripted"), None, {}, DEFAULT_STORES)
    source = manifest(0.5, 0.5, **({"lang": lang} if lang else {}))
    lines: list[str] = []
    config = Config(source=str(source), out=str(tmp_path / "out"), engine="scripted", language=language, decoders=1)
    run(config, Log(write=lines.append), engine_cache=engine_cache)
    assert sum("recognises the language by itself" in line for line in lines) == told


@needs_tiny_en
@pytest.mark.slow
def test_a_cached_engine_is_loaded_once(recording: Recorder, tmp_path: Path) -> None:
    """Two runs with a shared engine cache load the model once; a run with its own cache unloads it."""
    recording("in/a.wav", 1)
    engine_cache, log = engines.EngineCache(), Log(quiet=True)
    used, pids = list[EngineProcess](), list[int | None]()
    for out in ("one", "two"):
        config = Config(source=str(tmp_path / "in"), out=str(tmp_path / out), engine="faster-whisper", decoders=1)
        run(config, log, engine_cache=engine_cache)
        engine = engine_cache.get("faster-whisper", None, {}, config.stores)
        assert isinstance(engine, EngineProcess)
        used.append(engine)
        pids.append(engine.pid)
    assert pids[0] == pids[1]
    assert pids[0] is not None
    engine_cache.close()
    assert used[-1].pid is None
