"""The classes of the installed vLLM that transcribe, by the architecture that a config.json names.

They are read from vLLM's source, because an import takes seconds, and a wrong model is refused before anything is
loaded. A class transcribes if it or a base of it has the interface `SupportsTranscription` (vLLM,
model_executor/models/interfaces.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from voxbatch.vllm_plugin import vllm_source

MODELS = "vllm.model_executor.models"
MENTIONS = (b"ranscri", b"supported_languages")
"""Parts of names. The source of every class with the interface contains one of them, and few other modules do."""


def transcribes(architecture: str) -> bool:
    """Return whether the installed vLLM has a class for an architecture, and the class transcribes.

    Returns:
        False too if vLLM is not installed.
    """
    root = vllm_source.installed("vllm")
    return root is not None and any(name == architecture for name in _transcribing(root, architecture))


def all_architectures() -> list[str]:
    """Return all architectures with a class that transcribes, sorted. This takes a second."""
    root = vllm_source.installed("vllm")
    return sorted(_transcribing(root)) if root else []


def _transcribing(root: Path, only: str = "") -> Iterator[str]:
    """Yield the architectures with a class that transcribes.

    Args:
        root: the folder that holds the package vllm.
        only: look at this architecture alone. Empty means all.
    """
    source, folder = vllm_source.Source(root), root.joinpath(*MODELS.split("."))
    for architecture, module, name in _registered(folder / "registry.py"):
        if only not in ("", architecture) or not (path := folder / f"{module}.py").is_file():
            continue
        text = path.read_bytes()
        mentions = any(mention in text for mention in MENTIONS)
        if mentions and "supports_transcription" in source.members(f"{MODELS}.{module}:{name}"):
            yield architecture


def _registered(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the architectures of vLLM's registry, each with its module and the name of its class; none if this version
    has no such file."""
    for statement in ast.parse(path.read_bytes()).body if path.is_file() else ():
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            for key, value in zip(statement.value.keys, statement.value.values, strict=True):
                match key, value:
                    case ast.Constant(architecture), ast.Tuple([ast.Constant(module), ast.Constant(name)]):
                        yield str(architecture), str(module), str(name)
