"""voxbatch's vLLM engine answers questions as vLLM's own chat does, and keeps answers within schemas and tools."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LAMP = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "room": {"enum": ["hall", "kitchen"]}},
    "required": ["on", "room"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "switch", "description": "Switch a lamp.", "parameters": LAMP}}]
SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "speakers": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "topic": {"type": "string", "maxLength": 12},
    },
    "required": ["count", "speakers", "topic"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def recordings() -> dict[str, np.ndarray]:
    """Return eight recordings of 1 to 33 s on the 16-bit grid, by name."""
    from sounds import babble

    lengths = (4.0, 33.0, 2.0, 10.0, 1.0, 1.5, 3.0, 0.5)
    sounds = [babble(length, seed) for seed, length in enumerate(lengths)]
    return {f"r{i}": (np.rint(each * 32_767) / 32_768).astype(np.float32) for i, each in enumerate(sounds)}


ON_CPU = ("dtype=float32", "enforce_eager=true", "max_num_batched_tokens=2048", "max_model_len=4096")


def test_answers_are_those_of_vllms_chat(voxtral: Path, recordings: dict[str, np.ndarray], tmp_path: Path) -> None:
    """Questions of up to five recordings, with a system prompt and with tools, have the tokens of `LLM.chat`; here all
    are in the engine at a time. In the same run: eight recordings, seeds, a schema, and a question that is too long.

    Questions with a seed come first, because vLLM's CPU build dies of one whose prompt is computed in several steps.
    """
    from engine_runs import with_engine, with_stock

    asked: list[dict[str, Any]] = [
        {"prompt": "What is said?", "recordings": ["r0"]},
        {"prompt": "Compare these.", "recordings": ["r0", "r1"]},
        {"prompt": "Text only?", "recordings": []},
        {"prompt": "Text only?", "recordings": [], "system": "Be brief."},
        {"prompt": "Who speaks?", "recordings": ["r0", "r2", "r3", "r4", "r5"]},
        {"prompt": "Switch", "recordings": ["r0"], "tools": json.dumps(TOOLS)},
    ]
    asked = [{**each, "max_tokens": 20} for each in asked]
    expected = with_stock(tmp_path / "chat", "chat.chats", voxtral, recordings, asked)
    drawn = {"recordings": ["r3"], "prompt": "Guess.", "max_tokens": 20, "temperature": 0.8, "top_p": 0.9}
    guesses = [{**drawn, "seed": seed} for seed in (1, 1, 2)]
    others = [
        {"prompt": "All.", "recordings": [f"r{i}" for i in range(8)], "max_tokens": 20},
        {"prompt": "Long.", "recordings": ["r1"] * 6, "max_tokens": 20},
        *(
            {"prompt": f"Facts {i}.", "recordings": [f"r{i % 4}"], "max_tokens": 80, "json_schema": json.dumps(SCHEMA)}
            for i in range(8)
        ),
        {"prompt": "Cut.", "recordings": ["r0"], "max_tokens": 4, "json_schema": json.dumps(SCHEMA)},
    ]
    found = with_engine(
        tmp_path / "answer", "answer.answers", voxtral, recordings, [*guesses, *asked, *others], options=ON_CPU
    )
    assert not [notice for notice in found["notices"] if "died" in notice]
    answers = iter(found["answers"])
    one, same, other = itertools.islice(answers, len(guesses))
    chatted = list(itertools.islice(answers, len(asked)))
    all_eight, too_long, *facts = answers
    assert [each["tokens"] for each in chatted[:5]] == [each["tokens"] for each in expected[:5]]
    counts = [each["answer"]["prompt_tokens"] for each in chatted]
    assert counts == [each["prompt_tokens"] for each in expected]
    assert counts[1] > 3 * 375
    assert all_eight["answer"]["prompt_tokens"] > 9 * 375
    assert all_eight["answer"]["completion_tokens"] == 20
    assert one["tokens"] == same["tokens"] != other["tokens"]
    assert "4,500 of them audio" in too_long["failure"]
    assert "the context holds 4,096: give --map-reduce" in too_long["failure"]
    *whole, cut = facts
    assert "increase --max-tokens" in cut["failure"]
    for each in whole:
        row = json.loads(each["answer"]["text"])
        assert set(row) == {"count", "speakers", "topic"}
        assert 0 <= row["count"] <= 99
        assert set(row["speakers"]) <= {"a", "b"}
        assert each["answer"]["finish_reason"] == "stop"
    assert len({each["answer"]["text"] for each in whole}) > 1


@pytest.mark.parametrize("version", ["v7", "v11"])
def test_spoken_requests_become_calls(version: str, recordings: dict[str, np.ndarray], tmp_path: Path) -> None:
    """A model that likes to call calls with valid arguments, in the format of its tokenizer, or answers with text."""
    from checkpoints import write_voxtral
    from engine_runs import with_engine

    write_voxtral(tmp_path / "model", version=version, calls=4.0)
    asked = [
        {"prompt": f"Request {i}.", "recordings": [f"r{i % 8}"], "max_tokens": 600, "tools": json.dumps(TOOLS)}
        for i in range(16)
    ]
    found = with_engine(tmp_path / "answer", "answer.answers", tmp_path / "model", recordings, asked, options=ON_CPU)
    failures = [each["failure"] for each in found["answers"] if "failure" in each]
    assert all("increase --max-tokens" in failure for failure in failures)  # a long text, and then a call
    answers = [each["answer"] for each in found["answers"] if "answer" in each]
    calls = [call for answer in answers for call in answer["tool_calls"]]
    assert calls
    for call in calls:
        assert call["name"] == "switch"
        arguments = json.loads(call["arguments"])
        assert set(arguments) == {"on", "room"}
        assert isinstance(arguments["on"], bool)
        assert arguments["room"] in ("hall", "kitchen")
    for answer in answers:
        assert (answer["finish_reason"] == "tool_calls") == bool(answer["tool_calls"])
