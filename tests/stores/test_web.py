"""Tests for recordings on web servers that may misbehave: voxbatch accepts only correct bytes, and only from permitted
addresses.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import email.utils
import http.client
import ipaddress
import itertools
import logging
import re
import socket
import ssl
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import web_server
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from voxbatch.errors import AudioError, StorageError, VoxbatchError
from voxbatch.failure_kinds import FailureKind
from voxbatch.storage import StoreOptions, Stores, remote_recording, retry, retrying_client
from voxbatch.storage.errors import ObjectNotFound, TransientError, UnknownHost, UnusableObject
from voxbatch.storage.objects import Stat
from voxbatch.storage.recording import Recording
from voxbatch.storage.retry import STORE_REQUEST
from voxbatch.storage.retrying_client import RetryingReader
from voxbatch.storage.waits import longest_wait
from voxbatch.stores import reply_deadline, ssrf_guard
from voxbatch.stores.web import WebServer, parse_web_address

pytestmark = pytest.mark.slow

HERE = StoreOptions(allow_private_addresses=True)
BLOCK = 1000
SECRET = "s3cr3t"
THEN = "Mon, 01 Jan 2024 00:00:00 GMT"
LATER = "Fri, 01 Jan 2100 00:00:00 GMT"
BODY = bytes(itertools.islice(itertools.cycle(range(251)), 2 * BLOCK + 345))

Answer = Callable[["Handler"], None]


class Handler(web_server.Handler):
    """A handler that sends the next answer of the requested path."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Any

    def do_GET(self) -> None:
        site: Site = self.server.site
        site.asked.append((self.path, dict(self.headers)))
        answers = site.answers[self.path.partition("?")[0]]
        (answers.pop(0) if len(answers) > 1 else answers[0])(self)

    def reply(self, status: int, body: bytes = b"", length: int | None = None, /, **headers: str) -> None:
        """Send a reply; `length` is the value of Content-Length, and -1 leaves the header out and ends the body by
        closing the connection.
        """
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if length == -1:
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        with contextlib.suppress(OSError):  # a client that has enough bytes closes the connection
            self.wfile.write(body)


class Server(web_server.WebServer):
    """A web server that counts its connections."""

    site: Site
    connections = 0

    def get_request(self) -> tuple[socket.socket, Any]:
        self.connections += 1
        return super().get_request()


@dataclass
class Site:
    """A running server with the answers of each path and the requests that it received."""

    server: Server
    scheme: str = "http"
    host: str = "127.0.0.1"
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def url(self, path: str) -> str:
        return f"{self.scheme}://{self.host}:{self.port}{path}"

    def web(self, options: StoreOptions = HERE) -> WebServer:
        return WebServer(self.url("/"), options)

    def put(self, path: str, *answers: Answer) -> str:
        """Set the answers for a path: each request gets the next answer, and the last answer is repeated."""
        self.answers[path] = list(answers)
        return self.url(path)


def file(body: bytes = BODY, ranges: bool = True, **headers: str) -> Answer:
    """Return the answer of a server that supports byte ranges, or of a server that does not."""

    def answer(handler: Handler) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        if not (wanted and ranges):
            handler.reply(200, body, **headers)
            return
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(body))
        if start >= len(body):
            handler.reply(416, Content_Range=f"bytes */{len(body)}")
        else:
            handler.reply(206, body[start:end], Content_Range=f"bytes {start}-{end - 1}/{len(body)}", **headers)

    return answer


def said(status: int, body: bytes = b"", length: int | None = None, **headers: str) -> Answer:
    """Return an answer with this status and body."""
    return lambda handler: handler.reply(status, body, length, **headers)


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> Answer:
    """Return an answer in chunked encoding; `end` replaces its final chunk."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for chunk in chunks:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        handler.wfile.write(end)
        handler.close_connection = end == b""

    return answer


def drip(*parts: bytes) -> Answer:
    """Return an answer that sends `parts`, then one byte every 10 ms until the client closes the connection."""

    def answer(handler: Handler) -> None:
        handler.close_connection = True
        with contextlib.suppress(OSError):
            for part in parts:
                handler.wfile.write(part)
            while not PAUSE.wait(0.01):
                handler.wfile.write(b"x")

    return answer


PAUSE = threading.Event()
"""An event that is never set, so that `wait` is a pause."""


def flood(handler: Handler) -> None:
    """Send interim replies (100 Continue) without end."""
    handler.close_connection = True
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


@contextlib.contextmanager
def running(context: ssl.SSLContext | None = None) -> Iterator[Site]:
    """Run a site, with TLS if a context is given."""
    server = Server(Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.site = Site(server, "https" if context else "http")
    with web_server.served(server):
        yield server.site


@pytest.fixture
def site() -> Iterator[Site]:
    with running() as found:
        yield found


@pytest.fixture(scope="module")
def shared() -> Iterator[Site]:
    """Yield one server that all examples of the property tests share."""
    with running() as found:
        yield found


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(retry.NO_WAIT, "1")
    monkeypatch.setattr(retrying_client, "STORE_REQUEST", replace(STORE_REQUEST, attempts=3))
    monkeypatch.setattr(remote_recording, "BLOCK_BYTES", BLOCK)


def open_recording(uri: str, options: StoreOptions) -> Recording:
    """Open a recording with small blocks of BLOCK bytes."""
    return Stores(options).recording(uri, BLOCK)


def whole(found: Recording) -> bytes:
    """Return all bytes of a recording and close it."""
    with contextlib.closing(found):
        return found.pread(1 << 30, 0)


# ── byte ranges ───────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 70), st.integers(1, 70), st.booleans())
def test_any_byte_range_is_a_slice(shared: Site, body: bytes, start: int, count: int, tagged: bool) -> None:
    """Any byte range is the slice of the body, and empty behind the end; the reported size is the size of the body."""
    shared.put("/x", file(body, ETag='"1"') if tagged else file(body))
    web = shared.web()
    assert web.get("x", start, start + count).data == body[start : start + count]
    assert web.stat("x") == Stat("x", len(body), '"1"' if tagged and body else "")
    assert b"".join(web.stream(web.stat("x"))) == body


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.integers(1, 120))
def test_server_without_ranges_gives_the_start(shared: Site, chunks: list[bytes], end: int) -> None:
    """A server that ignores ranges gives the start of the file, reports that the answer is the whole file, and streams
    the whole file.
    """
    body = b"".join(chunks)
    for answer, size in ((file(body, ranges=False), len(body)), (chunked(*chunks), -1), (said(200, body, -1), -1)):
        shared.put("/x", answer)
        web = shared.web()
        piece = web.get("x", 0, end)
        assert (piece.data, piece.is_whole_object) == (body[:end], True)
        assert web.stat("x") == Stat("x", size, "")
        assert b"".join(web.stream(web.stat("x"))) == body
        with pytest.raises(UnusableObject, match="now sends only the whole file"):
            web.get("x", 1, 2)


def test_request_names_range_and_revision_only(site: Site) -> None:
    """A request names its range and revision, asks for no compression, and identifies voxbatch; it has no other
    headers.
    """
    site.put("/a/b.wav", file(ETag='"1"'))
    site.put("/dated", file(Last_Modified=THEN))
    web = site.web()
    web.get("a/b.wav?x=%2F&y=é", 5, 9, web.get("a/b.wav", 0, 1).tag)
    web.stat("dated", web.stat("dated").tag)
    path, headers = site.asked[1]
    assert path == "/a/b.wav?x=%2F&y=%C3%A9"
    agent = headers.pop("User-Agent")
    assert agent.startswith("voxbatch/")
    assert headers == {
        "Host": f"127.0.0.1:{site.port}", "Accept-Encoding": "identity", "Range": "bytes=5-8", "If-Match": '"1"',
    }  # fmt: skip
    assert site.asked[3][1]["If-Unmodified-Since"] == THEN
    assert {path.partition("?")[0] for path, _ in site.asked} == {"/a/b.wav", "/dated"}


@pytest.mark.parametrize(
    ("headers", "tag"),
    [
        ({"ETag": '"a"', "Last_Modified": THEN}, '"a"'),
        ({"ETag": 'W/"a"', "Last_Modified": THEN}, THEN),
        ({"ETag": 'W/"a"'}, ""),
        ({"Last_Modified": THEN}, THEN),
        ({"Last_Modified": LATER}, ""),
        ({"Last_Modified": "then"}, ""),
        ({}, ""),
    ],
)
def test_strong_etag_or_date_pins_a_revision(site: Site, headers: dict[str, Any], tag: str) -> None:
    """A strong ETag pins a revision, else the Last-Modified date does if it is past; a weak ETag pins nothing."""
    site.put("/x", file(**headers))
    web = site.web()
    assert web.get("x", 0, 5).tag == tag
    assert web.get("x", 5, 9, tag).data == BODY[5:9]


def test_consecutive_requests_share_a_connection(site: Site) -> None:
    """Consecutive requests share one connection, also after redirects, empty replies and missing files."""
    site.put("/x", file())
    site.put("/moved", said(302, b"moved", Location="/x"))
    site.put("/empty", said(301, Location="/x"))
    web = site.web()
    for key in ("x", "moved", "empty", "x"):
        assert web.get(key, 0, 9).data == BODY[:9]
        web.stat(key)
        assert b"".join(web.stream(Stat(key, -1, ""))) == BODY
        web.get("x", len(BODY), len(BODY) + 1)
    assert site.server.connections == 1


def test_threads_share_limited_connections(site: Site) -> None:
    """Threads share a limited number of connections to a server, and an error reply does not lose one."""
    site.put("/x", file(), said(503), file(ranges=False), said(404), file())
    reader = RetryingReader(site.web())
    results: list[bytes] = []

    def read() -> None:
        for _ in range(10):
            with contextlib.suppress(StorageError):
                results.append(reader.get("x", 0, 100).data)

    threads = [threading.Thread(target=read) for _ in range(ssrf_guard.CONNECTIONS + 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) >= 10 * len(threads) - 3
    assert set(results) == {BODY[:100]}


# ── recordings ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, len(BODY)])
def test_recording_has_the_bytes_of_the_file(site: Site, size: int, ranges: bool) -> None:
    """A recording has the bytes of the file at any size, read in blocks or whole; so have its temporary file and a
    manifest.
    """
    body = (BODY * 2)[:size]
    url = site.put("/r.wav", file(body, ranges, ETag='"1"'))
    found = open_recording(url, HERE)
    assert found.size == size
    assert found.is_file == (not ranges or size < BLOCK)
    assert whole(found) == body
    with contextlib.closing(open_recording(url, HERE)) as found:
        with open(found.fileno(), "rb", closefd=False) as opened:
            assert opened.read() == body
        assert found.pread(10, 3) == body[3:13]
    with Stores(HERE).open(url) as opened:
        assert opened.read() == body


def test_odd_addresses_request_the_right_path(site: Site) -> None:
    """Addresses without a path, with slashes in the query, or with a fragment request the right path."""
    site.put("/", file(b"root"))
    for end in ("", "/", "?a=/b/c", "/?a=/b", "#x", "/#/x?y"):
        assert whole(open_recording(site.url(end), HERE)) == b"root"
    assert [path for path, _ in site.asked] == ["/", "/", "/?a=/b/c", "/?a=/b", "/", "/"]


# ── revisions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "then",
    [
        file(BODY[::-1], ETag='"2"'),
        file(BODY, ETag='"2"', ranges=False),
        file(BODY),
        said(412),
        file(BODY[:1500]),
    ],
    ids=["replaced", "without ranges", "no tag", "refused", "shorter"],
)
def test_recording_that_changes_fails_its_item(site: Site, then: Answer) -> None:
    """A recording that changes between two blocks fails its item with the reason; revisions are never mixed."""
    first, stat = file(ETag='"1"'), file(ETag='"1"')
    url = site.put("/r.wav", first, stat, then)
    found = open_recording(url, HERE)
    with pytest.raises(UnusableObject, match=r"changed while it was read|replaced meanwhile"):
        whole(found)


@pytest.mark.parametrize("then", [file(ETag='"2"'), file(b"short", ETag='"1"'), chunked(BODY)])
def test_change_after_the_first_block_is_detected(site: Site, then: Answer) -> None:
    """A change between the first block and the request for the size is detected, also if that reply has no size."""
    url = site.put("/r.wav", file(ETag='"1"'), then)
    with pytest.raises(AudioError, match="changed while it was read"):
        open_recording(url, HERE)


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"1"'}, {"Last_Modified": LATER}])
def test_recording_without_a_revision_is_read_in_one_request(site: Site, headers: dict[str, Any]) -> None:
    """A recording or a manifest without an ETag or a date that tells two contents apart is read in one request, and is
    never joined from two contents.
    """
    contents = [BODY, BODY[::-1], bytes(len(BODY)), b"x" * len(BODY)]
    url = site.put("/r.wav", *(file(content, **headers) for content in contents))
    assert whole(open_recording(url, HERE)) in contents
    site.put("/r.wav", *(file(content, **headers) for content in contents))
    assert remote(url) in contents


def remote(url: str) -> bytes:
    """Return all bytes of a remote file."""
    with Stores(HERE).open(url) as opened:
        return opened.read()


@pytest.mark.parametrize("kept", [300, 1_500])
def test_chunks_that_break_off_are_read_again(site: Site, kept: int) -> None:
    """A reply in chunks that breaks off is no shorter recording: it is requested again."""
    broken, good = chunked(BODY[:kept], end=b""), chunked(BODY)
    for answers in ([broken, good], [good, good, broken, good]):
        url = site.put("/r.wav", *answers)
        found = open_recording(url, HERE)
        assert not found.warnings
        assert whole(found) == BODY


@pytest.mark.parametrize("kept", [300, 1_500])
def test_recording_without_any_length_warns(site: Site, kept: int) -> None:
    """A reply that ends with the connection may have broken off: a recording gets a warning, a manifest is refused."""
    url = site.put("/r.wav", said(200, BODY[:kept], -1))
    found = open_recording(url, HERE)
    assert found.warnings == (
        "its server gives no length: if the transfer broke off, the end of the recording is missing",
    )
    assert whole(found) == BODY[:kept]
    with pytest.raises(UnusableObject, match="its server gives no length"):
        remote(url)


def test_weakened_etag_is_the_same_revision(site: Site) -> None:
    """An ETag that a proxy made weak in between counts as the same ETag."""
    site.put("/x", file(ETag='"1"'), file(ETag='W/"1"'))
    web = site.web()
    assert web.get("x", 9, 19, web.get("x", 0, 9).tag).data == BODY[9:19]


def test_stream_of_another_size_is_refused(site: Site) -> None:
    """A whole file of another size than announced is refused before its first byte if the size is known, else at its
    end.
    """
    site.put("/x", file(), chunked(BODY[:-1]))
    with pytest.raises(UnusableObject, match="changed"):
        next(site.web().stream(Stat("x", 5, "")))
    with pytest.raises(TransientError, match=r"received 2,344 bytes, but 2,345 were announced"):
        list(site.web().stream(Stat("x", len(BODY), "")))


# ── wrong replies ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "answer",
    [
        said(206, b"0123456789"),
        said(206, b"0123456789", Content_Range="bytes 1-10/100"),
        said(206, b"012345678", Content_Range="bytes 0-8/100"),
        said(206, b"0123456789x", Content_Range="bytes 0-9/100"),
        said(206, b"012345678", Content_Range="bytes 0-9/100"),
        said(206, b"0123456789", Content_Range="bytes 0-9/5"),
        said(206, b"0123456789", Content_Range="items 0-9/100"),
        said(206, b"0123456789", Content_Range=f"bytes 0-9/{'9' * 5000}"),
        said(206, b"01234", 10, Content_Range="bytes 0-9/100", Connection="close"),
        said(206, b"01234", -1, Content_Range="bytes 0-9/100"),
        said(416, Content_Range="bytes */100"),
        said(200, b"01234", 10, Connection="close"),
        chunked(b"01234", end=b""),
        chunked(b"01234", end=b"x\r\n"),
        said(429),
        said(503),
        lambda handler: handler.wfile.write(b"220 ready\r\n\r\n"),
        lambda handler: handler.connection.shutdown(socket.SHUT_RDWR),
    ],
)
def test_contradictory_reply_is_never_accepted(site: Site, answer: Answer) -> None:
    """A reply that contradicts the request or breaks off is never accepted, and a retry may succeed."""

    def closing(handler: Handler) -> None:
        handler.close_connection = True
        answer(handler)

    site.put("/x", closing, file())
    with pytest.raises(TransientError, match=rf"^cannot read http://127.0.0.1:{site.port}/x: "):
        site.web().get("x", 0, 10)
    site.put("/x", closing, file())
    assert RetryingReader(site.web()).get("x", 0, 10).data == BODY[:10]


@pytest.mark.parametrize("wait", ["7", "date"])
def test_retry_after_sets_the_wait(site: Site, wait: str) -> None:
    """The Retry-After header of a busy server, in seconds or as a date, sets the wait before the retry."""
    then = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1000)
    header = "7" if wait == "7" else email.utils.format_datetime(then, usegmt=True)
    site.put("/x", said(503, Retry_After=header), file())
    with pytest.raises(TransientError) as told:
        site.web().get("x", 0, 9)
    assert told.value.retry_after_s == 7 or 900 < told.value.retry_after_s <= 1000
    site.put("/x", said(503, Retry_After=header), file())
    assert RetryingReader(site.web()).get("x", 0, 9).data == BODY[:9]


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (401, UnusableObject, r"permission denied \(HTTP status 401 Unauthorized\): if the address was signed, get a"),
        (403, UnusableObject, r"permission denied \(HTTP status 403 Forbidden\)"),
        (404, ObjectNotFound, "no such object"),
        (410, ObjectNotFound, "no such object"),
        (412, UnusableObject, "replaced meanwhile"),
        (400, UnusableObject, r"HTTP status 400 Bad Request\): check the address"),
        (204, UnusableObject, r"HTTP status 204"),
        (302, UnusableObject, r"HTTP status 302 Found"),
        (499, UnusableObject, r"HTTP status 499\)"),
    ],
)
def test_error_status_fails_one_item(site: Site, status: int, kind: type[StorageError], text: str) -> None:
    """An error status for one address fails one item with a plain message, and is not retried."""
    url = site.put("/x", said(status, b""))
    for call in (
        lambda web: web.get("x", 0, 9),
        lambda web: web.stat("x"),
        lambda web: list(web.stream(Stat("x", -1, ""))),
    ):
        with pytest.raises(kind, match=text):
            call(site.web())
    with pytest.raises(AudioError, match=text):
        open_recording(url, HERE)
    assert len(site.asked) == 4 + 3 * (status == 400)  # which may mean the range, so that it is asked without one


def test_partial_reply_that_does_not_fit_is_refused(site: Site) -> None:
    """A partial reply (206) is refused if the whole file was requested, or if it has no total size, because the end of
    the file is unknown.
    """
    site.put("/x", said(206, b"x", Content_Range="bytes 0-0/9"))
    with pytest.raises(UnusableObject, match="206"):
        list(site.web().stream(Stat("x", -1, "")))
    site.put("/x", said(206, b"0123", Content_Range="bytes 0-3/*"))
    with pytest.raises(UnusableObject, match="does not report its size"):
        site.web().get("x", 0, 10)


def test_compressed_reply_is_refused(site: Site) -> None:
    """A compressed reply is reported as compressed and never accepted as the recording."""
    url = site.put("/x", file(b"\x1f\x8b", Content_Encoding="gzip"))
    assert site.web().get("x", 0, 9).is_gzipped
    with pytest.raises(AudioError, match="Content-Encoding: gzip"):
        open_recording(url, HERE)
    with pytest.raises(UnusableObject, match="Content-Encoding: gzip"):
        list(site.web().stream(Stat("x", -1, "")))
    site.put("/x", file(b"?", Content_Encoding="br"))
    with pytest.raises(UnusableObject, match="Content-Encoding: br"):
        site.web().get("x", 0, 9)


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("answer", [file(), file(ranges=False), chunked(BODY), said(200, BODY, -1)])
def test_recording_above_the_limit_fails_its_item(site: Site, answer: Answer) -> None:
    """A recording above the size limit fails its item with both sizes and the name of the flag, with or without a
    Content-Length. A recording of exactly the limit is accepted.
    """
    url = site.put("/r.wav", answer)
    assert whole(open_recording(url, StoreOptions(allow_private_addresses=True, max_http_gb=len(BODY) / 2**30))) == BODY
    limited = StoreOptions(allow_private_addresses=True, max_http_gb=(len(BODY) - 1) / 2**30)
    with pytest.raises(AudioError, match=r"has 2,345 bytes or more, and the limit is 2,344: raise --max-http-gb"):
        open_recording(url, limited)
    with pytest.raises(UnusableObject, match="the limit is 2,344"):
        list(site.web(limited).stream(Stat("r.wav", -1, "")))


@pytest.mark.parametrize(
    "answer",
    [
        drip(b""),
        drip(b"HTTP/1.1 200 OK\r\nX: "),
        drip(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"),
        drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;"),
        drip(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"),
        flood,
    ],
    ids=["status", "header", "length", "chunk", "no length", "interim replies"],
)
def test_slow_server_is_abandoned(site: Site, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends one byte now and then, in any section of the reply, or interim replies without end, is
    abandoned when the total time is over. The announced size of a whole file gives it no more time.
    """
    monkeypatch.setattr(reply_deadline, "FIRST_S", 0.2)
    site.put("/x", answer)
    for call in (lambda web: web.get("x", 0, 100_000), lambda web: list(web.stream(Stat("x", -1, "")))):
        with pytest.raises(TransientError, match="did not end in time"):
            call(site.web())


class Timed(reply_deadline.TimedConnection, http.client.HTTPConnection):
    """A connection whose replies have a deadline."""


@pytest.mark.parametrize("slowest", [1, 10_000])
def test_large_file_is_allowed_more_time(slowest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply is allowed the time that its received bytes need at the slowest rate, and no more."""
    now = 1000.0
    monkeypatch.setattr(reply_deadline, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(reply_deadline, "SLOWEST", slowest)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        contextlib.closing(Timed(*server.getsockname())) as connection,
    ):
        connection.request("GET", "/x")
        with server.accept()[0] as ours:
            ours.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nx")
            reply = connection.getresponse()
            assert reply.read(1) == b"x"
            now += reply_deadline.FIRST_S + 1  # the first byte is worth a second, or next to nothing
            ours.sendall(b"yz")
            if slowest == 1:
                assert reply.read() == b"yz"
            else:
                with pytest.raises(OSError, match="did not end in time"):
                    reply.read()


def test_silent_server_is_abandoned(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent server is abandoned after the idle timeout."""
    monkeypatch.setattr(ssrf_guard, "IDLE_S", 0.1)
    is_over = threading.Event()

    def silent(handler: Handler) -> None:
        is_over.wait(200)
        handler.close_connection = True

    site.put("/x", silent)
    with pytest.raises(TransientError, match="timed out"):
        site.web().get("x", 0, 9)
    is_over.set()


def test_refused_connection_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection is retried. An unknown name of a host is not, but it may be the network's fault."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(TransientError, match="Connection refused"):
            WebServer(f"http://127.0.0.1:{port}/", HERE).get("x", 0, 9)

    def resolve(*_: object, **__: object) -> None:
        """Answer as a resolver that can be reached."""
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    nobody = RetryingReader(WebServer("https://nobody.invalid/", HERE))
    with pytest.raises(UnknownHost, match=r"cannot read https://nobody\.invalid/x\?…: no server has this na") as caught:
        nobody.get(f"x?{SECRET}", 0, 9)
    assert caught.value.kind is FailureKind.NOT_FOUND


def test_a_web_page_is_no_recording(site: Site) -> None:
    """A page, such as one that plays a video, fails as not audio, and the message names yt-dlp."""
    site.put("/watch", file(ETag='"1"', body=b"<!DOCTYPE html><html></html>"))
    with pytest.raises(AudioError, match="is a web page, and no recording; yt-dlp fetches") as caught:
        open_recording(site.url("/watch"), HERE)
    assert caught.value.kind is FailureKind.NOT_AUDIO


# ── redirects ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def chain(site: Site, count: int) -> str:
    """Set up a chain of `count` redirects of all kinds and return its first address."""
    for i in range(count):
        status = (301, 302, 303, 307, 308)[i % 5]
        site.put(f"/{i}", said(status, b"moved", Location=f"{i + 1}?n={i}"))
    site.put(f"/{count}", file(ETag='"1"'))
    return site.url("/0")


def test_five_redirects_are_followed(site: Site) -> None:
    """Five redirects of all kinds are followed, and each request is sent with all of its headers."""
    assert whole(open_recording(chain(site, 5), HERE)) == BODY
    assert all("Range" in headers for _, headers in site.asked)
    assert site.asked[5][0] == "/5?n=4"


def test_six_redirects_are_refused(site: Site) -> None:
    """Six redirects are refused."""
    chain(site, 6)
    with pytest.raises(UnusableObject, match="redirects more than 5 times"):
        site.web().get("0", 0, 9)
    assert len(site.asked) == 6


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("file:///etc/passwd", r"not an http\(s\) address"),
        ("data:audio/wav;base64,AAAA", r"not an http\(s\) address"),
        (f"http://me:{SECRET}@example.com/", "name or password"),
    ],
)
def test_redirect_to_another_scheme_is_refused(site: Site, location: str, why: str) -> None:
    """A redirect to anything but a plain http(s) address is not followed."""
    site.put("/x", said(302, Location=location))
    with pytest.raises(UnusableObject, match=why) as told:
        site.web().get("x", 0, 9)
    assert SECRET not in shown_all(told.value)


def test_error_after_a_redirect_names_both_addresses(site: Site) -> None:
    """An error after a redirect to another host names both addresses, and no Referer is sent to the second host."""
    with running() as other:
        site.put("/x", said(302, Location=other.url(f"/y?{SECRET}")))
        other.put("/y", said(403))
        with pytest.raises(UnusableObject) as told:
            site.web().get(f"x?{SECRET}", 0, 9)
        where = f"cannot read {site.url('/x')}?… (redirected to {other.url('/y')}?…): permission denied"
        assert str(told.value).startswith(where)
        assert "Referer" not in other.asked[0][1]
        assert other.asked[0][1]["Host"] == f"127.0.0.1:{other.port}"


# ── SSRF guard ────────────────────────────────────────────────────────────────────────────────────────────────────────

SPELLINGS = [
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "017700000001", "0177.0.0.1",
    "localhost", "LOCALHOST", "[::ffff:127.0.0.1]", "[::FFFF:7F00:1]", "0", "0.0.0.0", "１２７.0.0.1",
    "127。0。0。1", "127.9.9.9", "[::ffff:0:0]", "[::]", "[::1]", "[0:0:0:0:0:0:0:1]", "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
]  # fmt: skip


@pytest.mark.parametrize("host", SPELLINGS)
def test_loopback_is_refused_in_any_spelling(site: Site, host: str) -> None:
    """The SSRF guard refuses loopback addresses in every spelling, directly or through a redirect. The error gives the
    reason and names the flag.
    """
    with pytest.raises(
        AudioError, match="only public addresses are read, unless --allow-private-addresses is given"
    ) as told:
        open_recording(f"http://{host}:{site.port}/x?{SECRET}", StoreOptions())
    assert site.server.connections == 0
    assert SECRET not in shown_all(told.value)


@pytest.mark.parametrize("host", ["127.0.0.1.", "localhost.", "127.1.", "%6cocalhost", "127.0.0.1%00.com", "::1"])
def test_loopback_is_refused_in_rare_spellings(site: Site, host: str) -> None:
    """The SSRF guard also refuses spellings that only some resolvers understand."""
    with pytest.raises((AudioError, TransientError)):
        open_recording(f"http://{host}:{site.port}/x", StoreOptions())
    assert site.server.connections == 0


def test_redirect_to_loopback_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SSRF guard checks every redirect: a permitted host cannot lead to a forbidden one."""
    monkeypatch.setattr(
        ssrf_guard, "forbidden_kind", lambda address: "" if address == "127.0.0.1" else "a loopback address"
    )
    with running() as inner:
        site.put("/x", said(302, Location=f"http://127.0.0.2:{inner.port}/latest/meta-data"))
        with pytest.raises(
            UnusableObject, match=r"redirected to http://127.0.0.2:\d+/latest/meta-data\): 127.0.0.2 is a loop"
        ):
            site.web(StoreOptions()).get("x", 0, 9)
        assert len(site.asked) == 1
        assert inner.server.connections == 0


METADATA = [
    "169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254",
    "fd00:ec2::23", "fd20:ce::254", "fe80::1", "fe80::a9fe:a9fe%1",
]  # fmt: skip
"""Addresses of metadata servers and of the machine's own link."""


def embeddings(address: str) -> list[str]:
    """Return the IPv6 addresses that are translated to an IPv4 address, or tunnelled to it; none for IPv6."""
    if ":" in address:
        return []
    value = int(ipaddress.IPv4Address(address))
    hextets = f"{value >> 16:x}:{value & 0xFFFF:x}"
    inverted = value ^ 0xFFFFFFFF
    rfc_6052 = 0x64FF9B0001 << 80 | (value >> 16) << 64 | (value & 0xFFFF) << 40
    return [
        f"::ffff:{address}", f"::{address}", f"::ffff:0:{address}", f"64:ff9b::{address}", f"64:ff9b:1::{address}",
        f"2002:{hextets}::1", f"2001:0:808:808::{inverted >> 16:x}:{inverted & 0xFFFF:x}", f"2001:0:{hextets}::1",
        f"2600::5efe:{hextets}", str(ipaddress.IPv6Address(rfc_6052)),
        str(ipaddress.IPv6Address(0x64FF9B0001 << 80 | value << 24)),
        str(ipaddress.IPv6Address(0x64FF9B0001 << 80 | (value >> 24) << 64 | (value & 0xFFFFFF) << 32)),
    ]  # fmt: skip


@pytest.mark.parametrize("address", [form for address in METADATA for form in (address, *embeddings(address))])
def test_metadata_servers_are_never_read(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """--allow-private-addresses admits no metadata server and no link-local address, in no IPv6 form."""
    attempts = list[object]()
    monkeypatch.setattr(ssrf_guard._Connection, "_connect", lambda _, candidates: attempts.append(candidates))
    resolver(monkeypatch, [address])
    with pytest.raises(UnusableObject, match="no recording is read from there"):
        WebServer("http://metadata.example/", HERE).get("latest/meta-data", 0, 9)
    assert not attempts


def test_redirect_to_a_metadata_server_is_refused(site: Site) -> None:
    """A private server that is admitted cannot lead to a metadata server."""
    site.put("/x", said(302, Location="http://169.254.169.254/latest/meta-data"))
    with pytest.raises(UnusableObject, match=r"redirected to .*169.254.169.254 is a link-local address"):
        site.web(HERE).get("x", 0, 9)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "100.100.100.201", "168.63.129.17", "169.253.0.1", "fd00:ec3::254", "64:ff9b::a00:1",
     "2600::a9fe:a9fe", "8.8.8.8", "::1"],
)  # fmt: skip
def test_neighbours_of_metadata_servers_are_admitted_as_before(address: str) -> None:
    """Addresses beside those of metadata servers are private or public as they are."""
    assert not ssrf_guard.machine_kind(address)


def resolver(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Replace the name server with an attacker's: each look-up gets the next answer; the last answer is repeated."""
    real, left, asked = socket.getaddrinfo, list(answers), list[str]()

    def lookup(host: str, port: int, *args: Any, **settings: Any) -> Any:
        asked.append(host)
        addresses = left.pop(0) if len(left) > 1 else left[0]
        return [found for address in addresses for found in real(address, port, *args, **settings)]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return asked


def test_dns_rebinding_has_no_effect(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding does not evade the SSRF guard: voxbatch connects to the address that it checked."""
    monkeypatch.setattr(ssrf_guard, "CONNECT_S", 0.2)
    asked = resolver(monkeypatch, ["192.0.2.1"], ["127.0.0.1"])
    monkeypatch.setattr(
        ssrf_guard, "forbidden_kind", lambda address: "" if address == "192.0.2.1" else "a loopback address"
    )
    place = f"http://rebinds.example:{site.port}/"
    with pytest.raises(TransientError):
        WebServer(place, StoreOptions()).get("x", 0, 9)
    assert asked == ["rebinds.example"]
    with pytest.raises(UnusableObject, match=r"rebinds.example \(127.0.0.1\) is a loopback address"):
        WebServer(place, StoreOptions()).get("x", 0, 9)
    assert site.server.connections == 0


def test_only_permitted_addresses_are_connected(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a name has several addresses, only the permitted ones are connected to."""
    resolver(monkeypatch, ["127.0.0.3", "127.0.0.1"])
    monkeypatch.setattr(
        ssrf_guard, "forbidden_kind", lambda address: "" if address == "127.0.0.1" else "a loopback address"
    )
    site.put("/x", file())
    assert WebServer(f"http://mixed.example:{site.port}/", StoreOptions()).get("x", 0, 9).data == BODY[:9]


def test_next_address_is_tried(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an address of a name does not answer, or the system lacks its address family, the next address is tried."""
    resolver(monkeypatch, ["127.0.0.77", "127.0.0.1"])
    found = socket.getaddrinfo("two.example", site.port, type=socket.SOCK_STREAM)
    found.insert(0, (999, *found[0][1:]))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **settings: found)
    site.put("/x", file())
    assert WebServer(f"http://two.example:{site.port}/", HERE).get("x", 0, 9).data == BODY[:9]


def test_proxies_are_ignored(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies in the environment are ignored, because they would connect to addresses that were not checked."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    site.put("/x", file())
    assert site.web().get("x", 0, 9).data == BODY[:9]


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_non_public_addresses_are_refused(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """Every address that Python's tables do not call public is refused, and so is each of its IPv6 embeddings."""
    is_odd = address.is_private or address.is_multicast or address.is_reserved or address.is_loopback
    # its public status depends on the embedded IPv4 address
    is_translated = address in ipaddress.ip_network("64:ff9b::/96")
    if (is_odd or address.is_link_local or address.is_unspecified) and not is_translated:
        assert ssrf_guard.forbidden_kind(str(address))
    if isinstance(address, ipaddress.IPv4Address):
        assert ssrf_guard.forbidden_kind(f"::ffff:{address}")
        assert bool(ssrf_guard.forbidden_kind(f"64:ff9b::{address}")) == bool(ssrf_guard.forbidden_kind(str(address)))


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("169.254.169.254", "link-local"), ("100.100.100.200", "carrier"), ("192.0.0.192", "reserved"),
        ("168.63.129.16", "cloud"), ("fd00:ec2::254", "private"), ("fe80::1", "link-local"), ("10.1.2.3", "private"),
        ("224.0.0.1", "multicast"), ("255.255.255.255", "reserved"), ("2001::1", "reserved"), ("fec0::1", "reserved"),
        ("2002:a00:1::1", "inside an IPv6"), ("64:ff9b::a00:1", "private"), ("64:ff9b:1::808:808", "inside an IPv6"),
        ("::7f00:1", "reserved"), ("fe80::1%1", "link-local"),
        ("8.8.8.8", ""), ("2600::1", ""), ("2a00:1450::1", ""), ("64:ff9b::808:808", ""), ("172.15.255.255", ""),
        ("100.128.0.1", ""),
    ],
)  # fmt: skip
def test_known_addresses_are_refused_with_their_kind(address: str, what: str) -> None:
    """Metadata servers of clouds and similar addresses are refused with their kind; public neighbours are accepted."""
    assert what in ssrf_guard.forbidden_kind(address)
    assert bool(what) == bool(ssrf_guard.forbidden_kind(address))


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        (f"https://me:{SECRET}@example.com/x", "name or password"),
        (f"https://me:{SECRET}@[::1/x", "name or password"),
        ("https://good.example\\@bad.example/x", "name or password"),
        ("https:///x", "'' is not a valid host name"),
        ("https://[::1/x", "Invalid IPv6"),
        ("https://[fe80::zz]/x", "zz"),
        ("https://ex%61mple.com/x", "is not a valid host name"),
        ("https://exa mple.com/x", "is not a valid host name"),
        ("https://example.com\\x/", "is not a valid host name"),
        (f"https://{'a' * 64}.com/x", "label"),
        ("https://example.com:port/x", "Port"),
    ],
)
def test_invalid_address_fails_its_item(uri: str, why: str) -> None:
    """An invalid address, or one with a user's name or password, fails its item, and the error shows no secret."""
    with pytest.raises(AudioError, match=why) as told:
        open_recording(uri, HERE)
    assert SECRET not in shown_all(told.value)


def test_address_parts_are_normalized() -> None:
    """Host names are converted to ASCII, ports default by scheme, and the request target keeps its spelling."""
    assert parse_web_address("HTTPS://Bücher.Example") == ("https", "xn--bcher-kva.example", 443, "/")
    assert parse_web_address("http://[::0001]:8/a%2fb//../?q=/@#f") == ("http", "::1", 8, "/a%2fb//../?q=/@")


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def certificate(folder: Path, *names: str) -> Path:
    """Write a key and its self-signed certificate into one file and return the path."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(1)).not_valid_after(now + dt.timedelta(1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "host.pem"
    signed = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    path.write_bytes(key.private_bytes(*private) + signed)
    return path


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Serve https://localhost with a certificate that SSL_CERT_FILE trusts."""
    path = certificate(tmp_path, "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with running(context) as found:
        found.host = "localhost"
        yield found


def test_slow_https_server_is_abandoned(secure: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends one byte now and then is abandoned in time behind TLS, too."""
    monkeypatch.setattr(reply_deadline, "FIRST_S", 0.3)
    secure.put("/x", drip(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"))
    with pytest.raises(TransientError, match="did not end in time"):
        secure.web().get("x", 0, 100_000)


def test_invalid_certificate_fails_the_item(secure: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A certificate of another host or of an unknown issuer fails the item, and no request is sent."""
    with pytest.raises(AudioError, match=r"the server's certificate is not valid \(.*127\.0\.0\.1.*\): have the"):
        open_recording(f"https://127.0.0.1:{secure.port}/x?{SECRET}", HERE)
    (tmp_path / "none.pem").write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(AudioError, match=r"self-signed certificate.*SSL_CERT_FILE"):
        open_recording(secure.url("/x"), HERE)
    assert secure.asked == []


def test_redirect_from_https_to_http_is_refused(secure: Site, site: Site) -> None:
    """A redirect may lead from http to https, but never from https to http."""
    site.put("/up", said(302, Location=secure.url("/x")))
    secure.put("/x", file())
    assert site.web().get("up", 0, 9).data == BODY[:9]
    secure.put("/down", said(302, Location=site.url(f"/x?{SECRET}")))
    with pytest.raises(UnusableObject, match="redirects from https to http://") as told:
        secure.web().get("down", 0, 9)
    assert SECRET not in str(told.value)
    assert len(site.asked) == 1


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def shown_all(error: BaseException) -> str:
    """Return the full traceback of an error, with its causes."""
    return "".join(traceback.format_exception(error))


def echo(handler: Handler) -> None:
    """Reply with the request line in place of a status line."""
    handler.close_connection = True
    handler.wfile.write(f"{handler.requestline}\r\n\r\n".encode())


def odd_headers(handler: Handler) -> None:
    """Reply with headers that make urllib3 log a warning."""
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 404 Not Found\r\nX: y\r\nno colon\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        echo,
        odd_headers,
        said(403, f"<SignatureProvided>{SECRET}</SignatureProvided>".encode()),
        said(404),
        said(500, SECRET.encode()),
        said(200, b"x", 10, Connection="close"),
        said(302, Location="file:///?" + SECRET),
        said(302, Location="/x?" + SECRET),
        said(206, b"x", Content_Range="nothing"),
        lambda handler: handler.connection.shutdown(socket.SHUT_RDWR),
    ],
)
def test_no_message_shows_a_query(site: Site, answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    """The query of an address, which may be a signature, appears in no error, cause or log message of any level."""
    site.put("/x", answer)
    signed = f"x?X-Amz-Signature={SECRET}&x=é {SECRET}"
    with caplog.at_level(logging.DEBUG):
        for call in (
            lambda reader: reader.get(signed, 0, 9),
            lambda reader: list(reader.whole(signed, "")),
            lambda reader: open_recording(f"{reader.place}{signed}", HERE),
        ):
            with pytest.raises((StorageError, AudioError)) as told:
                call(RetryingReader(site.web()))
            assert SECRET not in shown_all(told.value)
            assert "/x?…" in str(told.value)
    assert SECRET in site.asked[0][0]
    assert SECRET not in caplog.text


def test_an_address_that_is_not_allowed() -> None:
    """The kind of a refused address is not that of a missing file."""
    with pytest.raises(AudioError) as caught:
        Stores().recording("http://127.0.0.1/a.wav")
    assert caught.value.kind is FailureKind.NOT_ALLOWED


def test_a_request_that_fails_for_good_leaves_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last attempt, the request is no longer waited for."""
    monkeypatch.setenv("VOXBATCH_NO_WAIT", "1")
    with pytest.raises(VoxbatchError, match="3 attempts failed"):
        Stores(StoreOptions(allow_private_addresses=True)).recording("http://127.0.0.1:9/a.wav")
    assert longest_wait() is None
