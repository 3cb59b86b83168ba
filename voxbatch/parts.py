"""Tell which parts of voxbatch this installation has: it may lack folders that the core names in its tables alone."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent


def has(module: str) -> bool:
    """Return whether a module or a package of voxbatch is there, such as "voxbatch.vllm.engine". Nothing is imported.
    A folder that only has compiled files of a deleted package is none.
    """
    path = ROOT.joinpath(*module.split(".")[1:])
    return (path / "__init__.py").is_file() or path.with_suffix(".py").is_file()
