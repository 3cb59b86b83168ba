"""Tests for what `voxbatch redact` leaves behind: secrets in every place of a run and of a recording's container."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from conftest import Recorder, Voxbatch
from killed_at import VARIABLE
from servers import Place
from whisper_base import needs_tiny_en

from voxbatch.audio.ffmpeg import executable
from voxbatch.config import FORMATS
from voxbatch.works.redact.engine import PACKAGES

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, PACKAGES)),
    reason="the detectors are not installed: pip install 'voxbatch[redact]'",
)

NAMES = ("Zuberbrand", "Quilmarsh", "Olgavia", "Thornsworth", "Wexgrove")
NUMBERS = ("44015500", "12345670", "90817263", "55667788")
TURNS = (
    "My name is Olgavia Zuberbrand .", "Hello , and my name is Quilmarsh .", "The card is 44015500",
    "okay okay okay okay", "12345670 .", "Thank you .",
)  # fmt: skip
"""Texts of the two sides of a call, in turn."""
OVERLAP = ("And my last name is Wexgrove .", "thank you so much good bye .")
"""Texts of both sides at once."""
SIDES = [
    " ".join([*(turn if number % 2 == side else "_ " * len(turn.split()) for number, turn in enumerate(TURNS)), last])
    for side, last in enumerate(OVERLAP)
]


@pytest.fixture
def out(tmp_path: Path, voxbatch: Voxbatch, recording: Recorder) -> Path:
    """Return an OUT whose secrets are in the text, over chunks and speakers, in the names of files, ids, speakers and
    columns, in a correction, and in the tags, chapters, cover image, subtitles and second stream of a container."""
    folder = tmp_path / "Zuberbrand"
    contained(recording("left.wav", 40), recording("right.wav", 41), folder / "olgavia-44015500.mkv")
    recording("Zuberbrand/12345670.wav", 40)
    rows = [
        {"audio_filepath": f"Zuberbrand/{name}", "id": f"Quilmarsh/{name}-90817263", "text": "Thornsworth 55667788",
         "customer": "Zuberbrand", "context": "Thornsworth", "duration": None}
        for name in ("olgavia-44015500.mkv", "12345670.wav")
    ]  # fmt: skip
    rows.append({"audio_filepath": "Zuberbrand/missing-55667788.wav", "id": "Thornsworth"})
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "says.json").write_text(json.dumps({"count": [SIDES] * 3}))
    done = voxbatch(
        "run", "m.jsonl", "-o", "out", "--engine", "scripted", "--engine-option", f"says={tmp_path}/says.json",
        "--engine-option", "max_chunk_s=14", "--engine-option", "confidence=true", "--channels", "split",
        "--channel-names", "Olgavia Zuberbrand,Quilmarsh",
        "--language", "en", "--formats", "srt", "-q",
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    for subtitle in (tmp_path / "out" / "srt").rglob("*.srt"):
        subtitle.write_text(subtitle.read_text().replace("okay", "okay Miss Thornsworth", 1))
    assert voxbatch("correct", "out", "--engine", "none").returncode == 0
    items = map(json.loads, (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines())
    speakers = {segment.get("speaker") for item in items for segment in item["segments"]}
    assert speakers == {"Olgavia Zuberbrand", "Quilmarsh", None}
    return tmp_path / "out"


def contained(left: Path, right: Path, path: Path) -> None:
    """Write a video of two channels, with tags, chapters, a cover, subtitles and a second recording."""
    path.parent.mkdir()
    folder = left.parent
    (folder / "tags.txt").write_text(
        ";FFMETADATA1\ntitle=Olgavia Zuberbrand\ncomment=44015500\n[CHAPTER]\nTIMEBASE=1/1\nSTART=0\nEND=20\n"
        "title=Quilmarsh 12345670\n"
    )
    (folder / "subtitles.srt").write_text("1\n00:00:00,000 --> 00:00:05,000\nThornsworth 90817263\n")
    program = executable()
    cover = folder / "cover.png"
    subprocess.run(
        [program, "-v", "error", "-f", "lavfi", "-i", "testsrc=size=64x64", "-frames:v", "1", cover], check=True
    )
    cover.write_bytes(cover.read_bytes() + b"Wexgrove 55667788")
    subprocess.run(
        [program, "-v", "error", "-i", left, "-i", right, "-i", folder / "tags.txt", "-i", folder / "subtitles.srt",
         "-f", "lavfi", "-i", "testsrc=size=64x64:rate=1:duration=40", "-filter_complex", "[0:a][1:a]amerge[call]",
         "-map", "4:v", "-map", "[call]", "-map", "1:a", "-map", "3:s", "-map_metadata", "2", "-map_chapters", "2",
         "-metadata:s:a:1", "title=Thornsworth 55667788", "-attach", cover,
         "-metadata:s:t", "mimetype=image/png", "-metadata:s:t", "filename=Zuberbrand.png",
         "-c:v", "mpeg4", "-c:a", "flac", path],
        check=True,
    )  # fmt: skip


def leaks(folder: Path) -> set[tuple[str, str]]:
    """Return (file, secret) of each secret in the bytes or the name of a file."""
    return {
        (str(path.relative_to(folder)), secret)
        for path in folder.rglob("*")
        for secret in (*NAMES, *NUMBERS)
        if secret.lower().encode() in (str(path.relative_to(folder)).encode() + content(path)).lower()
    }


def content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def test_no_place_of_a_run_leaks(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Every secret is in OUT or in the container, and none is in any byte of the copies, in all formats."""
    planted = {secret for _, secret in leaks(tmp_path)}
    assert planted == {*NAMES, *NUMBERS}
    done = voxbatch("redact", out, "-o", "shared", "--formats", ",".join(FORMATS))
    assert done.returncode == 0, done.stderr
    assert not leaks(tmp_path / "shared")
    assert {path.suffix for path in (tmp_path / "shared" / "flac").iterdir()} == {".flac"}
    copies = map(json.loads, (tmp_path / "shared" / "transcripts.jsonl").read_text().splitlines())
    confidences = [word["confidence"] for copy in copies for word in copy["words"] if "[CARD]" in word["word"]]
    assert confidences
    assert all(0 <= confidence <= 1 for confidence in confidences)


@needs_tiny_en
def test_hotwords_and_prompts_stay_behind(corpus: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The words that a Whisper model was told to expect, in the run and in a row, are in no file of the copies."""
    audio = str(corpus / "speech" / "ljspeech_flac" / "LJ001-0028.flac")
    row = {"id": "a", "audio_filepath": audio, "hotwords": ["Quilmarsh", "Wexgrove"]}
    (tmp_path / "m.jsonl").write_text(json.dumps(row))
    (tmp_path / "words.txt").write_text("Zuberbrand\n55667788\n")
    done = voxbatch(
        "run", "m.jsonl", "-o", "out", "--engine", "faster-whisper", "--hotwords", "words.txt", "--prompt",
        "Olgavia Thornsworth speaks.", "-q",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = {"Zuberbrand", "Olgavia", "Thornsworth", "55667788", "Quilmarsh", "Wexgrove"}
    assert {secret for _, secret in leaks(tmp_path / "out")} >= told - {"Quilmarsh", "Wexgrove"}
    done = voxbatch("redact", "out", "-o", "shared", "--formats", ",".join(FORMATS))
    assert done.returncode == 0, done.stderr
    assert not leaks(tmp_path / "shared")


def test_the_copies_of_an_out_with_a_name_are_in_a_folder_without_it(
    out: Path, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """The copies are beside OUT without -o, in a folder whose name tells nothing, and that a second run continues."""
    (tmp_path / "work").mkdir()
    original = out.rename(tmp_path / "work" / "Zuberbrand.voxbatch")
    for _ in range(2):
        done = voxbatch("redact", original, "--formats", "srt", "-q")
        assert done.returncode == 0, done.stderr
    (shared,) = (folder for folder in (tmp_path / "work").iterdir() if folder != original)
    assert shared.name.startswith("redacted-")
    assert not leaks(shared)


def test_a_run_that_is_killed_anywhere_leaks_nothing(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """After each change of its OUT, the files of a run that is killed there have no secret, and its end has none. Nor
    do they name the original OUT, or the file of rules."""
    original = out.rename(tmp_path / "Zuberbrand.voxbatch")
    (tmp_path / "Olgavia.yaml").write_text("names: [Quilmarsh]\n")
    command = ("redact", original, "--part-items", "1", "--formats", "srt", "-q", "--rules", "Olgavia.yaml")
    changes, is_done = -2, False
    while not is_done:
        changes += 3
        shared = tmp_path / f"shared-{changes}"
        done = voxbatch(*command, "-o", shared, env={VARIABLE: str(changes)})
        assert done.returncode in (0, -9), done.stderr
        assert not leaks(shared)
        is_done = done.returncode == 0
    assert changes > 10


@pytest.mark.parametrize("place", ["google", "amazon"], indirect=True)
def test_a_bucket_gets_no_secret(out: Path, voxbatch: Voxbatch, tmp_path: Path, place: Place) -> None:
    """No object of the copies in a bucket has a secret, after a kill and at the end."""
    store = place.store()
    for number, environment in enumerate(({VARIABLE: "5"}, {})):
        done = voxbatch("redact", out, "-o", place.uri, "-q", env=environment)
        assert (done.returncode == 0) == (not environment), done.stderr
        folder = tmp_path / f"objects-{number}"
        for object_name in store.names(""):
            path = folder / object_name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(place.look(object_name))
        assert [*folder.iterdir()]
        assert not leaks(folder)


def test_no_guess_of_a_secret_can_be_confirmed(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """A person who knows all of OUT but a PIN, and redacts it with each PIN, finds no digest or id of the copies."""
    (tmp_path / "rules.yaml").write_text("names: [Quilmarsh]\n")
    folders = [tmp_path / name for name in ("shared", "again", "guessed")]
    for shared in folders:
        if shared.name != "again":
            recording("calls/olgavia.wav", 4)
            (tmp_path / "calls" / "m.jsonl").write_text('{"audio_filepath": "olgavia.wav"}')
            (tmp_path / "says.json").write_text(json.dumps({"count": ["My PIN is 4 4 1 2 ."]}))
            done = voxbatch(
                "run", "calls/m.jsonl", "-o", "calls/out", "--engine", "scripted", "--engine-option",
                f"says={tmp_path}/says.json", "--language", "en", "-q",
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        done = voxbatch("redact", "calls/out", "-o", shared, "--rules", "rules.yaml", "-q")
        assert done.returncode == 0, done.stderr
        if shared.name == "again":
            (tmp_path / "calls").rename(tmp_path / "moved")
    target, again, guessed = map(computed_from_the_original, folders)
    assert target == again
    assert len(target) == 6
    assert not target & guessed
    key = (tmp_path / "moved" / "out" / "redaction.key").read_bytes()
    assert not [path for path in folders[0].rglob("*") if key in content(path) or key.hex().encode() in content(path)]


def computed_from_the_original(copies: Path) -> set[str]:
    """Return the ids and digests in the copies of a run of one item that do not follow from the copies themselves."""
    run = json.loads((copies / "run.json").read_text())
    header, _, keys = (copies / "lists" / "00001.bin").read_bytes().partition(b"\n")
    item_id = json.loads((copies / "transcripts.jsonl").read_text())["id"]
    rules = run["identity"]["decoding"]["rules"]
    return {item_id, run["run"], json.loads(header)["manifest"], keys[:8].hex(), keys[8:].hex(), rules}
