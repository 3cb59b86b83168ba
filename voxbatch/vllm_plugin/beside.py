"""Chunks that wait are encoded ahead of their admission, on a second stream beside the steps that decode.

Decoding waits for memory where encoding computes, so a GPU that does both at once does more. The scheduler offers the
requests that wait; when one is admitted, what the runner would have encoded is there, or about to be, and the GPU, not
the host, waits for it. Whoever comes without having waited is encoded in the step, as without this.

Scheduler and model must live in one process, which they do with one GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch

from voxbatch.vllm_plugin.admit import Execute, from_the_host, samples
from voxbatch.vllm_plugin.encoder import Encoder
from voxbatch.vllm_plugin.shelf import Shelf

TOGETHER = 4
"""Chunks offered to the encoder at a time; see GROUP_FRAMES."""
UNDER_WAY = 2
"""Such groups on the second stream at a time, so that it has the next one when one is done."""


def ahead(most: int) -> int:
    """Chunks that may lie encoded without being admitted, of so many requests that may run: a burst or two."""
    return max(TOGETHER, most // 8)


class Beside:
    def __init__(self, encoder: Encoder, shelf: Shelf, most: int, device: torch.device):
        self._encoder, self._shelf, self._ahead = encoder, shelf, ahead(most)
        self._lane = _Lane(device)
        self._ready: dict[str, tuple[torch.Tensor, Any]] = {}
        """By the audio's identifier: its rows, and when they will be there."""
        self._under_way: list[Any] = []
        with self._lane.aside():  # held while vLLM measures memory, for both streams work at the same time
            self._ballast = torch.empty(encoder.working_bytes, dtype=torch.uint8, device=device)

    def offer(self, waiting: Iterable[Any]) -> None:
        """Encode some of what the requests in `waiting` bring, the first ones first."""
        self._ballast = None
        self._under_way = [each for each in self._under_way if not each.query()]
        features = [request.mm_features[0] for request in islice(waiting, self._ahead)]
        self._forget_all_but({feature.identifier for feature in features})
        new = [feature for feature in features if feature.identifier not in self._ready][:TOGETHER]
        if new and len(self._under_way) < UNDER_WAY and self._shelf.has_room(len(new)):
            self._encode(new)

    def take(self, identifier: str) -> torch.Tensor | None:
        """The rows, for work that the present stream is given from now on; None where they were never made."""
        found = self._ready.pop(identifier, None)
        if found is None:
            return None
        self._lane.wait(found[1])
        return found[0]

    def _encode(self, features: list[Any]) -> None:
        before = self._lane.mark()  # what was given to the GPU may still read the places that are free by now
        with self._lane.aside():
            rows = self._encoder([samples(feature) for feature in features])
            self._lane.wait(before)
            kept = [self._shelf.put(each) for each in rows]
            done = self._lane.mark()
        self._under_way.append(done)
        for feature, each in zip(features, kept, strict=True):
            self._ready[feature.identifier] = each, done

    def _forget_all_but(self, waiting: set[str]) -> None:
        """Of requests that nobody waits for any more: aborted ones."""
        for identifier in self._ready.keys() - waiting:
            del self._ready[identifier]


def preferring_what_is_ready(encode: Execute) -> Execute:
    """The runner's `_execute_mm_encoder`, which encodes what a step admits: only what is not ready is left to it."""

    def execute(runner: Any, scheduler_output: Any) -> list[torch.Tensor]:
        beside: Beside | None = getattr(runner.get_model(), "beside", None)
        scheduled: dict[str, list[int]] = scheduler_output.scheduled_encoder_inputs
        if beside is None or not scheduled:
            return encode(runner, scheduler_output)
        left = dict(scheduled)
        for name in scheduled:
            identifier = runner.requests[name].mm_features[0].identifier
            if (rows := beside.take(identifier)) is not None:
                runner.encoder_cache[identifier] = rows
                del left[name]
        scheduler_output.scheduled_encoder_inputs = left
        try:
            return encode(runner, scheduler_output)
        finally:
            scheduler_output.scheduled_encoder_inputs = scheduled

    execute.encode = encode  # type: ignore[attr-defined]
    return execute


def install() -> None:
    """Into vLLM's runner: what is ready is taken, what is not is encoded from the host."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if not hasattr(GPUModelRunner._execute_mm_encoder, "encode"):
        GPUModelRunner._execute_mm_encoder = preferring_what_is_ready(from_the_host(GPUModelRunner._execute_mm_encoder))


class _Lane:
    """A second stream of a GPU; where there is none, everything happens in order, and nothing is waited for."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextlib.contextmanager
    def aside(self) -> Any:
        with torch.inference_mode(), torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
            yield

    def mark(self) -> Any:
        """A point in the present stream."""
        if self._stream is None:
            return _Done()
        event = torch.cuda.Event()
        event.record()
        return event

    def wait(self, mark: Any) -> None:
        """Nothing that the present stream is given from now on begins before that point."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_event(mark)


class _Done:
    def query(self) -> bool:
        return True


_OF_THIS_PROCESS: list[Beside] = []


def publish(beside: Beside) -> None:
    """For the scheduler, which asks for it by `current`."""
    _OF_THIS_PROCESS[:] = [beside]


def current() -> Beside | None:
    """Of the model in this process; None where there is none, or it has not been asked to encode yet."""
    return _OF_THIS_PROCESS[0] if _OF_THIS_PROCESS else None
