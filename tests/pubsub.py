"""Google's Pub/Sub emulator as a server for the tests, and what somebody beside `voxbatch` does with it: publishes,
breaks leases, looks for what is left.

The emulator is part of the Google Cloud CLI. It keeps leases, counts deliveries and forwards dead letters as the
service does; it ignores filters and waits between deliveries.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import socketserver
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import servers

JAR = "PUBSUB_EMULATOR_JAR"
"""The variable that names the emulator's jar where it does not lie beside gcloud."""
HOST = "PUBSUB_EMULATOR_HOST"
"""The variable by which clients find the emulator."""
LEASE_S = 10
ATTEMPTS = 5
"""Deliveries before Pub/Sub itself takes a message for dead: the fewest that there may be."""

_MISSING = (
    "Google's Pub/Sub emulator is not here: install Java, and it (gcloud components install pubsub-emulator, or "
    f"apt-get install google-cloud-cli-pubsub-emulator), or name its jar by {JAR}"
)


def emulator_jar() -> Path | None:
    if named := os.environ.get(JAR):
        return Path(named)
    gcloud = shutil.which("gcloud")
    if not gcloud:
        return None
    folder = Path(gcloud).resolve().parents[1] / "platform" / "pubsub-emulator" / "lib"
    return max(folder.glob("cloud-pubsub-emulator-*.jar"), default=None)


@contextmanager
def emulator() -> Iterator[str]:
    """Its "host:port". Skips the test where it cannot be started."""
    jar, java = emulator_jar(), shutil.which("java")
    if not jar or not java:
        pytest.skip(_MISSING)
    pytest.importorskip(
        "google.cloud.pubsub_v1", reason="google-cloud-pubsub is missing: pip install 'voxbatch[pubsub]'"
    )
    port = servers.free_port()
    small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]  # it shares the machine with what is tested
    with servers.serving(port, [java, *small, "-jar", str(jar), "--host=127.0.0.1", f"--port={port}"]):
        yield f"127.0.0.1:{port}"


@dataclass(frozen=True, slots=True)
class Letter:
    """A message as it was delivered."""

    data: bytes
    attributes: dict[str, str]
    attempt: int
    """From 1; 0 where the subscription has no dead-letter topic."""
    ack_id: str


class Post:
    """A project of a test's own: topic `uploads` with a subscription `uploads`, whose dead letters go to the topic
    `dead`, which has a subscription `dead`."""

    def __init__(self, host: str, publisher: Any, subscriber: Any, *, exactly_once: bool = False):
        self.host, self._publisher, self._subscriber = host, publisher, subscriber
        self.project = f"test-{uuid.uuid4().hex[:8]}"
        for topic in ("uploads", "dead", "probe"):
            publisher.create_topic(name=self.topic(topic))
        for name in ("dead", "probe"):
            subscriber.create_subscription(name=self.subscription(name), topic=self.topic(name))
        policy = {"dead_letter_topic": self.topic("dead"), "max_delivery_attempts": ATTEMPTS}
        self.subscribe("uploads", dead_letter_policy=policy, enable_exactly_once_delivery=exactly_once)
        self.subscribe("copy")
        self._told = 0
        self._first = self._delivery()

    def topic(self, name: str) -> str:
        return f"projects/{self.project}/topics/{name}"

    def subscription(self, name: str) -> str:
        return f"projects/{self.project}/subscriptions/{name}"

    def subscribe(self, name: str, **settings: Any) -> None:
        """Another subscription to `uploads`."""
        request = {"name": self.subscription(name), "topic": self.topic("uploads"), "ack_deadline_seconds": LEASE_S}
        self._subscriber.create_subscription(request={**request, **settings})

    def publish(self, data: bytes | dict[str, Any], **attributes: str) -> None:
        text = data if isinstance(data, bytes) else json.dumps(data).encode()
        self._publisher.publish(self.topic("uploads"), text, **attributes).result()

    def notify(self, bucket: str, key: str, event: str = "OBJECT_FINALIZE", generation: int = 1) -> None:
        """As Cloud Storage does of an object; with the attributes that the test server leaves out."""
        about = {"kind": "storage#object", "name": key, "bucket": bucket, "generation": str(generation), "size": "1"}
        config = f"projects/_/buckets/{bucket}/notificationConfigs/1"
        place = {"bucketId": bucket, "objectId": key, "objectGeneration": str(generation)}
        kind = {"eventType": event, "payloadFormat": "JSON_API_V1", "eventTime": "2026-01-02T03:04:05.678901Z"}
        self.publish(about, notificationConfig=config, **place, **kind)

    def pull(self, name: str = "uploads", count: int = 1000) -> list[Letter]:
        """What is there at this moment, leased to the test."""
        request = {"subscription": self.subscription(name), "max_messages": count, "return_immediately": True}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of return_immediately: the only way not to wait
            reply = self._subscriber.pull(request=request, timeout=20, retry=None)
        return [
            Letter(each.message.data, dict(each.message.attributes), each.delivery_attempt, each.ack_id)
            for each in reply.received_messages
        ]

    def told(self) -> int:
        """How many messages have come so far; looks at the copies in a subscription of its own."""
        copies = self.pull("copy")
        self.acknowledge(copies, "copy")
        self._told += len(copies)
        return self._told

    def break_leases(self) -> None:
        """Whoever holds a message loses it, as when its deadline passes: the next to ask gets it.

        The emulator numbers its deliveries, over all subscriptions, and names leases by that number."""
        from google.api_core.exceptions import InvalidArgument

        name = self.subscription("uploads")
        ids = [f"{name}:{number}" for number in range(self._first, self._delivery() + 1)]
        for at in range(0, len(ids), 1000):
            request = {"subscription": name, "ack_ids": ids[at : at + 1000], "ack_deadline_seconds": 0}
            with suppress(InvalidArgument):  # with exactly-once delivery, of those that are over
                self._subscriber.modify_ack_deadline(request=request)

    def unacked(self) -> list[Letter]:
        """What is left in `uploads`, also what somebody still holds; they lose it."""
        self.break_leases()
        return self.pull()

    def dead(self) -> list[Letter]:
        """The dead letters that came since the last call."""
        letters = self.pull("dead")
        self.acknowledge(letters, "dead")
        return letters

    def acknowledge(self, letters: list[Letter], name: str = "uploads") -> None:
        if ids := [letter.ack_id for letter in letters]:
            self._subscriber.acknowledge(request={"subscription": self.subscription(name), "ack_ids": ids})

    def _delivery(self) -> int:
        """The number of a delivery made now."""
        self._publisher.publish(self.topic("probe"), b"probe").result()
        return max(int(letter.ack_id.rpartition(":")[2]) for letter in self.pull("probe"))


@contextmanager
def posts(host: str) -> Iterator[Callable[..., Post]]:
    """Makes projects on the emulator at `host`."""
    from google.cloud import pubsub_v1

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOST, host)
        publisher, subscriber = pubsub_v1.PublisherClient(), pubsub_v1.SubscriberClient()
    with subscriber:
        yield functools.partial(Post, host, publisher, subscriber)
        publisher.stop()
        publisher.transport.close()


# ── who stands in the way ─────────────────────────────────────────────────────────────────────────────────────────────


class Relay(socketserver.ThreadingTCPServer):
    """Leads connections on to the emulator, until it is cut: then it breaks those there are, and takes no more."""

    daemon_threads = True

    def __init__(self, upstream: str):
        super().__init__(("127.0.0.1", 0), _Through)
        self.host = f"127.0.0.1:{self.server_address[1]}"
        name, _, port = upstream.partition(":")
        self.upstream = (name, int(port))
        self.is_cut = False
        self.ends: list[socket.socket] = []

    def cut(self) -> None:
        self.is_cut = True
        for end in self.ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections are broken on purpose."""


class _Through(socketserver.BaseRequestHandler):
    server: Relay

    def handle(self) -> None:
        if self.server.is_cut:
            return
        with socket.create_connection(self.server.upstream) as other:
            self.server.ends += [self.request, other]
            back = threading.Thread(target=_pump, args=(other, self.request), daemon=True)
            back.start()
            _pump(self.request, other)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def relayed(upstream: str) -> Iterator[Relay]:
    with Relay(upstream) as relay:
        threading.Thread(target=relay.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield relay
        relay.cut()
        relay.shutdown()


@contextmanager
def refusing() -> Iterator[str]:
    """The "host:port" of a Pub/Sub that permits nothing."""
    import grpc

    class Refusal(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, handler_call_details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                lambda request, context: context.abort(grpc.StatusCode.PERMISSION_DENIED, "User not authorized")
            )

    server = grpc.server(ThreadPoolExecutor(2), handlers=[Refusal()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()
