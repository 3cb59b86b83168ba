"""Tests for the pipeline: every item becomes one entry in a part, in any order of results, and no failure of an engine
causes a hang.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import soundfile
from conftest import Recorder
from outputs import keys, owned
from scripted_engine import ScriptedTestEngine
from waits import until

from voxbatch.config import RunOptions
from voxbatch.engines import ChunkProgress, Engine, EngineMessage, Feed
from voxbatch.engines.refusals import require_language
from voxbatch.engines.results import Result
from voxbatch.errors import ConfigError, EngineError, RunError, StorageError
from voxbatch.languages import ISO_639_1
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.latency import Latency
from voxbatch.output.layout import part_names
from voxbatch.output.parts import read_headers, read_part
from voxbatch.records import Chunk, ChunkFailure, Failure, Hypothesis, Item, Outcome
from voxbatch.runner import Progress, Stop, StopRequested, Usage, engine_thread, results, shared, waiting
from voxbatch.runner.pipeline import Pipeline
from voxbatch.runner.results import Results
from voxbatch.storage import Stores

pytestmark = pytest.mark.usefixtures("warm_decoders")


def scripted(**options: object) -> ScriptedTestEngine:
    return ScriptedTestEngine(None, {"max_chunk_s": "15", **{name: str(value) for name, value in options.items()}})


class PipelineRun:
    """A pipeline with its own items and output folder."""

    def __init__(self, place: Path, count: int, part_items: int = 3, decoders: int = 2, language: str | None = None):
        self.store = Stores().out(str(place))
        self.checkpoint = Checkpoint(self.store, owned(self.store, items=count), keys(count))
        self.settings = RunOptions(language=language, decoders=decoders, part_items=part_items, part_seconds=60.0)
        self.progress, self.stop = Progress(count), Stop()
        self.seen: list[tuple[int, int]] = []
        self.on_progress: Callable[[Progress], None] = self._observe

    def run(self, engine: Engine, items: Iterator[Item]) -> Usage:
        pipeline = Pipeline(engine, self.checkpoint, self.settings, self.progress, self.on_progress, self.stop)
        return pipeline.run(items)

    def _observe(self, progress: Progress) -> None:
        self.seen.append((progress.done, progress.failed))

    def lines(self) -> dict[int, tuple[str, dict[str, Any]]]:
        """Return (kind, output line) of all committed entries by Item.index."""
        entries = [entry for name in part_names(self.store) for entry in read_part(self.store, name)]
        found = {entry.index: (entry.kind, json.loads(entry.line)) for entry in entries}
        assert len(found) == len(entries), "an item is committed once"
        return found


MakeRun = Callable[..., PipelineRun]
MakeItems = Callable[..., list[Item]]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    return lambda count, **settings: PipelineRun(tmp_path / f"out{count}{len(settings)}", count, **settings)


@pytest.fixture
def items(recording: Recorder) -> MakeItems:
    def make(*seconds: float) -> list[Item]:
        """Make a recording of each length in seconds; 0 stands for a missing recording."""
        return [one(i, length) for i, length in enumerate(seconds)]

    def one(i: int, length: float) -> Item:
        path = recording(f"r{i}.wav", length) if length else Path(__file__).with_name(f"r{i}.wav")
        return Item(i, i + 1, f"r{i}", str(path), row=json.dumps({"audio_filepath": path.name, "mine": i}).encode())

    return make


def wait_for_threads(names: Sequence[str] = ("decode", "engine")) -> None:
    """Wait until the threads of the pipeline have ended."""
    until = time.monotonic() + 60
    while alive := [thread.name for thread in threading.enumerate() if thread.name in names]:
        assert time.monotonic() < until, f"still there: {alive}"
        time.sleep(0.02)


@pytest.mark.parametrize("options", [{}, {"shuffle": "true"}, {"delay_s": "0.01", "shuffle": "1", "concurrency": 3}])
def test_every_item_becomes_one_entry(make_run: MakeRun, items: MakeItems, options: dict[str, object]) -> None:
    """In any order of results, an entry has the words of all chunks in order and the passed-through row, and parts have
    K items.
    """
    run = make_run(7)
    usage = run.run(scripted(**options), iter(items(1, 40, 0.001, 2.2, 0, 33, 0.5)))
    lines = run.lines()
    assert sorted(lines) == list(range(7))
    assert [kind for kind, _ in (lines[i] for i in range(7))].count("failure") == 1
    heard = [int(word[1:]) for word in lines[1][1]["pred_text"].split()]
    assert heard == sorted(set(heard))
    assert len(set(range(80)) - set(heard)) <= 2, "at most the words that a cut goes through"
    assert (lines[2][1]["pred_text"], lines[2][1]["words"]) == ("", [])
    assert [line["mine"] for _, (_, line) in sorted(lines.items())] == list(range(7))
    assert (lines[4][1]["error"], lines[4][1]["line"], lines[4][1]["retryable"]) == ("AudioError", 5, False)
    assert (run.progress.done, run.progress.failed, run.progress.committed) == (6, 1, 7)
    assert run.progress.audio_s == pytest.approx(76.701, abs=0.01)
    assert run.seen[-1] == (6, 1)
    assert usage.engine_s >= usage.starved_s >= 0


class InSteps(ScriptedTestEngine):
    """An engine that reports the progress within each chunk, in steps that add up to more than the chunk."""

    STEP = 16_000

    def stream(self, feed: Feed) -> Iterator[Result]:
        for result in super().stream(feed):
            if isinstance(result, Hypothesis):
                yield from [ChunkProgress(result.item, result.chunk, self.STEP)] * 40
            yield result


def test_progress_grows_within_a_chunk(make_run: MakeRun, items: MakeItems) -> None:
    """Each second of a long chunk shows at once, and the sum is the length of the audio, not more."""
    run, seen = make_run(2), list[float]()
    run.on_progress = lambda progress: seen.append(progress.audio_s)
    run.run(InSteps(None, {}), iter(items(3.5, 40)))
    assert max(np.diff(seen)) <= 1
    assert seen == sorted(seen)
    assert run.progress.audio_s == pytest.approx(43.5, abs=0.01)


class LongTalk(ScriptedTestEngine):
    """An engine that gives a day's words for the first item. They have nothing in common with the reference."""

    WORDS = 60_000

    def stream(self, feed: Feed) -> Iterator[Result]:
        for result in super().stream(feed):
            is_long = isinstance(result, Hypothesis) and result.item == 0
            yield Hypothesis(0, 0, " ".join(f"x{n % 977}" for n in range(self.WORDS))) if is_long else result


def scoring_processes() -> list[psutil.Process]:
    """Return the child processes that count the errors of long texts."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            found += [child] if "long_texts" in " ".join(child.cmdline()) else []
    return found


SCORE_LATER = """
import os, sys, time
if any("runner.long_texts" in word for word in sys.orig_argv):
    while os.path.exists({path!r}):
        time.sleep(0.01)
"""
"""A sitecustomize.py: the process that scores long texts starts when a file is gone."""


@pytest.fixture
def unscored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file as long as which no errors of long texts are counted."""
    (path := tmp_path / "unscored").touch()
    (tmp_path / "sitecustomize.py").write_text(SCORE_LATER.format(path=str(path)))
    monkeypatch.syspath_prepend(tmp_path)  # child processes get the import path of this one
    return path


def long_reference(item: Item) -> Item:
    return dataclasses.replace(item, text=" ".join(f"y{n % 991}" for n in range(LongTalk.WORDS)), lang="fr")


def test_other_items_are_finished_while_long_texts_are_scored(
    make_run: MakeRun, items: MakeItems, unscored: Path
) -> None:
    """The main thread does not wait for the errors of a long pair: items with later results are committed first."""
    run, made = make_run(4, part_items=1), items(1, 1, 1, 1)
    run.on_progress = lambda progress: unscored.unlink(missing_ok=True) if progress.done == 3 else None
    run.run(LongTalk(None, {"concurrency": "1"}), iter([long_reference(made[0]), *made[1:]]))
    parts = [[entry.index for entry in read_part(run.store, name)] for name in part_names(run.store)]
    assert parts[-1] == [0]
    line = run.lines()[0][1]
    assert (line["reference_length"], line["wer"], line["deletions"]) == (60_000, 1.0, 0)
    assert (run.progress.done, run.progress.committed) == (4, 4)


def test_a_stop_does_not_wait_for_long_texts(make_run: MakeRun, items: MakeItems, unscored: Path) -> None:
    """A stop commits the finished items and ends the process that scores; the resumed run does the long item."""
    run, made = make_run(3, part_items=1), items(1, 1, 1)
    made[0] = long_reference(made[0])
    run.on_progress = lambda progress: run.stop.request() if progress.done == 2 else None
    with pytest.raises(StopRequested):
        run.run(LongTalk(None, {"concurrency": "1"}), iter(made))
    assert sorted(run.lines()) == [1, 2]
    wait_for_threads(["long texts"])
    assert not scoring_processes()
    unscored.unlink()
    run.stop, run.on_progress = Stop(), run._observe
    run.checkpoint.load()
    run.run(LongTalk(None, {"concurrency": "1"}), iter(made[:1]))
    assert sorted(run.lines()) == [0, 1, 2]


def test_a_killed_scoring_process_costs_no_item(make_run: MakeRun, items: MakeItems, unscored: Path) -> None:
    """If something kills the process that scores, the errors are counted all the same."""
    run, made = make_run(2, part_items=1), items(1, 1)
    killed: list[int] = []

    def kill() -> None:
        until(scoring_processes)
        for child in scoring_processes():
            killed.append(child.pid)
            child.kill()
        unscored.unlink()

    killer = threading.Thread(target=kill)
    killer.start()
    run.run(LongTalk(None, {"concurrency": "1"}), iter([long_reference(made[0]), made[1]]))
    killer.join()
    assert killed
    assert run.lines()[0][1]["reference_length"] == 60_000


def test_stream_is_read_to_its_end_after_a_failure(
    make_run: MakeRun, items: MakeItems, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the run has failed with chunks in flight: one that is cut off could not keep its model loaded."""

    class Watched(ScriptedTestEngine):
        ended = False

        def stream(self, feed: Feed) -> Iterator[Result]:
            yield from super().stream(feed)
            self.ended = True

    def refuse(*_: object) -> str:
        raise StorageError("the disk is full")

    run = make_run(4, part_items=1)
    monkeypatch.setattr(run.checkpoint, "commit", refuse)
    engine = Watched(None, {"max_chunk_s": "15", "concurrency": "1", "delay_s": "0.5"})
    with pytest.raises(StorageError):
        run.run(engine, iter(items(1, 1, 1, 1)))
    wait_for_threads()
    assert engine.ended


def test_failed_chunk_fails_only_its_item(make_run: MakeRun, items: MakeItems) -> None:
    """A failing chunk fails only its item, and the message names the first failed range, whichever came first."""
    run = make_run(3)
    run.run(scripted(fail_items="1", shuffle="true"), iter(items(1, 40, 1)))
    kinds = {i: kind for i, (kind, _) in run.lines().items()}
    assert kinds == {0: "transcript", 1: "failure", 2: "transcript"}
    failed = run.lines()[1][1]
    assert failed["error"] == "TranscriptionError"
    assert failed["message"].startswith("0.00 to ")
    assert failed["message"].endswith(" s: scripted to fail")
    assert failed["retryable"] is True


def test_unknown_language_fails_its_item(make_run: MakeRun, items: MakeItems) -> None:
    """An unsupported language fails the item before decoding; regional forms of a supported language are accepted."""
    engine = scripted()
    engine.spec = dataclasses.replace(engine.spec, languages=frozenset({"en"}))
    run = make_run(3, language="EN_us")
    langs = ("en-GB", "cs", None)
    mixed = [dataclasses.replace(item, lang=lang) for item, lang in zip(items(1, 1, 1), langs, strict=True)]
    run.run(engine, iter(mixed))
    assert [run.lines()[i][0] for i in range(3)] == ["transcript", "failure", "transcript"]
    failed = run.lines()[1][1]
    assert failed["error"] == "LanguageError"
    assert failed["message"] == "language 'cs': model count knows only en; take another --model"


def latency_of(make_run: PipelineRun) -> Latency:
    """Return the latencies merged over all parts."""
    total = Latency()
    for header in read_headers(make_run.store, part_names(make_run.store)):
        assert header.latency is not None
        total.update(header.latency)
    return total


def test_latencies_are_measured(make_run: MakeRun, items: MakeItems) -> None:
    """The latency of a chunk starts when the engine takes it, not while it waits in the feed. The latency of an item
    starts with its first chunk, and a missing recording has none.
    """
    run = make_run(5)
    usage = run.run(scripted(delay_s=0.05, concurrency=1), iter(items(1, 40, 0, 2, 1)))
    latency = latency_of(run)
    chunk, item = dataclasses.asdict(latency.chunk.percentiles()), dataclasses.asdict(latency.item.percentiles())
    assert (chunk["count"], item["count"]) == (6, 4)
    for found in (chunk, item):
        assert found["p50_s"] <= found["p90_s"] <= found["p95_s"]
    shortest = latency.chunk.percentile(0)
    assert shortest is not None
    assert shortest >= 0.05 * 0.99
    assert chunk["p50_s"] * 4 + shortest * 2 <= usage.engine_s * 1.01, "half of them last as long as that, or longer"
    assert item["p95_s"] >= 3 * 0.05 * 0.99, "the recording of three chunks, one after the other"


class OnGpu(ScriptedTestEngine):
    """An engine that reports GPU memory in use, which rises and falls before the end."""

    def __init__(self, *bytes_in_use: int):
        super().__init__(None, {"max_chunk_s": "15", "concurrency": "1"})
        self._used, self._num_reads = list(bytes_in_use), 0

    def stream(self, feed: Feed) -> Iterator[Result]:
        """Give no result before all values were read."""
        unread = len(self._used)
        for result in super().stream(feed):
            until(lambda: self._num_reads > unread)
            yield result

    def gpu_bytes(self) -> int:  # type: ignore[override]
        self._num_reads += 1
        return self._used.pop(0) if len(self._used) > 1 else self._used[0]


def test_parts_record_peak_gpu_memory(make_run: MakeRun, items: MakeItems, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part contains the highest memory use until then; without a GPU there is none."""
    monkeypatch.setattr(engine_thread, "GPU_MEMORY_INTERVAL_S", 0.01)
    run = make_run(6, part_items=2)
    run.run(OnGpu(5, 9, 3), iter(items(*[1] * 6)))
    assert [header.peak_gpu_bytes for header in read_headers(run.store, part_names(run.store))] == [9, 9, 9]
    other = make_run(1)
    other.run(scripted(), iter(items(1)))
    assert [header.peak_gpu_bytes for header in read_headers(other.store, part_names(other.store))] == [None]


def test_nonexistent_language_code_fails_its_item(make_run: MakeRun, items: MakeItems) -> None:
    """An engine that accepts all ISO 639-1 codes refuses other tags with a message that says which codes it accepts."""
    engine = scripted()
    engine.spec = dataclasses.replace(engine.spec, languages=ISO_639_1)
    run = make_run(3)
    langs = ("por-BR", "haw", "xx")
    mixed = [dataclasses.replace(item, lang=lang) for item, lang in zip(items(1, 1, 1), langs, strict=True)]
    run.run(engine, iter(mixed))
    assert [run.lines()[i][0] for i in range(3)] == ["transcript", "failure", "failure"]
    takes = "model count takes the two-letter codes of ISO 639-1, such as en; correct the code or leave it out"
    assert run.lines()[1][1]["message"] == f"language 'haw': {takes}"
    assert run.lines()[2][1]["message"] == "language 'xx': no known language; give a code such as en, or a name"
    with pytest.raises(ConfigError, match="--language haw-US: model count takes the two-letter codes of ISO 639-1"):
        require_language(engine.spec, "haw-US")


class Inventor(ScriptedTestEngine):
    """An engine that returns invented text for every chunk and records the chunks that it received."""

    def __init__(self) -> None:
        super().__init__(None, {"max_chunk_s": "15"})
        self.given: list[Chunk] = []

    def stream(self, feed: Feed) -> Iterator[Hypothesis | ChunkFailure]:
        while chunk := feed.get():
            self.given.append(chunk)
            yield Hypothesis(chunk.item, chunk.index, "Thank you.")


def test_silent_chunks_are_not_given_to_the_engine(make_run: MakeRun, items: MakeItems, tmp_path: Path) -> None:
    """Items with only silent chunks are done without invented text, and their audio counts as transcribed."""
    engine, run, mixed = Inventor(), make_run(3), items(20, 1, 20)
    speech, rate = soundfile.read(mixed[0].audio)
    soundfile.write(mixed[1].audio, np.zeros(40 * rate), rate)
    soundfile.write(mixed[2].audio, np.concatenate([speech, np.zeros(60 * rate), speech]), rate)
    run.run(engine, iter(mixed))
    assert {chunk.item for chunk in engine.given} == {0, 2}
    assert not any(chunk.span.silent for chunk in engine.given)
    silent = run.lines()[1]
    assert (silent[0], silent[1]["pred_text"], silent[1]["warnings"]) == ("transcript", "", [])
    assert run.lines()[2][1]["pred_text"].count("Thank you.") == sum(chunk.item == 2 for chunk in engine.given)
    assert run.progress.done == 3
    assert run.progress.audio_s == pytest.approx(20 + 40 + 100)


class Unborn(ScriptedTestEngine):
    """An engine whose model does not load."""

    def stream(self, feed: Feed) -> Iterator[Hypothesis | ChunkFailure]:
        raise EngineError("no model")


@pytest.mark.parametrize(
    ("kind", "options", "reason", "committed"),
    [
        (ScriptedTestEngine, {"die_after": "3"}, "scripted to die after 3 results", [0, 1]),
        (Unborn, {}, "no model", []),
    ],
)
def test_engine_that_ends_stops_the_run(
    make_run: MakeRun,
    items: MakeItems,
    kind: type[ScriptedTestEngine],
    options: dict[str, str],
    reason: str,
    committed: list[int],
) -> None:
    """If the engine dies while the feed is full, ends without results for all chunks, or does not load its model, the
    run ends at once with the reason, commits the finished items, and stops its decoders.
    """
    run = make_run(4, part_items=100, decoders=1)
    with pytest.raises(EngineError, match=reason):
        run.run(kind(None, {"concurrency": "1", "max_chunk_s": "15", **options}), iter(items(1, 1, 120, 120)))
    assert sorted(run.lines()) == committed
    wait_for_threads()


def test_failed_commit_stops_the_run(make_run: MakeRun, items: MakeItems, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed commit ends the run, although both other threads wait at a full queue."""
    monkeypatch.setattr(shared, "MAX_QUEUED_EVENTS", 1)
    run = make_run(40, part_items=1)
    run.store.write("parts", [b"a file where the folder should be"])
    with pytest.raises(StorageError, match="a file stands where a folder is needed"):
        run.run(scripted(), iter(items(*[0.5, 0] * 20)))
    wait_for_threads()


@pytest.mark.parametrize("error", [RunError("own"), ValueError("a bug"), KeyboardInterrupt()])
def test_errors_of_all_threads_are_raised(make_run: MakeRun, items: MakeItems, error: BaseException) -> None:
    """An error raised in any thread reaches the caller, as an Exception."""

    def broken() -> Iterator[Item]:
        yield from items(0.5)
        raise error

    with pytest.raises(type(error) if isinstance(error, Exception) else RunError):
        make_run(2).run(scripted(), broken())


@pytest.mark.parametrize("retryable", [True, False])
def test_retryable_failure_is_not_committed_while_stopping(
    make_run: MakeRun,
    items: MakeItems,
    monkeypatch: pytest.MonkeyPatch,
    retryable: bool,
) -> None:
    """A failure that the stop may have caused is left to the resumed run; other failures and results are committed."""
    run = make_run(2, part_items=100, decoders=1)
    finish = Results._finish

    def stop_before_failure(results: Results, pending: Any, outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            run.stop.request()
            outcome = dataclasses.replace(outcome, retryable=retryable)
        finish(results, pending, outcome)

    monkeypatch.setattr(Results, "_finish", stop_before_failure)
    with pytest.raises(StopRequested):
        run.run(scripted(fail_items="1", concurrency=1), iter(items(0.5, 0.5)))
    assert sorted(run.lines()) == ([0] if retryable else [0, 1])
    assert run.progress.failed == (not retryable)
    wait_for_threads()


def test_parts_are_committed_after_part_seconds(make_run: MakeRun, items: MakeItems) -> None:
    """A part is committed after a number of seconds, even if it is not full."""
    run = make_run(6)
    run.settings = dataclasses.replace(run.settings, part_items=1000, part_seconds=0.01)
    run.run(scripted(delay_s=0.1, concurrency=1), iter(items(*[0.5] * 6)))
    assert len(part_names(run.store)) >= 2
    assert len(run.lines()) == 6


def long_rows(run: PipelineRun, items: Sequence[Item], num_bytes: int, seen: list[int]) -> Iterator[Item]:
    """Yield the items with rows of `num_bytes`. Append to `seen` how many were given out and not finished at a time."""
    for given, item in enumerate(items, 1):
        yield dataclasses.replace(item, row=item.row[:-1] + b', "x": "%s"}' % (b"x" * (num_bytes - len(item.row) - 9)))
        seen.append(given - run.progress.done - run.progress.failed)


@pytest.mark.parametrize(("num_bytes", "most"), [(1000, 5), (5000, 2)])
def test_bytes_of_the_rows_in_progress_are_bounded(
    make_run: MakeRun,
    items: MakeItems,
    monkeypatch: pytest.MonkeyPatch,
    num_bytes: int,
    most: int,
) -> None:
    """As many items are in progress as the limit of bytes allows, and one that the main thread finishes; a row that
    exceeds the limit alone is in progress alone.
    """
    monkeypatch.setattr(shared, "MAX_ROW_BYTES", 4500)
    run, seen = make_run(20), list[int]()
    run.run(scripted(), long_rows(run, items(*[0.5] * 20), num_bytes, seen))
    assert sorted(run.lines()) == list(range(20))
    assert max(seen) <= most


def test_parts_are_committed_after_a_number_of_bytes(
    make_run: MakeRun, items: MakeItems, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part is committed when its lines are large, even if they are few."""
    monkeypatch.setattr(results, "MAX_PART_BYTES", 2500)
    run = make_run(8, part_items=1000)
    run.run(scripted(), long_rows(run, items(*[0.5] * 8), 1300, []))
    assert [header.items for header in read_headers(run.store, part_names(run.store))] == [2, 2, 2, 2]


class HungEngine(ScriptedTestEngine):
    """Gives two results. Then it takes chunks and gives no result until the run is over."""

    def stream(self, feed: Feed) -> Iterator[Result]:
        for _ in range(2):
            chunk = feed.get()
            assert chunk is not None
            yield Hypothesis(chunk.item, chunk.index, "text")
        feed.get()
        while not feed.discarded:
            time.sleep(0.05)


def test_engine_without_results_ends_the_run(
    make_run: MakeRun, items: MakeItems, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person is warned of an engine that gives no results. After a long time the run ends, and can be resumed."""
    monkeypatch.setattr(waiting, "STALL_WARNING_S", 0.6)
    monkeypatch.setattr(waiting, "STALL_LIMIT_S", 2.0)
    run, messages = make_run(4, part_items=1000), list[EngineMessage]()
    engine = HungEngine(None, {})
    pipeline = Pipeline(engine, run.checkpoint, run.settings, run.progress, lambda _: None, run.stop, messages.append)
    with pytest.raises(EngineError, match=r"engine scripted has given no result for 0 minutes; it holds 1 chunks, the"):
        pipeline.run(iter(items(*[0.5] * 4)))
    assert messages
    assert all(message.is_warning and "scripted has given no result for" in message.text for message in messages)
    assert len(run.lines()) == 2
