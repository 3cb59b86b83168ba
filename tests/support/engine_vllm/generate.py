"""Transcribe chunks with stock vLLM, one request at a time, into tokens and their scores.

Other ways of running a model are compared with this reference. So it uses the official prompt, runs one request at a
time, and imports nothing of voxbatch.
"""

from __future__ import annotations

import math
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


def transcribe(model: Path, waveforms: dict[str, np.ndarray], scores: bool = False) -> dict[str, dict[str, Any]]:
    """Return the "tokens" of mono chunks at 16 kHz by their names.

    With `scores` also "logprobs", which are vLLM's own (SamplingParams: logprobs), and "entropies", those of all its
    log-probabilities at a position.
    """
    instruct = tokenizer(model)
    streaming = instruct.audio_encoder.audio_config.is_streaming
    scored: dict[str, Any] = {"max_logprobs": -1} if scores else {}
    llm = engine(model, max_model_len=512 if streaming else 1_024, **scored)
    sampling: dict[str, Any] = {"logprobs": -1} if scores else {}  # of the whole vocabulary
    said = {name: _transcribe(llm, instruct, waveform, **sampling) for name, waveform in waveforms.items()}
    tokens = {name: list(completion.token_ids) for name, completion in said.items()}
    return {"tokens": tokens, **(_scores(said) if scores else {})}


def generate(model: Path, audio: dict[str, np.ndarray]) -> dict[str, list[int]]:
    """Return the tokens of audio that is padded already or has an unusual beginning, one request at a time."""
    llm = engine(model, 512)
    return {name: generated(llm, model, [samples])[0] for name, samples in audio.items()}


def generated(llm: Any, model: Path, audio: list[np.ndarray]) -> list[list[int]]:
    """Return the tokens of padded audio, all requests at once."""
    from vllm import SamplingParams

    ids = encode(tokenizer(model), np.zeros(SAMPLING_RATE, np.float32)).tokens
    prompts = [{"prompt_token_ids": ids, "multi_modal_data": {"audio": (each, SAMPLING_RATE)}} for each in audio]
    limits = [len(each) // SAMPLES_PER_TOKEN - len(ids) - 1 for each in audio]
    greedy = {"temperature": 0, "ignore_eos": True, "detokenize": False}
    results = llm.generate(prompts, [SamplingParams(max_tokens=limit, **greedy) for limit in limits], use_tqdm=False)
    return [list(result.outputs[0].token_ids) for result in results]


def _scores(said: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Return the log-probability of each token, and the entropy at its position."""
    found: dict[str, dict[str, list[float]]] = {"logprobs": {}, "entropies": {}}
    for name, completion in said.items():
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        found["logprobs"][name] = [choices[token].logprob for token, choices in pairs]
        every = [np.array([choice.logprob for choice in choices.values()]) for choices in completion.logprobs]
        found["entropies"][name] = [float(-(np.exp(logprobs) * logprobs).sum()) for logprobs in every]
    return found


def tokenizer(model: Path) -> Any:
    """Return mistral_common's instruct tokenizer of the folder `model`."""
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    return MistralTokenizer.from_file(str(model / "tekken.json")).instruct_tokenizer


def engine(model: Path, max_model_len: int, **others: Any) -> Any:
    """Return stock vLLM's LLM in this process, with which it ends."""
    from vllm import LLM

    return LLM(
        model=str(model),
        config_format="mistral",
        load_format="mistral",
        tokenizer_mode="mistral",
        max_model_len=max_model_len,
        enforce_eager=True,
        enable_prefix_caching=False,
        mm_processor_cache_gb=0,
        **{"dtype": "float32", "limit_mm_per_prompt": {"audio": 1}, **others},
    )


def _transcribe(llm: Any, instruct: Any, waveform: np.ndarray, **sampling: Any) -> Any:
    """Return vLLM's CompletionOutput of a waveform ([samples], float32, 16 kHz)."""
    from vllm import SamplingParams

    encoded = encode(instruct, waveform)
    prompt = {
        "prompt_token_ids": encoded.tokens,
        "multi_modal_data": {"audio": (encoded.audios[0].audio_array, SAMPLING_RATE)},
    }
    max_tokens = _max_tokens(instruct, len(waveform), len(encoded.tokens), llm.model_config.max_model_len)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=False, detokenize=False, **sampling)
    (result,) = llm.generate(prompt, params, use_tqdm=False)
    return result.outputs[0]


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
