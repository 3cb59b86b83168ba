"""Check what an answer must look like: the JSON schema that it follows, or the functions that it may call."""

from __future__ import annotations

import json
import re
from typing import Any

from voxbatch.errors import ConfigError

SCHEMA_KEYS = frozenset(
    ("type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "allOf", "not", "$ref", "pattern")
)
"""Keywords of JSON Schema of which one must be at the top. A document without any of them allows every answer, so it is
probably an example of an answer."""
FUNCTION_NAME = re.compile("[A-Za-z0-9_-]{1,64}")
"""The names of functions that OpenAI's API and Mistral's tokenizer accept."""


def checked_schema(text: str, place: str) -> str:
    """Return a JSON schema as canonical JSON.

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
