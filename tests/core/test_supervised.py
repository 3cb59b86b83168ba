"""Laws of engines that lose results, give wrong ones or raise errors: each chunk has one result, the others go on, and
no restart is blocked.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from conftest import ManifestWriter, Voxbatch
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import MISPLACED, ScriptedTestEngine

from voxbatch.engines import EngineMessage, Feed, feed
from voxbatch.engines.results import Result
from voxbatch.engines.supervised import supervised
from voxbatch.errors import EngineError
from voxbatch.records import Chunk, ChunkFailure, Hypothesis, Span

SETTINGS = ("--engine", "scripted", "--decoders", "1")
ERRORS = ("MemoryError", "RuntimeError", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration")


def options(**values: object) -> list[str]:
    return [word for name, value in values.items() for word in ("--engine-option", f"{name}={value}")]


def chunk(item: int) -> Chunk:
    return Chunk(item, 0, np.zeros(16_000, np.float32), Span(0, 16_000, 0, 16_000))


def full_feed(count: int) -> Feed:
    filled = Feed(10**9)
    for item in range(count):
        filled.put(chunk(item))
    filled.close()
    return filled


def results_of(engine: ScriptedTestEngine, chunks: Feed) -> dict[int, Hypothesis | ChunkFailure]:
    """Return the results by their items; each item has one."""
    results = [result for result in supervised(engine, chunks) if isinstance(result, Hypothesis | ChunkFailure)]
    counted = Counter(result.item for result in results)
    assert set(counted.values()) <= {1}
    return {result.item: result for result in results}


few = st.sets(st.integers(0, 39), max_size=4)


@given(
    st.integers(1, 40), st.integers(1, 12), few, few, few, st.sampled_from(ERRORS), st.sampled_from(sorted(MISPLACED)),
    st.sampled_from((-1, 1, 3)), st.booleans(),
)  # fmt: skip
def test_each_chunk_has_one_result_and_only_the_faulty_ones_fail(
    count: int, concurrency: int, lost: set[int], raising: set[int], misplaced: set[int], error: str, place: str,
    end_after: int, shuffle: bool,
) -> None:  # fmt: skip
    """Each chunk has one result, whichever chunks an engine loses, misplaces or fails at, and however early its streams
    end."""
    faults = {"lose_items": lost, "raise_items": raising, "misplace_items": misplaced}
    engine = ScriptedTestEngine(
        None,
        {name: ",".join(map(str, items)) for name, items in faults.items()}
        | {"concurrency": str(concurrency), "raise_error": error, "misplace": place, "end_after": str(end_after)}
        | {"shuffle": str(shuffle).lower()},
    )
    results = results_of(engine, full_feed(count))
    assert results.keys() == set(range(count))
    faulty = (lost | raising | misplaced) & results.keys()
    assert {item for item, result in results.items() if isinstance(result, ChunkFailure)} == faulty
    for item in faulty:
        failure = results[item]
        assert isinstance(failure, ChunkFailure)
        assert failure.retryable
        assert not failure.crashes


def test_an_engine_that_waits_with_lost_chunks_gets_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed stays open, and the engine waits for more: after a while its stream ends, and the lost chunk is tried
    again, because questions about it, or room in the memory, may wait for its result."""
    monkeypatch.setattr(feed, "LOSS_WAIT_S", 0.05)
    chunks, results = Feed(10**9), list[object]()
    for item in range(3):
        chunks.put(chunk(item))

    def take() -> None:
        for result in supervised(ScriptedTestEngine(None, {"lose_items": "1"}), chunks):
            if not isinstance(result, EngineMessage):
                results.append(result)
                if len(results) == 3:
                    chunks.close()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(60)
    assert [type(result) for result in results] == [Hypothesis, Hypothesis, ChunkFailure]


def test_an_engine_that_loses_everything_holds_a_bounded_number_of_chunks() -> None:
    """Its stream ends after some chunks, and not after the last one."""

    class Losing(ScriptedTestEngine):
        most = 0

        def stream(self, chunks: Feed):  # type: ignore[no-untyped-def]
            count = 0
            while chunks.get() is not None:
                count += 1
            self.most = max(self.most, count)
            yield EngineMessage("the end")

    engine = Losing(None, {"concurrency": "2"})
    results = results_of(engine, full_feed(500))
    assert len(results) == 500
    assert engine.most == 64


def test_an_engine_that_takes_nothing_ends_the_run() -> None:
    """Streams that end at once, and an error without a chunk, are the engine's own: no chunk is to blame."""

    class Idle(ScriptedTestEngine):
        def stream(self, chunks: Feed):  # type: ignore[no-untyped-def]
            yield EngineMessage("nothing to do")

    with pytest.raises(EngineError, match="ended its work 3 times without a result, and chunks wait"):
        results_of(Idle(None, {}), full_feed(3))

    class Broken(ScriptedTestEngine):
        def stream(self, chunks: Feed):  # type: ignore[no-untyped-def]
            raise SystemExit(0)

    with pytest.raises(EngineError, match="engine scripted: SystemExit: 0"):
        results_of(Broken(None, {}), full_feed(3))


FAULTS = {
    "lost": {"lose_items": "0,3"},
    "memory": {"raise_items": "0,3"},
    "exit": {"raise_items": "0,3", "raise_error": "SystemExit"},
    "interrupt": {"raise_items": "0,3", "raise_error": "KeyboardInterrupt"},
    "unknown item": {"misplace_items": "0,3", "misplace": "item"},
    "wrong chunk": {"misplace_items": "0,3", "misplace": "chunk"},
    "negative chunk": {"misplace_items": "0,3", "misplace": "negative"},
    "early end": {"lose_items": "0,3", "end_after": "2"},
}
PLACES = {"inside": {}, "child": {"own_process": "true"}, "workers": {"workers": "2"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "place"),
    [*((fault, "inside") for fault in FAULTS), *product(("lost", "memory", "negative chunk"), ("child", "workers"))],
)
def test_a_run_with_faulty_items_ends(
    fault: str, place: str, manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """The faulty items fail with the kind `engine`, the others are transcribed, and no worker is lost: in this process,
    in a child, and in two workers. `--retry-failed retryable` without the fault transcribes all."""
    path = manifest(*[0.5] * 12)
    done = voxbatch("run", path, "-o", "out", *SETTINGS, *options(**FAULTS[fault], **PLACES[place]))
    assert done.returncode == 3, done.stderr
    assert "is lost" not in done.stderr
    failures = [json.loads(line) for line in (tmp_path / "out" / "failures.jsonl").read_text().splitlines()]
    assert [(row["line"], row["error_kind"], row["retryable"]) for row in failures] == [
        (1, "engine", True), (4, "engine", True),
    ]  # fmt: skip
    assert len((tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()) == 10
    assert not list((tmp_path / "out").rglob("attempt-*"))
    again = voxbatch("run", path, "-o", "out", *SETTINGS, "--retry-failed", "retryable")
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
def test_a_child_that_loses_all_that_it_holds_does_not_wait_for_the_limit_of_hangs(
    manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """Two chunks at a time, and both are lost: some seconds later they are tried again alone."""
    faulty = options(own_process="true", concurrency=2, lose_items="0,1")
    done = voxbatch("run", manifest(*[0.5] * 12), "-o", "out", *SETTINGS, *faulty, timeout=100)
    assert done.returncode == 3, done.stderr
    assert "10 done + 2 failed" in done.stdout


@pytest.mark.slow
def test_an_engine_that_loses_every_result_ends_the_run(
    manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """No item fails for an engine that is broken, and a repaired one continues."""
    path, every = manifest(*[0.5] * 20), ",".join(map(str, range(20)))
    for place, where in PLACES.items():
        done = voxbatch("run", path, "-o", place, *SETTINGS, *options(lose_items=every, **where))
        assert done.returncode == 1, done.stderr
        assert "chunks all failed, the last with: the engine gave no result, also with this audio alone" in done.stderr
    assert voxbatch("run", path, "-o", "inside", *SETTINGS).returncode == 0


def test_one_error_has_one_traceback() -> None:
    """An engine that raises the same error with every chunk does not fill the log."""

    class Broken(ScriptedTestEngine):
        def stream(self, feed: Feed) -> Iterator[Result]:
            for _ in iter(feed.get, None):
                raise ValueError("no such file")
            yield from ()

    results = [*supervised(Broken(None, {}), full_feed(6))]
    texts = [result.text for result in results if isinstance(result, EngineMessage)]
    assert sum(isinstance(result, ChunkFailure) for result in results) == 6
    assert [text.startswith("Traceback") for text in texts].count(True) == 1, texts
