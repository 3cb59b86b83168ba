"""Tests for the kinds of work: the core names none of them, and lives without their folders."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT, environment

from voxbatch.work import ADDITIONS, KINDS

PACKAGE = ROOT / "voxbatch"
ENGINES = ROOT / "tests" / "support" / "engines"
RECORDING = str(ROOT / "examples" / "recordings" / "weather.flac")
FOLDERS = sorted({path.parent.name for path in (PACKAGE / "works").glob("*/__init__.py")} - {"transcribe"})
OPTIONS = {"align": ("--task", "align"), "cascade": ("--cascade", "a,b"), "speakers": ("--speakers", "2")}
"""Options of `run` that ask for a kind of work."""
KIND_NAMES = {*KINDS, *ADDITIONS}
CONSTANTS = {"ALIGN", "ASK", "SPEAK", "SPLIT"}
"""Values of settings that make a run one of a kind."""
SETTINGS = {kind.setting for kind in (*KINDS.values(), *ADDITIONS.values())} - {"task"} | {"cascade_models"}
"""Settings that make a run one of a kind, and what is derived from them."""
OWNERS = re.compile(r"_?(options|config|settings|run|task|identity|policy)$")
"""Names of objects that have settings of a run."""
OF_THE_CORE = {"questions", "speech", "cascade"}
"""Settings that are fields of nothing else: also `self.cascade` is one."""
IN_FORMATS = {"channels", "language", "speakers"}
"""Words that are also keys of the formats of others."""
PREDICATES = {"speaks", "asks", "aligns", "is_speech", "has_second_pass"}
ELSEWHERE = ("works/", "vllm/engine/families/")
"""Folders that know kinds: the kinds themselves, and the families of vLLM, each of which does one kind."""
MOST = 0
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
    match node:
        case ast.Name(id=name):
            return name in CONSTANTS | PREDICATES
        case ast.Attribute(attr=name, value=ast.Name(id=owner) | ast.Attribute(attr=owner)):
            is_setting = name in SETTINGS and bool(OWNERS.fullmatch(owner))
            return name in CONSTANTS | PREDICATES or is_setting or (owner == "self" and name in OF_THE_CORE)
        case ast.Call(func=ast.Attribute(attr="get", value=owner), args=[ast.Constant(value=name), *_]):
            return name in SETTINGS and bool(OWNERS.search(ast.unparse(owner)))
        case ast.Constant(value=name):
            return name in (KIND_NAMES | SETTINGS) - IN_FORMATS
    return False


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
        "x = a or config.get('channels')",
        "match kind:\n    case 'ask': pass",
    ],
)
def test_branches_are_noticed(text: str) -> None:
    """The count sees each form of a branch."""
    assert branches(text)


def copy_without(folder: str, place: Path, *further: str) -> None:
    """Copy voxbatch, without a folder, and further files and folders of the checkout to `place`."""
    for name in ("voxbatch", *further):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place / name)
    shutil.rmtree(place / "voxbatch" / folder)


def without(folder: str, place: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return the command of a copy of voxbatch in `place` that lacks a folder."""
    copy_without(folder, place)

    def voxbatch(*arguments: str) -> subprocess.CompletedProcess[str]:
        command, env = [sys.executable, "-m", "voxbatch", *arguments], environment(PYTHONPATH=f"{place}:{ENGINES}")
        return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)

    return voxbatch


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_core_lives_without_the_folder_of_a_kind(folder: str, tmp_path: Path) -> None:
    """A kind's command is gone without its folder, and everything else transcribes, merges and reads OUT."""
    voxbatch = without(f"works/{folder}", tmp_path)
    commands = re.findall(r"^  ([a-z]+) ", voxbatch("--help").stdout, re.MULTILINE)
    assert folder not in commands
    assert {*KINDS, "run"} - {folder} <= {*commands}
    for arguments in (
        ("run", RECORDING, "-o", "out", "--engine", "scripted", "--formats", "srt", "-q"),
        ("status", "out"),
        ("merge", "out", "--formats", "txt"),
        ("submit", "--help"),
    ):
        done = voxbatch(*arguments)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "srt" / "weather.srt").read_text()
    if option := OPTIONS.get(folder):
        done = voxbatch("run", RECORDING, "-o", "other", "--engine", "scripted", *option)
        assert (done.returncode, "this installation of voxbatch cannot do" in done.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "commands", "refused"),
    [
        ("vllm", {"serve"}, ("run", RECORDING, "-o", "other", "--engine", "vllm")),
        ("clouds", {"submit", "listen"}, ("submit", "gs://bucket/list.jsonl")),
        ("stores", set(), ("run", "https://127.0.0.1:1/a.wav", "-o", "other", "--engine", "scripted")),
    ],
)
def test_the_core_lives_without_a_folder(
    folder: str, commands: set[str], refused: tuple[str, ...], tmp_path: Path
) -> None:
    """Commands are gone without their folder (vLLM, the clouds or the clients of stores), what needs it is refused, and
    everything else works."""
    voxbatch = without(folder, tmp_path)
    shown = {*re.findall(r"^  ([a-z]+) ", voxbatch("--help").stdout, re.MULTILINE)}
    assert not shown & commands
    assert {"run", "status", "doctor"} <= shown
    for arguments in (
        ("run", RECORDING, "-o", "out", "--engine", "scripted", "--formats", "srt", "-q"),
        ("status", "out"),
        ("merge", "out", "--formats", "txt"),
        ("doctor",),
        ("models",),
    ):
        done = voxbatch(*arguments)
        assert done.returncode == 0, done.stderr
    done = voxbatch(*refused)
    assert (done.returncode != 0, "Traceback" in done.stderr, done.stderr.strip() != "") == (True, False, True)


CORE_ALONE = [pytest.param("clouds", marks=pytest.mark.slow)] + [
    pytest.param(folder, marks=pytest.mark.long)
    for folder in ("vllm", "stores", *(f"works/{folder}" for folder in FOLDERS))
]
"""Folders without which the tests of the core pass: one in each run of all tests, the others in `make test-long`."""


@pytest.mark.parametrize("folder", CORE_ALONE)
def test_the_tests_of_the_core_pass_without_a_folder(folder: str, tmp_path: Path) -> None:
    """The fast tests of the core pass in a copy of the checkout that lacks a folder."""
    copy = tmp_path / "voxbatch"
    copy.mkdir()
    copy_without(folder, copy, "tests", "examples", "docs", "jobs", "pyproject.toml", "README.md")
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/core"]
    done = subprocess.run(
        [*pytest_command, "-n2", "-m", "not slow and not long"],
        cwd=copy,
        env=environment(PYTHONPATH=str(copy)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
