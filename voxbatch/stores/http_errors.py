"""Turn the HTTP errors of all stores into messages of one style for the user."""

from __future__ import annotations

import contextlib
import email.utils
import re
import time
from collections.abc import Iterator

from voxbatch.errors import StorageError
from voxbatch.failure_kinds import FailureKind
from voxbatch.storage.errors import ObjectNotFound, TransientError, UnusableObject

EXTRAS = {"gs": "gcs", "s3": "s3", "hf": "cpu"}
"""Scheme → extra of voxbatch that installs the client."""
_NOT_IMPLEMENTED = 501
_LONGEST_TEXT = 300
"""Characters that a message takes from a server's text. Some servers answer with a page."""
_EXPECTED = re.compile(r":? \('Request failed with status code', .*\)$")
"""Text that Google's client appends if a server gives no reason."""
_USER = re.compile(r"//[^/\s@]*@")
_QUERY = re.compile(r"\?[^\s'\")]+")


@contextlib.contextmanager
def client_library(scheme: str, where: str) -> Iterator[None]:
    """Turn a failed import of a store's client into an error that says how to install it.

    Raises:
        StorageError: the client library is not installed.
    """
    try:
        yield
    except ImportError as e:
        install = f"pip install 'voxbatch[{EXTRAS[scheme]}]'"
        raise StorageError(f"cannot read {where}: the client library is not installed ({e}): {install}") from e


def connection_failed(verb: str, where: str, error: object) -> str:
    """Return the message for a failed connection."""
    return f"cannot {verb} {where}: the connection failed ({one_line(error)}): check the network, and start again"


def one_line(error: object) -> str:
    """Return an error in one line, without passwords and without the queries of addresses. The query of an upload in
    pieces would let anyone write the object."""
    text = _USER.sub("//", _QUERY.sub("?…", _EXPECTED.sub("", " ".join(str(error).split()))))
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"


def status_error(
    verb: str, where: str, status: int, error: object, lacking: str, retry_after_s: float = 0.0
) -> StorageError:
    """Return the error for an HTTP status. `lacking` names the account and the permission that it lacks.

    Returns:
        TransientError for 408, 429 and most of 5xx; ObjectNotFound for 404; UnusableObject for 412; StorageError for
        all others.
    """
    reason = one_line(error)
    if status in (408, 429) or (status >= 500 and status != _NOT_IMPLEMENTED):
        return TransientError(
            f"cannot {verb} {where}: the server is busy or failing ({reason}): start again", retry_after_s
        )
    if status in (401, 403):
        text = f"cannot {verb} {where}: permission denied: {lacking}; the store says: {reason}"
        return StorageError(text, FailureKind.NO_ACCESS)
    if status == 404:
        return ObjectNotFound(f"cannot {verb} {where}: there is no such object")
    if status == 412:
        return UnusableObject(
            f"cannot {verb} {where}: it was replaced meanwhile: let its writer finish, then start again",
            FailureKind.CHANGED,
        )
    text = f"cannot {verb} {where}: the store refused with status {status} ({reason})"
    return StorageError(text, FailureKind.NOT_DELIVERED)


def parse_retry_after(header: str | None) -> float:
    """Return the seconds of a Retry-After header (RFC 9110: a number, or a date); 0 if there is none."""
    if not header:
        return 0.0
    with contextlib.suppress(ValueError):
        return max(0.0, float(header))
    with contextlib.suppress(TypeError, ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    return 0.0
