"""Tests for the decoder pool: every task ends as its chunks and a Decoded, or as one Undecodable, whatever happens to
the processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain, pairwise
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest
import soundfile
from conftest import Recorder, environment
from waits import until

from voxbatch.audio.ffmpeg import executable
from voxbatch.decoding import Decoded, DecoderPool, DecodeTask, Message, Undecodable, warm_pool
from voxbatch.decoding import pool as process_pool
from voxbatch.decoding.messages import receive
from voxbatch.errors import RunError
from voxbatch.failure_kinds import FailureKind
from voxbatch.process import hang_detector
from voxbatch.process.child import ChildProcess
from voxbatch.records import Chunk, Failure
from voxbatch.storage import StoreOptions, Stores

pytestmark = pytest.mark.slow
LIMIT = 15 * 16_000


def tasks(paths: Iterable[Path | str]) -> Iterator[DecodeTask]:
    """Yield a task for each recording, without offset and duration."""
    for i, path in enumerate(paths):
        yield DecodeTask(i, str(path), 0.0, None, None, None, LIMIT)


def children(of: int | None = None) -> list[psutil.Process]:
    """Return running decoder processes, without ended ones that were not waited for."""
    found = []
    for child in psutil.Process(of).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # or a ZombieProcess
            if "voxbatch.decoding" in " ".join(child.cmdline()):
                found.append(child)
    return found


def ends(messages: Iterable[Message]) -> dict[int, Decoded | Undecodable]:
    """Return how each item ended, and assert that no message follows the end."""
    found: dict[int, Decoded | Undecodable] = {}
    for message in messages:
        assert message.item not in found, "nothing comes after an item's end"
        if not isinstance(message, Chunk):
            found[message.item] = message
    return found


def test_every_task_ends_once(recording: Recorder, tmp_path: Path) -> None:
    """With several decoders and more tasks than they hold, each item's chunks come in order and match its spans."""
    paths = [recording(f"{i}.wav", 0.2 + i % 4 * 17) for i in range(30)] + [tmp_path / "missing.wav"]
    chunks: dict[int, list[Chunk]] = {}
    ended: dict[int, Decoded | Undecodable] = {}
    with DecoderPool(3) as pool:
        for message in pool.run(tasks(paths)):
            if isinstance(message, Chunk):
                chunks.setdefault(message.item, []).append(message)
            else:
                ended[message.item] = message
    assert sorted(ended) == list(range(31))
    for item in range(30):
        end = ended[item]
        assert isinstance(end, Decoded)
        assert tuple(chunk.span for chunk in chunks[item]) == end.spans
        assert all(len(chunk.samples) == chunk.span.end - chunk.span.start <= LIMIT for chunk in chunks[item])
        assert all(left.core_end == right.core_start for left, right in pairwise(end.spans))
        assert end.spans[-1].core_end == round((0.2 + item % 4 * 17) * 16_000)
    missing = ended[30]
    assert isinstance(missing, Undecodable)
    assert missing.failure.error == "AudioError"
    assert missing.failure.message == f"cannot open {tmp_path}/missing.wav: No such file or directory"
    assert pool.cpu_s > 0


def decoded_chunks(
    messages: Iterable[Message],
) -> tuple[list[tuple[int, int, bytes]], dict[int, Decoded | Undecodable]]:
    """Return the chunks of all items in order, as (item, index, samples), and how each item ended."""
    chunks, ended = [], {}
    for message in messages:
        if isinstance(message, Chunk):
            chunks.append((message.item, message.index, message.samples.tobytes()))
        else:
            ended[message.item] = message
    return sorted(chunks), ended


def test_item_of_a_killed_decoder_is_retried(recording: Recorder) -> None:
    """If a decoder dies, a new decoder decodes its current item and the items behind it. Each chunk comes once."""
    paths = [recording("long.wav", 900), *(recording(f"{i}.wav", 0.5) for i in range(5))]
    with DecoderPool(1) as pool:
        undisturbed, _ = decoded_chunks(pool.run(tasks(paths)))
    with DecoderPool(1) as pool:
        messages = pool.run(tasks(paths))
        first = [next(messages) for _ in range(3)]
        (decoder,) = children()
        decoder.kill()
        chunks, ended = decoded_chunks(chain(first, messages))
    assert chunks == undisturbed
    assert sorted(ended) == list(range(6))
    assert all(isinstance(end, Decoded) for end in ended.values())


def test_item_that_kills_two_decoders_fails(recording: Recorder) -> None:
    """If the decoder of the retry dies too, the item fails with a retryable failure; the items behind it are done."""
    paths = [recording("long.wav", 900), *(recording(f"{i}.wav", 0.5) for i in range(5))]
    with DecoderPool(1) as pool:
        messages, killed = list[Message](), set[int]()
        for message in pool.run(tasks(paths)):
            messages.append(message)
            for decoder in children():
                if len(killed) < 2 and decoder.pid not in killed:
                    decoder.kill()
                    killed.add(decoder.pid)
        ended = ends(messages)
    assert sorted(ended) == list(range(6))
    assert isinstance(ended[0], Undecodable)
    assert ended[0].failure.message == f"cannot decode {paths[0]}: the decoder of the retry died (killed by signal 9)"
    assert ended[0].failure.retryable
    assert all(isinstance(ended[i], Decoded) for i in range(1, 6))


def test_recording_that_changes_before_the_retry_fails(recording: Recorder) -> None:
    """Chunks of two different recordings are never joined: the item fails if its recording was replaced."""
    path = recording("long.wav", 900)
    with DecoderPool(1) as pool:
        messages = pool.run(tasks([path]))
        next(messages)
        (decoder,) = children()
        decoder.kill()
        path.unlink()
        recording("long.wav", 3)
        ended = ends(messages)
    assert isinstance(ended[0], Undecodable)
    assert ended[0].failure.message == f"cannot decode {path}: it was replaced meanwhile"


FFMPEG_THAT_IS_KILLED = """#!/bin/sh
echo >> {folder}/calls
if [ $(wc -l < {folder}/calls) -le {times} ]; then
    {ffmpeg} "$@" | head -c 8000000
    kill -{number} $$
fi
exec {ffmpeg} "$@"
"""


@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 1), (signal.SIGKILL, 2)])
def test_item_whose_ffmpeg_is_killed_is_retried(
    recording: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, times: int
) -> None:
    """If ffmpeg is killed within a file, the item is decoded once more; the second time, its failure is retryable."""
    path = tmp_path / "long.mka"
    subprocess.run([executable(), "-v", "error", "-i", recording("long.wav", 300), "-c", "copy", path], check=True)
    with DecoderPool(1) as pool:
        undisturbed, _ = decoded_chunks(pool.run(tasks([path])))
    program = tmp_path / "ffmpeg"
    program.write_text(
        FFMPEG_THAT_IS_KILLED.format(folder=tmp_path, times=times, ffmpeg=executable(), number=int(number))
    )
    program.chmod(0o755)
    monkeypatch.setenv("VOXBATCH_FFMPEG", str(program))
    with DecoderPool(1) as pool:
        chunks, ended = decoded_chunks(pool.run(tasks([path])))
    end = ended[0]
    assert len(chunks) == len({chunk[:2] for chunk in chunks}), "each chunk comes once"
    if times == 1:
        assert isinstance(end, Decoded)
        assert (chunks, end.warnings) == (undisturbed, ())
    else:
        assert isinstance(end, Undecodable)
        assert end.failure.message == f"cannot decode {path}: ffmpeg was killed by signal {int(number)}"
        assert end.failure.retryable


@pytest.fixture
def warm() -> Iterator[None]:
    """Reuse decoder processes from pool to pool."""
    with closing(warm_pool):
        warm_pool.open()
        yield
    assert not children()


def decoded(paths: list[Path], pool: DecoderPool) -> set[int]:
    """Decode the recordings and return the process ids of the decoders."""
    with pool:
        assert all(isinstance(end, Decoded) for end in ends(pool.run(tasks(paths))).values())
        return {child.pid for child in children()}


def test_pools_reuse_warm_decoders(recording: Recorder, warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool reuses the decoders of the previous one, replaces dead ones, and starts new ones for other options and in
    another environment.
    """
    paths = [recording(f"{i}.wav", 0.5) for i in range(3)]
    first = decoded(paths, DecoderPool(2))
    assert decoded(paths, DecoderPool(2)) == first
    assert len(decoded(paths, DecoderPool(2, Stores(StoreOptions(anonymous=True))))) == 4
    for child in children():
        child.kill()
        child.wait()
    second = decoded(paths, DecoderPool(2))
    assert not second & first
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert not decoded(paths, DecoderPool(2)) & second


def test_busy_decoders_do_not_join_the_warm_pool(recording: Recorder, warm: None) -> None:
    """Decoders with an unfinished task are ended, not reused."""
    with DecoderPool(2) as pool:
        next(pool.run(tasks([recording("long.wav", 900)])))
    assert len(children()) == 1


def test_a_decoder_that_dies_while_idle_fails_no_item(recording: Recorder) -> None:
    """A decoder that is killed while idle fails no item."""
    with DecoderPool(1) as pool:
        (decoder,) = children()
        decoder.kill()
        while decoder.is_running() and decoder.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        ended = ends(pool.run(tasks([recording("a.wav", 0.5)])))
    assert isinstance(ended[0], Decoded)


def test_leaving_the_context_ends_the_decoders(recording: Recorder) -> None:
    """Leaving the context ends the decoders, even within a file."""
    with DecoderPool(2) as pool:
        next(pool.run(tasks([recording("long.wav", 300)])))
        decoders = children()
        assert len(decoders) == 2
    assert not any(decoder.is_running() for decoder in decoders)


def test_a_slow_consumer_holds_the_decoders_back(recording: Recorder) -> None:
    """While no message is read, a decoder waits, and its memory stays far below the size of the recording."""
    with DecoderPool(1) as pool:
        messages = pool.run(tasks([recording("long.wav", 1200)]))  # 77 MB as float32
        next(messages)
        (decoder,) = children()

        def is_waiting() -> object:
            before = decoder.cpu_times()
            time.sleep(0.3)
            after = decoder.cpu_times()
            return after.user + after.system - before.user - before.system < 0.05

        until(is_waiting)
        resident = decoder.memory_info().rss
        assert sum(isinstance(message, Chunk) for message in messages) >= 79
    assert resident < 150e6


ORPHANS = """
import sys, time
from voxbatch.decoding import DecoderPool, DecodeTask
pool = DecoderPool(2)
messages = pool.run(DecodeTask(i, path, 0.0, None, None, None, 240_000) for i, path in enumerate(sys.argv[1:]))
next(messages)
print("going", flush=True)
time.sleep(60)
"""


def test_decoders_end_with_their_parent(recording: Recorder) -> None:
    """If the parent is killed, its decoder processes end, idle or within a file."""
    command = [sys.executable, "-c", ORPHANS, str(recording("long.wav", 300))]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "going\n"
        decoders = children(parent.pid)
        parent.kill()
    assert len(decoders) == 2
    _, alive = psutil.wait_procs(decoders, timeout=60)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


# ── suspended, hanging and killed ─────────────────────────────────────────────────────────────────────────────────────

FFMPEG_THAT_DELAYS = """#!/bin/sh
echo >> {folder}/calls
if [ $(wc -l < {folder}/calls) -le {times} ]; then
    {delay}
fi
exec {ffmpeg} "$@"
"""
HANGS, RUNS_FOREVER = "exec sleep 600", "while :; do :; done"


@pytest.fixture
def slow_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Let ffmpeg do something else before its work, the first times."""

    def prepare(delay: str, times: int) -> None:
        program = tmp_path / "ffmpeg"
        program.write_text(FFMPEG_THAT_DELAYS.format(folder=tmp_path, times=times, delay=delay, ffmpeg=executable()))
        program.chmod(0o755)
        monkeypatch.setenv("VOXBATCH_FFMPEG", str(program))

    return prepare


@pytest.fixture
def mka(recording: Recorder, tmp_path: Path) -> Path:
    """Return a recording that ffmpeg decodes."""
    path = tmp_path / "a.mka"
    subprocess.run([executable(), "-v", "error", "-i", recording("a.wav", 20), "-c", "copy", path], check=True)
    return path


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge a hang after seconds, not minutes."""
    monkeypatch.setattr(process_pool, "HANG_TIMEOUT_S", 5.0)
    monkeypatch.setattr(process_pool, "BUSY_TIMEOUT_S", 15.0)
    monkeypatch.setattr(hang_detector, "MIN_CPU_S", 0.1)


@pytest.mark.parametrize("delay", [HANGS, pytest.param(RUNS_FOREVER, marks=pytest.mark.long)])
@pytest.mark.usefixtures("short_limits")
def test_item_that_hangs_twice_fails(
    recording: Recorder, mka: Path, slow_ffmpeg: Callable[[str, int], None], delay: str
) -> None:
    """A decoder whose ffmpeg hangs, idle or busy, is killed. Its item is retried once, and then fails alone."""
    slow_ffmpeg(delay, 2)
    before = psutil.Process().children(recursive=True)  # servers of other tests
    with DecoderPool(1) as pool:
        ended = ends(pool.run(tasks([mka, recording("b.wav", 0.5)])))
    end = ended[0]
    assert isinstance(end, Undecodable)
    assert end.failure.message == f"cannot decode {mka}: the decoder of the retry hung"
    assert end.failure.retryable
    assert isinstance(ended[1], Decoded)
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert not [child for child in left if child.name() in ("sleep", "sh")]


PYTHON_THAT_IS_KILLED = """
import os, signal
starts = os.open({starts!r}, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
if os.fstat(starts).st_size < {kills}:
    os.write(starts, b".")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kills", [process_pool.MAX_KILLED_STARTS, 99])
def test_a_decoder_that_is_killed_while_it_starts_is_replaced(
    recording: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """A decoder that is killed before its first message costs no item. If that happens to each, the run stops."""
    path, starts = recording("a.wav", 0.5), tmp_path / "starts"
    (tmp_path / "sitecustomize.py").write_text(PYTHON_THAT_IS_KILLED.format(starts=str(starts), kills=kills))
    monkeypatch.syspath_prepend(tmp_path)  # a decoder gets the import path of this process
    with DecoderPool(1) as pool:
        if kills == 99:
            with pytest.raises(RunError, match=r"decoder processes do not start here \(killed by signal 9\)"):
                list(pool.run(tasks([path])))
        else:
            assert isinstance(ends(pool.run(tasks([path])))[0], Decoded)
    assert starts.stat().st_size == min(kills, process_pool.MAX_KILLED_STARTS + 1)


def test_a_decoder_whose_messages_are_not_read_does_not_count_as_hung(
    recording: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoders that wait while an engine loads its model for minutes do not count as hung."""
    monkeypatch.setattr(process_pool, "HANG_TIMEOUT_S", 2.0)
    slept = 0
    ended: dict[int, Message] = {}
    with DecoderPool(3) as pool:
        for message in pool.run(tasks(recording(f"{i}.wav", 40) for i in range(6))):
            if slept < 1:
                slept += 1
                time.sleep(2.5)
            ended[message.item] = message
    assert all(isinstance(message, Decoded) for message in ended.values()), ended


def test_too_long_recording_fails_before_any_chunk(recording: Recorder) -> None:
    """A recording whose header and size prove that it is too long fails without a chunk, and permanently. A part of it
    that is short enough is decoded.
    """
    path = str(recording("long.wav", 100))
    given = [(0.0, None), (0.0, 20.0), (0.0, 21.0), (80.0, None), (79.0, None), (80.0, 90.0)]
    parts = [
        DecodeTask(i, path, offset, duration, None, None, LIMIT, max_samples=20 * 16_000)
        for i, (offset, duration) in enumerate(given)
    ]
    with DecoderPool(1) as pool:
        messages = list(pool.run(iter(parts)))
    ended = ends(messages)
    assert [isinstance(ended[i], Decoded) for i in range(6)] == [False, True, False, True, False, True]
    assert {message.item for message in messages if isinstance(message, Chunk)} == {1, 3, 5}
    failed = ended[0]
    assert isinstance(failed, Undecodable)
    assert (failed.failure.error, failed.failure.retryable, failed.retry) == ("AudioError", False, None)
    assert failed.failure.message == (
        f"cannot decode {path}: it has 0.03 hours of audio, and at most 0.005555555556 are allowed; raise --max-hours, "
        "or split it with `offset` and `duration`"
    )


def test_decoded_hours_are_counted_if_the_header_does_not_prove_them(recording: Recorder, tmp_path: Path) -> None:
    """Headers of MP3 files are not certain: such a recording fails when it reaches the limit."""
    paths = [tmp_path / "long.mp3", tmp_path / "fitting.mp3"]
    for path, seconds in zip(paths, (100, 39), strict=True):
        samples, rate = soundfile.read(recording("speech.wav", seconds))
        soundfile.write(path, samples, rate)
    limited = (replace(task, max_samples=40 * 16_000) for task in tasks(paths))
    with DecoderPool(1) as pool:
        messages = list(pool.run(limited))
    ended = ends(messages)
    assert isinstance(ended[1], Decoded)
    failed = ended[0]
    assert isinstance(failed, Undecodable)
    assert "it has more than 0.01111111111 hours of audio" in failed.failure.message
    assert not failed.failure.retryable


class _Runs:
    """An object whose pickle calls a function where it is read."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("/nowhere/made",)


class _Reaches:
    """An object whose pickle asks for an attribute of a record's class."""

    def __reduce__(self) -> tuple[object, tuple[object, str]]:
        return getattr, (DecodeTask, "__init__")


@pytest.mark.parametrize(
    "message", [_Runs(), (None, _Runs()), _Reaches(), subprocess.run, DecoderPool.run, ChildProcess]
)
def test_a_decoder_sends_records_alone(message: object) -> None:
    """A message with anything but records counts as the end of the decoder, and nothing in it is called."""
    ours, theirs = Pipe()
    with ours, theirs:
        theirs.send(message)
        with pytest.raises(EOFError, match=r"is no (record of a message|enumeration)"):
            receive(ours)
        record = Undecodable(1, Failure(FailureKind.DECODER, "text"), None, next(tasks(["a.wav"])))
        theirs.send(record)
        assert receive(ours) == record
