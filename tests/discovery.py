"""Holds documents against Google's discovery documents, which say what each of its APIs takes.

They come with google-api-python-client. Stricter than the APIs: a field that is not known, or a value of another type,
is a complaint, and so is the lack of one whose description begins with "Required".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

Schema = dict[str, Any]
REQUIRED = re.compile(r"required(?! if)", re.IGNORECASE)


@cache
def document(name: str) -> Schema:
    """`run.v2` → its discovery document."""
    path = resources.files("googleapiclient") / "discovery_cache" / "documents" / f"{name}.json"
    found: Schema = json.loads(path.read_text(encoding="utf-8"))
    return found


def method(name: str, id: str) -> Schema:
    """`run.projects.locations.jobs.run` → what it takes."""
    here = document(name)
    *path, last = id.split(".")[1:]
    for part in path:
        here = here["resources"][part]
    found: Schema = here["methods"][last]
    return found


def complaints(api: str, schema: str, value: Any) -> list[str]:
    """What is wrong with a value, by the schema of that name; empty if nothing is."""
    schemas = document(api)["schemas"]
    return list(_check(schemas, schemas[schema], value, schema))


def _check(schemas: Schema, schema: Schema, value: Any, where: str) -> Iterator[str]:
    if "$ref" in schema:
        schema = schemas[schema["$ref"]]
    if schema["type"] == "object":
        yield from _check_object(schemas, schema, value, where)
    elif schema["type"] == "array":
        if not isinstance(value, list):
            yield f"{where}: a list, not {value!r}"
            return
        for i, each in enumerate(value):
            yield from _check(schemas, schema["items"], each, f"{where}[{i}]")
    elif not _fits(schema, value):
        yield f"{where}: {schema.get('format', schema['type'])}, not {value!r}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{where}: one of {schema['enum']}, not {value!r}"


def _check_object(schemas: Schema, schema: Schema, value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: an object, not {value!r}"
        return
    fields, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, each in value.items():
        if name in fields:
            yield from _check(schemas, fields[name], each, f"{where}.{name}")
        elif others is not None:
            yield from _check(schemas, others, each, f"{where}.{name}")
        else:
            yield f"{where}.{name}: no such field; there are {', '.join(sorted(fields))}"
    needed = {name for name, each in fields.items() if REQUIRED.match(each.get("description", ""))}
    yield from (f"{where}.{name}: required" for name in sorted(needed - set(value)))


def _fits(schema: Schema, value: Any) -> bool:
    kind, form = schema["type"], schema.get("format")
    if kind == "any":
        return True
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "integer" or (kind == "string" and form in ("int64", "uint64")):  # JSON has no int64: it travels as text
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, str)
