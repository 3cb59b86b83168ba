"""The engine for GPUs: Voxtral, Whisper and the other transcription models of vLLM, and Voxtral TTS, without a server.

It uses vLLM's offline API, in process.

All knowledge about vLLM's internals is in this package, above all in `start` and `vllm_process` (a running vLLM) and
`compat` (versions of vLLM), and in `voxbatch.vllm.plugin` (code inside vLLM's processes). `families/` holds the
differences between models. `request_loop` keeps vLLM busy and starts it again after it died. `speed` calculates the
speed to expect.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from voxbatch.engines import EngineSpec, Feed, gpu
from voxbatch.engines.kernel_cache import KernelCache
from voxbatch.engines.results import EngineMessage, Result, stop_if_all_fail
from voxbatch.errors import EngineError
from voxbatch.storage import DEFAULT_STORES, Stores
from voxbatch.vllm.engine import compat, fp8, prefill
from voxbatch.vllm.engine.arguments import concurrency, llm_arguments, small_job_chunks
from voxbatch.vllm.engine.checks import check, check_installed, check_step
from voxbatch.vllm.engine.families import CORES_PER_PROMPT_PROCESS, PROMPT_PROCESSES, Family
from voxbatch.vllm.engine.families.choice import family_of, model_for, require_task, resolve
from voxbatch.vllm.engine.kernel_key import cache_key
from voxbatch.vllm.engine.model import Model, complete, download, locate
from voxbatch.vllm.engine.request_loop import EngineStarter, RequestLoop
from voxbatch.vllm.engine.settings import TRANSCRIBE, VllmSettings
from voxbatch.vllm.engine.start import Preload
from voxbatch.vllm.engine.vllm_process import VllmProcess

COMPARED_GPU = "H200"
"""The GPU on which the results of reproducible runs were compared (benchmarks/RESULTS.md)."""


class VllmEngine:
    """The vLLM engine; see Engine for the methods."""

    def __init__(self, model: str | None, options: Mapping[str, str], stores: Stores = DEFAULT_STORES):
        self._arguments = model, dict(options), stores
        distribution, version = compat.installed()
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # NVML's order; CUDA's default is the fastest first
        gpu.use_only(options.get("devices", ""))
        task = options.get("task", TRANSCRIBE)
        self._model = locate(model_for(task, model), options.get("revision") or None, stores)
        require_task(self._model, task)
        settings = resolve(self._model.family, options)
        self._settings = prefill.with_proven_scheduler(settings)
        plugin = prefill.decide(self._model.family, self._settings)
        check(self._model, self._settings, plugin)
        check_installed(self._model, self._settings)
        self._prefilled = plugin.on
        self._family = family_of(self._model.family, task)(self._model, self._settings)
        self._settings = replace(self._settings, max_model_len=self._family.max_model_len)
        requests = concurrency(self._model, self._settings, self._prefilled, self._family.request_bytes)
        requests = min(requests, self._family.max_requests or requests)
        check_step(self._model, self._family, self._settings, requests)
        self._on_cpu = distribution == compat.CPU_BUILD
        self._stores = stores
        self._kernels: KernelCache | None = None
        self._folder: Path | None = None
        """The folder from which vLLM loads the model. None before the first stream."""
        self._is_compiled = True
        """The running engine has compiled code."""
        self._preload: Preload | None = None
        """vLLM that is being imported for the first start. None after it."""
        self._process: VllmProcess | None = None
        """The running vLLM engine that the last stream left, or None."""
        self._streaming = threading.Lock()
        """Held by the stream that runs. A stream that nobody reads any more may still be ending."""
        self._is_closed = False
        self._ending = threading.Lock()
        """Guards `_is_closed`, `_process` and `_preload`. Another thread may call `close` while a stream runs."""
        self.spec = EngineSpec(
            name="vllm",
            model=self._model.name,
            max_chunk_samples=self._family.max_chunk_samples,
            concurrency=requests,
            prefetch=self._family.prefetch,
            languages=self._family.languages,
            uses_language=self._family.uses_language,
            takes_hints=self._family.takes_hints,
            translates=self._family.translates,
            word_times=self._family.word_times,
            confidence=self._settings.confidence and self._family.scores,
            max_recordings=self._family.max_recordings,
            max_question_samples=self._family.max_question_samples,
            sampling_rate=self._family.sampling_rate,
            voices=self._family.voices,
            scripts=self._family.scripts,
            license=self._model.license,
            origin=f"revision {self._model.revision}" if self._model.revision else "given by --model",
            versions={distribution: version},
            decoding=_decoding(self._model, self._settings, self._family),
            workers=gpu.worker_environments(self._settings.tensor_parallel_size),
            torch_device="cpu" if self._on_cpu else "cuda" if gpu.visible_gpus() else None,
            warnings=(
                *filter(None, (compat.warning(distribution, version), self._family.warning)),
                *_warnings(plugin, self._settings, self._on_cpu),
            ),
        )

    def __reduce__(self) -> tuple[type[VllmEngine], tuple[Any, ...]]:
        """Make the engine again in the process that loads it; see engines.engine_child."""
        return VllmEngine, self._arguments

    def stream(self, feed: Feed) -> Iterator[Result]:
        """Transcribe the chunks of a feed; see `Engine.stream`."""
        with self._streaming:
            if self._folder is None:
                self._require_gpus()
                yield EngineMessage(f"vLLM is loading {self._model.name}, which takes a minute or so")
                if self._settings.load_format != "dummy":
                    yield from download(self._model)
                self._folder = yield from self._prepare()
            start = functools.partial(self._start, self._folder, feed)
            starter = EngineStarter(start, self.spec.concurrency, self._settings.restarts)
            process, self._process = self._process, None
            loop = RequestLoop(self._family, starter, self._settings.watch, process)
            try:
                yield from stop_if_all_fail(loop.run(feed))
            finally:
                with self._ending:
                    if not self._is_closed:
                        self._process = loop.process
                        if feed.is_last and loop.process is not None:
                            loop.process.end()  # its memory becomes free while the run writes its results
                    elif loop.process is not None:
                        loop.process.close()
            if self._kernels is None or feed.discarded or not self._is_compiled:
                return
            if message := self._kernels.store():
                yield message

    def _prepare(self) -> Generator[EngineMessage, None, Path]:
        """Bring the files of the model and the compiled kernels, import vLLM, and load the tokenizer.

        Returns:
            The folder from which vLLM loads the model.

        Raises:
            EngineError: PyTorch cannot use the GPUs. The message says what to do.
        """
        settings = self._settings
        if settings.load_format != "dummy":
            self._model = complete(self._model)
        model = self._model
        with _write_errors_explained():
            folder = self._family.serving_folder(model, settings)
        if place := settings.kernel_cache:
            self._kernels = KernelCache(place, cache_key(model, settings, self._prefilled, folder), self._stores)
            os.environ.update(self._kernels.environment())
            yield self._kernels.fetch()  # before vLLM is imported, which may write to its folder
        with _write_errors_explained():
            arguments = self._family.arguments(settings, model.is_translated)
            self._preload = preload = Preload(
                self._prefilled, {"model": str(folder), **arguments}, self._prompt_processes(), settings.reproducible
            )
        # vLLM imports torch and transformers too, and a thread that imports half of transformers fails
        preload.wait()
        self._family.load(folder)
        import torch

        if not self._on_cpu and not torch.cuda.is_available():
            raise EngineError(gpu.why_unusable(torch.version.cuda))
        return folder

    def _start(self, folder: Path, feed: Feed, requests: int) -> VllmProcess:
        """Start vLLM for a feed, with this number of requests at a time."""
        with self._ending:
            preload, self._preload = self._preload, None
        small_job = small_job_chunks(self._family, self._settings, feed)
        self._is_compiled = self._on_cpu or not small_job
        with _write_errors_explained():
            arguments = llm_arguments(self._model, self._settings, self._prefilled, folder, requests, small_job)
            scores, slots = self._settings.confidence and self._family.scores, self._family.slots
            return VllmProcess(
                arguments, self._prefilled, scores, preload, slots, self._prompt_processes(),
                self._settings.reproducible,
            )  # fmt: skip

    def _prompt_processes(self) -> int:
        """Return the number of processes that make prompts."""
        cores = len(os.sched_getaffinity(0))
        wanted = min(PROMPT_PROCESSES, max(1, cores // CORES_PER_PROMPT_PROCESS))
        return wanted if self._family.computes_spectrograms else 0

    def gpu_bytes(self) -> int | None:
        """Return the bytes in use on the fullest GPU of this engine; see `Engine.gpu_bytes`."""
        used = [] if self._on_cpu else [info.used_bytes for info in gpu.visible_gpus()]
        return max(used[: self._settings.tensor_parallel_size], default=None)

    def close(self) -> None:
        """Unload the model, now or at the end of the stream that runs; see `Engine.close`."""
        with self._ending:
            self._is_closed = True
            process, self._process = self._process, None
            preload, self._preload = self._preload, None
        if preload is not None:
            preload.abandon()
        if process is not None:
            process.close()

    def _require_gpus(self) -> None:
        """Check, before anything is downloaded, that there are enough GPUs and that their driver is new enough.

        Raises:
            EngineError: GPUs are missing, or the driver is too old. The message says what to do.
        """
        if self._on_cpu:
            return
        visible, needed = len(gpu.visible_gpus()), self._settings.tensor_parallel_size
        if visible < needed:
            raise EngineError(
                f"{visible} NVIDIA GPUs are visible and {needed} needed: check nvidia-smi and CUDA_VISIBLE_DEVICES, "
                "give the container access to its GPUs, or use --engine faster-whisper"
            )
        if (built_for := gpu.torch_cuda()) and (too_old := gpu.why_too_old(built_for)):
            raise EngineError(too_old)


@contextlib.contextmanager
def _write_errors_explained() -> Iterator[None]:
    """Raise EngineError, with what to do, if a file cannot be written."""
    try:
        yield
    except OSError as e:
        raise EngineError(
            f"{e}; the engine writes to its cache folder and to a log: set XDG_CACHE_HOME and TMPDIR to folders that "
            "can be written"
        ) from e


def _warnings(plugin: prefill.Decision, settings: VllmSettings, on_cpu: bool) -> tuple[str, ...]:
    # The gain of the plugin was measured only on GPUs. The CPU build of vLLM is for tests.
    of_plugin = "" if on_cpu else plugin.warning
    of_fp8 = fp8.warning(settings.fp8_parts) if settings.fp8_parts else ""
    others = sorted({info.name for info in gpu.visible_gpus() if COMPARED_GPU not in info.name})
    of_reproducible = (
        f"reproducible=true: results were compared on an {COMPARED_GPU} only, and not on {', '.join(others)}"
        if settings.reproducible and others
        else ""
    )
    return tuple(warning for warning in (of_plugin, of_fp8, of_reproducible) if warning)


def _decoding(model: Model, settings: VllmSettings, family: Family) -> dict[str, Any]:
    decoding: dict[str, Any] = {}
    if settings.load_format == "dummy":  # random weights, so no real text
        decoding["load_format"] = "dummy"
    if settings.fp8_parts:
        decoding["fp8"] = fp8.parts_as_text(settings.fp8_parts)
    if model.fingerprint:
        decoding["model_files"] = model.fingerprint
    decoding |= {"family": model.family, "revision": model.revision, "dtype": settings.dtype}
    decoding |= {name: getattr(settings, name) for name in family.decoding_settings}
    if family.scores and not settings.confidence:
        # not given by default, so that a run of an earlier version, which knew no confidences, can be continued
        decoding["confidence"] = False
    if settings.reproducible:  # the same for runs of an earlier version
        decoding["reproducible"] = True
    return {**decoding, "quantization": settings.quantization, **family.decoding}
