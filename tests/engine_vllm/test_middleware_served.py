"""Tests for the middleware of `voxbatch serve` in uvicorn, asked by the clients of openai and websockets. test_serve.py
has it in vLLM's own server.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from voxbatch.vllm_plugin.server_middleware import RATE_LIMIT, AccessLog, RateLimit

pytest.importorskip("vllm", reason="vLLM is not installed")

import httpx2
import openai
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Run an application in uvicorn, and yield its address without the scheme."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", ws="websockets-sansio"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.02)
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def application() -> Any:
    """Return an application with an address of each kind, with the middleware as vLLM adds it."""

    async def models(_: Any) -> Any:
        return JSONResponse({"object": "list", "data": []})

    async def realtime(websocket: Any) -> None:
        await websocket.accept()
        await websocket.close()

    async def broken(_: Any) -> Any:
        raise RuntimeError

    routes = [Route("/v1/models", models), Route("/health", models), Route("/broken", broken)]
    app = Starlette(routes=[*routes, WebSocketRoute("/v1/realtime", realtime)])
    app.add_middleware(RateLimit)
    app.add_middleware(AccessLog)
    return app


def test_clients_are_limited_and_logged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The openai package gets its RateLimitError with the time to wait, and a WebSocket the status 429. Probes are
    never refused. The log has each request but the probes, without its query.
    """

    async def open_realtime(address: str) -> int:
        try:
            async with connect(f"ws://{address}/v1/realtime"):
                return 101
        except InvalidStatus as e:
            return int(e.response.status_code)

    monkeypatch.setenv(RATE_LIMIT, "4/hour")
    with served(application()) as address:
        client = openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0)
        assert list(client.models.list()) == []
        assert httpx2.get(f"http://{address}/v1/models?key=secret").status_code == 200
        assert httpx2.get(f"http://{address}/broken").status_code == 500
        assert asyncio.run(open_realtime(address)) == 101
        assert asyncio.run(open_realtime(address)) == 429
        with pytest.raises(openai.RateLimitError, match="too many requests; try again in") as refused:
            client.models.list()
        assert 0 < int(refused.value.response.headers["retry-after"]) <= 900
        assert {httpx2.get(f"http://{address}/health").status_code for _ in range(9)} == {200}

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    requests = [line["httpRequest"] for line in lines]
    assert [(each["requestUrl"], each["status"]) for each in requests] == [
        ("/v1/models", 200), ("/v1/models", 200), ("/broken", 500), ("/v1/realtime", 101), ("/v1/realtime", 429),
        ("/v1/models", 429),
    ]  # fmt: skip
    assert [line["severity"] for line in lines] == ["INFO", "INFO", "ERROR", "INFO", "INFO", "INFO"]
