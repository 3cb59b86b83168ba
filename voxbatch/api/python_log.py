"""The log of a run as messages of Python's `logging`.

Python prints warnings and errors of a program that does not configure `logging`, and drops messages of level INFO.
"""

from __future__ import annotations

import json
import logging

from voxbatch.log import Log

LOGGER = logging.getLogger("voxbatch")


def python_log() -> Log:
    """Return a log that passes its events on to LOGGER."""
    return Log(as_json=True, write=_pass_on)


def _pass_on(line: str) -> None:
    event = json.loads(line)
    severity, name, _ = event.pop("severity"), event.pop("message"), event.pop("time")
    details = ", ".join(f"{key}={value}" for key, value in event.items())
    LOGGER.log(
        logging.getLevelNamesMapping()[severity], "%s", event.get("text", f"{name.replace('_', ' ')}: {details}")
    )
