"""Messages of a Pub/Sub subscription, each leased until it is answered.

An answer is one of three: the message is done (acknowledged), given back, or put into the dead-letter topic with the
reason.

Delivery is at least once, and a message counts as delivered even if the reply was lost. So the code that handles a
message must accept that it comes again. A thread extends the leases for as long as the work takes. The client's
streaming pull is not used: it extends a lease for one hour only (FlowControl.max_lease_duration), and it holds messages
that were not asked for.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import tenacity

from voxbatch.errors import ConfigError, QueueError
from voxbatch.log import Log
from voxbatch.platforms.listen.message import Message
from voxbatch.storage.retry import ATTEMPTS, TOTAL_S, wait_s

PROJECT = "GOOGLE_CLOUD_PROJECT"
"""Environment variable of the project."""
TIMEOUT_S = 20.0
"""Timeout of one request, in seconds."""
EXTENSIONS = 3
"""Extensions within the length of a lease: two may fail."""
AGAIN = "they will be delivered once more"
MIN_ACK_DEADLINE_S = 10.0
"""The shortest lease that Pub/Sub allows, in seconds, and the default one."""
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
    "{name} has no dead-letter topic of its own, so nobody counts deliveries: a message whose run fails each time, for "
    "want of a permission say, comes again and again: gcloud pubsub subscriptions update {name} "
    "--dead-letter-topic=TOPIC --max-delivery-attempts=100"
)


@dataclass(frozen=True, eq=False, slots=True)
class ReceivedMessage:
    """A message that is leased to this process."""

    message: Message
    ack_id: str


class Subscription:
    """A Pub/Sub subscription. Thread-safe except for `pull`. `close` gives the leased messages back."""

    def __init__(self, name: str, project: str | None, dead_letter: str | None, log: Log):
        """Connect to the subscription and start the thread that extends leases.

        Args:
            name: projects/P/subscriptions/S, or S.
            project: project of a short name; None: GOOGLE_CLOUD_PROJECT, or the credentials' project.
            dead_letter: a topic; None: the subscription's own dead-letter topic.
            log: receives warnings and refused messages.

        Raises:
            ConfigError: the subscription or a dead-letter topic is missing.
            QueueError: the subscription is unreachable, or its configuration cannot be read.
        """
        with _needs():
            from google.cloud import pubsub_v1
        with _errors(f"look at subscription {name}"):
            self._client = pubsub_v1.SubscriberClient()
            self._publisher = pubsub_v1.PublisherClient()
        self._log = log
        self.name = _full(name, "subscriptions", project)
        found = self._look(dead_letter is not None)
        policy = found and found.dead_letter_policy
        self.max_delivery_attempts = int(policy.max_delivery_attempts) if policy and policy.dead_letter_topic else 0
        """Number of deliveries after which Pub/Sub dead-letters a message itself, without a reason; 0: never."""
        self.dead_letter = _full(dead_letter, "topics", project) if dead_letter else self._own_dead_letter(policy)
        if found and not self.max_delivery_attempts:
            self._log.warning("no_dead_letter_policy", text=_UNCOUNTED.format(name=self.name))
        self.ack_deadline_s = float(found.ack_deadline_seconds) if found else MIN_ACK_DEADLINE_S
        self._leases: dict[str, ReceivedMessage] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._keep, daemon=True, name="leases").start()

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

    def _own_dead_letter(self, policy: Any) -> str:
        """Return the subscription's own dead-letter topic."""
        if policy and policy.dead_letter_topic and policy.dead_letter_topic != "_deleted-topic_":
            return str(policy.dead_letter_topic)
        raise ConfigError(
            f"{self.name} has no dead-letter topic, so that a message which cannot be run would come again for ever: "
            f"gcloud pubsub subscriptions update {self.name} --dead-letter-topic=TOPIC --max-delivery-attempts=100, or "
            "name a topic with --dead-letter"
        )

    # -- messages -----------------------------------------------------------------------------------------------------

    def pull(self, most: int, timeout_s: float) -> list[ReceivedMessage]:
        """Pull up to `most` messages; return [] if none arrives within `timeout_s`.

        Raises:
            ConfigError: the subscription no longer exists.
            QueueError: the subscription is unreachable, or cannot be read.
        """
        received = self._again(f"pull from {self.name}", partial(self._pull, most, timeout_s))
        leases = [ReceivedMessage(_message(each), each.ack_id) for each in received]
        with self._lock:
            self._leases |= {lease.ack_id: lease for lease in leases}
        return leases

    def _pull(self, most: int, timeout_s: float) -> Sequence[Any]:
        from google.api_core.exceptions import DeadlineExceeded

        try:
            reply = self._client.pull(subscription=self.name, max_messages=most, timeout=timeout_s, retry=None)
            return list(reply.received_messages)
        except DeadlineExceeded:  # Pub/Sub may say in this way that there is no message
            return []

    def done(self, leases: Iterable[ReceivedMessage]) -> None:
        """Acknowledge messages. If this fails, the messages are delivered again, and their runs are found done."""
        for ids in self._released(leases):
            with self._told("acknowledge"):
                self._again(f"acknowledge messages of {self.name}", partial(self._acknowledge, ids))

    def _acknowledge(self, ids: list[str]) -> None:
        self._client.acknowledge(subscription=self.name, ack_ids=ids, timeout=TIMEOUT_S, retry=None)

    def nack(self, leases: Iterable[ReceivedMessage]) -> None:
        """Give messages back, for delivery at once or as the subscription's retry policy says."""
        for ids in self._released(leases):
            with self._told("give back"):
                self._extend(ids, 0)

    def dead_letter_message(self, lease: ReceivedMessage, reason: str) -> None:
        """Put a message into the dead-letter topic with the reason, and acknowledge it.

        Raises:
            ConfigError, QueueError: the message cannot be put there; `close` gives it back.
        """
        from google.pubsub_v1 import PubsubMessage

        message = lease.message
        own = {
            "voxbatch_reason": reason.encode()[:REASON_BYTES].decode(errors="ignore"),
            "voxbatch_message_id": message.id,
            "voxbatch_subscription": self.name,
        }
        free = (each for each in message.attributes.items() if not each[0].startswith(RESERVED))
        kept = dict(islice(free, MAX_ATTRIBUTES - len(own)))
        dead = PubsubMessage(data=message.data, attributes={**kept, **own})
        self._again(f"publish to {self.dead_letter}", partial(self._publish, self.dead_letter, dead))
        text = f"message {message.id} cannot be run, and is in {self.dead_letter} now: {reason}"
        self._log.error("message_refused", message_id=message.id, dead_letter=self.dead_letter, text=text)
        self.done([lease])

    def _publish(self, topic: str, message: Any) -> None:
        from google.pubsub_v1 import PublisherClient

        # Call the generated client: the publisher's own `publish` batches messages on threads, and takes attributes as
        # its keyword arguments.
        PublisherClient.publish(self._publisher, topic=topic, messages=[message], timeout=TIMEOUT_S, retry=None)

    def close(self) -> None:
        """Stop the extension of leases, and give all leased messages back."""
        self._closed.set()
        self.nack(list(self._leases.values()))

    # -- leases -------------------------------------------------------------------------------------------------------

    def _released(self, leases: Iterable[ReceivedMessage]) -> Iterator[list[str]]:
        """Forget the leases, and return their ids in groups of IDS_AT_A_TIME."""
        with self._lock:
            ids = [lease.ack_id for lease in leases if self._leases.pop(lease.ack_id, None)]
        return (ids[at : at + IDS_AT_A_TIME] for at in range(0, len(ids), IDS_AT_A_TIME))

    def _keep(self) -> None:
        """Extend all leases EXTENSIONS times within a lease's length, until the subscription is closed."""
        while not self._closed.wait(self.ack_deadline_s / EXTENSIONS):
            with self._lock:
                ids = list(self._leases)
            for at in range(0, len(ids), IDS_AT_A_TIME):
                with self._told("extend the lease of", f"unless the next attempt can, {AGAIN}"):
                    some, lease_s = ids[at : at + IDS_AT_A_TIME], math.ceil(self.ack_deadline_s)
                    self._extend(some, lease_s, min(TIMEOUT_S, self.ack_deadline_s / EXTENSIONS))

    def _extend(self, ids: list[str], seconds: int, timeout_s: float = TIMEOUT_S) -> None:
        self._client.modify_ack_deadline(
            subscription=self.name, ack_ids=ids, ack_deadline_seconds=seconds, timeout=timeout_s, retry=None
        )

    @contextlib.contextmanager
    def _told(self, verb: str, then: str = AGAIN) -> Iterator[None]:
        """Turn an error into a warning. No message is lost: it is delivered again, to this or another listener."""
        try:
            yield
        except Exception as e:  # noqa: BLE001 for any error of the client: the thread that extends leases must not end
            text = f"cannot {verb} messages of {self.name}: {_said(e)}; {then}"
            self._log.warning("lease", text=text)

    def _again(self, doing: str, call: Callable[[], Any]) -> Any:
        """Call with retries, as for stores; see storage.retry.

        Raises:
            ConfigError, QueueError: the error that remains.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_pass),
            wait=wait_s,
            stop=tenacity.stop_after_attempt(ATTEMPTS) | tenacity.stop_after_delay(TOTAL_S),
            before_sleep=partial(self._tell_trouble, doing),
            reraise=True,
        )
        try:
            return retrying(call)
        except Exception as e:
            raise _trouble(doing, e) from e

    def _tell_trouble(self, doing: str, state: tenacity.RetryCallState) -> None:
        """Log the first failed attempt."""
        if state.attempt_number == 1:
            error = state.outcome and state.outcome.exception()
            self._log.warning("queue", text=f"cannot {doing} ({_said(error)}); trying again")


def _message(received: Any) -> Message:
    found = received.message
    return Message(found.message_id, bytes(found.data), dict(found.attributes), int(received.delivery_attempt or 0))


def _full(name: str, kind: str, project: str | None) -> str:
    """Return the full name: "calls" → "projects/P/subscriptions/calls"."""
    if name.startswith("projects/"):
        parts = name.split("/")
        if len(parts) == 4 and parts[2] == kind and all(parts):
            return name
        raise ConfigError(f"{name!r} is not of the form projects/PROJECT/{kind}/NAME, and neither a plain NAME")
    found = project or _own_project()
    if not found:
        raise ConfigError(
            f"{name}: in which project? Give --project, set GOOGLE_CLOUD_PROJECT, or write the name in full, "
            f"projects/PROJECT/{kind}/{name}"
        )
    return f"projects/{found}/{kind}/{name}"


def _own_project() -> str | None:
    if named := os.environ.get(PROJECT):  # also without credentials: the emulator needs none
        return named
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    try:
        project: str | None = google.auth.default()[1]
    except GoogleAuthError:
        return None
    return project


@contextlib.contextmanager
def _needs() -> Iterator[None]:
    """Turn a missing client library into a ConfigError."""
    try:
        yield
    except ImportError as e:
        install = "pip install 'voxbatch[pubsub]'"
        raise ConfigError(f"voxbatch listen: the client library is not installed ({e}): {install}") from e


@contextlib.contextmanager
def _errors(verb: str) -> Iterator[None]:
    """Turn missing credentials into a QueueError."""
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except GoogleAuthError as e:
        login = "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"
        raise QueueError(f"cannot {verb}: no usable credentials ({_said(e)}): {login}") from e


def _may_pass(error: BaseException) -> bool:
    return type(error).__name__ in _PASSING


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
