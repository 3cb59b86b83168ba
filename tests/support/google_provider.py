"""The schema of Terraform's provider for Google Cloud, version 6.50, as HashiCorp's bindings for Python publish it.

The bindings have a class for each resource and for each nested block, whose parameters are the arguments: one without a
default is required. The classes are read, not run.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from terraform import META, Block, Resource

PACKAGE = "cdktf-cdktf-provider-google==16.12.1"
"""The last bindings that HashiCorp published; 47 MB."""
FOLDER = "cdktf_cdktf_provider_google"

Parameters = dict[str, tuple[str, bool]]
"""The type and whether it is required, by the name of the argument."""


class Unavailable(Exception):
    """The bindings cannot be downloaded."""


class Provider:
    """The resources and data sources of the provider."""

    def __init__(self, folder: Path):
        """Download the bindings into a folder.

        Raises:
            Unavailable: pip cannot download them.
        """
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise Unavailable(done.stderr.strip())
        (wheel,) = folder.glob("*.whl")
        self._wheel = zipfile.ZipFile(wheel)

    def faults(self, resource: Resource) -> list[str]:
        """Return the unknown, missing and misplaced arguments and blocks of a resource."""
        classes = self._classes(resource)
        if not classes:
            return [f"{resource.address}: no such resource"]
        body = resource.body
        arguments = {key: text for key, text in body.arguments.items() if key not in META}
        parameters = {name: _parameters(each) for name, each in classes.items()}
        return list(
            _faults(parameters, next(iter(classes)), Block(body.name, arguments, body.blocks), resource.address)
        )

    def attributes(self, resource: Resource) -> set[str]:
        """Return the names of a resource's attributes, computed ones included."""
        cls = next(iter(self._classes(resource).values()))
        return {each.name for each in cls.body if isinstance(each, ast.FunctionDef)}

    def _classes(self, resource: Resource) -> dict[str, ast.ClassDef]:
        """Return the class of a resource and, after it, those of its blocks, whose names start with its name."""
        name = f"data_{resource.type}" if resource.mode == "data" else resource.type.removeprefix("google_")
        path = f"{FOLDER}/{name}/__init__.py"
        if path not in self._wheel.namelist():
            return {}
        module = ast.parse(self._wheel.read(path))
        return {each.name: each for each in module.body if isinstance(each, ast.ClassDef)}


def _parameters(cls: ast.ClassDef) -> Parameters:
    for each in cls.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            pairs = zip(each.args.kwonlyargs, each.args.kw_defaults, strict=True)
            return {a.arg: (ast.unparse(a.annotation) if a.annotation else "", default is None) for a, default in pairs}
    return {}


def _faults(classes: dict[str, Parameters], name: str, block: Block, where: str) -> Iterator[str]:
    parameters, root = classes[name], next(iter(classes))
    nested = {key: found[1] for key, (kind, _) in parameters.items() if (found := re.search(rf"'({root}\w+)'", kind))}
    given = {each.name for each in block.blocks}
    for key in block.arguments:
        if key not in parameters:
            yield f"{where}.{key}: no such argument; there are {', '.join(sorted(parameters))}"
        elif key in nested:
            yield f"{where}.{key}: a block, not an argument"
    for each in block.blocks:
        if each.name not in nested:
            yield f"{where}.{each.name}: no such block"
        else:
            yield from _faults(classes, nested[each.name], each, f"{where}.{each.name}")
    for key in {each.name for each in block.blocks if "Sequence" not in parameters.get(each.name, ("",))[0]}:
        if sum(each.name == key for each in block.blocks) > 1:
            yield f"{where}.{key}: only one of these blocks is allowed"
    required = {key for key, (_, needed) in parameters.items() if needed}
    yield from (f"{where}.{key}: required" for key in sorted(required - given - set(block.arguments)))
