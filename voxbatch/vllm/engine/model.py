"""Find a model in a local folder, on the hub or below a bucket's prefix, and read its small files into a Model.

`locate` brings the small files first, so that a wrong name, a missing token or an unsuitable model is refused before a
GPU is used. `complete` brings the weights when the engine starts. A model in a bucket is fetched at once, with its
weights. This module loads nothing into memory but JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from voxbatch.engines import hub
from voxbatch.engines.model_files import fetched, fingerprint
from voxbatch.engines.results import EngineMessage
from voxbatch.errors import ConfigError, EngineError
from voxbatch.storage import DEFAULT_STORES, Stores
from voxbatch.storage.address import is_bucket_address
from voxbatch.vllm.engine import huggingface
from voxbatch.vllm.plugin import vllm_version

REALTIME, INSTRUCT, WHISPER, TRANSCRIPTION = "realtime", "instruct", "whisper", "transcription"
SPEECH = "speech"

DEFAULT_MODEL = "mistralai/Voxtral-Mini-4B-Realtime-2602"
DEFAULT_SPEECH_MODEL = "mistralai/Voxtral-4B-TTS-2603"
SPEECH_LICENSE = "CC BY-NC 4.0"
"""Licence of the published weights and voices of Voxtral TTS, for a copy that does not state one."""
DEFAULT_DELAY_MS = 480
"""The default model's own transcription delay: tekken.json, audio.transcription_delay_ms."""
DEFAULT_PARAMS: dict[str, Any] = {
    "dim": 3072, "n_layers": 26, "head_dim": 128, "hidden_dim": 9216, "n_heads": 32, "n_kv_heads": 8,
    "vocab_size": 131_072, "tied_embeddings": True,
    "multimodal": {"whisper_model_args": {"encoder_args": {
        "dim": 1280, "n_layers": 32, "head_dim": 64, "hidden_dim": 5120, "n_heads": 32, "n_kv_heads": 32,
        "ffn_type": "swiglu", "sliding_window": 750}}},
}  # fmt: skip
"""The part of the default model's params.json that `memory` and `speed` read, for calculations before its files are
here."""
FAMILIES_OF = {
    DEFAULT_MODEL: REALTIME, "mistralai/Voxtral-Mini-3B-2507": INSTRUCT, "mistralai/Voxtral-Small-24B-2507": INSTRUCT,
    "openai/whisper-large-v3-turbo": WHISPER, DEFAULT_SPEECH_MODEL: SPEECH,
}  # fmt: skip
"""Families of the models that the profiles name. They are known before the files of the model are fetched."""
TRANSCRIBING = (
    "CohereAsrForConditionalGeneration", "FireRedASR2ForConditionalGeneration", "FunASRForConditionalGeneration",
    "Gemma3nForConditionalGeneration", "GlmAsrForConditionalGeneration", "GraniteSpeechForConditionalGeneration",
    "GraniteSpeechPlusForConditionalGeneration", "MoonshotKimiaForCausalLM",
    "MossTranscribeDiarizeForConditionalGeneration", "Qwen3ASRForConditionalGeneration", "Qwen3ASRRealtimeGeneration",
    "Qwen3OmniMoeForConditionalGeneration",
)  # fmt: skip
"""Architectures, besides Voxtral and Whisper, whose class in vLLM 0.32 has the interface SupportsTranscription
(model_executor/models/interfaces.py)."""
DEFAULT_QUESTION_MODEL = "mistralai/Voxtral-Mini-3B-2507"
"""The model that answers questions if none is given."""
SMALL_FILES = (
    "params.json", "tekken.json", "config.json", "generation_config.json", "preprocessor_config.json",
    "processor_config.json", "tokenizer*.json", "vocab.json", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "normalizer.json", "chat_template.*", "*.model", "*.tiktoken", "README.md",
    "voice_embedding/*.pt",
)  # fmt: skip
"""Patterns of all files that are read before the weights."""
MISTRAL_WEIGHTS = "consolidated*.safetensors"
HF_WEIGHTS = "model*.safetensors"
INDEX = "*.index.json"
"""Pattern of the files that name the weights of a model in several files. The weights of one format alone are fetched:
both formats would double the download."""
MISTRAL_FILES = ("params.json", "tekken.json", MISTRAL_WEIGHTS, "voice_embedding/*.pt")
HF_FILES = (*(pattern for pattern in SMALL_FILES if pattern not in ("params.json", "README.md")), HF_WEIGHTS)
"""Patterns of the files of each format that decide the texts."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model whose small files are on this machine."""

    name: str
    """The name as the user gave it."""
    path: Path
    """The local folder of the model. For a model of the hub it may hold only the small files at first."""
    family: str
    """REALTIME, INSTRUCT, WHISPER, TRANSCRIPTION or SPEECH."""
    is_mistral: bool
    """True for Mistral's own format: params.json, tekken.json, consolidated*.safetensors. False for Hugging Face's
    format: config.json, model*.safetensors, and tekken.json if the model is a Voxtral."""
    revision: str | None = None
    """The commit that a hub name stood for, or the digest of a bucket's listing. None for a local folder."""
    license: str = "unknown"
    fingerprint: str | None = None
    """Fingerprint of the files in a local folder (see model_files). None for all other models, which have a
    revision."""
    is_translated: bool = False
    """True for a Voxtral in Hugging Face's format. It is translated to Mistral's format for vLLM."""

    @property
    def weights(self) -> str:
        """Return the pattern of the files that hold the weights."""
        return MISTRAL_WEIGHTS if self.is_mistral else HF_WEIGHTS

    def shape(self) -> dict[str, Any]:
        """Return the content of params.json for a Voxtral, and of config.json for other models.

        For a Voxtral in Hugging Face's format the content of params.json is made from config.json.

        Raises:
            ConfigError: the file cannot be read, or vLLM cannot compute with its values (see huggingface.params).
        """
        if self.is_mistral:
            return read_json(self.path / "params.json")
        config = read_json(self.path / "config.json")
        return huggingface.params(config, self.path / "config.json") if self.is_translated else config

    def audio_settings(self) -> dict[str, Any]:
        """Return the `audio` section of tekken.json.

        Raises:
            ConfigError: the file cannot be read or has no such section.
        """
        audio = read_json(self.path / "tekken.json").get("audio")
        if not isinstance(audio, dict):
            raise ConfigError(
                f"{self.path}/tekken.json has no `audio` section: it is not the tokenizer of a speech model"
            )
        return audio


def locate(name: str | None, revision: str | None, stores: Stores = DEFAULT_STORES) -> Model:
    """Find a model and read its small files.

    Args:
        name: a local folder, a hub name (`mistralai/…`), `gs://…` or `s3://…`; None means DEFAULT_MODEL.
        revision: branch, tag or commit of a model of the hub; None means the main branch.

    Raises:
        ConfigError: there is no such model, or this engine does not run models of its kind.
        StorageError: a bucket cannot be read.
    """
    name = name or DEFAULT_MODEL
    if is_bucket_address(name):
        downloaded = fetched(name, stores)
        model = _described(name, downloaded.path, downloaded.revision)
    elif os.path.isdir(name):
        model = _described(name, Path(name).resolve(), None)
        read = MISTRAL_FILES if model.is_mistral else HF_FILES
        model = replace(model, fingerprint=fingerprint(model.path, read))
    elif name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ConfigError(
            f"--model {name}: there is no such folder; give a folder, a hub name (owner/name) or an address (gs://, s3://)"
        )
    else:
        path = hub.snapshot(name, revision, SMALL_FILES)
        model = _described(name, path, path.name)
    if revision and (model.revision is None or is_bucket_address(name)):
        raise ConfigError(f"revision {revision}: {name} is a folder, and only a hub's model has revisions")
    return model


def in_hub_cache(name: str) -> bool:
    """Return whether the weights of a model of the hub are in the local cache of the hub.

    Only models in Mistral's format with a single file of weights are found. Small models have their weights in one
    file.
    """
    return hub.is_cached(name, MISTRAL_WEIGHTS.replace("*", ""))


def download(model: Model) -> Iterator[EngineMessage]:
    """Download the weights of a model of the hub that are not here yet, and yield the progress.

    Raises:
        EngineError: the hub does not provide them any more, or cannot be reached.
    """
    if model.revision and _must_be_fetched(model):
        with _refusals_as_engine_errors():
            yield from hub.download(model.name, model.revision, (model.weights, INDEX))


@contextlib.contextmanager
def _refusals_as_engine_errors() -> Iterator[None]:
    """Raise EngineError for ConfigError: the hub gave the small files for this name, so the name is right."""
    try:
        yield
    except ConfigError as e:
        raise EngineError(str(e)) from e


def complete(model: Model) -> Model:
    """Bring the weights to this machine, check that each file is complete, and return the model.

    Raises:
        EngineError: weights are missing or incomplete, or the hub does not provide them any more. The message says what
            to do.
    """
    if model.revision and not is_bucket_address(model.name):
        with _refusals_as_engine_errors():
            path = hub.snapshot(model.name, model.revision, (*SMALL_FILES, model.weights, INDEX))
        model = replace(model, path=path)
    check_weights(model)
    return model


def check_weights(model: Model) -> None:
    """Check that the files of weights are complete.

    Raises:
        EngineError: a file is missing, or its size is not the size that its header states.
    """
    files = sorted(model.path.glob(model.weights))
    index = model.path / (model.weights.replace("*", "") + ".index.json")
    indexed = set(read_json(index)["weight_map"].values()) if index.is_file() else set[str]()
    if missing := sorted(indexed - {file.name for file in files}):
        raise EngineError(f"{model.path} lacks {', '.join(missing)}, which its index names: download the model again")
    if not files:
        raise EngineError(f"{model.path} has no {model.weights}: download the whole model, with its weights")
    for file in files:
        if (size := file.stat().st_size) != (full_size := _whole_size(file)):
            raise EngineError(f"{file} is incomplete: {size:,} bytes of {full_size:,}; delete it and download it again")


def missing_weights(model: Model) -> int:
    """Return the bytes of weights that `complete` will download for a model of the hub; 0 if they are here.

    Raises:
        ConfigError, EngineError: see `hub.snapshot`.
    """
    if not model.revision or not _must_be_fetched(model):
        return 0
    return sum(hub.file_sizes(model.name, model.revision, (model.weights, INDEX)).values())


def _must_be_fetched(model: Model) -> bool:
    """Return whether the weights of a model that has a revision must be fetched from the hub."""
    return not is_bucket_address(model.name) and not any(model.path.glob(model.weights))


def weights_bytes(model: Model) -> int:
    """Return the bytes that the weights take on disk, or 0 before the weights are there.

    On a GPU they take about as much in the same precision.
    """
    return sum(file.stat().st_size for file in model.path.glob(model.weights))


def _described(name: str, path: Path, revision: str | None) -> Model:
    params, config = path / "params.json", path / "config.json"
    license_ = hub.license_of(path)
    if params.is_file():
        multimodal = read_json(params).get("multimodal") or {}
        if whisper := multimodal.get("whisper_model_args"):
            audio = whisper["encoder_args"]["audio_encoding_args"]
            family = REALTIME if audio.get("transcription_format") == "streaming" else INSTRUCT
        elif "audio_tokenizer_args" in multimodal:
            family, license_ = SPEECH, SPEECH_LICENSE if license_ == "unknown" else license_
        else:
            raise ConfigError(
                f"{name} is not a speech model: its params.json has no multimodal.whisper_model_args and no "
                "multimodal.audio_tokenizer_args"
            )
        if not (path / "tekken.json").is_file():
            raise ConfigError(
                f"{path} has a params.json but lacks tekken.json, the tokenizer: download the whole model"
            )
        return Model(name, path, family, True, revision, license_)
    if config.is_file():
        family, is_translated = _hf_family(name, path, read_json(config))
        return Model(name, path, family, False, revision, license_, is_translated=is_translated)
    raise ConfigError(
        f"{path} holds no model: it has neither params.json (Mistral's format) nor config.json (Hugging Face's)"
    )


def _hf_family(name: str, path: Path, config: dict[str, Any]) -> tuple[str, bool]:
    """Return the family of a model in Hugging Face's format, and whether it is translated for vLLM."""
    architecture = (config.get("architectures") or ["nothing"])[0]
    if architecture == "WhisperForConditionalGeneration":
        for needed in ("generation_config.json", "preprocessor_config.json"):
            if not (path / needed).is_file():
                raise ConfigError(f"{path} lacks {needed}: download the whole model")
        return WHISPER, False
    if architecture == huggingface.ARCHITECTURE:
        if not (path / "tekken.json").is_file():
            raise ConfigError(
                f"{path} lacks tekken.json, the tokenizer, which is not part of Hugging Face's format: copy it from "
                f"the model that this one was made from, such as {DEFAULT_MODEL}"
            )
        return REALTIME, True
    if architecture.startswith("Voxtral"):
        raise ConfigError(
            f"{name} is Voxtral in Hugging Face's format, which vLLM cannot serve without Mistral's own files: "
            f"{path} lacks params.json, tekken.json and {MISTRAL_WEIGHTS}; they are in the same repository on the hub"
        )
    if architecture in TRANSCRIBING:
        return TRANSCRIPTION, False
    raise ConfigError(
        f"{name} is {architecture}; this engine runs Voxtral Realtime, Voxtral and Whisper, and the other classes of "
        f"vLLM {vllm_version.VERSION} that transcribe: {', '.join(TRANSCRIBING)}"
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a small file of a model.

    Raises:
        ConfigError: it is no JSON object.
    """
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path} cannot be read as JSON ({hub.first_line(e)}): download it again") from e
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a JSON object: download it again")
    return content


def _whole_size(file: Path) -> int:
    """Return the size in bytes that a complete safetensors file has, according to its header.

    The file holds 8 bytes with the length of the header, the header, and the tensors.

    Raises:
        EngineError: the header cannot be read.
    """
    with file.open("rb") as f:
        first = f.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
        header = f.read(length) if 0 < length <= 100_000_000 else b""
    try:
        tensors = [value for key, value in json.loads(header).items() if key != "__metadata__"]
    except ValueError as e:
        raise EngineError(
            f"{file} is not a complete safetensors file (its header cannot be read): download it again"
        ) from e
    return 8 + length + max((tensor["data_offsets"][1] for tensor in tensors), default=0)
