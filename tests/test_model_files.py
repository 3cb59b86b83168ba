"""Tests for the fingerprint of a model in a local folder: other weights are another model, and a copy is the same."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import ManifestWriter, Voxbatch
from whisper_base import needs_tiny_en

from voxbatch.engines.known_models import bundled_folder
from voxbatch.engines.model_files import SAMPLE_BYTES, SAMPLES, WHOLE_FILE_BYTES, fingerprint

PATTERNS = ("*.json", "model*.safetensors")
LARGE = 3 * WHOLE_FILE_BYTES


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a folder with a small file, a large one, and one that no engine reads."""
    (folder := tmp_path / "model").mkdir()
    (folder / "config.json").write_text('{"size": 1}')
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(LARGE)
    (folder / "notes.txt").write_text("mine")
    return folder


def test_copy_has_the_same_fingerprint(model: Path, tmp_path: Path) -> None:
    """Times, the folder's name and other files do not matter."""
    shutil.copytree(model, tmp_path / "copy")
    os.utime(tmp_path / "copy" / "model.safetensors", (0, 0))
    (tmp_path / "copy" / "notes.txt").write_text("yours")
    assert fingerprint(tmp_path / "copy", PATTERNS) == fingerprint(model, PATTERNS)


def test_other_bytes_have_another_fingerprint(model: Path) -> None:
    """A byte of a small file, and a byte at the start, at the end or in a sample of a large one, count; so do a file's
    name and size, and one file more.
    """
    seen = [fingerprint(model, PATTERNS)]

    def check() -> None:
        seen.append(fingerprint(model, PATTERNS))
        assert len(set(seen)) == len(seen)

    (model / "config.json").write_text('{"size": 2}')
    check()
    for at in (0, LARGE - 1, *((LARGE - SAMPLE_BYTES) * number // SAMPLES for number in (1, 64, SAMPLES - 1))):
        with (model / "model.safetensors").open("r+b") as file:
            file.seek(at)
            file.write(b"x")
        check()
    os.truncate(model / "model.safetensors", LARGE + 1)
    check()
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    check()
    (model / "tokenizer.json").write_text("{}")
    check()


@needs_tiny_en
def test_model_that_was_replaced_does_not_continue_a_run(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """A run whose local model was replaced by another one under the same name is refused. So is one that was begun by a
    version of voxbatch that did not record the files. A copy of the same files continues.
    """
    origin = bundled_folder()
    assert origin is not None
    shutil.copytree(origin, model := tmp_path / "whisper.en")
    options = ("-o", tmp_path / "out", "--engine", "faster-whisper", "--model", model, "--log-format", "text")
    path = manifest(0.5)
    assert voxbatch("run", path, *options).returncode == 0
    shutil.rmtree(model)
    shutil.copytree(origin, model, copy_function=shutil.copy)
    assert voxbatch("run", path, *options).returncode == 0
    with (model / "config.json").open("a") as file:
        file.write(" ")
    refused = voxbatch("run", path, *options)
    assert refused.returncode == 2
    assert "decoding model_files was " in refused.stderr
    run_file = tmp_path / "out" / "run.json"
    stored = json.loads(run_file.read_text())
    del stored["identity"]["decoding"]["model_files"]
    run_file.write_text(json.dumps(stored))
    refused = voxbatch("run", path, *options)
    assert refused.returncode == 2
    assert "decoding model_files was not given, and is " in refused.stderr
