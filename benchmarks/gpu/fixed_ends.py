"""Plugin of vLLM for bench_speech.py: end each speech of Voxtral TTS after FRAMES for each token of its text.

With made-up weights the end is as likely as any other code, and the code of the end is never the likeliest one. This
module makes the end a matter of the number of tokens, on the GPU, within the CUDA graphs. It also saves the codes of
requests with small seeds, so that they can be compared.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FRAMES = 5.4
"""Frames of 80 ms for each token of 5.8 characters (bench_speech.WORDS): the 13.5 characters a second of a reader."""
CONTROLS = 5
"""Tokens of a prompt beside those of the voice and the text."""
SAVED_SEEDS = 10**6
"""The codes of requests with smaller seeds are saved."""
FOLDER = "BENCH_SPEECH_CODES"
"""Environment variable: the folder for the codes."""
PLAIN = "BENCH_SPEECH_PLAIN"
"""Environment variable: if it is set, the flow matching runs without the kernels of `fused_ops`."""


def register() -> None:
    """Replace two methods of the model. vLLM calls this function in each of its processes."""
    if FOLDER not in os.environ:
        return
    import numpy as np
    import torch

    from voxbatch.vllm_plugin.speech.flow_matching import END_CODE, NUM_SPECIAL, FlowMatching
    from voxbatch.vllm_plugin.speech.model import SpeechModel

    FlowMatching.fused = PLAIN not in os.environ
    codes_of, sounds = SpeechModel._codes_of, SpeechModel.sounds

    def ended(model: Any, slots: torch.Tensor, frames: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        codes = codes_of(model, slots, frames, hidden)
        tokens = model._starts[slots] - max(model._speech["voices"].values()) - CONTROLS
        is_end = frames >= FRAMES * tokens.clamp(min=1)
        semantic = torch.where(is_end, END_CODE, codes[:, 0].clamp(min=NUM_SPECIAL))
        return torch.cat((semantic[:, None], codes[:, 1:]), 1)

    def saved(model: Any, requests: Sequence[tuple[int, int]]) -> list[bytes]:
        for slot, frames in requests:
            if (seed := int(model._seeds[slot])) < SAVED_SEEDS:
                np.save(Path(os.environ[FOLDER], f"{seed}.npy"), model._frames[slot, :frames].cpu().numpy())
        return sounds(model, requests)

    SpeechModel._codes_of, SpeechModel.sounds = ended, saved
