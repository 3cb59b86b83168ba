"""Wait for an object that exists and that a store does not show yet.

A store may answer by what it knew some seconds ago: its listing, and on a network file system also a name by itself.
What is complete is therefore asked for by its name, and what must be there is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from voxbatch.log import Log
from voxbatch.storage.retry import SHOWN_OBJECT, Retries

_T = TypeVar("_T")


def wait_until_shown(look: Callable[[], _T | None], missing: str, log: Log) -> _T | None:
    """Return what `look` returns. If it returns None, call it again for a while, and return None in the end.

    Args:
        missing: text for people, the warning before the first wait: what exists and is not shown.
    """
    retries = Retries(SHOWN_OBJECT)

    def seen() -> _T:
        if (shown := look()) is None:
            raise _HiddenError
        return shown

    def warn(*_: object) -> None:
        if retries.failed == 1:
            log.warning("hidden_object", text=f"{missing}; waiting for the store")

    try:
        return retries.call(seen, lambda error: isinstance(error, _HiddenError), warn)
    except _HiddenError:
        return None


class _HiddenError(Exception):
    """An object that the store does not show yet."""
