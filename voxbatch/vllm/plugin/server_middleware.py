"""ASGI middleware that `voxbatch serve` adds to vLLM's server: a limit of requests, and an access log in JSON.

vLLM's option --middleware takes the import path of a class and makes it without settings. So the limit is in an
environment variable. The counts are of this process: each instance of a service has its own.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from voxbatch.log import Log

RATE_LIMIT = "VOXBATCH_RATE_LIMIT"
"""Environment variable with the limit, such as 60/minute."""
PERIODS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_PROBES = ("/health", "/ping", "/metrics")
"""Addresses that platforms ask, which have no limit. Answers of these are logged only if they are errors."""
_MAX_CALLERS = 10_000
"""Callers that are counted at a time. Above this number, the counts start again."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests in a period: 60/minute → Rate(60, 60)."""

    num_requests: int
    period: int
    """In seconds."""

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read a rate.

        Raises:
            ValueError: the text is no number of requests in a period.
        """
        number, _, period = text.partition("/")
        if not (number.isdecimal() and int(number)) or period not in PERIODS:
            raise ValueError(f"{text!r} is no limit; write N/{'|'.join(PERIODS)}, such as 60/minute")
        return cls(int(number), PERIODS[period])


class Limiter:
    """The generic cell rate algorithm (ITU-T I.371): one number for each caller, and no bursts above the rate.

    A request is due one interval after the one before. A caller may be ahead of that by the requests of one period.
    """

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic):
        self._interval, self._period, self._clock = rate.period / rate.num_requests, rate.period, clock
        self._due: dict[str, float] = {}

    def wait(self, caller: str) -> float:
        """Count a request and return 0, or return the seconds until the caller's next request is admitted."""
        now = self._clock()
        due = max(self._due.get(caller, now), now)
        ahead = due + self._interval - now - self._period
        if ahead > 1e-6:
            return ahead
        if len(self._due) >= _MAX_CALLERS:
            self._due = {name: at for name, at in self._due.items() if at > now}
            if len(self._due) >= _MAX_CALLERS:
                self._due.clear()
        self._due[caller] = due + self._interval
        return 0.0


class RateLimit:
    """Answer 429 to callers that exceed VOXBATCH_RATE_LIMIT. A caller is an address, and a WebSocket is one request.

    Behind a proxy, uvicorn's variable FORWARDED_ALLOW_IPS names the proxies whose X-Forwarded-For is believed.
    """

    def __init__(self, app: App):
        self._app = app
        self._limiter = Limiter(Rate.parse(os.environ[RATE_LIMIT]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "lifespan" and scope["path"] not in _PROBES and scope.get("method") != "OPTIONS":
            caller = (scope.get("client") or ("",))[0]
            if wait := self._limiter.wait(caller):
                await _refuse(scope, send, math.ceil(wait))
                return
        await self._app(scope, receive, send)


async def _refuse(scope: Scope, send: Send, wait: int) -> None:
    """Send OpenAI's form of an error; its clients retry after the time of the header."""
    error = {"message": f"too many requests; try again in {wait} s", "type": "rate_limit_exceeded", "code": 429}
    prefix = "" if scope["type"] == "http" else "websocket."
    if prefix and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1013})  # try again later; the server answers 403
        return
    headers = [(b"content-type", b"application/json"), (b"retry-after", str(wait).encode())]
    await send({"type": f"{prefix}http.response.start", "status": 429, "headers": headers})
    await send({"type": f"{prefix}http.response.body", "body": json.dumps({"error": error}).encode()})


class AccessLog:
    """Log each request as a line of JSON, by the names of Cloud Logging's HttpRequest. It has no query string."""

    def __init__(self, app: App):
        self._app = app
        self._log = Log(as_json=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and log its end."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"].endswith("http.response.start"):
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = 101
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            if status >= 400 or scope["path"] not in _PROBES:
                request = {
                    "requestMethod": scope.get("method", "GET"), "requestUrl": scope["path"], "status": status,
                    "latency": f"{time.monotonic() - began:.3f}s", "remoteIp": (scope.get("client") or ("",))[0],
                }  # fmt: skip
                (self._log.error if status >= 500 else self._log.info)("request", httpRequest=request)
