"""Tests for the kinds of work: the core names none of them, and lives without their folders."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from voxbatch.work import ADDITIONS, KINDS

PACKAGE = ROOT / "voxbatch"
KIND_NAMES = {*KINDS, *ADDITIONS}
CONSTANTS = {"ALIGN", "ASK", "SPEAK", "SPLIT"}
"""Values of settings that make a run one of a kind."""
SETTINGS = {kind.setting for kind in (*KINDS.values(), *ADDITIONS.values())} - {"task"} | {"cascade_models"}
"""Settings that make a run one of a kind, and what is derived from them."""
OPTIONS = re.compile(r"_?(options|config|settings|run|task|identity|policy|self)$")
"""Names of objects that have settings of a run."""
PREDICATES = {"speaks", "asks", "aligns", "is_speech", "has_second_pass"}
ELSEWHERE = ("works/", "engines/vllm/", "vllm_plugin/")
"""Folders that know kinds: the kinds themselves, and the families of vLLM, each of which does one kind."""
MOST = 22
"""Number of branches on a kind in the core."""


def conditions(tree: ast.AST) -> Iterator[ast.expr | ast.pattern]:
    """Yield what a module decides by: the conditions of if, while, match and comprehensions, and comparisons."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield node.test
        elif isinstance(node, ast.match_case):
            yield node.pattern
            if node.guard:
                yield node.guard
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.Compare | ast.BoolOp):
            yield node


def names_a_kind(node: ast.AST) -> bool:
    """Return whether a part of a condition is about a kind of work."""
    if isinstance(node, ast.Name):
        return node.id in CONSTANTS | PREDICATES
    if isinstance(node, ast.Attribute):
        owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        return node.attr in CONSTANTS | PREDICATES or (node.attr in SETTINGS and bool(OPTIONS.match(owner)))
    return isinstance(node, ast.Constant) and node.value in KIND_NAMES | SETTINGS


def branches(text: str) -> set[int]:
    """Return the lines of a module in which it branches on a kind of work."""
    return {
        condition.lineno
        for condition in conditions(ast.parse(text))
        if any(names_a_kind(node) for node in ast.walk(condition))
    }


def core() -> list[Path]:
    return [
        path for path in sorted(PACKAGE.rglob("*.py")) if not path.relative_to(PACKAGE).as_posix().startswith(ELSEWHERE)
    ]


def test_the_core_branches_on_no_kind() -> None:
    """Only a folder of `works/` knows what is special about its kind."""
    found = [f"{path.relative_to(ROOT)}:{line}" for path in core() for line in sorted(branches(path.read_text()))]
    assert len(found) <= MOST, found


@pytest.mark.parametrize(
    "text",
    [
        "if config.task == ALIGN: pass",
        "x = 1 if options.speech else 2",
        "if self.options.cascade is not None: pass",
        "names = [name for name in names if run.speaks]",
        "found = 'speech' in identity",
        "match kind:\n    case 'ask': pass",
    ],
)
def test_branches_are_noticed(text: str) -> None:
    """The count sees each form of a branch."""
    assert branches(text)
