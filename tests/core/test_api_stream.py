"""Tests for segments as they come, for asyncio, and for the model that is kept between calls."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import ROOT, Recorder, gone
from holds import Hold

import voxbatch as vb
from voxbatch.api import kept_model
from voxbatch.api.kept_model import keeper

pytestmark = pytest.mark.slow
RECORDINGS = ROOT / "examples" / "recordings"
CHUNKS: dict[str, Any] = {"engine": "scripted", "engine_options": {"max_chunk_s": 15, "concurrency": 1}}


@pytest.fixture(autouse=True)
def no_kept_model() -> Iterator[None]:
    """Unload the model that a call keeps for the next one."""
    yield
    keeper.unload()


@pytest.fixture
def hold(tmp_path: Path) -> Hold:
    """Return a hold at which the engine waits."""
    return Hold(tmp_path / "hold", after=4)


def is_idle() -> bool:
    """Return whether the threads of a recording have ended."""
    names = {thread.name for thread in threading.enumerate()}
    return not names & {"voxbatch-transcribe", "engine", "decode"}


def idle_within(seconds: float) -> bool:
    """Return whether they end in this time."""
    limit = time.monotonic() + seconds
    while not is_idle() and time.monotonic() < limit:
        time.sleep(0.02)
    return is_idle()


# ── segments ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "concurrency": 8}, {"words": False}])
def test_streamed_segments_are_those_of_the_transcript(options: dict[str, Any], recording: Recorder) -> None:
    """A stream gives the segments of `transcribe`, in order, and has the transcript at its end."""
    path = recording("a.wav", 100)
    with vb.Transcriber(engine="scripted", engine_options={"max_chunk_s": 15, **options}) as transcriber:
        stream = transcriber.stream(path, offset=3)
        assert stream.transcript is None or stream.transcript.words
        segments = list(stream)
        assert tuple(segments) == transcriber.transcribe(path, offset=3).segments
        assert stream.transcript == transcriber.transcribe(path, offset=3)
        assert list(stream) == []


@pytest.mark.timeout(400)
def test_a_real_model_streams_within_a_chunk() -> None:
    """Whisper's segments come window by window, long before a recording of one chunk is done."""
    path = RECORDINGS / "street-garden.ogg"
    with vb.Transcriber() as transcriber:
        expected = transcriber.transcribe(path).segments
        at, begin = list[float](), time.monotonic()
        segments = []
        for segment in transcriber.stream(path):
            segments.append(segment)
            at.append(time.monotonic() - begin)
        assert tuple(segments) == expected
        assert at[0] < at[-1] / 2


def test_segments_come_before_the_end(hold: Hold, recording: Recorder) -> None:
    """Segments come while the engine works on a later chunk."""
    path = recording("a.wav", 90)
    options = {**CHUNKS["engine_options"], **hold.engine_options}
    with vb.stream(path, engine="scripted", engine_options=options) as stream:
        segment = next(stream)
        has_ended = stream.transcript is not None
        hold.release()
        assert (segment.start, has_ended) == (0.0, False)
        assert len(list(stream)) > 1


def test_an_error_comes_after_the_segments_before_it(recording: Recorder, tmp_path: Path) -> None:
    """A recording that fails raises the error of `transcribe`, also as the first thing."""
    options: dict[str, Any] = {"engine": "scripted", "engine_options": {"fail_items": "0"}}
    with pytest.raises(vb.ItemError, match="scripted to fail"):
        list(vb.stream(recording("a.wav", 2), **options))
    with pytest.raises(vb.AudioError, match=r"cannot open .*gone\.mp3"):
        next(vb.stream(tmp_path / "gone.mp3", engine="scripted"))
    with pytest.raises(vb.ConfigError, match="option mdoel: unknown; did you mean model"):
        vb.stream(tmp_path / "gone.mp3", mdoel="x")  # type: ignore[call-arg]


@pytest.mark.parametrize("way", ["block", "close", "reference", "exception"])
def test_leaving_a_stream_stops_the_work(way: str, hold: Hold, recording: Recorder) -> None:
    """However a loop is left, the threads end, and the engine takes the next recording."""
    path = recording("a.wav", 600)
    options = {"max_chunk_s": 15, "delay_s": 0.2, "concurrency": 1}
    with vb.Transcriber(engine="scripted", engine_options=options) as transcriber:
        if way == "block":
            with transcriber.stream(path) as stream:
                next(stream)
        elif way == "close":
            stream = transcriber.stream(path)
            next(stream)
            stream.close()
            with pytest.raises(vb.Cancelled, match="the transcription was stopped"):
                list(stream)
        elif way == "reference":
            for _ in transcriber.stream(path):
                break
            gc.collect()
        else:
            with contextlib.suppress(ZeroDivisionError), transcriber.stream(path) as stream:
                next(stream)
                raise ZeroDivisionError
        assert idle_within(10)
        assert transcriber.transcribe(path, duration=2).audio_duration == 2


def test_closing_a_transcriber_stops_its_streams(recording: Recorder) -> None:
    """A stream that somebody still holds does not keep the transcriber open."""
    options = {"max_chunk_s": 15, "delay_s": 0.2, "concurrency": 1}
    with vb.Transcriber(engine="scripted", engine_options=options) as transcriber:
        stream = transcriber.stream(recording("a.wav", 600))
        next(stream)
    assert idle_within(10)
    with pytest.raises(vb.Cancelled, match="the transcription was stopped"):
        list(stream)


def test_closing_a_transcriber_stops_the_streams_that_wait(recording: Recorder) -> None:
    """No stream is worked on to its end, or begun, because another one is closed before it."""
    path = recording("a.wav", 600)
    options = {"max_chunk_s": 15, "delay_s": 0.2, "concurrency": 1}
    transcriber = vb.Transcriber(engine="scripted", engine_options=options)
    streams = [transcriber.stream(path) for _ in range(8)]
    next(streams[0])
    streams[-1].close()  # one that waits does not wait for the one in progress
    assert streams[0].transcript is None
    begin = time.monotonic()
    transcriber.close()
    assert time.monotonic() - begin < 5  # one recording takes 8 s
    assert all(stream.transcript is None for stream in streams)


# ── asyncio ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_asyncio_transcribes_and_streams(recording: Recorder) -> None:
    """`await` and `async for` give what the other calls give, and the event loop goes on meanwhile."""
    path = recording("a.wav", 60)

    async def both() -> tuple[vb.Transcript, list[vb.Segment], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticker = asyncio.create_task(tick())
        transcript = await vb.transcribe_async(path, **CHUNKS)
        async with vb.stream(path, **CHUNKS) as stream:
            segments = [segment async for segment in stream]
        ticker.cancel()
        return transcript, segments, ticks

    transcript, segments, ticks = asyncio.run(both())
    assert transcript == vb.transcribe(path, **CHUNKS)
    assert tuple(segments) == transcript.segments
    assert ticks > 5


def test_streams_that_wait_leave_the_executor_of_asyncio_free(hold: Hold, recording: Recorder) -> None:
    """asyncio's own threads, which also look up addresses, do not wait for the segments of streams."""
    path = recording("a.wav", 90)
    options = {**CHUNKS["engine_options"], **hold.engine_options}

    async def count(stream: vb.SegmentStream) -> int:
        return len([segment async for segment in stream])

    async def wait_beside(transcriber: vb.Transcriber) -> list[int]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        tasks = [asyncio.create_task(count(transcriber.stream(path))) for _ in range(3)]
        await asyncio.sleep(0)
        try:
            await asyncio.wait_for(asyncio.to_thread(hold.reached), 30)
        finally:
            hold.release()
        return await asyncio.gather(*tasks)

    with vb.Transcriber(engine="scripted", engine_options=options) as transcriber:
        counts = asyncio.run(wait_beside(transcriber))
    assert counts[0] > 1
    assert counts == [counts[0]] * 3


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_cancelled_task_stops_the_work(is_stream: bool, recording: Recorder) -> None:
    """A task that is cancelled while it waits ends the work, and the event loop closes."""
    path = recording("a.wav", 600)
    slow: dict[str, Any] = {"engine": "scripted", "engine_options": {"max_chunk_s": 15, "delay_s": 0.2}}

    async def wait_for_all() -> None:
        if is_stream:
            async for _ in vb.stream(path, **slow, offset=1):
                pass
        else:
            await vb.transcribe_async(path, **slow)

    async def cancelled() -> None:
        task = asyncio.create_task(wait_for_all())
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    begin = time.monotonic()
    asyncio.run(cancelled())
    assert idle_within(10)
    assert time.monotonic() - begin < 15


# ── the model that is kept ────────────────────────────────────────────────────────────────────────────────────────────


def loads(caplog: pytest.LogCaptureFixture) -> int:
    """Return how often the scripted engine has loaded its model."""
    return sum("is loaded" in message for message in caplog.messages)


def test_a_model_is_loaded_once_for_equal_options(recording: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    """Calls with the same options load the model once, from any thread; others load theirs, and a run unloads it."""
    caplog.set_level("INFO", "voxbatch")
    paths = [recording(f"{i}.wav", 1 + i) for i in range(6)]
    options: dict[str, Any] = {"engine": "scripted", "engine_options": {"load_s": 0.01}}
    durations = [0.0] * len(paths)

    def transcribe(at: int) -> None:
        durations[at] = vb.transcribe(paths[at], **options).audio_duration

    threads = [threading.Thread(target=transcribe, args=(at,)) for at in range(len(paths))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert durations == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert list(vb.stream(paths[0], **options))
    assert loads(caplog) == 1
    vb.transcribe(paths[0], language="en", **options)
    assert loads(caplog) == 2
    vb.Transcriber(engine="scripted").close()
    vb.transcribe(paths[0], language="en", **options)
    assert loads(caplog) == 3


def test_calls_with_different_options_do_not_disturb_each_other(recording: Recorder) -> None:
    """A call whose model another call has replaced goes on with it to its end."""
    path = recording("a.wav", 60)
    slow: dict[str, Any] = {"engine": "scripted", "engine_options": {"max_chunk_s": 15, "delay_s": 0.3}}
    stream = vb.stream(path, **slow)
    next(stream)
    assert vb.transcribe(path, **CHUNKS).words
    assert len(list(stream)) > 0
    assert stream.transcript is not None


def test_a_kept_model_is_unloaded(recording: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run, and some time without a call, end the processes that are kept for the next call."""
    path, before = recording("a.wav", 2), set(psutil.Process().children())
    vb.transcribe(path, engine="scripted")
    kept = set(psutil.Process().children()) - before
    assert len(kept) == 1
    vb.run(path, tmp_path / "out", engine="scripted")
    assert gone(list(kept), 10)
    monkeypatch.setattr(kept_model, "KEPT_S", 0.2)
    vb.transcribe(path, engine="scripted")
    assert gone(list(set(psutil.Process().children()) - before), 10)
