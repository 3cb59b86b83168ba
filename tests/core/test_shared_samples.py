"""Tests for samples in shared memory: they arrive unchanged in each process that gets their descriptor, and a process
runs out of no descriptors.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from conftest import ManifestWriter, Recorder, Voxbatch, environment
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.decoding import Decoded, DecoderPool, DecodeTask
from voxbatch.decoding import pool as process_pool
from voxbatch.decoding.decoder import MAX_SAMPLES_AHEAD, Allowance
from voxbatch.engines import Feed
from voxbatch.engines.engine_process import EngineProcess
from voxbatch.records import Chunk, Hypothesis, Samples, Span
from voxbatch.shared_samples import SharedSamples


@contextlib.contextmanager
def connections() -> Iterator[tuple[Connection, Connection]]:
    """Yield the two ends of a connection."""
    one, other = socket.socketpair()
    with Connection(one.detach()) as sender, Connection(other.detach()) as receiver:
        yield sender, receiver


def passed_on(shared: SharedSamples) -> SharedSamples:
    """Return what the other end of a connection receives."""
    with connections() as (sender, receiver):
        sender.send(shared)
        shared.send(sender)
        received: SharedSamples = receiver.recv()
        received.receive(receiver)
    return received


def open_files() -> int:
    """Return the number of files in memory that this process has open: other files may be closed by the collector."""
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sum("memfd:" in target for target in targets)


@given(st.lists(st.floats(-1, 1, width=32), max_size=50), st.integers(0, 2))
def test_samples_arrive_unchanged(values: list[float], stages: int) -> None:
    """Samples are the same after any number of processes that pass them on, mapped there or not, and leave no file."""
    samples, before = np.array(values, np.float32)[::-1], open_files()
    shared = SharedSamples.of(samples)
    for _ in range(stages):
        shared = passed_on(passed_on(shared))
        assert shared.array.tolist() == samples.tolist()
    assert shared.array.tolist() == samples.tolist()
    assert len(shared) == len(samples)
    del shared
    assert open_files() == before


def test_changes_stay_in_a_process() -> None:
    """An engine that changes its samples changes neither those of the process that sent them, nor those of a retry."""
    shared = SharedSamples.of(np.ones(3, np.float32))
    received = passed_on(shared)
    received.array[:] = 0
    assert passed_on(shared).array.tolist() == shared.array.tolist() == [1, 1, 1]


def test_samples_are_copied_if_descriptors_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """With half of the descriptors in use, the samples that arrive take none."""
    in_use = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (in_use, in_use))
    before = open_files()
    received = passed_on(SharedSamples.of(np.ones(3, np.float32)))
    assert open_files() == before
    assert received.array.tolist() == passed_on(received).array.tolist() == [1, 1, 1]


@pytest.mark.slow
def test_more_chunks_than_files(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A run whose engine works on more chunks than the system admits open files gives the bytes of any other run."""
    path = manifest(*[0.5 + number % 7 / 10 for number in range(200)])
    options = [
        "--engine", "scripted", "--decoders", "1", "--engine-option", "own_process=true",
        "--engine-option", "concurrency=200", "--engine-option", "delay_s=0.5",
    ]  # fmt: skip
    assert voxbatch("run", path, "-o", "free", *options).returncode == 0
    done = subprocess.run(
        [sys.executable, "-m", "voxbatch", "run", path, "-o", tmp_path / "limited", *options],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)),
        env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outputs = [(tmp_path / out / "transcripts.jsonl").read_bytes() for out in ("free", "limited")]
    assert outputs[0] == outputs[1]


def test_a_decoder_waits_for_the_parent() -> None:
    """A decoder sends MAX_SAMPLES_AHEAD samples, then waits until the parent has received some. A longer chunk goes
    alone."""
    received_fd = os.eventfd(0)
    allowance, taken = Allowance(received_fd), list[int]()

    def take() -> None:
        for size in (MAX_SAMPLES_AHEAD - 10, 10, 1, 3 * MAX_SAMPLES_AHEAD):
            allowance.take(size)
            taken.append(size)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(0.2)
    assert len(taken) == 2
    os.eventfd_write(received_fd, 10)
    thread.join(0.2)
    assert len(taken) == 3
    os.eventfd_write(received_fd, MAX_SAMPLES_AHEAD - 10)
    os.eventfd_write(received_fd, 1)
    thread.join(10)
    assert len(taken) == 4
    os.close(received_fd)


DIES_ONCE = """
import os, signal, sys
if "decoding.decoder" in sys.orig_argv[-2]:
    from voxbatch.shared_samples import SharedSamples
    send = SharedSamples.send
    def dying(shared, connection):
        if len(os.listdir({folder!r})) < 4:
            open(os.path.join({folder!r}, str(len(os.listdir({folder!r})))), "w").close()
            if len(os.listdir({folder!r})) == 4:
                os.kill(os.getpid(), signal.SIGKILL)
        send(shared, connection)
    SharedSamples.send = dying
"""


@pytest.mark.slow
def test_a_decoder_that_dies_between_message_and_samples_loses_nothing(
    recording: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder is killed after it has told of its fourth chunk. Each chunk comes once, with its samples."""
    task = DecodeTask(0, str(recording("long.wav", 120)), 0.0, None, None, None, 240_000)

    def decoded() -> tuple[list[tuple[Span, bytes]], bool]:
        with DecoderPool(1) as pool:
            *chunks, end = pool.run(iter([task]))
        return [(chunk.span, chunk.samples.tobytes()) for chunk in chunks if isinstance(chunk, Chunk)], isinstance(
            end, Decoded
        )

    # A model that another test has kept keeps decoders, too, and they do not read sitecustomize again.
    monkeypatch.setattr(process_pool, "warm_pool", process_pool.WarmPool())
    undisturbed = decoded()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DIES_ONCE.format(folder=str(tmp_path / "sent")))
    (tmp_path / "sent").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert decoded() == undisturbed
    assert len(os.listdir(tmp_path / "sent")) == 4


@pytest.mark.slow
def test_a_retry_has_the_samples_again(tmp_path: Path) -> None:
    """The samples of chunks that an engine's process had when it died reach the next process, shared or not."""
    from fragile_engine import FragileEngine

    engine = EngineProcess(FragileEngine(str(tmp_path / "died")))
    rng = np.random.default_rng(0)
    clips = [rng.normal(0, 0.1, 1000 + number).astype(np.float32) for number in range(6)]
    feed = Feed(1 << 20)
    for number, clip in enumerate(clips):
        audio: Samples | SharedSamples = passed_on(SharedSamples.of(clip)) if number % 2 else clip
        feed.put(Chunk(number, 0, audio, Span(0, len(clip), 0, len(clip))))
    feed.close()
    results = {result.item: result.text for result in engine.stream(feed) if isinstance(result, Hypothesis)}
    engine.close()
    assert results == {number: FragileEngine.text_of(clip) for number, clip in enumerate(clips)}
    assert json.loads((tmp_path / "died").read_text()) == 4
