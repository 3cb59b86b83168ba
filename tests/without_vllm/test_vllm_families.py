"""The vLLM engine asks a family what it needs, and never which family it is or which task it does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from voxbatch.vllm.engine.families.choice import FAMILIES, FOR_TASKS

VLLM = ROOT / "voxbatch" / "vllm"
CLASSES = {family.__name__ for family in (*FAMILIES.values(), *FOR_TASKS.values())}
KINDS = {"REALTIME", "INSTRUCT", "WHISPER", "TRANSCRIPTION", "SPEECH", "TRANSCRIBE", "ASK", "SPEAK"}
"""The constants that name families and tasks."""
NAMES = {"realtime", "instruct", "whisper", "transcription", "speech", "transcribe", "ask", "speak"}
FLAGS = {"asks", "speaks", "transcribes", "is_realtime", "is_instruct", "is_voxtral", "is_speech"}
HOLDERS = {"family", "task"}
"""Names of variables and attributes that hold a family or a task."""


def named(node: ast.AST) -> str:
    """Return the name of a variable, the last name of an attribute, or a literal text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return getattr(node, "id", "") or getattr(node, "attr", "")


def conditions(node: ast.AST) -> list[ast.expr]:
    """Return the expressions by whose truth a node decides."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return node.ifs
    if isinstance(node, ast.BoolOp):
        return node.values
    return [node.operand] if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else []


def questions(code: str) -> Iterator[int]:
    """Yield the line of each place that asks which family or task it is: by a comparison, class, flag or table."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Compare):
            operands = [part for operand in (node.left, *node.comparators) for part in ast.walk(operand)]
            asked = any(named(part) in KINDS | NAMES for part in operands)
            asked |= any(named(operand) in HOLDERS for operand in (node.left, *node.comparators))
            if asked and not any(isinstance(part, ast.Constant) and part.value is None for part in operands):
                yield node.lineno
        elif isinstance(node, ast.Subscript) and named(node.slice) in HOLDERS:
            yield node.lineno
        elif isinstance(node, ast.match_case):
            yield from (node.pattern.lineno for part in ast.walk(node.pattern) if named(part) in KINDS | NAMES)
        elif isinstance(node, ast.Call) and named(node.func) in {"isinstance", "issubclass"}:
            yield from (node.lineno for part in ast.walk(node.args[1]) if named(part) in CLASSES)
        yield from (condition.lineno for condition in conditions(node) if named(condition) in FLAGS)


def outside() -> list[Path]:
    """Return the modules of the vLLM engine, of its plugin and of its server that are no family."""
    families = VLLM / "engine" / "families"
    return sorted(path for path in VLLM.rglob("*.py") if families not in path.parents)


@pytest.mark.parametrize("path", outside(), ids=lambda path: str(path.relative_to(VLLM)))
def test_no_module_asks_which_family_it_is(path: Path) -> None:
    """Outside `families/`, no condition, comparison or table names a family or a task."""
    assert list(questions(path.read_text())) == []


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("if model.family == SPEECH: pass", 1),
        ("x = 1 if settings.task != ASK else 2", 1),
        ("x = family in (REALTIME, SPEECH)", 1),
        ("x = PROFILES[model.family]", 1),
        ("if asks and not speaks: pass", 2),
        ("if kind == 'realtime': pass", 1),
        ("match x:\n    case 'ask': pass", 1),
        ("if isinstance(family, Realtime): pass", 1),
        ("if family is None: pass", 0),
        ("family_of(model.family, settings.task).check(settings)", 0),
        ("if settings.watch: pass", 0),
    ],
)
def test_each_form_of_the_question_is_noticed(code: str, count: int) -> None:
    """Comparisons, classes, flags, tables and patterns count once each; a call of a family's method does not."""
    assert len(list(questions(code))) == count
