"""Tests of recordings that are named: files, folders, patterns, lists and addresses."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import servers
from conftest import ManifestWriter, Recorder, Voxbatch

from voxbatch.errors import ManifestError
from voxbatch.manifest import PathPolicy, Source, items, survey
from voxbatch.output.default_out import default_out
from voxbatch.sources.opening import open_source

SCRIPTED = ("--engine", "scripted", "-q")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with recordings in it."""
    for name in ["talk.mp3", "a/x.wav", "b/x.wav", "b/y.flac", "b/deep/z.wav", "a/notes.pdf", "a/x.srt", "odd.xyz"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"ID3\0")
    (tmp_path / "talk.txt").write_text("hello there")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*names: str, **options: Any) -> list[tuple[str, str]]:
    """Return (id, path below the current folder) of each item."""
    with open_source(names[0] if len(names) == 1 else names, **options) as source:
        assert source.grows
        survey(source)
        return [(item.id, item.audio.removeprefix(os.getcwd() + "/")) for item in items(source)]


def refusal(*names: str, **options: Any) -> str:
    with pytest.raises(ManifestError) as caught, open_source(names, **options) as source:
        survey(source)
    return str(caught.value)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["talk.mp3"], [("talk.mp3", "talk.mp3")]),
        (["./a/../talk.mp3"], [("talk.mp3", "talk.mp3")]),
        (["a/x.wav"], [("x.wav", "a/x.wav")]),
        (["a/x.wav", "b/x.wav", "a/x.wav"], [("a/x.wav", "a/x.wav"), ("b/x.wav", "b/x.wav")]),
        (["b", "talk.mp3"], [(path, path) for path in ["b/deep/z.wav", "b/x.wav", "b/y.flac", "talk.mp3"]]),
        (["b/deep", "b/y.flac"], [("deep/z.wav", "b/deep/z.wav"), ("y.flac", "b/y.flac")]),
        (["b/*.wav"], [("x.wav", "b/x.wav")]),
        (["b/**/*.wav"], [("deep/z.wav", "b/deep/z.wav"), ("x.wav", "b/x.wav")]),
        (["?/x.wav", "talk.*"], [("a/x.wav", "a/x.wav"), ("b/x.wav", "b/x.wav"), ("talk.mp3", "talk.mp3")]),
        (["[ab]"], [(path, path) for path in ["a/x.wav", "b/deep/z.wav", "b/x.wav", "b/y.flac"]]),
        (["odd.xyz"], [("odd.xyz", "odd.xyz")]),
    ],
)
def test_names_become_items(tree: Path, names: list[str], expected: list[tuple[str, str]]) -> None:
    """Files, folders and patterns become items of one manifest, with ids below their common folder."""
    assert found(*names) == expected


def test_named_file_has_its_state_and_reference(tree: Path) -> None:
    """The row of a named file is that of a folder: size, modification time, and NAME.txt as the reference."""
    with open_source("talk.mp3") as source:
        ((_, text),) = source.lines()
    row = json.loads(text)
    assert list(row) == ["audio_filepath", "size", "modified", "text"]
    assert (row["size"], row["text"]) == (4, "hello there")


def test_files_anywhere_need_no_permission(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A person who names files in several places does not have to allow these places."""
    other = tmp_path_factory.mktemp("other") / "far.wav"
    other.touch()
    with open_source(["talk.mp3", str(other)]) as source:
        assert [item.audio for item in items(source)] == [str(tree / "talk.mp3"), str(other)]


def test_file_whose_name_looks_like_a_pattern_is_a_file(tree: Path) -> None:
    """A file that exists is taken as it is named, also with [ or @ in its name."""
    for name in ("take [1].wav", "@home.wav"):
        (tree / name).touch()
        assert found(name) == [(name, name)]


def test_files_without_a_recordings_extension_are_left_out(tree: Path) -> None:
    """Files among several that are no recordings are left out with a note. A text that becomes a reference is
    named, and subtitles are mentioned only beside references."""
    with open_source(["a/x.wav", "a/notes.pdf", "a/x.srt", "talk.txt", "talk.mp3"]) as source:
        assert survey(source).items == 2
        assert source.note == (
            "left out 2 of the files, which have no recording's extension: a/notes.pdf, a/x.srt; "
            "references: 1 beside recordings, such as talk.txt; 1 .srt beside recordings not taken as references; "
            "to score against them: voxbatch score OUT --ref FOLDER"
        )
    with open_source(["a/x.wav"]) as source:
        assert source.note == ""
    assert refusal("a/notes.pdf", "a/x.srt").endswith(
        "holds no recordings; left out 2 of the files, which have no recording's extension: a/notes.pdf, a/x.srt"
    )


def test_copies_with_subtitles_are_left_out(tree: Path) -> None:
    """A copy by --mux or --burn is left out among several files and by a pattern, as in a folder, with a note. Alone,
    it is a recording."""
    (tree / "talk.subtitled.mp3").touch()
    for names in (["talk.mp3", "talk.subtitled.mp3"], ["talk*.mp3"]):
        with open_source(names) as source:
            assert survey(source).items == 1
            note = "left out 1 of the files, which are copies with subtitles: talk.subtitled.mp3"
            assert source.note.startswith(f"{note}; to take one, name it alone")
    with open_source(["talk.subtitled.mp3"]) as source:
        assert survey(source).items == 1


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["tolk.mp3"], "tolk.mp3: does not exist in {cwd}; did you mean talk.mp3?"),
        (["b/x.wave"], "b/x.wave: does not exist in b; did you mean b/x.wav?"),
        (["c/x.mp3"], "c/x.mp3: does not exist: there is no folder c"),
        (["talk.mp3", "b/x.wave"], "talk.mp3 and 1 more: b/x.wave does not exist in b; did you mean b/x.wav?"),
        (["b/*.ogg"], "b/*.ogg: matches no file"),
        (["@lost.txt"], "@lost.txt: the list lost.txt does not exist in {cwd}"),
        (["talk.mp3", "m.jsonl"], "m.jsonl: is a manifest, and a manifest is given alone, or with others of its kind"),
        (["talk.mp3", "-"], "-: is standard input, and a manifest is given alone"),
        (["https://me:secret@h/a.wav"], "https://h/a.wav: cannot be opened: it contains a user name or password"),
        (["gs://c/a.wav"], "gs://c/a.wav: cannot be opened: 'c' is not a valid bucket name"),
    ],
)
def test_name_without_recordings_is_refused(tree: Path, names: list[str], says: str) -> None:
    """A name that leads to nothing is refused with what was perhaps meant, and shows no secret."""
    said = refusal(*names)
    assert said.startswith(says.format(cwd=tree))
    assert "secret" not in said


def test_folder_without_recordings_says_what_it_holds(tree: Path) -> None:
    """A folder without recordings is refused with the extensions of its files."""
    (tree / "papers" / "deep").mkdir(parents=True)
    assert refusal("papers") == "papers: holds no recordings; it is empty"
    for name in ("1.pdf", "2.PDF", "deep/notes"):
        (tree / "papers" / name).touch()
    assert refusal("papers") == "papers: holds no recordings; its files: 2 with .pdf, 1 with no extension"


# ── Lists ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_list_names_files_beside_it(tree: Path) -> None:
    """A list has one path or address a line, relative to its folder; lines keep their numbers; # begins a comment."""
    text = (
        b"\xef\xbb\xbf# mine\r\nx.wav\r\n\n  # more\n../talk.mp3\nhttps://h/z.wav?sig=1\n"
        + bytes(tree / "a")
        + b"/gone.wav"
    )
    (tree / "a" / "list.txt").write_bytes(text)
    with open_source("@a/list.txt") as source:
        assert source.grows
        rows = {number: json.loads(text) for number, text in source.lines()}
        with pytest.raises(ManifestError, match=r"@a/list\.txt: line 5: `audio_filepath` .* is outside of "):
            survey(source, PathPolicy(only_under=(str(tree / "a"), "https://h/")))
    assert {number: row["audio_filepath"] for number, row in rows.items()} == {
        2: "x.wav",
        5: str(tree / "talk.mp3"),
        6: "https://h/z.wav?sig=1",
        7: "gone.wav",
    }
    assert [row.get("text") for row in rows.values()] == [None, "hello there", None, None]
    assert ["size" in row for row in rows.values()] == [True, True, False, False]


def test_list_and_its_repetitions(tree: Path) -> None:
    """A list may come from standard input; a path that it repeats is refused with both lines."""
    listed = io.BytesIO(b"talk.mp3\nb/x.wav\n./talk.mp3\n")
    assert refusal("@-", stdin=listed).startswith("@-: line 3: id 'talk.mp3' is also line 1's; name each recording")


def test_list_without_its_mark_is_refused_with_a_hint(tree: Path) -> None:
    """A text file with paths, given as a manifest, is refused with the way to give it as a list."""
    (tree / "list.txt").write_text("\nb/x.wav\n")
    assert refusal("list.txt") == (
        "list.txt: line 2 is 'b/x.wav' and no JSON object; give a list of paths as @list.txt, a table as .csv or "
        ".tsv, a manifest as JSON lines"
    )


# ── Odd names ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_odd_names_become_items(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """A name with a newline or with bytes that are not UTF-8 becomes an item like any other, and so does one that
    cannot be decoded; ids are percent-encoded.
    """
    manifest(0.5)
    calls = tmp_path / "calls"
    calls.mkdir()
    good = (tmp_path / "r0.wav").read_bytes()
    for name in (b"line\nbreak.wav", b"caf\xe9.wav", b"12:30 \xe9\x1b.wav"):
        (calls / os.fsdecode(name)).write_bytes(good)
    (calls / os.fsdecode(b"empty \xff.wav")).touch()
    (calls / os.fsdecode(b"gone \xff.wav")).symlink_to("nowhere")
    done = voxbatch("run", "calls", *SCRIPTED, "--formats", "txt")
    assert done.returncode == 3, done.stderr
    out = tmp_path / "calls.voxbatch"
    lines = [json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()]
    assert sorted(line["id"] for line in lines) == ["12:30 %E9%1B.wav", "caf%E9.wav", "line%0Abreak.wav"]
    paths = {line["id"]: line["audio_filepath"] for line in lines}
    assert paths["caf%E9.wav"] == f"file:{calls}/caf%E9.wav"  # JSON cannot hold the name itself
    assert paths["line%0Abreak.wav"] == f"{calls}/line\nbreak.wav"
    done = voxbatch("run", out / "transcripts.jsonl", *SCRIPTED, "--allow-outside", "-o", "from-outputs")
    assert done.returncode == 0, done.stderr
    failed = [json.loads(line) for line in (out / "failures.jsonl").read_text().splitlines()]
    assert sorted(line["id"] for line in failed) == ["empty %FF.wav", "gone %FF.wav"]
    assert any(r"gone \xff.wav: No such file" in line["message"] for line in failed)
    again = voxbatch("run", "calls", *SCRIPTED)
    assert again.returncode == 3, again.stderr


# ── Addresses ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def bucket(place: servers.Place) -> str:
    """Return the address of a folder with recordings in a bucket."""
    for key in ("a/x.wav", "b/x.wav", "b/deep/z.wav", "b/y.flac", "b/notes.pdf", "top.mp3"):
        place.put(key, key.encode())
    place.put("b/y.txt", b"ja")
    return place.uri


def test_addresses_become_items(bucket: str) -> None:
    """Recordings, folders and patterns in a bucket become items; in a pattern * does not match /."""
    b = bucket
    for names, expected in [
        ([f"{b}/b/y.flac"], [("y.flac", f"{b}/b/y.flac")]),
        ([f"{b}/b/*.wav"], [("x.wav", f"{b}/b/x.wav")]),
        ([f"{b}/b/**/*.wav"], [("deep/z.wav", f"{b}/b/deep/z.wav"), ("x.wav", f"{b}/b/x.wav")]),
        ([f"{b}/*/x.wav"], [("a/x.wav", f"{b}/a/x.wav"), ("b/x.wav", f"{b}/b/x.wav")]),
        ([f"{b}/b/[yz].*"], [("y.flac", f"{b}/b/y.flac")]),
        ([f"{b}/a/", f"{b}/top.mp3"], [("a/x.wav", f"{b}/a/x.wav"), ("top.mp3", f"{b}/top.mp3")]),
    ]:
        assert found(*names) == expected
    with open_source(f"{b}/b/y.flac") as source:
        ((_, text),) = source.lines()
    row = json.loads(text)
    assert (row["size"], row["text"], bool(row["generation"])) == (8, "ja", True)
    assert refusal(f"{b}/b/none.wav") == f"{b}/b/none.wav: does not exist"
    assert refusal(f"{b}/b/*.ogg").startswith(f"{b}/b/*.ogg: holds no recordings; its files: 2 with .wav, 1 with ")


def test_local_and_remote_recordings_in_one_run(tree: Path, bucket: str) -> None:
    """Local files and addresses may be given together; only the local ones decide the common folder."""
    name = bucket.partition("://")[2]
    assert found("a/x.wav", f"{bucket}/a/") == [("x.wav", "a/x.wav"), (f"{name}/a/x.wav", f"{bucket}/a/x.wav")]


# ── OUT ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_recordings_of_one_name_have_an_out_each(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """A recording whose OUT would be that of another one has the extension in the name of its OUT. The same command
    again continues its own run.
    """
    recording("talk.wav", 1.1)
    shutil.copy(tmp_path / "talk.wav", tmp_path / "talk.flac")
    for _ in range(2):
        for name in ("talk.wav", "talk.flac"):
            assert voxbatch("run", name, *SCRIPTED).returncode == 0
    outs = sorted(path.name for path in tmp_path.glob("*.voxbatch"))
    assert outs == ["talk.flac.voxbatch", "talk.voxbatch"]
    (line,) = (tmp_path / "talk.flac.voxbatch" / "transcripts.jsonl").read_text().splitlines()
    assert json.loads(line)["audio_filepath"] == str(tmp_path / "talk.flac")
    assert len([*(tmp_path / "talk.voxbatch" / "lists").iterdir()]) == 1


def test_default_out_is_beside_the_source(tree: Path) -> None:
    """The default OUT is beside one source, in the common folder of several, or else in the current folder."""
    for source, out in [
        ("-", "stdin.voxbatch"),
        ("/jobs/calls.jsonl.gz", "/jobs/calls.voxbatch"),
        ("/jobs/calls.JSON", "/jobs/calls.voxbatch"),
        ("S3://calls/2026/m.jsonl.gz", "s3://calls/2026/m.voxbatch"),
        ("gs://calls/2026-11-20/", "gs://calls/2026-11-20.voxbatch"),
        ("gs://calls/", "calls.voxbatch"),
        ("s3://calls", "calls.voxbatch"),
        ("https://host/jobs/m.jsonl?sig=a/b", "m.voxbatch"),
        ("https://host/?job=3", "host.voxbatch"),
        ("gs://", "root.voxbatch"),
        ("a/x.wav", f"{tree}/a/x.voxbatch"),
        ("odd.xyz", f"{tree}/odd.xyz.voxbatch"),
        ("@a/list.txt", f"{tree}/a/list.voxbatch"),
        (("a/x.wav", "a/y.wav"), f"{tree}/a/a.voxbatch"),
        (("a", "b"), f"{tree}/{tree.name}.voxbatch"),
        ("b/*.wav", f"{tree}/b/b.voxbatch"),
        (("/", "talk.mp3"), "root.voxbatch"),
        ("gs://calls/day/x.wav", "gs://calls/day/x.voxbatch"),
        ("gs://calls/day/*.wav", "gs://calls/day/day.voxbatch"),
        (("gs://calls/1/", "gs://calls/2/"), "gs://calls/calls.voxbatch"),
        (("gs://calls/1/", "s3://other/2/"), f"{tree}/{tree.name}.voxbatch"),
        (("https://h/x/a.mp3", "https://h/x/b.mp3"), "x.voxbatch"),
        ("gs://calls/day.csv/", "gs://calls/day.csv.voxbatch"),
    ]:
        assert default_out(source) == out


def test_summary_names_all_sources(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """The configuration in the summary of a run of several files has all of them."""
    manifest(0.5, 0.6)
    done = voxbatch("run", "r0.wav", "r1.wav", *SCRIPTED, "-o", "both")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "both" / "summary.json").read_text())
    assert summary["config"]["source"] == ["r0.wav", "r1.wav"]


def test_source_of_a_worker_reads_the_same(tree: Path) -> None:
    """The Source keeps its nature in a process that inherits it."""
    with open_source(["a", "b"]) as source:
        inheritable = source.inheritable()
        again = Source(inheritable.name, inheritable.base, os.fdopen(os.dup(inheritable.fd), "rb"))
        with again:
            assert list(again.lines()) == list(source.lines())
