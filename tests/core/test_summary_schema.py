"""Tests that summary.json is as docs/summary.schema.json describes it, key by key."""

from __future__ import annotations

import copy
import functools
import json
import operator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import ROOT, Recorder, Voxbatch

from voxbatch.scoring.records import EstimatedWer, SpeakerErrors

SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "summary.schema.json").read_text())
ENGLISH = {"text": "w0 w1 w3", "lang": "en"}
WORDS = [{"word": "w0", "start": 0.0, "end": 0.5}, {"word": "w1", "start": 0.5, "end": 1.0}]
MANIFESTS: dict[str, list[dict[str, Any]]] = {
    "references in four languages, and a failure": [
        ENGLISH,
        {"text": "天气", "lang": "zh"},
        {"text": "날씨 좋다", "lang": "ko"},
        {"text": ""},
        {**ENGLISH, "audio_filepath": "gone.wav"},
    ],
    "no reference": [{}, {"lang": "en"}],
    "word times": [{**ENGLISH, "words": WORDS}, ENGLISH],
    "nothing but a failure": [{"audio_filepath": "gone.wav", "text": "one"}],
}
"""Rows of manifests whose summaries differ in their keys and nulls."""


def strict(schema: Any) -> Any:
    """Return the schema with `additionalProperties: false` wherever it lists properties, so that no key is unknown."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    return {"additionalProperties": False, **found} if isinstance(schema.get("properties"), dict) else found


VALIDATOR = jsonschema.Draft202012Validator(strict(SCHEMA))


def problems(summary: Any) -> list[str]:
    return [f"{'/'.join(map(str, error.path))}: {error.message}" for error in VALIDATOR.iter_errors(summary)]


def summary_of(rows: list[dict[str, Any]], folder: Path, recording: Recorder, voxbatch: Voxbatch, *more: str) -> Any:
    recording("a.wav", 1.5, folder=folder)
    lines = [json.dumps({"audio_filepath": "a.wav", "id": f"i{i}", **row}) for i, row in enumerate(rows)]
    (folder / "m.jsonl").write_text("\n".join(lines))
    done = voxbatch("run", folder / "m.jsonl", "-o", folder / "out", "--engine", "scripted", *more)
    assert done.returncode in (0, 3), done.stderr
    return json.loads((folder / "out" / "summary.json").read_text())


def test_the_schema_is_a_schema() -> None:
    """The file is a schema of draft 2020-12, and every object in it that is not free lists what is required."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("name", MANIFESTS)
def test_summaries_validate(name: str, tmp_path: Path, recording: Recorder, voxbatch: Voxbatch) -> None:
    """The summary of a real run has all keys of the schema and no others."""
    summary = summary_of(MANIFESTS[name], tmp_path, recording, voxbatch, "--usd-per-hour", "1.5")
    assert problems(summary) == []


def test_the_summary_of_a_real_model_validates(tmp_path: Path, voxbatch: Voxbatch) -> None:
    """The summary of a run with Whisper tiny.en validates."""
    pytest.importorskip("faster_whisper")
    done = voxbatch("run", ROOT / "examples" / "manifest.jsonl", "-o", "out", "--formats", "srt", "--limit", "1")
    assert done.returncode == 0, done.stderr
    assert problems(json.loads((tmp_path / "out" / "summary.json").read_text())) == []


@pytest.mark.parametrize(
    ("key", "record"),
    [
        ("estimated_wer", EstimatedWer(0.05, (0.04, 0.06), 1, 0, "c.json")),
        ("speakers", SpeakerErrors(0.5, 4, 1, 1, 2, 8, 3, 1, 1)),
    ],
)
def test_rare_records_validate(
    key: str, record: EstimatedWer | SpeakerErrors, tmp_path: Path, recording: Recorder, voxbatch: Voxbatch
) -> None:
    """A summary with such a record validates, and a key of it that the schema lacks does not."""
    summary, values = summary_of([{}], tmp_path, recording, voxbatch), json.loads(json.dumps(asdict(record)))
    assert problems({**summary, key: values}) == []
    assert problems({**summary, key: {**values, "unknown": 1}})


def test_the_summary_of_corrections_validates(tmp_path: Path, recording: Recorder, voxbatch: Voxbatch) -> None:
    """The summary of a run in which a person has corrected a text has its own keys."""
    summary_of([ENGLISH, {}], tmp_path, recording, voxbatch, "--formats", "txt")
    text = tmp_path / "out" / "txt" / "i0.txt"
    text.write_text(text.read_text().replace("w1", "w3"))
    assert voxbatch("correct", tmp_path / "out", "--engine", "none").returncode == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert problems(summary) == []
    corrections = summary["corrections"]
    assert (corrections["items"], corrections["estimated_words"], corrections["score"]["words"]["errors"]) == (1, 1, 1)


def test_the_check_can_fail(tmp_path: Path, recording: Recorder, voxbatch: Voxbatch) -> None:
    """Unknown keys at any depth, missing keys and values of other types are found."""
    summary = summary_of([ENGLISH, {"text": "天气", "lang": "zh"}], tmp_path, recording, voxbatch)
    places: list[tuple[str, ...]] = [(), ("score", "by_language", "zh"), ("latency", "chunk")]
    for place in places:
        for is_unknown in (True, False):
            changed = copy.deepcopy(summary)
            at = functools.reduce(operator.getitem, place, changed)
            if is_unknown:
                at["unknown"] = 1
            else:
                del at[next(iter(at))]
            assert problems(changed), place
    assert problems({**summary, "wall_s": "1"})
