"""The engines that align: pocketsphinx for English, and CTC networks; see `Engine` for their methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata

from voxbatch.engines import EngineSpec, Feed
from voxbatch.engines.align import WINDOW_S, AcousticModel, aligned
from voxbatch.engines.results import Result
from voxbatch.errors import ConfigError
from voxbatch.records import SAMPLING_RATE
from voxbatch.settings import parse
from voxbatch.storage import DEFAULT_STORES, Stores


@dataclass(frozen=True, slots=True)
class AlignOptions:
    """The engine options of an engine that aligns: none."""


class AlignEngine:
    """An engine that aligns. A subclass sets `spec` and loads the model."""

    spec: EngineSpec
    _model: AcousticModel | None = None

    def stream(self, feed: Feed) -> Iterator[Result]:
        """Align the chunks of the feed one after another; see `Engine.stream`."""
        if self._model is None:
            self._model = self._load()
        yield from aligned(self._model, feed, self.spec.only_language or "en")

    def _load(self) -> AcousticModel:
        raise NotImplementedError

    def gpu_bytes(self) -> None:
        """Return None, because there is no GPU."""

    def close(self) -> None:
        """Unload the model; see `Engine.close`."""
        if self._model is not None:
            self._model.close()
        self._model = None


class PocketsphinxEngine(AlignEngine):
    """The acoustic model of English that pocketsphinx's package has."""

    def __init__(self, model: str | None, options: Mapping[str, str], _: Stores = DEFAULT_STORES):
        if model is not None:
            raise ConfigError(f"--model {model}: pocketsphinx has one model; take --engine ctc, or leave it out")
        parse(AlignOptions, "pocketsphinx", options)
        self.spec = _spec(
            "pocketsphinx",
            "en-us",
            ("Latin",),
            ("pocketsphinx",),
            frozenset({"en"}),
            "BSD-2-Clause",
            "the package pocketsphinx",
        )

    def _load(self) -> AcousticModel:
        from voxbatch.engines.align.pocketsphinx import Pocketsphinx

        return Pocketsphinx()


class CtcEngine(AlignEngine):
    """A CTC network from a folder or a bucket."""

    def __init__(self, model: str | None, options: Mapping[str, str], stores: Stores = DEFAULT_STORES):
        from voxbatch.engines import hub
        from voxbatch.engines.align.ctc import FILES, CharacterSet
        from voxbatch.engines.model_files import fingerprint, local_path

        parse(AlignOptions, "ctc", options)
        if model is None:
            raise ConfigError("the engine ctc needs --model: a folder, gs:// or s3:// with model.onnx and vocab.json")
        self._folder = local_path(model, stores)
        if not self._folder.is_dir() and model.count("/") == 1 and not model.startswith((".", "/", "~")):
            self._folder = hub.snapshot(model, None, ["*.json", "*.onnx", "*.onnx_data"])
        if not (self._folder / "model.onnx").is_file():
            raise ConfigError(f"--model {model}: no model.onnx there; give a folder with model.onnx and vocab.json")
        self._vocabulary = CharacterSet(self._folder)
        license_, identity = hub.license_of(self._folder), {"model_files": fingerprint(self._folder, FILES)}
        self.spec = _spec(
            "ctc", model, self._vocabulary.scripts, ("onnxruntime",), None, license_, "given by --model", identity
        )

    def _load(self) -> AcousticModel:
        from voxbatch.engines.align.ctc import Ctc

        return Ctc(self._folder, self._vocabulary)


def _spec(
    name: str,
    model: str,
    scripts: tuple[str, ...],
    packages: tuple[str, ...],
    languages: frozenset[str] | None,
    license_: str,
    origin: str,
    identity: Mapping[str, str] | None = None,
) -> EngineSpec:
    return EngineSpec(
        name=name,
        model=model,
        max_chunk_samples=WINDOW_S * SAMPLING_RATE,
        concurrency=1,
        prefetch=2,
        languages=languages,
        word_times=True,
        scripts=scripts,
        license=license_,
        origin=origin,
        versions={package: metadata.version(package) for package in packages},
        decoding=identity or {},
    )
