"""The options of a run that asks questions: what is asked, and how the model may answer.

The files of JSON are checked here, before a model is loaded: a JSON schema that each answer follows, or functions in
OpenAI's format that the model may call.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from voxbatch.answer_options import AnswerOptions
from voxbatch.errors import ConfigError

MAX_TOKENS = 32_768
"""Largest number of tokens of an answer: the context of Voxtral Mini 3B and Small 24B."""
MAX_TEMPERATURE = 2.0
"""Highest temperature, as in OpenAI's API."""
SCHEMA_KEYS = frozenset(
    ("type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "allOf", "not", "$ref", "pattern")
)
"""Keywords of JSON Schema of which one must be at the top. A document without any of them allows every answer, so it is
probably an example of an answer."""
DEFAULT_ANSWER = AnswerOptions()
"""A free text, by greedy decoding."""
FUNCTION_NAME = re.compile("[A-Za-z0-9_-]{1,64}")
"""The names of functions that OpenAI's API and Mistral's tokenizer accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOptions:
    """The questions of a run.

    Raises:
        ConfigError: a value is out of range, a file holds something else, or two options contradict each other.
    """

    prompt: str | None = None
    """The question of lines without a `prompt`."""
    answer: AnswerOptions = DEFAULT_ANSWER
    map_reduce: bool = False
    """Ask about the parts of a long recording, and then about the answers."""

    def __post_init__(self) -> None:
        answer = self.answer
        for name, text in (("prompt", self.prompt), ("system", answer.system)):
            if text is not None and not text.strip():
                raise ConfigError(f"--{name} is empty; give a text, or leave it out")
        for name, value, least, most in (
            ("max-tokens", answer.max_tokens, 1, MAX_TOKENS),
            ("temperature", answer.temperature, 0, MAX_TEMPERATURE),
            ("top-p", answer.top_p, math.ulp(0), 1),
            ("seed", answer.seed, 0, 2**63 - 1),
        ):
            if not least <= value <= most:
                raise ConfigError(f"--{name} is {value:g}; it must be from {max(least, 0):g} to {most:g}")
        if answer.json_schema is not None and answer.tools is not None:
            raise ConfigError("--json-schema and --tools contradict each other: an answer is a document or has calls")


def translation_prompt(language: str) -> str:
    """Return the question that asks for a translation.

    Args:
        language: English name of the language, e.g. "French".
    """
    return f"Translate everything that is said in the recording into {language}. Answer with the translation only."


def about_part(options: AnswerOptions) -> AnswerOptions:
    """Return the options of an answer about one part of a recording: free text, without calls of functions."""
    return replace(options, json_schema=None, tools=None)


def prompt_about_answers(prompt: str, answers: Sequence[str]) -> str:
    """Return the question about the whole recording, from the answers about its parts, in order."""
    parts = "\n\n".join(f"Part {number} of {len(answers)}:\n{text}" for number, text in enumerate(answers, 1))
    return (
        "A long recording was divided into parts, and the same question was asked about each part. Answer the question "
        "for the whole recording from these answers.\n\n"
        f"Question: {prompt}\n\n{parts}"
    )


def checked_schema(text: str, place: str) -> str:
    """Return a JSON schema as canonical JSON.

    Args:
        text: content of the file.
        place: name of the file, for messages.

    Raises:
        ConfigError: the text is no JSON, or no JSON schema.
    """
    schema = _parsed(text, place, "--json-schema")
    if not isinstance(schema, dict) or not SCHEMA_KEYS & schema.keys():
        raise ConfigError(
            f"--json-schema {place}: this is no JSON schema: at its top it has none of {', '.join(sorted(SCHEMA_KEYS))}"
            '; give a document such as {"type": "object", "properties": {"topic": {"type": "string"}}}'
        )
    if reason := _schema_error(schema):
        raise ConfigError(f"--json-schema {place}: {reason}")
    return _canonical(schema)


def checked_tools(text: str, place: str) -> str:
    """Return a list of functions as canonical JSON.

    Args:
        text: content of the file.
        place: name of the file, for messages.

    Raises:
        ConfigError: the text is no JSON, or not a list of functions in OpenAI's format.
    """
    tools, names = _parsed(text, place, "--tools"), set[str]()
    if not isinstance(tools, list) or not tools:
        raise ConfigError(f"--tools {place}: it must be a list of functions in OpenAI's format, and not empty")
    for number, tool in enumerate(tools, 1):
        if reason := _tool_error(tool):
            raise ConfigError(f"--tools {place}, function {number}: {reason}")
        name = tool["function"]["name"]
        if name in names:
            raise ConfigError(f"--tools {place}, function {number}: the name {name!r} is given twice")
        names.add(name)
    return _canonical(tools)


def _tool_error(tool: Any) -> str:
    """Return the reason why a value is no function in OpenAI's format, or ""."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        return 'it must be {"type": "function", "function": {"name": …, "parameters": …}}'
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        return f"`name` is {name!r}; it must have 1 to 64 letters, digits, _ and -"
    if not isinstance(function.get("description", ""), str):
        return f"`description` of {name} is {function['description']!r}; it must be a text"
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        return f'`parameters` of {name} must be a JSON schema with "type": "object"'
    return f"`parameters` of {name}: {reason}" if (reason := _schema_error(parameters)) else ""


def _schema_error(schema: dict[str, Any]) -> str:
    """Return the reason why an object is no JSON schema, or ""."""
    try:
        from jsonschema import SchemaError
        from jsonschema.validators import validator_for
    except ImportError as e:
        raise ConfigError(f"JSON schemas need the package jsonschema ({e}): pip install 'voxbatch[vllm]'") from e
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as e:
        at = "/".join(map(str, e.absolute_path)) or "its top"
        return f"this is no JSON schema: at {at}: {e.message[:200]}"
    return ""


def _parsed(text: str, place: str, option: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{option} {place} is no JSON: {e}") from e


def _canonical(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
