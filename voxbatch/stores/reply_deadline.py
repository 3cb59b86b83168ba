"""Deadline of each reply: a server that sends a byte now and then cannot hold a request open.

The clients of all stores use urllib3, whose timeout starts anew with each byte. Connections with the mixin here end a
reply whose head has taken FIRST_S seconds, or whose body has taken as many and a further second for each SLOWEST bytes.
The request then counts as failed, and is retried. Bytes give the head no further time, because a server can send
interim replies without end.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from typing import Any

FIRST_S = 60.0
"""Seconds that the head and the body of each reply may take, however little arrives."""
SLOWEST = 4 << 10
"""Bytes per second that a reply must reach beyond FIRST_S, on average. A line of 3 Mbit/s gives them to each of the 88
requests that eight decoders make at a time."""


class TimedConnection:
    """Mixin for connections of urllib3, before their class."""

    sock: Any

    def connect(self) -> None:
        """Connect, and limit the replies that come from now on."""
        super().connect()  # type: ignore[misc]
        self.sock = _TimedSocket(self.sock)

    def getresponse(self, *args: Any, **settings: Any) -> Any:
        """Read the head of a reply. From then on, the bytes that arrive give the reply more time."""
        sock = self.sock  # the connection forgets it if the reply ends it
        response = super().getresponse(*args, **settings)  # type: ignore[misc]
        if isinstance(sock, _TimedSocket) and sock.reply is not None:
            sock.reply.begin_body()
        return response


def timed(pools: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pools of a PoolManager, by their schemes, with connections that limit their replies."""
    return {
        scheme: type(
            pool.__name__, (pool,), {"ConnectionCls": type("Timed", (TimedConnection, pool.ConnectionCls), {})}
        )
        for scheme, pool in pools.items()
    }


class _TimedSocket:
    """A socket, with or without TLS, whose replies have a deadline."""

    def __init__(self, sock: Any):
        self._sock = sock
        self.reply: _TimedReply | None = None
        """The latest reply."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def makefile(self, mode: str, buffering: int | None = None) -> Any:
        """Return a file of the socket. http.client makes one for each reply."""
        if mode != "rb" or buffering == 0:
            return self._sock.makefile(mode, buffering)
        self.reply = _TimedReply(self._sock)
        return io.BufferedReader(self.reply)


class _TimedReply(io.RawIOBase):
    """The bytes of one reply."""

    def __init__(self, sock: Any):
        self._sock, self._file = sock, sock.makefile("rb", 0)
        self._idle_s = sock.gettimeout()
        self._until = time.monotonic() + FIRST_S
        self._is_body, self._latest = False, 0

    def begin_body(self) -> None:
        """Begin the time of the body: the head was read. The latest bytes of the head may be bytes of the body."""
        self._until, self._is_body = time.monotonic() + FIRST_S + self._latest / SLOWEST, True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Receive some bytes before the deadline.

        Raises:
            OSError: the deadline has passed.
            TimeoutError: no byte came for as long as the connection's timeout.
        """
        left = self._until - time.monotonic()
        if left > 0:
            self._sock.settimeout(left if self._idle_s is None else min(left, self._idle_s))
            try:
                count: int = self._file.readinto(buffer)
            except TimeoutError:
                if time.monotonic() < self._until:
                    raise
            else:
                self._latest = count
                if self._is_body:
                    self._until += count / SLOWEST
                return count
        raise OSError(f"it did not end in time: allowed are {FIRST_S:g} s, and more at {SLOWEST >> 10} KiB/s")

    def close(self) -> None:
        self._file.close()
        super().close()
