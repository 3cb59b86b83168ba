"""Speak texts with voxbatch's vLLM engine, fed as in a run, with the model in this process, whose frames are kept."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from voxbatch.engines import Feed, create
from voxbatch.records import Chunk, ChunkFailure, Span, Speech, TextPiece
from voxbatch.vllm.engine.families import speaking


class Spoken(NamedTuple):
    """The results for pieces, by their position: samples or the reason of a failure, prompts, and the codes of the
    frames with the end, [frames + 1, 37], and the numbers of samples, of each request in the order in which they
    ended."""

    samples: dict[int, np.ndarray]
    failures: dict[int, str]
    prompts: list[list[int]]
    frames: list[np.ndarray]
    lengths: list[int]


def speak(model: Path, pieces: Sequence[TextPiece], options: dict[str, str]) -> Spoken:
    """Return what the engine makes of pieces that are all offered at once."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    engine: Any = create("vllm", str(model), {"task": "speak", **options})
    spoken = Spoken({}, {}, [], [], [])
    tokens = speaking.Speaking._tokens

    def kept_tokens(family: Any, text: str, voice: str) -> list[int]:
        spoken.prompts.append(tokens(family, text, voice))
        return spoken.prompts[-1]

    speaking.Speaking._tokens = kept_tokens  # type: ignore[assignment, method-assign]
    feed = Feed(1, is_last=True)
    for number, piece in enumerate(pieces):
        feed.put(Chunk(number, 0, np.zeros(0, np.float32), Span(0, 0, 0, 0), piece=piece))
    feed.close()
    for result in engine.stream(feed):
        if not spoken.frames and engine._process is None:
            _keep_frames(spoken)
        if isinstance(result, Speech):
            spoken.samples[result.item] = result.samples
        elif isinstance(result, ChunkFailure):
            spoken.failures[result.item] = result.message
    return spoken


def speak_with_preemptions(
    model: Path, pieces: Sequence[TextPiece], frames: int, options: dict[str, str]
) -> tuple[Spoken, int]:
    """Return the same of an engine that has one slot and preempts each request once, when it has a number of frames;
    and the number of preemptions. Codes that are calculated again are other ones, as they may be on a GPU.
    """
    import torch

    from voxbatch.vllm.engine.vllm_process import VllmProcess
    from voxbatch.vllm.plugin.scheduler.speech_scheduler import SpeechScheduler
    from voxbatch.vllm.plugin.speech.model import SpeechModel

    start, schedule, begin, codes_of = (
        VllmProcess.__init__, SpeechScheduler.schedule, SpeechModel.begin, SpeechModel._codes_of,
    )  # fmt: skip
    num_preempted, made = 0, set[tuple[int, int]]()

    def started(process: Any, arguments: dict[str, Any], *others: Any, **named: Any) -> None:
        # so that prompts, and the frames behind them, come in parts
        start(process, {**arguments, "max_num_batched_tokens": 48}, *others, **named)
        process._free_slots = process._free_slots[:1]

    def scheduled(scheduler: Any, *arguments: Any) -> Any:
        nonlocal num_preempted
        for request in [request for request in scheduler.running if request.num_output_tokens >= frames]:
            if not request.num_preemptions:
                num_preempted += 1
                scheduler.running.remove(request)
                scheduler._preempt_request(request, 0.0)
                scheduler.prev_step_scheduled_req_ids.clear()  # as in vLLM's reset_prefix_cache
        return schedule(scheduler, *arguments)

    def begun(model: Any, requests: Sequence[tuple[int, int, int]]) -> None:
        new = {slot for slot, *_ in requests}
        made.difference_update([place for place in made if place[0] in new])
        begin(model, requests)

    def other_codes(model: Any, slots: torch.Tensor, places: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        codes: torch.Tensor = codes_of(model, slots, places, hidden)
        for row, place in enumerate(zip(slots.tolist(), places.tolist(), strict=True)):
            codes[row] += place in made
            made.add(place)
        return codes

    VllmProcess.__init__, SpeechScheduler.schedule = started, scheduled  # type: ignore[assignment, method-assign]
    SpeechModel.begin, SpeechModel._codes_of = begun, other_codes  # type: ignore[assignment, method-assign]
    return speak(model, pieces, options), num_preempted


def speak_with_few_blocks(
    model: Path, pieces: Sequence[TextPiece], blocks: int, options: dict[str, str]
) -> tuple[Spoken, int]:
    """Return the same of an engine whose K/V cache has a number of blocks, and the number of preemptions."""
    from voxbatch.vllm.engine.vllm_process import VllmProcess
    from voxbatch.vllm.plugin.scheduler.speech_scheduler import SpeechScheduler

    start, preempt = VllmProcess.__init__, SpeechScheduler._preempt_request
    num_preempted = 0

    def started(process: Any, arguments: dict[str, Any], *others: Any, **named: Any) -> None:
        start(process, {**arguments, "num_gpu_blocks_override": blocks}, *others, **named)

    def preempted(scheduler: Any, *arguments: Any, **named: Any) -> None:
        nonlocal num_preempted
        num_preempted += 1
        preempt(scheduler, *arguments, **named)

    VllmProcess.__init__, SpeechScheduler._preempt_request = started, preempted  # type: ignore[assignment, method-assign]
    return speak(model, pieces, options), num_preempted


def _keep_frames(spoken: Spoken) -> None:
    from voxbatch.vllm.plugin.speech.model import SpeechModel

    original: Any = SpeechModel.sounds
    if original.__name__ == "sounds":

        def kept(model: Any, requests: Sequence[tuple[int, int]]) -> list[bytes]:
            spoken.frames.extend(model._frames[slot, : frames + 1].numpy().copy() for slot, frames in requests)
            sounds: list[bytes] = original(model, requests)
            spoken.lengths.extend(len(sound) // 4 for sound in sounds)
            return sounds

        SpeechModel.sounds = kept  # type: ignore[assignment, method-assign]


def windows(model: Path, frames: int) -> tuple[float, float]:
    """Return the largest difference of the samples of a random speech that is decoded in windows to those of the same
    speech decoded at once, and its highest sample."""
    import json

    import torch
    from safetensors.torch import load_file

    from voxbatch.vllm.plugin.speech.codec import Codec

    weights = load_file(model / "consolidated.safetensors")
    prefix, params = "audio_tokenizer.", json.loads((model / "params.json").read_text())
    below = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
    codec = Codec(below, params["multimodal"]["audio_tokenizer_args"])
    codes = torch.randint(2, 20, (frames, 37), generator=torch.Generator().manual_seed(0))
    (samples,), whole = codec.samples([codes]), codec.decode(codes[None])[0]
    return float((samples - whole).abs().max()), float(whole.abs().max())
