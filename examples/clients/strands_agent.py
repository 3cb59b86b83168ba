"""The agent of agent.py with Strands, which runs the loop of tool calls.

voxbatch serve --profile mini-3b --engine-option max_model_len=8192
pip install 'strands-agents[openai]'
python strands_agent.py request.wav

Strands has no recordings in its messages, and its OpenAIModel refuses unknown blocks. `SpokenModel` passes the
recording on in OpenAI's form. For a server that wants a token, such as Cloud Run's, set OPENAI_API_KEY.
"""

from __future__ import annotations

import sys
from typing import Any

from agent import TOOLS
from chat import KEY, SERVER, recording
from openai import OpenAI
from strands import Agent, tool
from strands.models.openai import OpenAIModel


class SpokenModel(OpenAIModel):
    """OpenAIModel whose messages may also have recordings in OpenAI's form."""

    @classmethod
    def format_request_message_content(cls, content: Any, **settings: Any) -> dict[str, Any]:
        """Return a block of a message in OpenAI's form."""
        if content.get("type") == "input_audio":
            return dict(content)
        return super().format_request_message_content(content, **settings)


def main(path: str) -> None:
    server = {"base_url": SERVER, "api_key": KEY}
    name = OpenAI(**server).models.list().data[0].id
    model = SpokenModel(client_args=server, model_id=name, params={"temperature": 0.0, "max_tokens": 200})
    agent = Agent(model=model, tools=[tool(function) for function in TOOLS.values()])
    agent([{"role": "user", "content": [recording(path)]}])  # prints the answer while it comes


if __name__ == "__main__":
    main(sys.argv[1])
