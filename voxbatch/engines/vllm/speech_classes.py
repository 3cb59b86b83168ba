"""The classes of the installed vLLM that transcribe, by the architecture that a config.json names.

They are read from vLLM's source, because an import takes seconds, and a wrong model is refused before anything is
loaded. A class transcribes if it or a base of it has the interface `SupportsTranscription` (vLLM,
model_executor/models/interfaces.py).
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

PACKAGE, INTERFACE = "vllm.model_executor.models", "SupportsTranscription"
MENTIONS = (b"ranscri", b"supported_languages")
"""Parts of names. The module of every class that transcribes contains one of them, and few other modules do."""


def transcribes(architecture: str) -> bool:
    """Return whether the installed vLLM has a class for an architecture, and the class transcribes.

    Returns:
        False too if vLLM is not installed.
    """
    return any(name == architecture for name in _transcribing(architecture))


def all_architectures() -> list[str]:
    """Return all architectures with a class that transcribes, sorted. This takes a second."""
    return sorted(_transcribing())


def _transcribing(only: str = "") -> Iterator[str]:
    """Yield the architectures with a class that transcribes; none if vLLM is not installed.

    Args:
        only: look at this architecture alone. Empty means all.
    """
    spec = importlib.util.find_spec("vllm")
    for root in (spec and spec.submodule_search_locations) or ():
        folder = Path(root, "model_executor", "models")
        for architecture, module, name in _registered(folder / "registry.py"):
            path = folder / f"{module}.py"
            if only not in ("", architecture) or not path.is_file():
                continue
            text = path.read_bytes()
            if any(mention in text for mention in MENTIONS) and _has_interface(path, name):
                yield architecture


def _has_interface(path: Path, name: str) -> bool:
    """Return whether a class of a module, or a base of it in a module of the same folder, has the interface."""
    origins, bases = _names(path)
    return any(
        base == INTERFACE or (base in origins and _has_interface(*origins[base])) for base in bases.get(name, ())
    )


@functools.cache
def _names(path: Path) -> tuple[dict[str, tuple[Path, str]], dict[str, list[str]]]:
    """Return the module and the original name of each name that a module imports from its folder or defines as a class,
    and the bases of these classes."""
    origins, bases = dict[str, tuple[Path, str]](), dict[str, list[str]]()
    for statement in ast.parse(path.read_bytes()).body if path.is_file() else ():
        if isinstance(statement, ast.ImportFrom):
            package, _, module = (statement.module or "").rpartition(".")
            if statement.level == 1 or package == PACKAGE:
                file = path.with_name(f"{module}.py")
                origins |= {alias.asname or alias.name: (file, alias.name) for alias in statement.names}
        elif isinstance(statement, ast.ClassDef):
            origins[statement.name] = path, statement.name
            bases[statement.name] = [base.id for base in statement.bases if isinstance(base, ast.Name)]
    return origins, bases


def _registered(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the architectures of vLLM's registry, each with its module and the name of its class; none if this version
    has no such file."""
    for statement in ast.parse(path.read_bytes()).body if path.is_file() else ():
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            for key, value in zip(statement.value.keys, statement.value.values, strict=True):
                match key, value:
                    case ast.Constant(architecture), ast.Tuple([ast.Constant(module), ast.Constant(name)]):
                        yield str(architecture), str(module), str(name)
