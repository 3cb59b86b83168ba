"""Checks of documents and requests against Google's discovery documents, which describe the input of its APIs.

The documents come with google-api-python-client. The checks are stricter than the APIs: an unknown field, a field that
only the server sets, a value of another type, and a missing field whose description starts with "Required" are each a
fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Schema = dict[str, Any]
REQUIRED = re.compile(r"required(?! if| for some)", re.IGNORECASE)
TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "number": (int, float),
    "array": list,
    "object": dict,
}
FORMATS = {"int64": r"-?\d+", "uint64": r"\d+", "google-duration": r"-?\d+(\.\d{1,9})?s"}
"""Patterns of string formats. JSON has no int64, so that it is sent as a string; a number is accepted, too."""


@cache
def api(name: str) -> Api:
    """Return the API of this name, such as `run.v2`."""
    path = resources.files("googleapiclient") / "discovery_cache" / "documents" / f"{name}.json"
    return Api(json.loads(path.read_text(encoding="utf-8")))


class Api:
    """The methods and schemas of one discovery document."""

    def __init__(self, document: Schema):
        self._parameters: Schema = document["parameters"]
        self._schemas: Schema = document["schemas"]
        self._methods = {each["id"]: each for each in _methods(document)}

    def method(self, id: str) -> Schema:
        """Return the parameters, request and response of a method such as `run.projects.locations.jobs.run`."""
        found: Schema = self._methods[id]
        return found

    def schema(self, name: str) -> Schema:
        """Return the schema of that name."""
        found: Schema = self._schemas[name]
        return found

    def called(self, verb: str, path: str) -> Schema | None:
        """Return the method that a request calls, found by verb and path as on the server; None if there is none."""
        return next((each for each in self._methods.values() if _is_called(each, verb, path)), None)

    def faults(self, value: Any, schema: str, *, sent: bool = True) -> list[str]:
        """Return the faults of a value by the schema of that name.

        Args:
            sent: the value comes from a client, not from the server.
        """
        return list(self._faults(value, self._schemas[schema], schema, sent))

    def faults_of_request(self, verb: str, path: str, body: bytes) -> list[str]:
        """Return the faults of a request; its method is found by verb and path, as on the server."""
        parts = urlsplit(path)
        called = self.called(verb, parts.path)
        if called is None:
            return [f"{verb} {parts.path}: no such method"]
        known = {*called["parameters"], *self._parameters, "$alt"}
        unknown = [f"?{name}: unknown" for name, _ in parse_qsl(parts.query) if name not in known]
        if "request" not in called:
            return unknown + (["a body where none is taken"] if body else [])
        return unknown + self.faults(json.loads(body), called["request"]["$ref"])

    def _faults(self, value: Any, schema: Schema, where: str, sent: bool) -> Iterator[str]:
        schema = self._schemas[schema["$ref"]] if "$ref" in schema else schema
        kind, form = schema["type"], schema.get("format", "")
        if kind == "any":
            return
        if kind == "string" and form.endswith("int64") and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, TYPES[kind]) or (kind != "boolean" and isinstance(value, bool)):
            yield f"{where}: {form or kind}, not {value!r}"
        elif kind == "object":
            yield from self._faults_of_object(value, schema, where, sent)
        elif kind == "array":
            for i, each in enumerate(value):
                yield from self._faults(each, schema["items"], f"{where}[{i}]", sent)
        elif "enum" in schema and value not in schema["enum"]:
            yield f"{where}: one of {schema['enum']}, not {value!r}"
        elif form in FORMATS and not re.fullmatch(FORMATS[form], value):
            yield f"{where}: {form}, not {value!r}"

    def _faults_of_object(self, value: Schema, schema: Schema, where: str, sent: bool) -> Iterator[str]:
        fields = schema.get("properties", {})
        for name, each in value.items():
            field = fields.get(name, schema.get("additionalProperties"))
            if field is None:
                yield f"{where}.{name}: no such field; there are {', '.join(sorted(fields))}"
            elif sent and field.get("readOnly"):
                yield f"{where}.{name}: the server's own"
            else:
                yield from self._faults(each, field, f"{where}.{name}", sent)
        needed = {name for name, field in fields.items() if REQUIRED.match(field.get("description", ""))}
        yield from (f"{where}.{name}: required" for name in sorted(needed - set(value)) if sent)


def _methods(node: Schema) -> Iterator[Schema]:
    yield from node.get("methods", {}).values()
    for each in node.get("resources", {}).values():
        yield from _methods(each)


def _is_called(method: Schema, verb: str, path: str) -> bool:
    form: str = method.get("flatPath") or method["path"]
    pattern = re.sub(r"\\\{[A-Za-z]+\\\}", "[^/:]+", re.escape(form))
    return bool(method["httpMethod"] == verb and re.fullmatch(pattern, path.lstrip("/")))
