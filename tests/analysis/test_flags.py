"""Tests for `voxbatch flags`, and for the flags in the summary and on the terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ManifestWriter, Voxbatch
from outputs import owned

from voxbatch.analysis.flagged import SEVERITY, find_flagged
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.lines import transcript_line
from voxbatch.output.merge_again import merge_again
from voxbatch.output.parts import PartEntry
from voxbatch.output.stored_json import json_bytes
from voxbatch.records import FLAG_KINDS, Flag, Item, Segment, Transcript
from voxbatch.report.items import encode_texts
from voxbatch.storage import Stores

LOST = Flag("lost_speech", "no text over 8.0 s of speech", 65.0, 73.0)
LOOP = Flag("repetition", "the text repeats itself (it compresses 9.1 times)", 0.0, 30.0)
UNSURE = Flag("low_confidence", "unsure words (mean confidence 0.41)")
"""Severities: 3 × 8 s, 3 × 30 s, and 1 × the duration of the recording."""
FLAGS = {"calm": (), "unsure": (UNSURE,), "lost": (LOST,), "looped": (LOOP, UNSURE), "silent": ()}
DURATION = 40.0


def entries() -> list[PartEntry]:
    """Return an entry for each of FLAGS, in this order."""
    made = []
    for index, (name, flags) in enumerate(FLAGS.items()):
        row = {"audio_filepath": f"/{name}.wav"}
        given = Item(index, index + 1, name, f"/{name}.wav", row=json.dumps(row).encode())
        heard = Transcript(f"the text of {name}", audio_duration=DURATION, flags=flags)
        made.append(PartEntry(index, "transcript", json_bytes(transcript_line(given, heard, "e", "m", None, None))))
    return made


def commit(out: Path, committed: list[PartEntry], items: int = len(FLAGS)) -> None:
    """Make an OUT whose run has committed these entries."""
    out.mkdir()
    store = Stores().out(str(out))
    run = owned(store, items=items)
    Checkpoint(store, run).commit(committed, 1.0)


def test_the_worst_come_first_also_during_a_run(tmp_path: Path) -> None:
    """Items are ordered by severity, ties by their order in the manifest, without a merge; the counts are of all."""
    commit(tmp_path / "out", entries(), items=9)
    found = find_flagged(Stores().out(str(tmp_path / "out")), None)
    assert [(item.id, item.severity) for item in found.worst] == [("looped", 130.0), ("unsure", 40.0), ("lost", 24.0)]
    assert (found.items, found.transcripts) == (9, 5)
    assert found.counts.to_dict() == {"items": 3, "by_kind": {"lost_speech": 1, "low_confidence": 2, "repetition": 1}}
    (worst,) = find_flagged(Stores().out(str(tmp_path / "out")), 1).worst
    assert worst == found.worst[0]
    lost = find_flagged(Stores().out(str(tmp_path / "out")), 5, "low_confidence")
    assert [(item.id, item.severity) for item in lost.worst] == [("unsure", 40.0), ("looped", 40.0)]
    assert lost.counts.items == 2


def test_every_kind_has_a_severity() -> None:
    """No kind of flag is without a weight."""
    assert set(SEVERITY) == set(FLAG_KINDS)


def test_the_summary_counts_items_by_kind(tmp_path: Path) -> None:
    """An item counts once for each of its kinds."""
    commit(tmp_path / "out", entries())
    summary = merge_again(Stores().out(str(tmp_path / "out")))
    counts = {"items": 3, "by_kind": {"lost_speech": 1, "low_confidence": 2, "repetition": 1}}
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["flags"] == counts
    assert summary.flags.to_dict() == counts
    assert merge_again(Stores().out(str(tmp_path / "out"))) == summary


SHOWN = """\
3 of 5 transcripts flagged: low_confidence 2, lost_speech 1, repetition 1

looped
  low_confidence: unsure words (mean confidence 0.41)
  repetition at 0:00.0 to 0:30.0: the text repeats itself (it compresses 9.1 times)
  “the text of looped”

unsure
  low_confidence: unsure words (mean confidence 0.41)
  “the text of unsure”

… and 1 more; --limit 3 lists all
"""


def test_the_command_shows_reasons_and_places(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A reason is a line in a pipe. The list says how to see the others; JSON has all; a merge names the command."""
    commit(tmp_path / "out", entries())
    done = voxbatch("flags", "out", "--limit", "2")
    assert (done.returncode, done.stdout, done.stderr) == (0, SHOWN, "")
    found = json.loads(voxbatch("flags", "out", "--json").stdout)
    assert [item["id"] for item in found["worst"]] == ["looped", "unsure", "lost"]
    assert found["worst"][2]["flags"] == [
        {"kind": "lost_speech", "reason": "no text over 8.0 s of speech", "start": 65.0, "end": 73.0}
    ]
    only = voxbatch("flags", "out", "--kind", "lost_speech").stdout
    assert only.startswith("1 of 5 transcripts flagged: lost_speech 1\n\nlost\n  lost_speech at 1:05.0 to 1:13.0: no ")
    merged = voxbatch("merge", "out")
    assert merged.returncode == 0, merged.stderr
    assert "3 transcripts flagged as doubtful; list them, the worst first: voxbatch flags out\n" in merged.stdout
    for place in ("out", "out/transcripts.jsonl"):
        assert voxbatch("flags", place, "--limit", "2").stdout == SHOWN


def test_a_stretch_is_one_line_with_all_its_reasons(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The lines are in the order of time, also where the flags are in another one; JSON has each flag by itself."""
    late, unsure = replace(LOST, start=31.04, end=38.0), Flag("low_confidence", "5 unsure words", 0.0, 30.02)
    row = {"audio_filepath": "/a.wav"}
    item = Item(0, 1, "a", "/a.wav", row=json.dumps(row).encode())
    transcript = Transcript("text", audio_duration=DURATION, flags=(late, LOOP, unsure, unsure))
    line = json_bytes(transcript_line(item, transcript, "e", "m", None, None))
    commit(tmp_path / "out", [PartEntry(0, "transcript", line)], items=1)
    assert voxbatch("flags", "out").stdout.splitlines()[2:] == [
        "a",
        f"  repetition, low_confidence at 0:00.0 to 0:30.0: {LOOP.reason}; 5 unsure words",
        "  lost_speech at 0:31.0 to 0:38.0: no text over 8.0 s of speech",
        "  “text”",
    ]
    flags = json.loads(voxbatch("flags", "out", "--json").stdout)["worst"][0]["flags"]
    assert [flag["kind"] for flag in flags] == ["lost_speech", "repetition", "low_confidence", "low_confidence"]
    assert json.loads(encode_texts(json.loads(line), None))[6] == [
        ["repetition, low_confidence", f"{LOOP.reason}; 5 unsure words", 0.0, 30.0],
        ["lost_speech", LOST.reason, 31.04, 38.0],
    ]


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ((Flag("low_confidence", "unsure", 12.0, 18.0),), "… Two. …"),
        ((Flag("low_confidence", "unsure", 5.0, 12.0), replace(LOST, start=38.0, end=39.0)), "One. Two. … Four."),
        ((Flag("low_confidence", "unsure", 12.0, 18.0), UNSURE), "One. Two. Three. Four."),
        ((replace(LOST, start=50.0, end=60.0),), "One. Two. Three. Four."),
    ],
)
def test_the_text_is_that_of_the_flagged_stretches(
    voxbatch: Voxbatch, tmp_path: Path, flags: tuple[Flag, ...], shown: str
) -> None:
    """The doubtful sentences are shown. A flag of the whole recording, or of a place without text, shows all."""
    segments = tuple(
        Segment(f"{name}.", 10.0 * n, 10.0 * n + 9) for n, name in enumerate(["One", "Two", "Three", "Four"])
    )
    text = " ".join(segment.text for segment in segments)
    item = Item(0, 1, "a", "/a.wav", row=b'{"audio_filepath": "/a.wav"}')
    transcript = Transcript(text, segments=segments, audio_duration=DURATION, flags=flags)
    line = json_bytes(transcript_line(item, transcript, "e", "m", None, None))
    commit(tmp_path / "out", [PartEntry(0, "transcript", line)], items=1)
    assert voxbatch("flags", "out").stdout.splitlines()[-1] == f"  “{shown}”"
    (worst,) = json.loads(voxbatch("flags", "out", "--json").stdout)["worst"]
    assert worst["pred_text"] == text


def test_a_run_without_flags_says_so(voxbatch: Voxbatch, manifest: ManifestWriter) -> None:
    """The scripted engine flags nothing; the failed item is not forgotten."""
    manifest(1.0, None)
    assert voxbatch("run", "m.jsonl", "-o", "out", "--engine", "scripted").returncode == 3
    done = voxbatch("flags", "out")
    text = "0 of 1 transcript flagged\n1 item failed (1 not found), 0 not done yet\n  see: voxbatch status out\n"
    assert (done.returncode, done.stdout) == (0, text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((".",), "no run was started there (it has no run.json)"),
        (("h.jsonl",), "h.jsonl: line 1 is no transcript with flags; give the OUT of a run, or its transcripts.jsonl"),
        ((".", "--kind", "bad"), "--kind 'bad' is no kind of flag; known are lost_speech, "),
    ],
)
def test_a_place_without_a_run_is_refused(
    voxbatch: Voxbatch, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    """Wrong usage is exit code 2 with the reason."""
    (tmp_path / "h.jsonl").write_text('{"id": "a", "pred_text": "b"}\n')
    done = voxbatch("flags", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
