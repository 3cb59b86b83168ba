"""Tests for the comparison of two runs: real runs, changed in ways whose effect is known."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jiwer
import pytest
import servers
from conftest import ManifestWriter, Voxbatch, environment

import voxbatch as api
from voxbatch.analysis.compare import compare_places
from voxbatch.cli.side_by_side import side_by_side
from voxbatch.errors import ConfigError, ManifestError
from voxbatch.scoring.counts import ErrorCounts, tokens
from voxbatch.scoring.normalize import Rules

Rows = list[dict[str, Any]]
Write = Callable[[str, Rows], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes rows as JSON lines and returns the path."""

    def write_rows(name: str, rows: Rows) -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write_rows


def row(name: str, text: str | None, found: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "text": text, "pred_text": found, "lang": "de", **more}


ONES = [row("a", "eins zwei drei vier", "eins zwei drei vier"), row("b", "fünf sechs", "fünf")]
TWOS = [row("b", "fünf sechs", "fünf sechs"), row("a", "eins zwei drei vier", "eins drei vier acht neun")]


def test_differences_by_hand(write: Write) -> None:
    """Items match by id in any order: A has 1 error in 6 words, and B has 3."""
    found = compare_places(write("a.jsonl", ONES), write("b.jsonl", TWOS))
    assert found.a.words == ErrorCounts(deletions=1, reference_length=6)
    assert found.b.words == ErrorCounts(deletions=1, insertions=2, reference_length=6)
    assert (found.a.wer, found.b.wer) == (0.166667, 0.5)
    assert found.words is not None
    assert found.words.difference == pytest.approx(2 / 6)
    assert found.characters is None
    assert (found.common, found.only_a, found.only_b) == (2, 0, 0)
    assert [(item.id, item.errors_a, item.errors_b, item.reference_length) for item in found.changed] == [
        ("a", 0, 3, 4),
        ("b", 1, 0, 2),
    ]
    assert found.changed[1].text_b == "fünf sechs"
    turned = compare_places(write("a.jsonl", TWOS), write("b.jsonl", ONES))
    assert turned.words is not None
    assert turned.words.difference == -found.words.difference


def test_only_common_items_count(write: Write) -> None:
    """Items of one side alone are counted and left out of the rates."""
    more = row("x", "noch ein wort", "")
    found = compare_places(write("a.jsonl", [*ONES, more]), write("b.jsonl", [*TWOS, {**more, "id": "y"}]))
    assert (found.common, found.only_a, found.only_b) == (2, 1, 1)
    assert (found.a.items, found.a.words.reference_length) == (3, 6)
    with pytest.raises(ConfigError, match="no item in common: ids such as 'x' and 'y'"):
        compare_places(write("a.jsonl", [more]), write("b.jsonl", [{**more, "id": "y"}]))


def test_items_match_by_path_where_the_ids_differ(write: Write) -> None:
    """Items without a common id match by `audio_filepath`, if no other item has that path."""
    left = [row("l1", "eins", "eins", audio_filepath="1.wav"), row("l2", "zwei", "zwei", audio_filepath="2.wav")]
    right = [{**each, "id": f"r{i}"} for i, each in enumerate(left)]
    del right[0]["id"]
    right += [row("r3", "drei", "drei", audio_filepath="2.wav")]
    found = compare_places(write("a.jsonl", left), write("b.jsonl", right))
    assert (found.common, found.only_a, found.only_b) == (1, 1, 2)


def test_items_match_by_name_where_ids_and_paths_differ(write: Write, tmp_path: Path) -> None:
    """A recording of a manifest matches the id of a trn file by its name alone, as in `score`; an ambiguous name
    matches nothing."""
    left = [row(f"in/{name}.wav", "eins", "eins", audio_filepath=f"/in/{name}.wav") for name in "abb"]
    left[2] |= {"id": "in2/b.wav", "audio_filepath": "/in2/b.wav"}
    (tmp_path / "b.trn").write_text("zwei (a)\neins (b)\n")
    found = compare_places(write("a.jsonl", left), str(tmp_path / "b.trn"))
    assert (found.common, found.only_a, found.only_b) == (1, 2, 1)
    assert (found.a.words.errors, found.b.words.errors) == (0, 1)


def test_one_name_in_two_folders_matches_by_its_folders(write: Write, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Items and given references match by the longest common end of folders and name, as in `score`. An item in common
    for which --ref has no reference is a warning."""
    rows = [
        row(f"{day}/a.wav", None, text, audio_filepath=f"/data/{day}/a.wav")
        for day, text in {"mon": "eins", "tue": "zwei", "wed": "drei"}.items()
    ]
    left = write("a.jsonl", rows)
    (tmp_path / "b.trn").write_text("eins (mon/a)\nzwei (tue/a)\nvier (in/wed/a)\n")
    (tmp_path / "refs.trn").write_text("eins (mon/a)\nzwei (tue/a)\n")
    found = compare_places(left, str(tmp_path / "b.trn"), ref=str(tmp_path / "refs.trn"))
    assert (found.common, found.only_a, found.only_b) == (3, 0, 0)
    shown = voxbatch("compare", left, tmp_path / "b.trn", "--ref", tmp_path / "refs.trn")
    assert "3 items in common, 0 only in A, 0 only in B; 1 without a reference" in shown.stdout, shown.stderr
    assert "Warning: no reference in --ref for 1 item in common, which is not scored" in shown.stderr


def test_both_are_scored_against_one_reference(write: Write) -> None:
    """B's reference counts for both if the references differ; if one side has none, the other's."""
    left = [row("a", "rot", "blau"), row("b", None, "grün"), row("c", "gelb", "gelb"), row("d", None, "grau")]
    right = [row("a", "blau", "blau"), row("b", "grün", "grün"), row("c", None, "lila"), row("d", None, "grau")]
    found = compare_places(write("a.jsonl", left), write("b.jsonl", right))
    assert (found.other_references, found.without_reference) == (1, 1)
    assert (found.a.words.errors, found.b.words.errors, found.a.words.reference_length) == (0, 1, 3)


def test_a_file_of_hypotheses_takes_the_references_of_the_other(write: Write, tmp_path: Path) -> None:
    """A trn file has no references; those of the other side count. Files without ids are refused."""
    (tmp_path / "b.trn").write_text("eins zwei drei vier (a)\nfünf sechs (b)\n")
    found = compare_places(write("a.jsonl", ONES), str(tmp_path / "b.trn"))
    assert (found.common, found.a.words.errors, found.b.words.errors) == (2, 1, 0)
    (tmp_path / "plain.txt").write_text("eins zwei drei vier\nfünf sechs\n")
    with pytest.raises(ManifestError, match="neither `id` nor `audio_filepath`"):
        compare_places(write("a.jsonl", ONES), str(tmp_path / "plain.txt"))


def test_both_are_scored_by_the_rules_of_one_language(write: Write) -> None:
    """A language that somebody gave counts for both, before one that an engine detected."""
    left = [row("a", "It's red", "it is red", lang="en")]
    right = [row("a", "It's red", "it is red", lang="nl", detected_language="nl")]
    for first, second in ((left, right), (right, left)):
        found = compare_places(write("a.jsonl", first), write("b.jsonl", second))
        assert (found.other_languages, list(found.normalizers)) == (1, ["en"])
        assert found.a.words == found.b.words == ErrorCounts(reference_length=3)
    found = compare_places(write("a.jsonl", left), write("b.jsonl", [row("a", "It's red", "it is red", lang=None)]))
    assert (found.other_languages, list(found.normalizers)) == (0, ["en"]), "no language is no other language"


def test_words_and_characters_are_apart(write: Write) -> None:
    """Languages without spaces have a difference of their own."""
    zh = row("zh", "今天天气", "今天天气", lang="zh")
    found = compare_places(write("a.jsonl", [*ONES, zh]), write("b.jsonl", [*TWOS, {**zh, "pred_text": "今天"}]))
    assert found.characters is not None
    assert (found.characters.difference, found.characters.interval) == (0.5, None)
    assert (found.a.cer, found.b.cer) == (0.0, 0.5)
    assert found.b.words.reference_length == 6


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ('{"text": "a", "pred_text": "a"}\n', "neither `id` nor `audio_filepath`"),
        ('{"id": "a", "text": "a"}\n', "has no `pred_text`"),
        ('{"id": "a", "pred_text": "a"}\n{"id": "a", "pred_text": "a"}\n', "id 'a' is given twice"),
        ('{"id": "a", "pred_', "line 1"),
        ("[1]\n", "line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, write: Write, lines: str, reason: str) -> None:
    """A line that cannot be used ends the comparison with its file and the reason."""
    (tmp_path / "bad.jsonl").write_text(lines)
    with pytest.raises(ManifestError, match=reason) as error:
        compare_places(write("a.jsonl", ONES), str(tmp_path / "bad.jsonl"))
    assert "bad.jsonl" in str(error.value)


def test_what_cannot_be_compared_says_what_to_do(write: Write, tmp_path: Path) -> None:
    """A missing place, no references and an unknown key of clusters are errors with a remedy."""
    left = write("a.jsonl", [row("a", None, "eins")])
    with pytest.raises(ConfigError, match=r"no item in common has a reference.*add `text`"):
        compare_places(left, left)
    with pytest.raises(ConfigError, match="does not exist; give"):
        compare_places(left, str(tmp_path / "gone"))
    left = write("a.jsonl", ONES)
    with pytest.raises(ConfigError, match=r"has 'speaker'.*a key of the manifest"):
        compare_places(left, left, cluster="speaker")


def test_clusters_widen_the_interval(write: Write) -> None:
    """Items of one speaker are resampled together, so that speakers that differ give a wider interval."""
    left = [row(f"{i}", "eins zwei drei", "eins zwei drei", speaker=i // 20) for i in range(100)]
    right = [{**each, "pred_text": "eins zwei" if each["speaker"] < 2 else each["text"]} for each in left]
    names = write("a.jsonl", left), write("b.jsonl", right)
    alone, together = compare_places(*names).words, compare_places(*names, cluster="speaker").words
    assert alone is not None
    assert together is not None
    assert alone.interval is not None
    assert together.interval is not None
    assert alone.difference == together.difference
    assert together.interval[1] - together.interval[0] > 2 * (alone.interval[1] - alone.interval[0])


@pytest.mark.parametrize(("num_items", "is_certain"), [(8, False), (19, False), (20, True)])
def test_few_items_make_no_verdict(num_items: int, is_certain: bool, write: Write, voxbatch: Voxbatch) -> None:
    """Half of the items are better in B and none is worse. Of eight, an exact sign test has p = 0.125."""
    rows = [row(f"i{k}", "eins zwei drei vier", "eins zwei drei vier", speaker=f"s{k % 4}") for k in range(num_items)]
    worse = [{**item, "pred_text": "eins zwei drei"} if k % 2 else item for k, item in enumerate(rows)]
    places = write("a.jsonl", worse), write("b.jsonl", rows)
    verdict = "→ B is better" if is_certain else f"→ no certain difference: {num_items} items are too few, compare 20"
    assert f"\n{verdict}" in voxbatch("compare", *places).stdout
    clustered = voxbatch("compare", *places, "--cluster", "speaker").stdout
    assert is_certain or "is better\n" not in clustered
    difference = compare_places(*places).words
    assert difference is not None
    assert (difference.has_sign, difference.is_certain, difference.units) == (True, is_certain, num_items)


def test_groups_have_differences_of_their_own(write: Write, voxbatch: Voxbatch) -> None:
    """With `by`, each value of a key has its own difference and interval. A key that only one side has counts for both,
    and the groups add up to the whole."""
    phone = [row(f"p{i}", "eins zwei drei vier", "eins zwei drei vier", source="phone") for i in range(20)]
    radio = [row(f"r{i}", "eins zwei drei vier", "eins zwei", source="radio") for i in range(20)]
    worse = [{**item, "pred_text": "eins zwei drei"} for item in phone]
    better = [{**item, "pred_text": "eins zwei drei"} for item in radio]
    for item in (*worse, *better):
        del item["source"]
    left, right = write("a.jsonl", [*phone, *radio]), write("b.jsonl", [*worse, *better])
    comparison = compare_places(left, right, by=("source",))
    groups = {group.value: group for group in comparison.groups}
    assert {name: (group.key, group.unit, group.items) for name, group in groups.items()} == {
        "phone": ("source", "word", 20), "radio": ("source", "word", 20),
    }  # fmt: skip
    assert [groups[name].difference.difference for name in ("phone", "radio")] == pytest.approx([0.25, -0.25])
    assert groups["phone"].difference.interval == pytest.approx((0.25, 0.25))
    assert sum((group.a for group in comparison.groups), ErrorCounts()) == comparison.a.words
    shown = voxbatch("compare", left, right, "--by", "source", "--limit", "0").stdout
    assert re.search(r"^ +WER A +WER B +B − A +95 % interval +words +items +better$", shown, re.MULTILINE), shown
    assert re.search(
        r"^source phone +0\.00% +25\.00% +\+25\.00 +\+25\.00 to \+25\.00 +80 +20 +A$", shown, re.MULTILINE
    ), shown
    assert re.search(r"^source radio .* -25\.00 to -25\.00 +80 +20 +B$", shown, re.MULTILINE)
    stored = json.loads(voxbatch("compare", left, right, "--by", "source", "--json").stdout)["groups"]
    assert [(group["value"], group["wer_a"], group["wer_b"]) for group in stored] == [
        ("phone", 0.0, 0.25), ("radio", 0.5, 0.25),
    ]  # fmt: skip
    assert len(api.compare(left, right, by="source").groups) == 2
    with pytest.raises(ConfigError, match="no item in common has 'nothing', by which to group; take a key"):
        compare_places(left, right, by=("nothing",))


def test_references_may_be_a_third_place(write: Write, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """With --ref, two folders of texts are compared against the references of a folder or a file, which count before
    those of the two. An item without one is not scored."""
    for name, texts in {"a": ("eins zwei", "vier"), "b": ("eins", "vier"), "refs": ("eins zwei drei",)}.items():
        (tmp_path / name).mkdir()
        for letter, text in zip("xy", texts, strict=False):
            (tmp_path / name / f"{letter}.txt").write_text(text)
    places = str(tmp_path / "a"), str(tmp_path / "b")
    comparison = compare_places(*places, "de", ref=str(tmp_path / "refs"))
    assert (comparison.common, comparison.without_reference) == (2, 1)
    assert (comparison.a.words.errors, comparison.b.words.errors, comparison.b.words.reference_length) == (1, 2, 3)
    assert [item.reference for item in comparison.changed] == ["eins zwei drei"]
    left, right = write("a.jsonl", ONES), write("b.jsonl", TWOS)
    rows = write("refs.jsonl", [{"id": "a", "text": "zehn"}, {"id": "z", "text": "elf"}])
    counts = api.compare(left, right, ref=rows)
    assert (counts.a.words.errors, counts.b.words.errors, counts.a.words.reference_length) == (4, 5, 1)
    shown = voxbatch("compare", *places, "--ref", tmp_path / "refs", "--language", "de")
    assert "2 items in common, 0 only in A, 0 only in B; 1 without a reference" in shown.stdout, shown.stderr
    with pytest.raises(ConfigError, match=r"no item in common has a reference, .* or give --ref FILE"):
        compare_places(*places, "de")


def test_rules_are_chosen_as_for_score(write: Write, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The rules count for both sides, the words that are shown and the page."""
    left = write("a.jsonl", [row("a", "Hello, old shop boy", "Hello, old shopboy", lang="en")])
    right = write("b.jsonl", [row("a", "Hello, old shop boy", "hello old shop boy", lang="en")])
    plain = api.compare(left, right)
    assert (plain.a.words.errors, plain.b.words.errors) == (2, 0)
    as_written = api.compare(left, right, normalizer="none")
    assert (as_written.a.words.errors, as_written.b.words.errors) == (2, 1)
    replaced = api.compare(left, right, replace={"shopboy": "shop boy"})
    assert (replaced.a.words.errors, replaced.b.words.errors) == (0, 0)
    own = api.compare(left, right, normalizer=str.lower)
    assert (own.a.words.errors, own.b.words.errors) == (2, 1)
    assert own.normalizers == {"en": "the rules of builtins.str.lower"}
    shown = voxbatch("compare", left, right, "--punctuation", "--case", "--html", tmp_path / "page.html").stdout
    assert "case kept, punctuation kept" in " ".join(shown.split())
    assert "\nREF  Hello," in shown
    assert "\nB    [hello]" in shown
    assert "[hello]" in (tmp_path / "page.html").read_text()
    (tmp_path / "words.tsv").write_text("shopboy\tshop boy\n")
    found = json.loads(voxbatch("compare", left, right, "--replace", tmp_path / "words.tsv", "--json").stdout)
    assert (found["a"]["wer"], "words.tsv" in found["normalizers"]["en"]) == (0.0, True)


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def run(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> Path:
    """Return the OUT of a run of four items, of which one fails."""
    path = manifest(1.5, 2.5, 3.5, None, text="w0 w1 w2 w3", lang="en")
    assert voxbatch("run", path, "-o", "out", "--engine", "scripted").returncode == 3
    return tmp_path / "out"


def test_a_sign_that_depends_on_the_normaliser_is_told(write: Write, voxbatch: Voxbatch) -> None:
    """B adds a word to each text, and A writes no case and no punctuation: A has fewer errors, and by `none` more."""
    references = ["Good evening, and welcome.", "It was Late."]
    rows = [{"id": str(k), "text": references[k % 2], "lang": "en"} for k in range(10)]
    a = write("a", [row | {"pred_text": re.sub("[.,]", "", row["text"]).lower()} for row in rows])
    b = write("b", [row | {"pred_text": f"{row['text']} Yes."} for row in rows])
    comparison = compare_places(a, b)
    assert comparison.other_signs == ["none"]
    assert {name: round(other.difference, 4) for name, other in comparison.other_rules.items()} == {
        "whisper": round(10 / 35, 4), "none": round(10 / 35 - 25 / 35, 4)
    }  # fmt: skip
    shown = voxbatch("compare", a, b).stdout
    assert "by other --normalizer rules: whisper +28.57, none -42.86 points\n" in shown
    assert "→ the sign depends on the rules: by none, the other side has fewer errors\n" in shown
    assert "depends on the rules" not in voxbatch("compare", a, a).stdout
    assert set(compare_places(a, b, rules=Rules("none")).other_rules) == {"auto", "whisper"}


def test_a_run_has_the_counts_of_its_summary(run: Path, tmp_path: Path) -> None:
    """A run compared with itself has its own rate on both sides, and nothing is scored again."""
    found = compare_places(str(run), str(run))
    score = json.loads((run / "summary.json").read_text())["score"]
    assert found.a == found.b
    assert (found.a.wer, found.a.words.errors, found.a.missing) == (score["wer"], score["words"]["errors"], 1)
    assert (found.a.rescored, found.a.engine) == (0, "scripted")
    assert found.changed == ()
    by_other_rules = compare_places(str(run), str(run), rules=Rules(case=True))
    assert by_other_rules.a.rescored == 3
    lengths = by_other_rules.a.words.reference_length, found.a.words.reference_length
    assert lengths == (16, 32)  # "w0" is two words by the rules for English
    lines = compare_places(str(run), str(run / "transcripts.jsonl"))
    assert (lines.common, lines.only_a, lines.b.rescored) == (3, 1, 3)
    assert lines.a.words == lines.b.words


def test_changed_texts_are_scored_again(run: Path, tmp_path: Path) -> None:
    """The counts in the lines are not taken if somebody changed a text, or if other rules made them."""
    other = tmp_path / "other"
    shutil.copytree(run, other)
    text = (other / "transcripts.jsonl").read_text()
    (other / "transcripts.jsonl").write_text(text.replace('"pred_text": "w0 w1', '"pred_text": "w0 w7'))
    assert (other / "transcripts.jsonl").read_text() != text
    found = compare_places(str(run), str(other))
    assert (found.a.rescored, found.b.rescored) == (0, 3)
    assert found.b.words.errors == found.a.words.errors + 3
    summary = (run / "summary.json").read_text()
    (run / "summary.json").write_text(summary.replace("whisper-normalizer 0", "whisper-normalizer 0.0"))
    assert compare_places(str(run), str(other)).a == dataclasses.replace(found.a, rescored=3)


def test_an_unfinished_run_is_refused(run: Path) -> None:
    """A run without a summary is not compared."""
    (run / "summary.json").unlink()
    with pytest.raises(ConfigError, match="not finished; run the same command again"):
        compare_places(str(run), str(run))


def test_the_command_prints_both_sides(run: Path, voxbatch: Voxbatch, write: Write) -> None:
    """The text fits a terminal of 80 columns; a pipe has all names whole, and JSON the same figures."""
    rows = [json.loads(line) for line in (run / "transcripts.jsonl").read_text().splitlines()]
    rows[0]["pred_text"] = "w0 \x1b[2J zwei zwei " + "x" * 500
    other = write("other.jsonl", rows)
    done = voxbatch("compare", run, other)
    assert done.returncode == 0, done.stderr
    row = done.stdout.splitlines()[1]
    assert (row.split()[0], str(run) in row, str(other) in row) == ("run", True, True)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "voxbatch", "compare", str(run), str(other)]
    with subprocess.Popen(command, env=environment(TERM="xterm"), stdout=theirs) as running:
        os.close(theirs)
        seen = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while block := os.read(ours, 4096):
                seen += block
    os.close(ours)
    assert (running.returncode, max(map(len, seen.decode().splitlines())) <= 80) == (0, True)
    assert "\x1b" not in done.stdout + seen.decode()
    assert "WER of B − WER of A: +" in done.stdout
    assert "3 items in common, 1 only in A, 0 only in B" in done.stdout
    found = json.loads(voxbatch("compare", run, other, "--json", "--limit", "0").stdout)
    assert found["b"]["wer"] > found["a"]["wer"]
    assert found["words"]["interval"][0] <= found["words"]["difference"]
    assert found["changed"] == []


def test_options_that_differ_are_named(run: Path, voxbatch: Voxbatch, manifest: ManifestWriter) -> None:
    """The options of two runs that differ are named with both values, and only they; a file has no options."""
    options = ("--engine", "scripted", "--engine-option", "max_chunk_s=20", "--max-hours", "2", "--formats", "srt")
    assert voxbatch("run", manifest(1.5, text="w0 w1", lang="en"), "-o", "other", *options).returncode == 0
    other = run.parent / "other"
    assert compare_places(str(run), str(run)).options == {}
    found = compare_places(str(run), str(other)).options
    assert {name: found[name] for name in ("max_chunk_s", "max_hours")} == {
        "max_chunk_s": (30.0, 20.0), "max_hours": (24.0, 2.0),
    }  # fmt: skip
    assert not {"source", "out", "formats", "engine_options", "voxbatch", "machine"} & set(found)
    printed = voxbatch("compare", run, other, "--limit", 0).stdout
    assert "\noptions that differ (A → B):\n" in printed
    assert "\n  max_chunk_s: 30.0 → 20.0\n" in printed
    assert compare_places(str(run), str(run / "transcripts.jsonl")).options == {}


def test_fail_if_worse(voxbatch: Voxbatch, write: Write) -> None:
    """The exit code is 1 if B is worse by more than the points that are allowed, exactly."""
    words = " ".join(f"w{i}" for i in range(1000))
    good = write("good.jsonl", [row("a", words, words)])
    worse = write("worse.jsonl", [row("a", words, words.removesuffix(" w998 w999"))])  # 0.2 points
    assert voxbatch("compare", good, worse, "--fail-if-worse", "0.2").returncode == 0
    assert voxbatch("compare", worse, good, "--fail-if-worse", "0").returncode == 0
    done = voxbatch("compare", good, worse, "--fail-if-worse", "0.19", "--json")
    assert (done.returncode, json.loads(done.stdout)["b"]["wer"]) == (1, 0.002)
    assert "RUN_B is worse by more than --fail-if-worse 0.19 points" in done.stderr
    for wrong in ("nan", "-1", "inf"):
        assert voxbatch("compare", good, worse, "--fail-if-worse", wrong).returncode == 2


def test_runs_in_buckets_compare(run: Path, place: servers.Place, voxbatch: Voxbatch) -> None:
    """A run in a bucket compares with a local one, and a file in a bucket does."""
    for name in ("run.json", "lists/00001.bin", "summary.json", "transcripts.jsonl", "failures.jsonl"):
        place.put(name, (run / name).read_bytes())
    local = compare_places(str(run), str(run))
    assert dataclasses.replace(compare_places(place.uri, str(run)).a, place="") == dataclasses.replace(
        local.a, place=""
    )
    assert compare_places(f"{place.uri}/transcripts.jsonl", str(run)).common == 3


# ── real sentences ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def real_texts(corpus: Path) -> Rows:
    """Return real sentences, 600 words of English, each as the reference and as its transcript."""
    rows, num_words = [], 0
    for line in (corpus / "speech" / "manifest.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["lang"] == "en" and num_words < 600:
            num_words += len(entry["text"].split())
            rows.append({**entry, "id": entry["audio_filepath"], "pred_text": entry["text"]})
    return rows


def test_a_planted_regression_is_found(real_texts: Rows, write: Write, voxbatch: Voxbatch) -> None:
    """One word in fifty is changed in real sentences: the difference is about 2 points, the interval excludes zero, and
    the guard of a CI fails. jiwer counts the same difference.
    """
    rows, number = [dict(each) for each in real_texts], 0
    for each in rows:
        words = each["pred_text"].split()
        for i in range(len(words)):
            number += 1
            if number % 50 == 0:
                words[i] = "regression"
        each["pred_text"] = " ".join(words)
    whole, changed = write("whole.jsonl", real_texts), write("changed.jsonl", rows)
    found = api.compare(whole, changed)
    assert found.words is not None
    assert found.words.interval is not None
    assert found.words.probability_b_better is not None
    assert 0.01 < found.words.difference < 0.03
    assert found.words.interval[0] > 0
    assert found.words.probability_b_better < 0.05
    done = voxbatch("compare", whole, changed, "--fail-if-worse", "0.2", "--limit", "100")
    assert (done.returncode, done.stdout.count("[regression]")) == (1, number // 50)
    references, hypotheses = ([" ".join(tokens(each[key], "en")) for each in rows] for key in ("text", "pred_text"))
    assert found.words.difference == pytest.approx(jiwer.wer(references, hypotheses), abs=1e-9)


# ── aligned texts ─────────────────────────────────────────────────────────────────────────────────────────────────────


def shown(reference: str, a: str | None, b: str | None, lang: str = "de", width: int = 79) -> list[str]:
    return list(side_by_side(reference, {"A": a, "B": b}, lang, width, 6))


def test_the_page_has_both_sides_word_by_word(write: Write, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """--html writes a page with the verdict, both rates and three rows of words; texts are escaped, and nothing is
    loaded."""
    right = [{**TWOS[0]}, {**TWOS[1], "pred_text": "eins <b>drei vier acht neun"}]
    page = tmp_path / "page.html"
    done = voxbatch("compare", write("a.jsonl", ONES), write("b.jsonl", right), "--html", page)
    assert done.returncode == 0, done.stderr
    content = page.read_text()
    assert "more items are needed" in content.lower() or "better" in content
    assert content.count('<span class="error">[-]</span>') >= 1
    assert "<b>REF</b><b>A</b><b>B</b>" in content
    assert "<b>drei" not in content
    assert "default-src &#39;none&#39;" in content


def test_errors_stand_below_their_words() -> None:
    """Wrong, missing and added words are in brackets below the reference's words."""
    assert shown("eins zwei drei vier", "eins drei vier", "eins zwo drei und vier") == [
        "REF  eins zwei  drei       vier",
        "A    eins [-]   drei       vier",
        "B    eins [zwo] drei [und] vier",
    ]


def test_wide_and_combining_characters_keep_the_columns() -> None:
    """Chinese characters have two columns, and marks of Hindi none."""
    assert shown("天气", "天气", "大气", "zh") == ["REF  天   气", "A    天   气", "B    [大] 气"]
    assert shown("मैं हूँ ना", "मैं हूँ ना", "मैं ना", "hi")[2] == "B    मैं [-] ना"


def test_long_texts_show_what_differs() -> None:
    """Only the words near the differences are shown of 10,000 words, in at most six groups of lines."""
    words = [f"w{i}" for i in range(10_000)]
    other = [*words[:5000], "x", *words[5001:]]
    lines = shown(" ".join(words), " ".join(words), " ".join(other))
    assert lines[2] == "B    … w4996 w4997 w4998 w4999 [x]   w5001 w5002 w5003 w5004 …"
    lines = shown(" ".join(words), " ".join(words), "nothing")
    assert lines[-1] == "     …"
    assert len(lines) < 30
    assert max(map(len, lines)) <= 79


def test_a_missing_transcript_is_named() -> None:
    """A text that does not exist has a line that says so."""
    assert shown("eins", None, "eins") == ["REF  eins", "B    eins", "A    (no transcript)"]
    assert shown("eins", None, None)[-2:] == ["A    (no transcript)", "B    (no transcript)"]


def test_words_cannot_turn_the_line_around() -> None:
    """Characters that change the direction of text, and control characters, do not reach the terminal."""
    lines = "".join(shown("eins", "a\u202eb\x07", "\u2066c"))
    assert not set(lines) & {"\u202e", "\u2066", "\x07"}
