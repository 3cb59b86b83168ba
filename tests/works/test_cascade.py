"""Tests of cascades: a small model does everything, and a large one does the least sure items again."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import killed_at
import numpy as np
import pytest
from conftest import ManifestWriter, Voxbatch
from outputs import output_files
from whisper_base import needs_tiny_en

import voxbatch as api
from voxbatch import runner
from voxbatch.analysis.calibrate import calibrate_run
from voxbatch.analysis.status import StatusReader
from voxbatch.config import Config
from voxbatch.errors import CheckpointError, ConfigError, UsageError
from voxbatch.log import Log
from voxbatch.output import lists
from voxbatch.output.merge_again import merge_again
from voxbatch.output.parts import PartEntry, open_part
from voxbatch.output.run_file import RunKey, read_existing
from voxbatch.output.verify import verify
from voxbatch.scoring.calibration import Calibration, Fit
from voxbatch.storage import Store, Stores
from voxbatch.works.cascade.options import parse_cascade
from voxbatch.works.cascade.overlay import Amount, chosen, overlaid

SECONDS = (1.0, 2.0, None, 1.5, 2.5, 1.2, 2.2, 1.7)
"""Durations of the recordings, of which one is missing."""
SHARE = 0.4
CASCADE = f"little,big:{SHARE}"
SCRIPTED = {"engine": "scripted", "engine_options": {"confidence": "true"}, "formats": ("srt",), "report": False}
COMMAND = ("--engine", "scripted", "--engine-option", "confidence=true", "--formats", "srt", "--log-format", "text")


def config(source: Path, out: Path, **settings: Any) -> Config:
    """Return the settings of a quick cascade."""
    return Config(**{"source": str(source), "out": str(out), "cascade": CASCADE, **SCRIPTED, **settings})


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()]


@pytest.fixture
def undisturbed(manifest: ManifestWriter, tmp_path: Path, warm_decoders: None) -> dict[str, bytes]:
    """Return the outputs of an undisturbed cascade."""
    runner.run(config(manifest(*SECONDS, text="w0 w1"), tmp_path / "peace"), Log(quiet=True))
    return output_files(tmp_path / "peace")


def test_the_more_confident_text_of_the_least_sure_items_counts(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """Each row is that of a run of one of the models alone, and the items that both did are the least sure ones."""
    alone = {}
    for model in ("little", "big"):
        runner.run(config(tmp_path / "m.jsonl", tmp_path / model, cascade=None, model=model), Log(quiet=True))
        alone[model] = {row["id"]: row for row in rows(tmp_path / model)}
    kept = rows(tmp_path / "peace")
    again = {row["id"] for row in kept if row["cascade"]}
    least_sure = sorted(alone["little"].values(), key=lambda row: row["confidence"])
    assert again == {row["id"] for row in least_sure[: len(again)]}
    limit = SHARE * sum(row["audio_duration"] for row in least_sure)
    durations = [row["audio_duration"] for row in least_sure]
    assert sum(durations[: len(again)]) <= limit < sum(durations[: len(again) + 1])
    for row in kept:
        record, both = row.pop("cascade"), [alone["little"][row["id"]], alone["big"][row["id"]]]
        if record is None:
            assert row == both[0]
            continue
        assert row == max(both, key=lambda line: line["confidence"])
        assert [text["pred_text"] for text in record["texts"]] == [line["pred_text"] for line in both]
        assert [text["model"] for text in record["texts"]] == ["little", "big"]
        assert record["agree"] is (both[0]["pred_text"] == both[1]["pred_text"])
        assert record["reason"].startswith(row["model"])
    assert {row["model"] for row in kept if row["id"] in again} == {"little", "big"}, "the test sees both cases"


def test_what_reads_out_sees_the_second_pass(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """The summary, the verification, the Python interface and a second merge are of the combined rows."""
    out = tmp_path / "peace"
    summary = json.loads((out / "summary.json").read_text())
    errors = sum(row["substitutions"] + row["insertions"] + row["deletions"] for row in rows(out))
    assert (summary["items"], summary["done"], summary["failed"]) == (8, 7, 1)
    assert summary["score"]["wer"] == (errors + 2) / 16, "the missing recording has two words"
    assert verify(Stores().out(str(out))) == []
    by_id = {result.id: result.line for result in api.read_results(out)}
    assert [by_id[row["id"]] for row in rows(out)] == rows(out)
    (out / "transcripts.jsonl").unlink()
    merge_again(Stores().out(str(out)))
    assert output_files(out) == undisturbed


def test_killed_after_every_change_of_out_and_resumed(
    undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """After SIGKILL at each step of both passes, the same command ends with the bytes of an undisturbed cascade, and
    no pass does an item twice."""
    command = ("run", "m.jsonl", "--cascade", CASCADE, *COMMAND, "--no-report", "--part-items", "2")
    number, seen = 0, set[str]()
    while True:
        number += 1
        out = tmp_path / f"killed{number}"
        code = voxbatch(*command, "-o", out, env={killed_at.VARIABLE: str(number)}).returncode
        seen.add("merged" if (out / "transcripts.jsonl").exists() else "second" if _second(out) else "first")
        if code == -signal.SIGKILL:
            assert voxbatch(*command, "-o", out).returncode == 3
        assert output_files(out) == undisturbed
        for pass_name in ("part", "second"):
            items = _committed(out, pass_name)
            assert len(items) == len(set(items))
        if code == 3:
            break
    assert seen == {"first", "second", "merged"}


def _second(out: Path) -> list[Path]:
    return list(out.glob("parts/*/second-0*.jsonl"))


def _committed(out: Path, pass_name: str) -> list[bytes]:
    parts = [path.read_bytes().splitlines()[1:] for path in out.glob(f"parts/*/{pass_name}-*.jsonl")]
    return [line.split(b",")[0] for part in parts for line in part]


def test_the_number_of_shards_does_not_show(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """The last of three shards makes the second pass of all of them. Nothing is merged before."""
    for shard in (2, 0, 1):
        result = runner.run(config(tmp_path / "m.jsonl", tmp_path / "out", shard=shard, shards=3), Log(quiet=True))
        assert (result.summary is not None) == (shard == 1)
        assert bool(_second(tmp_path / "out")) == (shard == 1)
        if shard != 1:
            with pytest.raises(CheckpointError, match="second pass of the cascade is not done yet"):
                merge_again(Stores().out(str(tmp_path / "out")))
    assert output_files(tmp_path / "out") == undisturbed


def test_workers_give_the_same_bytes(undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Several processes side by side make both passes."""
    extra = ("--engine-option", "workers=2", "--decoders", "2", "--no-report")
    done = voxbatch("run", "m.jsonl", "-o", "out", "--cascade", CASCADE, *COMMAND, *extra)
    assert done.returncode == 3
    assert f"; cascade {CASCADE}" in done.stdout
    assert output_files(tmp_path / "out") == undisturbed


def test_a_failure_of_the_large_model_keeps_the_text_of_the_small_one() -> None:
    """The row says why the large model has no text."""
    small = {"engine": "e", "model": "s", "pred_text": "a b", "confidence": 0.4, "lang": "en", "flags": []}
    first = [_entry(0, small), _entry(1, {"message": "bad"}, "failure"), _entry(3, small)]
    second = [_entry(0, {"message": "too loud"}, "failure"), _entry(1, small)]
    kept = [json.loads(entry.line) for entry in overlaid(first, iter(second))]
    assert kept[0]["pred_text"] == "a b"
    assert kept[0]["cascade"]["reason"] == "the large model failed: too loud"
    assert kept[1] == {"message": "bad"}
    assert kept[2]["cascade"] is None


def _entry(index: int, line: dict[str, Any], kind: str = "transcript") -> PartEntry:
    return PartEntry(index, kind, json.dumps(line).encode())


def _choose(share: float, rows: Iterable[tuple[float | None, float, list[str]]]) -> list[int]:
    entries = [
        _entry(
            index, {"confidence": confidence, "audio_duration": seconds, "flags": [{"kind": flag} for flag in flags]}
        )
        for index, (confidence, seconds, flags) in enumerate(rows)
    ]
    return np.flatnonzero(list(chosen(entries, Amount(share), 5, 6))).tolist()


def test_the_least_sure_items_are_chosen_up_to_the_share() -> None:
    """Lost speech comes first; certain silence and what is not in the manifest are not chosen."""
    some = [(0.9, 10, []), (0.5, 10, []), (None, 5, []), (None, 5, ["lost_speech"]), (0.7, 20, []), (0.1, 1, [])]
    assert _choose(0.1, some) == [3]
    assert _choose(0.3, some) == [1, 3]
    assert _choose(0.69, some) == [0, 1, 3], "item 4 is too long for the rest"
    assert _choose(0.7, some) == [1, 3, 4]
    assert _choose(0.3, []) == []


def test_items_in_another_language_are_chosen_first() -> None:
    """They count as sure of nothing, however sure the model is of its words; other flags change nothing."""
    some = [(0.9, 10, []), (0.5, 10, []), (0.99, 10, ["other_language"]), (0.98, 10, ["repetition"])]
    assert _choose(0.25, some) == [2]
    assert _choose(0.5, some) == [1, 2]


@pytest.mark.parametrize(("drifted", "model"), [("", "l"), ("s", "l"), ("l", "s"), ("sl", "s")])
def test_a_text_in_the_language_asked_for_counts_before_a_sure_one(drifted: str, model: str) -> None:
    """Confidences decide only between two texts that are both in the language asked for, or both not."""
    surer = "l" if drifted in ("", "l") else "s"
    small, large = (
        {"engine": "e", "model": name, "pred_text": name, "confidence": 0.6 if name == surer else 0.5, "lang": "fr"}
        | {"flags": [{"kind": "other_language"}] if name in drifted else []}
        for name in ("s", "l")
    )
    (kept,) = (json.loads(entry.line) for entry in overlaid([_entry(0, small)], iter([_entry(0, large)])))
    assert kept["model"] == model
    if drifted in ("s", "l"):
        assert kept["cascade"]["reason"] == f"the text of {drifted} is in another language than the one asked for"
    else:
        assert kept["cascade"]["reason"].startswith(f"{model} is at least as confident")


FIT = Fit(0.0, 1.0, 0.0, 1.0, 1.0)
"""A calibration by which a confidence is the probability that a word is right, and no word is missing."""


@pytest.mark.parametrize(
    ("wer", "items"),
    [(0.5, [4]), (0.2, [4]), (0.19, [2, 4]), (0.1, [0, 2, 4]), (0.05, [0, 2, 4]), (0.04, [0, 1, 2, 4])],
)
def test_by_a_word_error_rate_the_others_are_expected_to_have_it(wer: float, items: list[int]) -> None:
    """The least sure items are chosen until the expected errors of the others are few enough. An item that is below the
    rate is left out, and one without words is chosen for its flag."""
    confidences = {0: [0.7] * 10, 1: [0.95] * 10, 2: [0.4] * 2, 3: [0.97] * 2, 4: []}
    entries = [
        _entry(
            index,
            {
                "confidence": float(np.mean(known)) if known else None,
                "audio_duration": 1.0,
                "flags": [] if known else [{"kind": "lost_speech"}],
                "words": [{"confidence": value} for value in known],
                "pred_text": "w " * len(known),
            },
        )
        for index, known in confidences.items()
    ]
    assert np.flatnonzero(list(chosen(entries, Amount(None, wer, FIT), 5, 5))).tolist() == items
    others = [value for index, known in confidences.items() if index not in items for value in known]
    assert sum(1 - value for value in others) <= wer * len(others)


@pytest.fixture
def calibration(undisturbed: dict[str, bytes], tmp_path: Path) -> Path:
    """Write FIT as the calibration of the small model."""
    engine = read_existing(Stores().out(str(tmp_path / "peace"))).facts.engine
    sizes = {"items": 20, "clusters": 20, "words": 100, "wrong": 50, "wer": 0.5, "dispersion": 1.0}
    made = Calibration(engine.name, engine.model, engine.decoding, ("en",), **sizes, fit=FIT, resampled=(FIT,))  # type: ignore[arg-type]
    (tmp_path / "c.json").write_text(json.dumps(made.to_dict()))
    return tmp_path / "c.json"


def test_a_word_error_rate_decides_the_second_pass(calibration: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The rows that only the small model did have the expected rate. A killed run ends with the same bytes, by whatever
    file has the same calibration; another calibration is another run."""
    small = [json.loads(line) for line in _alone(tmp_path).read_text().splitlines()]
    words = [word["confidence"] for row in small for word in row["words"]]
    wer = round(100 * sum(1 - value for value in words) / len(words) - 1, 1)
    command = ("run", "m.jsonl", "--cascade", f"little,big:wer={wer}", *COMMAND, "--no-report", "--part-items", "2")
    assert voxbatch(*command, "--calibration", calibration, "-o", "out").returncode == 3
    left = [row for row in rows(tmp_path / "out") if row["cascade"] is None]
    words = [word["confidence"] for row in left for word in row["words"]]
    assert 0 < len(left) < len(small)
    assert sum(1 - value for value in words) <= wer / 100 * len(words)
    calibration.rename(tmp_path / "d.json")
    killed = voxbatch(*command, "--calibration", "d.json", "-o", "killed", env={killed_at.VARIABLE: "9"})
    assert killed.returncode == -signal.SIGKILL
    assert voxbatch(*command, "--calibration", "d.json", "-o", "killed").returncode == 3
    assert output_files(tmp_path / "killed") == output_files(tmp_path / "out")
    (tmp_path / "d.json").write_text((tmp_path / "d.json").read_text().replace('"word": 1.0', '"word": 1.1'))
    other = voxbatch(*command, "--calibration", "d.json", "-o", "out")
    assert other.returncode == 2
    assert "cascade was" in other.stderr


def _alone(tmp_path: Path) -> Path:
    """Return the transcripts of a run of the small model."""
    runner.run(config(tmp_path / "m.jsonl", tmp_path / "alone", cascade=None, model="little"), Log(quiet=True))
    return tmp_path / "alone" / "transcripts.jsonl"


def test_the_status_counts_the_second_pass(undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """When the first pass is committed, the status says how many items the large model does, and how many of them are
    committed."""
    store, seen = Stores().out(str(tmp_path / "out")), list[tuple[int | None, int | None]]()
    reader = StatusReader(store)

    def look(_: Any) -> None:
        status = reader.read()
        seen.append((status.second_items, status.second_committed))

    runner.run(config(tmp_path / "m.jsonl", tmp_path / "out", part_items=1), Log(quiet=True), look)
    wanted = sum(row["cascade"] is not None for row in rows(tmp_path / "out"))
    assert wanted > 0
    assert seen[0] == (None, None)
    assert (wanted, 0) in seen
    assert set(seen) <= {(None, None), *((wanted, done) for done in range(wanted + 1))}
    assert reader.read().second_items is None
    (tmp_path / "out" / "summary.json").unlink()
    assert f"second pass: {wanted} of {wanted} items committed" in voxbatch("status", "out").stdout


def test_each_part_of_the_second_pass_is_read_once(
    manifest: ManifestWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_decoders: None
) -> None:
    """However often `status --watch` looks."""
    runner.run(config(manifest(*SECONDS), tmp_path / "out", part_items=1), Log(quiet=True))
    (tmp_path / "out" / "summary.json").unlink()
    opened = Counter[str]()

    def counting(store: Store, name: str, run: RunKey | None = None) -> Any:
        opened[name] += 1
        return open_part(store, name, run)

    monkeypatch.setattr(lists, "open_part", counting)
    reader = StatusReader(Stores().out(str(tmp_path / "out")))
    first = reader.read()
    assert first.second_committed == first.second_items
    assert reader.read() == reader.read() == first
    of_second = [count for name, count in opened.items() if "second-" in name]
    assert of_second == [1] * len(_second(tmp_path / "out"))
    assert of_second


def test_a_longer_list_keeps_what_the_large_model_did(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """The choice is made anew, and what is in the second pass stays."""
    out = tmp_path / "grown"
    runner.run(config(tmp_path / "m.jsonl", out, limit=5), Log(quiet=True))
    before = {row["id"] for row in rows(out) if row["cascade"]}
    runner.run(config(tmp_path / "m.jsonl", out), Log(quiet=True))
    fresh = {row["id"] for row in rows(tmp_path / "peace") if row["cascade"]}
    assert {row["id"] for row in rows(out) if row["cascade"]} == before | fresh
    assert before - fresh
    assert verify(Stores().out(str(out))) == []


def test_no_calibration_is_made_of_two_models(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """Neither from a cascade nor for one."""
    store = Stores().out(str(tmp_path / "peace"))
    with pytest.raises(ConfigError, match="a cascade of two models, and a calibration is of one"):
        calibrate_run(store)
    with pytest.raises(ConfigError, match="a cascade of two models, and a calibration is of one"):
        merge_again(store, calibration="c.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tiny.en", "give SMALL,LARGE or SMALL,LARGE:SHARE"),
        ("a,b,c", "give SMALL,LARGE or SMALL,LARGE:SHARE"),
        ("a,b:half", "'half' is no share of the audio"),
        ("a,b:1.5", "the share is 1.5; it must be above 0 and below 1"),
        ("a,b:0", "the share is 0; it must be above 0 and below 1"),
        ("a,b:nan", "the share is nan; it must be above 0 and below 1"),
        ("a, a", "both models are a; give two different ones"),
        ("a,b:wer=half", "'wer=half' is no share of the audio"),
        ("a,b:wer=0", "the word error rate is 0 %; it must be above 0 and below 100"),
        ("a,b:wer=100", "the word error rate is 100 %; it must be above 0 and below 100"),
        ("a,b:wer=nan", "the word error rate is nan %; it must be above 0 and below 100"),
    ],
)
def test_senseless_cascades_are_refused(text: str, message: str) -> None:
    """The message says what is wrong."""
    with pytest.raises(ConfigError, match=f"--cascade {text}: .*{message}"):
        parse_cascade(text)


def test_a_colon_in_a_model_is_no_share() -> None:
    """An address has a colon, too."""
    cascade = parse_cascade("gs://b/small,gs://b/large")
    assert (cascade.small, cascade.large, cascade.share) == ("gs://b/small", "gs://b/large", 0.3)
    assert parse_cascade("a,gs://b/large:0.5").share == 0.5
    cascade = parse_cascade("a,gs://b/large:wer=5")
    assert (cascade.large, cascade.share, cascade.wer) == ("gs://b/large", None, 0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "other"}, "--cascade names both models; leave out --model other"),
        ({"task": "align"}, "an engine that aligns has no confidence"),
        ({"calibration": "c.json"}, "--calibration is of one model"),
        ({"cascade": "little,big:wer=5"}, "give --calibration FILE, which voxbatch calibrate makes from a run of it"),
        ({"engine_options": {}}, "chooses by confidence, and little of the engine scripted gives none"),
    ],
)
def test_refused_before_a_model_is_loaded(
    manifest: ManifestWriter, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    """Nothing is written."""
    source = manifest(1.0)
    with pytest.raises(UsageError, match=message):
        runner.run(config(source, tmp_path / "out", **settings), Log(quiet=True))
    assert not (tmp_path / "out" / "run.json").exists()


def test_another_share_is_another_run(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """The share, and so the large model, are part of the identity."""
    with pytest.raises(UsageError, match=r"cascade was .*0\.4.*, and is .*0\.5.* now"):
        runner.run(config(tmp_path / "m.jsonl", tmp_path / "peace", cascade="little,big:0.5"), Log(quiet=True))


@needs_tiny_en
def test_an_unknown_large_model_is_refused_before_the_small_one_is_loaded(
    manifest: ManifestWriter, tmp_path: Path
) -> None:
    """The message is that of --model."""
    settings = {"engine": "faster-whisper", "engine_options": {}, "cascade": "tiny.en,no/such/model"}
    with pytest.raises(UsageError, match="no/such/model: no such folder; give a CTranslate2 model"):
        runner.run(config(manifest(1.0), tmp_path / "out", **settings), Log(quiet=True))
    assert not (tmp_path / "out" / "run.json").exists()


@needs_tiny_en
def test_what_the_large_model_cannot_do_is_told_before_the_small_one_is_loaded(
    manifest: ManifestWriter, tmp_path: Path, voxbatch: Voxbatch, base_model: Path
) -> None:
    """The log names its licence, and the recordings in languages that it does not know. They keep their text."""
    settings = ("--engine", "faster-whisper", "--cascade", f"{base_model},tiny.en:0.9", "--log-format", "json")
    done = voxbatch("run", manifest(1.0, lang="de"), "-o", "out", "--no-report", *settings)
    events = [json.loads(line) for line in done.stderr.splitlines()]
    texts = [event["text"] for event in events if event["message"] in ("engine", "one_language")]
    (licence,) = [text for text in texts if text.startswith("second pass; ")]
    assert licence == "second pass; model tiny.en (MIT)"
    (kept,) = [text for text in texts if "keep the text of the small model" in text]
    assert kept.startswith("1 item in language 'de' keep the text of the small model: model tiny.en knows only en")
    assert texts.index(licence) < texts.index(kept)
    (row,) = rows(tmp_path / "out")
    assert row["lang"] == "de"


def test_a_dry_run_has_both_prices(manifest: ManifestWriter, voxbatch: Voxbatch) -> None:
    """The second pass has its share of the audio. The speed that is given is that of the small model."""
    manifest(10.0, 10.0)
    plan = ("run", "m.jsonl", "--cascade", CASCADE, *COMMAND, "--dry-run", "--expected-rtfx", "2")
    first, second = voxbatch(*plan, "--usd-per-hour", "3600").stdout.split("second pass")
    assert "(model little)" in first
    assert "about $10.00 at $3600 an hour" in first
    assert "(model big)" in second
    assert "audio    8.0 s" in second
    assert "cost     unknown: --expected-rtfx is that of little" in second
    by_wer = (*plan[:3], "little,big:wer=5", "--calibration", "m.jsonl", *plan[4:])
    assert "second pass if the expected WER asks for 0.3 of the audio, as if" in voxbatch(*by_wer).stdout


def test_a_dry_run_says_what_out_lacks_of_both_passes(
    manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """The plan of a cascade leaves out what OUT has: all of a finished one, the first pass of one that was killed in
    the second, and the rows that keep their transcripts."""
    manifest(2.0, 2.0, 2.0, 2.0, text="w0 w1")
    command = ("run", "m.jsonl", "-o", "out", "--cascade", "little,big:0.5", *COMMAND, "--update")

    def to_do() -> list[str]:
        plan = voxbatch(*command, "--dry-run").stdout
        return [line for line in plan.splitlines() if line.startswith(("items", "second pass"))]

    assert to_do() == ["items    4", "second pass, as if its recordings were like the others:", "items    2"]
    assert voxbatch(*command).returncode == 0
    assert to_do() == ["items    0 to do", "second pass:", "items    0 to do"]
    for part in (tmp_path / "out/parts").rglob("second-*"):
        part.unlink()
    assert to_do() == ["items    0 to do", "second pass:", "items    2 to do"]
    (tmp_path / "m.jsonl").write_text((tmp_path / "m.jsonl").read_text().replace("w0 w1", "w0 w9"))
    assert to_do()[0] == "items    0 to do"


@pytest.mark.parametrize("number", [0, -1])
def test_a_lost_part_of_the_second_pass_is_named_and_done_again(
    undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path, number: int
) -> None:
    """No merge puts the texts of the small model in the place of those that are lost. The same command does the items
    again, and OUT is as before."""
    run = ("run", "m.jsonl", "-o", "out", *COMMAND, "--cascade", CASCADE, "--no-report", "--part-items", "1")
    assert voxbatch(*run).returncode == 3
    out = tmp_path / "out"
    lost = sorted(_second(out))[number]
    assert len(_second(out)) > 2
    lost.unlink()
    problem, *others = json.loads(voxbatch("status", "out", "--verify", "--json").stdout)["problems"]
    assert (problem["file"], others) == (str(lost.relative_to(out)), [])
    assert "1 item of the second pass in no part" in problem["problem"]
    assert problem["repair"] == ["run the same command again, without --overwrite"]
    merged = voxbatch("merge", "out")
    assert (merged.returncode, output_files(out)) == (1, undisturbed)
    assert "a part of the second pass of the cascade is missing, with 1 item; run again" in merged.stderr
    (out / "transcripts.jsonl").unlink()
    assert voxbatch(*run).returncode == 3
    assert output_files(out) == undisturbed
    assert verify(Stores().out(str(out))) == []
    record = out / "parts" / "shard-00000-of-00001" / "second-complete.json"
    stored = json.loads(record.read_text())
    record.write_text(json.dumps({**stored, "chosen": stored["chosen"] + "AAAA"}))
    (problem,) = verify(Stores().out(str(out)))
    assert problem.file == str(record.relative_to(out))
    record.write_text(json.dumps({key: value for key, value in stored.items() if key != "chosen"}))
    assert verify(Stores().out(str(out))) == []
    sorted(_second(out))[number].unlink()
    assert len(verify(Stores().out(str(out)))) == 1
