"""Tests for web servers that send other bytes to each request, as those that insert advertisements do: a recording is
one content, or fails, and is never joined from two.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import web_server

from voxbatch.failure_kinds import FailureKind
from voxbatch.storage import StoreOptions, Stores, remote_recording, retry, retrying_client
from voxbatch.storage.errors import VaryingObject
from voxbatch.storage.recording import Recording
from voxbatch.storage.retry import STORE_REQUEST

pytestmark = pytest.mark.slow

BLOCK = 1000
EPISODE = random.Random(1).randbytes(3 * BLOCK)
SHORT, LONG, OTHER = (random.Random(size).randbytes(size) + EPISODE for size in (700, 1_300, 1_301))
SAME_LENGTH = random.Random(7).randbytes(1_300) + EPISODE
DATE = {"Last-Modified": "Tue, 03 Mar 2020 08:00:00 GMT"}
Contents = Callable[[int], bytes]


class Server(web_server.WebServer):
    """A server that gives each request the content that `contents` returns for its number."""

    def __init__(self, contents: Contents, headers: dict[str, str], refused: str = "") -> None:
        super().__init__(_Handler)
        self.contents, self.headers, self.refused = contents, headers, refused
        self.count = itertools.count()
        self.ranges: list[str] = []


class _Handler(web_server.Handler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        content, wanted = self.server.contents(next(self.server.count)), self.headers.get("Range", "")
        self.server.ranges.append(wanted)
        if wanted and re.search(self.server.refused or "$^", wanted):
            self.send_response(400)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
        start, end = (int(match[1]), min(int(match[2]) + 1, len(content))) if match else (0, len(content))
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content[start:end])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(retry.NO_WAIT, "1")
    monkeypatch.setattr(retrying_client, "STORE_REQUEST", replace(STORE_REQUEST, attempts=3))
    monkeypatch.setattr(remote_recording, "BLOCK_BYTES", BLOCK)


@contextlib.contextmanager
def opened(contents: Contents, headers: dict[str, str] = DATE, refused: str = "") -> Iterator[tuple[Recording, Server]]:
    """Open the recording of a server."""
    stores = Stores(StoreOptions(allow_private_addresses=True))
    with (
        web_server.served(Server(contents, headers, refused)) as server,
        contextlib.closing(stores.recording(f"{server.url}/episode.wav", BLOCK)) as recording,
    ):
        yield recording, server


def in_order(recording: Recording) -> bytes:
    """Read a recording in small pieces, as a decoder does."""
    return b"".join(recording.pread(300, at) for at in range(0, recording.size, 300))


@pytest.mark.parametrize("headers", [DATE, {"ETag": '"pilot"'}, {"ETag": 'W/"pilot"', **DATE}, {}])
@pytest.mark.parametrize(
    "contents",
    [
        lambda number: (SHORT, LONG)[number % 2],
        lambda number: (LONG, SHORT, OTHER)[number % 3],
        lambda number: (SHORT, LONG, OTHER)[min(number, 2)],
    ],
    ids=["two in turn", "three in turn", "never the same"],
)
def test_content_of_each_request(contents: Contents, headers: dict[str, str]) -> None:
    """A server that never gives the same twice is read in one reply: the recording is one of its contents."""
    with opened(contents, headers) as (recording, server):
        assert in_order(recording) in (SHORT, LONG, OTHER)
        with open(recording.fileno(), "rb", closefd=False) as file:
            assert file.read() in (SHORT, LONG, OTHER)
        assert len(server.ranges) <= 3


@pytest.mark.parametrize("number", range(2, 8))
@pytest.mark.parametrize("other", [SHORT, OTHER])
def test_one_other_reply(number: int, other: bytes) -> None:
    """One reply of another content is noticed, and the rest is read in one reply of the content that was begun."""
    with opened(lambda request: other if request == number else LONG) as (recording, _):
        assert in_order(recording) == LONG


@pytest.mark.parametrize("number", range(2, 6))
def test_other_content_from_now_on(number: int) -> None:
    """A content that is replaced in the middle, with the same date, fails the item: the message names the cause, and
    another run may succeed."""
    with opened(lambda request: SHORT if request >= number else LONG) as (recording, _):
        recording.pread(300, 0)
        with pytest.raises(VaryingObject, match="servers that insert advertisements do") as caught:
            in_order(recording), recording.fileno()  # all blocks may have come before
    assert (caught.value.kind, caught.value.retryable) == (FailureKind.CHANGED, True)


def test_advertisements_of_one_length() -> None:
    """Contents of one size are told apart by the bytes where two blocks meet."""
    with opened(lambda request: SAME_LENGTH if request == 2 else LONG) as (recording, _):
        assert in_order(recording) == LONG


def test_blocks_in_any_order() -> None:
    """Blocks that are read backwards are compared, too."""
    with opened(lambda request: SAME_LENGTH if request == 3 else LONG) as (recording, _):
        assert b"".join(reversed([recording.pread(500, at) for at in range(recording.size - 300, -1, -500)])) == LONG


def test_manifest() -> None:
    """A list is one content, too."""
    stores = Stores(StoreOptions(allow_private_addresses=True))
    contents = [random.Random(size).randbytes(size << 20) for size in (3, 4)]
    with (
        web_server.served(Server(lambda number: contents[number % 2], DATE)) as server,
        stores.open(f"{server.url}/list.jsonl") as file,
    ):
        assert file.read() in contents


@pytest.mark.parametrize(("refused", "ranges"), [("bytes=0-0$", 2), ("bytes=", 2)])
def test_refused_ranges(refused: str, ranges: int) -> None:
    """The size is known from the first reply, and nobody asks for bytes=0-0. A server that refuses all ranges is read
    without them."""
    with opened(lambda _: LONG, refused=refused) as (recording, server):
        assert in_order(recording) == LONG
        assert "bytes=0-0" not in server.ranges
        assert len(server.ranges) >= ranges
        stores = Stores(StoreOptions(allow_private_addresses=True))
        assert stores.stat(f"{server.url}/episode.wav").size == len(LONG)
