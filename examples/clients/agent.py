"""An agent that does what a recording asks for: the model chooses tools until it has an answer.

voxbatch serve --profile mini-3b --engine-option max_model_len=8192
pip install openai
python agent.py request.wav
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from chat import KEY, SERVER, recording
from openai import OpenAI

MOST_TURNS = 5


def current_time() -> str:
    """Get the current time in UTC."""
    return datetime.now(UTC).isoformat(timespec="minutes")


def calculate(expression: str) -> str:
    """Add, subtract, multiply or divide two numbers, such as 2.5 * 4."""
    left, operator, right = expression.split()
    a, b = float(left), float(right)
    return str({"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else "nothing"}[operator])


TOOLS: dict[str, Callable[..., str]] = {"current_time": current_time, "calculate": calculate}
DESCRIPTIONS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": tool.__doc__,
            "strict": True,  # without it the model is free in the names of functions and of arguments
            "parameters": {
                "type": "object",
                "properties": {each: {"type": "string"} for each in tool.__annotations__ if each != "return"},
                "required": [each for each in tool.__annotations__ if each != "return"],
                "additionalProperties": False,
            },
        },
    }
    for name, tool in TOOLS.items()
]


def run(client: OpenAI, path: str) -> str:
    """Return the answer to a spoken request."""
    model = client.models.list().data[0].id
    messages: list[Any] = [{"role": "user", "content": [recording(path)]}]
    for _ in range(MOST_TURNS):
        said = client.chat.completions.create(
            model=model, messages=messages, tools=DESCRIPTIONS, temperature=0.0, max_tokens=200
        )
        message = said.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message)
        for call in message.tool_calls:
            try:
                result = TOOLS[call.function.name.strip()](**json.loads(call.function.arguments))
            except (KeyError, TypeError, ValueError) as e:
                result = f"error: {e}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return f"no answer after {MOST_TURNS} turns"


if __name__ == "__main__":
    print(run(OpenAI(base_url=SERVER, api_key=KEY), sys.argv[1]))
