"""Log events: each has a name and fields.

A job on a cloud platform logs JSON lines, because Cloud Logging reads `severity` and `message`. People get text, also
through a pipe.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from voxbatch.safe_text import escape_controls, redact_secrets

STDERR_LOCK = threading.RLock()
"""Lock of standard error. A thread holds it while it writes a line, or while it replaces standard error by another
file: otherwise a line could go to the wrong file. The lock is reentrant because a signal handler may log while its
own thread writes a line."""


def _stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def is_json(log_format: str, in_job: bool) -> bool:
    """Return whether --log-format means JSON lines.

    Args:
        log_format: `auto` means JSON in a job, unless a person watches it on a terminal.
        in_job: whether a platform started this process and collects what it writes.
    """
    return log_format == "json" or (log_format == "auto" and in_job and not sys.stderr.isatty())


class Log:
    """Destination of events. A process has one; tests make their own."""

    def __init__(
        self,
        as_json: bool = False,
        quiet: bool = False,
        write: Callable[[str], None] = _stderr,
        fields: Mapping[str, Any] | None = None,
    ):
        """Create a log.

        Args:
            as_json: write JSON lines instead of text.
            quiet: leave out events of severity INFO.
            write: receives each line, without its line end.
            fields: fields of every JSON line.
        """
        self.as_json, self.quiet, self.write = as_json, quiet, write
        self._fields = dict(fields or {})

    def with_fields(self, **fields: Any) -> Log:
        """Return the same log with further fields in every JSON line."""
        return Log(self.as_json, self.quiet, self.write, {**self._fields, **fields})

    def info(self, event: str, **fields: Any) -> None:
        """Log an event of severity INFO, unless the log is quiet."""
        if not self.quiet:
            self._emit("INFO", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event of severity WARNING."""
        self._emit("WARNING", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log an event of severity ERROR."""
        self._emit("ERROR", event, fields)

    def _emit(self, severity: str, event: str, fields: dict[str, Any]) -> None:
        """Write an event: as JSON, or as text such as "part committed: part=parts/…, items=12".

        If a field is named `text`, its value is the line of text, or several lines. In text, other control characters
        are escaped. Secrets in the texts of the fields are redacted.
        """
        fields = {name: redact_secrets(value) if isinstance(value, str) else value for name, value in fields.items()}
        if self.as_json:
            now = time.time()
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
            content = {"severity": severity, "time": stamp, "message": event, **self._fields, **fields}
            line = json.dumps(content, default=str)
        else:
            details = ", ".join(f"{name}={escape_controls(f'{value}')}" for name, value in fields.items())
            text = fields.get("text", f"{event.replace('_', ' ')}{': ' if details else ''}{details}")
            shown = escape_controls(f"{text}", allowed="\n")
            line = shown if severity == "INFO" else f"{severity.capitalize()}: {shown}"
        with STDERR_LOCK:
            self.write(line)
