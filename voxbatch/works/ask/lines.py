"""The keys of an output line that only questions have."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from voxbatch.manifest.json_line import AUDIO_KEY, AUDIOS_KEY
from voxbatch.output.lines import absolute
from voxbatch.records import Answer, Item


def question_keys(item: Item, folder: str | None) -> dict[str, Any]:
    """Return the keys of the row that differ in the line: the question that was asked, and the places of the
    recordings, of which the first one is also `audio_filepath`.

    Args:
        folder: see lines.manifest_keys.
    """
    row: dict[str, Any] = msgspec.json.decode(item.row)
    keys: dict[str, Any] = {"prompt": item.prompt}
    if paths := row.get(AUDIOS_KEY):
        places = zip(paths, (item.audio, *item.further), strict=True)
        keys[AUDIOS_KEY] = [absolute(path, place, folder) for path, place in places]
        keys[AUDIO_KEY] = keys[AUDIOS_KEY][0]
    return keys


def answer_keys(answer: Answer) -> dict[str, Any]:
    """Return the keys of a line that are about the answer to its question."""
    calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in answer.tool_calls]
    return {
        "answer": answer.text, "tool_calls": calls, "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens,
        "answers_to_parts": list(answer.parts),
    }  # fmt: skip
