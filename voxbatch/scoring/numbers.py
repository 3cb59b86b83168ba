"""Give the numbers of English texts one spelling, where Whisper's rules give several, or one to different numbers.

    "one two three", "1 2 3"                  →  123        "minus five", "-5"            →  minus 5
    "five oh five", "5:05"                    →  505        "one percent", "1 %"          →  1%
    "twenty five thousand euros", "25 000 €"  →  €25000     "five pounds fifty", "£5.50"  →  £5.50

Whisper's own rules make "one 2 3" of "1 2 3", "5" of "-5", "€0" of "25 000 €", and "one" of "1%" and of "$1". They stay
what reads the words of a number: `spoken` comes before them, `EnglishNumbers` replaces a part of them, and `joined`
comes after them. Numbers that follow each other become one, because speech does not tell where one ends: "nineteen
eighty four" is 1984.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from whisper_normalizer.english import EnglishNumberNormalizer

_MULTIPLIERS = "hundred|thousand|million|billion|trillion"
_SHORT = {"k": "thousand", "m": "million", "mn": "million", "bn": "billion", "b": "billion", "tn": "trillion"}
_DECIMAL = {"1/2": ".5", "1/4": ".25", "3/4": ".75"}
_PARTS = ("half", "third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_HOUR = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|thirty|forty|fifty"
_MOST_IN_RANGE = 10
"""Largest ratio of the numbers of a range. Beyond it, a hyphen divides the parts of one number."""


def _range(match: re.Match[str]) -> str:
    first, last = int(match[1]), int(match[2])
    return f"{first} to {last}" if first < last <= _MOST_IN_RANGE * max(1, first) else match[0]


def _hour(match: re.Match[str]) -> str:
    """Return how a full hour is said: "5:00 pm" → "5 pm", "5:00" → "5 oclock", "17:00" as it is."""
    return f"{match[1]} {match[2]}m" if match[2] else f"{match[1]} oclock" if int(match[1]) <= 12 else match[0]


def _part(match: re.Match[str]) -> str:
    """Return how a fraction is said: "1/2" → "half", "2/3" → "2 thirds". Other slashes divide dates: "9/11"."""
    count, parts = int(match[1]), int(match[2])
    if not 0 < count < parts <= len(_PARTS) + 1:
        return match[0]
    return _PARTS[0] if parts == 2 else f"{count} {_PARTS[parts - 2]}{'s' * (count > 1)}"


_SPOKEN: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\u2044", "/"),
        (r"(?<![\w/.])(\d+)[ -]+(1/2|1/4|3/4)(?![\w/])", lambda match: match[1] + _DECIMAL[match[2]]),
        (r"(?<![\w/.])(\d{1,2})/(\d{1,2})(?![\w/])", _part),
        (r"\bo'clock\b", "oclock"),
        (r"\b([ap])\.\s?m\b\.?", r"\1m"),
        (rf"(\d|\b(?:{_HOUR})) ([ap]) m\b", r"\1 \2m"),
        (r"(?<![\d:])(\d{1,2}):00(?![\d:])(?:\s?([ap])m\b)?", _hour),
        (rf"\bhalf an? (?={_MULTIPLIERS})", "0.5 "),
        (rf"\ban? (?=(?:{_MULTIPLIERS})\b)", "one "),
        (r"\((\d{3})\)", r"\1"),
        (r"(?<![\d.,])(\d{1,3})((?: \d{3})+)(?!\d)", lambda match: match[0].replace(" ", "")),
        (r"([$€£]\s?\d[\d,.]*)\s?(k|m|mn|bn|b|tn)\b", lambda match: f"{match[1]} {_SHORT[match[2]]}"),
        (r"([$€£])\s+(?=\d)", r"\1"),
        (r"(?<=\d)\s+(?=%|[€$£¢](?!\s?\d))", ""),
        (r"(\d[\d,.]*)([€$£¢])(?!\d)", r"\2\1"),
        (r"([$€£][\d,]+)\.00(?!\d)", r"\1"),
        (r"(?<=\d)\.(0+)(?![\d.])", lambda match: f" point{' zero' * len(match[1])}"),
        (r"(?<![\w)$€£%.-])[-\u2212](?=[$€£]?\d)", " minus "),
        (rf"\bnegative (?=\d|(?:{_HOUR}|twenty|zero)\b)", "minus "),
        (r"\s*\+\s*(?=\d)", " plus "),
        (r"(?<![\w.,/:-])(\d{1,3}) ?[-\u2013] ?(\d{1,3})(?![\d.,/:%-]*\d)", _range),
        (r"(?<=\d)'s\b", "s"),
        (r"\bpence\b|(?<=\d)p\b", " cents"),
        (r"\bn[ao]ught\b", "zero"),
        (r"(?<![\d.,])0+(?=\d)", lambda match: "zero " * len(match[0])),
    )
]
"""Spellings of numbers that Whisper's rules do not read, and how they are said."""
_MAY_APPLY = re.compile(
    rf"[\d\u2044]|\ban? (?:{_MULTIPLIERS})|\b[ap](?:\.\s?| )m\b|\b(?:o'clock|negative|pence|n[ao]ught)\b"
)
"""Signs, letters and words of a text that one of them may change."""
_CENTS = re.compile(r"([€£$]\d+)(?: (?:and )?¢(\d{1,2})| (\d{2}))(?![\d.])")
_ONLY_CENTS = re.compile(r"[€£$]0\.(\d{2})\b")
_TENTHS = re.compile(r"([€£$]\d+\.\d)(?!\d)")
_NO_UNITS = re.compile(r"(?<!\S)\.(?=\d)")
_ADJACENT = re.compile(r"(?<!\S)(\d+) (?=\d+(?!\S))")


def spoken(text: str) -> str:
    """Return a text in lower case, with its numbers as Whisper's rules read them."""
    text = text.lower()
    if _MAY_APPLY.search(text):
        for pattern, replacement in _SPOKEN:
            text = pattern.sub(replacement, text)
    return text


class EnglishNumbers(EnglishNumberNormalizer):  # type: ignore[misc] # the package has no types
    """Whisper's reader of numbers. Signs are words; and its last rule is left out, which writes "one" for 1 in "3.1",
    "1%" and "$1"."""

    def __init__(self) -> None:
        super().__init__()
        self.preceding_prefixers: dict[str, str]
        self.words -= self.preceding_prefixers.keys()
        self.preceding_prefixers.clear()

    def postprocess(self, text: str) -> str:
        """Return a text with the cents of amounts: "$2 and ¢7", "£5 50" → "$2.07", "£5.50"."""
        text = _CENTS.sub(lambda match: f"{match[1]}.{int(match[2] or match[3]):02}", text)
        return _ONLY_CENTS.sub(lambda match: f"¢{int(match[1])}", _TENTHS.sub(r"\g<1>0", text))


def joined(text: str) -> str:
    """Return a normalised text in which numbers that follow each other are one."""
    return _ADJACENT.sub(r"\1", _NO_UNITS.sub("0.", text))
