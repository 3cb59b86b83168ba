"""Tests of data sets: cuts of transcripts, and shards that others read, each written once."""

from __future__ import annotations

import gzip
import io
import json
import signal
import tarfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import killed_at
import pytest
import soundfile
from conftest import ROOT, ManifestWriter, Recorder, Voxbatch
from outputs import RUN
from servers import Place

from voxbatch import runner
from voxbatch.analysis import dataset
from voxbatch.analysis.cuts import cuts_of, split_of
from voxbatch.analysis.dataset import DESCRIPTION, SHARD_S, Exported, export_dataset
from voxbatch.analysis.dataset_options import LAYOUTS, DatasetOptions
from voxbatch.audio.waveforms import decode
from voxbatch.config import Config
from voxbatch.errors import ConfigError
from voxbatch.log import Log
from voxbatch.records import SAMPLING_RATE
from voxbatch.storage import DEFAULT_STORES, Stores


def line_of(words: list[tuple[str, float, float, str | None]], text: str, **keys: Any) -> dict[str, Any]:
    """Return a line of transcripts.jsonl with one segment for each word that ends a sentence."""
    rows = [
        {"word": word, "start": start, "end": end, "confidence": 0.5, "speaker": speaker}
        for word, start, end, speaker in words
    ]
    return {
        "id": "a.b/c", "audio_filepath": "/day/a.wav", "pred_text": text, "words": rows, "segments": [], "flags": [],
        "audio_duration": 120.0, "warnings": [], "lang": "en", **keys,
    }  # fmt: skip


def cuts(line: dict[str, Any], **options: Any) -> tuple[list[Any], Counter[str]]:
    left_out = Counter[str]()
    return list(cuts_of(line, RUN, DatasetOptions(**options), left_out)), left_out


def test_a_cut_ends_at_the_longest_pause_in_reach() -> None:
    """Words of 1 s in pauses of 0.3 s, of which one is longer, give cuts within the limits that have all words once."""
    words, at = list[tuple[str, float, float, str | None]](), 1.0
    for number in range(60):
        words.append((f"w{number}", at, at + 1, None))
        at += 1.3 if number != 14 else 1.6
    text = " ".join(word[0] for word in words)
    made, left_out = cuts(line_of(words, text))
    assert not left_out
    assert " ".join(cut.text for cut in made) == text
    assert made[0].text.endswith(" w14")
    assert all(3 <= cut.duration <= 30 for cut in made)
    shorter, _ = cuts(line_of(words, text), min_seconds=1, max_seconds=5)
    assert " ".join(cut.text for cut in shorter) == text
    assert all(1 <= cut.duration <= 5 for cut in shorter)
    for cut in made:
        assert all(0 <= word["start"] <= word["end"] <= cut.duration for word in cut.words)
    assert all("." not in cut.id and "/" not in cut.id for cut in made)


def test_speakers_silence_and_short_speech_divide_cuts() -> None:
    """A cut has one speaker and no long pause; speech of two people at a time, and short speech, are left out."""
    first = [("you", 0.0, 2.0, "Speaker 1"), ("know", 2.0, 4.0, "Speaker 1"), ("yes", 4.1, 7.9, "Speaker 2")]
    made, left_out = cuts(line_of([*first, ("no", 20.0, 21.0, "Speaker 2")], "you know yes no"))
    assert [(cut.text, cut.speaker) for cut in made] == [("you know", "a.b/c Speaker 1"), ("yes", "a.b/c Speaker 2")]
    assert left_out == {"shorter than 3 s": 1}
    _, left_out = cuts(line_of([*first, ("stop", 6.0, 9.5, "Speaker 1")], "you know yes stop"))
    assert left_out == {"in which several people speak": 2}


@pytest.mark.parametrize(
    ("options", "keys", "is_taken"),
    [
        ({"min_confidence": 0.6}, {}, False),
        ({"min_confidence": 0.4}, {}, True),
        ({"min_seconds": 5.5}, {}, False),
        ({"min_seconds": 1.5}, {}, True),
        ({"max_seconds": 4}, {}, False),
        ({"max_wer": 10}, {"wer": 0.2}, False),
        ({"max_wer": 20}, {"wer": 0.2}, True),
        ({"max_wer": 20}, {"wer": None}, False),
        ({"agree": True}, {"cascade": None}, False),
        ({"agree": True}, {"cascade": {"agree": True}}, True),
    ],
)
def test_filters_choose_cuts(options: dict[str, Any], keys: dict[str, Any], is_taken: bool) -> None:
    """A cut without the fact that a filter needs is left out."""
    made, _ = cuts(line_of([("w", 0.0, 5.0, None)], "w", **keys), **options)
    assert bool(made) == is_taken


def test_shares_of_more_than_everything_are_refused() -> None:
    """The splits dev and test have at most all cuts."""
    with pytest.raises(ConfigError, match="120 % together"):
        DatasetOptions(dev=60, test=60)


def test_a_shortest_cut_above_the_longest_is_refused() -> None:
    """The message has both options and their values."""
    with pytest.raises(ConfigError, match="--min-seconds 40 is more than --max-seconds 30; give less"):
        DatasetOptions(min_seconds=40)


def test_a_split_depends_on_its_key_alone() -> None:
    """The shares are about right, and a larger dev moves nothing out of test."""
    keys = [f"{number}.wav" for number in range(2000)]
    few = {key: split_of(key, DatasetOptions(dev=5, test=10)) for key in keys}
    many = {key: split_of(key, DatasetOptions(dev=40, test=10)) for key in keys}
    assert Counter(few.values())["test"] in range(150, 250)
    assert all(many[key] == "test" for key in keys if few[key] == "test")


@pytest.fixture
def out(manifest: ManifestWriter, tmp_path: Path, warm_decoders: None) -> Path:
    """Return the OUT of a run of recordings of 4 to 15 s."""
    source = manifest(*(4.0 + number for number in range(12)))
    config = Config(source=str(source), out=str(tmp_path / "out"), engine="scripted", report=False)
    runner.run(config, Log(quiet=True))
    return tmp_path / "out"


def test_cuts_without_a_speaker_are_told(out: Path, voxbatch: Voxbatch) -> None:
    """A split by speakers that nobody has named is one by recordings, and a speaker may be in two splits."""
    done = voxbatch("export", "out", "-o", "by-speaker", "--split-by", "speaker")
    assert done.returncode == 0
    assert done.stderr == (
        "Warning: --split-by speaker divides 12 cuts without a speaker by recording; run with --speakers, or give the "
        "manifest's rows a `speaker`\n"
    )
    done = voxbatch("export", "out", "-o", "by-recording")
    assert (done.returncode, done.stderr) == (0, "")


def export(out: Path, place: Path, to: str, shard_s: float = 20.0) -> Exported:
    options = DatasetOptions(to=to, dev=25, test=25)
    return export_dataset(Stores().out(str(out)), str(place), options, DEFAULT_STORES, shard_s)


def files(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize("to", LAYOUTS)
def test_an_export_that_was_killed_writes_the_same_files(out: Path, tmp_path: Path, to: str) -> None:
    """An export completes the files that a killed one left, whichever they are, to the bytes of an undisturbed one."""
    export(out, tmp_path / "peace", to)
    undisturbed = files(tmp_path / "peace")
    assert len(undisturbed) > 4
    for number, name in enumerate(sorted(undisturbed)):
        if name != DESCRIPTION and number % 2:
            (tmp_path / "peace" / name).unlink()
    export(out, tmp_path / "peace", to)
    assert files(tmp_path / "peace") == undisturbed
    with pytest.raises(ConfigError, match="has another data set"):
        export(out, tmp_path / "peace", to, shard_s=30.0)


@pytest.mark.parametrize("to", ["shar", "hf"])
def test_an_export_to_a_bucket_that_a_signal_kills_again_and_again(
    out: Path, tmp_path: Path, place: Place, voxbatch: Voxbatch, to: str
) -> None:
    """An export that is killed after each number of objects, and then ends, has written each object once, with the
    bytes of an undisturbed one."""
    export(out, tmp_path / "peace", to, SHARD_S)
    expected, bucket = files(tmp_path / "peace"), place.store()
    command = ("export", "out", "--to", to, "--dev", "25", "--test", "25", "-o", place.uri)
    first: dict[str, str] = {}
    for number in range(1, len(expected)):
        code = voxbatch(*command, env={killed_at.VARIABLE: str(number)}).returncode
        assert code == -signal.SIGKILL or (code == 0 and number > 2)  # less is left for the later ones
        tags = {stat.key: stat.tag for stat in Stores().list(f"{place.uri}/")}
        assert {**tags, **first} == tags
        first = tags
    assert voxbatch(*command).returncode == 0
    tags = {stat.key: stat.tag for stat in Stores().list(f"{place.uri}/")}
    assert {**tags, **first} == tags
    assert {name: bucket.read(name) for name in bucket.names("")} == expected


@pytest.mark.parametrize("to", LAYOUTS)
def test_recordings_that_are_not_as_they_were_give_no_cut(
    out: Path, recording: Recorder, voxbatch: Voxbatch, tmp_path: Path, to: str
) -> None:
    """Recordings that are shorter, longer or gone are left out. The figures that are printed, and those in the
    description, are of the cuts that are there, also when the export is repeated."""
    export(out, tmp_path / "before", to)
    recording("r3.wav", 5)  # had 7 s
    recording("r5.wav", 12)  # had 9 s
    (tmp_path / "r8.wav").unlink()
    exported = export(out, tmp_path / "after", to)
    assert exported.cuts.total() == 9
    assert exported.left_out["whose recording has another length than it had"] == 2
    assert exported.left_out["whose recording cannot be read any more"] == 1
    description = json.loads((tmp_path / "after" / DESCRIPTION).read_text())
    assert {split: facts["cuts"] for split, facts in description["splits"].items()} == dict(exported.cuts)
    seconds = sum(facts["seconds"] for facts in description["splits"].values())
    assert seconds == pytest.approx(sum(4 + number for number in range(12) if number not in (3, 5, 8)), abs=6)
    assert export(out, tmp_path / "after", to) == exported
    assert json.loads((tmp_path / "after" / DESCRIPTION).read_text()) == description
    again = export(out, tmp_path / "before", to)  # its shards were finished when the recordings were as they had been
    assert (again.cuts.total(), again.left_out) == (12, {})


@pytest.mark.parametrize("to", LAYOUTS)
def test_a_damaged_shard_is_written_again(out: Path, voxbatch: Voxbatch, tmp_path: Path, to: str) -> None:
    """A flipped bit in a finished shard, or in its record, is seen and mended by the next export, which says so."""
    command = ("export", "out", "--to", to, "--dev", "25", "--test", "25", "-o", "set")
    assert voxbatch(*command).returncode == 0
    sound = files(tmp_path / "set")
    for name, content in sound.items():
        if name != DESCRIPTION:
            middle = len(content) // 2
            flipped = bytes([content[middle] ^ 1])
            (tmp_path / "set" / name).write_bytes(content[:middle] + flipped + content[middle + 1 :])
            done = voxbatch(*command)
            assert files(tmp_path / "set") == sound
            assert done.returncode == 0
            is_shard = not name.startswith("_digests/")
            assert (f"{name} was damaged, and is written again" in done.stdout) == is_shard


@pytest.mark.parametrize("name", ["recipe.mp3", "appointment.m4a", "library.opus", "platform-four.ogg", "weather.flac"])
def test_recordings_of_each_container_have_the_length_that_they_had(tmp_path: Path, name: str) -> None:
    """A recording that nobody changed is not left out, wherever its cuts begin."""
    words: list[tuple[str, float, float, str | None]]
    words = [("w", 1.3, 3.0, None), ("w", 3.0, 5.1, None), ("w", 7.6, 9.0, None), ("w", 9.0, 9.2, None)]
    place = str(ROOT / "examples" / "recordings" / name)
    with closing(DEFAULT_STORES.recording(place)) as opened:
        seconds = sum(len(block.samples) for block in decode(opened, place)) / SAMPLING_RATE
    line = line_of(words, "w w w w", audio_filepath=place, audio_duration=round(seconds, 3))
    made, _ = cuts(line)
    assert made
    for cut in made:
        assert len(dataset._decoded(place, None, [cut], RUN, DEFAULT_STORES)) == 1


def test_every_cut_is_in_one_shard_with_its_audio(out: Path, tmp_path: Path) -> None:
    """The tars of WebDataset, NeMo and Lhotse have the same cuts and the same audio, in the order of their lines."""
    recordings: dict[str, dict[str, bytes]] = {}
    for to in LAYOUTS[:3]:
        exported = export(out, tmp_path / to, to)
        recordings[to] = {}
        for path in sorted((tmp_path / to).rglob("*.tar")):
            with tarfile.open(path) as archive:
                members = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
            recordings[to] |= {name: content for name, content in members.items() if name.endswith(".flac")}
        assert len(recordings[to]) == exported.cuts.total()
    assert recordings["webdataset"] == recordings["nemo-tarred"] == recordings["shar"]
    audio = recordings["shar"]
    manifests = (tmp_path / "nemo-tarred").rglob("manifest_*.json")
    rows = [json.loads(row) for path in manifests for row in path.read_text().splitlines()]
    assert {row["audio_filepath"] for row in rows} == set(audio)
    for row in rows:
        assert soundfile.info(io.BytesIO(audio[row["audio_filepath"]])).duration == row["duration"]
    for path in (tmp_path / "shar").rglob("cuts.*"):
        lhotse = [json.loads(row) for row in gzip.decompress(path.read_bytes()).splitlines()]
        assert {f"{cut['id']}.flac" for cut in lhotse} <= set(audio)


def test_datasets_loads_the_hf_layout(out: Path, tmp_path: Path) -> None:
    """Hugging Face's datasets finds the splits, the types and the audio."""
    datasets = pytest.importorskip("datasets")
    exported = export(out, tmp_path / "set", "hf")
    table = datasets.load_dataset(str(tmp_path / "set"), cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in table.items()} == dict(exported.cuts)
    assert isinstance(table["train"].features["audio"], datasets.Audio)
    for row in table["train"].cast_column("audio", datasets.Audio(decode=False)):
        assert soundfile.info(io.BytesIO(row["audio"]["bytes"])).duration == row["duration"]
