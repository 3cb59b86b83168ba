"""Tests of the manifests that others write: pandas, Hugging Face's datasets, Common Voice, Kaldi and NeMo."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import servers
import soundfile
from conftest import ManifestWriter, Voxbatch
from datasets import Audio, Dataset

from voxbatch.errors import ConfigError, ManifestError
from voxbatch.manifest import PathPolicy, items, survey
from voxbatch.output.default_out import default_out
from voxbatch.sources.opening import open_source

TEXTS = ['He said "no", twice.', "line one\nline two", "tab\there", 'ends with "quotes"', "plain", "ünï – ☂", "; | ,"]


def rows(path: Path | str, **options: Any) -> dict[int, dict[str, Any]]:
    """Return the row of each line of a surveyed manifest."""
    with open_source(path, **options) as source:
        survey(source, PathPolicy(allow_outside=True))
        assert not source.grows
        return {line: json.loads(text) for line, text in source.lines()}


def refused(path: Path | str) -> str:
    with pytest.raises(ManifestError) as caught, open_source(path) as source:
        survey(source)
    return str(caught.value)


# ── CSV and TSV ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "sep"), [("m.csv", ","), ("m.CSV", ";"), ("m.csv", "\t"), ("m.csv.gz", "|"), ("m.tsv", "\t")]
)
def test_table_that_pandas_writes_reads_back(tmp_path: Path, name: str, sep: str) -> None:
    """A table of pandas gives the values that went in: quotes, delimiters and line ends inside of them, missing values,
    columns of other names.
    """
    frame = pd.DataFrame(
        {
            "filename": [f"x/{n}.wav" for n in range(len(TEXTS))],
            "sentence": TEXTS,
            "seconds": [1.5] * len(TEXTS),
            "duration": [2.25, None, 3, 4, 5, 6, 7],
            "channel": [0, 1, 0, 1, 0, 1, 0],
            "Locale": ["en", None, "de", "en", "en", "de", "en"],
        }
    )
    frame.to_csv(tmp_path / name, sep=sep, index=False, encoding="utf-8-sig")
    found = list(rows(tmp_path / name).values())
    assert [row["audio_filepath"] for row in found] == list(frame["filename"])
    assert [row["text"] for row in found] == TEXTS
    assert [row.get("duration") for row in found] == [2.25, None, 3, 4, 5, 6, 7]
    assert [row["channel"] for row in found] == list(frame["channel"])
    assert [row.get("lang") for row in found] == ["en", None, "de", "en", "en", "de", "en"]
    assert {row["seconds"] for row in found} == {"1.5"}


def test_rows_keep_the_lines_of_the_file(tmp_path: Path) -> None:
    """Messages name the line of the file at which a row begins, after rows of several lines and blank lines."""
    (tmp_path / "m.csv").write_text('path,text,duration\na.wav,"x\ny\nz",1\n\n"b.wav",,abc\nc.wav,,1\nc.wav,,2\n')
    assert refused(tmp_path / "m.csv").splitlines() == [
        f"{tmp_path}/m.csv: line 6: `duration` is 'abc'; it must be seconds, more than 0, at most 2,592,000 (30 days)",
        f"{tmp_path}/m.csv: line 8: id 'c.wav' is also line 7's; give each line its own `id`",
    ]


def test_part_has_an_end_or_a_duration(tmp_path: Path) -> None:
    """`start` and `end` become `offset` and `duration`; with semicolons, a comma may be the decimal point."""
    (tmp_path / "m.csv").write_text("audio;start;end\na.wav;1,5;4\nb.wav;0;0,25\n")
    assert [(row["offset"], row["duration"]) for row in rows(tmp_path / "m.csv").values()] == [(1.5, 2.5), (0, 0.25)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("m.csv", b"", "line 1 names no column with the recordings: none; add a header with"),
        ("m.csv", b"a,hello\nb,you\n", "line 1 names no column with the recordings: 'a', 'hello'; add"),
        ("m.csv", b"path,text\n", "no items"),
        ("m.csv", b"path,text,text\na,b,c\n", "line 1 names the column 'text' twice; rename one of them"),
        ("m.csv", b"path,text\na.wav\n", "line 2: has 1 columns, and the header has 2"),
        ("m.csv", b"path,text\na.wav,one, two\n", "line 2: has 3 columns, and the header has 2; quote the values"),
        ("m.csv", "path,text\na.wav,x\n".encode("utf-16")[:-1], "cannot be read to its end: "),
        ("m.csv", b'path,text\na.wav,"' + b"x\n" * 6_000_000, "line 2: is not CSV: a row is longer than 10,000,000"),
        ("m.csv", b"path,text\na.wav," + b"x" * 11_000_000, "line 2 has 11,000,006 bytes; write one row a line"),
        ("m.json", b"[", "ends within the array"),
        ("m.json", b'[{"path": "a.wav"}, {"path": "b.wav"', "not an array of JSON objects"),
        ("m.json", b'[{"path": "a.wav", "x": NaN}]', "line 1: holds NaN"),
        ("m.json", b'[{"path": "\xe9"}]', "is not UTF-8"),
        ("m.parquet", b"PAR2 no", "cannot be read as Parquet"),
    ],
)
def test_table_that_cannot_be_read_is_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    """A table that is not what its name says is refused with its line and with advice."""
    (tmp_path / name).write_bytes(content)
    assert says in refused(tmp_path / name)


HE_SAID = {"audio_filepath": "a.wav", "text": "he said"}
CUT = {
    "id": "x", "start": 0.5, "duration": 1.0, "channel": 0, "type": "MonoCut",
    "supervisions": [{"id": "x", "start": 0, "duration": 1, "text": "he said", "language": "English"}],
    "recording": {"id": "r", "sources": [{"type": "file", "channels": [0], "source": "a.wav"}], "duration": 4.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "row"),
    [
        ("m.csv", "a.wav,he said\n", HE_SAID),
        ("m.csv", "a.wav|he said\n", HE_SAID),
        ("m.tsv", "9\ta.wav\the said\the said\tMALE\n", HE_SAID | {"1": "9", "4": "he said", "5": "MALE"}),
        ("m.csv", " Audio File , Reference Text \n a.wav , he said \n,\n", HE_SAID),
        ("m.csv", "ID,duration,wav,wrd\nx,1.5,$data_root/a.wav,he said\n", HE_SAID | {"id": "x", "duration": 1.5}),
        ("m.json", '{"x": {"wav": "{data_root}/a.wav", "words": "he said"}}', HE_SAID | {"id": "x"}),
        ("m.json", '{\n"data": [{"audio": "a.wav", "sentence": "he said"}]\n}', HE_SAID),
        ("m.jsonl", '{"audio": {"path": "a.wav"}, "sentence": "he said"}\n', HE_SAID),
        ("metadata.jsonl", '{"file_name": "a.wav", "speaker": 3}', {"audio_filepath": "a.wav", "speaker": 3}),
        ("data.list", '{"key": "x", "wav": "a.wav", "txt": "he said"}\n', HE_SAID | {"key": "x"}),
        ("cuts.jsonl", json.dumps(CUT), HE_SAID | {"id": "x", "offset": 0.5, "duration": 1.0, "lang": "English"}),
    ],
)  # fmt: skip
def test_manifests_of_other_programs_name_recordings_and_texts(
    tmp_path: Path, name: str, content: str, row: dict[str, Any]
) -> None:
    """Tables without a header, SpeechBrain's, Whisper-Finetune's, WeNet's and Lhotse's lines give our keys."""
    (tmp_path / name).write_text(content)
    (found,) = rows(tmp_path / name).values()
    assert {key: found[key] for key in row} == row


def test_unquoted_table_with_tabs_keeps_its_quotes(tmp_path: Path) -> None:
    """In a table without quoting, as Common Voice writes it, a quote at the begin of a text swallows no rows; the clips
    lie in the folder clips/ beside the table.
    """
    (tmp_path / "clips").mkdir()
    (tmp_path / "validated.tsv").write_text(
        "client_id\tpath\tsentence\tup_votes\tlocale\n"
        'aa\tcommon_voice_de_1.mp3\t"Guten Tag, sagte er.\t2\tde\n'
        'bb\tcommon_voice_de_2.mp3\tUnd "so" weiter.\t2\tde\n'
    )
    with open_source(tmp_path / "validated.tsv") as source:
        found = list(items(source))
    assert [item.audio for item in found] == [str(tmp_path / "clips" / f"common_voice_de_{n}.mp3") for n in (1, 2)]
    assert [(item.id, item.text, item.lang) for item in found] == [
        ("common_voice_de_1.mp3", '"Guten Tag, sagte er.', "de"),
        ("common_voice_de_2.mp3", 'Und "so" weiter.', "de"),
    ]
    assert json.loads(found[0].row) == {
        "audio_filepath": "common_voice_de_1.mp3",
        "text": '"Guten Tag, sagte er.',
        "lang": "de",
        "client_id": "aa",
        "up_votes": "2",
    }


def test_policy_is_that_of_a_manifest(tmp_path: Path) -> None:
    """--only-under confines a table, too."""
    (tmp_path / "m.csv").write_text("path\n/etc/passwd\n")
    with open_source(tmp_path / "m.csv") as source, pytest.raises(ManifestError, match="'/etc/passwd' is outside of"):
        survey(source, PathPolicy(only_under=(str(tmp_path),)))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.csv", b"path,text\ra.wav,he has\r"),
        ("m.tsv", b"path\ttext\ra.wav\the has"),
        ("m.csv", b'\xef\xbb\xbfpath;text\r"a.wav";"he has"\r'),
        ("m.csv.gz", gzip.compress(b"path,text\ra.wav,he has\r", mtime=0)),
        ("m.tsv", "path\ttext\r\na.wav\the has\r\n".encode("utf-16")),
        ("m.csv", b"\xfe\xff" + "path;text\ra.wav;he has\r".encode("utf-16-be")),
        ("m.csv", b"\xef\xbb\xbfsep=;\r\npath;text\r\na.wav;he has\r\n"),
        ("m.jsonl", b'{"audio_filepath": "a.wav", "text": "he has"}\r'),
        ("m.json", b'[\r{"path": "a.wav",\r"text": "he has"}\r]\r'),
        ("m.csv", b"ID,duration,wav,spk_id,wrd\nu1,4.5,a.wav,s1,he has\n"),
        ("m.csv", b"wav_filename,wav_filesize,transcript\na.wav,5,he has\n"),
        ("m.csv", b"file_path,normalized_text\na.wav,he has\n"),
        ("m.csv", b"key,wav,txt\ru1,a.wav,he has\n"),
        ("m.csv", b"\r\n \r\npath,text\r\na.wav,he has\r\n"),
    ],
)
def test_tables_of_spreadsheets_and_toolkits_are_read(tmp_path: Path, name: str, content: bytes) -> None:
    """Line ends of old Macs, also mixed with others, UTF-16 and what Excel writes before the header are read, and the
    columns of toolkits are known."""
    (tmp_path / name).write_bytes(content)
    with open_source(tmp_path / name) as source:
        assert [(item.audio, item.text) for item in items(source)] == [(str(tmp_path / "a.wav"), "he has")]


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        ("m.csv", "path,label\na.wav,he has\n", "label"),
        ("m.csv", "path,label,text\na.wav,he has,he\n", None),
        ("m.csv", "path,speaker\na.wav,s1\n", None),
        ("m.jsonl", '{"audio_filepath": "a.wav", "transcript": "he"}', "transcript"),
        ("m.jsonl", '{"audio_filepath": "a.wav", "pred_text": "he has"}', None),
    ],
)
def test_column_that_seems_to_be_the_reference_is_told(
    tmp_path: Path, name: str, content: str, key: str | None
) -> None:
    """A manifest without references whose rows have a text under another name says so."""
    (tmp_path / name).write_text(content)
    with open_source(tmp_path / name) as source:
        wanted = f"no reference: the rows have no `text`; if '{key}' is the reference, rename it to `text`"
        assert source.note == (wanted if key else "")


MEASURE = """
import resource, sys
from voxbatch.sources.opening import open_source
with open_source(sys.argv[1]) as source:
    count = sum(1 for _ in source.lines())
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["m.csv", "m.json"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, name: str) -> None:
    """100,000 rows, also of a JSON array on one line, need no more memory than 1,000."""
    found = []
    for count in (1000, 100_000):
        if name == "m.csv":
            content = "path,text\n" + "".join(f"{n}.wav,some words of a call\n" for n in range(count))
        else:
            content = json.dumps([{"path": f"{n}.wav", "text": "some words of a call"} for n in range(count)])
        (tmp_path / name).write_text(content)
        done = subprocess.run([sys.executable, "-c", MEASURE, tmp_path / name], capture_output=True, check=True)
        found.append([int(number) for number in done.stdout.split()])
    assert [count for count, _ in found] == [1000, 100_000]
    assert found[1][1] - found[0][1] < (3000 if name == "m.csv" else 40_000)  # 5 MB of the line, and its text


# ── JSON arrays ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("indent", [None, 0, 2])
def test_json_array_is_read(tmp_path: Path, indent: int | None) -> None:
    """An array of objects is a manifest, on one line or on many, and its keys may have the usual names."""
    given = [{"path": f"{n}.wav", "sentence": text, "words": [[1, 2], {"a": []}]} for n, text in enumerate(TEXTS)]
    (tmp_path / "m.json").write_text(json.dumps(given, indent=indent, ensure_ascii=False) + "\n")
    found = rows(tmp_path / "m.json")
    assert [row["text"] for row in found.values()] == TEXTS
    assert [row["words"] for row in found.values()] == [[[1, 2], {"a": []}]] * len(TEXTS)
    if indent == 2:
        lines = (tmp_path / "m.json").read_text().split("\n")
        assert all(lines[line - 1].strip() == "{" for line in found)


@pytest.mark.slow
def test_long_object_in_an_array_is_read_in_linear_time(tmp_path: Path) -> None:
    """An object of 300,000 lines is not parsed again for each line."""
    (tmp_path / "m.json").write_text(
        json.dumps([{"path": "a.wav", "numbers": [random.Random(1).random()] * 300_000}], indent=1)
    )
    assert len(rows(tmp_path / "m.json")[2]["numbers"]) == 300_000


# ── Hugging Face ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_audio_folder_is_described_by_its_metadata(tmp_path: Path, kind: str) -> None:
    """A folder with a metadata file that has `file_name` takes its rows, and says so; the metadata itself does, too."""
    (tmp_path / "data").mkdir()
    for name in ("data/a.wav", "data/b.wav", "data/c.wav"):
        (tmp_path / name).touch()
    frame = pd.DataFrame(
        {"file_name": ["data/b.wav", "data/a.wav"], "transcription": ["zwei", "eins"], "speaker": [1, 2]}
    )
    metadata = tmp_path / f"metadata.{kind}"
    if kind == "csv":
        frame.to_csv(metadata, index=False)
    elif kind == "jsonl":
        frame.to_json(metadata, orient="records", lines=True)
    else:
        frame.to_parquet(metadata)
    assert list(rows(metadata).values()) == list(rows(tmp_path).values())
    with open_source(tmp_path) as source:
        assert [(item.id, item.text, item.audio) for item in items(source)] == [
            ("data/b.wav", "zwei", str(tmp_path / "data/b.wav")),
            ("data/a.wav", "eins", str(tmp_path / "data/a.wav")),
        ]
        assert source.note == f"{metadata} names the recordings; other files of the folder are left out"
    with open_source(tmp_path, include=["*b.wav"]) as source:
        assert [item.id for item in items(source)] == ["data/b.wav"]


@pytest.mark.parametrize("content", ["LJ001-0001|Printing, in the only sense|x\n", "", "id,text\n1,x\n"])
def test_other_metadata_does_not_describe_a_folder(tmp_path: Path, content: str) -> None:
    """A metadata.csv without `file_name`, as LJ Speech has it, is no description: the folder is walked."""
    (tmp_path / "a.wav").touch()
    (tmp_path / "metadata.csv").write_text(content)
    with open_source(tmp_path) as source:
        assert source.grows
        assert [item.id for item in items(source)] == ["a.wav"]


def test_parquet_of_datasets_with_paths_is_read(tmp_path: Path) -> None:
    """Parquet with the paths of recordings is read, also from `datasets`."""
    soundfile.write(tmp_path / "a.wav", np.zeros(800, np.float32), 16_000)
    data = Dataset.from_dict({"audio": [str(tmp_path / "a.wav")], "transcription": ["eins"]})
    data.to_parquet(tmp_path / "plain.parquet")
    assert rows(tmp_path / "plain.parquet") == {1: {"audio_filepath": str(tmp_path / "a.wav"), "text": "eins"}}
    data.cast_column("audio", Audio(decode=False)).to_parquet(tmp_path / "audio.parquet")
    assert rows(tmp_path / "audio.parquet") == rows(tmp_path / "plain.parquet")
    table = pa.table(
        {
            "audio": pa.array(
                [{"bytes": None, "path": "a.wav"}], pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            ),
            "duration": [float("nan")],
            "channel": [0.0],
            "when": [pd.Timestamp("2026-11-23")],
            "words": [["a", "b"]],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "paths.parquet")
    assert rows(tmp_path / "paths.parquet") == {
        1: {
            "audio_filepath": "a.wav",
            "duration": None,
            "channel": 0,
            "when": "2026-11-23 00:00:00",
            "words": ["a", "b"],
        }
    }


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Parquet file is refused with the command that installs pyarrow if it is missing."""
    pd.DataFrame({"path": ["a.wav"]}).to_parquet(tmp_path / "m.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pyarrow is missing; pip install 'voxbatch\[parquet\]'"):
        open_source(tmp_path / "m.parquet")


# ── Kaldi ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_kaldi_directory_is_read(tmp_path: Path) -> None:
    """wav.scp gives recordings, text and utt2lang their references and languages, segments their parts."""
    data = tmp_path / "train"
    data.mkdir()
    (data / "wav.scp").write_text(f"call1 {data}/1.wav\ncall2\t{data}/2 b.wav\n")
    (data / "text").write_text("call2 zwei  Worte\ncall1 eins\n")
    (data / "utt2lang").write_text("call1 de\n")
    expected = {
        1: {"audio_filepath": f"{data}/1.wav", "id": "call1", "text": "eins", "lang": "de"},
        2: {"audio_filepath": f"{data}/2 b.wav", "id": "call2", "text": "zwei  Worte"},
    }
    assert rows(data / "wav.scp") == rows(data) == expected
    (data / "segments").write_text("call2-a call2 1.50 4.25\ncall2-b call2 4.25 -1 1\n")
    (data / "text").write_text("call2-a drei\n")
    assert rows(data / "wav.scp") == {
        1: {"audio_filepath": f"{data}/2 b.wav", "offset": 1.5, "duration": 2.75, "id": "call2-a", "text": "drei"},
        2: {"audio_filepath": f"{data}/2 b.wav", "offset": 4.25, "channel": 1, "id": "call2-b"},
    }


@pytest.mark.parametrize("command", ["flac -c -d -s {} |", "cat {} |", "sph2pipe -f wav -p {} |"])
def test_kaldi_commands_that_only_decode_name_their_file(tmp_path: Path, command: str) -> None:
    """The file of a command that only decodes it is the recording."""
    (tmp_path / "wav.scp").write_text("a " + command.format("/data/a.flac") + "\n")
    assert rows(tmp_path / "wav.scp") == {1: {"audio_filepath": "/data/a.flac", "id": "a"}}


def test_kaldi_commands_are_never_run(tmp_path: Path) -> None:
    """A command, a part of an archive and an unknown recording are refused with their lines, and nothing is run."""
    (tmp_path / "wav.scp").write_text(f"a touch {tmp_path}/proof |\nb x.ark:17\nc c.wav\n")
    first, second = refused(tmp_path / "wav.scp").splitlines()
    assert "wav.scp: line 1: is the command 'touch " in first
    assert first.endswith("a manifest's commands are never run; write its output to a file")
    assert "line 2: names 'x.ark:17', a part of an archive" in second
    assert not (tmp_path / "proof").exists()
    (tmp_path / "segments").write_text("s1 d 0 1\ns2 c x y\n")
    assert refused(tmp_path / "wav.scp").splitlines() == [
        f"{tmp_path}/wav.scp: line 1: the recording 'd' is not in wav.scp",
        f"{tmp_path}/wav.scp: line 2: is 'c x y'; write the recording, its start and its end in seconds",
    ]


@pytest.mark.parametrize(("name", "file"), [("wav.scp", "text"), ("m.csv", "m.csv"), ("m.tsv", "m.tsv")])
def test_table_of_an_old_windows_is_read_with_a_note(tmp_path: Path, name: str, file: str) -> None:
    """A table that is not UTF-8 is read as Windows-1252, and the note names the file."""
    (tmp_path / "wav.scp").write_text("a a.wav\n")
    (tmp_path / "text").write_bytes(b"a caf\xe9\n")
    (tmp_path / "m.csv").write_bytes(b"path;text\na.wav;caf\xe9\n")
    (tmp_path / "m.tsv").write_bytes(b"path\ttext\na.wav\tcaf\xe9\n")
    with open_source(tmp_path / name) as source:
        assert [item.text for item in items(source)] == ["café"]
        assert source.note.startswith(f"1 file not in UTF-8, read as Windows-1252: {tmp_path / file}; see")


def test_kaldi_paths_start_where_the_first_one_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths start at the folder of wav.scp, or as in Kaldi's scripts at the current one, if they lie there."""
    (tmp_path / "data").mkdir()
    (tmp_path / "wavs").mkdir()
    (tmp_path / "wavs" / "a.wav").touch()
    (tmp_path / "data" / "wav.scp").write_text("a wavs/a.wav\n")
    for folder, base in ((tmp_path, tmp_path), (tmp_path / "data", tmp_path / "data")):
        monkeypatch.chdir(folder)
        with open_source(tmp_path / "data" / "wav.scp") as source:
            assert next(items(source)).audio == f"{base}/wavs/a.wav"


# ── At addresses, and in runs ─────────────────────────────────────────────────────────────────────────────────────────


def test_tables_in_a_bucket_are_read(place: servers.Place, tmp_path: Path) -> None:
    """CSV, Parquet and a Kaldi directory are read from a bucket as from a folder."""
    pd.DataFrame({"path": ["x/a.wav"], "sentence": ["ja"]}).to_parquet(tmp_path / "m.parquet")
    for name, content in {
        "m.csv.gz": gzip.compress(b"path,sentence\nx/a.wav,ja\n"),
        "m.parquet": (tmp_path / "m.parquet").read_bytes(),
        "wav.scp": b"x/a.wav x/a.wav\n",
        "text": b"x/a.wav ja\n",
    }.items():
        place.put(f"day/{name}", content)
    for name in ("m.csv.gz", "m.parquet", "wav.scp"):
        with open_source(f"{place.uri}/day/{name}") as source:
            assert [(i.id, i.text, i.audio) for i in items(source)] == [("x/a.wav", "ja", f"{place.uri}/day/x/a.wav")]


def test_table_runs(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """A table runs and validates as a manifest; other columns come out again."""
    manifest(0.5, 0.6)
    pd.DataFrame({"path": ["r0.wav", "r1.wav"], "sentence": ["w0", "w0"], "speaker": ["x", "y"]}).to_csv(
        tmp_path / "calls.csv", index=False
    )
    assert default_out(str(tmp_path / "calls.csv")) == str(tmp_path / "calls.voxbatch")
    done = voxbatch("run", "calls.csv", "--engine", "scripted", "--limit", "1")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "calls.voxbatch" / "transcripts.jsonl").read_text().splitlines()
    assert [(json.loads(line)["speaker"], json.loads(line)["wer"]) for line in lines] == [("x", 0.0)]
    assert "calls.csv: 2 items" in voxbatch("validate", "calls.csv").stdout
