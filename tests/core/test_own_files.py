"""Tests for the digests of the files that voxbatch has written: which files it may replace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from outputs import keys, owned
from servers import Place

from voxbatch.errors import CheckpointError
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.merge_again import merge_again
from voxbatch.output.own_files import OwnFiles, key_of, sha256
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import create_list
from voxbatch.output.stored_json import json_bytes
from voxbatch.storage import Store, Stores


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Stores().out(str(tmp_path / "out"))


def versions(store: Store, finished: int) -> list[bool]:
    """Return which of the digests d1, d2 and d3 of a file are voxbatch's after so many merges were finished."""
    own = OwnFiles(store, finished)
    return [own.has("a.srt", digest) for digest in ("d1", "d2", "d3")]


def test_the_latest_digest_and_those_of_an_unfinished_merge_are_own(store: Store) -> None:
    """A file is voxbatch's with the digest of the last finished merge, or with any of a merge that was not finished."""
    assert versions(store, 0) == [False, False, False]
    for finished, digest in enumerate(("d1", "d2", "d3")):
        OwnFiles(store, finished).record([("a.srt", digest)])
        assert versions(store, finished) == [number in (finished - 1, finished) for number in range(3)]
    assert [versions(store, finished) for finished in range(4)] == [
        [True, True, True],
        [True, True, True],
        [False, True, True],
        [False, False, True],
    ]


def test_nothing_is_recorded_twice(store: Store) -> None:
    """A merge that writes what the last one wrote creates no log; one that goes back to an older content does."""
    for finished, digest, logs in ((0, "d1", 1), (1, "d1", 1), (1, "d2", 2), (2, "d2", 2), (2, "d1", 3), (3, "d1", 3)):
        own = OwnFiles(store, finished)
        own.record([("a.srt", digest), ("b.srt", "e1")])
        assert (len(store.names("digests")), own.number) == (logs, max(finished, logs))
    assert versions(store, 3) == [True, False, False]


def test_a_further_file_does_not_age_the_others(store: Store) -> None:
    """The latest digest of a name counts, whatever was written under other names since."""
    OwnFiles(store).record([("a.srt", "d1")])
    OwnFiles(store, 1).record([("b.srt", "e1")])
    assert versions(store, 2) == [True, False, False]
    assert not OwnFiles(store, 2).has("b.srt", "d1")


def test_marks_stay(store: Store) -> None:
    """A mark is no digest, and no merge supersedes it."""
    own = OwnFiles(store, 4)
    own.mark([("/talk.srt", "beside")])
    own.mark([("/talk.srt", "beside"), ("/other.srt", "beside")])
    later = OwnFiles(store, 9)
    assert [later.has_mark(place, "beside") for place in ("/talk.srt", "/other.srt", "/none.srt")] == [
        True,
        True,
        False,
    ]
    assert not later.has("/talk.srt", "beside")
    assert len(store.names("digests")) == 2


def test_another_process_is_seen(store: Store) -> None:
    """A file that another process has recorded and written meanwhile is voxbatch's."""
    own = OwnFiles(store)
    assert not own.has("a.srt", "d1")
    OwnFiles(store).record([("a.srt", "d1")])
    assert own.has("a.srt", "d1")


def test_known_files_age_as_others(store: Store) -> None:
    """A file from which a correction was taken is voxbatch's until the next digest of its name is finished."""
    OwnFiles(store).record([("a.srt", "d1")])
    for finished, expected in ((1, [True, True, False]), (2, [False, True, True])):
        own = OwnFiles(store, finished)
        own.know([key_of("a.srt", "d2")], 2)
        own.record([("a.srt", "d3")])
        assert [own.has("a.srt", digest) for digest in ("d1", "d2")] == expected[:2]
    own = OwnFiles(store, 2)
    own.know([key_of("a.srt", "d2")], 2)
    assert (own.has("a.srt", "d3"), own.number) == (True, 2)


@pytest.mark.parametrize("damage", [b"", b"{}\n", b'{"merge": 1, "sha256": "", "version": 1}\n1234567', b"x" * 100])
def test_a_damaged_log_has_no_files(store: Store, damage: bytes) -> None:
    """A log that is not as it was written says nothing, so that its files are left."""
    OwnFiles(store).record([("a.srt", "d1")])
    (name,) = store.names("digests")
    store.write(name, [damage])
    assert not OwnFiles(store).has("a.srt", "d1")


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        (b"", True),
        (b"\0" * 700, True),
        (b"a" * 4096, True),
        (b"a" * 4096 + b"\0" * 100, True),
        (b"a" * 4095, False),
        (b"a" * 4000, False),
        (b"b" * 4096, False),
    ],
)
def test_what_a_loss_of_power_leaves_is_replaced(store: Store, present: bytes, expected: bool) -> None:
    """Whole blocks of the file, or zeros, are no change by a person; a text that was cut in the middle is."""
    assert OwnFiles(store).may_replace("a.srt", present, b"a" * 9000) == expected


def test_digests_are_those_of_the_content(store: Store) -> None:
    """A file is judged by its bytes."""
    own = OwnFiles(store)
    own.record([("a.srt", sha256(b"one"))])
    assert own.may_replace("a.srt", b"one", b"two")
    assert not own.may_replace("b.srt", b"one", b"two")


def test_a_second_merge_in_a_bucket_reads_no_output(place: Place) -> None:
    """The store's own checksums tell that the merged outputs and the files of items are as they were written, also when
    a further list replaces the merged outputs. A changed output is read, and stays."""
    store = place.store()
    line: dict[str, Any] = {
        "audio_filepath": "/a.wav",
        "id": "a",
        "lang": "en",
        "pred_text": "w0",
        "words": [],
        "segments": [],
    }
    line |= {"audio_duration": 1.0, "flags": [], "warnings": [], "confidence": None}
    run = owned(store, items=1)
    Checkpoint(store, run, keys(1)).commit([PartEntry(0, "transcript", json_bytes(line))], 1.0)
    merge_again(store, {"formats": ["txt"]})
    for has_further_list in (False, False, True):
        if has_further_list:
            assert create_list(store, replace(run, list_number=2), keys(1))
        place.proxy.forget()
        merge_again(store)
        read = {key for verb, key in place.proxy.counts() if verb == "get"}
        assert not {key for key in read if key.endswith(("transcripts.jsonl", "a.txt"))}
    place.put("transcripts.jsonl", b"changed\n")
    with pytest.raises(CheckpointError, match=r"transcripts.jsonl was changed or damaged: it has 8 bytes"):
        merge_again(store)
    assert place.look("transcripts.jsonl") == b"changed\n"
