"""The interface of the engines: a stream of Chunks goes in, Hypotheses come out in any order.

An engine pulls a chunk from a Feed whenever it can take one, and yields each result as soon as it is ready. There is no
barrier per recording or per batch. So an engine that works on hundreds of chunks at a time always has enough of them.

To add an engine, write a class with the members of `Engine`, and add a record to `ENGINES`, or register it from another
package: see `entry_points`. An engine that speaks takes Chunks with a Piece, yields Speech in place of Hypotheses, and
has its record in `SPEECH_ENGINES`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from voxbatch import parts
from voxbatch.engines.feed import Feed
from voxbatch.engines.interface import Engine, EngineSpec, Registration
from voxbatch.engines.results import ChunkProgress, EngineMessage, Result
from voxbatch.errors import ConfigError, EngineError
from voxbatch.records import NO_WINDOWS, SAMPLING_RATE, Windows
from voxbatch.storage import DEFAULT_STORES, Stores

__all__ = [
    "ALIGNERS",
    "ENGINES",
    "NO_WINDOWS",
    "SAMPLING_RATE",
    "SPEECH_ENGINES",
    "ChunkProgress",
    "ConfigError",
    "Engine",
    "EngineCache",
    "EngineMessage",
    "EngineSpec",
    "Feed",
    "Registration",
    "Result",
    "Windows",
    "create",
    "install_command",
    "known_details",
    "options_with_kernels",
    "registered",
    "uses_gpu",
]


ENGINES = {
    "vllm": Registration(
        class_path="voxbatch.vllm.engine:VllmEngine",
        needs=("vllm",),
        install="pip install 'voxbatch[vllm]'",
        use="on NVIDIA GPUs",
        multilingual_model="openai/whisper-large-v3-turbo",
        uses_gpu=True,
        default_profile="ctx512-batch",
        speed_path="voxbatch.vllm.engine.forecast:expected_speed",
        checks_path="voxbatch.vllm.engine.checks_of_doctor",
        preview_path="voxbatch.vllm.engine.forecast:preview_arguments",
        compiles=True,
        answers=True,
    ),
    "transducers": Registration(
        class_path="voxbatch.transducers:TransducersEngine",
        needs=("torch", "transformers"),
        install="pip install 'voxbatch[parakeet]'",
        use="for Parakeet on NVIDIA GPUs",
        recognises="voxbatch.transducers.model:recognises",
        multilingual_model="parakeet",
        default_profile="parakeet",
        speed_path="voxbatch.transducers.forecast:expected_speed",
        checks_path="voxbatch.transducers.requirements",
        uses_gpu=True,
        compiles=True,
    ),
    "faster-whisper": Registration(
        class_path="voxbatch.engines.faster_whisper:FasterWhisperEngine",
        needs=("faster_whisper",),
        install="pip install 'voxbatch[cpu]'",
        use="on a CPU",
        weights="model.bin",
        multilingual_model="base",
        windows=Windows(length_s=30.0, step_s=24.0, work_s=11.0, padding_s=5.0),
        default_profile="cpu",
    ),
    "onnx-asr": Registration(
        class_path="voxbatch.onnx_asr:OnnxAsrEngine",
        needs=("onnx_asr", "onnxruntime"),
        install="pip install 'voxbatch[onnx]'",
        use="for ONNX on a CPU",
        recognises="voxbatch.onnx_asr.folder:recognises",
        weights="*.onnx",
        multilingual_model="parakeet",
    ),
}
"""The engines of voxbatch by their names, in the order in which `auto` tries them. Those of other packages are taken by
their names alone."""
SPEECH_ENGINES = {
    "hibari": Registration(
        class_path="voxbatch.engines.hibari:HibariEngine",
        needs=("hibari", "icu4py", "pyloudnorm", "sentencex"),
        install="pip install 'voxbatch[speak]'",
        use="for English on a CPU",
    ),
    "vllm": Registration(
        class_path="voxbatch.vllm.engine:VllmEngine",
        needs=("vllm", "pyloudnorm", "sentencex"),
        install="pip install 'voxbatch[vllm,speak]'",
        uses_gpu=True,
    ),
}
"""The engines that speak, in the same form."""
ALIGNERS = {
    "pocketsphinx": Registration(
        class_path="voxbatch.engines.align.engines:PocketsphinxEngine",
        needs=("pocketsphinx", "icu4py"),
        install="pip install 'voxbatch[align]'",
        use="for English on a CPU",
    ),
    "ctc": Registration(
        class_path="voxbatch.engines.align.engines:CtcEngine",
        needs=("onnxruntime", "icu4py"),
        install="pip install 'voxbatch[align]'",
    ),
}
"""The engines that find the times of a given text, in the same form."""
_ALL = {**SPEECH_ENGINES, **ALIGNERS, **ENGINES}


def has_gpu() -> bool:
    """Return whether an NVIDIA driver is loaded. CUDA is not initialised."""
    return os.path.exists("/dev/nvidiactl")


def uses_gpu(name: str) -> bool:
    """Return whether an engine needs an NVIDIA GPU. An unknown engine needs none."""
    engine = registered(name, ENGINES)
    return engine is not None and engine.uses_gpu


def registered(name: str, table: Mapping[str, Registration] | None = None) -> Registration | None:
    """Return the entry of an engine. None if there is none.

    Args:
        table: the table that may have it. None means any. Engines of other packages count as those of ENGINES.

    Raises:
        EngineError: the entry of another package is broken.
    """
    if engine := (_ALL if table is None else table).get(name):
        return engine
    if table is not None and table is not ENGINES:
        return None
    from voxbatch.engines import entry_points

    return entry_points.find(name)


def install_command(name: str, table: Mapping[str, Registration] | None = None) -> str | None:
    """Return the command that installs an engine, or None if all its modules are installed.

    Args:
        table: the table that has it. None means any.
    """
    engine = registered(name, table)
    assert engine is not None
    folder = engine.class_path.partition(":")[0]  # voxbatch may be installed without it
    is_there = bool(engine.package) or parts.has(folder)
    return None if is_there and all(importlib.util.find_spec(module) for module in engine.needs) else engine.install


def known_details(*details: str) -> str:
    """Return the details of a model that are known, in brackets: ("MIT", "unknown") → " (MIT)"."""
    known = "; ".join(detail for detail in details if detail != "unknown")
    return f" ({known})" if known else ""


def multilingual_model(engine: str) -> str:
    """Return the name of a model of an engine that knows many languages, for messages; "" if there is none."""
    registration = registered(engine, ENGINES)
    return registration.multilingual_model if registration else ""


def options_with_kernels(name: str, options: Mapping[str, str], kernel_cache: str | None) -> Mapping[str, str]:
    """Return the options of an engine with the place of its compiled kernels, if it compiles any."""
    engine = registered(name) if kernel_cache else None
    return {"kernel_cache": str(kernel_cache), **options} if engine and engine.compiles else options


def create(
    name: str,
    model: str | None,
    options: Mapping[str, str],
    stores: Stores = DEFAULT_STORES,
    table: Mapping[str, Registration] | None = None,
    keep_s: float = 0.0,
) -> Engine:
    """Return an engine that is ready to stream. Its method `stream` loads the model.

    Args:
        options: the values of `--engine-option NAME=VALUE`, unparsed.
        table: see `registered`.
        keep_s: seconds for which the loaded engine stays after its end.

    Raises:
        ConfigError: the engine does not accept the model or an option, or it cannot stay.
        EngineError: the library of the engine is installed but cannot be imported.
    """
    registration = registered(name, table)
    assert registration is not None
    try:
        factory = resolve_name(registration.class_path)
    except (ImportError, AttributeError) as e:
        whose = f" of {registration.package}" if registration.package else ""
        remedy = (
            f"install it with {registration.install}" if registration.install else "update or uninstall the package"
        )
        raise EngineError(f"engine {name}{whose} cannot be imported: {e}; {remedy}") from e
    engine: Engine = factory(model, options, stores)
    if not engine.spec.own_process and not keep_s:
        return engine
    from voxbatch.engines.engine_process import EngineProcess  # its modules are those of processes
    from voxbatch.engines.kept_engine import stay_of

    return EngineProcess(engine, stay_of(engine, model, options, stores, keep_s) if keep_s else None)


class EngineCache:
    """A cache that holds one engine, the last one created, so that its model stays loaded between runs.

    Args:
        one_run: the cache is closed after one run. An engine may then start in another way for a small job.
        keep_s: seconds for which the last engine stays after `close`. 0 also ends what earlier runs have left.
    """

    def __init__(self, one_run: bool = False, keep_s: float = 0.0) -> None:
        self.one_run, self._keep_s = one_run and not keep_s, keep_s
        self._engine: Engine | None = None
        self._asked: tuple[Any, ...] = ()

    def get(
        self,
        name: str,
        model: str | None,
        options: Mapping[str, str],
        stores: Stores,
        table: Mapping[str, Registration] | None = None,
    ) -> Engine:
        """Return the cached engine if it was created with equal arguments. Otherwise replace it with a new engine.

        The arguments and exceptions are those of the function `create`.
        """
        arguments = (registered(name, table), model, dict(options), stores)
        if self._engine is None or arguments != self._asked:
            self.close()
            if not self._keep_s:
                from voxbatch.process import kept

                kept.dismiss()  # an engine of an earlier run may have the memory that this one needs
            self._engine, self._asked = create(name, model, options, stores, table, self._keep_s), arguments
        return self._engine

    def close(self) -> None:
        """Unload the cached engine, if there is one."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None
