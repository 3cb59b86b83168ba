"""Tests for OUT in a bucket: the promises of a store hold on three real servers, also when the network or a server
fails.
"""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from servers import BUSY, WEATHER, Asked, Fault, Place, Reply, placed, refused, share

from voxbatch.errors import StorageError
from voxbatch.storage import StoreOptions, Stores, bucket, connect, parallel_map, retrying_client
from voxbatch.storage.bucket import STREAMS
from voxbatch.storage.errors import UnusableObject
from voxbatch.storage.retry import STORE_REQUEST
from voxbatch.stores import gcs, s3

pytestmark = [
    pytest.mark.slow,  # starts servers
    # Clients leave the socket of an interrupted reply to the garbage collector, which the fixture here runs.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

either = pytest.mark.parametrize("place", ["google", "amazon"], indirect=True)
"""Parameters for tests in which a third server would show nothing new."""
amazon_only = pytest.mark.parametrize("place", ["amazon"], indirect=True)


@pytest.fixture(params=["google", "amazon", "seaweed"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Yield an OUT in a new bucket on each of the servers."""
    with placed(request.getfixturevalue(request.param), monkeypatch) as out:
        yield out


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small blocks, so that small objects have many."""
    monkeypatch.setattr(bucket, "HEAD_BYTES", 100)
    monkeypatch.setattr(bucket, "BLOCK_BYTES", 300)
    monkeypatch.setattr(bucket, "IN_MEMORY_BYTES", 1000)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upload to S3 in parts of the smallest permitted size; Cloud Storage's client uploads in parts from 8 MB on."""
    monkeypatch.setattr(s3, "SINGLE_BYTES", 5 << 20)
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)


LARGE = bytes(range(256)) * (9 << 12)
"""9 MiB: more than is kept in memory."""


# ── promises of a store ───────────────────────────────────────────────────────────────────────────────────────────────


def test_round_trip(place: Place) -> None:
    """Written data is read back, whole or by lines; an absent object is None, and deleting it does nothing."""
    store = Stores().out(place.uri)
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


def test_create_writes_only_once(place: Place) -> None:
    """A second creation does nothing and returns False, unless its bytes are the same and the object is still there to
    be compared; `write` replaces the object.
    """
    store = place.store()
    assert store.create("a", [b"first"])
    assert not store.create("a", [b"other"])
    assert not store.create("a", [b"more bytes"])
    assert store.create("a", [b"fi", b"rst"])
    place.proxy.spoil = lambda asked: "404" if asked.verb == "stat" else ""
    assert not store.create("a", [b"first"])
    place.proxy.spoil = lambda asked: ""
    assert store.read("a") == b"first"
    store.write("a", [b"third"])
    assert store.read("a") == b"third"
    assert store.names("") == ["a"]


def test_each_call_is_one_request(place: Place) -> None:
    """Each call is one request if there are no faults: the clients add neither retries nor other requests. The check of
    the store is one write in each run but the first.
    """
    assert place.store().prepare() is None
    place.proxy.forget()
    store = place.store()
    assert store.prepare() is None
    assert place.asked("put") == 1
    place.proxy.forget()
    store.create("a", [b"x"])
    store.read("a")
    store.exists("a")
    store.names("")
    store.delete("a")
    store.read("a")
    verbs = [asked.verb for asked in place.proxy.log]
    assert verbs == ["put", "get", "stat", "list", "delete", "get"]


@pytest.mark.usefixtures("small")
@either
def test_objects_near_block_boundaries_are_read_whole(place: Place) -> None:
    """Objects of all sizes near block boundaries are read back correctly, and so are their lines of any length."""
    store = place.store()
    for size in (0, 1, 99, 100, 101, 399, 400, 401, 1000, 1001, 1400, 2500):
        lines = [b"%d\n" % i if i % 5 else b"long" * i + b"\n" for i in range(size)]
        data = b"".join(lines)[:size]
        assert store.create(f"{size}", [data[:7], data[7:]])
        assert store.read(f"{size}") == data
        assert list(store.lines(f"{size}")) == data.splitlines(keepends=True)


@pytest.mark.usefixtures("small")
@either
def test_first_line_fetches_only_the_first_block(place: Place) -> None:
    """A reader that stops after the first line fetches only the first block."""
    store = place.store()
    store.create("a", [b"line\n" * 10_000])
    lines = store.lines("a")
    assert next(lines) == b"line\n"
    lines.close()
    assert place.asked("get") == 1


@pytest.mark.usefixtures("parts")
def test_large_object_is_uploaded_in_parts(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Data too large for memory goes through a temporary file, is uploaded in parts and only once, and is read back."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = place.store()
    assert store.create("large.bin", [LARGE[:1000], LARGE[1000:]])
    # one request to begin, the parts, and one to end
    assert place.asked("put") == (2 if place.server.scheme == "gs" else 4)
    assert store.read("large.bin") == LARGE
    assert b"".join(store.lines("large.bin")) == LARGE
    assert place.server.look(place.bucket, "run 1/large.bin") == (LARGE, "application/octet-stream")
    if place.server.scheme == "gs":  # answer like the real service; the emulator does not check uploads in parts
        place.proxy.spoil = lambda asked: Reply(412) if asked.verb == "put" else ""
    assert not store.create("large.bin", [LARGE[1000:], LARGE[:1000]])
    assert store.create("large.bin", [LARGE])
    assert place.look("large.bin") == LARGE
    assert os.listdir(tmp_path) == []


@either
def test_large_data_is_gathered_on_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data too large for memory is written to disk while it arrives, because merged outputs have no size limit."""
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


@either
def test_threads_share_one_client(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that start together share one client, because each additional client would log in again."""
    place.put("a", b"abc")
    made = []
    for kind in (gcs.GoogleBucket, s3.AmazonBucket):

        def renew_counted(self: Any, renew: Callable[[Any], Any] = kind.renew) -> Any:
            made.append(1)
            return renew(self)

        monkeypatch.setattr(kind, "renew", renew_counted)
    together = threading.Barrier(8)

    def read(_: int) -> None:
        together.wait()
        Stores().recording(f"{place.uri}/a").close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))
    assert len(made) == 1


@either
def test_connections_are_kept_open(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """As many connections are kept open as there are concurrent calls."""
    store = place.store()
    together = threading.Barrier(STREAMS)
    place.proxy.spoil = lambda asked: "" if together.wait() < STREAMS else "503"
    list(parallel_map(store.concurrency, lambda i: store.write(f"{i}.txt", [b"x"]), range(STREAMS)))
    assert "Connection pool is full" not in caplog.text


def test_large_object_in_one_request_is_read_back(place: Place) -> None:
    """A large object uploaded in one request is read back; the store may keep it in parts without a checksum."""
    store = place.store()
    assert store.create("a", [LARGE])
    assert store.read("a") == LARGE
    assert store.create("a", [LARGE])
    stat = store._objects.stat("run 1/a")
    assert b"".join(store._objects.stream(stat)) == LARGE
    assert stat.size == len(LARGE)


def test_read_past_the_end_gives_the_revision(place: Place) -> None:
    """Reading behind the end of an object, or in an empty one, gives no bytes, but still gives the revision."""
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
        with pytest.raises(UnusableObject, match=f"{key}: it was replaced meanwhile"):
            objects.get(key, 0, 100, stat.tag)


@either
def test_outputs_have_content_types(place: Place) -> None:
    """Outputs have content types with which a browser displays them correctly."""
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


ODD = [f"parts/{name}" for name in ("ü é.txt", "%2F", "a#b", "a+b", "a?b=c&d", "'\"", "日本/語", "~*!()")]


def test_special_characters_in_names_are_kept(place: Place) -> None:
    """A name with special characters is used unchanged, whatever escaping an address would need."""
    store = place.store()
    for name in ODD:
        assert store.create(name, [name.encode()])
        assert not store.create(name, [b"other"])
    assert store.names("parts") == sorted(ODD)
    for name in ODD:
        assert place.look(name) == store.read(name) == name.encode()
        store.delete(name)
    assert store.names("") == []


def test_names_are_sorted_and_relative(place: Place) -> None:
    """Names below a folder are sorted and relative to OUT, without those of neighbouring prefixes and placeholders."""
    store = place.store()
    store.prepare()
    for name in ("parts/b", "parts/a/2", "parts/a/1", "parts-2/x", "other"):
        store.create(name, [b""])
    assert store.names("parts") == ["parts/a/1", "parts/a/2", "parts/b"]
    assert store.names("parts/") == store.names("parts")
    assert store.names("missing") == []
    assert store.names("") == ["other", "parts-2/x", "parts/a/1", "parts/a/2", "parts/b"]


def test_listing_joins_its_pages(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages of a listing are joined correctly, whatever names are at their boundaries."""
    names = sorted(f"{a}{b}{c}" for a in ("a", "b") for b in ("!", "-", "/", "0", "z/", "ü") for c in ("1", "2"))
    store = place.store()
    for name in names:
        store.create(name, [b"x"])
    for page in (1, 2, 3, 5, 24):
        monkeypatch.setattr(retrying_client, "LISTING_PAGE_SIZE", page)
        assert store.names("") == names


def test_whole_bucket_can_be_out(place: Place) -> None:
    """A whole bucket can be OUT."""
    store = Stores().out(f"{place.server.scheme}://{place.bucket}/")
    assert store.prepare() is None
    store.create("a/b", [b"x"])
    assert store.names("") == ["a/b"]
    assert place.server.look(place.bucket, "a/b")[0] == b"x"


# ── creation with concurrent writers and lost replies ─────────────────────────────────────────────────────────────────


@either
def test_store_that_ignores_create_if_absent_is_detected(place: Place) -> None:
    """A store that ignores create-if-absent is detected at the start of each run."""

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


def test_create_with_a_lost_reply_counts_as_written(place: Place) -> None:
    """A creation whose reply is lost is recognized as our own at any attempt, and another writer's object is not."""
    store = place.store()
    attempts = product(((), ("503",), ("lost",)), ("lost", "lost-503", "cut"))
    for number, (before, fault) in enumerate(attempts):
        ours, theirs = f"ours-{number}", f"theirs-{number}"
        place.proxy.faults[ours] = [*before, fault]
        assert store.create(ours, [b"ours"])
        assert place.look(ours) == b"ours"
        place.put(theirs, b"them")
        place.proxy.faults[theirs] = [*before, fault]
        assert not store.create(theirs, [b"ours"])
        assert place.look(theirs) == b"them"


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("fault", ["lost", "lost-503"])
def test_upload_in_parts_with_a_lost_reply_counts_as_written(place: Place, fault: Fault) -> None:
    """The same holds for an upload in parts, where the reply to the last request counts."""
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


WRITERS = 8
PARTS = {"gs": 12, "s3": 4}
"""Number of parts per server. 200 on each took 85 s in total, with the same result."""


def test_one_of_racing_writers_creates(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """If 8 writers race for the same parts, exactly one wins each part, and the others read the winner's bytes."""
    for name, value in place.server.settings(f"http://127.0.0.1:{place.server.port}").items():
        monkeypatch.setenv(name, value)
    stores = [place.store() for _ in range(WRITERS)]
    start = threading.Barrier(WRITERS)

    def race(writer: int) -> list[bytes | None]:
        """Return the parts as this writer reads them, with None for each part that it created."""
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


# ── faults ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set short timeouts for silent servers, which those that are only slow do not reach."""
    monkeypatch.setattr(gcs, "TIMEOUT_S", (60, 5))
    monkeypatch.setattr(s3, "READ_S", 5)


@pytest.mark.usefixtures("hasty")
@either
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_all_parts_are_written_once_despite_faults(place: Place, seed: int) -> None:
    """With one request in ten failing in every known way, all parts of a run are written once and read back."""
    texts = {f"parts/{i:02}.jsonl": b"%d\n" % i * i * 50 for i in range(40)}
    place.proxy.spoil = share(0.1, WEATHER, seed)
    place.proxy.stall_s = 60
    store = place.store()
    assert store.prepare() is None
    assert all(parallel_map(store.concurrency, lambda name: store.create(name, [texts[name]]), texts))
    assert not any(parallel_map(store.concurrency, lambda name: store.create(name, [b"other"]), texts))
    assert list(parallel_map(store.concurrency, store.read, texts)) == list(texts.values())
    assert store.names("parts") == sorted(texts)
    assert all(b"".join(store.lines(name)) == text for name, text in texts.items())
    assert place.proxy.spoilt > 6
    # Each object takes two puts, one look-up for the second, and two reads; a tenth more for faults, and look-ups for
    # lost replies.
    assert place.asked() <= len(texts) * 5 * 1.5
    calls = {"put": 2, "stat": 2, "get": 2, "list": 1}
    counts = place.proxy.counts().items()
    assert all(count <= calls[verb] * STORE_REQUEST.attempts for (verb, _), count in counts)


@either
@pytest.mark.parametrize("fault", ["503", BUSY, "reset"])
def test_lasting_fault_ends_after_all_attempts(place: Place, fault: Fault) -> None:
    """A call that keeps failing stops after a fixed number of attempts; the error gives that number and the remedy."""
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
        assert text.endswith(
            f": start again ({STORE_REQUEST.attempts} attempts failed)" if fault != "reset" else "attempts failed)"
        )
        assert place.asked() == STORE_REQUEST.attempts


@pytest.mark.usefixtures("parts")
@either
def test_lasting_fault_of_the_last_part_ends_after_all_attempts(place: Place) -> None:
    """The same holds if only the last request of an upload fails; the error does not show the upload id."""
    place.proxy.spoil = lambda asked: "reset" if asked.verb == "put" and asked.number % 2 == 0 else ""
    text = refused(lambda: place.store().create("a", [LARGE]))
    assert text.startswith(f"cannot write {place.uri}/a: the connection failed ")
    assert "upload_id" not in text
    assert "uploadId" not in text
    assert not place.store().exists("a")


@either
def test_half_a_body_is_never_accepted(place: Place) -> None:
    """Half a body is never accepted as the whole, whether the connection or a wrong length ends it."""
    store = place.store()
    store.create("a", [b"0123456789" * 100])
    for fault in ("cut", "short"):
        place.proxy.forget()
        place.proxy.faults["a"] = [fault, fault]
        assert store.read("a") == b"0123456789" * 100
        assert place.asked("get") == 3

        def spoil(asked: Asked, fault: Fault = fault) -> Fault:
            return fault if asked.verb == "list" and asked.number % 3 else ""

        place.proxy.spoil = spoil
        assert store.names("") == ["a"]


@either
def test_reply_that_is_no_listing_is_an_error(place: Place) -> None:
    """A reply 200 that is no listing is not mistaken for an empty one, which would restart the run from nothing."""
    place.store().create("a", [b"x"])
    page = Reply(200, (("Content-Type", "text/html"),), b"<html>Welcome to our network</html>")
    place.proxy.spoil = lambda asked: page if asked.number < 5 else ""
    assert place.store().names("") == ["a"]
    assert place.asked("list") == 4


@pytest.mark.usefixtures("parts")
@amazon_only
def test_late_failure_of_an_upload_is_noticed(place: Place) -> None:
    """S3 may answer "200 OK" and then report that the last step of an upload failed; this counts as a failure."""
    late = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>Please try again.</Message></Error>"
    place.proxy.faults["a"] = ["", "", "", Reply(200, (), late)]
    assert place.store().create("a", [LARGE])
    assert not place.proxy.faults["a"]
    assert place.look("a") == LARGE


@pytest.mark.usefixtures("parts", "small")
@amazon_only
def test_half_a_block_is_not_the_end(place: Place) -> None:
    """Half a block is not mistaken for the end of an object, even without a checksum."""
    place.store().create("a", [LARGE])
    with closing(place.store().lines("a")) as lines:
        first = next(lines)
        place.proxy.faults["a"] = ["short", "short"]
        assert first + next(lines) + next(lines) == LARGE[: len(first) + 512]
    assert not place.proxy.faults["a"]


@either
def test_broken_listing_gives_each_object_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of several pages gives each object once and in order, although most of its replies break off."""
    monkeypatch.setattr(retrying_client, "LISTING_PAGE_SIZE", 100)
    keys = [f"run 1/{i:05}" for i in range(110)]
    place.server.fill(place.bucket, keys)
    place.proxy.spoil = lambda asked: ("cut", "503", "reset", "")[asked.number % 4]
    found = [stat.key for stat in connect.bucket(place.server.scheme, place.bucket, StoreOptions()).list("run 1/")]
    assert all(a < b for a, b in pairwise(found))
    assert found == keys
    assert place.asked("list") <= 20
