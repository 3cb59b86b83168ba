"""Find the two networks of diarisation: files of the Hugging Face hub at fixed commits, a folder, or a bucket."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from voxbatch.engines import hub
from voxbatch.engines.model_files import local_path
from voxbatch.errors import ConfigError
from voxbatch.storage import DEFAULT_STORES, Stores

OPTION = "--speaker-model"
COPIED = "segmentation.onnx and embedding.onnx (docs/speakers.md says where they are from)"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A network on the hub."""

    repository: str
    commit: str
    name: str
    sha256: str
    megabytes: int
    license: str
    origin: str
    """The model that the file was exported from."""


SEGMENTATION = HubFile(
    repository="onnx-community/pyannote-segmentation-3.0",
    commit="733a93b6473d019a773298e08cefa686894b1854",
    name="onnx/model.onnx",
    sha256="057ee564753071c0b09b5b611648b50ac188d50846bff5f01e9f7bbf1591ea25",
    megabytes=6,
    license="MIT",
    origin="pyannote/segmentation-3.0",
)
EMBEDDING = HubFile(
    repository="csukuangfj/speaker-embedding-models",
    commit="0743f301363dec56491a490f6d6cbc9d67f9a3bf",
    name="3dspeaker_speech_campplus_sv_zh_en_16k-common_advanced.onnx",
    sha256="aa3cfc16963a10586a9393f5035d6d6b57e98d358b347f80c2a30bf4f00ceba2",
    megabytes=28,
    license="Apache-2.0",
    origin="CAM++ of 3D-Speaker, 200,000 voices in Chinese and English",
)


@dataclass(frozen=True, slots=True)
class SpeakerWeights:
    """Local ONNX files."""

    segmentation: Path
    embedding: Path
    address: str | None = None
    """Socket of the process that runs them on a GPU. None runs them in this process, on a CPU."""


def find_weights(name: str | None, stores: Stores = DEFAULT_STORES) -> SpeakerWeights:
    """Return the networks, after a download if they are not here yet.

    Args:
        name: a folder, `gs://…`, `s3://…`, or OWNER/NAME of the hub, also OWNER/NAME@COMMIT, that has the files
            `segmentation.onnx` and `embedding.onnx`. None means SEGMENTATION and EMBEDDING.

    Raises:
        ConfigError: there is no such place, a file is missing, or its content is not the expected one.
        EngineError: the hub cannot be reached, and the files are not in its cache.
        StorageError: the bucket cannot be read.
    """
    if name is None:
        return SpeakerWeights(_from_hub(SEGMENTATION), _from_hub(EMBEDDING))
    folder = _folder(name, stores)
    weights = SpeakerWeights(folder / "segmentation.onnx", folder / "embedding.onnx")
    for path in (weights.segmentation, weights.embedding):
        if not path.is_file():
            raise ConfigError(f"{OPTION} {name}: no {path.name} there; it needs segmentation.onnx and embedding.onnx")
    return weights


def _from_hub(file: HubFile) -> Path:
    path = hub.snapshot(file.repository, file.commit, [file.name], OPTION, COPIED) / file.name
    if not path.is_file():
        raise ConfigError(f"{file.repository} on the hub has no {file.name} at commit {file.commit}: give {OPTION}")
    with open(path, "rb") as data:
        sha256 = hashlib.file_digest(data, "sha256").hexdigest()
    if sha256 != file.sha256:
        raise ConfigError(f"{path} is damaged: its SHA-256 is {sha256}, not {file.sha256}: delete it, and run again")
    return path


def _folder(name: str, stores: Stores) -> Path:
    path = local_path(name, stores)
    if path.is_dir() or name.startswith((".", "/", "~")) or name.count("/") != 1:
        return path
    repository, _, commit = name.partition("@")
    return hub.snapshot(repository, commit or None, ["segmentation.onnx", "embedding.onnx"], OPTION, COPIED)
