"""Tests for the Python interface: one recording, a whole run, its results while it runs, and scores."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import psutil
import pytest
import soundfile
from conftest import ROOT, ManifestWriter, Recorder, Voxbatch, environment
from holds import Hold

import voxbatch as vb
from voxbatch.api.kept_model import keeper
from voxbatch.api.keyword_types import AskKeywords, RunKeywords, SpeakKeywords, StoreKeywords, TranscribeKeywords
from voxbatch.config import ModelChoice, RunOptions
from voxbatch.errors import BadLine, EmptySourceError
from voxbatch.runner import workload
from voxbatch.runner.job import Job
from voxbatch.storage import StoreOptions
from voxbatch.storage.columns import ItemSet
from voxbatch.storage.temporary_files import TemporaryFileError

pytestmark = pytest.mark.slow
RECORDINGS = ROOT / "examples" / "recordings"


@pytest.fixture(autouse=True)
def no_kept_model() -> Iterator[None]:
    """Unload the model that a call keeps for the next one."""
    yield
    keeper.unload()


def outputs(out: Path) -> dict[str, bytes]:
    """Return the merged outputs of a run."""
    return {path.name: path.read_bytes() for path in out.glob("*.jsonl")}


def thread_names() -> list[str]:
    """Return the names of the threads of this process."""
    return [thread.name for thread in threading.enumerate()]


def script(text: str, folder: Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a program that a user wrote, in a folder of its own, and return the ended process."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, path], cwd=folder, env=environment(), capture_output=True, text=True, timeout=240, **settings
    )


# ── one recording ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_recording_gives_the_transcript_of_a_run(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A file, and its samples as an array of any type, give the transcript that the command writes, and no file."""
    source = RECORDINGS / "weather.flac"
    folder = tmp_path / "recordings"
    folder.mkdir()
    (folder / source.name).symlink_to(source)
    assert voxbatch("run", folder, "-o", "out").returncode == 0
    (expected,) = vb.read_results(tmp_path / "out")
    assert isinstance(expected.outcome, vb.Transcript)
    before = sorted(tmp_path.rglob("*"))
    samples, rate = soundfile.read(source, dtype="int16")
    with vb.Transcriber(model=None) as transcriber:
        assert transcriber.transcribe(os.path.relpath(source)) == expected.outcome
        assert transcriber.transcribe(samples, sampling_rate=rate) == expected.outcome
        floats = np.stack([samples, samples]).astype(np.float64) / 32_768
        assert transcriber.transcribe(floats, sampling_rate=rate) == expected.outcome
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("dtype", ["int16", "int32", "float32", ">f4", "float64"])
def test_an_array_is_decoded_without_a_loss(dtype: str, recording: Recorder) -> None:
    """Each type of samples has the duration and channels of the array; a part and a channel can be taken."""
    samples, rate = soundfile.read(recording("a.wav", 40.0), dtype="float32")
    scale = {"int16": 32_767, "int32": 2**31 - 1}.get(dtype, 1)
    array = (np.stack([samples, samples * 0]) * scale).astype(dtype)
    with vb.Transcriber(engine="scripted", engine_options={"max_chunk_s": 15}) as transcriber:
        whole = transcriber.transcribe(array, sampling_rate=rate)
        assert (whole.audio_duration, whole.warnings) == (40.0, ())
        part = transcriber.transcribe(array, sampling_rate=rate, offset=10, duration=5)
        assert (part.audio_duration, part.words[0].start) == (5.0, 10.0)
        assert transcriber.transcribe(array, sampling_rate=rate, channel=1).text == ""
        one = transcriber.transcribe(array[0], sampling_rate=rate)
        assert one == transcriber.transcribe(array, sampling_rate=rate, channel=0)


@pytest.mark.parametrize(
    ("audio", "rate", "reason"),
    [
        (np.zeros(100, np.float32), None, "sampling_rate is None; give the array's samples per second"),
        (np.zeros((100, 2), np.float32), 16_000, "shape (100, 2); give (num_samples,) or (num_channels, num_samples)"),
        (np.zeros((1, 2, 3), np.float32), 16_000, "the array has the shape (1, 2, 3)"),
        (np.zeros(100, np.int64), 16_000, "the array is of type int64; give one of int16, int32, float32, float64"),
        (np.full(100, 3e4, np.float32), 16_000, "the highest sample of the array is 30000; floats have the full scale"),
        (np.full(100, np.nan, np.float32), 16_000, "the highest sample of the array is nan"),
        (["a.wav", "b.wav"], None, "audio is of type list; give one path, address, file, bytes or array"),
        ("a.wav", 16_000, "sampling_rate=16000 is for arrays"),
        ([0.0, 0.1], 16_000, 'audio is of type list; give samples as an array: numpy.array(samples, dtype="float32")'),
    ],
)
def test_wrong_audio_is_refused(audio: Any, rate: int | None, reason: str) -> None:
    """An argument that is no recording is refused with what is allowed."""
    with vb.Transcriber(engine="scripted") as transcriber, pytest.raises(vb.ConfigError, match=re.escape(reason)):
        transcriber.transcribe(audio, sampling_rate=rate)


def test_an_estimate_has_what_out_lacks(manifest: ManifestWriter, tmp_path: Path) -> None:
    """An estimate has the figures of a dry run as numbers, and writes nothing; a wrong option is told as one."""
    source, out = manifest(1, 2, 4), tmp_path / "out"
    options: dict[str, Any] = {"engine": "scripted", "expected_rtfx": 2, "usd_per_hour": 3600}
    (plan,) = vb.estimate(source, out, **options)
    assert isinstance(plan, vb.RunEstimate)
    assert (plan.items, plan.audio_s, plan.wall_s, plan.usd, plan.before) == (3, 7.0, 3.5, 3.5, "")
    assert not out.exists()
    vb.run(source, out, limit=2, **options)
    (plan,) = vb.estimate(source, out, **options)
    assert (plan.items, plan.audio_s, plan.before) == (1, 4.0, "1 new; 2 done before, kept as they are")
    with pytest.raises(vb.ConfigError, match="option beam: unknown"):
        vb.estimate(source, out, beam=5)  # type: ignore[call-arg]


def test_a_recording_that_fails_raises_its_failure(tmp_path: Path, recording: Recorder) -> None:
    """The exception has the class and the message of the item's failure, and the next recording succeeds."""
    text = tmp_path / "text.wav"
    text.write_text("no audio")
    options: dict[str, Any] = {"engine": "scripted", "engine_options": {"fail_items": "0"}}
    with vb.Transcriber(engine="scripted") as transcriber:
        with pytest.raises(vb.AudioError, match=r"cannot open .*/nope\.mp3: it does not exist$") as missing:
            transcriber.transcribe(tmp_path / "nope.mp3")
        assert (type(missing.value), missing.value.retryable) == (vb.AudioError, False)
        with pytest.raises(vb.AudioError, match=r"cannot decode .*text\.wav"):
            transcriber.transcribe(text)
        with pytest.raises(vb.ConfigError, match="`offset` is -1; it must be seconds"):
            transcriber.transcribe(text, offset=-1)
        assert transcriber.transcribe(recording("a.wav", 2)).words
    with pytest.raises(vb.ItemError, match="scripted to fail") as failed:
        vb.transcribe(recording("a.wav", 2), **options)
    assert failed.value.retryable
    with pytest.raises(vb.UsageError, match="this Transcriber is closed"):
        transcriber.transcribe(text)


def test_threads_share_a_transcriber_and_its_decoder(recording: Recorder) -> None:
    """Calls from several threads wait for each other; the decoder process stays, and ends with the transcriber."""
    paths = [recording(f"{i}.wav", 2 + i) for i in range(4)]
    durations, before = [0.0] * 4, set(psutil.Process().children())  # the servers of other tests may run
    with vb.Transcriber(engine="scripted") as transcriber:

        def transcribe(index: int) -> None:
            durations[index] = transcriber.transcribe(paths[index]).audio_duration

        threads = [threading.Thread(target=transcribe, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(psutil.Process().children()) - before) == 1
    assert durations == [2.0, 3.0, 4.0, 5.0]
    assert set(psutil.Process().children()) - before == set()


def test_an_interrupt_stops_a_recording(recording: Recorder, tmp_path: Path) -> None:
    """Ctrl-C raises KeyboardInterrupt, ends the work, and leaves the transcriber usable."""
    path, hold = recording("a.wav", 60), Hold(tmp_path / "hold")

    def interrupt() -> None:
        hold.reached()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with vb.Transcriber(engine="scripted", engine_options={"max_chunk_s": 15, **hold.engine_options}) as transcriber:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            transcriber.transcribe(path)
        assert "engine" not in thread_names()
        hold.release()
        assert transcriber.transcribe(path, duration=2).audio_duration == 2


# ── a run ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_writes_what_the_command_writes(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """`run` gives the outputs of the command, a summary, and the progress in the calling thread."""
    path = manifest(1.5, 40, None, text="w0 w1")
    command = voxbatch(
        "run", path, "-o", "by_command", "--engine", "scripted", "--formats", "srt,txt", "--language", "en"
    )
    assert command.returncode == 3
    seen: list[tuple[int, str]] = []
    summary = vb.run(
        path, tmp_path / "out", engine="scripted", formats=["srt", "txt"], language="en",
        on_progress=lambda progress: seen.append((progress.committed, threading.current_thread().name)),
    )  # fmt: skip
    assert (summary.items, summary.done, summary.failed) == (3, 2, 1)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "by_command")
    assert sorted(os.listdir(tmp_path / "out")) == sorted(os.listdir(tmp_path / "by_command"))
    assert summary.score is not None
    assert seen[-1] == (3, threading.current_thread().name)
    again = vb.run(path, tmp_path / "out", engine="scripted", formats="srt,txt", language="en")
    assert (again.done, again.to_dict()["outputs"]) == (2, summary.to_dict()["outputs"])


def test_several_sources_are_one_run(recording: Recorder, tmp_path: Path) -> None:
    """A list of recordings, a recording and a pattern are sources, as on the command line."""
    paths = [recording(f"{name}.wav", 1.0) for name in "abc"]
    several = vb.run(paths[:2], tmp_path / "several", engine="scripted")
    assert (several.done, vb.run([str(paths[0])], tmp_path / "one", engine="scripted").done) == (2, 1)
    assert vb.run(tmp_path / "*.wav", tmp_path / "pattern", engine="scripted").done == 3
    assert vb.run(paths, engine="scripted").done == 3
    assert (tmp_path / f"{tmp_path.name}.voxbatch" / "summary.json").exists()
    with pytest.raises(vb.ConfigError, match="the list of sources is empty"):
        vb.run([])


def test_the_durations_that_no_manifest_gives_are_estimated(
    manifest: ManifestWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that shows the progress gets the same estimate as the bar of the command line."""
    estimated, sampling = [], workload.sampling

    def noted(job: Job, remaining: ItemSet, progress: vb.Progress) -> AbstractContextManager[None]:
        estimated.append(remaining.count())
        return sampling(job, remaining, progress)

    monkeypatch.setattr(workload, "sampling", noted)
    vb.run(manifest(1.0, 1.0), out=tmp_path / "out", engine="scripted", report=False)
    assert estimated == [2]


def test_results_come_while_the_run_is_in_progress(manifest: ManifestWriter, tmp_path: Path) -> None:
    """The loop yields each item once, the first of them before the run ends; a second loop yields all of them again."""
    path = manifest(*[1.0] * 30, None, mine="kept")
    out = tmp_path / "out"
    options: dict[str, Any] = {"engine": "scripted", "engine_options": {"delay_s": 0.05}, "part_items": 1}
    first = 0
    with vb.start(path, out, **options) as run:
        seen = []
        for result in run:
            first = first or (run.progress.committed if run.progress else 0)
            seen.append(result)
        assert run.wait().done == 30
        assert [result.id for result in run] == [result.id for result in seen]
    assert first < 31
    assert sorted(result.id for result in seen) == sorted(f"r{i}.wav" for i in range(31))
    failures = [result for result in seen if result.failure]
    assert [(each.id, each.line["mine"], each.transcript) for each in failures] == [("r30.wav", "kept", None)]
    assert sum(result.transcript is result.outcome for result in seen) == 30
    assert sorted(vb.read_results(out), key=lambda each: each.id) == sorted(seen, key=lambda each: each.id)


def test_leaving_the_loop_stops_the_run_and_the_next_continues(manifest: ManifestWriter, tmp_path: Path) -> None:
    """Breaking out of the loop commits the finished items; the next run yields these first and then the others."""
    path = manifest(*[1.0] * 40)
    out = tmp_path / "out"
    options: dict[str, Any] = {"engine": "scripted", "engine_options": {"delay_s": 0.1}, "part_items": 2}
    with vb.start(path, out, **options) as run:
        for _ in run:
            break
    with pytest.raises(vb.Cancelled, match="was stopped; start it again to continue"):
        run.wait()
    assert "engine" not in thread_names()
    committed = [result.id for result in vb.read_results(out)]
    assert 2 <= len(committed) < 40
    with vb.start(path, out, **options) as run:
        ids = [result.id for result in run]
        assert run.progress is not None
        assert run.progress.resumed == len(committed)
    assert sorted(ids[: len(committed)]) == sorted(committed)
    assert sorted(ids) == sorted(f"r{i}.wav" for i in range(40))
    whole = vb.run(path, tmp_path / "whole", **options)
    assert outputs(out) == outputs(tmp_path / "whole")
    assert whole.done == 40


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_an_exception_of_the_callback_stops_the_run(
    kind: type[BaseException], manifest: ManifestWriter, tmp_path: Path
) -> None:
    """An exception of on_progress, and Ctrl-C, which raises one there too, pass through; the run can continue."""
    path = manifest(*[1.0] * 20)

    def interrupt(progress: vb.Progress) -> None:
        if progress.done >= 3:
            raise kind("enough")

    options: dict[str, Any] = {"engine": "scripted", "engine_options": {"delay_s": 0.1, "concurrency": 1}}
    with pytest.raises(kind, match="enough"):
        vb.run(path, tmp_path / "out", on_progress=interrupt, **options)
    assert len(list(vb.read_results(tmp_path / "out"))) >= 3, "the finished items are committed"
    assert vb.run(path, tmp_path / "out", **options).done == 20


def test_errors_are_those_of_the_command(manifest: ManifestWriter, recording: Recorder, tmp_path: Path) -> None:
    """A wrong manifest, an OUT of another run and an engine that dies raise, also in a loop."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"path": "a.wav"}\n')
    with pytest.raises(vb.ManifestError, match="rename `path` to `audio_filepath`"):
        vb.run(bad, engine="scripted")
    path, out = manifest(1.0, 2.0), tmp_path / "out"
    options: dict[str, Any] = {"engine": "scripted", "engine_options": {"die_after": 1}}
    with pytest.raises(vb.RunError, match="scripted to die after 1 results"):
        vb.run(path, out, **options)
    with pytest.raises(vb.EngineError, match="scripted to die"), vb.start(path, tmp_path / "other", **options) as run:
        list(run)
    vb.run(path, tmp_path / "done", engine="scripted")
    with pytest.raises(vb.RunMismatchError, match="done"):
        vb.run(path, tmp_path / "done", engine="scripted", language="de")
    with pytest.raises(vb.UsageError, match="there is no run here"):
        vb.read_results(tmp_path / "nothing")
    with pytest.raises(vb.UsageError, match="nothing does not exist"):
        vb.score(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"modle": "tiny.en"}, "option modle: unknown; did you mean model?"),
        ({"xyz": 1}, "option xyz: unknown; the options are "),
        ({"limit": "10"}, "option limit is '10'; it must be a whole number or None"),
        ({"limit": True}, "option limit is True; it must be a whole number or None"),
        ({"formats": 3}, "option formats is 3; it must be a string or a list of strings"),
        ({"engine_options": "beam_size=1"}, "option engine_options is 'beam_size=1'; it must be a dictionary"),
        ({"limit": 0}, "limit is 0; it must be at least 1"),
        ({"shard": 1}, "option shard: unknown. Only the command has this: voxbatch run --help-all"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], reason: str, manifest: ManifestWriter) -> None:
    """An unknown option, a value of another type and a value out of range are refused with what is allowed."""
    with pytest.raises(vb.ConfigError, match=re.escape(reason)):
        vb.run(manifest(1.0), **{"engine": "faster-whisper", **options})


def test_the_keywords_are_the_options_of_a_run() -> None:
    """Every option of a run and of the stores is a keyword, except those that divide a run between machines, and the
    settings of other kinds of work."""
    kinds = (ModelChoice, RunOptions, StoreOptions)
    names = {entry.name for kind in kinds for entry in fields(kind)}
    assert set(get_type_hints(RunKeywords)) == names - {"stores", "shard", "shards", "own"}
    assert set(get_type_hints(TranscribeKeywords)) < set(get_type_hints(RunKeywords))


def test_the_types_of_the_keywords_are_those_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """voxbatch/api/keyword_types.py is what `make docs` writes."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    from make_keyword_types import MODULE, module

    assert MODULE.read_text() == module()


def test_a_profile_gives_defaults(manifest: ManifestWriter, tmp_path: Path) -> None:
    """A profile's settings rank below the arguments, and its engine options are only for its engine."""
    summary = vb.run(manifest(1.0), tmp_path / "out", profile="cpu", engine="scripted", part_items=7)
    config = summary.facts.config
    assert (config["profile"], config["engine"], config["part_items"]) == ("cpu", "scripted", 7)


# ── in other programs ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_script_needs_no_main_guard_and_prints_nothing_else(manifest: ManifestWriter, tmp_path: Path) -> None:
    """A plain script runs once, prints only what it prints itself, and leaves its signal handlers alone."""
    manifest(1.0, None)
    done = script(
        """
        import signal, sys
        import voxbatch
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
        print("begin")
        print(voxbatch.transcribe("r0.wav", engine="scripted").text)
        print(voxbatch.run("m.jsonl", "out", engine="scripted").failed)
        print(before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)])
        heavy = ("click", "rich", "vllm", "faster_whisper", "google.cloud", "boto3")
        print([name for name in heavy if name in sys.modules])
        """,
        tmp_path,
    )
    assert (done.stdout.splitlines(), done.stderr, done.returncode) == (["begin", "w0 w1", "1", "True", "[]"], "", 0)


def test_messages_of_a_run_go_to_logging(
    manifest: ManifestWriter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The events of a run are messages of the logger voxbatch, with their severities."""
    caplog.set_level(logging.INFO, "voxbatch")
    vb.run(manifest(1.0), tmp_path / "out", engine="scripted")
    found = {(record.levelname, record.getMessage()) for record in caplog.records}
    assert any(level == "INFO" and text.startswith("engine scripted: asked for") for level, text in found)


def test_ctrl_c_ends_a_script_in_order(manifest: ManifestWriter, tmp_path: Path) -> None:
    """Ctrl-C in a script with a real engine raises KeyboardInterrupt after the finished items are committed, and
    Python exits without a crash."""
    path = tmp_path / "program.py"
    path.write_text(
        "import voxbatch\n"
        "def show(progress):\n"
        "    print(progress.done, flush=True)\n"
        f"voxbatch.run({str(RECORDINGS)!r}, 'out', on_progress=show, engine='faster-whisper')\n"
    )
    with subprocess.Popen(
        [sys.executable, path], cwd=tmp_path, env=environment(), text=True, stdout=-1, stderr=-1
    ) as process:
        assert process.stdout
        assert process.stderr
        for line in process.stdout:
            if line.strip() == "2":
                process.send_signal(signal.SIGINT)
        stderr = process.stderr.read()
    assert stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert process.returncode == -signal.SIGINT
    assert 2 <= len(list(vb.read_results(tmp_path / "out"))) < 9


def test_asyncio_and_other_threads(manifest: ManifestWriter, tmp_path: Path) -> None:
    """Two runs side by side in threads of an asyncio program both end well."""

    async def both() -> list[vb.Summary]:
        calls = [
            asyncio.to_thread(vb.run, manifest(1.0, 2.0), tmp_path / name, engine="scripted") for name in ("a", "b")
        ]
        return await asyncio.gather(*calls)

    assert [summary.done for summary in asyncio.run(both())] == [2, 2]
    assert outputs(tmp_path / "a") == outputs(tmp_path / "b")


# ── scores ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_score_of_texts() -> None:
    """The score of two lists is the sum over the pairs, normalised by the rules of the language."""
    score = vb.score(["Mr. Grey's colour", "a red ball"], ["mister gray is color", "a ball here"], language="en")
    tally = score.total("word")
    assert (tally.counts.errors, tally.counts.reference_length) == (2, 7)
    assert score.wer == pytest.approx(2 / 7, abs=1e-6)
    assert vb.score(["Grün ist es."], ["grün ist das"], language="German").by_language.keys() == {"de"}


@pytest.mark.parametrize(
    ("arguments", "options", "reason"),
    [
        ((["a", "b"], ["a"]), {"language": "en"}, "there are 2 references and 1 hypotheses; give as many of both"),
        (("a", "a"), {"language": "en"}, "score takes two lists of texts; for one pair give score([reference]"),
        ((["a"], ["a"]), {}, "score needs the language of the texts, such as language='en'"),
        ((["a"],), {}, "score needs the hypotheses, too"),
        ((["a"], ["a"]), {"language": "englsh"}, "language 'englsh': no known language; did you mean english (en)?"),
        (("nothing",), {}, "does not exist"),
        ((["a", None], ["a", "b"]), {"language": "en"}, 'reference 2 of 2 is None; give a text, or "" for none'),
        ((["a"], [float("nan")]), {"language": "en"}, 'hypothesis 1 of 1 is nan; give a text, or "" for none'),
        (
            (["a"], ["a"]),
            {"language": "en", "normalizer": str.split},
            "the normalizer made ['a'] of 'a'; it must return a text",
        ),
        (
            (["a"], ["a"]),
            {"language": "en", "normalizer": str.lower, "case": True},
            "the normalizer is a function, which decides about case and punctuation itself; leave out both",
        ),
        ((["a"], ["a"]), {"language": "en", "replace": {"a": 1}}, "replace: 'a': 1 is not a replacement"),
        ((["a"], ["a"]), {"language": "en", "replace": {}}, "replace: holds no replacement"),
    ],
)
def test_wrong_texts_are_refused(arguments: tuple[Any, ...], options: dict[str, Any], reason: str) -> None:
    """Arguments that cannot be scored are refused with what is allowed."""
    with pytest.raises((vb.UsageError, OSError), match=re.escape(reason)):
        vb.score(*arguments, **options)


@dataclass
class Spoken:
    """A normaliser with a setting, whose objects have no hash."""

    unsaid: str

    def __call__(self, text: str) -> str:
        return text.lower().replace(self.unsaid, "")


def test_a_normalizer_may_be_a_function() -> None:
    """A function of the caller takes the place of all rules, in words and in characters, and the result names it."""
    references, hypotheses = ["Its colour, uh, is GREY"], ["its colour, is grey"]
    assert vb.score(references, hypotheses, language="en", normalizer=str.lower).wer == 0.2
    spoken = vb.score(references, hypotheses, language="en", normalizer=Spoken("uh, "))
    assert (spoken.wer, spoken.normalizer("en")) == (0, "the rules of test_api.Spoken.__call__")
    assert vb.score(references, hypotheses, language="en", normalizer=lambda text: "same").wer == 0
    assert vb.score(["天气 A"], ["天气 a"], language="zh", normalizer=str.lower).total("character").rate == 0
    replaced = vb.score(["OK then"], ["okay then"], language="en", normalizer=str.lower, replace={"ok": "okay"})
    assert replaced.wer == 0


def test_replacements_are_a_file_or_a_dictionary(tmp_path: Path) -> None:
    """`replace` takes the words of the file as a dictionary, too, and names it in the rules."""
    words = {"ok": "okay", "uh": ""}
    (tmp_path / "words.json").write_text(json.dumps(words))
    texts = ["okay then"], ["uh, ok then"]
    of_dictionary = vb.score(*texts, language="de", replace=words)
    assert (of_dictionary.wer, vb.score(*texts, language="de", replace=tmp_path / "words.json").wer) == (0, 0)
    assert vb.score(*texts, language="de").wer == 1
    assert re.search(r"2 replacements of Python \(SHA-256 [0-9a-f]{8}…\)", of_dictionary.normalizer("de"))


def test_score_of_a_run_and_of_a_file(manifest: ManifestWriter, tmp_path: Path) -> None:
    """The score of an OUT is the run's own; that of a file takes only its lines, and other references if given."""
    out = tmp_path / "out"
    summary = vb.run(manifest(1.5, None, text="w0 w1", lang="en"), out, engine="scripted")
    assert vb.score(out) == summary.score
    assert vb.score(str(out)).total("word").missing == 1
    assert vb.score(out / "transcripts.jsonl").total("word").missing == 0
    references = tmp_path / "references.jsonl"
    references.write_text('{"id": "r0.wav", "text": "w0 w1 w2", "lang": "en"}\n')
    assert vb.score(out, ref=references).wer == 0


# ── types ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_users_program_passes_mypy_strict(tmp_path: Path) -> None:
    """A user's program has types: right use passes mypy --strict, and wrong use does not."""
    program = tmp_path / "typed.py"
    program.write_text(
        textwrap.dedent(
            """
            import numpy as np
            from voxbatch import Failure, Transcriber, read_results, run, score, start, transcribe

            text: str = transcribe("a.wav", model="tiny.en", offset=1.5).text
            times: list[tuple[str, float, float | None]] = [
                (word.text, word.end, word.confidence) for word in transcribe(np.zeros(9), sampling_rate=16_000).words
            ]
            with Transcriber(engine="faster-whisper", engine_options={"beam_size": 1}) as transcriber:
                duration: float = transcriber.transcribe("a.wav", language="en").audio_duration
            failed: int = run("m.jsonl", formats=["srt"], on_progress=lambda progress: print(progress.done)).failed
            with start("m.jsonl", "out") as running:
                for result in running:
                    if isinstance(result.outcome, Failure):
                        message: str = result.outcome.message
                    else:
                        warnings: tuple[str, ...] = result.outcome.warnings
                    if result.transcript:
                        best: str = transcribe(result.transcript.audio, quality="best", task="translate").text
            ids: list[str] = [result.id for result in read_results("out", anonymous=True)]
            wer: float | None = score(["a"], ["b"], language="en").wer
            same: float | None = score("out").wer
            """
        )
    )
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        'from voxbatch import run, score\nrun("m", formts="srt")\nrun("m", limit="3")\nscore(["a"], ["b"])\n'
        'run("m", quality="bests")\n'
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={ROOT / '.mypy_cache'}"]
    done = subprocess.run(
        [*command, program, wrong], cwd=tmp_path, env=environment(MYPYPATH=str(ROOT)), capture_output=True, text=True
    )
    assert "in 1 file (checked 2 source files)" in done.stdout.splitlines()[-1]
    assert 'wrong.py:2: error: Unexpected keyword argument "formts"' in done.stdout
    assert 'No overload variant of "score" matches' in done.stdout
    assert 'Argument "limit" to "run" has incompatible type "str"' in done.stdout
    assert 'Argument "quality" to "run" has incompatible type "Literal[\'bests\']"' in done.stdout


def test_every_offered_name_loads() -> None:
    """Each name of `__all__` exists, no other name loads anything, and `dir` lists them."""
    assert {name for name in vb.__all__ if not hasattr(vb, name)} == set()
    assert {name for name in dir(vb) if not name.startswith("__")} == set(vb.__all__) - {"__version__"}
    with pytest.raises(AttributeError, match="module 'voxbatch' has no attribute 'transcribes'"):
        vb.transcribes  # noqa: B018


@pytest.mark.parametrize(
    ("function", "types"),
    [
        (vb.transcribe, TranscribeKeywords),
        (vb.transcribe_async, TranscribeKeywords),
        (vb.stream, TranscribeKeywords),
        (vb.Transcriber, TranscribeKeywords),
        (vb.run, RunKeywords),
        (vb.start, RunKeywords),
        (vb.read_results, StoreKeywords),
        (vb.ask, AskKeywords),
        (vb.speak, SpeakKeywords),
    ],
)
def test_a_signature_has_each_keyword_and_its_default(function: Any, types: type) -> None:
    """`help` and the completion of notebooks know all keyword arguments, and `help` says what each one means."""
    parameters = inspect.signature(function).parameters
    text = str(inspect.getdoc(function.__init__ if inspect.isclass(function) else function))
    explained = re.findall(r"^    (\w+): \S", text.partition("\nOptions:\n")[2], re.MULTILINE)
    assert sorted(explained) == sorted(types.__annotations__)
    assert not re.search(r"(?<!`)--\w|Repeatable", text)
    assert types.__annotations__.keys() <= parameters.keys()
    assert not [value for value in parameters.values() if value.kind is inspect.Parameter.VAR_KEYWORD]
    if "max_hours" in parameters:
        assert str(parameters["max_hours"]) == "max_hours: float = 24.0"


@pytest.mark.parametrize(
    "error",
    [
        vb.ManifestError("a.jsonl", [BadLine(2, "not JSON"), BadLine(5, "no path")], 7),
        EmptySourceError("a/", "there are no recordings"),
        vb.ConfigError("wrong", ["--quality", "best"]),
        vb.AudioError("cut", vb.FailureKind.NOT_AUDIO),
        TemporaryFileError("a.wav", OSError(28, "No space left on device")),
    ],
)
def test_an_error_survives_pickling(error: vb.VoxbatchError) -> None:
    """An error comes out of another process as it went in: its type, its message and its attributes."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(error, protocol))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_the_errors_that_docstrings_name_are_offered() -> None:
    """Each error that the docstring of a function names can be caught as `voxbatch.NAME`."""
    texts = [str(inspect.getdoc(getattr(vb, name))) for name in vb.__all__ if name.islower() and name[0] != "_"]
    assert {word for text in texts for word in re.findall(r"\b[A-Z]\w+Error\b", text)} <= set(vb.__all__)


def test_results_refuse_the_options_of_a_model() -> None:
    """`read_results` takes options for access to a bucket, and says so about others."""
    with pytest.raises(vb.ConfigError, match="option model: unknown; the options are allow_private_addresses, anon"):
        list(vb.read_results("out", model="tiny"))  # type: ignore[call-arg]
