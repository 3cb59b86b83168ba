"""OUT in a bucket keeps a store's promises on three real servers, whatever the network and the servers do meanwhile."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from servers import BUSY, WEATHER, Asked, Fault, Place, Reply, refused, share

from voxbatch.errors import StorageError
from voxbatch.storage import Access, at_once, bucket, connect, gcs, open_recording, open_store, s3, steady
from voxbatch.storage.bucket import STREAMS
from voxbatch.storage.objects import Unfit
from voxbatch.storage.steady import ATTEMPTS

pytestmark = [
    pytest.mark.slow,  # starts servers
    # Clients leave the socket of a reply that broke off to the garbage collector, which the fixture here calls.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

either = pytest.mark.parametrize("place", ["google", "amazon"], indirect=True)
"""Where a third server would tell nothing new."""
amazon_only = pytest.mark.parametrize("place", ["amazon"], indirect=True)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, so that small objects have many."""
    monkeypatch.setattr(bucket, "HEAD_BYTES", 100)
    monkeypatch.setattr(bucket, "BLOCK_BYTES", 300)
    monkeypatch.setattr(bucket, "IN_MEMORY_BYTES", 1000)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads to S3 in parts of the least size that it takes. Cloud Storage's client does so from 8 MB on."""
    monkeypatch.setattr(s3, "SINGLE_BYTES", 5 << 20)
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)


LARGE = bytes(range(256)) * (9 << 12)
"""9 MiB: more than is kept in memory."""


# ── what a store promises ─────────────────────────────────────────────────────────────────────────────────────────────


def test_round_trip(place: Place) -> None:
    """What is written is read, whole or by lines; what is absent is None, and deleting it is nothing."""
    store = open_store(place.uri)
    assert store.prepare() is None
    assert store.names("") == []
    assert store.create("parts/x/1.jsonl", [b"one\n", b"two"])
    assert store.read("parts/x/1.jsonl") == b"one\ntwo"
    assert list(store.lines("parts/x/1.jsonl")) == [b"one\n", b"two"]
    assert store.exists("parts/x/1.jsonl")
    assert not store.exists("parts/x")
    assert store.read("parts/x/2.jsonl") is None
    store.delete("parts/x/1.jsonl")
    store.delete("parts/x/1.jsonl")
    assert store.read("parts/x/1.jsonl") is None
    assert not store.exists("parts/x/1.jsonl")
    with pytest.raises(StorageError, match=r"run 1/missing: there is no such object"):
        list(store.lines("missing"))


def test_create_only_once(place: Place) -> None:
    """The second creation does nothing and says so; the same bytes are the same creation; writing replaces."""
    store = place.store()
    assert store.create("a", [b"first"])
    assert not store.create("a", [b"other"])
    assert not store.create("a", [b"more bytes"])
    assert store.create("a", [b"fi", b"rst"])
    assert store.read("a") == b"first"
    store.write("a", [b"third"])
    assert store.read("a") == b"third"
    assert store.names("") == ["a"]


def test_one_request(place: Place) -> None:
    """When nothing goes wrong each call is one request: the clients repeat and add nothing."""
    store = place.store()
    store.create("a", [b"x"])
    store.read("a")
    store.exists("a")
    store.names("")
    store.delete("a")
    store.read("a")
    verbs = [asked.verb for asked in place.proxy.log]
    assert verbs == ["put", "get", "stat", "list", "delete", "get"]


@pytest.mark.usefixtures("small")
def test_sizes(place: Place) -> None:
    """Objects of every size about the edges of blocks come back, and their lines do, however long."""
    store = place.store()
    for size in (0, 1, 99, 100, 101, 399, 400, 401, 1000, 1001, 1400, 2500):
        lines = [b"%d\n" % i if i % 5 else b"long" * i + b"\n" for i in range(size)]
        data = b"".join(lines)[:size]
        assert store.create(f"{size}", [data[:7], data[7:]])
        assert store.read(f"{size}") == data
        assert list(store.lines(f"{size}")) == data.splitlines(keepends=True)


@pytest.mark.usefixtures("small")
def test_lines_left_early(place: Place) -> None:
    """Whoever wants the first line only pays for the first block."""
    store = place.store()
    store.create("a", [b"line\n" * 10_000])
    lines = store.lines("a")
    assert next(lines) == b"line\n"
    lines.close()
    assert place.asked("get") == 1


@pytest.mark.usefixtures("parts")
def test_large(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is too large for memory goes through a file and up in pieces, is created once too, and comes back."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = place.store()
    assert store.create("large.bin", [LARGE[:1000], LARGE[1000:]])
    assert place.asked("put") == (2 if place.server.scheme == "gs" else 4)  # to begin, the parts, and to end
    assert store.read("large.bin") == LARGE
    assert b"".join(store.lines("large.bin")) == LARGE
    assert place.server.look(place.bucket, "run 1/large.bin") == (LARGE, "application/octet-stream")
    if place.server.scheme == "gs":  # as the real one answers; the emulator asks nothing of an upload in pieces
        place.proxy.spoil = lambda asked: Reply(412) if asked.verb == "put" else ""
    assert not store.create("large.bin", [LARGE[1000:], LARGE[:1000]])
    assert store.create("large.bin", [LARGE])
    assert place.look("large.bin") == LARGE
    assert os.listdir(tmp_path) == []


def test_gathered_on_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too large for memory goes to the disk while it comes: merged outputs have no bound."""
    monkeypatch.setattr(bucket, "IN_MEMORY_BYTES", 1 << 20)
    peaks = []

    def pieces() -> Iterator[bytes]:
        tracemalloc.start()
        for _ in range(32):
            yield bytes(1 << 20)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert place.store().create("a", pieces())
    assert peaks[0] < 8 << 20
    assert len(place.look("a")) == 32 << 20


def test_one_client(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that come together share one client: each other one would log in again."""
    place.put("a", b"abc")
    made = []
    for kind in (gcs.GoogleBucket, s3.AmazonBucket):
        monkeypatch.setattr(kind, "renew", lambda self, renew=kind.renew: made.append(1) or renew(self))
    together = threading.Barrier(8)

    def read(_: int) -> None:
        together.wait()
        open_recording(f"{place.uri}/a").close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))
    assert len(made) == 1


def test_connections_are_kept(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """As many connections are kept open as there are calls at a time."""
    store = place.store()
    together = threading.Barrier(STREAMS)
    place.proxy.spoil = lambda asked: "" if together.wait() < STREAMS else "503"
    list(at_once(store, lambda i: store.write(f"{i}.txt", [b"x"]), range(STREAMS)))
    assert "Connection pool is full" not in caplog.text


def test_large_in_one(place: Place) -> None:
    """What goes up in one request though it is large comes back: a store may keep it in pieces, without a checksum."""
    store = place.store()
    assert store.create("a", [LARGE])
    assert store.read("a") == LARGE
    assert store.create("a", [LARGE])
    stat = store._objects.stat("run 1/a")
    assert b"".join(store._objects.stream(stat)) == LARGE
    assert stat.size == len(LARGE)


def test_past_the_end(place: Place) -> None:
    """Bytes behind the end of an object, or of an empty one, are none; the revision is told all the same."""
    objects = place.store()._objects
    for key, data in (("full", b"0123456789"), ("empty", b"")):
        place.server.put(place.bucket, key, data)
        stat = objects.stat(key)
        assert objects.get(key, 0, 100).tag == stat.tag
        for start in (10, 11, 500):
            for tag in ("", stat.tag):
                piece = objects.get(key, start, start + 10, tag)
                assert (piece.data, piece.tag) == (b"", stat.tag)
        place.server.put(place.bucket, key, b"another!!!")
        with pytest.raises(Unfit, match=f"{key}: it was replaced meanwhile"):
            objects.get(key, 0, 100, stat.tag)


def test_content_types(place: Place) -> None:
    """Outputs open in a browser as what they are."""
    store = place.store()
    kinds = {
        "a.json": "application/json",
        "a.jsonl": "application/jsonl; charset=utf-8",
        "a.srt": "application/x-subrip; charset=utf-8",
        "a.vtt": "text/vtt; charset=utf-8",
        "a.txt": "text/plain; charset=utf-8",
        "a.html": "text/html; charset=utf-8",
        "a": "application/octet-stream",
    }
    for name in kinds:
        store.create(name, [b"x"])
    assert {name: place.server.look(place.bucket, f"run 1/{name}")[1] for name in kinds} == kinds


ODD = [
    "parts/ü é.txt",
    "parts/%2F",
    "parts/a#b",
    "parts/a+b",
    "parts/a?b=c&d",
    "parts/'\"",
    "parts/日本/語",
    "parts/~*!()",
]


def test_odd_names(place: Place) -> None:
    """A name is taken as it is, in whichever way an address would have to be written."""
    store = place.store()
    for name in ODD:
        assert store.create(name, [name.encode()])
        assert not store.create(name, [b"other"])
    assert store.names("parts") == sorted(ODD)
    for name in ODD:
        assert place.look(name) == store.read(name) == name.encode()
        store.delete(name)
    assert store.names("") == []


def test_names(place: Place) -> None:
    """Names below a folder come sorted and relative to the place; neighbours' do not, nor what shows a folder."""
    store = place.store()
    store.prepare()
    for name in ("parts/b", "parts/a/2", "parts/a/1", "parts-2/x", "other"):
        store.create(name, [b""])
    assert store.names("parts") == ["parts/a/1", "parts/a/2", "parts/b"]
    assert store.names("parts/") == store.names("parts")
    assert store.names("missing") == []
    assert store.names("") == ["other", "parts-2/x", "parts/a/1", "parts/a/2", "parts/b"]


def test_pages(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a listing join, whatever stands at their seams."""
    names = sorted(f"{a}{b}{c}" for a in ("a", "b") for b in ("!", "-", "/", "0", "z/", "ü") for c in ("1", "2"))
    store = place.store()
    for name in names:
        store.create(name, [b"x"])
    for page in (1, 2, 3, 5, 24):
        monkeypatch.setattr(steady, "PAGE", page)
        assert store.names("") == names


def test_whole_bucket(place: Place) -> None:
    """A bucket may itself be OUT."""
    store = open_store(f"{place.server.scheme}://{place.bucket}/")
    assert store.prepare() is None
    store.create("a/b", [b"x"])
    assert store.names("") == ["a/b"]
    assert place.server.look(place.bucket, "a/b")[0] == b"x"


# ── creation, when others create or replies are lost ──────────────────────────────────────────────────────────────────


def test_prepared(place: Place) -> None:
    """A store that creates only what is absent gives no warning, to the first run nor to the next, which asks once."""
    assert place.store().prepare() is None
    place.proxy.forget()
    assert place.store().prepare() is None
    assert place.asked("put") == 1
    assert place.store().names("") == []


@either
def test_deaf_store(place: Place) -> None:
    """A store that replaces what it was told to leave alone is found out at the start, each time."""

    def unconditional(asked: Asked) -> Asked:
        headers = {name: value for name, value in asked.headers.items() if name != "if-none-match"}
        return replace(asked, path=asked.path.replace("ifGenerationMatch=0", "x=y"), headers=headers)

    place.proxy.rewrite = unconditional
    for _ in range(2):
        warning = place.store().prepare()
        assert warning
        assert place.uri in warning
        assert "create-if-absent" in warning
        assert "run one at a time, or choose another store" in warning


@pytest.mark.parametrize("before", [[], ["503"], ["lost"]], ids=["first", "retry", "both"])
@pytest.mark.parametrize("fault", ["lost", "lost-503", "cut"])
def test_lost_reply(place: Place, before: list[Fault], fault: Fault) -> None:
    """A creation whose reply is lost is known again as our own, and another's is not, at whichever attempt."""
    store = place.store()
    place.proxy.faults["a"] = [*before, fault]
    assert store.create("a", [b"ours"])
    assert place.look("a") == b"ours"
    place.put("b", b"them")
    place.proxy.faults["b"] = [*before, fault]
    assert not store.create("b", [b"ours"])
    assert place.look("b") == b"them"


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("fault", ["lost", "lost-503"])
def test_lost_reply_of_parts(place: Place, fault: Fault) -> None:
    """The same for what goes up in pieces: the reply to the last of them counts."""
    is_google = place.server.scheme == "gs"
    pieces: list[Fault] = [""] if is_google else ["", "", ""]
    refusal: list[Fault] = [Reply(412)] if is_google else []  # see test_large
    store = place.store()
    place.proxy.faults["a"] = [*pieces, fault, *refusal]
    assert store.create("a", [LARGE])
    assert not place.proxy.faults["a"]
    assert place.look("a") == LARGE
    place.put("b", LARGE[::-1])
    place.proxy.faults["b"] = [*refusal] if is_google else [*pieces, fault]
    assert not store.create("b", [LARGE])
    assert place.look("b") == LARGE[::-1]


WRITERS = 16
PARTS = {"gs": 200, "s3": 30}
"""200 on each took 85 s in all, and ended alike."""


def test_racing_writers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 writers that race for the same parts one wins each, and whoever lost reads what the winner wrote."""
    for name, value in place.server.settings(f"http://127.0.0.1:{place.server.port}").items():
        monkeypatch.setenv(name, value)
    stores = [place.store() for _ in range(WRITERS)]
    start = threading.Barrier(WRITERS)

    def race(writer: int) -> list[bytes | None]:
        """The parts as this writer sees them, None where it won."""
        own, seen = b"<%d>" % writer * 100, []
        start.wait()
        for i in range(PARTS[place.server.scheme]):
            won = stores[writer].create(f"parts/{i}", [own])
            seen.append(None if won else stores[writer].read(f"parts/{i}"))
        return seen

    with ThreadPoolExecutor(WRITERS) as pool:
        ends = list(pool.map(race, range(WRITERS)))
    for seen in zip(*ends, strict=True):
        (winner,) = [writer for writer, text in enumerate(seen) if text is None]
        assert set(seen) == {None, b"<%d>" % winner * 100}


# ── bad days ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a server that says nothing."""
    monkeypatch.setattr(gcs, "TIMEOUT_S", (5, 0.5))
    monkeypatch.setattr(s3, "READ_S", 0.5)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("seed", [1, 2])
def test_faults_everywhere(place: Place, seed: int) -> None:
    """With one request in ten spoilt in every way there is, a run's parts are all written, once, and read."""
    texts = {f"parts/{i:02}.jsonl": b"%d\n" % i * i * 50 for i in range(60)}
    place.proxy.spoil = share(0.1, WEATHER, seed)
    place.proxy.stall_s = 2
    store = place.store()
    assert store.prepare() is None
    assert all(at_once(store, lambda name: store.create(name, [texts[name]]), texts))
    assert not any(at_once(store, lambda name: store.create(name, [b"other"]), texts))
    assert list(at_once(store, store.read, texts)) == list(texts.values())
    assert store.names("parts") == sorted(texts)
    assert all(b"".join(store.lines(name)) == text for name, text in texts.items())
    assert place.proxy.spoilt > 10
    # Of each object: two puts, a look for the second, two reads; so many and a tenth more, and a look for lost replies.
    assert place.asked() <= 60 * 5 * 1.5
    bounds = {"put": 2 * ATTEMPTS, "stat": 2 * ATTEMPTS, "get": 2 * ATTEMPTS, "list": ATTEMPTS}
    assert all(count <= bounds[verb] for (verb, _), count in place.proxy.counts().items())


@either
def test_outage(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes that fail for a while all succeed when it is over."""
    monkeypatch.delenv(steady.NO_WAIT)
    monkeypatch.setattr(steady, "FIRST_WAIT_S", 0.1)
    monkeypatch.setattr(steady, "LONGEST_WAIT_S", 0.5)
    over = threading.Event()
    place.proxy.spoil = lambda asked: "503" if asked.verb == "put" and not over.is_set() else ""
    timer = threading.Timer(0.6, over.set)
    timer.start()
    store = place.store()
    names = [f"{i}" for i in range(8)]
    assert all(at_once(store, lambda name: store.create(name, [name.encode()]), names))
    timer.join()
    assert place.asked("put") > len(names)
    assert [place.look(name) for name in names] == [name.encode() for name in names]


@either
@pytest.mark.parametrize("fault", ["503", "429", BUSY, "500", "reset", "408"])
def test_no_end(place: Place, fault: Fault) -> None:
    """What goes on failing is given up after a known number of attempts; the error says how many, and the way out."""
    place.proxy.spoil = lambda asked: fault
    store = place.store()
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("write", lambda: store.create("a", [b"x"])),
        ("read", lambda: store.read("a")),
        ("read", lambda: store.exists("a")),
        ("list", lambda: store.names("a")),
        ("delete", lambda: store.delete("a")),
        ("read", lambda: list(store.lines("a"))),
    ]
    for verb, call in calls:
        place.proxy.forget()
        text = refused(call)
        assert text.startswith(f"cannot {verb} {place.uri}/a")
        assert text.endswith(f": start again ({ATTEMPTS} attempts failed)" if fault != "reset" else "attempts failed)")
        assert place.asked() == ATTEMPTS


@pytest.mark.usefixtures("parts")
@either
def test_no_end_of_parts(place: Place) -> None:
    """The same where only the last request of an upload fails; what lets others go on with it is not told."""
    place.proxy.spoil = lambda asked: "reset" if asked.verb == "put" and asked.number % 2 == 0 else ""
    text = refused(lambda: place.store().create("a", [LARGE]))
    assert text.startswith(f"cannot write {place.uri}/a: the connection failed ")
    assert "upload_id" not in text
    assert "uploadId" not in text
    assert not place.store().exists("a")


@either
def test_half_bodies(place: Place) -> None:
    """Half a body is never taken for the whole, whether the connection or the server's own count ends it."""
    store = place.store()
    store.create("a", [b"0123456789" * 100])
    for fault in ("cut", "short"):
        place.proxy.forget()
        place.proxy.faults["a"] = [fault, fault]
        assert store.read("a") == b"0123456789" * 100
        assert place.asked("get") == 3
        place.proxy.spoil = lambda asked, fault=fault: fault if asked.verb == "list" and asked.number % 3 else ""
        assert store.names("") == ["a"]


@either
def test_no_listing(place: Place) -> None:
    """What is no listing, though a server says 200, is not taken for an empty one: a run would start anew on that."""
    place.store().create("a", [b"x"])
    page = Reply(200, (("Content-Type", "text/html"),), b"<html>Welcome to our network</html>")
    place.proxy.spoil = lambda asked: page if asked.number < 5 else ""
    assert place.store().names("") == ["a"]
    assert place.asked("list") == 4


@pytest.mark.usefixtures("parts")
@amazon_only
def test_late_failure(place: Place) -> None:
    """S3 may say "200 OK" first and then that an upload's last step failed: that is a failure."""
    late = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>Please try again.</Message></Error>"
    place.proxy.faults["a"] = ["", "", "", Reply(200, (), late)]
    assert place.store().create("a", [LARGE])
    assert not place.proxy.faults["a"]
    assert place.look("a") == LARGE


@pytest.mark.usefixtures("parts", "small")
@amazon_only
def test_half_a_block(place: Place) -> None:
    """Nor is half a stretch taken for the end of an object, though a server gives no checksum of it."""
    place.store().create("a", [LARGE])
    with closing(place.store().lines("a")) as lines:
        first = next(lines)
        place.proxy.faults["a"] = ["short", "short"]
        assert first + next(lines) + next(lines) == LARGE[: len(first) + 512]
    assert not place.proxy.faults["a"]


@either
def test_long_listing(place: Place) -> None:
    """A listing of several pages gives each object once and in order, though every second page breaks off."""
    keys = [f"run 1/{i:05}" for i in range(2_600)]
    place.server.fill(place.bucket, keys)
    place.proxy.spoil = lambda asked: ("cut", "503", "reset", "")[asked.number % 4]
    found = [stat.key for stat in connect.bucket(place.server.scheme, place.bucket, Access()).list("run 1/")]
    assert all(a < b for a, b in pairwise(found))
    assert found == keys
    assert place.asked("list") <= 20
