"""Replace vLLM's `group_and_batch_mm_kwargs`, which says which recordings of a step are encoded together.

vLLM 0.32 pads recordings that are encoded together to the longest one. The classes below run layers over this padding
without a mask. So the transcript of a recording would depend on the recordings beside it, by far more than rounding.
Such a recording is encoded alone here, as vLLM's endpoint encodes it while there is no other request.

| class | layers without a mask |
|---|---|
| Granite Speech | the whole encoder and the projector (granite_speech.py: _process_audio_input) |
| Fun-ASR | the attention of the adaptor (funasr.py: Transformer.forward) |
| Gemma 3n | the first convolutions (gemma3n_mm.py: batch_audio_features) |
| Kimi-Audio | none: it raises an error for recordings of several lengths (kimi_audio.py: _process_audio_input) |
| Qwen3-ASR, Qwen3-Omni | the convolutions, if a recording fills none of their windows (qwen3_omni_moe_thinker.py) |

Cohere ASR has masks. FireRedASR2, GLM-ASR, MOSS, Voxtral and Whisper pad each recording to a fixed length.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

Item = tuple[str, Any]
"""Modality of a recording, and vLLM's MultiModalKwargsItem of it."""
Group = Callable[..., Iterator[tuple[str, int, dict[str, Any]]]]
"""Function of a list of items that yields groups: the modality, the number of items and the arguments of the model."""
NAME = "group_and_batch_mm_kwargs"
MODULES = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.mm.encoder_runner")
"""Modules of vLLM's two runners, which import the function by its name."""


def _always(_model: Any, _item: Any) -> bool:
    return True


def _if_short(model: Any, item: Any) -> bool:
    """Return whether a recording fills no window of Qwen's convolutions. In company its window is padded to a full one.
    A longer recording has a full window, to which its last one is padded in any company."""
    frames = item.get("audio_feature_lengths")
    return frames is not None and int(frames.data) < 2 * model.audio_tower.n_window


ALONE: dict[str, Callable[[Any, Any], bool]] = {
    "FunASRForConditionalGeneration": _always,
    "Gemma3nForConditionalGeneration": _always,
    "GraniteSpeechForConditionalGeneration": _always,
    "KimiAudioForConditionalGeneration": _always,
    "Qwen3ASRForConditionalGeneration": _if_short,
    "Qwen3OmniMoeThinkerForConditionalGeneration": _if_short,
}
"""Class of vLLM → the function of a model and an item that returns whether the item is encoded alone. A derived class
has the function of its base."""


def wrap(original: Group, model: Any, is_alone: Callable[[Any, Any], bool]) -> Group:
    """Return vLLM's function for a model: items for which `is_alone` is true have groups of their own."""

    def group_and_batch_mm_kwargs(items: Sequence[Item], **options: Any) -> Iterator[tuple[str, int, dict[str, Any]]]:
        keys = {number: number for number, (_, item) in enumerate(items) if is_alone(model, item)}
        for _, numbers in groupby(range(len(items)), keys.get):
            yield from original([items[number] for number in numbers], **options)

    return group_and_batch_mm_kwargs


def replace(model: Any) -> None:
    """Replace the function in this process, which holds a model, if the class of the model needs it."""
    needs = next((ALONE[base.__name__] for base in type(model).__mro__ if base.__name__ in ALONE), None)
    for module in filter(None, map(sys.modules.get, MODULES)):
        if needs is not None and hasattr(module, NAME):
            setattr(module, NAME, wrap(getattr(module, NAME), model, needs))
