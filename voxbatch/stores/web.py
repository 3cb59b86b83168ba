"""Read the files of a web server over http and https.

Many servers ignore a part of the request. Every reply is therefore compared with the request: the range, the length,
the revision. This module follows redirects itself, and only to addresses that the SSRF guard (`ssrf_guard`) admits. It
sends nothing that identifies a person: no cookies, no credentials, except the token of the Hugging Face hub (`hf`).
Proxies (HTTPS_PROXY and similar variables) are not used, because the address that a proxy connects to cannot be checked
here.

A query may be a signature. It is sent to its server, and appears in no message.
"""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from email.utils import mktime_tz, parsedate_tz
from http import HTTPStatus
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin, urlsplit

from voxbatch import __version__
from voxbatch.errors import StorageError
from voxbatch.failure_kinds import FailureKind
from voxbatch.storage.address import HTTP_SCHEMES, StoreOptions, place_of, redacted, scheme_of
from voxbatch.storage.errors import TransientError, UnknownHost, UnusableObject, stored_compressed
from voxbatch.storage.objects import RangeReply, Stat
from voxbatch.storage.signatures import SIGNATURE_REFUSED, is_signed
from voxbatch.stores.http_errors import connection_failed, one_line, parse_retry_after, status_error

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, HTTPConnectionPool

REDIRECTS = 5
HOSTS = 16
"""Number of hosts whose connections are kept, including the hosts that redirects lead to."""
READ_BYTES = 256 << 10
"""Most bytes that one read takes from the network."""
SMALL_BYTES = 64 << 10
"""Largest body of an error or a redirect that is read, so that the connection can be used again."""
_NUMBER = re.compile(r"\d{1,18}")
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(?P<size>\d{1,18}|\*)", re.IGNORECASE)
_UNSATISFIED_RANGE = re.compile(r"bytes \*/(?P<size>\d{1,18})", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9._-]+")


class WebAddress(NamedTuple):
    """Parts of an http(s) address."""

    scheme: str
    host: str
    """Host as resolvers and certificates take it: in ASCII, and an IPv6 address without its brackets."""
    port: int
    target: str
    """Path and query ("/path?query"), as written."""


def parse_web_address(uri: str) -> WebAddress:
    """Return the parts of http(s)://host[:port]/path[?query]. A fragment is dropped.

    Raises:
        ValueError: no host can have that name, or a user's name stands before it. The message contains neither the user
            nor the query.
    """
    if "@" in uri.partition("://")[2].replace("?", "/").replace("#", "/").partition("/")[0]:
        raise ValueError("the address contains a user name or password, which is not allowed: leave it out")
    parts = urlsplit(uri)
    host, port = parts.hostname or "", parts.port
    if ":" in host:
        host = str(IPv6Address(host))
    elif not _HOST.fullmatch(host := host.encode("idna").decode()):
        raise ValueError(f"{host!r} is not a valid host name")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebAddress(parts.scheme, host, {"http": 80, "https": 443}[parts.scheme] if port is None else port, target)


class WebServer:
    """Web server. See objects.ObjectReader for what each method promises. Thread-safe. A key is the path without its
    first slash, and the query."""

    def __init__(self, place: str, options: StoreOptions, headers: Mapping[str, str] | None = None):
        """Store the address of the server.

        Args:
            headers: further headers for this server, and for no other that it redirects to.
        """
        self.place, self._options, self._headers = place, options, headers or {}

        @functools.lru_cache(HOSTS)
        def pool(scheme: str, host: str, port: int) -> HTTPConnectionPool:
            from voxbatch.stores import ssrf_guard

            return ssrf_guard.pool(scheme, host, port, options.allow_private_addresses)

        self._pool = pool

    def get(self, key: str, start: int, end: int, tag: str = "") -> RangeReply:
        """See objects.ObjectReader. If the server ignores the range, the result holds the first bytes of a reply with
        the whole object."""
        with self._reply(key, tag, (start, end)) as reply:
            where = self._where(key)
            if reply.status == 416:
                if tag and (_size(reply) or start) < start:  # it shrank: reads never begin after the known end
                    raise UnusableObject(_changed(where), FailureKind.CHANGED)
                return RangeReply(b"", tag or _tag(reply), size=_size(reply))
            if reply.status == 206:
                data = _read_range(where, reply, start, end)
            elif start == 0:
                data = _read(reply, end)
                self._check_size(where, len(data))
            else:
                raise UnusableObject(
                    f"cannot read {where}: its server first sent a range of it, and now sends only the whole file"
                )
            return RangeReply(
                data,
                _tag(reply),
                is_gzipped=_is_gzipped(where, reply),
                is_whole_object=reply.status == 200,
                has_length=reply.status == 206
                or _size(reply) is not None
                or "chunked" in reply.headers.get("Transfer-Encoding", "").lower(),
                size=_size(reply),
            )

    def stat(self, key: str, tag: str = "") -> Stat:
        """Request the first byte, because HEAD is often not allowed, for example by a signed address.

        The size is -1 if the server does not report it.
        """
        with self._reply(key, tag, (0, 1)) as reply:
            size = 0 if reply.status == 416 else _size(reply)
            if reply.status == 206:
                _read_range(self._where(key), reply, 0, 1)
            return Stat(key, -1 if size is None else size, _tag(reply))

    def stream(self, stat: Stat) -> Iterator[bytes]:
        """See objects.ObjectReader. The object is read in one request."""
        where = self._where(stat.key)
        with self._reply(stat.key, stat.tag) as reply:
            if _is_gzipped(where, reply):
                raise stored_compressed(where)
            size, count = _size(reply), 0
            if size is not None and stat.size not in (-1, size):
                raise UnusableObject(_changed(where), FailureKind.CHANGED)
            while data := reply.read1(READ_BYTES):
                count += len(data)
                self._check_size(where, count)
                yield data
            if stat.size not in (-1, count):
                raise TransientError(_incomplete(where, count, stat.size))

    def renew(self) -> None:
        """Do nothing: there are no credentials."""

    def _where(self, key: str) -> str:
        return redacted(self.place + key)

    def _check_size(self, where: str, size: int | None) -> None:
        limit = self._options.max_http_bytes
        if size is not None and size > limit:
            raise UnusableObject(
                f"cannot read {where}: it has {size:,} bytes or more, and the limit is {limit:,}: raise --max-http-gb",
                FailureKind.NOT_ALLOWED,
            )

    @contextlib.contextmanager
    def _reply(self, key: str, tag: str, byte_range: tuple[int, int] | None = None) -> Iterator[BaseHTTPResponse]:
        """Yield the reply of the server that has the object.

        The status is 200, or, if bytes [start, end) are requested, 206 or 416. The reply is of the requested revision,
        and not known to be too large. A server that refuses a range from the start (400) is asked without one: some
        refuse every range, others only bytes=0-0.
        """
        headers = {"User-Agent": f"voxbatch/{__version__}", "Accept-Encoding": "identity"}
        if byte_range:
            headers["Range"] = f"bytes={byte_range[0]}-{byte_range[1] - 1}"
        if tag:
            headers["If-Match" if tag.startswith('"') else "If-Unmodified-Since"] = tag
        with self._follow_redirects(self._where(key), self.place + key, headers) as (where, reply):
            if not (reply.status == 400 and byte_range and byte_range[0] == 0):
                if reply.status not in ((200, 206, 416) if byte_range else (200,)):
                    raise _status_error(where, reply, is_signed(self.place + key))
                if tag and reply.status != 416 and _tag(reply, tag) != tag:
                    raise UnusableObject(_changed(where), FailureKind.CHANGED)
                self._check_size(where, _size(reply))
                if byte_range and reply.status != 200:
                    _check_range(where, reply, *byte_range)
                yield reply
                return
        with self._reply(key, tag) as reply:
            yield reply

    @contextlib.contextmanager
    def _follow_redirects(
        self, where: str, url: str, headers: Mapping[str, str]
    ) -> Iterator[tuple[str, BaseHTTPResponse]]:
        """Follow redirects. Yield (the source of the reply, for messages; the final reply)."""
        at = where
        for _ in range(REDIRECTS + 1):
            with _errors(at):
                scheme, host, port, target = parse_web_address(url)
                own = self._headers if place_of(url) == place_of(self.place) else {}
                reply = self._pool(scheme, host, port).urlopen(
                    "GET", target, headers={**headers, **own}, retries=False, redirect=False, assert_same_host=False,
                    preload_content=False, decode_content=False,
                )  # fmt: skip
                try:
                    if reply.status not in (200, 206) and _length(reply) in range(SMALL_BYTES):
                        _read(reply, SMALL_BYTES)
                    location = reply.get_redirect_location()
                    if not location:
                        yield at, reply
                        return
                finally:  # a connection whose reply was read to the end is already back in the pool
                    reply.close()
                    reply.release_conn()
            url = _redirect_target(where, url, location)
            at = f"{where} (redirected to {redacted(url)})"
        raise UnusableObject(f"cannot read {where}: it redirects more than {REDIRECTS} times; give the final address")


def _redirect_target(where: str, url: str, location: str) -> str:
    """Return the address that a redirect leads to.

    Raises:
        UnusableObject: the redirect must not be followed.
    """
    try:
        target = urljoin(url, location)
        if scheme_of(target) not in HTTP_SCHEMES:
            raise ValueError("it is not an http(s) address")
        parse_web_address(target)
    except ValueError as e:
        raise UnusableObject(f"cannot read {where}: it redirects to an address that cannot be used: {e}") from None
    if scheme_of(url) == "https" and scheme_of(target) == "http":
        raise UnusableObject(f"cannot read {where}: it redirects from https to {redacted(target)}, which is not secure")
    return target


@contextlib.contextmanager
def _errors(where: str) -> Iterator[None]:
    """Convert urllib3's errors to ours. Only the texts of system errors are used, because they contain no address."""
    from urllib3.exceptions import HTTPError, LocationValueError

    from voxbatch.stores.ssrf_guard import ForbiddenAddress

    try:
        yield
    except ForbiddenAddress as e:
        raise UnusableObject(f"cannot read {where}: {e}", FailureKind.NOT_ALLOWED) from e
    except LocationValueError:
        text = f"cannot read {where}: the server's name is not valid: check its spelling"
        raise UnusableObject(text, FailureKind.NOT_FOUND) from None
    except HTTPError as e:
        root = _root(e)
        if isinstance(root, ssl.SSLCertVerificationError):
            raise UnusableObject(
                f"cannot read {where}: the server's certificate is not valid ({root.verify_message}): have the "
                "certificate fixed, or, if your own certificate authority signed it, set SSL_CERT_FILE to that "
                "authority's file"
            ) from root
        if isinstance(root, socket.gaierror) and root.errno == socket.EAI_NONAME:
            text = f"cannot read {where}: no server has this name: check its spelling and the network"
            raise UnknownHost(text, since=time.monotonic()) from root
        if isinstance(root, OSError):
            raise TransientError(connection_failed("read", where, root)) from root
        raise TransientError(connection_failed("read", where, type(root).__name__)) from None


def _root(error: BaseException) -> BaseException:
    inner = error.__cause__ or next((cause for cause in error.args if isinstance(cause, BaseException)), None)
    return _root(inner) if inner else error


def _status_error(where: str, reply: BaseHTTPResponse, was_signed: bool) -> StorageError:
    """Return the error for an HTTP status.

    A refusal says nothing about other addresses on the same server, unless the server is down. The server's own text
    may repeat the request, and is left out.
    """
    status = reply.status
    reason = f"HTTP status {status}"
    with contextlib.suppress(ValueError):
        reason += f" {HTTPStatus(status).phrase}"
    if status in (401, 403):
        advice = SIGNATURE_REFUSED if was_signed else "if the address was signed, get a new one"
        return UnusableObject(f"cannot read {where}: permission denied ({reason}): {advice}", FailureKind.NO_ACCESS)
    if status in (404, 408, 410, 412, 429) or status >= 500:
        status = 404 if status == 410 else status
        return status_error("read", where, status, reason, "", parse_retry_after(reply.headers.get("Retry-After")))
    return UnusableObject(f"cannot read {where}: its server did not deliver it ({reason}): check the address")


def _changed(where: str) -> str:
    return f"cannot read {where}: it changed while it was read: let its writer finish, then start again"


def _incomplete(where: str, count: int, expected: int) -> str:
    return connection_failed("read", where, f"received {count:,} bytes, but {expected:,} were announced")


def _read(reply: BaseHTTPResponse, count: int) -> bytes:
    """Read `count` bytes, fewer only at the end of the body. urllib3 compares the length of the body with its
    Content-Length."""
    parts: list[bytes] = []
    while count > 0 and (data := reply.read1(min(count, READ_BYTES))):
        parts.append(data)
        count -= len(data)
    return b"".join(parts)


def _tag(reply: BaseHTTPResponse, like: str = "") -> str:
    """Return the value that identifies the revision: a strong ETag, otherwise a date. Return "" if there is neither.

    A date counts if it is earlier than the reply (RFC 9110, 8.8.2.2): the object may change again within its second.
    With `like`, return the value of the same kind, because an ETag can become weak on the way.
    """
    etag: str = reply.headers.get("ETag", "").strip()
    date: str = reply.headers.get("Last-Modified", "").strip()
    if like:
        return etag.removeprefix("W/") if like.startswith('"') else date
    if etag.startswith('"'):
        return etag
    sent_at, changed_at = parsedate_tz(reply.headers.get("Date", "")), parsedate_tz(date)
    return date if sent_at and changed_at and mktime_tz(sent_at) > mktime_tz(changed_at) else ""


def _is_gzipped(where: str, reply: BaseHTTPResponse) -> bool:
    encoding = reply.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise UnusableObject(
            f"cannot read {where}: it is sent with Content-Encoding: {one_line(encoding)}: serve it uncompressed"
        )
    return "gzip" in encoding


def _length(reply: BaseHTTPResponse) -> int | None:
    text = reply.headers.get("Content-Length", "").strip()
    return int(text) if _NUMBER.fullmatch(text) and not reply.headers.get("Transfer-Encoding") else None


def _size(reply: BaseHTTPResponse) -> int | None:
    """Return the size of the whole object, as far as a reply reports it."""
    if reply.status == 200:
        return _length(reply)
    match = (_CONTENT_RANGE if reply.status == 206 else _UNSATISFIED_RANGE).fullmatch(_content_range(reply))
    size = match["size"] if match else "*"
    return None if size == "*" else int(size)


def _content_range(reply: BaseHTTPResponse) -> str:
    text: str = reply.headers.get("Content-Range", "")
    return text.strip()


def _check_range(where: str, reply: BaseHTTPResponse, start: int, end: int) -> None:
    """Check that a reply is about the bytes [start, end), and holds all of them that exist."""
    size, match = _size(reply), _CONTENT_RANGE.fullmatch(_content_range(reply))
    if reply.status == 416:
        is_right = size is None or size <= start
    elif match and size is None:
        raise UnusableObject(f"cannot read {where}: its server does not report its size")
    else:
        is_right = match is not None and (int(match[1]), int(match[2])) == (start, min(end, size or 0) - 1)
    if not is_right:
        came = one_line(_content_range(reply)) or "no byte range"
        raise TransientError(
            f"cannot read {where}: its server answered a request for bytes {start}-{end - 1} with {came} "
            f"(HTTP status {reply.status})"
        )


def _read_range(where: str, reply: BaseHTTPResponse, start: int, end: int) -> bytes:
    count = min(end, _size(reply) or end) - start
    data = _read(reply, count + 1)
    if len(data) != count:
        raise TransientError(_incomplete(where, len(data), count))
    return data
