"""Offline checks by the real gcloud, run by gcloud's own Python with its lib folders as arguments.

The script reads a JSON object from standard input and writes a list of faults:
- "commands": command lines, checked by gcloud's own parser for unknown commands and flags, missing arguments, bad
  values;
- "shown": the fake gcloud's output of resources, compared with gcloud's own printer.
"""

from __future__ import annotations

import io

# ruff: noqa: E402 -- the arguments name the folders of its libraries
import json
import sys
from typing import Any

sys.path[:0] = sys.argv[1:]

from googlecloudsdk import gcloud_main
from googlecloudsdk.calliope import display_taps, parser_extensions
from googlecloudsdk.core.resource import resource_printer
from googlecloudsdk.core.util import peek_iterable


class Refused(Exception):
    pass


def refuse(parser: Any, status: int = 0, message: str | None = None, exception: Exception | None = None) -> None:
    """Raise instead of ending the process; replaces the parser's `exit`."""
    raise Refused(exception or message)


def parsed(argv: list[str]) -> str | None:
    """Return None, or the reason for which gcloud refuses this command line."""
    try:
        PARSER.parse_args(list(argv))
    except Exception as e:  # noqa: BLE001 -- any exception is the answer
        return f"{' '.join(argv)}: {e}"
    return None


def shown(each: dict[str, Any]) -> str | None:
    """Return None, or the difference between gcloud's output of a resource and the fake's."""
    out = io.StringIO()
    resources = each["resource"] if isinstance(each["resource"], list) else [each["resource"]]
    if key := each["flags"].get("flatten", "").removesuffix("[]"):  # as calliope.display flattens
        path: list[str] = []
        for part in key.split("[]."):
            path += part.split(".")
            resources = list(peek_iterable.Tapper(iter(resources), display_taps.Flattener(path)))
    resource_printer.Print(resources, each["flags"]["format"], out=out)
    if out.getvalue().strip() != each["out"].strip():
        return f"{each['flags']['format']}: gcloud shows {out.getvalue()!r}, the stand-in {each['out']!r}"
    return None


parser_extensions.ArgumentParser.exit = refuse
PARSER = gcloud_main.CreateCLI([])._CLI__parser
asked = json.load(sys.stdin)
complaints = [parsed(argv) for argv in asked.get("commands", [])]
complaints += [shown(each) for each in asked.get("shown", [])]
json.dump([c for c in complaints if c], sys.stdout)
