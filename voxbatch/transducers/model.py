"""Find a model of the Parakeet family, and check what can be checked before PyTorch is imported.

A model is a folder in Hugging Face's format or with a .nemo archive, also in a bucket, or an archive, or a name on the
hub. Weights are safetensors, or the tensors of a .nemo archive (`nemo_archive`): nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voxbatch.engines import hub
from voxbatch.engines.known_models import find, named
from voxbatch.engines.model_files import fingerprint, local_path
from voxbatch.engines.results import EngineMessage
from voxbatch.errors import ConfigError, EngineError
from voxbatch.languages import primary_subtag
from voxbatch.records import SAMPLING_RATE
from voxbatch.storage import DEFAULT_STORES, Stores

CTC, RNNT, TDT = "ctc", "rnnt", "tdt"
ARCHITECTURES = {
    "parakeet_ctc": CTC,
    "parakeet_rnnt": RNNT,
    "parakeet_tdt": TDT,
    "nemotron_asr_streaming": RNNT,
    "nemotron3_5_asr": RNNT,
}
"""The model_type of a config.json → the way to decode."""
DEFAULT_MODEL = "parakeet"
SMALL_FILES = ("config.json", "preprocessor_config.json", "processor_config.json", "tokenizer.json", "README.md")
WEIGHTS, INDEX, ARCHIVE = "*.safetensors", "model.safetensors.index.json", "*.nemo"
MODEL_FILES = (WEIGHTS, *SMALL_FILES[:-1])
"""Patterns of the files that decide the texts."""


@dataclass(frozen=True, slots=True)
class FeatureSettings:
    """The features of a model, under the names of its preprocessor_config.json."""

    feature_size: int = 80
    hop_length: int = 160
    n_fft: int = 512
    win_length: int = 400
    preemphasis: float = 0.97
    normalizes: bool = True
    """False for models of streams, which cannot know the mean of a clip."""


@dataclass(frozen=True, slots=True)
class TransducerModel:
    """A model whose small files are on this machine."""

    name: str
    path: Path
    """Its folder, or its .nemo archive."""
    architecture: str
    """CTC, RNNT or TDT."""
    features: FeatureSettings
    frame_s: float
    """Seconds of a frame of the encoder."""
    languages: frozenset[str] | None
    """Primary subtags of the languages. None if they are unknown."""
    prompts: Mapping[str, int]
    """Language tag → index of its prompt. Empty for a model that is not told the language."""
    license: str
    origin: str
    repository: str = ""
    """Name on the hub, if the model comes from there."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """Revision or fingerprint of the model."""

    @property
    def has_weights(self) -> bool:
        """Return whether the weights are on this machine, all files of them."""
        if shards := _config(self.path, INDEX).get("weight_map"):
            return all((self.path / name).exists() for name in shards.values())
        return self.path.is_file() or any(self.path.glob(WEIGHTS))

    def prompt(self, lang: str | None) -> int:
        """Return the index of a language's prompt: "es" → that of "es", "ja" → that of the first tag of Japanese.

        Args:
            lang: a primary subtag. None means that the model recognises the language.
        """
        first = next((tag for tag in self.prompts if primary_subtag(tag) == lang), "auto")
        return self.prompts.get(lang or "auto", self.prompts[first])


def recognises(path: Path) -> bool:
    """Return whether a folder or file looks like a model of this engine. Only names and config.json are read."""
    config = _config(path)
    has_archive = path.suffix == ".nemo" or (not config and any(path.glob(ARCHIVE)))
    return has_archive or config.get("model_type") in ARCHITECTURES


def locate(model: str | None, stores: Stores = DEFAULT_STORES) -> TransducerModel:
    """Find a model, and bring its small files here.

    Args:
        model: the value of --model. None means the default model.

    Raises:
        ConfigError: there is no such model, or it is not one that this engine runs.
        EngineError: the hub cannot be reached.
        StorageError: the bucket cannot be read.
    """
    name = model or DEFAULT_MODEL
    path = local_path(name, stores)
    if not any(path.glob(WEIGHTS)) and len(archives := [*path.glob(ARCHIVE)]) == 1:
        path = archives[0]
    if path.is_dir() or (path.suffix == ".nemo" and path.is_file()):
        return _checked(name, path, hub.license_of(path), "given by --model")
    formats = "a folder with config.json and *.safetensors, also gs:// or s3://, a .nemo archive, or a hub name"
    repository, known = named(name, "transducers", f"no such folder or file; give {formats}")
    folder = hub.snapshot(repository, None, (*SMALL_FILES, INDEX))
    license_ = known.license if known else hub.license_of(folder)
    path = _archive(repository, folder) or folder
    return _checked(name, path, license_, f"{repository}, revision {folder.name}", repository)


def download(model: TransducerModel) -> Iterator[EngineMessage]:
    """Download the weights of a model, if they are not here."""
    if not model.has_weights:
        yield from hub.download(model.repository, model.path.name, [WEIGHTS])


def _archive(repository: str, snapshot: Path) -> Path | None:
    """Return the .nemo archive of a model that has no other weights here and on the hub, or None. It is downloaded now,
    because it has the configuration.

    Raises:
        ConfigError: the model has no weights that this engine reads.
        EngineError: the hub cannot be reached.
    """
    if any(snapshot.glob(WEIGHTS)):
        return None
    if archives := [*snapshot.glob(ARCHIVE)]:
        return archives[0]
    if hub.file_sizes(repository, snapshot.name, [WEIGHTS]):
        return None
    names = [*hub.file_sizes(repository, snapshot.name, [ARCHIVE])]
    if len(names) != 1:
        raise ConfigError(
            f"--model {repository}: it has {len(names) or 'no'} files {ARCHIVE} and no {WEIGHTS} on the hub; "
            "`voxbatch models` lists models, and a folder with config.json and *.safetensors is taken, too"
        )
    return hub.snapshot(repository, snapshot.name, names) / names[0]


def _config(path: Path, name: str = "config.json") -> dict[str, Any]:
    """Return the content of a JSON file of a model; {} if there is none, or if it holds something else."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads((path / name).read_bytes())
        return content if isinstance(content, dict) else {}
    return {}


def _checked(name: str, path: Path, license_: str, origin: str, repository: str = "") -> TransducerModel:
    """Return the model in a folder or an archive.

    Raises:
        ConfigError: the engine cannot run it.
    """
    if path.is_file():
        from voxbatch.transducers.nemo_archive import summary

        config, preprocessor = summary(path)
    else:
        config = _config(path)
        preprocessor = _config(path, "preprocessor_config.json")
        preprocessor = preprocessor or _config(path, "processor_config.json").get("feature_extractor", {})
        if not repository and not any(path.glob(WEIGHTS)):
            raise ConfigError(
                f"--model {name}: no {WEIGHTS} there; weights in another format may run code and are not read: "
                "`AutoModel.from_pretrained(FOLDER).save_pretrained(OTHER_FOLDER)` of transformers writes them"
            )
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"--model {name}: model_type in its config.json is {kind!r}; the engine transducers runs "
            f"{', '.join(ARCHITECTURES)}"
        )
    if (rate := preprocessor.get("sampling_rate", SAMPLING_RATE)) != SAMPLING_RATE:
        raise ConfigError(f"--model {name}: it takes {rate} samples a second; voxbatch gives {SAMPLING_RATE}")
    features = _features(name, config, preprocessor)
    factor = config.get("encoder_config", {}).get("subsampling_factor", 8)
    known = find(repository or name, "transducers")
    prompts = _prompts(name, path) if kind == "nemotron3_5_asr" else {}
    languages = frozenset(known.languages) if known else None
    if prompts:
        languages = frozenset(primary_subtag(tag) for tag in prompts if tag != "auto")
    identity = {"revision": (path.parent if path.is_file() else path).name} if repository else {}
    if not repository:
        files = (path.parent, [path.name]) if path.is_file() else (path, MODEL_FILES)
        identity = {"model_files": fingerprint(*files)}
    return TransducerModel(
        name,
        path,
        ARCHITECTURES[kind],
        features,
        features.hop_length * factor / SAMPLING_RATE,
        languages,
        prompts,
        license_,
        origin,
        repository,
        identity,
    )


def _features(name: str, config: Mapping[str, Any], preprocessor: Mapping[str, Any]) -> FeatureSettings:
    names = ("feature_size", "hop_length", "n_fft", "win_length", "preemphasis")
    settings = FeatureSettings(
        **{key: preprocessor[key] for key in names if preprocessor.get(key) is not None},
        normalizes=config.get("model_type", "").startswith("parakeet"),
    )
    bins = config.get("encoder_config", {}).get("num_mel_bins", 80)
    if settings.feature_size != bins:
        raise ConfigError(
            f"--model {name}: its encoder takes {bins} mel bins, and its preprocessor gives {settings.feature_size}; "
            "the two files are of different models"
        )
    return settings


def _prompts(name: str, path: Path) -> Mapping[str, int]:
    """Return the prompts of the languages by their tags: those of the folder, or those of the published model.

    Raises:
        EngineError: transformers has no such model.
    """
    if prompts := _config(path, "processor_config.json").get("prompt_dictionary"):
        return {str(tag): int(index) for tag, index in prompts.items()}
    try:
        from transformers.models.nemotron3_5_asr.processing_nemotron3_5_asr import DEFAULT_PROMPT_DICTIONARY
    except ImportError as e:
        raise EngineError(f"--model {name}: transformers cannot run it ({e}): pip install 'transformers>=5.16'") from e
    return dict(DEFAULT_PROMPT_DICTIONARY)
