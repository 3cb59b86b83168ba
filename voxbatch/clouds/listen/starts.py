"""The starts of a run elsewhere: one small file in OUT for each execution that a dispatcher has started, or was about
to start.

A start is created only if it is absent, before the platform is asked to start the execution. So of several dispatchers
exactly one starts it. If that dispatcher dies, its start ends by itself after MAX_START_S.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import asdict, dataclass

from voxbatch.errors import CheckpointError, RunMismatchError
from voxbatch.output import run_file
from voxbatch.output.layout import STARTS
from voxbatch.output.stored_json import Count, Number, json_bytes, read_json
from voxbatch.output.summary import is_finished
from voxbatch.storage import Store
from voxbatch.storage.retry import RUN_START

MAX_START_S = 2 * RUN_START.total_s
"""Seconds after which a dispatcher has started the execution, or has died. It makes no attempt after RUN_START.total_s,
and its last attempts take a minute or two each. Within these seconds, the execution may also be missing in the
platform's list."""


def start_name(number: int) -> str:
    """Return the name of the file of a start: 7 → "starts/start-00007.json"."""
    return f"{STARTS}/start-{number:05d}.json"


def number_of_start(name: str) -> int:
    """Return the number of a start: "starts/start-00007.json" → 7."""
    return int(name.rpartition("-")[2].partition(".")[0])


@dataclass(frozen=True, slots=True)
class Start:
    """One start, as stored."""

    number: Count
    """Number of the start, from 1. It is also in the file's name."""
    at: Number
    """Time of its creation, in seconds since 1970."""
    dispatcher: str
    """Host name of the process, for people."""
    manifest: str
    """Digest of the manifest's lines; see manifest.Survey."""
    messages: str = ""
    """Address of the messages of an execution that does several runs; "": the execution does this run alone."""

    @property
    def name(self) -> str:
        """Name of the file."""
        return start_name(self.number)

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        return json_bytes(asdict(self)) + b"\n"

    @property
    def is_recent(self) -> bool:
        """True if the dispatcher may still be at work. The absolute value, because a time in the future comes from a
        wrong clock."""
        return abs(time.time() - self.at) < MAX_START_S


def latest_start(store: Store) -> Start | None:
    """Return the latest start in an OUT; None if there is none.

    Raises:
        CheckpointError: voxbatch did not write the file.
        StorageError: OUT cannot be read.
    """
    names = store.names(STARTS)
    name = names[-1] if names else start_name(0)
    while store.exists(following := start_name(number_of_start(name) + 1)):  # the listing may lack it
        name = following
    if (stored := store.read(name)) is None:  # there is none, or the dispatcher that made it has withdrawn it meanwhile
        return None
    try:
        return read_json(stored, Start)
    except ValueError as e:
        raise CheckpointError(f"{store.place}/{name} was not written by this version of voxbatch: {e}") from e


def claim_start(store: Store, latest: Start | None, manifest: str, messages: str = "") -> Start | None:
    """Create the start after the latest one; return None if another dispatcher was faster.

    Args:
        manifest: digest of the manifest's lines.
        messages: see Start.

    Raises:
        StorageError: OUT cannot be written.
    """
    number = latest.number + 1 if latest else 1
    start = Start(number, time.time(), socket.gethostname(), manifest, messages)
    return start if store.create(start.name, [start.to_bytes()]) else None


def withdraw_start(store: Store, start: Start) -> None:
    """Delete a start that has started nothing, unless another dispatcher has made one of the same number meanwhile.

    Raises:
        StorageError: it cannot be deleted.
    """
    with contextlib.suppress(_ReplacedError):
        store.delete(start.name, lambda: _check_unchanged(store, start))


class _ReplacedError(Exception):
    """The file of a start is missing or has another start."""


def _check_unchanged(store: Store, start: Start) -> None:
    """Raise _ReplacedError unless the file of a start has its content."""
    if store.read(start.name) != start.to_bytes():
        raise _ReplacedError


def is_manifest_done(store: Store, manifest: str, grows: bool, latest: Start | None) -> bool | None:
    """Return whether the run of a manifest is finished; None if OUT holds an earlier list of the same folder, which the
    run continues.

    Args:
        manifest: digest of the manifest's lines.
        grows: see manifest.Source.grows.
        latest: the latest start. It names the manifest of a run that has not yet created run.json.

    Raises:
        RunMismatchError: OUT belongs to another manifest.
        CheckpointError: run.json or summary.json is damaged.
        StorageError: OUT cannot be read.
    """
    run = run_file.read(store)
    before = run.manifest if run else latest.manifest if latest else None
    if before in (None, manifest):
        return is_finished(store)
    if grows:
        return None
    raise RunMismatchError(
        f"{store.place} belongs to another manifest of the same name, which was dispatched before: upload it under "
        f"another name; or delete {store.place}/ and upload it again, to transcribe all of it anew; or continue the "
        "earlier run with it: voxbatch run MANIFEST -o OUT --update, as one task, which keeps the transcripts of "
        "unchanged lines"
    )
