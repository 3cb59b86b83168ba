"""Answer the questions of answer.py with stock vLLM's own `LLM.chat`, one at a time.

The answers of voxbatch are compared with this reference. So it sends the recordings as WAV files in OpenAI's format,
and imports nothing of voxbatch.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from generate import engine


def chats(model: Path, recordings: dict[str, np.ndarray], asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return "tokens" of each answer, and "prompt_tokens", the number of tokens of the prompt."""
    llm = engine(model, max_model_len=4_096, limit_mm_per_prompt={"audio": 5})
    return [_chat(llm, question, recordings) for question in asked]


def _chat(llm: Any, asked: dict[str, Any], recordings: dict[str, np.ndarray]) -> dict[str, Any]:
    from vllm import SamplingParams

    sounds = [_input_audio(recordings[name]) for name in asked["recordings"]]
    messages: list[Any] = [{"role": "user", "content": [*sounds, {"type": "text", "text": asked["prompt"]}]}]
    if "system" in asked:
        messages.insert(0, {"role": "system", "content": asked["system"]})
    tools = json.loads(asked["tools"]) if "tools" in asked else None
    params = SamplingParams(temperature=0, max_tokens=asked["max_tokens"], skip_special_tokens=False)
    (result,) = llm.chat(messages, params, use_tqdm=False, tools=tools)
    return {"tokens": list(result.outputs[0].token_ids), "prompt_tokens": len(result.prompt_token_ids)}


def _input_audio(samples: np.ndarray) -> dict[str, Any]:
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, format="WAV", subtype="FLOAT")
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
