"""Hold one running vLLM engine: take requests, and return the token ids of finished ones.

The model runs in a process of its own (vLLM's EngineCore), so that making requests never delays it, and its death is an
exception here: see `engine_log`. `start` imports vLLM and makes the process.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from voxbatch.errors import EngineError
from voxbatch.records import Samples
from voxbatch.vllm.engine import compat
from voxbatch.vllm.engine.engine_log import EngineDied, errors_as_death
from voxbatch.vllm.engine.families.request import Request, TokenScores
from voxbatch.vllm.engine.hang_guard import HangGuard
from voxbatch.vllm.engine.start import Preload
from voxbatch.vllm.plugin import SCORES, prompts

ABORTED = "abort"
"""The reason with which vLLM ends all requests when SIGTERM or SIGINT reaches its process, as from `systemctl stop` or
a terminal. Nothing here aborts a request."""
TOGETHER = 1 / 16
"""Share of a speaking engine's requests whose samples are fetched together when they have finished. The codec decodes
them in full batches, and the engine pauses once for all of them."""


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
        with errors_as_death(self._log):
            self._llm = self._parent.llm.result()
        self._engine: Any = (engine := self._llm.llm_engine)
        self._plugin = plugin
        self._hang = HangGuard(compat.processes(self._engine), lambda: compat.wake(engine))
        self._ask_workers("voxbatch_encode_alone")
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

        with errors_as_death(self._log, self._engine, of_request=True):
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
        with errors_as_death(self._log, self._engine), self._hang:
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
        with errors_as_death(self._log, self._engine), self._hang:
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
