"""Stock vLLM, one request at a time: chunks (npz) in, tokens (json) out.

    python generate.py MODEL_DIR CHUNKS.npz OUT.json

The npz holds mono chunks at 16 kHz, one array each, under any names; the JSON is {name: [token, …]}, in their order.
This is the reference that other ways of running a model are held against, so it takes the official prompt, adds no
request while another runs, and imports nothing of ours.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

# Threads bound to cores fight over a small machine: one thread, unbound, is ten times as fast there. And everything in
# this process, so that whoever ends it has ended the engine.
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
SAMPLING_RATE = 16_000
SAMPLES_PER_TOKEN = 1_280
LANGUAGE = "en"


def main(model: str, chunks: str, out: str) -> None:
    """Transcribes every chunk of the npz `chunks` with the model in the folder `model`; the tokens go to `out`."""
    os.environ.update(ENVIRONMENT)
    with np.load(chunks) as archive:
        waveforms = {name: archive[name] for name in archive.files}
    Path(out).write_text(json.dumps(generate(model, waveforms)))


def generate(model: str, waveforms: dict[str, np.ndarray]) -> dict[str, list[int]]:
    """Each waveform's ([samples], float32, 16 kHz) generated tokens, without the prompt; ENVIRONMENT must be set."""
    instruct = tokenizer(model)
    streaming = instruct.audio_encoder.audio_config.is_streaming
    llm = _engine(model, max_model_len=512 if streaming else 1_024)
    return {name: _transcribe(llm, instruct, waveform) for name, waveform in waveforms.items()}


def tokenizer(model: str) -> Any:
    """mistral_common's instruct tokenizer of the folder `model`."""
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    return MistralTokenizer.from_file(str(Path(model) / "tekken.json")).instruct_tokenizer


def _engine(model: str, max_model_len: int, **others: Any) -> Any:
    from vllm import LLM

    return LLM(
        model=model,
        config_format="mistral",
        load_format="mistral",
        tokenizer_mode="mistral",
        max_model_len=max_model_len,
        enforce_eager=True,
        enable_prefix_caching=False,
        limit_mm_per_prompt={"audio": 1},
        mm_processor_cache_gb=0,
        **{"dtype": "float32", **others},
    )


def _transcribe(llm: Any, instruct: Any, waveform: np.ndarray) -> list[int]:
    from vllm import SamplingParams

    encoded = encode(instruct, waveform)
    prompt = {
        "prompt_token_ids": encoded.tokens,
        "multi_modal_data": {"audio": (encoded.audios[0].audio_array, SAMPLING_RATE)},
    }
    max_tokens = _max_tokens(instruct, len(waveform), len(encoded.tokens), llm.model_config.max_model_len)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=False, detokenize=False)
    (result,) = llm.generate(prompt, params, use_tqdm=False)
    return list(result.outputs[0].token_ids)


def encode(instruct: Any, waveform: np.ndarray) -> Any:
    """The official way from a waveform to a prompt and the padded audio; it rounds the samples to 16 bits."""
    from mistral_common.protocol.transcription.request import StreamingMode, TranscriptionRequest
    from mistral_common.tokens.tokenizers.audio import Audio

    audio = Audio(waveform, SAMPLING_RATE, format="wav").to_base64("wav")
    if instruct.audio_encoder.audio_config.is_streaming:
        request = TranscriptionRequest(audio=audio, streaming=StreamingMode.OFFLINE, language=None)
    else:
        request = TranscriptionRequest(audio=audio, language=LANGUAGE)
    return instruct.encode_transcription(request)


def _max_tokens(instruct: Any, num_samples: int, prompt: int, max_model_len: int) -> int:
    """Realtime may say one token for each 80 ms, and not one more: without audio for it, the engine dies."""
    config = instruct.audio_encoder.audio_config
    if not config.is_streaming:
        return max_model_len - prompt
    positions = math.ceil(num_samples / SAMPLES_PER_TOKEN) + config.n_left_pad_tokens + config.n_right_pad_tokens()
    return positions - prompt - 1


if __name__ == "__main__":
    main(*sys.argv[1:])
