"""Messages of a file, one JSON object a line, in place of a subscription.

An execution that does several runs gets them so; see `manifest_window`. No message is lost if the process ends: the
next attempt reads the file again, and finds what is done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from voxbatch.clouds.listen.message import ReceivedMessage
from voxbatch.errors import ConfigError, UsageError
from voxbatch.log import Log
from voxbatch.storage import Stores
from voxbatch.storage.errors import ObjectNotFound

MAX_BYTES = 16 << 20
"""Longest file, in bytes: over 30,000 messages. A dispatcher writes at most 1,000 into one."""


class MessageFile:
    """The messages of a file. It has the methods of `Subscription` that a Listener calls."""

    max_delivery_attempts = 0
    ack_deadline_s = 10.0
    """Length of the lease on an OUT, in seconds: an attempt after a kill waits for less than that."""

    def __init__(self, address: str, stores: Stores, attempt: int, log: Log):
        """Read the file.

        Args:
            attempt: number of earlier attempts. Each begins with another message, so that one run that always ends the
                process keeps no other run from its end.

        Raises:
            ConfigError: there is no such file, or it is too large.
            StorageError: it cannot be read.
        """
        try:
            with stores.open(address) as file:
                content = file.read(MAX_BYTES + 1)
        except (ObjectNotFound, FileNotFoundError) as e:
            raise ConfigError(f"{address}: there is no such file of messages") from e
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{address}: a file of messages has at most {MAX_BYTES >> 20} MiB: divide it")
        lines = enumerate(content.splitlines(), 1)
        self._messages = deque(ReceivedMessage(f"line {number}", line, {}) for number, line in lines if line.strip())
        self._messages.rotate(-attempt)
        self.name, self._log = address, log
        self.dead_letter_topic = "the log"
        self.exit_code = 0
        """2 if a message can never be run: nobody reads it again, so that the task itself fails and is reported."""

    def pull(self, max_messages: int, timeout_s: float) -> list[ReceivedMessage]:
        """Return the next messages; at the end of the file wait, and return []."""
        if not self._messages:
            time.sleep(min(timeout_s, 1.0))
        return [self._messages.popleft() for _ in range(min(max_messages, len(self._messages)))]

    def acknowledge(self, messages: Iterable[ReceivedMessage]) -> None:
        """Do nothing: the run is finished, and the next attempt finds it so."""

    def nack(self, messages: Iterable[ReceivedMessage]) -> None:
        """Do nothing: the next attempt reads the message again."""

    def dead_letter(self, message: ReceivedMessage, reason: str) -> None:
        """Log the reason, and let the process fail at its end."""
        self.exit_code = UsageError.exit_code
        text = f"{self.name}, {message.id}, cannot be run: {reason}"
        self._log.error("message_refused", message_id=message.id, text=text)

    def close(self) -> None:
        """Do nothing: no message is held."""
