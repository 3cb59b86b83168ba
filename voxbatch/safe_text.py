"""Make text safe to show: hide the secrets in addresses that were not parsed, and escape control characters.

Addresses that were parsed are shown by `storage.redacted`. This module is for the rest: an excerpt of a line that is
not JSON, an argument that is not what it should be, a message of a library. The name of an object and the values of a
manifest may hold any character, also those that move the cursor of a terminal or change what it shows.

    redact_secrets("open https://host/a.wav?X-Amz-Signature=ab12: 403")  →  "open https://host/a.wav?…: 403"
    escape_controls("ESC[2J"), with ESC for the character 27  →  "\\x1b[2J"
"""

from __future__ import annotations

import re

_MASK = "…"
_AFTER = ":;,.)]}…"
"""Punctuation of a sentence, which may follow an address or the value of a parameter."""
_SCHEME = r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}:(?:\\?/){2}"
"""Begin of an address. Some writers of JSON escape its slashes."""
_USER = re.compile(
    # The second form is a password with / or ? in it, and not a port.
    rf"""(?P<user>(?:{_SCHEME}|(?<![:/\\])//))"""
    r"""(?:[^\s"'/?#]{1,500}@|[^\s"'/?#@:]{0,500}:(?!\d{1,5}[/?#])[^\s"'@]{0,500}@)""",
    re.IGNORECASE,
)
"""The name and the password of a user."""
_SECRET = re.compile(
    # The whole query of an address. In the key of an object of a bucket, ? is a character as any other.
    rf"""(?P<query>(?!gs:|s3:){_SCHEME}[^\s"'?#<>]{{0,2000}}\?(?!{_MASK}))[^\s"'#<>]+|"""
    # Parameters that are known to be secret, wherever they stand: their address may have been cut.
    r"(?P<name>(?:(?<![a-z_])|(?<=\\u003f)|(?<=%3f))"
    r"(?:(?:x-[a-z]+-)?(?:signature|credential|security-token)|sig|(?:(?:access|auth|id|sas|session)[_-]?)?token"
    r"|awsaccesskeyid|googleaccessid|api[_-]?key|password|secret)"
    r"""(?:=|%3d))[^\s"'&#<>]+""",
    re.IGNORECASE,
)
"""A query, or the value of a secret parameter."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0, DEL, C1, and the characters that change the direction of the text after them (Trojan Source, CVE-2021-42574)."""


def redact_secrets(text: str) -> str:
    """Return a text with "…" in place of each secret that an address in it holds: a query, such as a signature; a
    user's name and password; the value of a parameter such as X-Goog-Signature, sig or token."""
    return shorten_masks(mask_secrets(text))


def mask_secrets(text: str) -> str:
    """Return a text of the same length, with a "…" in place of each character of a secret.

    A caller that takes an excerpt masks the text first: the excerpt may begin after the name of the secret.
    """

    def mask(match: re.Match[str]) -> str:
        name = match[str(match.lastgroup)]
        after = len(match[0]) - len(match[0].rstrip("@" if match.lastgroup == "user" else _AFTER))
        masked = max(0, len(match[0]) - len(name) - after)
        return name + _MASK * masked + match[0][len(name) + masked :]

    # An address may have both a password and a query, whose matches would overlap.
    return _SECRET.sub(mask, _USER.sub(mask, text))


def shorten_masks(text: str) -> str:
    """Return a masked text with one "…" in place of each secret."""
    return re.sub(f"{_MASK}{{2,}}", _MASK, text)


def escape_controls(text: str, allowed: str = "") -> str:
    r"""Return a text with each control character (C0, DEL, C1, overrides of the direction) escaped as in Python: \x1b.

    Args:
        allowed: control characters that stay, such as the line ends of a message of several lines.
    """
    return _CONTROL.sub(lambda match: match[0] if match[0] in allowed else repr(match[0])[1:-1], text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: (1, "item") → "1 item", (2000, "item") → "2,000 items"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
