"""Print one of this folder's JSON files with the settings filled in, on one line, so that two results can be compared.

    REGION=eu-central-1 … python3 render.py policies/run.json
    aws iam get-role-policy … | python3 render.py -            # standard input, only in the same form

The script needs only Python. ${NAME} stands for an environment variable, and $$ for $. In the pipeline, parameters of
type Integer become numbers, and each VOXBATCH_… variable of the environment is passed to the container.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

LONGEST = 256
"""Maximum characters of a variable's value in SageMaker."""


def render(text: str, settings: Mapping[str, str]) -> Any:
    """Return the document with the settings filled in.

    Raises:
        KeyError: a setting is missing.
        SystemExit: the value of a variable is too long.
    """
    document = json.loads(Template(text).substitute(settings))
    if isinstance(document, dict) and "Steps" in document:
        _numbers(document["Parameters"])
        for step in document["Steps"]:
            step["Arguments"]["Environment"].update(_options(settings))
    return document


def canonical(document: Any) -> str:
    """Return a document as JSON on one line, with sorted keys."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _numbers(parameters: list[dict[str, Any]]) -> None:
    for each in parameters:
        if each["Type"] == "Integer":
            each["DefaultValue"] = int(each["DefaultValue"])


def _options(settings: Mapping[str, str]) -> dict[str, str]:
    options = {name: value for name, value in settings.items() if name.startswith("VOXBATCH_") and value}
    for name, value in options.items():
        if len(value) > LONGEST:
            raise SystemExit(f"{name} has {len(value)} characters; SageMaker takes {LONGEST}")
    return options


def main(name: str) -> None:
    if name == "-":
        found = json.loads(sys.stdin.read() or "{}")
        print(canonical(json.loads(found) if isinstance(found, str) else found))
    else:
        print(canonical(render(Path(name).read_text(encoding="utf-8"), os.environ)))


if __name__ == "__main__":
    main(sys.argv[1])
