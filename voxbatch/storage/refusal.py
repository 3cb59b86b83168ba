"""What the stores' answers mean to whoever started the run, in one tone for all of them."""

from __future__ import annotations

import contextlib
import email.utils
import re
import time
from collections.abc import Iterator

from voxbatch.errors import StorageError
from voxbatch.storage.objects import Absent, Interrupted, Unfit

EXTRAS = {"gs": "gcs", "s3": "s3"}
_NOT_IMPLEMENTED = 501
_LONGEST_TEXT = 300
"""Characters of a server's own words: some answer with a page."""
_EXPECTED = re.compile(r":? \('Request failed with status code', .*\)$")
"""What Google's client appends where a server says nothing in words."""
_USER = re.compile(r"//[^/\s@]*@")
_QUERY = re.compile(r"\?[^\s'\")]+")


@contextlib.contextmanager
def needs(scheme: str, where: str) -> Iterator[None]:
    """Around the import of a store's client."""
    try:
        yield
    except ImportError as e:
        install = f"pip install 'voxbatch[{EXTRAS[scheme]}]'"
        raise StorageError(f"cannot read {where}: the client library is not installed ({e}): {install}") from e


def trouble(verb: str, where: str, error: object) -> str:
    return f"cannot {verb} {where}: the connection failed ({short(error)}): check the network, and start again"


def short(error: object) -> str:
    """In one line, and without the queries of addresses (that of an upload in pieces lets anyone write the object) and
    their passwords."""
    text = _USER.sub("//", _QUERY.sub("?…", _EXPECTED.sub("", " ".join(str(error).split()))))
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"


def refusal(
    verb: str, where: str, status: int, error: object, lacking: str, retry_after_s: float = 0.0
) -> StorageError:
    """What an HTTP status means. `lacking` says who lacks which permission."""
    said = short(error)
    if status in (408, 429) or (status >= 500 and status != _NOT_IMPLEMENTED):
        return Interrupted(f"cannot {verb} {where}: the server is busy or failing ({said}): start again", retry_after_s)
    if status in (401, 403):
        return StorageError(f"cannot {verb} {where}: permission denied: {lacking}; the store says: {said}")
    if status == 404:
        return Absent(f"cannot {verb} {where}: there is no such object")
    if status == 412:
        return Unfit(f"cannot {verb} {where}: it was replaced meanwhile: let its writer finish, then start again")
    return StorageError(f"cannot {verb} {where}: the store refused with status {status} ({said})")


def retry_after(header: str | None) -> float:
    """Seconds of a Retry-After header (RFC 9110: a number, or a date)."""
    if not header:
        return 0.0
    with contextlib.suppress(ValueError):
        return max(0.0, float(header))
    with contextlib.suppress(TypeError, ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    return 0.0
