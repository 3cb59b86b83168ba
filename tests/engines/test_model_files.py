"""Tests for the models of all engines: other weights are another model, and a copy, also in a bucket, is the same."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import ctc_networks
import pytest
from conftest import ManifestWriter, Voxbatch
from servers import Place
from whisper_base import needs_tiny_en

from voxbatch import engines
from voxbatch.engines import choice, create
from voxbatch.engines.known_models import bundled_folder
from voxbatch.engines.model_files import SAMPLE_BYTES, SAMPLES, WHOLE_FILE_BYTES, fingerprint
from voxbatch.errors import ConfigError, StorageError
from voxbatch.transducers.model import locate


class Stored(NamedTuple):
    """A model of an engine in two places."""

    engine: str
    folder: Path
    address: str


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


# ── models in buckets ─────────────────────────────────────────────────────────────────────────────────────────────────

PARAKEET = {
    "config.json": '{"model_type": "parakeet_tdt"}',
    "preprocessor_config.json": "{}",
    "model.safetensors": "weights",
}
ONNX = {"config.json": '{"model_type": "nemo-conformer-ctc"}', "model.onnx": "weights", "vocab.txt": "a 0\n<blk> 1\n"}
WHISPER = {"config.json": "{}", "vocabulary.txt": "a\n", "model.bin": "weights"}
MODELS = {"transducers": PARAKEET, "onnx-asr": ONNX, "faster-whisper": WHISPER, "ctc": {}}
"""The files of a model of each engine, as far as the engine reads them before it loads the model."""


def identity_of(engine: str, model: str) -> Mapping[str, object]:
    """Return what tells a model from others."""
    if engine == "transducers":  # without PyTorch
        return locate(model).identity
    return create(engine, model, {}).spec.decoding


@pytest.fixture(params=MODELS)
def stored(request: pytest.FixtureRequest, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    """Return a model of an engine in a local folder and in a bucket, and let the cache be empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "local"
    if request.param == "ctc":
        ctc_networks.write_network(folder)
    folder.mkdir(exist_ok=True)
    for name, text in MODELS[request.param].items():
        (folder / name).write_text(text)
    for path in folder.iterdir():
        place.put(f"models/{path.name}", path.read_bytes())
    return Stored(request.param, folder, f"{place.uri}/models")


@pytest.mark.slow
def test_every_engine_takes_a_model_from_a_bucket(stored: Stored, place: Place) -> None:
    """The model is fetched once, and is the same as the one in a local folder."""
    assert identity_of(stored.engine, stored.address) == identity_of(stored.engine, str(stored.folder))
    read = place.asked("get")
    identity_of(stored.engine, stored.address)
    assert place.asked("get") - read <= 1, "only the listing"


@pytest.mark.slow
def test_a_bucket_without_the_model_is_named(stored: Stored, place: Place) -> None:
    """A folder of a bucket that has nothing, and one that has another model, are refused with their address."""
    with pytest.raises(StorageError, match=f"cannot fetch {place.uri}/nothing/: there is no object below it"):
        identity_of(stored.engine, f"{place.uri}/nothing")
    place.put("other/notes.txt", b"mine")
    with pytest.raises(ConfigError, match=f"--model {place.uri}/other: "):
        identity_of(stored.engine, f"{place.uri}/other")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (PARAKEET, "transducers"),
        ({"parakeet.nemo": "weights"}, "transducers"),
        (ONNX, "onnx-asr"),
        ({"params.json": "{}"}, "vllm"),
    ],
)
def test_auto_chooses_by_the_files_in_the_bucket(
    files: Mapping[str, str], chosen: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` looks at the names and at config.json, fetches no weights, and writes nowhere else."""
    monkeypatch.setattr(engines, "has_gpu", lambda: True)
    monkeypatch.setattr(engines, "install_command", lambda *_: None)
    outside = tmp_path / "outside"
    for name, text in {**files, str(outside): "x", "config.json/a": "x"}.items():
        place.put(f"models/{name}", text.encode())
    assert choice.choose("auto", model=f"{place.uri}/models").name == chosen
    assert not outside.exists()
    assert not [path for _, path in place.proxy.counts() if path.endswith(("model.safetensors", ".nemo", ".onnx"))]
