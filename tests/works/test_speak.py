"""Tests for `voxbatch speak`: each text becomes one recording or one failure, whatever is killed and however the work
is divided; and the recordings are what a run takes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyloudnorm
import pytest
import soundfile
from conftest import Starter, Voxbatch
from epubs import epub

import voxbatch as package
from voxbatch import runner
from voxbatch.analysis.flagged import find_flagged
from voxbatch.config import Config
from voxbatch.engines import EngineCache
from voxbatch.errors import ConfigError, StorageError
from voxbatch.log import Log
from voxbatch.output.verify import verify
from voxbatch.runner import results
from voxbatch.storage import DEFAULT_STORES
from voxbatch.works.speak.options import SpeechOptions

pytest.importorskip("hibari", reason="the extra `speak` is not installed")
pytestmark = pytest.mark.slow

TEXTS = [
    "Yes.",
    "The train to Bristol leaves at nine.",
    "He counted 17 boats. Then the fog came in, and he went home.",
    "Please hold the line.\n\nA colleague will be with you shortly.",
    "Dr. Smith paid $3.50 on Jan. 5th.",
    "No, thank you!",
]
"""Texts of one piece and of several, with numbers and abbreviations."""

Speak = Callable[..., runner.RunResult]


@pytest.fixture(scope="module")
def cache() -> Iterator[EngineCache]:
    """Yield a cache that keeps the voice loaded."""
    with contextlib.closing(EngineCache()) as cache:
        yield cache


@pytest.fixture
def speak(cache: EngineCache) -> Speak:
    """Return a function that speaks a source in this process: speak(source, out, loudness=-23, shards=8, shard=0)."""

    def run(source: Path, out: Path, shard: int = 0, shards: int = 1, **options: Any) -> runner.RunResult:
        part_items = options.pop("part_items", 200)
        speech = SpeechOptions(**options)
        config = Config(source=str(source), out=str(out), shard=shard, shards=shards, part_items=part_items, own=speech)
        return runner.run(config, Log(quiet=True), engine_cache=cache)

    return run


def listed(path: Path, *rows: dict[str, Any] | str) -> Path:
    """Write JSON lines; a string is a row's text."""
    lines = [json.dumps({"text": row} if isinstance(row, str) else row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def outputs(out: Path) -> dict[str, bytes]:
    """Return the recordings and their list, by name."""
    files = [out / "recordings.jsonl", *sorted((out / "flac").rglob("*.flac"))]
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_text_is_one_recording(speak: Speak, tmp_path: Path) -> None:
    """A recording is a FLAC file at the loudness asked for, and recordings.jsonl is a manifest that names it."""
    out = tmp_path / "out"
    summary = speak(listed(tmp_path / "a.jsonl", *TEXTS), out, loudness=-23.0).summary
    assert summary is not None
    assert (summary.items, summary.done, summary.failed) == (6, 6, 0)
    recordings = lines(out / "recordings.jsonl")
    assert [line["text"] for line in recordings] == TEXTS
    for line in recordings:
        samples, rate = soundfile.read(out / line["audio_filepath"])
        assert len(samples) / rate == pytest.approx(line["duration"], abs=1e-3)
        assert pyloudnorm.Meter(rate).integrated_loudness(samples) == pytest.approx(line["loudness"], abs=0.1)
        assert line["loudness"] <= -22.9
        assert abs(samples).max() <= 10 ** (-1 / 20)
    assert [len(line["segments"]) for line in recordings] == [1, 1, 1, 2, 1, 1]


def test_shards_give_the_bytes_of_one_process(speak: Speak, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Eight shards, and parts of any size, give the recordings of one process. The bytes of the recordings limit a
    part. An archive that no part names vanishes at the merge, and the others are what WebDataset reads."""
    monkeypatch.setattr(results, "MAX_PART_BYTES", 200_000)
    source = listed(tmp_path / "a.jsonl", *TEXTS, *TEXTS[:5])
    speak(source, tmp_path / "one")
    assert len(list((tmp_path / "one").rglob("part-*.jsonl"))) > 2
    orphan = tmp_path / "eight" / "parts" / "shard-00000-of-00008" / f"audio-{'0' * 32}.tar"
    for shard in range(8):
        speak(source, tmp_path / "eight", shard=shard, shards=8, part_items=1)
        if shard == 0:
            orphan.write_bytes(b"left by a process that was killed before its part")
    assert outputs(tmp_path / "eight") == outputs(tmp_path / "one")
    assert not orphan.exists()
    names = set[str]()
    for path in (tmp_path / "eight" / "parts").rglob("*.tar"):
        with tarfile.open(path) as archive:
            names |= set(archive.getnames())
    assert names == {f"{number:06d}.{suffix}" for number in range(1, 12) for suffix in ("flac", "json")}


def check_killed(speak: Speak, start: Starter, voxbatch: Voxbatch, folder: Path, texts: list[str], kills: int) -> None:
    """Check that a run that is killed after further parts each time ends in the bytes of one that is not."""
    source, out = listed(folder / "a.jsonl", *texts), folder / "killed"
    command = ("speak", source, "-o", out, "--part-items", 1, "-q")
    for kill in range(1, kills + 1):
        process = start(*command)
        while len(list(out.rglob("part-*.jsonl"))) < 2 * kill:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.kill()
        process.wait()
    ended = voxbatch(*command)
    assert ended.returncode == 0, ended.stderr
    speak(source, folder / "whole")
    assert outputs(out) == outputs(folder / "whole")
    for line in lines(out / "recordings.jsonl"):
        assert len(soundfile.read(out / line["audio_filepath"])[0])
    assert [line["text"] for line in lines(out / "recordings.jsonl")] == texts


def test_a_killed_run_continues(speak: Speak, start: Starter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Every text is spoken once, with the bytes of a run that was not killed."""
    check_killed(speak, start, voxbatch, tmp_path, [*TEXTS, *TEXTS], kills=2)


@pytest.mark.long
def test_200_texts_with_five_kills(speak: Speak, start: Starter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The same of 200 texts of mixed lengths."""
    texts = [" ".join(TEXTS[: 1 + number % 6]) + f" Number {number}." for number in range(200)]
    check_killed(speak, start, voxbatch, tmp_path, texts, kills=5)


def test_what_cannot_be_spoken_fails_with_its_reason(speak: Speak, tmp_path: Path) -> None:
    """Nothing becomes silence: no text, no letter, another script, another language, an unknown voice, too much."""
    reasons = {
        "": "text", " \n ": "text", "…?!": "text", "你好，世界": "text", "привет": "text",
    }  # fmt: skip
    rows = [{"text": text} for text in reasons]
    rows += [{"text": "Guten Tag.", "lang": "de"}, {"text": "Hello.", "voice": "bob"}, {"text": "a" * 100_001}]
    speak(listed(tmp_path / "a.jsonl", *rows), tmp_path / "out")
    failures = lines(tmp_path / "out" / "failures.jsonl")
    assert [line["error_kind"] for line in failures] == [*reasons.values(), "language", "voice", "too_long"]
    assert all(line["message"] for line in failures)
    assert (tmp_path / "out" / "recordings.jsonl").read_bytes() == b""


def test_formats_hold_the_same_sound(speak: Speak, tmp_path: Path) -> None:
    """Each format is a file of the recording's length; a later run of the same texts keeps the bytes."""
    source, out = listed(tmp_path / "a.jsonl", {"id": "day.1/x", "text": TEXTS[1]}), tmp_path / "out"
    formats = ("wav", "mp3", "opus")
    speak(source, out, audio_formats=formats)
    duration = lines(out / "recordings.jsonl")[0]["duration"]
    content = {form: (out / form / "day.1" / f"x.{form}").read_bytes() for form in formats}
    for form in formats:
        assert soundfile.info(io.BytesIO(content[form])).duration == pytest.approx(duration, abs=0.15)
    speak(source, tmp_path / "again", audio_formats=formats)
    assert content == {form: (tmp_path / "again" / form / "day.1" / f"x.{form}").read_bytes() for form in formats}


def test_a_book_has_chapters(speak: Speak, tmp_path: Path) -> None:
    """ffprobe reads the chapters of the audiobook, with their titles and times. `voxbatch align` gives its words times
    in one file of subtitles."""
    if not (ffprobe := shutil.which("ffprobe")):
        pytest.skip("ffprobe is not installed")
    source, out = tmp_path / "book.epub", tmp_path / "out"
    source.write_bytes(epub({"The = first; day": "It rained.", "Night": "He slept."}))
    speak(source, out, audio_formats=("m4b",))
    command = [ffprobe, "-v", "error", "-show_chapters", "-show_format", "-of", "json", str(out / "m4b" / "book.m4b")]
    probed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    first, second = (line["duration"] + 1.0 for line in lines(out / "recordings.jsonl"))
    chapters = [(chapter["tags"]["title"], float(chapter["start_time"])) for chapter in probed["chapters"]]
    assert chapters == [("The = first; day", 0.0), ("Night", pytest.approx(first, abs=0.01))]
    assert float(probed["format"]["duration"]) == pytest.approx(first + second, abs=0.2)
    text = " ".join(line["text"] for line in lines(out / "recordings.jsonl"))
    (out / "book.jsonl").write_text(json.dumps({"audio_filepath": "m4b/book.m4b", "text": text}))
    aligned = Config(source=str(out / "book.jsonl"), out=str(tmp_path / "words"), task="align", formats=("vtt-words",))
    runner.run(aligned, Log(quiet=True))
    subtitles = (tmp_path / "words" / "vtt-words" / "m4b" / "book.vtt").read_text()
    assert re.findall(r"<c>(\w+)", subtitles) == re.findall(r"\w+", text)
    (slept,) = re.findall(r"<00:00:([\d.]+)><c>slept", subtitles)
    assert first < float(slept) < first + second


def test_cues_are_spoken_in_their_times(speak: Speak, tmp_path: Path) -> None:
    """Each cue of the track sounds within 0.2 s of its time, faster if it must; one that cannot has a warning."""
    source, out = tmp_path / "film.srt", tmp_path / "out"
    times = [(1.0, 3.0, "She has lived here all her life."),
             (3.5, 6.0, "Nobody knew why the captain had left so early."),
             (9.0, 9.6, "This is far too long a sentence for its time on the screen.")]  # fmt: skip
    cues = [f"{n}\n00:00:{a:06.3f} --> 00:00:{b:06.3f}\n{text}\n" for n, (a, b, text) in enumerate(times, 1)]
    source.write_text("\n".join(cues))
    speak(source, out)
    recordings = lines(out / "recordings.jsonl")
    assert [bool(line["warnings"]) for line in recordings] == [False, False, True]
    assert "its cue has 0.60 s" in recordings[2]["warnings"][0]
    track, rate = soundfile.read(out / "track.flac")
    loud = abs(track) > 10 ** (-40 / 20)
    for start, end, _ in times[:2]:
        begin, stop = round((start - 0.4) * rate), round((end + 0.4) * rate)
        sounding = loud[begin:stop].nonzero()[0] / rate + start - 0.4
        assert start - 0.2 <= sounding[0] <= start + 0.2
        assert sounding[-1] <= end + 0.2
    assert not loud[round(6.2 * rate) : round(8.8 * rate)].any()


def test_a_text_without_a_time_is_not_in_the_track(speak: Speak, tmp_path: Path) -> None:
    """A list may have texts with and without times. The track has the cue alone, at its time."""
    rows = [{"id": "a", "text": "First."}, {"id": "b", "text": "Second.", "cue_start": 2.0, "cue_end": 4.0}]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    speak(tmp_path / "m.jsonl", tmp_path / "out")
    assert [line["id"] for line in lines(tmp_path / "out" / "recordings.jsonl")] == ["a", "b"]
    track, rate = soundfile.read(tmp_path / "out" / "track.flac")
    sounding = (abs(track) > 10 ** (-40 / 20)).nonzero()[0] / rate
    assert 1.8 <= sounding[0] <= 2.2


@pytest.mark.parametrize(
    ("name", "text", "formats"),
    [("film.srt", "1\n00:01:00,000 --> 00:01:02,000\nYes.\n", ("flac",)), ("one.txt", "Yes. " * 40, ("mp3",))],
)
def test_a_full_disk_of_temporary_files_is_named(
    speak: Speak, tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str,
    formats: tuple[str, ...],
) -> None:  # fmt: skip
    """A track or an encoded recording that has no room in the folder of temporary files ends the run with an error that
    names the folder. With room, the same run writes them."""
    (tmp_path / name).write_text(text)
    (small_disk / "filler").write_bytes(bytes((1 << 20) - (40 << 10)))
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(small_disk))
        with pytest.raises(StorageError, match=f"cannot be stored in {small_disk}: No space .* free space there"):
            speak(tmp_path / name, tmp_path / "out", audio_formats=formats)
    assert os.listdir(small_disk) == ["filler"]
    for out in (tmp_path / "out", tmp_path / "whole"):
        speak(tmp_path / name, out, audio_formats=formats)
    written = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*.[fm][lp]*")]
    assert written
    for path in written:
        assert (tmp_path / "out" / path).read_bytes() == (tmp_path / "whole" / path).read_bytes()


def test_what_is_misheard_is_flagged(speak: Speak, tmp_path: Path) -> None:
    """With --verify, each line has the text that was heard, and the summary the error rate of each voice. A piece that
    no attempt makes right is flagged."""
    out = tmp_path / "out"
    rows = [TEXTS[1], "Say [water](/fˈaɪɚ/) now."]
    summary = speak(listed(tmp_path / "a.jsonl", *rows), out, verify=True).summary
    first, second = lines(out / "recordings.jsonl")
    assert (first["wer"], first["flags"]) == (0.0, [])
    assert "train" in first["pred_text"]
    assert [flag["kind"] for flag in second["flags"]] == ["misheard"]
    assert second["text"] == "Say water now."
    assert summary is not None
    assert summary.score is not None
    assert summary.of_kind["wer_by_voice"] == {"heart": summary.score.wer}
    assert summary.flags.by_kind == {"misheard": 1}
    assert [item.id for item in find_flagged(DEFAULT_STORES.out(str(out)), None).worst] == [second["id"]]


@pytest.mark.parametrize("change", [None, lambda data: data[:9000], lambda data: data[:5000] + b"?" + data[5001:]])
def test_a_damaged_archive_is_named_with_its_part(
    speak: Speak, tmp_path: Path, change: Callable[[bytes], bytes] | None
) -> None:
    """The steps of the verification bring back the recordings of an archive that is missing, cut off or altered,
    whatever else is damaged: the same texts give the same archive, whose name must not keep the damaged one."""
    source, out = listed(tmp_path / "a.jsonl", *TEXTS[:3]), tmp_path / "out"
    speak(source, out, part_items=1)
    before = outputs(out)
    archives = sorted(out.rglob("*.tar"))
    assert len(archives) == 3
    for archive in archives[:2]:
        data = archive.read_bytes()
        archive.unlink()
        if change:
            archive.write_bytes(change(data))
    problems = verify(DEFAULT_STORES.out(str(out)))
    assert len(problems) == 2
    for problem in problems:
        assert "/part-" in problem.file
        assert problem.problem == "the archive of its recordings is missing or damaged"
        remove, again = problem.repair
        subprocess.run(remove, shell=True, check=True)
        assert again.startswith("run the same command again")
    speak(source, out, part_items=1)
    assert verify(DEFAULT_STORES.out(str(out))) == []
    assert outputs(out) == before


def test_from_python(tmp_path: Path) -> None:
    """`voxbatch.speak` gives the summary of the run, and refuses what has no meaning for speech."""
    source = listed(tmp_path / "a.jsonl", TEXTS[0])
    summary = package.speak(source, tmp_path / "out", voice="heart", formats="wav")
    assert (summary.done, summary.failed) == (1, 0)
    assert (tmp_path / "out" / "wav" / "000001.wav").exists()
    with pytest.raises(ConfigError, match="unknown, or without a meaning"):
        package.speak(source, tmp_path / "out", decoders=2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="knows heart"):
        package.speak(source, tmp_path / "out", voice="bob")


def test_a_recording_that_somebody_changed_stays(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A recording that was edited stays and is named; nothing takes it in, and `correct --drop` writes it again."""
    (tmp_path / "t.txt").write_text("Yes.\n")
    command = ("speak", "t.txt", "-o", "out", "-q")
    assert voxbatch(*command).returncode == 0
    (recording,) = (tmp_path / "out" / "flac").iterdir()
    spoken = recording.read_bytes()
    recording.write_bytes(b"edited")
    done = voxbatch(*command)
    assert (done.returncode, recording.read_bytes()) == (0, b"edited")
    assert done.stderr == f"Warning: 1 file changed by somebody and not replaced: flac/{recording.name}\n"
    refused = voxbatch("correct", "out")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert voxbatch("correct", "out", "--drop").returncode == 0
    assert recording.read_bytes() == spoken
