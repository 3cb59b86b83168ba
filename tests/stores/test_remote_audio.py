"""Tests for recordings in buckets: they are prefetched, read in blocks if large, never mix revisions, and do not fail
because the network fails.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import servers
import soundfile

from voxbatch.audio.waveforms import decode
from voxbatch.decoding import Decoded, DecoderPool, DecodeTask, Message, Undecodable
from voxbatch.errors import AudioError, StorageError
from voxbatch.storage import Stores, remote_recording
from voxbatch.storage.errors import UnusableObject
from voxbatch.storage.prefetch import Prefetcher
from voxbatch.storage.recording import BLOCK_BYTES
from voxbatch.storage.request_pool import FETCH_THREADS
from voxbatch.storage.retry import STORE_REQUEST

pytestmark = pytest.mark.slow

LIMIT = 30 * 16_000


class Bucket:
    """A bucket behind a proxy, with local copies of its recordings."""

    def __init__(self, server: servers.Server, proxy: servers.Proxy, folder: Path):
        self.server, self.proxy, self.folder = server, proxy, folder
        self.name = f"audio-{uuid.uuid4().hex[:8]}"
        server.make(self.name)

    def put(self, key: str, data: bytes) -> str:
        self.server.put(self.name, key, data)
        return f"{self.server.scheme}://{self.name}/{key}"

    def speech(self, key: str, seconds: float, seed: int = 0) -> str:
        """Upload noise of this duration, keep a local copy, and return the address."""
        path = self.folder / key.replace("/", "_")
        soundfile.write(path, np.random.default_rng(seed).normal(0, 0.05, round(seconds * 16_000)), 16_000)
        return self.put(key, path.read_bytes())

    def local(self, key: str) -> str:
        return str(self.folder / key.replace("/", "_"))


@pytest.fixture(params=servers.mainly("google", "amazon", "seaweed"))
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    server: servers.Server = request.getfixturevalue(request.param)
    with servers.led_through(server, monkeypatch) as proxy:
        yield Bucket(server, proxy, tmp_path)


def samples(uri: str, offset: float = 0.0, duration: float | None = None, block_bytes: int = BLOCK_BYTES) -> bytes:
    """Return the bytes of the decoded samples."""
    with closing(Stores().recording(uri, block_bytes=block_bytes)) as recording:
        blocks = decode(recording, uri, offset=offset, duration=duration)
        return b"".join(block.samples.tobytes() for block in blocks)


def task(item: int, uri: str) -> DecodeTask:
    return DecodeTask(item, uri, 0.0, None, None, None, LIMIT)


def decoded(*uris: str, workers: int = 2) -> list[Message]:
    """Return all messages of a decoder pool for these recordings."""
    with DecoderPool(workers) as pool:
        return list(pool.run(task(i, uri) for i, uri in enumerate(uris)))


def failures(messages: list[Message]) -> dict[int, str]:
    return {each.item: each.failure.message for each in messages if isinstance(each, Undecodable)}


def done(messages: list[Message]) -> set[int]:
    return {each.item for each in messages if isinstance(each, Decoded)}


def asked(bucket: Bucket, key: str) -> int:
    """Return the number of requests for an object."""
    return sum(count for (_, name), count in bucket.proxy.counts().items() if name == key)


# ── one recording ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_small_recording_is_one_request(bucket: Bucket) -> None:
    """A small recording is fetched whole in one request."""
    uri = bucket.speech("a b/ü#1.flac", 2.0)
    assert samples(uri) == samples(bucket.local("a b/ü#1.flac"))
    assert asked(bucket, "a b/ü#1.flac") == 1


def test_large_recording_is_fetched_in_blocks(bucket: Bucket) -> None:
    """A large recording is fetched in blocks, each once; ffmpeg gets the whole file."""
    uri = bucket.speech("long.wav", 60.0)  # 1.9 MB
    assert samples(uri, block_bytes=100_000) == samples(bucket.local("long.wav"))
    assert asked(bucket, "long.wav") == 20 + 1  # and one request for the size
    with (
        closing(Stores().recording(uri, block_bytes=100_000)) as recording,
        open(recording.fileno(), "rb", closefd=False) as f,
    ):
        assert f.read() == Path(bucket.local("long.wav")).read_bytes()


def test_part_of_a_large_recording_fetches_little_more(bucket: Bucket) -> None:
    """Decoding a part of a large recording fetches little more than that part."""
    uri = bucket.speech("long.wav", 60.0)
    assert samples(uri, 30.0, 1.0, block_bytes=20_000) == samples(bucket.local("long.wav"), 30.0, 1.0)
    assert asked(bucket, "long.wav") < 40  # of 96 blocks; BLOCK_SECONDS are decoded at a time


def test_worker_reports_while_it_waits_for_a_recording(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that waits for a large recording reports that it is alive, because a silent worker counts as hung."""
    monkeypatch.setattr(remote_recording, "WAITING_S", 0.01)
    uri = bucket.speech("long.wav", 10.0)
    heard, came = threading.Event(), []

    def spoil(request: servers.Asked) -> servers.Fault:
        heard.wait(20)
        came.append(request)
        return ""

    with closing(Stores().recording(uri, block_bytes=100_000)) as opened:
        calls = []

        def on_wait() -> None:
            calls.append(len(came))
            heard.set()

        opened.on_wait = on_wait
        bucket.proxy.spoil = spoil
        with open(opened.fileno(), "rb", closefd=False) as file:
            assert file.read() == Path(bucket.local("long.wav")).read_bytes()
    assert calls[0] == 0


def test_failed_block_is_requested_again(bucket: Bucket) -> None:
    """A block that failed is requested again later, when the store may have recovered."""
    uri = bucket.speech("long.wav", 60.0)
    with closing(Stores().recording(uri, block_bytes=100_000)) as opened:
        bucket.proxy.spoil = lambda request: "503"
        with pytest.raises(StorageError, match="attempts failed"):
            opened.pread(100, 1_000_000)
        bucket.proxy.spoil = lambda request: ""
        assert opened.pread(100, 1_000_000) == Path(bucket.local("long.wav")).read_bytes()[1_000_000:1_000_100]


# the third server verifies a signature of the header that is changed here
@pytest.mark.parametrize("bucket", ["google", "amazon"], indirect=True)
def test_blocks_with_a_wrong_checksum_fail_the_recording(bucket: Bucket) -> None:
    """Blocks that do not match the checksum of the whole are a failure of that recording, not of the store."""
    uri = bucket.speech("long.wav", 20.0)

    def elsewhere(request: servers.Asked) -> servers.Asked:
        span = request.headers.get("range", "").replace("bytes=100000-199999", "bytes=200000-299999")
        return replace(request, headers={**request.headers, **({"range": span} if span else {})})

    bucket.proxy.rewrite = elsewhere
    with (
        closing(Stores().recording(uri, block_bytes=100_000)) as opened,
        pytest.raises(UnusableObject, match=r"long\.wav: bytes of it arrived damaged and were decoded"),
    ):
        opened.pread(opened.size, 0)


@pytest.mark.parametrize("bucket", ["amazon"], indirect=True)
def test_archived_object_is_refused(bucket: Bucket) -> None:
    """An archived object is refused with that reason, not as a missing permission."""
    uri = bucket.put("a.wav", b"x")
    server = cast(servers.AmazonServer, bucket.server)
    server.client.put_object(Bucket=bucket.name, Key="a.wav", Body=b"x", StorageClass="GLACIER")
    with pytest.raises(AudioError, match=r"a\.wav: it is archived \(.*\): restore it"):
        samples(uri)


# ── many recordings ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_recordings_are_prefetched_concurrently(bucket: Bucket) -> None:
    """A worker runs FETCH_THREADS requests concurrently: in this test no reply is sent before all were received."""
    uris = [bucket.speech(f"{i}.wav", 0.5, seed=i) for i in range(FETCH_THREADS)]
    together = threading.Barrier(FETCH_THREADS, timeout=60)
    bucket.proxy.spoil = lambda request: "" if together.wait() < FETCH_THREADS else "503"
    messages = decoded(*uris, workers=1)
    assert done(messages) == set(range(FETCH_THREADS))


def test_items_of_one_recording_share_its_bytes(bucket: Bucket) -> None:
    """Consecutive items of one recording share the fetched bytes, which are dropped after the last of them."""
    uri, other = bucket.speech("a.wav", 2.0), bucket.speech("b.wav", 2.0)
    prefetcher = Prefetcher(Stores().recording)
    wanted = [prefetcher.start(uri), prefetcher.start(uri), prefetcher.start(other)]
    for each in wanted:
        with prefetcher.opened(each, lambda: None) as recording:
            assert recording.size == Path(bucket.local("a.wav")).stat().st_size
    with prefetcher.opened(prefetcher.start(uri), lambda: None):
        pass
    assert (asked(bucket, "a.wav"), asked(bucket, "b.wav")) == (2, 1)


def test_recordings_are_retried_after_an_outage(bucket: Bucket) -> None:
    """Recordings that were unreachable during an outage are retried once something arrives. An outage that outlasts all
    attempts, but not the run, costs no recording.
    """
    uris = [bucket.speech(f"{i}.wav", 0.5) for i in range(10)]
    lock, over, tried = threading.Lock(), threading.Event(), Counter[str]()

    def spoil(request: servers.Asked) -> servers.Fault:
        if request.name in ("8.wav", "9.wav"):  # started after the first has failed, and before the others have
            over.wait(60)
            return ""
        with lock:
            tried[request.name] += 1
            if sum(tried.values()) == 8 * STORE_REQUEST.attempts:
                over.set()
            return "503" if tried[request.name] <= STORE_REQUEST.attempts else ""

    bucket.proxy.spoil = spoil
    messages = decoded(*uris, workers=1)
    assert done(messages) == set(range(10))
    assert not failures(messages)


# the emulator of Cloud Storage checks no credentials
@pytest.mark.parametrize("bucket", ["amazon", "seaweed"], indirect=True)
def test_expired_credentials_stop_the_run(bucket: Bucket) -> None:
    """A store that rejects the credentials stops the run, whatever arrived before: the recordings are not at fault."""
    uris = [bucket.speech(f"{i}.wav", 0.5) for i in range(3)]
    expired = b"<Error><Code>ExpiredToken</Code><Message>The token has expired</Message></Error>"
    reply, came = servers.Reply(400, (("Content-Type", "application/xml"),), expired), threading.Event()
    bucket.proxy.spoil = lambda request: reply if came.is_set() else ""
    told: list[Message] = []

    def tasks() -> Iterator[DecodeTask]:
        yield task(0, uris[0])
        while not done(told):
            yield task(100 + len(told), bucket.local("0.wav"))
        came.set()
        yield from (task(i, uri) for i, uri in enumerate(uris[1:], 1))

    with DecoderPool(1) as pool, pytest.raises(StorageError, match="credentials"):
        told.extend(pool.run(tasks()))
    assert not failures(told)


def test_a_full_disk_stops_the_run(bucket: Bucket, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk stops the run with its name, and is not recorded as a failure of the recording."""
    monkeypatch.setenv("TMPDIR", str(small_disk))
    uris = [bucket.speech("a.wav", 0.5), bucket.put("b.m4a", bytes(5 << 20)), bucket.speech("c.wav", 0.5)]
    told: list[Message] = []
    with DecoderPool(1) as pool, pytest.raises(StorageError, match=r"b\.m4a: cannot be stored in .*/disk: .*No space"):
        told.extend(pool.run(task(i, uri) for i, uri in enumerate(uris)))
    assert not failures(told)


def test_a_missing_bucket_stops_the_run(bucket: Bucket) -> None:
    """A missing bucket stops the run with its name, before any item is recorded as failed."""
    uris = [f"{bucket.server.scheme}://no-{bucket.name}/{i}.wav" for i in range(3)]
    if bucket.server.scheme == "gs":  # the emulator says less than the real store
        gone = b'{"error": {"code": 404, "message": "The specified bucket does not exist."}}'
        bucket.proxy.spoil = lambda request: servers.Reply(404, (("Content-Type", "application/json"),), gone)
    with pytest.raises(StorageError, match=f"there is no bucket no-{bucket.name}: check its name"):
        decoded(*uris)
