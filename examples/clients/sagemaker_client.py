"""Ask a SageMaker endpoint about a recording, with boto3.

python sagemaker_client.py ENDPOINT "What is the caller's problem?" call.wav
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any


def body(question: str, path: str) -> bytes:
    """Return the request: OpenAI's chat format, which /invocations takes. One endpoint has one model."""
    data = base64.b64encode(Path(path).read_bytes()).decode()
    audio = {"type": "input_audio", "input_audio": {"data": data, "format": Path(path).suffix.removeprefix(".")}}
    content = [audio, {"type": "text", "text": question}]
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 200}).encode()


def openai_form(payload: dict[str, Any]) -> dict[str, Any]:
    """Return a request of AWS's published example for Voxtral in OpenAI's form, which vLLM takes.

    The example has a server of its own. Its parts {"type": "audio", "path": ADDRESS} and {"type": "audio", "data":
    "data:audio/mp3;base64,…"} are audio_url parts here. All other keys, as tools, are the same in both.
    """

    def part(given: dict[str, Any]) -> dict[str, Any]:
        if given["type"] != "audio":
            return given
        return {"type": "audio_url", "audio_url": {"url": given.get("path") or given["data"]}}

    messages = [
        {**each, "content": [part(given) for given in each["content"]]} if isinstance(each["content"], list) else each
        for each in payload["messages"]
    ]
    return {**payload, "messages": messages}


def ask(client: Any, endpoint: str, question: str, path: str) -> str:
    """Return the answer of an endpoint; `client` is boto3's sagemaker-runtime."""
    found = client.invoke_endpoint(EndpointName=endpoint, ContentType="application/json", Body=body(question, path))
    answer: str = json.load(found["Body"])["choices"][0]["message"]["content"]
    return answer


if __name__ == "__main__":
    import boto3

    print(ask(boto3.client("sagemaker-runtime"), *sys.argv[1:4]))
