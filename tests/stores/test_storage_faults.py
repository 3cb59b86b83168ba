"""Tests for stores that do what no store should: an object that cannot be read, listings that are cut off or old, error
pages with status 200, replies that never end, and writes that arrive late.
"""

from __future__ import annotations

import json
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import environment
from fork_server import ForkServer
from outputs import RUN, keys
from servers import Asked, Fault, GoogleServer, Place, Proxy, Reply, Server, led_through, mainly, refused

from voxbatch.errors import TakenOverError
from voxbatch.output import run_file
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.lists import Listing
from voxbatch.output.merge import merge
from voxbatch.output.own_files import OwnFiles, sha256
from voxbatch.output.parts import PartEntry
from voxbatch.output.reserve import reserve
from voxbatch.output.stored_json import json_bytes
from voxbatch.storage import StoreOptions, connect, retrying_client
from voxbatch.storage.columns import ItemSet
from voxbatch.storage.retry import STORE_REQUEST
from voxbatch.storage.waits import RetryWait, longest_wait
from voxbatch.stores import reply_deadline

pytestmark = pytest.mark.slow  # starts servers

ITEMS = 12
ENGINE = ("--engine", "scripted", "--decoders", "1", "--formats", "srt", "--log-format", "text")


class Calls:
    """Recordings in a bucket behind a proxy, and runs of them."""

    def __init__(self, server: Server, proxy: Proxy, folder: Path, fork_server: ForkServer):
        self.server, self.proxy, self.out, self._fork_server = server, proxy, folder / "out", fork_server
        self.bucket = f"calls-{uuid.uuid4().hex[:8]}"
        self.root = f"{server.scheme}://{self.bucket}"
        server.make(self.bucket)
        for i in range(ITEMS):
            soundfile.write(folder / "x.wav", np.random.default_rng(i).normal(0, 0.05, 8_000 + 100 * i), 16_000)
            server.put(self.bucket, f"day/{i:02}.wav", (folder / "x.wav").read_bytes())

    def run(self, *options: str, out: str = "") -> tuple[int, str]:
        """Transcribe the recordings, and return the exit code and the messages."""
        command = ("run", f"{self.root}/day/", "-o", out or str(self.out), *ENGINE, *options)
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = self._fork_server.start(
            command, environment(VOXBATCH_NO_WAIT="1"), self.out.parent, **quiet, forks_children=True
        )
        _, messages = process.communicate()
        return process.returncode, messages


@pytest.fixture(params=mainly("google", "amazon"))
def calls(
    request: pytest.FixtureRequest, tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Calls]:
    with led_through(request.getfixturevalue(request.param), monkeypatch) as proxy:
        yield Calls(request.getfixturevalue(request.param), proxy, tmp_path, fork_server)


@pytest.mark.parametrize(
    ("calls", "fault"),
    [
        ("google", "short"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("amazon", "403"), ("google", "500"), ("amazon", "cut"))
        ),
    ],
    indirect=["calls"],
)
def test_one_unreadable_object_fails_alone(calls: Calls, fault: Fault) -> None:
    """An object that never arrives whole is a failure of its item, also if nothing else is left to fetch: then its
    place is asked for another object. The run is merged."""

    def spoil(asked: Asked) -> Fault:
        return fault if asked.name == "07.wav" and asked.verb == "get" else ""

    assert calls.run("--limit", "7")[0] == 0
    calls.proxy.spoil = spoil
    code, messages = calls.run("--limit", "8")
    assert code == 3, messages
    (failure,) = (calls.out / "failures.jsonl").read_text().splitlines()
    assert json.loads(failure)["id"].endswith("07.wav")
    assert json.loads(failure)["retryable"]
    calls.proxy.spoil = lambda asked: ""
    code, messages = calls.run("--limit", "8", "--retry-failed")
    assert code == 0, messages


@pytest.mark.parametrize("calls", ["google"], indirect=True)
def test_a_place_that_delivers_nothing_else_stops_the_run(calls: Calls) -> None:
    """An outage at the end of a run fails no item, because the place does not deliver other objects either."""
    assert calls.run("--limit", "7")[0] == 0
    calls.proxy.spoil = lambda asked: "503" if asked.name.endswith(".wav") else ""
    code, messages = calls.run("--limit", "8")
    assert (code, "nothing arrived from" in messages) == (1, True), messages
    calls.proxy.spoil = lambda asked: ""
    assert calls.run("--limit", "8")[0] == 0
    assert len((calls.out / "transcripts.jsonl").read_text().splitlines()) == 8


# ── listings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def listing(*keys: str, further: str = "<IsTruncated>false</IsTruncated>") -> Reply:
    """Return a page of a listing of S3. The real servers of the tests always list correctly."""
    entry = "<Contents><Key>{}</Key><Size>1</Size><ETag>&quot;1&quot;</ETag>"
    entry += "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
    text = f"<ListBucketResult>{''.join(map(entry.format, keys))}{further}</ListBucketResult>"
    return Reply(200, (("Content-Type", "application/xml"),), text.encode())


def listed(place: Place) -> list[str]:
    """Return the keys of a listing by a new client."""
    client = connect.bucket.__wrapped__("s3", place.bucket, StoreOptions())
    return [stat.key for stat in client.list("day/")]


@pytest.mark.parametrize("place", ["amazon"], indirect=True)
def test_listing_that_is_cut_off_is_an_error(place: Place) -> None:
    """A page of S3 that says that more follows, and not where, is asked for again, and is never the end."""
    keys = [f"day/{i}" for i in range(10, 40)]
    place.server.fill(place.bucket, keys)
    cut_off = listing(*keys[:4], further="<IsTruncated>true</IsTruncated>")
    place.proxy.spoil = lambda asked: cut_off if asked.number <= 3 else ""
    assert listed(place) == keys
    place.proxy.spoil = lambda asked: cut_off
    assert "the listing is cut off" in refused(lambda: listed(place))


@pytest.mark.parametrize("place", ["amazon"], indirect=True)
def test_listing_of_a_server_without_start_after(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of S3 that ignores StartAfter is refused: it would list for ever."""
    keys = [f"day/{i}" for i in range(10, 40)]
    place.server.fill(place.bucket, keys)
    monkeypatch.setattr(retrying_client, "LISTING_PAGE_SIZE", 7)
    place.proxy.spoil = lambda asked: listing(*keys)
    assert "lists 'day/10' again, and never what follows" in refused(lambda: listed(place))


@pytest.mark.parametrize("place", ["amazon"], indirect=True)
def test_stale_listing_does_not_hide_that_all_is_done(place: Place) -> None:
    """A shard that has just finished finds its own record, and the list of its run, though the listing lacks them."""
    store = place.store()
    run = reserve(store, RUN, Listing(keys=keys(2))).run

    def stale(asked: Asked) -> Fault:
        if asked.verb != "list":
            return ""
        prefix = asked.query["prefix"][0]
        return listing(*sorted(f"run 1/{name}" for name in old if f"run 1/{name}".startswith(prefix)))

    checkpoint = Checkpoint(store, run, keys(2))
    checkpoint.load()
    old = set(store.names("")) - {"lists/00001.bin"}
    place.proxy.spoil = stale
    checkpoint.commit([PartEntry(i, "failure", b'{"id": "0"}') for i in range(2)], 1.0)
    assert not checkpoint.are_all_complete()
    checkpoint.mark_complete(ItemSet(2, is_full=True))
    assert checkpoint.are_all_complete()


# ── slow replies ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", ["google", "amazon"], indirect=True)
def test_reply_that_comes_byte_by_byte_is_abandoned(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply whose bytes come too slowly is abandoned, the progress shows that the request is repeated, and the next
    reply is taken."""
    monkeypatch.setattr(reply_deadline, "FIRST_S", 0.5)
    store, told = place.store(), list[RetryWait | None]()
    store.create("a", [b"0123456789" * 1000])

    def spoil(asked: Asked) -> Fault:
        if asked.verb != "get":
            return ""
        told.append(longest_wait())
        return "drip" if len(told) <= 2 else ""

    place.proxy.spoil = spoil
    assert store.read("a") == b"0123456789" * 1000
    assert [wait and wait.failed for wait in told] == [None, 1, 2]
    place.proxy.spoil = lambda asked: "drip" if asked.verb == "get" else ""
    monkeypatch.setattr(retrying_client, "STORE_REQUEST", replace(STORE_REQUEST, attempts=2))
    assert "(2 attempts failed)" in refused(lambda: store.read("a"))


# ── error pages ───────────────────────────────────────────────────────────────────────────────────────────────────────

PAGES = [b"<html>Welcome to our network</html>", b"<html><br>Sign in", b""]


@pytest.mark.parametrize("place", ["google", "amazon"], indirect=True)
@pytest.mark.parametrize("page", PAGES, ids=["xml", "html", "empty"])
def test_page_with_status_200_is_no_reply_of_a_store(place: Place, page: bytes) -> None:
    """A page of a proxy with status 200 is neither taken for an object, a listing or a stored object, nor a bug: the
    request is repeated, and lasting pages are an error."""
    store, other = place.store(), place.store()
    store.create("a", [b"stored"])
    calls: list[tuple[Callable[[], object], object]] = [
        (lambda: other.read("a"), b"stored"),
        (lambda: other.exists("a"), True),
        (lambda: other.names(""), ["a"]),
        (lambda: other.write("a", [b"new"]), None),
        (lambda: other.create("b", [b"new"]), True),
    ]
    reply = Reply(200, (("Content-Type", "text/html"),), page)
    for call, expected in calls:
        place.proxy.spoil = lambda asked: reply
        assert f"({STORE_REQUEST.attempts} attempts failed)" in refused(call)
        place.proxy.forget()
        place.proxy.spoil = lambda asked: reply if place.asked() <= 2 else ""
        assert call() == expected
    place.proxy.spoil = lambda asked: ""
    assert (place.look("a"), place.look("b")) == (b"new", b"new")


def test_pages_with_status_200_stop_the_run(calls: Calls) -> None:
    """If each request gets a page, the run stops and no item fails, whether recordings or OUT are in the bucket."""
    reply = Reply(200, (("Content-Type", "text/html"),), b"<html><br>Sign in")
    calls.proxy.spoil = lambda asked: reply if asked.verb in ("get", "stat") else ""
    code, messages = calls.run()
    assert (code, "Traceback" in messages, "nothing arrived from" in messages) == (1, False, True), messages
    assert not list(calls.out.glob("parts/**/*.jsonl"))
    calls.proxy.spoil = lambda asked: ""
    assert calls.run(out=f"{calls.root}/out")[0] == 0
    calls.proxy.spoil = lambda asked: reply if asked.name == "run.json" else ""
    code, messages = calls.run(out=f"{calls.root}/out")
    assert (code, "Traceback" in messages) == (1, False), messages


# ── late writes ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", ["google", "amazon"], indirect=True)
@pytest.mark.parametrize("change", ["replaced", "deleted", "created"])
def test_late_write_replaces_nothing(place: Place, change: str) -> None:
    """A write that is repeated while another process changes the object replaces nothing, and is an error."""
    late, store = place.store(), place.store()
    if change != "created":
        store.create("a", [b"first"])

    def spoil(asked: Asked) -> Fault:
        if asked.verb != "put" or done:
            return ""
        done.append(1)
        if change == "deleted":
            store.delete("a")
        else:
            store.write("a", [b"second"])
        return "503"

    done: list[int] = []
    place.proxy.spoil = spoil
    assert "another process wrote it meanwhile" in refused(lambda: late.write("a", [b"late"]))
    assert store.read("a") == (None if change == "deleted" else b"second")


@pytest.mark.parametrize("place", ["google", "amazon"], indirect=True)
def test_late_removal_removes_nothing(place: Place) -> None:
    """A checked removal that is repeated while another process replaces the object leaves the new one. The fake Cloud
    Storage ignores the condition, which the proxy enforces."""
    late, store = place.store(), place.store()
    store.create("a", [b"first"])

    def spoil(asked: Asked) -> Fault:
        if asked.verb != "delete":
            return ""
        if not done:
            done.append(1)
            store.write("a", [b"second"])
            return "503"
        if not isinstance(place.server, GoogleServer):
            return ""
        present = place.server.client.bucket(place.bucket).get_blob(asked.key).generation
        return "" if asked.query["ifGenerationMatch"] == [str(present)] else "412"

    done: list[int] = []
    place.proxy.spoil = spoil
    late.delete("a", lambda: None)
    assert (done, store.read("a")) == ([1], b"second")
    late.delete("a", lambda: None)
    assert store.read("a") is None


@pytest.mark.parametrize("place", ["google", "amazon"], indirect=True)
@pytest.mark.parametrize("fault", ["lost", "lost-503"])
def test_replacement_with_a_lost_reply_counts_as_written(place: Place, fault: Fault) -> None:
    """If the reply to a replacement is lost, the next attempt finds its own bytes, and the write has succeeded."""
    store = place.store()
    store.create("a", [b"first"])
    place.proxy.faults["a"] = [fault]
    store.write("a", [b"second"])
    assert store.read("a") == b"second"


@pytest.mark.parametrize("place", ["google", "amazon"], indirect=True)
def test_the_later_of_two_takeovers_at_the_same_moment_is_refused_as_such(place: Place) -> None:
    """A run with --overwrite whose run.json arrives when another such run has written its own says that this run took
    OUT over, and OUT belongs to it."""
    store, other, owners = place.store(), place.store(), list[str]()
    store.create("run.json", [RUN.to_bytes()])

    def take_over(asked: Asked) -> Fault:
        if asked.verb == "put" and asked.name == "run.json" and not owners:
            owners.append("")
            owners[0] = reserve(other, RUN, Listing(keys=keys(2)), overwrite=True).run.generation
        return ""

    place.proxy.spoil = take_over
    with pytest.raises(TakenOverError, match="took OUT over with --overwrite"):
        reserve(store, RUN, Listing(keys=keys(2)), overwrite=True)
    owner = run_file.read(store)
    assert owner
    assert owner.generation == owners[0]


@pytest.mark.parametrize("place", ["google", "amazon"], indirect=True)
def test_merge_of_a_zombie_replaces_nothing_of_a_later_run(place: Place) -> None:
    """A process that found itself the owner of OUT, and whose write arrives when another run has taken OUT over and is
    finished, changes no output of that run."""
    store, other, done = place.store(), place.store(), list[int]()

    def failures(text: str) -> list[PartEntry]:
        line = {"audio_filepath": "/r.wav", "error": text, "error_kind": text, "message": text, "retryable": False}
        return [PartEntry(i, "failure", json_bytes({"id": str(i), **line})) for i in range(2)]

    def take_over(asked: Asked) -> Fault:
        if asked.verb != "put" or asked.name != "failures.jsonl" or done:
            return ""
        done.append(1)
        owner = reserve(other, RUN, Listing(keys=keys(2)), overwrite=True).run
        Checkpoint(other, owner, keys(2)).commit(failures("new"), 1.0)
        merge(other, owner, ItemFiles())
        is_finished.set()
        return "503"

    is_finished = threading.Event()
    zombie = reserve(store, RUN, Listing(keys=keys(2)), overwrite=True).run
    Checkpoint(store, zombie, keys(2)).commit(failures("old"), 1.0)
    OwnFiles(store).record([("failures.jsonl", sha256(b"{}\n"))])
    store.create("failures.jsonl", [b"{}\n"])  # an earlier process wrote it late
    place.proxy.spoil = take_over
    assert "another process wrote it meanwhile" in refused(lambda: merge(store, zombie, ItemFiles()))
    assert is_finished.wait(200), "the client gave up, and the later run still writes"
    assert store.read("failures.jsonl") == b"".join(entry.line + b"\n" for entry in failures("new"))
