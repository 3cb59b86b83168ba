"""Tests for an engine that gives wrong values: the item fails, and the run and its outputs stay valid."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ManifestWriter
from scripted_engine import ScriptedTestEngine

from voxbatch.config import Config
from voxbatch.engines import ChunkProgress, EngineCache, EngineMessage, Feed, registered
from voxbatch.engines.results import Result, find_wrong_value
from voxbatch.log import Log
from voxbatch.records import ChunkFailure, Flag, Hypothesis, Word
from voxbatch.runner import run
from voxbatch.storage import DEFAULT_STORES

pytestmark = pytest.mark.usefixtures("warm_decoders")
RIGHT = Hypothesis(
    1, 0, "hé 🎤", (Word(" hé", 0.1, np.float64(0.2), 1.0),), ("a note",), "en", (Flag("repetition", "twice", 0, None),)
)
WRONG: dict[str, dict[str, Any]] = {
    "start": {"words": (Word(" a", math.nan, 1.0),)},
    "end": {"words": (Word(" a", 0.0, math.inf),)},
    "float32": {"words": (Word(" a", np.float32(0), 1.0),)},  # type: ignore[arg-type]
    "word confidence": {"words": (Word(" a", 0.0, 1.0, math.nan),)},
    "confidence": {"confidence": math.nan},
    "surrogate": {"text": "a \ud83d"},
    "surrogate in a word": {"words": (Word("\udc00", 0.0, 1.0),)},
    "surrogate in a flag": {"flags": (Flag("repetition", "\ud83d"),)},
    "bytes": {"text": b"a"},
    "no text": {"text": None},
    "no words": {"words": None},
    "a word that is text": {"words": ("a",)},
    "language": {"language": 7},
}
"""Fields with wrong values."""


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_found(name: str) -> None:
    """Each wrong value of a result is found, and a right result has none."""
    assert find_wrong_value(RIGHT) is None
    assert find_wrong_value(replace(RIGHT, **WRONG[name]))


def test_failures_and_progress_are_checked_too() -> None:
    """Messages of failures are text, and the progress is a number of samples."""
    assert find_wrong_value(ChunkFailure(0, 0, "no", True)) is None
    assert find_wrong_value(ChunkFailure(0, 0, "no \ud83d"))
    assert find_wrong_value(ChunkProgress(0, 0, 16_000)) is None
    assert find_wrong_value(ChunkProgress(0, 0, math.nan))  # type: ignore[arg-type]


class OddEngine(ScriptedTestEngine):
    """An engine that gives item 1 other fields, and each result twice."""

    def __init__(self, **fields: Any):
        super().__init__(None, {})
        self._fields = fields

    def stream(self, feed: Feed) -> Iterator[Result]:
        """Yield the results."""
        for result in super().stream(feed):
            assert not isinstance(result, EngineMessage)
            yield replace(result, **self._fields) if result.item == 1 else result
            yield result


@pytest.mark.parametrize("name", ["start", "surrogate", "no words"])
def test_an_odd_result_is_the_failure_of_its_item(name: str, manifest: ManifestWriter, tmp_path: Path) -> None:
    """The item with the odd result fails, the others are transcribed, and all outputs are valid JSON. A second result
    for a chunk is left out with a warning.
    """
    engine_cache, log = EngineCache(), list[str]()
    engine_cache._engine = OddEngine(**WRONG[name])
    engine_cache._asked = registered("scripted"), None, {}, DEFAULT_STORES
    config = Config(source=str(manifest(1.2, 1.4, 1.1)), out=str(tmp_path / "out"), engine="scripted", decoders=1)
    result = run(config, Log(write=log.append), engine_cache=engine_cache)
    assert (result.progress.done, result.progress.failed) == (2, 1)
    assert (tmp_path / "out" / "report.html").exists()
    for output in ("transcripts.jsonl", "failures.jsonl"):
        for line in (tmp_path / "out" / output).read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)
    (failure,) = map(json.loads, (tmp_path / "out" / "failures.jsonl").read_text().splitlines())
    assert (failure["line"], failure["error"], failure["retryable"]) == (2, "TranscriptionError", True)
    assert "the engine gave a result that cannot be written: " in failure["message"]
    assert sum("which it does not have; the result is left out" in line for line in log) == 3
