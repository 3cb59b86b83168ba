"""Tests for `voxbatch listen`: an upload is transcribed exactly once, whatever happens to its message and to the
workers.

The tests run the real program in separate processes. Messages go through Google's Pub/Sub emulator, which receives the
upload events of a fake Cloud Storage.
"""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

import click
import pubsub
import pytest
import servers
from clouds import Call, CloudRunApi, google_refusal, google_reply
from conftest import Recorder, Starter, Voxbatch
from outputs import committed, outputs
from web_server import served

from voxbatch import runner
from voxbatch.audio.ffmpeg import executable
from voxbatch.cli import cli
from voxbatch.clouds.listen import lease, starts
from voxbatch.clouds.listen.batch_window import GRACE_S, batch_window_of
from voxbatch.clouds.listen.cloud_run_executor import CloudRunExecutor
from voxbatch.clouds.listen.daily_spending import DailySpending
from voxbatch.clouds.listen.executors import SharedOptions
from voxbatch.clouds.listen.message import RunRequest, UploadedRecording
from voxbatch.clouds.listen.subscription import Subscription
from voxbatch.clouds.submit import Ceiling, CloudRun
from voxbatch.config import Config, RunOptions
from voxbatch.errors import ConfigError, RunMismatchError, StorageError
from voxbatch.log import Log
from voxbatch.output.layout import LEASE, part_names
from voxbatch.storage import Store, Stores, retry

pytestmark = [pytest.mark.slow, pytest.mark.forks_children]

BUCKET = "gs://calls"
OUT = f"{BUCKET}/out"
SCRIPTED = ("--engine", "scripted", "--decoders", "1", "--formats", "srt")
SLOWLY = ("--engine-option", "delay_s=0.3", "--engine-option", "concurrency=1", "--part-items", "1")
ITEMS = 8

Alone = Callable[..., "dict[str, bytes | None]"]


class Listening:
    """A running `voxbatch listen` process and the lines that it logs."""

    def __init__(self, process: Popen[str]):
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def told(self, event: str) -> list[dict[str, Any]]:
        """Return the events of this name."""
        return [each for each in map(json.loads, list(self.lines)) if each["message"] == event]

    def items(self) -> int:
        """Return the number of items that this process transcribed."""
        return sum(each["done"] for each in self.told("run_finished"))

    def until(self, happened: Callable[[], object]) -> None:
        """Wait until `happened` is true, and assert that the process still runs."""
        while not happened():
            assert self.process.poll() is None, self.said
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for the process to end and return its exit code."""
        code = self.process.wait(timeout=120)
        self._reader.join()
        assert "Traceback" not in self.said
        return code

    def stop(self) -> int:
        self.send(signal.SIGTERM)
        return self.ended()

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def acknowledged(self) -> set[str]:
        """Return the ids of the messages that this process acknowledged."""
        done = {number for event in self.told("messages_done") for number in event["message_ids"]}
        return done | {event["message_id"] for event in self.told("not_ours")}


class ListenSetup:
    """A bucket `calls`, a topic that receives events of uploads to its in/, and a way to start listeners."""

    def __init__(
        self, project: pubsub.PubsubProject, server: servers.GoogleServer, proxy: servers.Proxy, start: Starter
    ):
        self.pubsub, self.server, self.proxy, self._start = project, server, proxy, start
        server.make("calls")

    def put(self, key: str, data: bytes) -> None:
        self.server.put("calls", key, data)

    def manifest(self, name: str, count: int = ITEMS, key: str = "", **row: Any) -> str:
        """Upload a manifest of `count` items, whose ids begin with its name, and return its address."""
        rows = [{"audio_filepath": f"{BUCKET}/audio/{i % 4}.wav", "id": f"{name}-{i}", **row} for i in range(count)]
        data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        key = key or f"in/{name}.jsonl"
        self.put(key, gzip.compress(data) if key.endswith(".gz") else data)
        return f"{BUCKET}/{key}"

    def generation(self, key: str) -> int:
        """Return the generation of an object."""
        return int(Stores().stat(f"{BUCKET}/{key}").tag)

    def told(self, count: int) -> None:
        """Wait until the topic has received `count` messages in total."""
        while self.pubsub.told() < count:
            time.sleep(0.02)

    def listen(self, *options: str, **variables: str) -> Listening:
        """Start `voxbatch listen` on the setup's subscription."""
        where: tuple[str, ...] = ("--subscription", "uploads", "--project", self.pubsub.project, "-o", OUT)
        where += () if "--recordings" in options else ("--prefix", f"{BUCKET}/in/")
        engine = () if "--engine" in options else SCRIPTED
        env = {pubsub.HOST: self.pubsub.host, retry.NO_WAIT: "1", "VOXBATCH_LOG_FORMAT": "json", **variables}
        return Listening(self._start("listen", *where, *engine, *options, env=env))

    def drained(self, *options: str) -> Listening:
        """Run a listener with --drain until it ends, and return it."""
        listening = self.listen("--drain", *options)
        assert listening.ended() == 0, listening.said
        return listening

    def hold_last_item(self) -> None:
        """Let no run get its last recording, and so come to its end, before `release`."""
        self.proxy.spoil = lambda asked: "hold" if (asked.verb, asked.name) == ("get", "3.wav") else ""

    def release(self) -> None:
        """Deliver all recordings from now on."""
        self.proxy.spoil = lambda asked: ""
        self.proxy.release.set()

    def store(self, name: str) -> Store:
        return Stores().out(f"{OUT}/{name}")

    def done(self, name: str) -> bool:
        return self.store(name).exists("summary.json")

    def parts(self, name: str) -> int:
        return len(part_names(self.store(name)))

    def spent(self) -> list[str]:
        """Return the executions that are counted, as daily_spending names them."""
        return [name for name in self.store("batches").names("") if name.startswith("spent-")]

    def age_starts(self, name: str) -> None:
        """Make all starts of an OUT an hour older."""
        for mark in self.store(name).names("starts"):
            old = json.loads(self.store(name).read(mark) or b"")
            self.put(f"out/{name}/{mark}", json.dumps({**old, "at": old["at"] - 3600}).encode())

    def clean(self) -> None:
        """Assert that no message is unacknowledged or dead-lettered."""
        assert not self.pubsub.unacked()
        assert not self.pubsub.dead_letters()


@pytest.fixture
def make_setup(
    pubsub_projects: Callable[..., pubsub.PubsubProject],
    start: Starter,
    recording: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., ListenSetup]]:
    """Return a function that makes a ListenSetup for this test."""
    with ExitStack() as stack:

        def make(**settings: Any) -> ListenSetup:
            project = pubsub_projects(**settings)
            server = stack.enter_context(
                servers.google_server(servers.Events(project.host, project.project, "uploads", "in/"))
            )
            proxy = stack.enter_context(servers.led_through(server, monkeypatch))
            setup = ListenSetup(project, server, proxy, start)
            for i in range(4):
                setup.put(f"audio/{i}.wav", recording(f"{i}.wav", 1.1 + i / 2).read_bytes())
            return setup

        yield make


@pytest.fixture
def setup(make_setup: Callable[..., ListenSetup]) -> ListenSetup:
    return make_setup()


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, ...], dict[str, bytes | None]]:
    """Keep the outputs of plain runs: the same uploads and engine always produce the same outputs."""
    return {}


@pytest.fixture
def alone(voxbatch: Voxbatch, known: dict[tuple[str, ...], dict[str, bytes | None]]) -> Alone:
    """Return a function: alone("day") gives the outputs of a plain run of in/day.jsonl."""

    def run(name: str, engine: tuple[str, ...] = SCRIPTED) -> dict[str, bytes | None]:
        if (name, *engine) not in known:
            out = f"{BUCKET}/plain/{name}"
            done = voxbatch("run", f"{BUCKET}/in/{name}.jsonl", "-o", out, *engine)
            assert done.returncode == 0, done.stderr
            known[name, *engine] = outputs(Stores().out(out))
        return known[name, *engine]

    return run


def prove(setup: ListenSetup, name: str, alone: Alone, items: int = ITEMS) -> None:
    """Assert that OUT equals the outputs of a plain run, that each item is in one part, and that the lease is gone."""
    assert committed(setup.store(name)) == dict.fromkeys(range(items), 1)
    assert outputs(setup.store(name)) == alone(name)
    assert not setup.store(name).exists("claim.json")


# ── normal operation ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_uploads_are_transcribed_to_the_bytes_of_a_plain_run(setup: ListenSetup, corpus: Path, alone: Alone) -> None:
    """A manifest and real speech, uploaded while a listener runs, are transcribed to the bytes of a plain run. The
    listener continues until it is stopped.
    """
    wanted = ("asterisk_en/auth-incorrect.wav", "asterisk_en/conf-enteringno.wav")
    lines = (corpus / "speech" / "manifest.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["audio_filepath"] in wanted]
    engine = ("--engine", "faster-whisper", "--decoders", "1", "--formats", "srt")
    listening = setup.listen(*engine)
    for row in rows:
        setup.put(f"speech/{row['audio_filepath']}", (corpus / "speech" / row["audio_filepath"]).read_bytes())
        row["audio_filepath"] = f"../speech/{row['audio_filepath']}"
    setup.put("in/day.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())
    listening.until(lambda: setup.done("day"))
    listening.until(lambda: listening.told("run_finished"))
    assert listening.stop() == 143
    setup.clean()
    made = outputs(setup.store("day"))
    assert b"password incorrect" in (made["transcripts.jsonl"] or b"").lower()
    assert made == alone("day", engine=engine)


def test_backfill_sends_what_was_uploaded_before(setup: ListenSetup) -> None:
    """Manifests whose uploads sent no message are run after --backfill has sent it. A run that was done is found done,
    and other objects are left alone.
    """
    places = ("--prefix", f"{BUCKET}/old/")
    setup.manifest("day", key="old/day.jsonl")
    setup.manifest("night", key="old/older/night.jsonl.gz")
    setup.put("old/notes.txt", b"no manifest")
    assert setup.listen("--backfill", *places).ended() == 0
    setup.told(2)
    assert setup.drained(*places).items() == 2 * ITEMS
    assert setup.listen("--backfill", *places).ended() == 0
    setup.told(4)
    assert setup.drained(*places).items() == 0
    setup.clean()


def test_drain_handles_waiting_messages_and_ends(setup: ListenSetup, alone: Alone) -> None:
    """With --drain, plain, compressed and nested manifests and a hand-written message are done, then the listener ends.
    An event that arrives three times is done once.
    """
    setup.manifest("day")
    for _ in range(2):
        setup.pubsub.notify("calls", "in/day.jsonl")
    setup.manifest("night", key="in/old/night.jsonl.gz")
    setup.pubsub.publish({"manifest": f"{BUCKET}/in/day.jsonl", "output": f"{OUT}/by hand/day 1"})
    setup.told(5)
    assert setup.drained().items() == 3 * ITEMS
    setup.clean()
    for name in ("day", "by hand/day 1"):
        assert committed(setup.store(name)) == dict.fromkeys(range(ITEMS), 1)
        assert outputs(setup.store(name)) == alone("day")
    assert setup.done("old/night")


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.long)])
def test_two_listeners_run_each_manifest_once(setup: ListenSetup, count: int) -> None:
    """Two listeners share many manifests: each manifest is done exactly once."""
    names = [f"m{i:03d}" for i in range(count)]
    for name in names:
        setup.manifest(name, count=1)
    setup.told(count)
    both = [setup.listen("--drain", **setup.server.settings(f"http://127.0.0.1:{setup.server.port}")) for _ in range(2)]
    assert [each.ended() for each in both] == [0, 0]
    setup.clean()
    assert all(setup.done(name) for name in names)
    assert [committed(setup.store(name)) for name in names] == [{0: 1}] * len(names)
    assert sum(each.items() for each in both) == len(names)


# ── workers and services that fail ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["lease lost, exactly once", "told twice"])
def test_second_worker_does_not_duplicate_a_run(make_setup: Callable[..., ListenSetup], alone: Alone, how: str) -> None:
    """A message that reaches a second worker during the run causes no duplicate work, and both workers end normally."""
    setup = make_setup(exactly_once="exactly once" in how)
    setup.manifest("day")
    first = setup.listen("--drain", *SLOWLY)
    first.until(lambda: setup.parts("day"))
    if how == "told twice":
        setup.pubsub.notify("calls", "in/day.jsonl")
    else:
        setup.pubsub.break_leases()
    second = setup.listen("--drain", *SLOWLY)
    assert [first.ended(), second.ended()] == [0, 0]
    setup.clean()
    prove(setup, "day", alone)


def test_another_worker_resumes_after_a_kill(setup: ListenSetup, alone: Alone) -> None:
    """After a worker is killed during a run, another worker resumes from the committed parts."""
    setup.manifest("day")
    setup.hold_last_item()
    first = setup.listen(*SLOWLY)
    first.until(lambda: setup.parts("day") >= 2)
    first.send(signal.SIGKILL)
    assert first.ended() == -signal.SIGKILL
    setup.release()
    setup.pubsub.break_leases()
    second = setup.drained()
    setup.clean()
    prove(setup, "day", alone)
    assert 0 < second.items() < ITEMS


def test_suspended_worker_changes_nothing_after_its_lease(setup: ListenSetup, alone: Alone) -> None:
    """A worker that is suspended for longer than its lease wakes up, finds the work done by another worker, and changes
    nothing.
    """
    setup.manifest("day")
    setup.hold_last_item()
    first = setup.listen("--drain", *SLOWLY)
    first.until(lambda: setup.parts("day") >= 2)
    first.send(signal.SIGSTOP)
    setup.release()
    second = setup.listen()
    second.until(lambda: setup.done("day"))
    made = outputs(setup.store("day"))
    first.send(signal.SIGCONT)
    assert first.ended() == 0
    assert second.stop() == 143
    setup.clean()
    assert outputs(setup.store("day")) == made
    prove(setup, "day", alone)


@pytest.mark.parametrize("cause", ["stopped", "no store"])
def test_listener_that_ends_early_commits_and_releases_its_message(
    setup: ListenSetup, alone: Alone, cause: str
) -> None:
    """A listener that is stopped during a run, or whose run cannot continue, commits its finished items and releases
    the message at once. It gives the reason.
    """
    setup.manifest("day")
    if cause == "no store":
        setup.proxy.spoil = lambda asked: "503" if asked.key.endswith("part-00002.jsonl") else ""
    else:
        setup.hold_last_item()
    first = setup.listen(*SLOWLY)
    if cause == "stopped":
        first.until(lambda: setup.parts("day"))
        first.send(signal.SIGTERM)
    assert first.ended() == (143 if cause == "stopped" else 1)
    assert ("the server is busy or failing" in first.said) == (cause == "no store")
    setup.proxy.spoil = lambda _: ""
    assert 0 < committed(setup.store("day")).total() < ITEMS
    assert [each.attempt for each in setup.pubsub.pull()] == [2]
    setup.pubsub.break_leases()
    setup.release()
    setup.drained()
    setup.clean()
    prove(setup, "day", alone)


def test_unavailable_queue_ends_the_listener_after_the_run(setup: ListenSetup, alone: Alone) -> None:
    """If messages can no longer be acknowledged, the current run is completed and the listener ends with the reason.
    The redelivered message is found done.
    """
    setup.manifest("day")
    setup.hold_last_item()
    with pubsub.recorded(setup.pubsub.host) as (host, _):
        first = setup.listen(*SLOWLY, **{pubsub.HOST: host})
        first.until(lambda: setup.parts("day"))
    setup.release()
    assert first.ended() == 1
    assert setup.done("day")
    assert "they will be delivered again" in first.said
    assert f"cannot pull from {setup.pubsub.subscription('uploads')}" in first.said
    setup.pubsub.break_leases()
    assert setup.drained().items() == 0
    setup.clean()
    prove(setup, "day", alone)


def test_message_that_ends_every_worker_is_dead_lettered(setup: ListenSetup) -> None:
    """A message that ends every worker is dead-lettered with its reason, before Pub/Sub would dead-letter it without a
    reason.
    """
    setup.manifest("day")
    while max((each.attempt for each in setup.pubsub.pull()), default=0) < pubsub.ATTEMPTS - 1:
        setup.pubsub.break_leases()
    setup.pubsub.break_leases()
    assert setup.listen("--drain", "--engine-option", "die_after=1").ended() == 1
    (dead,) = setup.pubsub.dead_letters()
    assert "scripted to die after 1 results" in dead.attributes["voxbatch_reason"]
    setup.clean()


# ── messages that cannot be run ───────────────────────────────────────────────────────────────────────────────────────


def test_manifest_whose_out_lies_among_the_parts_of_another(setup: ListenSetup, alone: Alone) -> None:
    """A manifest whose OUT lies in parts/ of another OUT adds nothing to that one, and is dead-lettered if that one was
    there first.
    """
    setup.manifest("early", count=1, key="in/night/parts.jsonl")
    setup.drained()
    setup.manifest("night")
    setup.manifest("day")
    setup.drained()
    setup.manifest("late", count=1, key="in/day/parts.jsonl")
    setup.drained()
    (dead,) = setup.pubsub.dead_letters()
    assert f"lies in parts/ of {OUT}/day, which holds the outputs of another run" in dead.attributes["voxbatch_reason"]
    for name in ("day", "night"):
        prove(setup, name, alone)
    assert setup.done("night/parts")
    assert not setup.done("day/parts")


def test_message_that_cannot_be_run_is_dead_lettered_once(setup: ListenSetup, alone: Alone) -> None:
    """A message that can never be run is dead-lettered once, unchanged and with its reason; the other messages are
    done. A different manifest with the name of a finished one is refused, and the finished outputs stay.
    """
    setup.manifest("other")
    setup.drained()
    made = outputs(setup.store("other"))
    setup.manifest("other", count=3)
    good = setup.manifest("day")
    setup.put("in/bad.jsonl", b'{"audio_filepath": "a.wav"}\n{"audio_filepath": 7}\n' + b"\xc3\xa4 is no json\n" * 40)
    setup.put("in/empty.jsonl", b"")
    setup.put("in/odd.jsonl.gz", b"not compressed")
    setup.manifest("gone")
    setup.told(8)
    setup.server.remove("calls", "in/gone.jsonl")
    messages: dict[str, bytes | dict[str, Any]] = {
        "not JSON": b"{not json",
        "does not lie in": {"manifest": good, "output": f"{BUCKET}/audio"},
        "holds another run": {"manifest": good, "output": f"{OUT}/other"},
        "does not exist": {"manifest": f"{BUCKET}/in/never.jsonl", "output": f"{OUT}/never"},
    }
    for data in messages.values():
        setup.pubsub.publish(data)
    setup.drained()
    dead = {each.data: each.attributes for each in setup.pubsub.dead_letters()}
    for reason, data in messages.items():
        text = data if isinstance(data, bytes) else json.dumps(data).encode()
        assert reason in dead.pop(text)["voxbatch_reason"]
    uploaded = {each["objectId"]: each["voxbatch_reason"] for each in dead.values()}
    refused = {"in/bad.jsonl", "in/empty.jsonl", "in/odd.jsonl.gz", "in/gone.jsonl", "in/other.jsonl"}
    assert uploaded.keys() == refused
    assert "holds another run" in uploaded["in/other.jsonl"]
    assert outputs(setup.store("other")) == made
    assert "line 2: `audio_filepath` is 7" in uploaded["in/bad.jsonl"]
    assert max(len(reason.encode()) for reason in uploaded.values()) <= 1024  # Pub/Sub accepts no more
    assert not setup.pubsub.unacked()
    prove(setup, "day", alone)


def test_subscription_without_dead_letter_topic_is_refused(setup: ListenSetup) -> None:
    """A subscription without a dead-letter topic is refused, unless --dead-letter names a topic."""
    setup.pubsub.subscribe("bare")
    refused = setup.listen("--subscription", "bare")
    assert refused.ended() == 2
    assert "has no dead-letter topic" in refused.said
    setup.pubsub.publish(b"no json")
    drained = setup.listen("--drain", "--subscription", "bare", "--dead-letter", "dead")
    assert drained.ended() == 0
    (dead,) = setup.pubsub.dead_letters()
    assert "not JSON" in dead.attributes["voxbatch_reason"]
    assert not setup.pubsub.pull("bare")
    assert "Pub/Sub does not count deliveries" in drained.said
    setup.pubsub.publish(b"no json")
    lost = setup.listen("--subscription", "bare", "--dead-letter", "nowhere")
    assert lost.ended() == 2
    assert "topics/nowhere: there is none" in lost.said
    assert setup.pubsub.pull("bare")


def test_dead_letter_meets_the_limits_of_attributes(setup: ListenSetup) -> None:
    """A dead letter meets the limits of Pub/Sub: at most 100 attributes, and none with Google's reserved prefix."""
    many = {f"name{i:03d}": "x" for i in range(99)}
    setup.pubsub.publish(b"no json", googclient_schemaencoding="JSON", **many)
    setup.told(1)
    setup.drained()
    (dead,) = setup.pubsub.dead_letters()
    assert "not JSON" in dead.attributes["voxbatch_reason"]
    assert len(dead.attributes) == 100
    assert not any(name.startswith("goog") for name in dead.attributes)


def test_shortest_deadline_is_assumed_if_it_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener assumes the shortest lease time if it may not read it, and extends the lease in time."""
    with pubsub.refusing() as strict:
        monkeypatch.setenv(pubsub.HOST, strict)
        subscription = Subscription("uploads", "test", "dead", Log(True, True))
        assert subscription.ack_deadline_s == pubsub.LEASE_S
        subscription.close()


def test_lease_of_dead_worker_does_not_delay_others(setup: ListenSetup, alone: Alone) -> None:
    """The lease of a dead worker does not delay others, even if the clock of that worker was a day ahead."""
    claim = {"worker": "x", "message": "1", "at": time.time() + 86_400, "good_for_s": 6.0}
    setup.put("out/day/claim.json", json.dumps(claim).encode())
    setup.manifest("day")
    setup.told(1)
    setup.drained()
    setup.clean()
    prove(setup, "day", alone)


def replaced_before_its_removal(place: servers.Place, name: str, content: bytes) -> None:
    """Let another client write an object whenever its removal is requested."""

    def spoil(asked: servers.Asked) -> servers.Fault:
        if asked.verb == "delete":
            place.put(name, content)
        return ""

    place.proxy.spoil = spoil


@pytest.mark.parametrize("place", ["amazon"], indirect=True)
def test_late_worker_leaves_the_lease_of_its_successor(place: servers.Place) -> None:
    """A worker that comes back late neither renews nor releases the lease of another worker, even if the other one
    acquires it just before the request arrives."""
    store, theirs = place.store(), json.dumps({"worker": "x", "message": "1", "at": 0.0, "good_for_s": 6.0}).encode()
    assert lease.acquire(store, "1", 0.1) is None
    with lease.hold(store, "1", 0.1):
        place.put(LEASE, theirs)
        before = place.asked("get")
        while place.asked("get") < before + 2:  # heartbeats
            time.sleep(0.01)
    assert place.look(LEASE) == theirs
    assert lease.acquire(store, "1", 3600.0) is None
    with lease.hold(store, "1", 3600.0):
        replaced_before_its_removal(place, LEASE, theirs)
    assert place.look(LEASE) == theirs


@pytest.mark.parametrize("place", ["amazon"], indirect=True)
def test_dispatcher_withdraws_only_its_own_start(place: servers.Place) -> None:
    """A dispatcher does not delete the start of another one, even if that one is made just before the request
    arrives."""
    store = place.store()
    start = starts.claim_start(store, None, "digest")
    assert start
    replaced_before_its_removal(place, start.name, b"other")
    starts.withdraw_start(store, start)
    starts.withdraw_start(store, start)
    assert place.look(start.name) == b"other"
    place.proxy.spoil = lambda asked: ""
    place.put(start.name, start.to_bytes())
    starts.withdraw_start(store, start)
    assert store.read(start.name) is None


# ── recordings ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_uploaded_recording_is_a_run(setup: ListenSetup, recording: Recorder) -> None:
    """An uploaded recording becomes a run of its own. --allow-outside applies to other people's manifests, and changes
    nothing for the manifest that voxbatch writes for a recording.
    """
    names = ("a.wav", "calls of today/b ü.wav")
    for name, options in zip(names, ((), ("--allow-outside",)), strict=True):
        setup.put(f"in/{name}", recording("r.wav", 1.5).read_bytes())
        setup.told(1 + names.index(name))
        setup.drained("--recordings", f"{BUCKET}/in/", *options)
    setup.clean()
    for name in names:
        rows = [json.loads(line) for line in setup.store(name).lines("transcripts.jsonl")]
        assert [row["pred_text"] for row in rows] == ["w0 w1 w2"]


def batches() -> list[tuple[str, str]]:
    """Return (recording, batch) of all rows below OUT."""
    store = Stores().out(OUT)
    found = [name for name in store.names("") if name.endswith("/transcripts.jsonl")]
    return [
        (json.loads(line)["audio_filepath"], f"{OUT}/{name.removesuffix('/transcripts.jsonl')}")
        for name in found
        for line in store.lines(name)
    ]


def test_recordings_of_one_window_are_one_run(setup: ListenSetup, recording: Recorder) -> None:
    """With --batch-window, recordings of one window are one run. Duplicate events and a listener killed before the
    window ends do not change that.
    """
    window = ("--recordings", f"{BUCKET}/in/", "--batch-window", "2")
    data = recording("r.wav", 1.5).read_bytes()
    first = setup.listen(*window)
    for i in range(6):
        setup.put(f"in/{i}.wav", data)
    setup.put("in/notes.txt", b"x")
    while (setup.proxy.counts()["stat", "in/5.wav"]) == 0:
        first.until(lambda: True)
        time.sleep(0.02)
    first.send(signal.SIGKILL)
    first.ended()
    twice = setup.pubsub.unacked()
    for each in twice:
        setup.pubsub.publish(each.data, **each.attributes)
    # twice: the emulator gives the next message to the last client that asked, even to a dead one
    setup.pubsub.break_leases()
    others = [setup.listen(*window) for _ in range(2)]
    others[0].until(lambda: sum(len(each.acknowledged()) for each in others) >= 2 * len(twice))
    assert [each.stop() for each in others] == [143, 143]
    setup.clean()
    assert sum(each.items() for each in others) == 6
    found = batches()
    assert sorted(name for name, _ in found) == [f"{BUCKET}/in/{i}.wav" for i in range(6)]
    created = {Stores().stat(f"{BUCKET}/in/{i}.wav").created for i in range(6)}
    assert len({batch for _, batch in found}) == len({second // 2 for second in created})
    for each in twice:
        setup.pubsub.publish(each.data, **each.attributes)
    while setup.pubsub.unacked():  # once more if the emulator gave a message to a client that has ended
        setup.pubsub.break_leases()
        assert setup.drained(*window).items() == 0
    setup.clean()
    assert batches() == found


def test_drain_leaves_an_open_window_to_the_next_listener(setup: ListenSetup, recording: Recorder) -> None:
    """--drain leaves recordings of an open window to a later listener."""
    setup.put("in/a.wav", recording("r.wav", 1.5).read_bytes())
    setup.told(1)
    listening = setup.drained("--recordings", f"{BUCKET}/in/", "--batch-window", "3600")
    assert "1 recordings below gs://calls/in/ are left" in listening.said
    assert [each.attempt for each in setup.pubsub.pull()] == [2]
    assert not Stores().out(OUT).names("")


def test_recording_belongs_to_the_innermost_place(setup: ListenSetup, recording: Recorder) -> None:
    """A recording belongs only to the window of the innermost configured prefix, and a file below OUT to none. So
    nothing is done in two runs.
    """
    data = recording("r.wav", 1.5).read_bytes()
    for name in ("in/a.wav", "in/urgent/b.wav", "in/out/c.wav"):
        setup.put(name, data)
    setup.told(3)
    within = ("--recordings", f"{BUCKET}/in/", "--recordings", f"{BUCKET}/in/urgent/", "-o", f"{BUCKET}/in/out")
    listening = setup.listen(*within, "--batch-window", "2")
    listening.until(lambda: len(listening.told("run_finished")) == 2)
    assert listening.stop() == 143
    assert not setup.pubsub.dead_letters()
    assert listening.items() == 2
    manifests = [name for name in Stores().out(f"{BUCKET}/in/out").names("") if name.endswith("-2s.jsonl")]
    rows = [json.loads(line) for name in manifests for line in Stores().out(f"{BUCKET}/in/out").lines(name)]
    assert sorted(row["audio_filepath"] for row in rows) == [f"{BUCKET}/in/a.wav", f"{BUCKET}/in/urgent/b.wav"]


# ── options and configuration ─────────────────────────────────────────────────────────────────────────────────────────


def test_invalid_options_give_one_error_line(setup: ListenSetup) -> None:
    """A refused configuration or subscription gives one clear error line and its exit code."""
    with pubsub.refusing() as strict:
        for code, reason, listening in (
            (2, "subscriptions/nowhere: there is none", setup.listen("--subscription", "nowhere")),
            (2, "subscriptions/nope!", setup.listen("--subscription", "nope!")),
            (2, "engine 'x' is unknown", setup.listen("--engine", "x")),
            (1, "check the network", setup.listen(**{pubsub.HOST: "127.0.0.1:1"})),
            (1, "grant roles/pubsub.viewer", setup.listen(**{pubsub.HOST: strict})),
            (1, "grant roles/pubsub.subscriber", setup.listen("--dead-letter", "dead", **{pubsub.HOST: strict})),
        ):
            assert listening.ended() == code, listening.said
            assert reason in listening.said
            assert sum('"ERROR"' in line or not line.startswith("{") for line in listening.lines) == 1, listening.said


def test_every_option_can_be_a_variable() -> None:
    """Every option can be set by an environment variable."""
    params = cli.commands["listen"].params
    options = [option for option in params if isinstance(option, click.Option) and option.name != "help"]
    assert [option.name for option in options if not str(option.envvar).startswith("VOXBATCH_")] == []


@pytest.mark.parametrize("seconds", [0.25, 0.5, 1.5, 2, 600])
def test_each_window_has_a_unique_name(seconds: float) -> None:
    """Each window has its own name, made of its start time, also for windows shorter than a second."""
    upload = UploadedRecording(f"{BUCKET}/in/a.wav", "1", f"{BUCKET}/in/", f"{OUT}/a.wav")
    windows = {batch_window_of(upload, 1_795_212_000 + i * seconds, seconds) for i in range(40)}
    assert len({window.name for window in windows}) == len(windows) == 40
    assert batch_window_of(upload, 1_795_212_000, 600).name == "batch-20261120T220000Z-600s"


def test_several_gpus_cause_a_warning(setup: ListenSetup) -> None:
    """Several GPUs share each run; a warning before the first message says that the model is loaded for each run."""
    setup.manifest("day")
    setup.told(1)
    listening = setup.drained("--engine-option", "workers=2")
    (warning,) = listening.told("loads_anew")
    assert warning["text"].startswith("2 GPUs share each run, and load the model anew for it")
    assert setup.done("day")
    setup.clean()


def test_each_run_is_a_cascade(setup: ListenSetup, alone: Alone) -> None:
    """The runs of two messages have the bytes of plain runs. Each loads the small model again, and then the large one,
    which a warning says before the first message."""
    engine = ("--engine", "scripted", "--engine-option", "confidence=true", "--formats", "srt")
    options = (*engine, "--cascade", "little,big:0.5")
    for name in ("day", "eve"):
        setup.manifest(name)
    setup.told(2)
    listening = setup.drained(*options)
    assert listening.told("loads_anew")[0]["text"].startswith("each run loads little and then big anew")
    for name in ("day", "eve"):
        made = outputs(setup.store(name))
        assert b'"model": "big"' in (made["transcripts.jsonl"] or b"")
        assert made == alone(name, engine=options)
    setup.clean()


# ── runs on Cloud Run ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def cloud_run(setup: ListenSetup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CloudRunApi]:
    """Serve the Cloud Run API, with a job in the project of the test, and assert that all requests are valid."""
    api = CloudRunApi(f"projects/{setup.pubsub.project}/locations/us-central1/jobs/voxbatch")
    with served(api.endpoint):
        (tmp_path / "key.json").write_text(json.dumps(servers.account(f"{api.endpoint.url}/token")))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_RUN", api.endpoint.url)
        monkeypatch.setenv("CLOUDSDK_RUN_REGION", "us-central1")
        yield api
    assert not api.endpoint.wrong


THERE = ("--to", "cloudrun", "--engine", "vllm", "--manifest-window", "0")


def arguments(execution: dict[str, Any]) -> list[str]:
    """Return the arguments of the container of an execution."""
    found: list[str] = execution["template"]["containers"][0]["args"]
    return found


def test_message_starts_one_execution(setup: ListenSetup, cloud_run: CloudRunApi) -> None:
    """A message starts one execution with the options of the listener and the number of tasks. A second message finds
    the running execution.
    """
    source = setup.manifest("day")
    setup.told(1)
    options = (*THERE, "--tasks", "3", "--language", "en", "--prompt", "Calls.", "--cascade", "a/b,c/d")
    setup.drained(*options)
    (execution,) = cloud_run.executions
    assert execution["taskCount"] == 3
    options_of_run = ["--prompt", "Calls.", "--engine", "vllm", "--language", "en", "--cascade", "a/b,c/d"]
    assert arguments(execution) == ["run", source, "-o", f"{OUT}/day", *options_of_run]
    setup.pubsub.notify("calls", "in/day.jsonl")
    listening = setup.drained(*options)
    assert "found voxbatch-00000" in listening.said
    assert cloud_run.executions == [execution]
    setup.clean()


def test_number_of_tasks_follows_from_the_audio(setup: ListenSetup, cloud_run: CloudRunApi) -> None:
    """The number of tasks follows from the hours of audio; a refused manifest is dead-lettered and
    starts no execution.
    """
    setup.manifest("long", 800, duration=3600)
    setup.put("in/bad.jsonl", b"no json\n")
    setup.put("in/none.jsonl.gz", b"")
    setup.told(3)
    setup.drained(*THERE)
    assert [each["taskCount"] for each in cloud_run.executions] == [8]
    letters = sorted(each.attributes["voxbatch_reason"] for each in setup.pubsub.dead_letters())
    assert "in/bad.jsonl: line 1: " in letters[0]
    assert "in/none.jsonl.gz: is not gzip" in letters[1]
    assert not setup.pubsub.unacked()


def test_small_manifests_are_one_execution(
    setup: ListenSetup, cloud_run: CloudRunApi, alone: Alone, voxbatch: Voxbatch
) -> None:
    """Manifests that arrive together, and that one task can do, are one execution, which transcribes each into its own
    OUT. A large one has its own, and a bad one is dead-lettered. A message that comes again starts nothing.
    """
    names = [f"m{i}" for i in range(9)]
    for name in names:
        setup.manifest(name, duration=3)
    setup.manifest("long", 800, duration=3600)
    setup.put("in/bad.jsonl", b"no json\n")
    setup.told(len(names) + 2)
    options = (*THERE[:-1], "5")
    setup.drained(*options)
    large, together = sorted(cloud_run.executions, key=lambda execution: -execution["taskCount"])
    assert (large["taskCount"], together["taskCount"]) == (8, 1)
    command, messages, *rest = arguments(together)
    assert (command, rest) == ("listen", ["-o", OUT, "--engine", "vllm"])
    assert messages.startswith(f"{OUT}/batches/")
    (letter,) = setup.pubsub.dead_letters()
    assert "in/bad.jsonl: line 1: " in letter.attributes["voxbatch_reason"]
    assert not setup.pubsub.unacked()
    setup.pubsub.notify("calls", "in/m0.jsonl")
    assert "found voxbatch-" in setup.drained(*options).said
    assert len(cloud_run.executions) == 2

    done = voxbatch("listen", messages, "-o", OUT, *SCRIPTED)  # the execution
    assert done.returncode == 0, done.stderr
    for name in names:
        prove(setup, name, alone)
    cloud_run.end_all()
    setup.pubsub.notify("calls", "in/m0.jsonl")
    assert "done before" in setup.drained(*options).said
    assert len(cloud_run.executions) == 2


def test_execution_of_several_runs_continues_after_a_fault(setup: ListenSetup, alone: Alone, start: Starter) -> None:
    """A task that is killed is followed by an attempt that does the rest and begins with another run, so that one run
    that always ends the task keeps no other from its end. A run that is refused fails the task, after the others.
    """
    names = [f"k{i}" for i in range(3)]
    messages = [{"manifest": setup.manifest(name), "output": f"{OUT}/{name}"} for name in names]
    setup.put("out/batches/a.jsonl", "".join(f"{json.dumps(message)}\n" for message in messages).encode())
    listen = ("listen", f"{OUT}/batches/a.jsonl", "-o", OUT)
    task = {"CLOUD_RUN_TASK_INDEX": "0", "CLOUD_RUN_TASK_COUNT": "1", "VOXBATCH_LOG_FORMAT": "json"}

    first = Listening(start(*listen, *SCRIPTED, *SLOWLY, env={**task, "CLOUD_RUN_TASK_ATTEMPT": "0"}))
    first.until(lambda: setup.done("k0") and setup.parts("k1"))
    first.send(signal.SIGKILL)
    first.ended()
    second = Listening(start(*listen, *SCRIPTED, env={**task, "CLOUD_RUN_TASK_ATTEMPT": "1"}))
    assert second.ended() == 0
    order = [event["out"].rpartition("/")[2] for event in second.told("run_started")]
    assert sorted(order) == names
    assert order.index("k2") < order.index("k0")
    for name in names:
        prove(setup, name, alone)

    setup.put("in/k1.jsonl", b"no json\n")
    refused = Listening(start(*listen, *SCRIPTED, env=task))
    assert refused.ended() == 2
    assert "in/k1.jsonl: line 1: " in refused.told("message_refused")[0]["text"]
    assert len(refused.told("messages_done")) == 2


def test_run_above_the_ceiling_is_dead_lettered(setup: ListenSetup, cloud_run: CloudRunApi) -> None:
    """A manifest whose run would need more tasks or money than allowed starts nothing, and its dead letter says what
    to raise.
    """
    setup.manifest("huge", 1000, duration=360_000)
    setup.manifest("dear", 800, duration=3600)
    setup.told(2)
    setup.drained(*THERE, "--max-usd", "9")
    assert not cloud_run.executions
    reasons = sorted(letter.attributes["voxbatch_reason"] for letter in setup.pubsub.dead_letters())
    assert re.search(
        r"cost up to [\d.]+ USD, and --max-usd is 9.00: raise --max-usd \(VOXBATCH_MAX_USD; MAX_USD", reasons[1]
    )
    assert re.search(
        r"need [\d,]+ tasks .*raise --max-tasks \(VOXBATCH_MAX_TASKS; MAX_TASKS of deploy.sh\)", reasons[0]
    )
    assert not setup.pubsub.unacked()


def test_day_above_its_limit_is_dead_lettered(setup: ListenSetup, cloud_run: CloudRunApi) -> None:
    """Runs that would bring a day above its limit start nothing, also in another process, and the dead letter says
    what to do. What is refused or was running is not counted; small runs that are one execution count one start.

    The run of 800 hours is expected to cost 8.98 to 10.03 USD: 8 tasks at 1.306 an hour.
    """
    limit = (*THERE, "--max-usd-per-day", "11")
    setup.manifest("a", 800, duration=3600)
    setup.told(1)
    setup.drained(*limit)
    assert len(cloud_run.executions) == 1
    setup.pubsub.notify("calls", "in/a.jsonl")
    assert "found voxbatch-00000" in setup.drained(*limit).said
    setup.manifest("b", 800, duration=3600)
    names = [f"s{i}" for i in range(9)]
    for name in names:
        setup.manifest(name, duration=3)
    setup.told(1 + len(names))
    setup.drained(*limit[:-3], "5", *limit[-2:])
    assert [execution["taskCount"] for execution in cloud_run.executions] == [1, 8]
    (letter,) = setup.pubsub.dead_letters()
    assert re.search(
        r"this day \(UTC\) would be expected to cost [\d.]+ USD, and --max-usd-per-day is 11.00: replay this message "
        r"tomorrow, or raise --max-usd-per-day \(VOXBATCH_MAX_USD_PER_DAY; MAX_USD_PER_DAY of deploy.sh\)",
        letter.attributes["voxbatch_reason"],
    )
    assert len(setup.spent()) == 2
    assert not setup.pubsub.unacked()
    setup.pubsub.notify("calls", "in/b.jsonl")
    setup.drained(*THERE, "--max-usd-per-day", "0")
    assert len(cloud_run.executions) == 3
    assert len(setup.spent()) == 2


def test_small_runs_of_a_refused_execution_are_dead_letters(setup: ListenSetup, cloud_run: CloudRunApi) -> None:
    """If one execution for several runs is refused, each of their messages is a dead letter."""
    for name in ("s1", "s2", "s3"):
        setup.manifest(name, duration=3)
    setup.told(3)
    setup.drained(*THERE[:-1], "5", "--max-usd-per-day", "0.01")
    assert not cloud_run.executions
    assert len(setup.pubsub.dead_letters()) == 3
    assert not setup.spent()
    assert not setup.pubsub.unacked()


@pytest.mark.parametrize("place", ["google"], indirect=True)
def test_spending_that_races_stays_below_the_limit(place: servers.Place) -> None:
    """Many dispatchers at once start no more than the limit allows; a withdrawn execution makes room."""
    store = place.store()
    dispatchers = [DailySpending(store, 5.0) for _ in range(12)]
    with ThreadPoolExecutor(12) as pool:
        admitted = [name for name in pool.map(admission, dispatchers) if name]
    assert len(admitted) <= 5
    assert len(store.names("batches")) == len(admitted)
    later = DailySpending(store, 5.0)
    while name := admission(later):
        admitted.append(name)
    assert len(admitted) == 5
    later.withdraw(admitted[0])
    assert admission(DailySpending(store, 5.0))


def test_what_cannot_be_counted_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While OUT cannot be written or listed, nothing is started, and nothing counts afterwards. Neither do files that
    somebody else has put beside the executions. Prices below a cent add up."""
    store = Stores().out(str(tmp_path))
    spending = DailySpending(store, 2.0)
    for method in ("create", "names"):
        with monkeypatch.context() as fault:
            fault.setattr(store, method, failing)
            for _ in range(3):
                with pytest.raises(StorageError):
                    admission(spending)
    day = tmp_path / "batches" / f"spent-{time.strftime('%Y-%m-%d', time.gmtime())}"
    for name in ("notes.txt", "nan-0123456789ab", "99-x", ".DS_Store"):
        (day / name).write_bytes(b"")
    assert [bool(admission(spending)) for _ in range(3)] == [True, True, False]
    small = DailySpending(None, 0.01)
    assert [bool(admission(small, 0.004)) for _ in range(3)] == [True, True, False]


def failing(*_: object, **__: object) -> Any:
    raise StorageError("the bucket does not answer")


def admission(spending: DailySpending, usd: float = 1.0) -> str:
    """Return the name of an execution, or "" if it is refused."""
    try:
        return spending.add(usd)
    except ConfigError:
        return ""


def test_window_is_one_execution(
    setup: ListenSetup, cloud_run: CloudRunApi, recording: Recorder, voxbatch: Voxbatch
) -> None:
    """Recordings of one window become one execution, which may read them although its manifest lies elsewhere. After it
    is done, a late message starts no other execution.
    """
    for name in ("a.wav", "b.wav"):
        setup.put(f"in/each/{name}", recording(name, 1.0).read_bytes())
    setup.told(2)
    time.sleep(1.0 + GRACE_S)
    options = (*THERE, "--tasks", "1", "--recordings", f"{BUCKET}/in/each/", "--batch-window", "0.5")
    setup.drained(*options)
    runs = [arguments(each) for each in cloud_run.executions]
    assert runs
    for run in runs:
        assert run[1].startswith(f"{OUT}/batch-")
        assert run[-2:] == ["--only-under", f"{BUCKET}/in/each/"]
        done = voxbatch(*("scripted" if each == "vllm" else each for each in run))  # the execution
        assert done.returncode == 0, done.stderr
    cloud_run.end_all()
    setup.pubsub.notify("calls", "in/each/a.wav", generation=setup.generation("in/each/a.wav"))
    setup.drained(*options)
    assert len(cloud_run.executions) == len(runs)
    setup.clean()


def test_manifest_of_a_recording_may_name_only_it(
    setup: ListenSetup, cloud_run: CloudRunApi, recording: Recorder
) -> None:
    """The manifest of a recording may name only that recording, whatever other manifests may name. A recording of
    unknown duration gets one task, which reports the fault.
    """
    setup.put("in/a.wav", recording("r.wav", 1.5).read_bytes())
    setup.put("in/b.wav", b"noise")
    setup.told(2)
    setup.drained(*THERE, "--allow-outside", "--recordings", f"{BUCKET}/in/")
    below = ["--engine", "vllm", "--only-under", f"{BUCKET}/in/"]
    assert sorted(map(arguments, cloud_run.executions)) == [
        ["run", f"{OUT}/{name}.jsonl", "-o", f"{OUT}/{name}", *below] for name in ("a.wav", "b.wav")
    ]
    assert [each["taskCount"] for each in cloud_run.executions] == [1, 1]
    setup.clean()


def test_exceeded_quota_does_not_end_the_listener(setup: ListenSetup, cloud_run: CloudRunApi) -> None:
    """A quota per minute or a failing service does not end the listener; an execution that started without a reply is
    found.
    """
    names = [f"day{i}" for i in range(4)]
    for name in names:
        setup.manifest(name)
    setup.told(len(names))
    look = ""
    for fault in (google_refusal(429, "Quota exceeded"), google_refusal(503, "try later"), "lost"):
        cloud_run.endpoint.replies += [look, fault]
    cloud_run.endpoint.replies.insert(0, "")  # for the look-up of the job
    listening = setup.drained(*THERE, "--tasks", "1")
    assert Counter(arguments(each)[3] for each in cloud_run.executions) == {f"{OUT}/{name}": 1 for name in names}
    (quota, failure, connection) = (each["text"] for each in listening.told("start_postponed"))
    assert "429: Quota exceeded" in quota
    assert "503: try later" in failure
    assert "connection failed" in connection
    assert len(listening.told("run_submitted")) == len(names)
    setup.clean()


@pytest.mark.parametrize("fault", ["no job", "denied", "busy", "gone"])
def test_missing_job_loses_no_message(setup: ListenSetup, cloud_run: CloudRunApi, fault: str) -> None:
    """A missing job is refused before any message is received. If the job disappears later or may not be started, the
    message is released.
    """
    if fault == "no job":
        cloud_run.jobs = ("projects/p/locations/us-central1/jobs/other",)
    listening = setup.listen(*THERE, "--tasks", "1")
    if fault == "no job":
        assert listening.ended() == 2
        assert "there is no job voxbatch" in listening.said
        return
    listening.until(lambda: listening.told("listening"))
    if fault == "gone":
        cloud_run.jobs = ("projects/p/locations/us-central1/jobs/other",)
    elif fault == "denied":
        cloud_run.endpoint.replies = [google_refusal(403, "Permission 'run.executions.list' denied")]
    else:
        cloud_run.endpoint.replies = ["", google_refusal(429, "Quota exceeded")] * retry.RUN_START.attempts
    setup.manifest("day")
    assert listening.ended() == 1
    said = {"gone": "there is no job", "denied": "permission denied", "busy": "Quota exceeded"}
    assert said[fault] in listening.said
    assert len(setup.pubsub.unacked()) == 1
    assert not setup.pubsub.dead_letters()


def test_two_dispatchers_start_one_execution(setup: ListenSetup, cloud_run: CloudRunApi) -> None:
    """Two dispatchers with two messages for one manifest start one execution, also if both look for a running one
    before either starts it.
    """
    answer, first_looks = cloud_run.endpoint.answer, threading.Barrier(2)

    def together(call: Call, raw: bytes) -> servers.Reply:
        """Let the first two looks wait for each other, at most 3 s."""
        if "/executions" in call.path:
            with suppress(threading.BrokenBarrierError):
                first_looks.wait(3)
        return answer(call, raw)

    cloud_run.endpoint.answer = together
    source = setup.manifest("day", duration=60)
    setup.pubsub.publish({"manifest": source, "output": f"{OUT}/day"})
    setup.told(2)
    both = [setup.listen(*THERE) for _ in range(2)]
    both[0].until(lambda: sum(len(each.acknowledged()) for each in both) == 2)
    assert [each.stop() for each in both] == [143, 143]
    assert len(cloud_run.executions) == 1
    setup.clean()


@pytest.mark.parametrize("when", ["after the start", "before the start"])
def test_killed_dispatcher_starts_one_execution(setup: ListenSetup, cloud_run: CloudRunApi, when: str) -> None:
    """A dispatcher that is killed before its message is acknowledged costs no second execution, also if the list of
    executions shows the first one late. If it was killed before the start, the next one starts the execution.
    """
    answer, listeners, is_late = cloud_run.endpoint.answer, list[Listening](), iter([True])

    def deadly(call: Call, raw: bytes) -> servers.Reply:
        """Kill the first caller that starts an execution, and hide the execution from the next list."""
        if "/executions" in call.path and len(listeners) == 2 and next(is_late, False):
            return google_reply({})
        if ":run" not in call.path or len(listeners) == 2:
            return answer(call, raw)
        reply = answer(call, raw) if when == "after the start" else google_refusal(503, "never received")
        listeners[0].send(signal.SIGKILL)
        return reply

    cloud_run.endpoint.answer = deadly
    setup.manifest("day", duration=60)
    setup.told(1)
    listeners.append(setup.listen(*THERE))
    assert listeners[0].ended() == -signal.SIGKILL
    if when == "before the start":
        setup.age_starts("day")
    setup.pubsub.break_leases()
    listeners.append(setup.listen(*THERE))
    listeners[1].until(lambda: listeners[1].told("messages_done"))
    assert listeners[1].stop() == 143
    assert len(cloud_run.executions) == 1
    setup.clean()


@pytest.fixture
def dispatcher(setup: ListenSetup, cloud_run: CloudRunApi) -> Iterator[CloudRunExecutor]:
    """Yield what a dispatcher does with the request of a message."""
    shared, job = SharedOptions(RunOptions(engine="vllm")), CloudRun(project=setup.pubsub.project)
    executor = CloudRunExecutor(
        shared, job, ("--engine", "vllm"), OUT, None, None, Ceiling(), 0.0, 0.0, Log(True, True)
    )
    with closing(executor) as dispatcher:
        yield dispatcher


def transcribed(source: str, name: str) -> None:
    """Do the work of an execution, with the scripted engine."""
    config = Config.of(RunOptions(engine="scripted", decoders=1), source, f"{OUT}/{name}")
    runner.run(config, Log(True, True))


def test_finished_run_is_not_started_again(
    setup: ListenSetup, cloud_run: CloudRunApi, dispatcher: CloudRunExecutor
) -> None:
    """A message that comes again starts nothing once its run is finished. A run whose execution failed is started
    again by a message, for example of the same manifest uploaded again.
    """
    source = setup.manifest("day")
    request = RunRequest(source, f"{OUT}/day")
    assert dispatcher.execute(request) is None
    cloud_run.end_all()  # it failed
    assert dispatcher.execute(request) is not None  # too soon to know
    setup.age_starts("day")
    assert dispatcher.execute(request) is None
    assert len(cloud_run.executions) == 2
    transcribed(source, "day")
    cloud_run.end_all()
    setup.manifest("day")
    assert dispatcher.execute(request) is None
    assert len(cloud_run.executions) == 2


@pytest.mark.parametrize("state", ["starting", "finished"])
def test_changed_manifest_is_refused(
    setup: ListenSetup, cloud_run: CloudRunApi, dispatcher: CloudRunExecutor, state: str
) -> None:
    """A changed manifest under the name of another is refused with the remedy, whether the run of the first is
    finished or its execution has not even written run.json. It is never taken for the first one.
    """
    request = RunRequest(setup.manifest("day"), f"{OUT}/day")
    dispatcher.execute(request)
    if state == "finished":
        transcribed(request.source, "day")
        cloud_run.end_all()
    setup.manifest("day", ITEMS + 1)
    with pytest.raises(RunMismatchError) as told:
        dispatcher.execute(request)
    assert f"{OUT}/day belongs to another manifest" in str(told.value)
    assert "upload it under another name" in str(told.value)
    assert len(cloud_run.executions) == 1


def test_folder_that_grew_is_continued_by_one_task(
    setup: ListenSetup, cloud_run: CloudRunApi, dispatcher: CloudRunExecutor, recording: Recorder
) -> None:
    """A folder of recordings that has grown since its run is finished is started again, as one task, because several
    cannot change the list together.
    """
    request = RunRequest(f"{BUCKET}/audio/", f"{OUT}/audio")
    transcribed(request.source, "audio")
    assert dispatcher.execute(request) is None
    assert not cloud_run.executions
    for i in range(3):
        setup.put(f"audio/new{i}.wav", recording("new.wav", 2.0).read_bytes())
    assert dispatcher.execute(request) is None
    assert [each["taskCount"] for each in cloud_run.executions] == [1]


def test_dispatcher_parses_no_recording(
    setup: ListenSetup, cloud_run: CloudRunApi, dispatcher: CloudRunExecutor, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The dispatcher, whose account may start jobs, parses no recording in its own process, and starts no ffmpeg,
    whatever their format."""
    m4a = tmp_path / "a.m4a"
    tone = ("-f", "lavfi", "-i", "sine=duration=30", "-c:a", "aac", "-b:a", "64k")
    subprocess.run([executable(), "-loglevel", "error", *tone, m4a], check=True)
    for name, data in (("a.m4a", m4a.read_bytes()), ("b.mp4", m4a.read_bytes()), ("c.wav", b"noise"), ("d.mp3", b"")):
        setup.put(f"odd/{name}", data)
    (program := tmp_path / "ffmpeg").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    monkeypatch.setenv("VOXBATCH_FFMPEG", str(program))
    monkeypatch.setattr("voxbatch.audio.libsndfile.SoundFileStream.__init__", None)
    monkeypatch.setattr("voxbatch.audio.mp4_header.mp4_seconds", None)
    dispatcher.execute(RunRequest(f"{BUCKET}/odd/", f"{OUT}/odd"))
    (execution,) = cloud_run.executions
    assert execution["taskCount"] == 1
    assert not (tmp_path / "started").exists()
