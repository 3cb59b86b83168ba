"""Tests for the layers: imports go strictly down and form no circle, and no heavy library is imported before it is
needed. Test modules import from tests/support, never from each other.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import cast

import pytest
from conftest import ROOT, environment

PACKAGE = ROOT / "voxbatch"

LAYERS = (
    ("failure_kinds",),
    ("errors", "hints", "languages", "parts", "safe_text", "__init__"),
    ("frame_rate", "onnx_runtime", "rounding", "settings", "shared_samples", "views", "word"),
    ("log", "records", "work"),
    ("process", "speech", "storage", "voice"),
    ("stores",),
    (
        "audio",
        "formats",
        "manifest",
        "prices",
        "text",
    ),
    ("sources",),
    ("config",),
    ("profiles",),
    ("engines", "scoring"),
    ("transducers", "vllm"),
    ("onnx_asr",),
    ("speakers",),
    ("decoding", "report"),
    ("output",),
    ("analysis", "doctor", "runner"),
    ("display",),
    ("api",),
    ("platforms", "ray"),
    ("cli",),
    ("clouds",),
    ("works",),
    ("__main__",),
)
"""The layers, lowest first. A package may import only from lower layers and from itself."""
HEAVY = (
    "torch", "vllm", "google.cloud", "boto3", "botocore", "librosa", "faster_whisper", "ctranslate2", "onnxruntime",
    "jinja2", "pygal", "soundfile", "numpy", "soxr", "rapidfuzz", "rich", "tenacity", "yaml", "urllib3", "opencc",
)  # fmt: skip

LAYER_OF = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}
INTERFACES = ("voxbatch", "voxbatch.output.products")
"""Modules whose type hints name what uses them: the Python interface, and what a kind of work writes into OUT."""


def package_of(dotted: str) -> str:
    """Return the package or module below voxbatch: "voxbatch.engines.feed" → "engines", "voxbatch" → "__init__"."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def dotted_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {dotted_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def modules_of(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the modules that an import names: "from voxbatch.text import chunking, Words" names the module
    voxbatch.text.chunking, and the package for `Words`.
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    package = node.module or ""
    names = (f"{package}.{alias.name}" for alias in node.names)
    return [name if name in MODULES else package for name in names]


def imports(path: Path) -> Iterator[str]:
    """Yield the modules of voxbatch that a module imports, including lazy imports and imports for type checking."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.Import) or node.level == 0, f"{path}: relative imports hide the package"
            yield from (name for name in modules_of(node) if name in MODULES)


def hint_blocks(tree: ast.Module) -> list[ast.If]:
    """Return the blocks of a module that only a type checker reads."""
    return [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]


def hints(path: Path) -> set[str]:
    """Return the modules that a module imports for type checking alone."""
    blocks = hint_blocks(ast.parse(path.read_text()))
    return {name for block in blocks for node in block.body for name in modules_of(cast(ast.ImportFrom, node))}


def test_every_module_belongs_to_a_package_of_the_table() -> None:
    """Every package is in the table, which decides its layer, and every entry of the table exists."""
    assert {package_of(name) for name in MODULES} == set(LAYER_OF)


# The package itself names the Python interface, and imports it only when it is used: see the next tests.
@pytest.mark.parametrize("module", [name for name in MODULES if name != "voxbatch"])
def test_imports_go_down(module: str) -> None:
    """A package imports from lower layers and from itself, never from its own or a higher layer."""
    package = package_of(module)
    wrong = [
        name
        for name in imports(MODULES[module])
        if package_of(name) != package and LAYER_OF[package_of(name)] >= LAYER_OF[package]
    ]
    assert not wrong, f"{module} imports {wrong}"


def test_no_modules_import_each_other() -> None:
    """The imports of the modules form no circle. Lazy imports count, and imports for type checking, except those of
    INTERFACES.
    """
    graph = {
        name: set(imports(path)) - {name} - (hints(path) if name in INTERFACES else set())
        for name, path in MODULES.items()
    }
    list(TopologicalSorter(graph).static_order())  # a CycleError names the modules of a circle


def test_the_check_can_fail() -> None:
    """The check finds an import that goes up, also a lazy one."""
    found = set(imports(MODULES["voxbatch.cli.out_commands"]))
    assert {"voxbatch.output.merge_again", "voxbatch.storage", "voxbatch.errors"} <= found
    assert "voxbatch.sources.manifest_file" in imports(MODULES["voxbatch.sources.references"])
    assert LAYER_OF[package_of("voxbatch.runner.prepare")] > LAYER_OF[package_of("voxbatch.engines.feed")]


def imports_at(path: Path) -> tuple[set[str], list[set[str]]]:
    """Return the modules that a module imports when it is imported, and those of each import inside a function."""
    tree = ast.parse(path.read_text())
    lazy = [
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    hidden = {id(node) for block in hint_blocks(tree) for node in block.body} | set(map(id, lazy))
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    at_once = {name for node in statements if id(node) not in hidden for name in modules_of(node)}
    return at_once, [set(modules_of(node)) for node in lazy]


def test_an_import_inside_a_function_delays_something() -> None:
    """A module that is loaded anyhow is imported at the top."""
    at_once = {name: imports_at(path)[0] for name, path in MODULES.items()}

    def loaded_with(module: str) -> set[str]:
        loaded, waiting = set[str](), [module]
        while waiting:
            parts = waiting.pop().split(".")
            for name in {".".join(parts[:count]) for count in range(1, len(parts) + 1)} - loaded:
                loaded.add(name)
                waiting += at_once.get(name, ())
        return loaded

    useless = [
        f"{module}: {sorted(names)}"
        for module, path in MODULES.items()
        if (lazy := imports_at(path)[1])
        for loaded in [loaded_with(module)]
        for names in lazy
        if names <= loaded
    ]
    assert not useless


def test_no_two_public_classes_have_one_name() -> None:
    """A name of a class means one thing in the whole package."""
    owners: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in owners.items() if len(modules) > 1}


def test_functions_are_short() -> None:
    """No function has more than 80 lines."""
    functions = [
        (module, node)
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert not [f"{module}.{node.name}" for module, node in functions if (node.end_lineno or 0) - node.lineno >= 80]


def test_no_test_module_imports_another_one() -> None:
    """Test modules share code by tests/support only."""
    tests = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    wrong = [path.name for path, text in tests.items() if re.search(r"^\s*(from|import) +test_", text, re.MULTILINE)]
    assert not wrong


@pytest.mark.parametrize("module", ["voxbatch", "voxbatch.cli"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    """`voxbatch --help` answers at once, on a machine without the heavy libraries."""
    script = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_importing_the_package_imports_no_other_module_of_it() -> None:
    """The names of the Python interface are loaded when they are first used."""
    script = "import sys, voxbatch; print([name for name in sys.modules if name.startswith('voxbatch')])"
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("['voxbatch']\n", "")


def test_onnxruntime_is_imported_in_one_place() -> None:
    """Only the module that switches its statistics off imports onnxruntime."""
    importing = re.compile(r"^ *(?:import|from) onnxruntime", re.MULTILINE)
    modules = (ROOT / "voxbatch").rglob("*.py")
    assert [path.name for path in modules if importing.search(path.read_text())] == ["onnx_runtime.py"]
