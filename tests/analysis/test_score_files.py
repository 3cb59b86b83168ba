"""Tests that `score` reads the files of other programs, and gives the figures of the field's own tools."""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
import shutil
import subprocess
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Voxbatch

from voxbatch.analysis.score import PlaceScore, score_place
from voxbatch.cli import score_command
from voxbatch.errors import ManifestError, UsageError
from voxbatch.scoring.corpus import ScoreOptions

REFERENCES = {
    "talk-1": "the cat sat on the mat",
    "talk-2": "red ball",
    "talk-3": "",
    "talk-4": "a b c d e f g",
    "talk-5": "nobody transcribed this",
}
HYPOTHESES = {
    "talk-4": "a x c d e f g h",
    "talk-2": "red ball",
    "talk-3": "thank you",
    "talk-1": "the cat at the mat",
}
"""Hypotheses in another order than the references. One is missing."""
COUNTS = {"substitutions": 2, "insertions": 3, "deletions": 4, "reference_words": 18, "items": 4, "missing": 1}
"""Counted by hand: "sat on" → "at" is a substitution and a deletion; "b" → "x", and "h" too many; two words in silence;
three words of talk-5 are missing.
"""


def write_jsonl(path: Path, texts: Mapping[str, str], key: str, **more: Any) -> None:
    path.write_text("".join(json.dumps({"id": name, key: text, **more}) + "\n" for name, text in texts.items()))


def write_trn(path: Path, texts: Mapping[str, str], key: str) -> None:
    path.write_text(";; a comment\n" + "".join(f"{text} ({name})\n" for name, text in texts.items()))


def write_kaldi(path: Path, texts: Mapping[str, str], key: str) -> None:
    path.write_text("".join(f"{name} {text}".strip() + "\n" for name, text in texts.items()))


def write_table(path: Path, texts: Mapping[str, str], key: str) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerow(["id", key, "comment"])
        writer.writerows([name, text, 'a "quoted", remark'] for name, text in texts.items())


def write_folder(path: Path, texts: Mapping[str, str], key: str) -> None:
    path.mkdir()
    for name, text in texts.items():
        (path / f"{name}.txt").write_text(text.replace(" ", "\n"))


def write_librispeech(path: Path, texts: Mapping[str, str], key: str) -> None:
    path.mkdir()
    write_kaldi(path / "talk.trans.txt", texts, key)


def write_whisperx(path: Path, texts: Mapping[str, str], key: str) -> None:
    path.mkdir()
    for name, text in texts.items():
        document = {"segments": [{"start": 0.0, "end": 1.0, "text": f" {text}", "words": []}], "language": "fr"}
        (path / f"{name}.json").write_text(json.dumps(document))
        (path / f"{name}.srt").write_text("1\n")


def write_openai(path: Path, texts: Mapping[str, str], key: str) -> None:
    path.mkdir()
    for name, text in texts.items():
        (path / f"{name}.json").write_text(json.dumps({"text": f" {text}", "language": "fr"}, indent=2))


def write_array(path: Path, texts: Mapping[str, str], key: str) -> None:
    rows = [{"audio_filepath": f"/data/{name}.wav", key: text} for name, text in texts.items()]
    path.write_text(json.dumps(rows, indent=1))


def write_stm(path: Path, texts: Mapping[str, str], key: str) -> None:
    path.write_text("".join(f"{name} 1 ann 0.0 9.0 <NA> {text}\n" for name, text in texts.items()))


WRITERS: dict[str, Callable[[Path, Mapping[str, str], str], None]] = {
    "x.jsonl": write_jsonl,
    "x.json": write_array,
    "x.trn": write_trn,
    "x.stm": write_stm,
    "text": write_kaldi,
    "kaldi.txt": write_kaldi,
    "trn.txt": write_trn,
    "x.csv": write_table,
    "x.tsv": write_table,
    "folder": write_folder,
    "librispeech": write_librispeech,
    "whisperx": write_whisperx,
    "openai": write_openai,
}


def counts(score: PlaceScore) -> dict[str, int]:
    tally = score.corpus.to_dict()["words"]
    return {key: tally[key] for key in COUNTS}


def score(hypotheses: Path, references: Path | None = None, **options: Any) -> PlaceScore:
    return score_place(str(hypotheses), None if references is None else str(references), "fr", **options)


# ── kinds of files ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_hypotheses_gives_the_same_counts(tmp_path: Path, name: str) -> None:
    """The same texts have the same score from any kind of file; a reference without a hypothesis counts as deleted."""
    (tmp_path / "h").mkdir()
    WRITERS[name](tmp_path / "h" / name, HYPOTHESES, "pred_text")
    write_jsonl(tmp_path / "r.jsonl", REFERENCES, "text")
    found = score(tmp_path / "h" / name, tmp_path / "r.jsonl")
    assert counts(found) == COUNTS
    assert found.matching is not None
    assert found.matching.to_dict()["references_without_hypothesis"] == {"count": 1, "ids": ["talk-5"]}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_references_gives_the_same_counts(tmp_path: Path, name: str) -> None:
    """References come from any kind of file as hypotheses do."""
    (tmp_path / "r").mkdir()
    WRITERS[name](tmp_path / "r" / name, REFERENCES, "text")
    write_trn(tmp_path / "h.trn", HYPOTHESES, "pred_text")
    assert counts(score(tmp_path / "h.trn", tmp_path / "r" / name)) == COUNTS


def test_rows_with_both_texts_need_no_other_file(tmp_path: Path) -> None:
    """Rows of NeMo and of the leaderboard have both texts. A transcript that is null is missing; a row without a
    reference is not scored.
    """
    rows = [
        {"audio_filepath": f"{name}.wav", "duration": 1.0, "text": text, "pred_text": HYPOTHESES.get(name)}
        for name, text in REFERENCES.items()
    ]
    rows.append({"audio_filepath": "other.wav", "text": None, "pred_text": "x"})
    path = tmp_path / "MODEL_m_DATASET_d_test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert counts(score(path)) == COUNTS
    (tmp_path / "nemo.json").write_bytes(path.read_bytes())
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert counts(score(tmp_path / "nemo.json")) == counts(score(tmp_path / "packed.jsonl.gz")) == COUNTS


def test_chunks_of_the_leaderboard_become_one_recording(tmp_path: Path) -> None:
    """Rows with `parent_id` and `chunk_index` are parts of one recording, whose reference each of them repeats."""
    rows = [
        {"audio_filepath": f"c{i}", "text": "a b c d", "pred_text": text, "parent_id": "p", "chunk_index": i}
        for i, text in ((1, "c d"), (0, "a x "), (2, None))
    ]
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = counts(score(path))
    assert (found["substitutions"], found["reference_words"], found["items"]) == (1, 4, 1)


def test_a_run_is_scored_against_any_references(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A folder of a run's texts matches references by name, without folder and extension."""
    write_folder(tmp_path / "txt", HYPOTHESES, "pred_text")
    rows = [{"audio_filepath": f"calls/{name}.WAV", "text": text} for name, text in REFERENCES.items()]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = voxbatch("score", "txt", "--ref", "m.jsonl", "--language", "fr", "--json")
    found = json.loads(done.stdout)
    assert {key: found["words"][key] for key in COUNTS} == COUNTS
    assert found["matching"]["by_name"] == 4
    assert "4 texts matched by name alone" in done.stderr
    missing = "Warning: no match in txt for 1 text of m.jsonl: 'calls/talk-5.WAV'; all of their words count as deleted"
    assert missing in done.stderr


def test_plain_lines_match_by_number(tmp_path: Path) -> None:
    """Two files without ids match line by line, and only if they have equally many lines."""
    (tmp_path / "r.txt").write_text("the cat sat\n\nred ball\n")
    (tmp_path / "h.txt").write_text("the cat at\nx\nred ball\n")
    found = score(tmp_path / "h.txt", tmp_path / "r.txt")
    assert found.matching is not None
    assert (found.matching.by_line, counts(found)["substitutions"], counts(found)["insertions"]) == (3, 1, 1)
    (tmp_path / "h.txt").write_text("the cat at\nred ball\n")
    with pytest.raises(ManifestError, match=r"h\.txt: has 2 lines, and .*r\.txt has 3; without ids, line N"):
        score(tmp_path / "h.txt", tmp_path / "r.txt")


@pytest.mark.parametrize(
    ("hypothesis", "reference", "words", "by_line"),
    [
        ("24 hours later\n17 days a week\n", "24 hours later\n7 days a week\n", 7, 2),
        ("3rd of may\n2nd of june\n", "3rd of may\n2nd of june\n", 6, 2),
        ("$5 a day\n7-year-old boys\n", "$5 a day\n7-year-old boys\n", 7, 2),
        ("mid-July came\nMr. Smith left\n", "mid-July came\nMr. Smith left\n", 6, 2),
        ("COVID-19 cases\n", "COVID-19 cases\n", 3, 1),
        ("the end\n9/11 was then\n", "9/11 was\n7/11 was then\n", 7, 2),
        ("3 x y\n1 the cat\n2 a dog\n", "1 the cat\n2 a dog\n3 x y\n", 6, 0),
        ("7 x y\n5 the cat\n", "5 the cat\n7 x y\n", 4, 0),
        ("0001 the cat\n0007 a dog\n", "0001 the cat\n0007 a dog\n", 4, 0),
        ("utt1 the cat\nutt2 a dog\n", "utt1 the cat\nutt2 a dog\n", 4, 0),
        ("spk-a the cat\nspk-b a dog\n", "spk-a the cat\nspk-b a dog\n", 4, 0),
        ("1089-134686-0001 the cat\n", "1089-134686-0000 he\n1089-134686-0001 the cat\n", 3, 0),
    ],
)
def test_first_words_are_ids_where_both_files_show_it(
    tmp_path: Path, hypothesis: str, reference: str, words: int, by_line: int
) -> None:
    """Lines that begin with numbers are text, unless the numbers count the lines or find them in another order."""
    (tmp_path / "h.txt").write_text(hypothesis)
    (tmp_path / "r.txt").write_text(reference)
    found = score(tmp_path / "h.txt", tmp_path / "r.txt")
    assert found.matching is not None
    assert (counts(found)["reference_words"], found.matching.by_line) == (words, by_line)


def test_format_decides_what_a_name_does_not_tell(tmp_path: Path) -> None:
    """Lines whose first words look like ids are read as --format says."""
    for name in ("r.txt", "h.txt"):
        (tmp_path / name).write_text("utt1 of may\nutt2 of june\n")
    assert counts(score(tmp_path / "h.txt", tmp_path / "r.txt"))["reference_words"] == 4
    assert counts(score(tmp_path / "h.txt", tmp_path / "r.txt", kind="lines"))["reference_words"] == 6


DIALOGUE = "Dialogue: 0,0:00:00.00,0:00:02.00,Default,,0,0,0,,"
SUBTITLES: dict[str, str | bytes] = {
    "a.srt": "1\n00:00:00,000 --> 00:00:02,000\n<i>He</i> has known\n\n2\n00:00:02,000 --> 00:00:04,000\nher life.\n",
    "no blank lines.srt": "1\n00:00:00,000 --> 00:00:02,000\nHe has\n2\n00:00:02,000 --> 00:00:03,000\nknown her life.",
    "blank lines in cues.srt": "1\n0:0:0,0 --> 0:0:2,0\nHe has\n\nknown\n\n2\n\n0:0:2,0 --> 0:0:4,0\n"
    "{\\an8}her life.\n",
    "a.vtt": "WEBVTT - x\nKind: captions\n\nSTYLE\n::cue { color: red }\n\nNOTE a\nb\n\nintro\n00:00.000 --> 00:02.000 "
    "align:start\n<v Roger>He has known</v>\n\n2\n00:02.000 --> 00:04.500\n<c.red>her</c> <00:00:03.000>life.\n\n"
    "NOTE c\n",
    "no fractions.srt": "1\n00:00:00 --> 00:00:02\nHe has known\n\n2\n00:00:02 --> 00:00:04\nher life.\n",
    "zoom.vtt": "WEBVTT\n\n1\n00:00.000 --> 00:02.000\nB X: He has known\n\n2\n0:02.000 --> 0:04.000\nA: her life.\n",
    "rolling.vtt": "WEBVTT\n\n00:00.000 --> 00:02.000\n \nHe<00:00.240><c> has</c><00:01.000><c> known</c>\n\n"
    "00:02.000 --> 00:02.010\nHe has known\n \n\n00:02.010 --> 00:04.000\nHe has known\nher<00:03.000><c> life.</c>\n",
    "short.ass": "[Script Info]\n\n[Events]\nFormat: Start, End, Text\nDialogue: 0:00:00.00,0:00:02.00,He has, known\n"
    "Dialogue: 0:00:02.00,0:00:04.00,her life.\n",
    "youtube.xml": '<?xml version="1.0"?><transcript><text start="0">He has known</text><text start="2">her '
    "life.</text></transcript>",
    "a.smi": "<SAMI><HEAD><STYLE><!-- P {} --></STYLE></HEAD><BODY><SYNC Start=0><P Class=ENCC>He has<br>known<SYNC "
    "Start=2000><P Class=ENCC>her life.<SYNC Start=4000><P Class=ENCC>&nbsp;</BODY></SAMI>",
    "a.sub": "{0}{50}{y:i}He has|known\n{50}{100}her life.\n",
    "a.cha": "@Begin\n*A:\the has known .\n*B:\ther life .\n@End\n",
    "latin-1.trs": b'<?xml version="1.0" encoding="ISO-8859-1"?><Trans><Turn speaker="s\xe9"><Sync time="0"/>\n'
    b"He has known\n</Turn><Turn>her life.</Turn></Trans>",
    "whisper.json": '{"text": " He has known her life.", "segments": [{"id": 0, "text": " He has known her life."}]}',
    "cpp.json": '{"result": {"language": "en"}, "transcription": [{"text": " He has"}, {"text": " known her life."}]}',
    "amazon.json": '{"jobName": "x", "results": {"transcripts": [{"transcript": "He has known her life."}]}}',
    "deepgram.json": '{"results": {"channels": [{"alternatives": [{"transcript": "he has known her life"}]}]}}',
    "google.json": '{"results": [{"alternatives": [{"transcript": "he has known"}]}, '
    '{"alternatives": [{"transcript": " her life"}]}]}',
    "azure.json": '{"combinedRecognizedPhrases": [{"channel": 0, "display": "He has known her life."}]}',
    "a.sbv": "0:00:00.000,0:00:02.000\nHe has known\n\n0:00:02.000,0:00:04.000\nher life.\n",
    "a.ass": f"[Script Info]\nTitle: x\n\n[Events]\n{DIALOGUE}{{\\i1}}He has known\nComment{DIALOGUE[8:]}x\n"
    f"{DIALOGUE}her\\Nlife.",
    "a.ttml": '<?xml version="1.0"?>\n<tt><body><p begin="0s">He has<br/>known</p>\n<p>her <span>life</span>.</p>'
    "</body></tt>",
    "a.lrc": "[ti:x]\n[00:00.00]He has known\n[00:02.00]her <00:03.00>life.\n",
    "a.tsv": "start\tend\ttext\n0\t2000\tHe has known\n2000\t4000\ther life.\n",
    "excel.csv": "sep=;\nstart;end;text\n0;2000;He has known\n2000;4000;her life.\n;;\n",
    "quotes.tsv": 'start\tend\ttext\n0\t2000\t"He has known\n2000\t4000\ther life."\n',
    "cpp.csv": 'start,end,text\n0,2000," He has known"\n2000,4000," her life."\n',
    "a.json": json.dumps({"text": " He has known her life."}),
    "printed.txt": "[00:00.000 --> 00:02.000]  He has known\n[00:02.000 --> 00:04.000]  her life.\n",
    "subtitles.txt": "WEBVTT\n\n00:00.000 --> 00:02.000\nHe has known her &lt;i&gt; life.\n".replace("&lt;i&gt; ", ""),
}


@pytest.mark.parametrize("name", SUBTITLES)
def test_subtitles_are_one_text(tmp_path: Path, name: str) -> None:
    """Numbers, times, comments and markup are no words; the other file may have another name, and be plain lines."""
    content = SUBTITLES[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "lines.txt").write_text("He has known\nher life.\n")
    (tmp_path / "line.txt").write_text("He has known her life.\n")
    (tmp_path / "other.srt").write_text(str(SUBTITLES["a.srt"]).replace("0,000", "0,120"))
    for other in ("lines.txt", "line.txt", "other.srt"):
        for pair in ((name, other), (other, name)):
            found = counts(score(*(tmp_path / each for each in pair)))
            assert (found["reference_words"], found["substitutions"] + found["deletions"] + found["insertions"]) == (
                5,
                0,
            )


def test_a_text_of_an_old_windows_is_scored_with_a_warning(tmp_path: Path) -> None:
    """A file that is not UTF-8 is read as Windows-1252, and a note names it; a single line fits several."""
    (tmp_path / "h.txt").write_bytes("él dijo\n«sí»\n".encode("cp1252"))
    (tmp_path / "r.txt").write_text("él dijo «sí»")
    found = score(tmp_path / "h.txt", tmp_path / "r.txt")
    assert counts(found)["substitutions"] == 0
    assert found.notes[0].startswith(f"Warning: 1 file not in UTF-8, read as Windows-1252: {tmp_path / 'h.txt'}; see")


def test_folders_of_subtitles_match_by_name(tmp_path: Path) -> None:
    """A folder with one file of subtitles for each recording is scored like one of texts."""
    (tmp_path / "r").mkdir()
    for name, text in REFERENCES.items():
        (tmp_path / "r" / f"{name}.srt").write_text(f"1\n00:00:00,000 --> 00:00:02,000\n{text}\n")
    write_folder(tmp_path / "h", HYPOTHESES, "")
    assert counts(score(tmp_path / "h", tmp_path / "r")) == COUNTS


# ── matching ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ids_come_before_paths_and_paths_before_names(tmp_path: Path) -> None:
    """A hypothesis finds its reference by id, else by path, else by name."""
    references = [
        {"id": "u1", "audio_filepath": "x/a.wav", "text": "one"},
        {"id": "u2", "audio_filepath": "y/a.wav", "text": "two"},
        {"audio_filepath": "y/c.wav", "text": "three"},
        {"audio_filepath": "d.wav", "offset": 5, "duration": 2, "text": "four"},
        {"audio_filepath": "d.wav", "offset": 7, "duration": 2, "text": "five"},
    ]
    hypotheses = [
        {"id": "u2", "audio_filepath": "x/a.wav", "pred_text": "two"},
        {"audio_filepath": "x/a.wav", "pred_text": "one"},
        {"audio_filepath": "/data/c.mp3", "pred_text": "three"},
        {"audio_filepath": "d.wav", "offset": 7, "duration": 2, "pred_text": "five"},
        {"audio_filepath": "d.wav", "offset": 5, "duration": 2, "pred_text": "four"},
    ]
    for name, rows in (("r.jsonl", references), ("h.jsonl", hypotheses)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = score(tmp_path / "h.jsonl", tmp_path / "r.jsonl")
    assert found.corpus.wer == 0
    assert found.matching is not None
    assert (found.matching.by_id, found.matching.by_name) == (4, 1)


@pytest.mark.parametrize("key", ["id", "audio_filepath"])
def test_canonically_equal_names_match(tmp_path: Path, key: str) -> None:
    """An id or a path in NFD is that in NFC: macOS and Linux write names differently."""
    nfd, nfc = unicodedata.normalize("NFD", "Café Müller"), unicodedata.normalize("NFC", "Café Müller")
    for name, value, text in (("h.jsonl", nfd, "pred_text"), ("r.jsonl", nfc, "text")):
        (tmp_path / name).write_text(json.dumps({key: value, text: "he has"}, ensure_ascii=False))
    found = score(tmp_path / "h.jsonl", tmp_path / "r.jsonl")
    assert found.matching is not None
    assert (found.corpus.wer, found.matching.by_id) == (0, 1)


def test_hypotheses_without_a_reference_are_listed_and_not_scored(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Three examples and the number are shown, and all ids are in the JSON."""
    write_trn(tmp_path / "r.trn", {"a": "one"}, "")
    write_trn(tmp_path / "h.trn", {"a": "one", **{f"x{i}": "two" for i in range(5)}}, "")
    done = voxbatch("score", "h.trn", "--ref", "r.trn", "--language", "en", "--json")
    assert "Warning: no match in r.trn for 5 texts of h.trn: 'x0', 'x1', 'x2', …; they are not scored" in done.stderr
    found = json.loads(done.stdout)
    assert (found["wer"], found["items"]) == (0, 1)
    assert found["matching"]["hypotheses_without_reference"] == {"count": 5, "ids": [f"x{i}" for i in range(5)]}


ROW = '{"id": "a", "text": "b", "pred_text": "c"}\n'
REFUSED: dict[str, tuple[str, str | bytes, str]] = {
    "repeated id": ("h.trn", "x (a)\ny (b)\nz (a)\n", "h.trn: line 3: id 'a' is also line 1's; give each text its own"),
    "repeated id in rows": ("h.jsonl", ROW + ROW, "h.jsonl: line 2: id 'a' is also line 1's"),
    "number as text": ("h.jsonl", '{"id": "a", "pred_text": 5}', "h.jsonl: line 1: `pred_text` is 5; it must be a str"),
    "list as id": ("h.jsonl", '{"id": [], "pred_text": "x"}', "h.jsonl: line 1: `id` is []; it must be a string"),
    "no pred_text": ("h.jsonl", '{"id": "a", "text": "x"}', "h.jsonl: line 1: has no `pred_text`; give a run's"),
    "half a line": ("h.jsonl", ROW + ROW[:20], "h.jsonl: line 2: ends within a JSON object"),
    "half a trn": ("h.trn", "x (a)\ny (", "h.trn: line 2: is 'y (' and does not end in an id in parentheses"),
    "half a ctm": ("h.ctm", "a 1 0.0 1.0 x\na 1 1.0\n", "h.ctm: line 2: has 3 fields; a ctm has: file, channel, start"),
    "half a csv": ("h.csv", "id,pred_text\na,x\nb", "h.csv: line 3: has 1 columns, and the header has 2"),
    "half a json": ("h.json", '[{"id": "a",', "h.json: line 1: not JSON: "),
    "csv without texts": ("h.csv", "id,words\na,x\n", "h.csv: line 1: names no column with texts: 'id', 'words'; add"),
    "wrong time": ("h.ctm", "a 1 x 1.0 b\n", "h.ctm: line 1: has 'x' where a time in seconds stands"),
    "alternatives": ("h.trn", "x { a / b } (a)\n", "h.trn: line 1: holds the alternatives '{ a / b }'"),
    "half a UTF-16": ("h.trn", "x (a)\n".encode("utf-16")[:-1], "h.trn: cannot be read to its end: "),
    "other ids": ("h.trn", "x (z)\n", "h.trn: read as trn, with ids such as 'z', has no id of "),
    "lines beside ids": (
        "h.txt",
        "x\n",
        "r.trn has ids such as 'a': lines match only lines, line N with line N; give both as lines in one order, or",
    ),
    "no file": ("other", "", "h.trn does not exist"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_files_are_refused_with_line_and_remedy(tmp_path: Path, case: str) -> None:
    """A file that cannot be read to its end, or is ambiguous, gives an error with its line and what to do."""
    name, content, reason = REFUSED[case]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    write_trn(tmp_path / "r.trn", {"a": "one", "b": "two"}, "")
    with pytest.raises(UsageError) as error:
        score(tmp_path / ("h.trn" if name == "other" else name), tmp_path / "r.trn")
    assert reason in str(error.value)


def test_a_table_of_references_needs_no_hypotheses(tmp_path: Path) -> None:
    """A table of references without a column of texts is told to have that column alone."""
    (tmp_path / "r.csv").write_text("id,words\na,x\n")
    write_trn(tmp_path / "h.trn", {"a": "one"}, "")
    with pytest.raises(
        UsageError, match="names no column with texts: 'id', 'words'; add a header with `id` and `text`"
    ):
        score(tmp_path / "h.trn", tmp_path / "r.csv")


def test_folders_tell_texts_of_one_name_apart(tmp_path: Path) -> None:
    """The reference counts, of several of one name, that lies in folders of the same names as the hypothesis."""
    for name in ("mon/a", "tue/a", "tue/deep/er/a", "b"):
        path = tmp_path / "refs" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"of {name}")
    rows = [
        {"id": "a", "audio_filepath": "/data/tue/a.wav", "pred_text": "of tue/a"},
        {"audio_filepath": "calls/mon/a.mp3", "pred_text": "of mon/a"},
        {"audio_filepath": "tue/deep/er/a.wav", "pred_text": "of tue/deep/er/a"},
        {"audio_filepath": "wed/b.wav", "pred_text": "of b"},
    ]
    (tmp_path / "h.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = score(tmp_path / "h.jsonl", tmp_path / "refs")
    assert found.corpus.wer == 0
    assert found.matching is not None
    assert (found.matching.by_id, found.matching.by_name) == (3, 1)


def test_names_that_fit_several_texts_are_refused(tmp_path: Path) -> None:
    """A name alone must fit one reference and one hypothesis."""
    (tmp_path / "h.jsonl").write_text('{"id": "a", "pred_text": "x"}\n')
    rows = [{"audio_filepath": f"{folder}/a.wav", "text": "x"} for folder in "xy"]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ManifestError, match=r"id 'a' fits several references of .* by its name alone; give both the"):
        score(tmp_path / "h.jsonl", tmp_path / "r.jsonl")
    (tmp_path / "r.jsonl").write_text('{"audio_filepath": "a.wav", "text": "x"}\n')
    (tmp_path / "h.jsonl").write_text("".join(json.dumps({**row, "pred_text": ""}) + "\n" for row in rows))
    with pytest.raises(ManifestError, match=r"h\.jsonl: line 2: ids 'x/a.wav' and 'y/a.wav' both fit the reference"):
        score(tmp_path / "h.jsonl", tmp_path / "r.jsonl")


@pytest.mark.parametrize("name", ["h.trn", "h.ctm", "text", "folder"])
def test_files_with_one_text_need_references(tmp_path: Path, name: str) -> None:
    """Only rows may have both texts."""
    WRITERS.get(name, write_trn)(tmp_path / name, {"a 1 0 1 x": "b"} if name == "h.ctm" else HYPOTHESES, "")
    with pytest.raises(UsageError, match=r"holds no references; give .*--ref F"):
        score(tmp_path / name)


# ── NIST's sclite ─────────────────────────────────────────────────────────────────────────────────────────────────────

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def sclite(tmp_path: Path, *arguments: str) -> tuple[int, int, int, int]:
    """Return the substitutions, deletions, insertions and reference words that NIST's sclite counts."""
    if shutil.which("sctk") is None:
        pytest.skip("there is no sctk on PATH: apt-get install sctk")
    command = ["sctk", "sclite", *arguments, "-o", "rsum", "stdout"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    (total,) = re.findall(r"\| Sum +\|(.*)", done.stdout)
    numbers = [int(field) for field in total.split() if field.isdecimal()]
    return numbers[3], numbers[4], numbers[5], numbers[1]


def voxbatch_counts(hypotheses: Path, references: Path) -> tuple[int, int, int, int]:
    found = counts(score(hypotheses, references))
    return found["substitutions"], found["deletions"], found["insertions"], found["reference_words"]


def garbled(words: list[str], rng: random.Random) -> Iterator[str]:
    """Yield words with single errors, each between words that are right, so that only one alignment is best."""
    for i, word in enumerate(words):
        kind = rng.choice(["", "", "x", "drop", "more"]) if i % 3 == 1 else ""
        if kind != "drop":
            yield "wrong" if kind == "x" else word
        if kind == "more":
            yield "extra"


def test_sclite_counts_the_same_in_a_trn(tmp_path: Path) -> None:
    """sclite and voxbatch count the same substitutions, deletions and insertions in one trn."""
    rng = random.Random(19)
    references = {f"spk{i % 3}-{i:03}": rng.sample(WORDS, rng.randint(1, 10)) for i in range(200)}
    hypotheses = {name: " ".join(garbled(words, rng)) for name, words in references.items()}
    write_trn(tmp_path / "r.trn", {name: " ".join(words) for name, words in references.items()}, "")
    write_trn(tmp_path / "h.trn", dict(rng.sample(sorted(hypotheses.items()), 200)), "")
    theirs = sclite(tmp_path, "-r", "r.trn", "trn", "-h", "h.trn", "trn", "-i", "rm")
    assert voxbatch_counts(tmp_path / "h.trn", tmp_path / "r.trn") == theirs
    assert min(theirs) > 50


def test_sclite_counts_the_same_in_a_ctm_against_an_stm(tmp_path: Path) -> None:
    """Words belong to the segment in which their middle lies, ignored segments and their words do not count, and words
    between segments do.
    """
    rng = random.Random(7)
    stm, ctm = [";; comment\n"], []
    for file in ("f1", "f2"):
        for channel in "AB":
            for segment in range(12):
                begin = 10.0 * segment
                words = rng.sample(WORDS, rng.randint(2, 8))
                ignored = segment % 5 == 2
                text = "IGNORE_TIME_SEGMENT_IN_SCORING" if ignored else " ".join(words)
                labels = rng.choice(["<o,f0,female> ", "<NA> ", ""])
                stm.append(f"{file} {channel} s{segment % 2} {begin:.2f} {begin + 8:.2f} {labels}{text}\n")
                for i, word in enumerate(garbled(words, rng)):
                    ctm.append(f"{file} {channel} {begin + 0.9 * i:.2f} 0.50 {word} 0.9\n")
    (tmp_path / "r.stm").write_text("".join(stm))
    (tmp_path / "h.ctm").write_text("".join(ctm))
    theirs = sclite(tmp_path, "-r", "r.stm", "stm", "-h", "h.ctm", "ctm")
    assert voxbatch_counts(tmp_path / "h.ctm", tmp_path / "r.stm") == theirs
    assert min(theirs) > 5


def test_the_table_of_a_corpus_fits_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal of 80 columns, names stay readable: columns of zeros go first, then the kinds of errors."""
    path, reference = tmp_path / "hyp.jsonl", "eins zwei drei vier " * 25_000
    row = {"text": reference, "pred_text": reference + "neun " * 1_000, "lang": "de"}
    rows = [{"id": name, "speaker": f"{name}.surname@example.org"} | row for name in ("anna", "berta")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    score = score_place(str(path), options=ScoreOptions(by=("speaker",)))
    whole = list(score_command.lines_of(score))
    assert whole[0].split()[3:] == ["interval", "sub", "del", "ins", "words", "items", "missing"]
    monkeypatch.setattr("voxbatch.cli.columns.line_width", lambda: 80)
    lines = list(score_command.lines_of(score))
    assert max(map(len, lines[:4])) <= 80
    assert lines[0].split() == ["WER", "95", "%", "interval", "words", "items"]
    assert [line[:33].strip() for line in lines[2:4]] == [f"speaker {row['speaker']}" for row in rows]
