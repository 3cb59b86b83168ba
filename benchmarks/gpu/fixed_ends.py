"""Plugin of vLLM for bench_speech.py: end each speech of Voxtral TTS after FRAMES for each token of its text.

With made-up weights the end is as likely as any other code, and the code of the end is never the likeliest one. This
module makes the end a matter of the number of tokens, on the GPU, within the CUDA graphs.
"""

from __future__ import annotations

import os
from typing import Any

FRAMES = 5.4
"""Frames of 80 ms for each token of 5.8 characters (bench_speech.WORDS): the 13.5 characters a second of a reader."""
CONTROLS = 5
"""Tokens of a prompt beside those of the voice and the text."""
SWITCH = "BENCH_SPEECH"
"""Environment variable that switches this plugin on."""


def register() -> None:
    """Replace a method of the model. vLLM calls this function in each of its processes."""
    if SWITCH not in os.environ:
        return
    import torch

    from voxbatch.vllm.plugin.speech.flow_matching import END_CODE, NUM_SPECIAL
    from voxbatch.vllm.plugin.speech.model import SpeechModel

    codes_of = SpeechModel._codes_of

    def ended(model: Any, slots: torch.Tensor, frames: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        codes = codes_of(model, slots, frames, hidden)
        tokens = model._starts[slots] - max(model._speech["voices"].values()) - CONTROLS
        is_end = frames >= FRAMES * tokens.clamp(min=1)
        semantic = torch.where(is_end, END_CODE, codes[:, 0].clamp(min=NUM_SPECIAL))
        return torch.cat((semantic[:, None], codes[:, 1:]), 1)

    SpeechModel._codes_of = ended
