"""The form that the answers of a run must have: a grammar for vLLM, and the check of what the model wrote.

The grammar keeps the model within a JSON Schema, and lets it call a function in Mistral's own format. It cannot express
every keyword of JSON Schema, so each answer is validated as well.

| tokenizer | a call of f |
|---|---|
| before v11 | `[TOOL_CALLS][{"name": "f", "arguments": {…}}]` |
| v11 and later | `[TOOL_CALLS]f[ARGS]{…}`, once for each call |
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from voxbatch.records import Answer, AnswerOptions, ToolCall
from voxbatch.vllm.engine.families.request import UnsupportedPiece, UnusableAnswer
from voxbatch.vllm.engine.tekken import Tekken

MAX_CALLS = 16
"""Largest number of calls in an answer. A model that repeats itself would call until its tokens are used up."""
JSON_FORM = {
    "whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?", "lenient": True,
    "coerce_one_of": True,
}  # fmt: skip
"""Options of llguidance in a schema. JSON is on one line, with at most one space after a separator, because a model can
otherwise write spaces until its tokens are used up. Keywords that llguidance does not know are left to the validation
of the whole answer."""
MAX_REASON = 300
"""Number of characters of a validator's message that are quoted."""


class AnswerFormat:
    """The form of all answers to questions with the same options."""

    def __init__(self, options: AnswerOptions, tekken: Tekken):
        """Make the form.

        Raises:
            UnsupportedPiece: a schema is no JSON Schema.
        """
        self._tekken = tekken
        self._args: int | None = getattr(tekken.instruct, "ARGS", None)
        self._tool_calls: int = tekken.instruct.TOOL_CALLS
        schema = json.loads(options.json_schema) if options.json_schema else None
        functions = [tool["function"] for tool in json.loads(options.tools)] if options.tools else []
        parameters = {function["name"]: function.get("parameters") or {"type": "object"} for function in functions}
        self._schema = None if schema is None else _validator(schema, "the JSON Schema of the answers")
        self._parameters = {
            name: _validator(function_schema, f"the parameters of the tool {name}")
            for name, function_schema in parameters.items()
        }
        self.grammar = self._grammar(schema, parameters)
        """The grammar of the answers, for Request.grammar. Empty if there is no form to keep."""

    def _grammar(self, schema: Any, parameters: dict[str, Any]) -> str:
        if schema is not None:
            return f"start: {_json(schema)}\n"
        if not parameters:
            return ""
        rules = ["start: (TEXT | TEXT? calls)?", "TEXT: /(.|\\n)+/"]
        for i, (name, function_schema) in enumerate(parameters.items()):
            if self._args is not None:
                name_rule = f"<[{self._tool_calls}]> {json.dumps(name)} <[{self._args}]>"
                rules.append(f"call{i}: {name_rule} {_json(function_schema)}")
            else:
                prefix = json.dumps(f'{{"name": {json.dumps(name)}, "arguments": ')
                rules.append(f'call{i}: {prefix} {_json(function_schema)} "}}"')
        calls = " | ".join(f"call{i}" for i in range(len(parameters)))
        if self._args is not None:
            rules += [f"call: {calls}", f"calls: call{{1,{MAX_CALLS}}}"]
        else:
            further_calls = f'(", " call){{0,{MAX_CALLS - 1}}}'
            rules += [f"call: {calls}", f'calls: <[{self._tool_calls}]> "[" call {further_calls} "]"']
        return "\n".join([*rules, ""])

    def read(self, token_ids: Sequence[int], finish_reason: str, prompt_tokens: int) -> Answer:
        """Return the answer that the model wrote.

        Args:
            finish_reason: vLLM's "stop" or "length".
            prompt_tokens: number of positions of the prompt.

        Raises:
            UnusableAnswer: the answer does not have the form that was asked for.
        """
        ids = list(token_ids)
        at = ids.index(self._tool_calls) if self._parameters and self._tool_calls in ids else len(ids)
        text = self._tekken.decode(ids[:at])
        try:
            calls = tuple(self._calls(ids[at:])) if at < len(ids) else ()
            if self._schema is not None:
                _validate(self._schema, json.loads(text), "the answer")
        except (json.JSONDecodeError, UnusableAnswer) as e:
            if finish_reason == "length":
                raise UnusableAnswer(
                    f"the answer was cut off at its largest number of tokens, {len(ids)}, before its JSON was "
                    "complete: increase --max-tokens"
                ) from e
            if isinstance(e, UnusableAnswer):
                raise
            raise UnusableAnswer(f"the answer is not the JSON that was asked for: {e}") from e
        reason = "tool_calls" if calls and finish_reason == "stop" else finish_reason
        return Answer(text, reason, prompt_tokens, len(ids), calls)

    def _calls(self, ids: Sequence[int]) -> Iterator[ToolCall]:
        """Yield the calls in the tokens from the first [TOOL_CALLS] on.

        Raises:
            JSONDecodeError: a call is no JSON.
            UnusableAnswer: a call has another form, or arguments that the function does not take.
        """
        for name, arguments in self._named_arguments(ids):
            if name not in self._parameters:
                tool_names = ", ".join(self._parameters)
                raise UnusableAnswer(f"the answer calls {name[:100]!r}, which is none of the tools {tool_names}")
            if not isinstance(arguments, dict):
                raise UnusableAnswer(f"the arguments of the call of {name} are no JSON object")
            _validate(self._parameters[name], arguments, f"the arguments of the call of {name}")
            yield ToolCall(name, json.dumps(arguments, ensure_ascii=False))

    def _named_arguments(self, ids: Sequence[int]) -> Iterator[tuple[str, Any]]:
        """Yield the name of the function and the arguments of each call, in either format."""
        if self._args is None:
            calls = json.loads(self._tekken.decode(ids[1:]))
            if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
                raise UnusableAnswer("the calls of the answer are no JSON list of objects")
            yield from ((str(call.get("name")), call.get("arguments")) for call in calls)
            return
        starts = [i for i, token in enumerate(ids) if token == self._tool_calls]
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
            call = list(ids[start + 1 : end])
            if self._args not in call:
                raise UnusableAnswer("a call of the answer has no arguments")
            at = call.index(self._args)
            yield self._tekken.decode(call[:at]).strip(), json.loads(self._tekken.decode(call[at + 1 :]))


def _json(schema: Any) -> str:
    """Return the part of a grammar that is JSON by a schema."""
    if schema is True:
        schema = {}
    return "%json " + json.dumps({**schema, "x-guidance": JSON_FORM} if isinstance(schema, dict) else schema)


def _validator(schema: Any, of: str) -> Any:
    """Return the validator of a schema. It fetches no schema from elsewhere.

    Args:
        of: the thing that the schema describes, for messages.

    Raises:
        UnsupportedPiece: the schema is no JSON Schema, or a reference in it leads back to itself.
    """
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    kind = validator_for(schema, default=Draft202012Validator)
    reference = ""
    try:
        kind.check_schema(schema)
        validator = kind(schema, registry=Registry())
        for reference in _references(schema):
            with contextlib.suppress(Unresolvable):  # it may be relative to the $id of a part; the answer's check tells
                validator.evolve(schema={"$ref": reference}).is_valid(None)
    except SchemaError as e:
        raise UnsupportedPiece(f"{of}: {e.message[:MAX_REASON]}; correct the schema") from e
    except RecursionError as e:
        raise UnsupportedPiece(f"{of}: $ref {reference[:MAX_REASON]!r} leads back to itself; correct the schema") from e
    return validator


def _references(schema: Any) -> Iterator[str]:
    """Yield each reference in a schema to a part of it."""
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference
        schema = schema.values()
    elif not isinstance(schema, list):
        return
    for part in schema:
        yield from _references(part)


def _validate(validator: Any, value: Any, of: str) -> None:
    """Check a value against a schema.

    Raises:
        UnusableAnswer: the value is not valid, or the schema refers to a schema that is not here.
    """
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        error = best_match(validator.iter_errors(value))
    except Unresolvable as e:
        raise UnusableAnswer(f"{of}: its schema refers to {str(e)[:MAX_REASON]}, which is not in the schema") from e
    if error is not None:
        raise UnusableAnswer(f"{of} does not follow its schema at {error.json_path}: {error.message[:MAX_REASON]}")
