"""Answer questions (json) about recordings (npz) with stock vLLM's own `LLM.chat`, one at a time, into tokens (json).

    python chat.py MODEL_DIR RECORDINGS.npz QUESTIONS.json OUT.json

The questions are those of answer.py, whose answers are compared with this reference. So it sends the recordings as WAV
files in OpenAI's format, and imports nothing of voxbatch. The output is a list of token ids for each question, and of
the number of prompt tokens.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from generate import ENVIRONMENT, _engine


def main(model: str, npz: str, questions: str, out: str) -> None:
    """Answer the questions with the model in the folder `model`, and write the tokens to `out`."""
    os.environ.update(ENVIRONMENT)
    with np.load(npz) as archive:
        recordings = {name: archive[name] for name in archive.files}
    llm = _engine(model, max_model_len=4_096, limit_mm_per_prompt={"audio": 5})
    asked = json.loads(Path(questions).read_text())
    Path(out).write_text(json.dumps([chat(llm, each, recordings) for each in asked]))


def chat(llm: Any, asked: dict[str, Any], recordings: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the tokens of the answer, and the number of tokens of the prompt."""
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


if __name__ == "__main__":
    main(*sys.argv[1:])
