"""Tests of tar archives as sources: the rows and the bytes of their recordings, in files and in buckets."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from archived_recordings import contents, rows
from conftest import ManifestWriter, Recorder, Voxbatch
from servers import Place

from voxbatch.errors import ManifestError
from voxbatch.manifest.path_policy import DEFAULT_POLICY
from voxbatch.sources.kinds import is_text
from voxbatch.sources.opening import open_source
from voxbatch.storage import Stores, tar_members
from voxbatch.storage.tar_members import open_listing

LONG = "a-name-that-is-longer-than-the-hundred-bytes-of-a-header-" * 2


@pytest.fixture
def sample(tmp_path: Path, recording: Recorder) -> dict[str, bytes]:
    """Return the recordings of a folder with texts and other files, by their names in it."""
    folder = tmp_path / "clips"
    (folder / "day.2").mkdir(parents=True)
    sounds = {}
    for number, name in enumerate(("a.b.wav", f"{LONG}.flac", "day.2/ä.wav")):
        recording(folder / name, seconds=1 + number)
        sounds[name] = (folder / name).read_bytes()
    (folder / "a.json").write_text(
        '{"sentence":\n "eins", "locale": "de", "offset": 7.5, "duration": 1, "speaker": "x"}'
    )
    (folder / f"{LONG}.txt").write_text("zwei\n")
    (folder / "a.png").write_bytes(bytes(70_000))
    return sounds


def tar_of(name: str, data: bytes) -> bytes:
    """Return an archive with one file."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return whole.getvalue()[: -(-len(data) // 512) * 512 + 512 + 1024]


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_the_recordings_of_an_archive_that_gnu_tar_wrote(form: str, tmp_path: Path, sample: dict[str, bytes]) -> None:
    """Each recording is a row with the keys of its texts, and is read with its own bytes. What a text says of the
    recording that it was cut from does not count."""
    archive = tmp_path / "clips-1.tar"
    subprocess.run(
        ["tar", f"--format={form}", "--sort=name", "-cf", archive, "-C", tmp_path / "clips", "."], check=True
    )
    found = {row["id"]: row for row in rows(archive)}
    assert found.keys() == {"clips-1/a.b", f"clips-1/{LONG}", "clips-1/day.2/ä"}
    facts = {key: value for key, value in found["clips-1/a.b"].items() if key not in ("id", "audio_filepath")}
    assert facts == {"text": "eins", "lang": "de", "duration": 1, "speaker": "x"}
    assert found[f"clips-1/{LONG}"]["text"] == "zwei"
    assert "text" not in found["clips-1/day.2/ä"]
    assert sorted(contents(tmp_path, found.values())) == sorted(sample.values())


def test_archives_in_a_bucket_are_shards_of_which_only_headers_are_listed(
    place: Place, tmp_path: Path, sample: dict[str, bytes]
) -> None:
    """The rows of two archives in a bucket have the bytes of the recordings. To list them, a twentieth is fetched."""
    (tmp_path / "clips" / "long.wav").write_bytes(os.urandom(8 << 20))
    for number in range(2):
        subprocess.run(["tar", "-cf", tmp_path / "c.tar", "-C", tmp_path / "clips", "."], check=True)
        place.put(f"clips-{number}.tar", (tmp_path / "c.tar").read_bytes())
    with open_source(f"{place.uri}/") as opened:
        found = [json.loads(line) for _, line in opened.lines()]
    assert {row["id"].split("/")[0] for row in found} == {"clips-0", "clips-1"}
    expected = [*sample.values(), (tmp_path / "clips" / "long.wav").read_bytes()] * 2
    assert sorted(contents(place.uri, found)) == sorted(expected)
    archive = f"{place.uri}/clips-0.tar"
    with Stores().ranges(archive) as (read, _), open_listing(archive, is_text, read) as listing:
        assert os.fstat(listing.fileno()).st_blocks * 512 < (8 << 20) / 20


def test_a_run_over_archives(tmp_path: Path, voxbatch: Voxbatch, recording: Recorder) -> None:
    """A run over archives gives each recording its transcript, and says which archive was changed since."""
    recording("clips/a.wav", 2)
    recording("clips/b.wav", 3)
    for name in "ab":
        with tarfile.open(tmp_path / f"{name}.tar", "w") as archive:
            archive.add(tmp_path / "clips" / f"{name}.wav", f"{name}.wav")
    options = ("--engine", "scripted", "-o", "out")
    assert voxbatch("run", "a.tar", "b.tar", *options).returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()]
    assert [(line["id"], line["audio_duration"]) for line in lines] == [("a/a", 2.0), ("b/b", 3.0)]
    (tmp_path / "m.jsonl").write_text(json.dumps({"audio_filepath": lines[0]["audio_filepath"]}))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "clips" / "b.wav", "a.wav")
    changed = voxbatch("run", "m.jsonl", "--engine", "scripted", "-o", "other")
    assert "cannot read a.wav in" in changed.stdout
    assert "the archive was changed: restore it" in changed.stdout


def test_a_long_recording_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording above the limit has its bytes, from a file."""
    monkeypatch.setattr(tar_members, "IN_MEMORY_BYTES", 1000)
    data = os.urandom(5 << 20)
    (tmp_path / "A.TAR").write_bytes(tar_of("a.wav", data))
    assert contents(tmp_path, rows(tmp_path / "A.TAR")) == [data]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no archive" * 200, "is no whole, uncompressed tar archive"),
        (gzip.compress(b"x" * 2000, mtime=0), "is no whole, uncompressed tar archive"),
        (bytes(10_240), "holds no recordings"),
        (tar_of("a.wav", bytes(4000))[:2000], "is no whole, uncompressed tar archive"),
        (tar_of("a.json", b"[1]")[:-1024] + tar_of("a.wav", b"1"), "must be a JSON object|an array"),
        (tar_of("a.txt", b"\xff")[:-1024] + tar_of("a.wav", b"1"), "is not UTF-8"),
    ],
    ids=["text", "gzip", "empty", "broken off", "json", "encoding"],
)
def test_what_is_no_usable_archive_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    """The message says what is wrong."""
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(ManifestError, match=message):
        rows(tmp_path / "a.tar")


def test_an_archive_on_a_web_server_is_refused() -> None:
    """The message says how to fetch it."""
    with pytest.raises(ManifestError, match=r"curl -O https://host/a\.tar && voxbatch run a\.tar"):
        rows("https://host/a.tar")


@pytest.mark.parametrize("name", ["../../secret.wav", "/etc/a.wav"])
def test_a_name_in_an_archive_leads_nowhere(name: str, tmp_path: Path) -> None:
    """The address of a recording stays within the archive, whatever its name is."""
    (tmp_path / "a.tar").write_bytes(tar_of(name, b"1"))
    (row,) = rows(tmp_path / "a.tar")
    resolved = DEFAULT_POLICY.resolve(row["audio_filepath"], str(tmp_path))
    assert resolved.startswith(f"{tmp_path}/a.tar#bytes=512+1,")
    assert "/" not in resolved.removeprefix(str(tmp_path) + "/")


@pytest.mark.parametrize("to", ["nemo-tarred", "shar", "webdataset"])
def test_the_texts_beside_archives_belong_to_their_recordings(
    to: str, tmp_path: Path, voxbatch: Voxbatch, manifest: ManifestWriter
) -> None:
    """The folder of a data set that `voxbatch export` wrote is a source: its recordings have the texts, which NeMo and
    Lhotse have in files beside the archives."""
    assert voxbatch("run", manifest(4.0, 5.0), "--language", "en", "--engine", "scripted", "-o", "out").returncode == 0
    assert voxbatch("export", "out", "--to", to, "--dev", "0", "--test", "0", "-o", "set").returncode == 0
    texts = [
        json.loads(line)["pred_text"] for line in (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()
    ]
    for place in ("set", "set/train"):
        found = rows(tmp_path / place)
        assert [row["text"] for row in found] == texts
        assert [row["lang"] for row in found] == ["en", "en"]
        assert {row["id"].removeprefix("train/").split("/")[0] for row in found} == {
            {"nemo-tarred": "audio_0", "shar": "recording.000000", "webdataset": "train-000000"}[to]
        }
        assert all("offset" not in row for row in found)
        assert len(contents(tmp_path / place, found)) == 2


def test_nemos_manifest_of_all_archives_is_a_source(place: Place, tmp_path: Path) -> None:
    """Its rows are those of the recordings that it names, in its order, on this machine and in a bucket."""
    lines = [
        {"audio_filepath": f"{name}.wav", "text": name, "duration": 1.5, "offset": 7, "shard_id": shard}
        for shard, name in ((1, "c"), (0, "b"), (0, "a"))
    ]
    files = {
        "audio_0.tar": tar_of("a.wav", b"1")[:-1024] + tar_of("extra.wav", b"x")[:-1024] + tar_of("b.wav", b"22"),
        "audio_1.tar": tar_of("c.wav", b"333"),
        "tarred_audio_manifest.json": "".join(json.dumps(line) + "\n" for line in lines).encode(),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        place.put(name, data)
    for base in (str(tmp_path), place.uri):
        found = rows(f"{base}/tarred_audio_manifest.json")
        assert [(row["id"], row["text"]) for row in found] == [
            ("audio_1/c", "c"),
            ("audio_0/b", "b"),
            ("audio_0/a", "a"),
        ]
        assert contents(base, found) == [b"333", b"22", b"1"]
        assert not any("offset" in row for row in found)


@pytest.mark.parametrize(
    ("name", "shard", "message"),
    [("b.wav", 0, "line 2: audio_0.tar has no recording 'b.wav'"), ("a.wav", 7, "line 2: there is no audio_7.tar")],
)
def test_a_recording_that_no_archive_holds_is_refused(name: str, shard: int, message: str, tmp_path: Path) -> None:
    """The message names the line of NeMo's manifest and the archive. Without archives, the paths are those of files."""
    lines = [{"audio_filepath": "a.wav", "shard_id": 0}, {"audio_filepath": name, "shard_id": shard}]
    (tmp_path / "m.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert rows(tmp_path / "m.json") == lines
    (tmp_path / "audio_0.tar").write_bytes(tar_of("a.wav", b"1"))
    with pytest.raises(ManifestError, match=message):
        rows(tmp_path / "m.json")


def test_a_line_beside_an_archive_that_is_no_json_is_refused(tmp_path: Path) -> None:
    """The message names the file and the line."""
    (tmp_path / "audio_0.tar").write_bytes(tar_of("a.wav", b"1"))
    (tmp_path / "manifest_0.json").write_text('{"audio_filepath": "a.wav", "text": "eins"}\nno\n')
    with pytest.raises(ManifestError, match=r"manifest_0\.json: line 2 "):
        rows(tmp_path / "audio_0.tar")
