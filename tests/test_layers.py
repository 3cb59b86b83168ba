"""Tests for the layers: imports go strictly down, and no heavy library is imported before it is needed. Test modules
import from tests/support, never from each other.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, environment

PACKAGE = ROOT / "voxbatch"

LAYERS = (
    ("failure_kinds",),
    ("errors", "languages", "safe_text", "__init__"),
    ("rounding", "settings", "shared_samples", "word"),
    ("log", "records", "work"),
    ("process", "speech", "storage", "vllm_plugin", "voice"),
    (
        "audio",
        "formats",
        "manifest",
        "prices",
        "text",
    ),
    ("config",),
    ("profiles",),
    ("engines", "scoring"),
    ("speakers",),
    ("decoding", "report"),
    ("output",),
    ("analysis", "doctor", "runner"),
    ("api", "display"),
    ("platforms", "ray"),
    ("cli",),
    ("works",),
    ("__main__",),
)
"""The layers, lowest first. A package may import only from lower layers and from itself."""
HEAVY = (
    "torch", "vllm", "google.cloud", "boto3", "botocore", "librosa", "faster_whisper", "ctranslate2", "onnxruntime",
    "jinja2", "pygal", "soundfile", "numpy", "soxr", "rapidfuzz", "rich", "tenacity", "yaml", "urllib3",
)  # fmt: skip

LAYER_OF = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def package_of(dotted: str) -> str:
    """Return the package or module below voxbatch: "voxbatch.engines.feed" → "engines", "voxbatch" → "__init__"."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def dotted_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Yield the modules of voxbatch that a module imports, including lazy imports and imports for type checking."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "voxbatch")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the package"
            if node.module == "voxbatch":
                yield from (f"voxbatch.{alias.name}" if _is_package(alias.name) else "voxbatch" for alias in node.names)
            elif node.module and node.module.startswith("voxbatch."):
                yield node.module


def _is_package(name: str) -> bool:
    return (PACKAGE / f"{name}.py").exists() or (PACKAGE / name).is_dir()


def test_every_module_belongs_to_a_package_of_the_table() -> None:
    """Every package is in the table, which decides its layer, and every entry of the table exists."""
    assert {package_of(dotted_name(path)) for path in modules()} == set(LAYER_OF)


# The package itself names the Python interface, and imports it only when it is used: see the next tests.
@pytest.mark.parametrize("path", [path for path in modules() if path != PACKAGE / "__init__.py"], ids=dotted_name)
def test_imports_go_down(path: Path) -> None:
    """A package imports from lower layers and from itself, never from its own or a higher layer."""
    package = package_of(dotted_name(path))
    wrong = [
        name
        for name in imports(path)
        if package_of(name) != package and LAYER_OF[package_of(name)] >= LAYER_OF[package]
    ]
    assert not wrong, f"{dotted_name(path)} imports {wrong}"


def test_the_check_can_fail() -> None:
    """The check finds an import that goes up, also a lazy one."""
    found = set(imports(PACKAGE / "cli" / "out_commands.py"))
    assert {"voxbatch.output.merge_again", "voxbatch.storage", "voxbatch.errors"} <= found
    assert LAYER_OF[package_of("voxbatch.runner.prepare")] > LAYER_OF[package_of("voxbatch.engines.feed")]


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
