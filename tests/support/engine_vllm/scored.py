"""Transcribe chunks (npz) with stock vLLM, one request at a time, into tokens and their scores (json).

    python scored.py MODEL_DIR CHUNKS.npz OUT.json

The JSON holds "tokens", "logprobs" and "entropies" by name. The log-probabilities are vLLM's own (SamplingParams:
logprobs), and the entropies are those of all its log-probabilities at a position. As generate.py, the script is a
reference and imports nothing of voxbatch.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import generate
import numpy as np


def main(model: str, chunks: str, out: str) -> None:
    """Transcribe every chunk of the npz `chunks` with the model in the folder `model`, and write the results to
    `out`."""
    os.environ.update(generate.ENVIRONMENT)
    with np.load(chunks) as archive:
        waveforms = {name: archive[name] for name in archive.files}
    instruct = generate.tokenizer(model)
    streaming = instruct.audio_encoder.audio_config.is_streaming
    llm = generate._engine(model, max_model_len=512 if streaming else 1_024, max_logprobs=-1)
    found: dict[str, Any] = {"tokens": {}, "logprobs": {}, "entropies": {}}
    for name, waveform in waveforms.items():
        encoded = generate.encode(instruct, waveform)
        limit = generate._max_tokens(instruct, len(waveform), len(encoded.tokens), llm.model_config.max_model_len)
        said = _said(llm, encoded, limit)
        found["tokens"][name] = list(said.token_ids)
        every = [np.array([choice.logprob for choice in choices.values()]) for choices in said.logprobs]
        pairs = zip(said.token_ids, said.logprobs, strict=True)
        found["logprobs"][name] = [choices[token].logprob for token, choices in pairs]
        found["entropies"][name] = [float(-(np.exp(each) * each).sum()) for each in every]
    Path(out).write_text(json.dumps(found))


def _said(llm: Any, encoded: Any, limit: int) -> Any:
    """Return vLLM's CompletionOutput, with the log-probabilities of the whole vocabulary at each position."""
    from vllm import SamplingParams

    audio = (encoded.audios[0].audio_array, generate.SAMPLING_RATE)
    prompt = {"prompt_token_ids": encoded.tokens, "multi_modal_data": {"audio": audio}}
    params = SamplingParams(temperature=0, max_tokens=limit, detokenize=False, logprobs=-1)
    (result,) = llm.generate(prompt, params, use_tqdm=False)
    return result.outputs[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
