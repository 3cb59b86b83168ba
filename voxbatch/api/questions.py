"""Questions about recordings from Python: `ask`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, get_type_hints

from voxbatch.answer_options import AnswerOptions
from voxbatch.api.background_run import BackgroundRun, Source, config_of
from voxbatch.api.keywords import RunKeywords, checked
from voxbatch.errors import ConfigError
from voxbatch.output.summary import Summary
from voxbatch.questions import DEFAULT_ANSWER, QuestionOptions, checked_schema, checked_tools
from voxbatch.runner import Progress

NOT_FOR_ANSWERS = ("language", "formats", "beside", "max_line", "max_lines", "max_cps", "calibration")
"""Options of a run that say nothing about an answer. The command `voxbatch ask` does not have them either."""


def ask(
    source: Source,
    prompt: str | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    system: str | None = None,
    max_tokens: int = DEFAULT_ANSWER.max_tokens,
    temperature: float = DEFAULT_ANSWER.temperature,
    top_p: float = DEFAULT_ANSWER.top_p,
    seed: int = DEFAULT_ANSWER.seed,
    json_schema: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    map_reduce: bool = False,
    on_progress: Callable[[Progress], object] | None = None,
    **options: Unpack[RunKeywords],
) -> Summary:
    """Ask a question about each recording of a source, as `voxbatch ask` does, and return the summary of the run.

    The answers are in transcripts.jsonl; `read_results` yields them while they arrive. It takes vLLM and a GPU.

    Args:
        source: see `run`.
        prompt: the question of the lines that have no `prompt`.
        out: see `run`.
        system: the system prompt.
        max_tokens: largest number of tokens of an answer.
        temperature: 0 takes the likeliest token each time.
        top_p: with a temperature: choose among the likeliest tokens whose probabilities add up to this.
        seed: with a temperature: seed of each answer.
        json_schema: a JSON schema that each answer follows.
        tools: functions in OpenAI's format that the model may call. Nothing is executed.
        map_reduce: ask about the parts of a recording that is too long for one question, and then about the answers.
        on_progress: see `run`.
        options: those of `run` except NOT_FOR_ANSWERS.

    Raises:
        UsageError: an option, the manifest or OUT is wrong; nothing was asked.
        RunError: the run cannot continue. What is committed is safe, and the same call continues.
    """
    hints = get_type_hints(ask)
    scalars = {
        "prompt": prompt, "system": system, "max_tokens": max_tokens, "temperature": temperature, "top_p": top_p,
        "seed": seed, "map_reduce": map_reduce,
    }  # fmt: skip
    for name, value in scalars.items():
        checked(name, value, hints[name])
    if unfit := [name for name in NOT_FOR_ANSWERS if name in options]:
        raise ConfigError(f"option {unfit[0]}: it is for transcripts, and has no meaning for an answer; leave it out")
    answer = AnswerOptions(
        system,
        max_tokens,
        temperature,
        top_p,
        seed,
        checked_schema(_as_json(json_schema, "json_schema"), "(the argument)") if json_schema is not None else None,
        checked_tools(_as_json(tools, "tools"), "(the argument)") if tools is not None else None,
    )
    questions = QuestionOptions(prompt=prompt, answer=answer, map_reduce=map_reduce)
    config = config_of(source, out, options)
    return BackgroundRun(replace(config, questions=questions)).wait_with(on_progress)


def _as_json(value: object, name: str) -> str:
    """Return a value as JSON text.

    Raises:
        ConfigError: it has parts that JSON cannot express.
    """
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as e:
        raise ConfigError(f"{name} is no JSON: {e}") from e
