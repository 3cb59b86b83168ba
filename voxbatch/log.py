"""Events, not prose: a name and fields. JSON lines on a job (Cloud Logging reads severity and message), text for
people.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

SEVERITIES = ("INFO", "WARNING", "ERROR")
WRITING = threading.RLock()
"""Held while a line is written, and by whoever puts another file in standard error's place, or a line on its way would
go there. A signal's handler may log while its own thread does."""


def _stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def is_json(log_format: str) -> bool:
    """Whether --log-format means lines of JSON: `auto` does where standard error is no terminal."""
    return log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())


class Log:
    """Where events go. One a process; tests make their own."""

    def __init__(
        self,
        as_json: bool = False,
        quiet: bool = False,
        write: Callable[[str], None] = _stderr,
        always: Mapping[str, Any] | None = None,
    ):
        """`always`: fields that every line of JSON carries."""
        self.as_json, self.quiet, self.write = as_json, quiet, write
        self._always = dict(always or {})

    def of(self, **fields: Any) -> Log:
        """The same log, whose lines of JSON carry these too."""
        return Log(self.as_json, self.quiet, self.write, {**self._always, **fields})

    def info(self, event: str, **fields: Any) -> None:
        if not self.quiet:
            self._emit("INFO", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._emit("WARNING", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._emit("ERROR", event, fields)

    def _emit(self, severity: str, event: str, fields: dict[str, Any]) -> None:
        if self.as_json:
            line = _json_line(severity, event, {**self._always, **fields})
        else:
            line = _text_line(severity, event, fields)
        with WRITING:
            self.write(line)


def _json_line(severity: str, event: str, fields: dict[str, Any]) -> str:
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
    return json.dumps({"severity": severity, "time": stamp, "message": event, **fields}, default=str)


def _text_line(severity: str, event: str, fields: dict[str, Any]) -> str:
    """ "part committed: part=parts/…, items=12"; a field named `text` is the sentence itself."""
    mark = "" if severity == "INFO" else f"{severity.lower()}: "
    if "text" in fields:
        return f"{mark}{fields['text']}"
    details = ", ".join(f"{name}={value}" for name, value in fields.items())
    return f"{mark}{event.replace('_', ' ')}{': ' if details else ''}{details}"
