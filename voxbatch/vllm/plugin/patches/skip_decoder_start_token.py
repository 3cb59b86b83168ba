"""Replace WhisperMultiModalProcessor.skip_decoder_start_token: take the prompts of Whisper's decoder as they are.

vLLM puts the start token before a prompt that does not begin with it. Hints stand before the start token, and with a
second one Whisper leaves out what it hears. Only the process that makes requests adds the token.
"""

from __future__ import annotations


def add_no_start_token() -> None:
    """Leave the prompts of Whisper unchanged: voxbatch's have a start token, and those of vLLM's class, too."""
    from vllm.model_executor.models.whisper import WhisperMultiModalProcessor

    WhisperMultiModalProcessor.skip_decoder_start_token = True
