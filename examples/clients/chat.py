"""Ask a server about recordings, through the openai package: text, one recording, two, and a tool call.

voxbatch serve --profile mini-3b --engine-option max_model_len=8192
pip install openai
python chat.py "What is the caller's problem?" call.wav
"""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from typing import Any

from openai import OpenAI

SERVER = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
KEY = os.environ.get("OPENAI_API_KEY", "none")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "strict": True,  # without it the model is free in the names of functions and of arguments
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def recording(path: str) -> dict[str, Any]:
    """Return a recording as a part of a message: WAV, FLAC, MP3 or Ogg."""
    data = base64.b64encode(Path(path).read_bytes()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": Path(path).suffix.removeprefix(".")}}


def main(question: str, *paths: str) -> None:
    client = OpenAI(base_url=SERVER, api_key=KEY)
    model = client.models.list().data[0].id
    content = [*map(recording, paths), {"type": "text", "text": question}]
    messages: list[Any] = [{"role": "user", "content": content}]
    with client.chat.completions.create(
        model=model, messages=messages, temperature=0.2, max_tokens=200, stream=True
    ) as answer:
        for event in answer:
            print(event.choices[0].delta.content or "", end="", flush=True)
    print()
    if paths:  # a spoken request becomes a tool call
        said = client.chat.completions.create(
            model=model, messages=messages, tools=[WEATHER], temperature=0.0, max_tokens=200
        )
        for call in said.choices[0].message.tool_calls or []:
            print(f"{call.function.name}({call.function.arguments})")


if __name__ == "__main__":
    main(*sys.argv[1:])
