"""Transcribe chunks (npz) with stock vLLM, one request at a time, into tokens (json).

    python generate.py MODEL_DIR CHUNKS.npz OUT.json

The npz holds mono chunks at 16 kHz, one array each, under any names. The JSON is {name: [token, …]}, in the same order.
Other ways of running a model are compared with this reference. So it uses the official prompt, runs one request at a
time, and imports nothing of voxbatch.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

# Threads that are bound to cores compete on a small machine: one unbound thread is ten times as fast there. The engine
# runs in this process, so that it ends with this process.
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
    """Transcribe every chunk of the npz `chunks` with the model in the folder `model`, and write the tokens to
    `out`."""
    os.environ.update(ENVIRONMENT)
    with np.load(chunks) as archive:
        waveforms = {name: archive[name] for name in archive.files}
    Path(out).write_text(json.dumps(generate(model, waveforms)))


def generate(model: str, waveforms: dict[str, np.ndarray]) -> dict[str, list[int]]:
    """Return the generated tokens of each waveform ([samples], float32, 16 kHz), without the prompt. ENVIRONMENT must
    be set."""
    instruct = tokenizer(model)
    streaming = instruct.audio_encoder.audio_config.is_streaming
    llm = _engine(model, max_model_len=512 if streaming else 1_024)
    return {name: _transcribe(llm, instruct, waveform) for name, waveform in waveforms.items()}


def tokenizer(model: str) -> Any:
    """Return mistral_common's instruct tokenizer of the folder `model`."""
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
        mm_processor_cache_gb=0,
        **{"dtype": "float32", "limit_mm_per_prompt": {"audio": 1}, **others},
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
    """Return the prompt and the padded audio of a waveform, made in the official way, which rounds the samples to 16
    bits."""
    from mistral_common.protocol.transcription.request import StreamingMode, TranscriptionRequest
    from mistral_common.tokens.tokenizers.audio import Audio

    audio = Audio(waveform, SAMPLING_RATE, format="wav").to_base64("wav")
    if instruct.audio_encoder.audio_config.is_streaming:
        request = TranscriptionRequest(audio=audio, streaming=StreamingMode.OFFLINE, language=None)
    else:
        request = TranscriptionRequest(audio=audio, language=LANGUAGE)
    return instruct.encode_transcription(request)


def _max_tokens(instruct: Any, num_samples: int, prompt: int, max_model_len: int) -> int:
    """Return the maximum number of tokens. Realtime may generate one for each 80 ms: one token more kills the
    engine."""
    config = instruct.audio_encoder.audio_config
    if not config.is_streaming:
        return max_model_len - prompt
    positions = math.ceil(num_samples / SAMPLES_PER_TOKEN) + config.n_left_pad_tokens + config.n_right_pad_tokens()
    limit: int = positions - prompt - 1
    return limit


if __name__ == "__main__":
    main(*sys.argv[1:])
