"""Messages of a Pub/Sub subscription, each held until it is answered.

An answer is one of three: the message is done (acknowledged), given back, or put into the dead-letter topic with the
reason.

Delivery is at least once, and a message counts as delivered even if the reply was lost. So the code that handles a
message must accept that it comes again. A thread extends the deadlines of the held messages for as long as the work
takes. The client's streaming pull is not used: it extends a deadline for one hour only
(FlowControl.max_lease_duration), and it holds messages that were not asked for.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar

from voxbatch.clouds.listen.message import ReceivedMessage
from voxbatch.errors import ConfigError, QueueError
from voxbatch.log import Log
from voxbatch.platforms import GOOGLE_PROJECT
from voxbatch.storage.retry import QUEUE_REQUEST, Retries

TIMEOUT_S = 20.0
"""Timeout of one request, in seconds."""
EXTENSIONS_PER_DEADLINE = 3
"""Extensions within the length of a deadline: two may fail."""
REDELIVERED = "they will be delivered again"
MIN_ACK_DEADLINE_S = 10.0
"""The shortest acknowledgement deadline that Pub/Sub allows, in seconds, and the default one."""
IDS_AT_A_TIME = 1000
"""Ids in one request: a request may have 512 KiB, and an id has about 200 bytes (Pub/Sub quotas)."""
REASON_BYTES = 1024
"""Maximum bytes of an attribute's value (Pub/Sub quotas)."""
MAX_ATTRIBUTES = 100
"""Maximum attributes of a message."""
RESERVED = "goog"
"""Prefix of attribute names that Pub/Sub itself sets (googclient_schemaencoding) and refuses from a publisher."""
_PASSING = ("ServiceUnavailable", "InternalServerError", "Aborted", "Unknown", "DeadlineExceeded", "TooManyRequests",
            "ResourceExhausted", "GatewayTimeout", "BadGateway", "Cancelled", "RetryError")  # fmt: skip
"""Classes of google.api_core.exceptions that are retried, because another attempt may succeed."""

_UNCOUNTED = (
    "{name} has no dead-letter topic of its own, so Pub/Sub does not count deliveries: a message whose run always "
    "fails, for example because of a missing permission, is delivered again and again: gcloud pubsub subscriptions "
    "update {name} "
    "--dead-letter-topic=TOPIC --max-delivery-attempts=100"
)


class Subscription:
    """A Pub/Sub subscription. Thread-safe except for `pull`. `close` gives the held messages back."""

    exit_code: ClassVar[int] = 0
    """A message that can never be run is reported by the dead-letter topic."""

    def __init__(self, name: str, project: str | None, dead_letter: str | None, log: Log):
        """Connect to the subscription and start the thread that extends deadlines.

        Args:
            name: projects/P/subscriptions/S, or S.
            project: project of a short name; None: GOOGLE_CLOUD_PROJECT, or the credentials' project.
            dead_letter: a topic; None: the subscription's own dead-letter topic.

        Raises:
            ConfigError: the subscription or a dead-letter topic is missing.
            QueueError: the subscription is unreachable, or its configuration cannot be read.
        """
        try:
            from google.auth.exceptions import GoogleAuthError
            from google.cloud import pubsub_v1
        except ImportError as e:
            install = "pip install 'voxbatch[pubsub]'"
            raise ConfigError(f"voxbatch listen: the client library is not installed ({e}): {install}") from e
        try:
            self._client = pubsub_v1.SubscriberClient()
            self._publisher = pubsub_v1.PublisherClient()
        except GoogleAuthError as e:
            login = "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"
            raise QueueError(f"cannot look at subscription {name}: no usable credentials ({_said(e)}): {login}") from e
        self._log = log
        self.name = _full_name(name, "subscriptions", project)
        settings = self._look(dead_letter is not None)
        self._topic = str(settings.topic) if settings else ""
        policy = settings and settings.dead_letter_policy
        self.max_delivery_attempts = int(policy.max_delivery_attempts) if policy and policy.dead_letter_topic else 0
        """Number of deliveries after which Pub/Sub dead-letters a message itself, without a reason; 0: never."""
        if dead_letter:
            self.dead_letter_topic = _full_name(dead_letter, "topics", project)
        elif policy and policy.dead_letter_topic and policy.dead_letter_topic != "_deleted-topic_":
            self.dead_letter_topic = str(policy.dead_letter_topic)
        else:
            raise ConfigError(
                f"{self.name} has no dead-letter topic, so a message that cannot be run would be delivered for ever: "
                f"gcloud pubsub subscriptions update {self.name} --dead-letter-topic=TOPIC "
                "--max-delivery-attempts=100, or name a topic with --dead-letter"
            )
        if settings and not self.max_delivery_attempts:
            self._log.info("no_dead_letter_policy", text=_UNCOUNTED.format(name=self.name))
        self.ack_deadline_s = float(settings.ack_deadline_seconds) if settings else MIN_ACK_DEADLINE_S
        self._held: set[str] = set()
        """The ack_id of each held message. The extending thread reads it under the lock."""
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._extend_deadlines, daemon=True, name="deadlines").start()

    def _look(self, may_be_denied: bool) -> Any:
        """Return the subscription's configuration; None if permission is denied and the configuration is not needed."""
        from google.api_core.exceptions import PermissionDenied

        look = partial(self._client.get_subscription, subscription=self.name, timeout=TIMEOUT_S, retry=None)
        try:
            return self._again(f"look at {self.name}", look)
        except QueueError as e:
            if not isinstance(e.__cause__, PermissionDenied):
                raise
            if may_be_denied:
                return None
            raise QueueError(
                f"cannot look at {self.name}: permission denied ({_said(e.__cause__)}): grant roles/pubsub.viewer on "
                "it, or name its dead-letter topic with --dead-letter"
            ) from e

    # -- messages -----------------------------------------------------------------------------------------------------

    def pull(self, max_messages: int, timeout_s: float) -> list[ReceivedMessage]:
        """Pull up to `max_messages` messages; return [] if none arrives within `timeout_s`.

        Raises:
            ConfigError: the subscription no longer exists.
            QueueError: the subscription is unreachable, or cannot be read.
        """
        received = self._again(f"pull from {self.name}", partial(self._pull, max_messages, timeout_s))
        with self._lock:
            self._held.update(delivery.ack_id for delivery in received)
        return [
            ReceivedMessage(
                delivery.message.message_id,
                bytes(delivery.message.data),
                dict(delivery.message.attributes),
                int(delivery.delivery_attempt or 0),
                delivery.ack_id,
            )
            for delivery in received
        ]

    def _pull(self, max_messages: int, timeout_s: float) -> Sequence[Any]:
        from google.api_core.exceptions import DeadlineExceeded

        try:
            reply = self._client.pull(subscription=self.name, max_messages=max_messages, timeout=timeout_s, retry=None)
            return list(reply.received_messages)
        except DeadlineExceeded:  # Pub/Sub may say in this way that there is no message
            return []

    def acknowledge(self, messages: Iterable[ReceivedMessage]) -> None:
        """Acknowledge messages. If this fails, the messages are delivered again, and their runs are found done."""
        for ids in self._release(message.ack_id for message in messages):
            call = partial(self._client.acknowledge, subscription=self.name, ack_ids=ids, timeout=TIMEOUT_S, retry=None)
            with self._warning_on_error("acknowledge"):
                self._again(f"acknowledge messages of {self.name}", call)

    def nack(self, messages: Iterable[ReceivedMessage]) -> None:
        """Give messages back, for delivery at once or as the subscription's retry policy says."""
        self._nack(message.ack_id for message in messages)

    def _nack(self, ack_ids: Iterable[str]) -> None:
        for ids in self._release(ack_ids):
            with self._warning_on_error("give back"):
                self._set_deadline(ids, 0)

    def dead_letter(self, message: ReceivedMessage, reason: str) -> None:
        """Put a message into the dead-letter topic with the reason, and acknowledge it.

        Raises:
            ConfigError, QueueError: the message cannot be put there; `close` gives it back.
        """
        reason_attributes = {
            "voxbatch_reason": reason.encode()[:REASON_BYTES].decode(errors="ignore"),
            "voxbatch_message_id": message.id,
            "voxbatch_subscription": self.name,
        }
        free = (attribute for attribute in message.attributes.items() if not attribute[0].startswith(RESERVED))
        kept_attributes = dict(islice(free, MAX_ATTRIBUTES - len(reason_attributes)))
        topic = self.dead_letter_topic
        self._publish(topic, {"data": message.data, "attributes": {**kept_attributes, **reason_attributes}})
        text = f"message {message.id} cannot be run, and is in {topic} now: {reason}"
        self._log.error("message_refused", message_id=message.id, dead_letter=topic, text=text)
        self.acknowledge([message])

    def send(self, messages: Iterable[dict[str, str]]) -> None:
        """Publish messages without data, of which these are the attributes, to the subscription's own topic.

        Raises:
            ConfigError, QueueError: they cannot be published, or the topic is unknown.
        """
        if not self._topic:
            raise QueueError(f"the topic of {self.name} cannot be seen: grant roles/pubsub.viewer on the subscription")
        self._publish(self._topic, *({"attributes": attributes} for attributes in messages))

    def _publish(self, topic: str, *messages: dict[str, Any]) -> None:
        from google.pubsub_v1 import PublisherClient, PubsubMessage

        # Call the generated client: the publisher's own `publish` batches messages on threads, and takes attributes as
        # its keyword arguments.
        batch = [PubsubMessage(message) for message in messages]
        call = partial(
            PublisherClient.publish, self._publisher, topic=topic, messages=batch, timeout=TIMEOUT_S, retry=None
        )
        self._again(f"publish to {topic}", call)

    def close(self) -> None:
        """Stop the extension of deadlines, and give all held messages back."""
        self._closed.set()
        self._nack(list(self._held))

    # -- deadlines -----------------------------------------------------------------------------------------------------

    def _release(self, ack_ids: Iterable[str]) -> Iterator[list[str]]:
        """Stop the extension of these messages' deadlines. Return the ids that were held, in groups of
        IDS_AT_A_TIME.
        """
        with self._lock:
            ids = [ack_id for ack_id in ack_ids if ack_id in self._held]
            self._held.difference_update(ids)
        return (ids[at : at + IDS_AT_A_TIME] for at in range(0, len(ids), IDS_AT_A_TIME))

    def _extend_deadlines(self) -> None:
        """Extend the deadlines of all held messages before they end, until the subscription is closed."""
        while not self._closed.wait(self.ack_deadline_s / EXTENSIONS_PER_DEADLINE):
            with self._lock:
                ids = list(self._held)
            for at in range(0, len(ids), IDS_AT_A_TIME):
                with self._warning_on_error("extend the deadline of", f"if the next attempt fails, {REDELIVERED}"):
                    batch, timeout_s = ids[at : at + IDS_AT_A_TIME], self.ack_deadline_s / EXTENSIONS_PER_DEADLINE
                    self._set_deadline(batch, math.ceil(self.ack_deadline_s), min(TIMEOUT_S, timeout_s))

    def _set_deadline(self, ids: list[str], seconds: int, timeout_s: float = TIMEOUT_S) -> None:
        self._client.modify_ack_deadline(
            subscription=self.name, ack_ids=ids, ack_deadline_seconds=seconds, timeout=timeout_s, retry=None
        )

    @contextlib.contextmanager
    def _warning_on_error(self, verb: str, then: str = REDELIVERED) -> Iterator[None]:
        """Turn an error into a warning. No message is lost: it is delivered again, to this or another listener."""
        try:
            yield
        except Exception as e:  # noqa: BLE001 for any error of the client: the extending thread must not end
            text = f"cannot {verb} messages of {self.name}: {_said(e)}; {then}"
            self._log.warning("lease", text=text)

    def _again(self, doing: str, call: Callable[[], Any]) -> Any:
        """Call, and retry as the policy QUEUE_REQUEST says.

        Raises:
            ConfigError, QueueError: the error that remains.
        """
        retries = Retries(QUEUE_REQUEST)

        def warn_once(error: BaseException | None, wait_s: float) -> None:
            if retries.failed == 1:
                self._log.warning("queue", text=f"cannot {doing} ({_said(error)}); trying again")

        try:
            return retries.call(call, lambda error: type(error).__name__ in _PASSING, warn_once)
        except Exception as e:
            raise _trouble(doing, e) from e


def _full_name(name: str, kind: str, project: str | None) -> str:
    """Return the full name: "calls" → "projects/P/subscriptions/calls"."""
    if name.startswith("projects/"):
        parts = name.split("/")
        if len(parts) == 4 and parts[2] == kind and all(parts):
            return name
        raise ConfigError(f"{name!r} is not of the form projects/PROJECT/{kind}/NAME or NAME")
    project_id = project or os.environ.get(GOOGLE_PROJECT)  # the variable needs no credentials, nor does the emulator
    if not project_id:
        import google.auth
        from google.auth.exceptions import GoogleAuthError

        with contextlib.suppress(GoogleAuthError):
            project_id = google.auth.default()[1]
    if not project_id:
        raise ConfigError(
            f"{name}: the project is unknown: give --project, set GOOGLE_CLOUD_PROJECT, or write the name in full, "
            f"projects/PROJECT/{kind}/{name}"
        )
    return f"projects/{project_id}/{kind}/{name}"


def _trouble(doing: str, error: Exception) -> ConfigError | QueueError:
    """Return the voxbatch error for an error of the client."""
    kind = type(error).__name__
    if kind == "NotFound":
        return ConfigError(f"cannot {doing}: there is none ({_said(error)}): check its name and its project")
    if kind == "InvalidArgument":
        return ConfigError(f"cannot {doing}: {_said(error)}: check its name")
    if kind == "PermissionDenied":
        return QueueError(
            f"cannot {doing}: permission denied ({_said(error)}): grant roles/pubsub.subscriber on the subscription "
            "and roles/pubsub.publisher on its dead-letter topic"
        )
    return QueueError(f"cannot {doing}: {_said(error)}: check the network, and start again")


def _said(error: object) -> str:
    """Return the error's message on one line, of at most 300 characters."""
    text = " ".join(str(getattr(error, "message", "") or error).split())
    return json.dumps(text[:300])[1:-1]
