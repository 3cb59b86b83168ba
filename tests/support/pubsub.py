"""Google's Pub/Sub emulator as a server for the tests, with a client that publishes, breaks leases and lists messages.

The emulator is part of the Google Cloud CLI. It keeps leases, counts deliveries and forwards dead letters like the
service; it ignores filters and delays between deliveries.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import servers

JAR = "PUBSUB_EMULATOR_JAR"
"""The variable with the path of the emulator's jar, if the jar is not beside gcloud."""
HOST = "PUBSUB_EMULATOR_HOST"
"""The variable by which clients find the emulator."""
LEASE_S = 10
ATTEMPTS = 5
"""Deliveries before Pub/Sub dead-letters a message: the minimum that it permits."""

_MISSING = (
    "Google's Pub/Sub emulator is not here: install Java, and it (gcloud components install pubsub-emulator, or "
    f"apt-get install google-cloud-cli-pubsub-emulator), or name its jar by {JAR}"
)


def emulator_jar() -> Path | None:
    """Return the path of the emulator's jar, or None if it is not installed."""
    if named := os.environ.get(JAR):
        return Path(named)
    gcloud = shutil.which("gcloud")
    if not gcloud:
        return None
    folder = Path(gcloud).resolve().parents[1] / "platform" / "pubsub-emulator" / "lib"
    return max(folder.glob("cloud-pubsub-emulator-*.jar"), default=None)


@contextmanager
def emulator() -> Iterator[str]:
    """Start the emulator and yield its "host:port"; skip the test if it cannot be started."""
    jar, java = emulator_jar(), shutil.which("java")
    if not jar or not java:
        pytest.skip(_MISSING)
    pytest.importorskip(
        "google.cloud.pubsub_v1", reason="google-cloud-pubsub is missing: pip install 'voxbatch[pubsub]'"
    )
    port = servers.free_port()
    # the emulator shares the machine with the program under test
    small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    with servers.serving(port, [java, *small, "-jar", str(jar), "--host=127.0.0.1", f"--port={port}"]):
        yield f"127.0.0.1:{port}"


@dataclass(frozen=True, slots=True)
class PulledMessage:
    """A delivered message."""

    data: bytes
    attributes: dict[str, str]
    attempt: int
    """Delivery attempt, from 1; 0 if the subscription has no dead-letter topic."""
    ack_id: str


class PubsubProject:
    """A project of one test: topic `uploads` with a subscription `uploads`, whose dead letters go to the topic `dead`
    with a subscription `dead`.
    """

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
        """Add a subscription to `uploads`."""
        request = {"name": self.subscription(name), "topic": self.topic("uploads"), "ack_deadline_seconds": LEASE_S}
        self._subscriber.create_subscription(request={**request, **settings})

    def make_topic(self, name: str) -> str:
        """Make a topic, and return its full name."""
        self._publisher.create_topic(name=self.topic(name))
        return self.topic(name)

    def publish(self, data: bytes | dict[str, Any], **attributes: str) -> None:
        text = data if isinstance(data, bytes) else json.dumps(data).encode()
        self._publisher.publish(self.topic("uploads"), text, **attributes).result()

    def notify(self, bucket: str, key: str, event: str = "OBJECT_FINALIZE", generation: int = 1) -> None:
        """Publish an event as Cloud Storage does, with the attributes that the test server leaves out."""
        about = {"kind": "storage#object", "name": key, "bucket": bucket, "generation": str(generation), "size": "1"}
        config = f"projects/_/buckets/{bucket}/notificationConfigs/1"
        place = {"bucketId": bucket, "objectId": key, "objectGeneration": str(generation)}
        kind = {"eventType": event, "payloadFormat": "JSON_API_V1", "eventTime": "2026-01-02T03:04:05.678901Z"}
        self.publish(about, notificationConfig=config, **place, **kind)

    def pull(self, name: str = "uploads", count: int = 1000) -> list[PulledMessage]:
        """Return the messages that are available now, leased to the test."""
        request = {"subscription": self.subscription(name), "max_messages": count, "return_immediately": True}
        with warnings.catch_warnings():
            # return_immediately is deprecated, but is the only way not to wait
            warnings.simplefilter("ignore", DeprecationWarning)
            reply = self._subscriber.pull(request=request, timeout=20, retry=None)
        return [
            PulledMessage(each.message.data, dict(each.message.attributes), each.delivery_attempt, each.ack_id)
            for each in reply.received_messages
        ]

    def told(self) -> int:
        """Return the number of messages published so far, counted by their copies in a separate subscription."""
        copies = self.pull("copy")
        self.acknowledge(copies, "copy")
        self._told += len(copies)
        return self._told

    def break_leases(self) -> None:
        """End all leases, as if their deadline had passed: the next client that pulls gets the messages.

        The emulator numbers its deliveries over all subscriptions, and names leases by that number.
        """
        from google.api_core.exceptions import InvalidArgument

        name = self.subscription("uploads")
        ids = [f"{name}:{number}" for number in range(self._first, self._delivery() + 1)]
        for at in range(0, len(ids), 1000):
            request = {"subscription": name, "ack_ids": ids[at : at + 1000], "ack_deadline_seconds": 0}
            with suppress(InvalidArgument):  # with exactly-once delivery, raised for leases that have ended
                self._subscriber.modify_ack_deadline(request=request)

    def unacked(self) -> list[PulledMessage]:
        """End all leases and return the messages that are left in `uploads`."""
        self.break_leases()
        return self.pull()

    def dead_letters(self) -> list[PulledMessage]:
        """Return the dead letters that arrived since the last call."""
        messages = self.pull("dead")
        self.acknowledge(messages, "dead")
        return messages

    def acknowledge(self, messages: list[PulledMessage], name: str = "uploads") -> None:
        if ids := [message.ack_id for message in messages]:
            self._subscriber.acknowledge(request={"subscription": self.subscription(name), "ack_ids": ids})

    def _delivery(self) -> int:
        """Return the number of a delivery made now."""
        self._publisher.publish(self.topic("probe"), b"probe").result()
        return max(int(message.ack_id.rpartition(":")[2]) for message in self.pull("probe"))


@contextmanager
def pubsub_projects(host: str) -> Iterator[Callable[..., PubsubProject]]:
    """Yield a function that makes projects on the emulator at `host`."""
    from google.cloud import pubsub_v1

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOST, host)
        publisher, subscriber = pubsub_v1.PublisherClient(), pubsub_v1.SubscriberClient()
    with subscriber:
        yield functools.partial(PubsubProject, host, publisher, subscriber)
        publisher.stop()
        publisher.transport.close()


# ── servers in front of the emulator ──────────────────────────────────────────────────────────────────────────────────


@contextmanager
def recorded(upstream: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Start a relay to the emulator that records calls. Yield its "host:port", and the list of (method, resource), such
    as ("/google.pubsub.v1.Subscriber/Pull", "projects/p/subscriptions/s"). The end of the context breaks its
    connections.
    """
    import grpc

    calls: list[tuple[str, str]] = []

    class Recorder(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, handler_call_details: Any) -> Any:
            method, metadata = handler_call_details.method, dict(handler_call_details.invocation_metadata)
            calls.append((method, unquote(metadata["x-goog-request-params"].partition("=")[2])))
            forward = channel.unary_unary(method)  # without serializers: the bytes of the messages

            def answer(request: bytes, context: Any) -> bytes:
                try:
                    return bytes(forward(request, timeout=context.time_remaining()))
                except grpc.RpcError as e:
                    context.abort(e.code(), e.details())
                    raise

            return grpc.unary_unary_rpc_method_handler(answer)

    with grpc.insecure_channel(upstream) as channel:
        server = grpc.server(ThreadPoolExecutor(8), handlers=[Recorder()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}", calls
        server.stop(None).wait()


@contextmanager
def refusing() -> Iterator[str]:
    """Start a Pub/Sub server that denies every request and yield its "host:port"."""
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
