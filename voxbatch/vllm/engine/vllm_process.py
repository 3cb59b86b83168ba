"""Hold one running vLLM engine: take requests, return the token ids of finished ones, and report why it died.

The model runs in a process of its own (vLLM's EngineCore), so that making requests never delays it, and its death is an
exception here. Its log goes to a file, because standard output belongs to the results and the terminal to the progress
line.
"""

from __future__ import annotations

import contextlib
import json
import logging.config
import os
import queue
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from voxbatch.engines import gpu
from voxbatch.errors import EngineError
from voxbatch.log import STDERR_LOCK
from voxbatch.process.hang_detector import SilenceClock, is_stopped
from voxbatch.process.streams import lead, writes_to
from voxbatch.records import Samples
from voxbatch.vllm.engine import compat
from voxbatch.vllm.engine.families.request import Request, TokenScores
from voxbatch.vllm.engine.preloaded_process import PreloadedProcess
from voxbatch.vllm.plugin import (
    BATCH_INVARIANT,
    LOAD_FORMAT,
    LOADER_SWITCH,
    ON,
    REPRODUCIBLE_SWITCH,
    SCORES,
    SWITCH,
    lazy_imports,
    parent_watchdog,
    preload,
    prompts,
)

HANG_S = 600.0
"""Seconds without any output, by a SilenceClock, after which the engine counts as dead. A first step may compile
kernels for minutes."""
LOOK_S = 1.0
"""Seconds between two looks at whether the engine is alive."""
ABORTED = "abort"
"""The reason with which vLLM ends all requests when SIGTERM or SIGINT reaches its process, as from `systemctl stop` or
a terminal. Nothing here aborts a request."""
TOGETHER = 1 / 16
"""Share of a speaking engine's requests whose samples are fetched together when they have finished. The codec decodes
them in full batches, and the engine pauses once for all of them."""
LOG_LINES = 3
"""Number of the engine's last errors that a message quotes."""
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",  # nothing is sent anywhere
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # forking a process that has threads deadlocks
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",  # the engine lives in a process of its own
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it would be compiled at the first step; greedy decoding needs no sampler
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",  # it wants multicast memory, see arguments.UNFUSED
    "TQDM_DISABLE": "1",  # bars would tear the progress line
}
"""Variables that are set for vLLM, unless the user has set them."""
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The two names of the variable that configures PyTorch's allocator. The second is the older one, and it wins."""
THREADS = "OMP_NUM_THREADS"
EXTENSION = "voxbatch.vllm.plugin.worker_extension.WorkerExtension"
"""The class that is mixed into vLLM's workers, for `VllmProcess.describe` and `VllmProcess.score_tokens`."""


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A finished request."""

    id: str
    token_ids: list[int]
    finish_reason: str
    """The reason that vLLM gives: "stop", "length", or another, which means that nothing was transcribed."""
    scores: TokenScores | None = None
    """The scores of `token_ids`. None if the engine gives none."""
    samples: Samples | None = None
    """The speech of a request that ended by itself. None if the engine does not speak."""


class EngineDied(Exception):
    """Report that the engine has ended, and with it all requests that it held.

    `cause` goes into the failures of items, so it does not name the log, whose path differs from run to run. The text
    of the exception names it. `is_stopped` is true if a signal told the engine to end, so that no request is to
    blame."""

    def __init__(self, cause: str, log: Path | None = None, is_stopped: bool = False):
        self.cause, self.is_stopped = cause, is_stopped
        self.out_of_memory = "out of memory" in cause.lower()
        super().__init__(f"{cause} (its log: {log})" if log else cause)


class Preload:
    """vLLM that is being imported, in this process and in the one that will be the engine.

    Each import takes many seconds, and vLLM makes the second process only when the first one has an engine's whole
    configuration. So this is begun while a model is still being prepared. The owner gives it to a VllmProcess, or
    abandons it.

    Args:
        plugin: true if the encoder runs once per chunk (vllm.plugin), and not as in stock vLLM.
        arguments: the arguments of vLLM's `LLM` that are known already, at least its model, load format, tokenizer mode
            and number of GPUs.
        prompt_processes: number of processes that make the prompts of requests; 0 makes them where they are added.
        reproducible: true if the result of a request must not depend on the other requests.
    """

    def __init__(
        self, plugin: bool, arguments: Mapping[str, Any], prompt_processes: int = 0, reproducible: bool = False
    ):
        self.began = time.monotonic()
        self.log = _EngineLog()
        set_environment(plugin, arguments.get("load_format") == LOAD_FORMAT, reproducible)
        os.environ["VLLM_LOGGING_CONFIG_PATH"] = str(self.log.config)
        if "vllm.logger" in sys.modules:  # it reads the variable only when it is imported
            logging.config.dictConfig(json.loads(self.log.config.read_text()))
        tokenizer = str(arguments["model"]) if arguments.get("tokenizer_mode") == "mistral" else ""
        num_gpus = arguments.get("tensor_parallel_size", 1)
        self.parent = _ParentThread(self.log, num_gpus, tokenizer, prompt_processes)

    def wait(self) -> None:
        """Wait until this process has imported vLLM, or failed to."""
        self.parent.imported.wait()

    def abandon(self) -> None:
        """Let the thread end the process that was to be the engine, as soon as its own import is done."""
        self.parent.arguments.cancel()


class VllmProcess:
    """A loaded engine. The owner closes it, whatever happens.

    Args:
        arguments: the keyword arguments of vLLM's `LLM`.
        plugin: true if the encoder runs once per chunk (vllm.plugin), and not as in stock vLLM.
        scores: true if each finished request shall have the scores of its tokens.
        begun: vLLM that is being imported for the same arguments. None starts to import it now.
        slots: number of requests that the model keeps a state for (vllm.plugin.speech). None if it keeps none.
        prompt_processes: see Preload.
        reproducible: see Preload.

    Raises:
        EngineDied: the engine did not start.
        EngineError: its results depend on the other requests although they must not.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        plugin: bool = False,
        scores: bool = False,
        begun: Preload | None = None,
        slots: int | None = None,
        prompt_processes: int = 0,
        reproducible: bool = False,
    ):
        begun = begun or Preload(plugin, arguments, prompt_processes, reproducible)
        self._log, self._parent = begun.log, begun.parent
        self._parent.arguments.set_result(arguments)
        with _errors_as_death(self._log):
            self._llm = self._parent.llm.result()
        self._engine: Any = (engine := self._llm.llm_engine)
        self._plugin = plugin
        self._hang = _HangGuard(compat.processes(self._engine), lambda: compat.wake(engine))
        # voxbatch's schedulers collect the scores of the runner; vLLM's own schedulers know only vLLM's logprobs
        self._logprobs = 0 if scores and not arguments.get("scheduler_cls") else None
        self._no_scores = self.score_tokens() if scores and self._logprobs is None else ""
        self._free_slots = None if slots is None else list(range(slots))
        self._slots: dict[str, int] = {}
        """The slot of each request of a model that speaks; see vllm.plugin.speech."""
        self._without_samples: list[FinishedRequest] = []
        self._prompts = ThreadPoolExecutor(prompt_processes, "prompts") if prompt_processes else None
        self._prompt_sockets: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        """The sockets of the processes that wait for a prompt to make. Each thread of `_prompts` takes one."""
        for own in self._parent.prompts:
            self._prompt_sockets.put(own)
        self._start_s = time.monotonic() - begun.began
        # NCCL removes its files in /dev/shm only if its processes end by themselves
        self._patience_s = None if arguments.get("tensor_parallel_size", 1) > 1 else 0.0
        if reproducible:
            self._require_invariant_products()

    def prompt(self, request: Request) -> Future[Any]:
        """Begin to make what `add` gives to vLLM: in processes with vLLM's processor of the model, which computes the
        spectrogram, or the prompt itself.

        vLLM makes one prompt after the other, to keep the order of its cache of processed audio. That cache is off
        here.
        """
        if self._prompts is not None:
            return self._prompts.submit(self._rendered, dict(request.prompt))
        prompt: Future[Any] = Future()
        prompt.set_result(dict(request.prompt))
        return prompt

    def _rendered(self, prompt: dict[str, Any]) -> Any:
        """Return the prompt that a process makes, or this thread if the process has ended.

        Raises:
            ValueError: vLLM does not accept the prompt.
        """
        try:
            process = self._prompt_sockets.get_nowait()
            prompts.send(process, prompt)
            made = prompts.receive(process)
        except (queue.Empty, EOFError, OSError):
            return prompts.rendered(self._engine.renderer, prompt)
        self._prompt_sockets.put(process)
        if isinstance(made, ValueError):
            raise made
        return made

    def add(self, request_id: str, request: Request, prompt: dict[str, Any]) -> None:
        """Give the engine a request.

        Args:
            request_id: a new id.
            request: the request.
            prompt: the result of `prompt` for this request.

        Raises:
            ValueError: vLLM does not accept the request.
            EngineDied: the engine has ended.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        with _errors_as_death(self._log, self._engine, of_request=True):
            sampling = SamplingParams(
                temperature=request.temperature,
                top_p=request.top_p,
                seed=request.seed,
                repetition_penalty=request.repetition_penalty,
                structured_outputs=StructuredOutputsParams(grammar=request.grammar) if request.grammar else None,
                max_tokens=request.max_tokens,
                ignore_eos=request.ignore_eos,
                allowed_token_ids=list(request.allowed_token_ids) or None,
                logit_bias=dict.fromkeys(request.suppressed_token_ids, -100.0) or None,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
                logprobs=self._logprobs,
            )
            if self._free_slots is not None:
                prompt["prompt_token_ids"] = [*prompt["prompt_token_ids"][:-1], self._free_slots[0]]
            self._engine.add_request(request_id, prompt, sampling)
        if self._free_slots is not None:
            # vLLM finds K/V blocks by their tokens, so a slot rests as long as possible
            self._slots[request_id] = self._free_slots.pop(0)

    def step(self) -> list[FinishedRequest]:
        """Wait for the engine's next output, and return finished requests. A model that speaks may keep some of them
        back until a later step (TOGETHER).

        Raises:
            EngineDied: the engine has ended.
        """
        with _errors_as_death(self._log, self._engine), self._hang:
            outputs = self._engine.step()
        finished = [
            FinishedRequest(
                output.request_id,
                list(output.outputs[0].token_ids),
                str(output.outputs[0].finish_reason),
                _scores(output),
            )
            for output in outputs
            if output.finished
        ]
        if any(request.finish_reason == ABORTED for request in finished):
            raise EngineDied("a signal told its process to end", self._log.file, is_stopped=True)
        if self._free_slots is None:
            return finished
        self._without_samples += finished
        if len(self._without_samples) < TOGETHER * len(self._slots):
            return []
        finished, self._without_samples = self._without_samples, []
        return self._with_speech(finished) if finished else []

    def _with_speech(self, finished: list[FinishedRequest]) -> list[FinishedRequest]:
        """Return finished requests with their samples, and free their slots.

        Raises:
            EngineDied: the engine has ended.
        """
        slots = [self._slots.pop(request.id) for request in finished]
        frames = [len(request.token_ids) - 1 for request in finished]  # the last token is the end
        ended = [place for place, request in enumerate(finished) if request.finish_reason == "stop" and frames[place]]
        (sounds,) = self._ask_workers("voxbatch_sounds", [(slots[place], frames[place]) for place in ended])
        assert self._free_slots is not None
        self._free_slots += slots
        samples = dict(zip(ended, (np.frombuffer(sound, np.float32) for sound in sounds), strict=True))
        silence = np.zeros(0, np.float32)
        return [replace(request, samples=samples.get(place, silence)) for place, request in enumerate(finished)]

    def score_tokens(self) -> str:
        """Make the engine score its tokens from the next step on. Return why this vLLM cannot do so, as text for
        people, or an empty string.

        Raises:
            EngineDied: the engine has ended.
        """
        return next(filter(None, self._ask_workers("voxbatch_score_tokens")), "")

    def _require_invariant_products(self) -> None:
        """Check that the rows of the model's products do not depend on the number of rows.

        Raises:
            EngineError: they do. The engine is closed.
            EngineDied: the engine has ended.
        """
        if product := next(filter(None, self._ask_workers("voxbatch_dependent_product")), ""):
            self.close()
            raise EngineError(
                f"engine option reproducible=true: on this GPU, with this version of cuBLAS, {product} differ from the "
                "same rows among more: leave the option out, or use an H200"
            )

    def describe(self) -> str:
        """Return one line about the engine: seconds until it was ready, requests, K/V blocks and memory."""
        config = self._engine.vllm_config
        blocks, requests = config.cache_config.num_gpu_blocks or 0, config.scheduler_config.max_num_seqs
        memory = ""
        with contextlib.suppress(EngineDied):  # the next step will raise it
            if gpus := [*filter(None, self._ask_workers("voxbatch_memory"))]:
                used, planned = max(gpus)
                memory = f"; {used / 1e9:.1f} GB in use, {planned / 1e9:.1f} planned"
        plugin = ", encoder once a chunk" if self._plugin and self._free_slots is None else ""
        without = ""
        if config.model_config.enforce_eager:
            without = ", without compiled code and CUDA graphs"
        elif not config.compilation_config.mode:  # CompilationMode.NONE
            without = ", without compiled code"
        lacks = f"; no confidences: {self._no_scores}" if self._no_scores else ""
        return (
            f"vLLM ready in {self._start_s:.0f} s: up to {requests:,} requests at a time in {blocks:,} K/V blocks"
            f"{plugin}{without}{memory}{lacks}"
        )

    def _ask_workers(self, method: str, *args: object) -> list[Any]:
        """Return what a method of each worker returns (see vllm.plugin.worker_extension).

        Raises:
            EngineDied: the engine has ended.
        """
        with _errors_as_death(self._log, self._engine), self._hang:
            answers: list[Any] = self._llm.collective_rpc(method, args=args)
            return answers

    def end(self) -> None:
        """End the engine's process. Its memory takes half a second to become free; `close` waits for that.

        All results are here, and compiled kernels are in files, so one GPU's process is killed. To end by itself takes
        it 2.5 s on a CPU and about 4 s on an H200.
        """
        with contextlib.suppress(Exception):
            self._engine.engine_core.shutdown(timeout=self._patience_s)

    def close(self) -> None:
        """End the engine's process and wait until its memory is free."""
        self.end()
        if self._prompts is not None:
            self._prompts.shutdown(wait=False, cancel_futures=True)
        for process in compat.processes(self._engine):
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()
        self._parent.unneeded.set()
        self._log.remove()


def _scores(output: Any) -> TokenScores | None:
    """Return the scores of a finished request: those of voxbatch's schedulers, or vLLM's own log-probabilities."""
    if packed_scores := (output.kv_transfer_params or {}).get(SCORES):
        logprobs, entropies = np.frombuffer(packed_scores, np.float32).reshape(-1, 2).T
        return TokenScores(logprobs, entropies)
    completion = output.outputs[0]
    if not completion.logprobs:
        return None
    pairs = zip(completion.token_ids, completion.logprobs, strict=True)
    return TokenScores(np.array([choices[token].logprob for token, choices in pairs], np.float32))


_LOADING = threading.Lock()
"""Held while processes of an engine are started, which changes the environment, the main module and the standard
streams of this process. A Transcriber that was closed early may still be importing vLLM when the next one starts."""


class _ParentThread(threading.Thread):
    """The thread that starts the engine's process and lives as long as the engine.

    The kernel kills the process when this thread ends (see vllm.plugin.parent_watchdog). The thread that uses the
    engine may end earlier, because an engine can be kept for the next run.
    """

    def __init__(self, log: _EngineLog, num_gpus: int, tokenizer: str, prompt_processes: int):
        super().__init__(daemon=True, name="vllm-parent")
        self._log, self._num_gpus, self._tokenizer = log, num_gpus, tokenizer
        self._prompt_processes, self.prompts = prompt_processes, list[socket.socket]()
        self.arguments: Future[Mapping[str, Any]] = Future()
        """The keyword arguments of vLLM's `LLM`. If they are cancelled, no engine is started."""
        self.llm: Future[Any] = Future()
        self.imported, self.unneeded = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with contextlib.ExitStack() as imports:  # until vLLM has started its engine, which then does the work
                imports.enter_context(preload.without_gc())
                with self._while_loading():
                    one_gpu = self._num_gpus == 1 and bool(gpu.visible_gpus())
                    preloaded = PreloadedProcess(one_gpu, self._tokenizer, imports.close, self._prompt_processes)
                    self.prompts = preloaded.prompts
                    imports.enter_context(lazy_imports.lazily())  # begins to import vLLM
                    from vllm import LLM

                    preload.note("vLLM is imported in the parent")
                self.imported.set()
                try:
                    arguments = self.arguments.result()
                    with self._while_loading(), compat.engine_process(preloaded):
                        from voxbatch.vllm.plugin.patches import skip_decoder_start_token, supported_mm_limits

                        skip_decoder_start_token.add_no_start_token()
                        supported_mm_limits.raise_limits(arguments.get("limit_mm_per_prompt", {}))
                        llm = LLM(**arguments, worker_extension_cls=EXTENSION)
                finally:
                    preloaded.end_if_unused()
            self.llm.set_result(llm)  # only now, after the environment and the outputs are restored
        except CancelledError:
            self._log.remove()
            return
        except BaseException as e:  # noqa: BLE001 the thread that waits for the engine raises it again
            self.llm.set_exception(e)
            self.imported.set()
            return
        self.unneeded.wait()

    @contextlib.contextmanager
    def _while_loading(self) -> Iterator[None]:
        """Return the context in which processes of the engine are started."""
        own_threads = threads(on_gpu=bool(gpu.visible_gpus()))
        with (
            _LOADING,
            _environment({**allocator(self._num_gpus), **own_threads}),
            parent_watchdog.kills_children(),
            _outputs_to(self._log.file),
        ):
            yield


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables within this context. None of them was set before; processes that start within it keep them."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


def allocator(num_gpus: int) -> dict[str, str]:
    """Return the variable with which PyTorch's allocator on a GPU extends its segments, so that the next burst can use
    the memory that a burst leaves.

    Nothing is returned if the user has set the variable, or for several GPUs: their exchange within CUDA graphs cannot
    use such memory (vLLM's issue 42609)."""
    chosen = any(name in os.environ for name in ALLOCATOR)
    return {} if chosen or num_gpus > 1 else {ALLOCATOR[0]: "expandable_segments:True"}


def threads(on_gpu: bool) -> dict[str, str]:
    """Return the variable with which an engine on a GPU does its small work on the host in one thread.

    PyTorch would divide each copy of a chunk's samples among all cores, which then wait for each other. With 32 cores
    the GPU lost a quarter of its speed (benchmarks/history/2026-11-22.md). Nothing is returned if the user has set it.
    """
    return {THREADS: "1"} if on_gpu and THREADS not in os.environ else {}


def set_environment(plugin: bool, loader: bool = False, reproducible: bool = False) -> None:
    """Set the environment with which vLLM's processes start.

    Args:
        plugin: the encoder runs once per chunk.
        loader: the weights are in Hugging Face's format, and the plugin translates them.
        reproducible: the result of a request must not depend on the other requests.
    """
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    os.environ.pop(SWITCH, None)
    os.environ.pop(LOADER_SWITCH, None)
    os.environ.update({LOADER_SWITCH: ON} if loader else {})
    os.environ.update({SWITCH: ON} if plugin else {})
    if os.environ.pop(REPRODUCIBLE_SWITCH, None):  # of an earlier engine
        os.environ.pop(BATCH_INVARIANT, None)
    if reproducible:
        os.environ[REPRODUCIBLE_SWITCH] = ON
        if (compat.find() or ("",))[0] != compat.CPU_BUILD:  # which has no such mode, and runs for tests only
            os.environ[BATCH_INVARIANT] = ON
    os.environ.update(compat.runner_environment(os.environ))
    if find_spec("vllm_omni"):  # its plugin replaces parts of vLLM in every process
        os.environ.setdefault("VLLM_PLUGINS", "voxbatch")


@contextlib.contextmanager
def _errors_as_death(log: _EngineLog, engine: Any = None, of_request: bool = False) -> Iterator[None]:
    """Raise EngineDied, with the cause from the log, for any exception of vLLM.

    vLLM reports the death of its core by several types of exceptions.

    Args:
        engine: vLLM's LLMEngine; None while it loads.
        of_request: raise ValueError for an error about the request itself.
    """
    try:
        yield
    except Exception as e:
        if of_request and isinstance(e, ValueError | TypeError):
            raise ValueError(str(e)) from e
        codes = [process.exitcode or 0 for process in compat.processes(engine)] if engine is not None else []
        killed = next((f"its process was killed by signal {-code}" for code in codes if code < 0), "")
        raise EngineDied(log.cause(e, killed), log.file) from e


class _HangGuard:
    """A context for waiting on an output. It kills the engine if no output comes for HANG_S. If the engine's process
    ends, it ends the wait by `wake`, because vLLM would wait without a limit."""

    def __init__(self, processes: list[Any], wake: Callable[[], None]):
        self._processes, self._wake = processes, wake
        self._wait: object | None = None
        """The wait that goes on, a new object for each. None between two waits. The thread only reads it."""
        self.thread = threading.Thread(target=self._watch, daemon=True, name="hang-guard")
        if processes:  # there are none if the user lets vLLM run in this process
            self.thread.start()

    def __enter__(self) -> None:
        self._wait = object()

    def __exit__(self, *_: object) -> None:
        self._wait = None

    def _watch(self) -> None:
        watched, clock = self._wait, SilenceClock()
        while all(process.is_alive() for process in self._processes):
            if watched is not self._wait or watched is None:
                watched = self._wait
                clock.reset()
            else:
                clock.look(is_stopped=any(is_stopped(process.pid) for process in self._processes))
            if clock.silent_s > HANG_S:
                for process in self._processes:
                    process.kill()
            time.sleep(LOOK_S)
        self._wake()


class _EngineLog:
    """A temporary folder with the logging configuration that all of vLLM's processes read, and with their logs."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="voxbatch-vllm-"))
        self.file, self._errors = self._folder / "engine.log", self._folder / "errors.log"
        self.config = self._folder / "logging.json"
        self.config.write_text(json.dumps(_logging(self.file, self._errors)))
        self._is_quoted = False

    def errors(self) -> str:
        return self._errors.read_text(errors="replace").strip() if self._errors.exists() else ""

    def cause(self, error: Exception, killed: str = "") -> str:
        """Return one line: the last errors of the engine's log, else how its process ended, else the error itself."""
        self._is_quoted = True
        named = [line.split("] ", 1)[-1] for line in self.errors().splitlines() if _names_an_exception(line)]
        causes = list(dict.fromkeys(named))[-LOG_LINES:] or [killed or f"{type(error).__name__}: {error}"]
        return "; ".join(causes)[:1000]

    def remove(self) -> None:
        """Remove the folder, unless it holds errors or a message names it: then somebody will want to read it."""
        if not self._is_quoted and not self.errors():
            shutil.rmtree(self._folder, ignore_errors=True)


def _names_an_exception(line: str) -> bool:
    """Return whether a line is the last one of a traceback: "torch.OutOfMemoryError: CUDA out of memory. …"."""
    head, colon, _ = line.split("] ", 1)[-1].partition(":")
    last = head.rpartition(".")[2]
    return bool(colon) and head.replace(".", "").replace("_", "").isalnum() and last.endswith(("Error", "Exception"))


def _logging(full_log: Path, errors: Path) -> dict[str, Any]:
    def to(path: Path, level: str) -> dict[str, Any]:
        return {
            "class": "logging.FileHandler",
            "filename": str(path),
            "level": level,
            "formatter": "plain",
            "delay": True,
        }

    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(asctime)s %(process)d %(levelname)s [%(name)s] %(message)s"}},
        "handlers": {
            "all": to(full_log, "INFO"),
            "errors": to(errors, "ERROR"),
            "parent": {"()": "voxbatch.vllm.plugin.parent_watchdog.DieWithParent"},
        },
        "loggers": {"vllm": {"handlers": ["all", "errors", "parent"], "level": "INFO", "propagate": False}},
    }


@contextlib.contextmanager
def _outputs_to(path: Path) -> Iterator[None]:
    """Send standard output and error to a file within this context: those of processes that start within it, of native
    code here, and of Python code in this thread.

    What other threads print still reaches the user, also through an object that kept a stream, and what they printed
    before and is still in a buffer.
    """
    with path.open("a", buffering=1) as log, _output_to(log, 1, "stdout"), _output_to(log, 2, "stderr"):
        yield


@contextlib.contextmanager
def _output_to(log: TextIO, fd: int, name: str) -> Iterator[None]:
    """Send one standard stream to a file; see `_outputs_to`.

    Args:
        log: the file.
        fd: descriptor of the stream.
        name: name of the stream in `sys`.
    """
    usual, user = getattr(sys, name), os.dup(fd)
    streams = [stream for stream in (usual, getattr(sys, f"__{name}__")) if writes_to(stream, fd)]
    split = _SplitByThread(log, usual)
    for stream in streams:
        lead(stream, user)
    with STDERR_LOCK:
        os.dup2(log.fileno(), fd)
        setattr(sys, name, split)
    try:
        yield
    finally:
        with STDERR_LOCK:
            os.dup2(user, fd)
            if getattr(sys, name) is split:  # otherwise another thread has replaced it meanwhile
                setattr(sys, name, usual)
            split.release()
        for stream in streams:
            lead(stream, fd)
        with STDERR_LOCK:  # no thread is writing a line to it
            os.close(user)


class _SplitByThread:
    """A standard stream that writes the text of this thread to a file and the text of all other threads to the usual
    stream, whose other attributes it has."""

    def __init__(self, of_this_thread: TextIO, usual: TextIO | None):
        self._thread, self._of_this_thread, self._usual = threading.get_ident(), of_this_thread, usual

    def write(self, text: str) -> int:
        stream = self._of_this_thread if threading.get_ident() == self._thread else self._usual
        return len(text) if stream is None else stream.write(text)  # a program may have no standard streams

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self._usual is not None:
            self._usual.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)

    def release(self) -> None:
        """Write everything to the usual stream from now on: a library's log handler may have kept this object."""
        self._thread = 0
