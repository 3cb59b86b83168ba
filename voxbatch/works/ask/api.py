"""Questions about recordings from Python."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from voxbatch.api.background_run import BackgroundRun, Source, config_of
from voxbatch.api.keyword_types import AskKeywords
from voxbatch.api.keywords import checked, with_keywords
from voxbatch.config import RunOptions
from voxbatch.errors import ConfigError
from voxbatch.output.summary import Summary
from voxbatch.records import AnswerOptions
from voxbatch.runner import Progress
from voxbatch.settings import settings_of
from voxbatch.works.ask import SETTINGS
from voxbatch.works.ask.answer_format import checked_schema, checked_tools
from voxbatch.works.ask.options import QuestionOptions


@with_keywords(AskKeywords, AnswerOptions, QuestionOptions)
def ask(
    source: Source,
    prompt: str | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    json_schema: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    **options: Unpack[AskKeywords],
) -> Summary:
    """Ask a question about each recording of a source, as `voxbatch ask` does, and return the summary of the run.

    The answers are in transcripts.jsonl; `read_results` yields them while they arrive. It takes vLLM and a GPU.

    Args:
        source: see `run`.
        prompt: the question of the lines that have no `prompt`.
        out: see `run`.
        json_schema: a JSON schema that each answer follows.
        tools: functions in OpenAI's format that the model may call. Nothing is executed.
        on_progress: see `run`.
        options: `system`, `max_tokens`, `temperature`, …, and those of `run`, except the options for transcripts.

    Raises:
        UsageError: an option, the manifest or OUT is wrong; nothing was asked.
        RunError: the run cannot continue. What is committed is safe, and the same call continues.
    """
    values: dict[str, Any] = {"prompt": prompt, **options}
    answer, questions = (
        {name: checked(declared, values.pop(name)) for name, declared in settings_of(kind).items() if name in values}
        for kind in (AnswerOptions, QuestionOptions)
    )
    for name in settings_of(RunOptions):
        if name in values and name not in SETTINGS:
            raise ConfigError(f"option {name}: it is for transcripts, and has no meaning for an answer; leave it out")
    if json_schema is not None:
        answer["json_schema"] = checked_schema(_as_json(json_schema, "json_schema"), "(the argument)")
    if tools is not None:
        answer["tools"] = checked_tools(_as_json(tools, "tools"), "(the argument)")
    asked = QuestionOptions(**questions, answer=AnswerOptions(**answer))
    return BackgroundRun(replace(config_of(source, out, values), own=asked)).wait_with(on_progress)


def _as_json(value: object, name: str) -> str:
    """Return a value as JSON text.

    Raises:
        ConfigError: it has parts that JSON cannot express.
    """
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as e:
        raise ConfigError(f"{name} is no JSON: {e}") from e
