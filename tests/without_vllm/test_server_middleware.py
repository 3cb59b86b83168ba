"""Tests for the middleware of `voxbatch serve` without a server. tests/engine_vllm/test_serve.py has it in vLLM's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import discovery
import pytest

from voxbatch.vllm.plugin.server_middleware import AccessLog, Limiter, Rate


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_limit_admits_the_rate_and_no_more() -> None:
    """A caller may send the requests of one period at once, then one for each interval. Callers do not share a limit,
    and the time that a refused request is told is enough.
    """
    clock = Clock()
    limiter = Limiter(Rate.parse("3/minute"), clock)
    assert [limiter.wait("a") for _ in range(3)] == [0, 0, 0]
    assert limiter.wait("b") == 0
    assert limiter.wait("a") == pytest.approx(20)
    clock.now = 20.0
    assert [bool(limiter.wait("a")) for _ in range(2)] == [False, True]
    clock.now = 1_000.0
    assert [bool(limiter.wait("a")) for _ in range(4)] == [False, False, False, True]


def test_counts_need_bounded_memory() -> None:
    """A million callers need the memory of ten thousand."""
    limiter = Limiter(Rate.parse("1/day"), Clock())
    for number in range(30_000):
        assert limiter.wait(f"{number}") == 0
    assert len(limiter._due) <= 10_000


@pytest.mark.parametrize(("status", "severity"), [(404, "INFO"), (500, "ERROR")])
def test_access_log_has_the_published_form(status: int, severity: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of the access log is an HttpRequest of Cloud Logging, without the query, which may hold a key."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})

    async def discard(_message: Any) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": "/v1/x", "query_string": b"key=1", "client": ("10.0.0.1", 5)}
    asyncio.run(AccessLog(app)(scope, discard, discard))  # type: ignore[arg-type]  # nobody receives
    line = json.loads(capsys.readouterr().err)
    request = line["httpRequest"]
    assert discovery.api("logging.v2").faults(request, "HttpRequest") == []
    assert (request["requestUrl"], request["status"], request["remoteIp"]) == ("/v1/x", status, "10.0.0.1")
    assert line["severity"] == severity
