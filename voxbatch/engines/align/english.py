"""The phones of English words: the dictionary of pocketsphinx, else rules for letters.

    "Mr. 21st"  →  numbers and abbreviations are first written as they are spoken: "mister", "twenty first"

The rules are a fallback for names and rare words. They are simple: the longest group of letters that they know, from
the left. An alignment needs the sounds only about right, because the neighbouring words and the number of the sounds
fix the times.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator

from voxbatch.engines.align.numbers import ORDINAL, YEAR, number_words

_RULES = {
    "tch": "CH", "sch": "SH", "igh": "AY", "eau": "OW", "tion": "SH AH N", "sion": "ZH AH N", "ough": "AO",
    "augh": "AO", "eigh": "EY", "ch": "CH", "sh": "SH", "th": "TH", "ph": "F", "gh": "G", "wh": "W", "ck": "K",
    "ng": "NG", "qu": "K W", "kn": "N", "wr": "R", "ee": "IY", "ea": "IY", "oo": "UW", "ou": "AW", "ow": "OW",
    "oi": "OY", "oy": "OY", "ai": "EY", "ay": "EY", "au": "AO", "aw": "AO", "ei": "EY", "ey": "IY", "ie": "IY",
    "eu": "Y UW", "ew": "Y UW", "oa": "OW", "ue": "UW", "ar": "AA R", "or": "AO R", "er": "ER", "ir": "ER",
    "ur": "ER", "dge": "JH", "ge": "JH", "gi": "JH IH", "ce": "S", "ci": "S IH", "cy": "S IY", "a": "AE", "b": "B",
    "c": "K", "d": "D", "e": "EH", "f": "F", "g": "G", "h": "HH", "i": "IH", "j": "JH", "k": "K", "l": "L", "m": "M",
    "n": "N", "o": "AA", "p": "P", "q": "K", "r": "R", "s": "S", "t": "T", "u": "AH", "v": "V", "w": "W", "x": "K S",
    "y": "IY", "z": "Z",
}  # fmt: skip
"""Groups of letters and their sounds, in the phones of CMUdict."""
_LONGEST_RULE = max(map(len, _RULES))
_ABBREVIATIONS = {
    "mr": "mister", "mrs": "missus", "ms": "miz", "dr": "doctor", "st": "saint", "vs": "versus", "&": "and",
    "%": "percent", "$": "dollars", "£": "pounds", "€": "euros", "+": "plus", "=": "equals", "@": "at", "°": "degrees",
}  # fmt: skip
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")
_PARTS = re.compile(r"\d[\d,]*(?:\.\d+)?(?:st|nd|rd|th)?|[a-z]+(?:['’][a-z]+)*['’]?|[&%$£€+=@°]")


def spoken(word: str) -> list[str]:
    """Return the words that are spoken for a word as it is written: "$5" → ["five", "dollars"].

    Empty if nothing of it is spoken, such as a dash.
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", word.lower()) if not unicodedata.combining(c))
    parts = _PARTS.findall(plain.replace("’", "'"))
    if len(parts) > 1 and parts[0] in "$£€":
        parts[0], parts[1] = parts[1], parts[0]
    words = []
    for part in parts:
        if part[0].isdigit():
            words += re.findall("[a-z']+", _number(part))
        else:
            words.append(_ABBREVIATIONS.get(part, part))
    return words


def _number(text: str) -> str:
    """Return the words of a number: "1,200" → "one thousand two hundred"."""
    digits = text.replace(",", "")
    if ordinal := _ORDINAL.fullmatch(digits):
        return number_words(int(ordinal[1]), "en", ORDINAL)
    if len(text) == 4 and text.isdigit() and "1100" <= text < "2100" and text[1:3] != "00":
        return number_words(int(text), "en", YEAR)
    if (len(digits) > 1 and digits.startswith("0") and digits.isdigit()) or len(digits) > 15:
        return " ".join(number_words(int(digit), "en") for digit in digits if digit.isdigit())
    return number_words(float(digits) if "." in digits else int(digits), "en")


def phones(word: str, look_up: Callable[[str], str | None]) -> list[str]:
    """Return the phones of a spoken word, in lower case.

    Args:
        word: letters and apostrophes.
        look_up: returns the phones of a word in a dictionary, divided by spaces, or None.
    """
    for known, ending in ((word, ""), (word.strip("'"), ""), (word.removesuffix("'s"), "Z"), (word[:-1], "Z")):
        if known and (not ending or word.endswith("s")) and (pronunciation := look_up(known)):
            return [*pronunciation.split(), *ending.split()]
    if len(word) > 1 and not re.search("[aeiouy]", word):  # letters of an abbreviation
        return " ".join(look_up(letter) or "" for letter in word).split()
    return [phone for sounds in _by_rules(word) for phone in sounds.split()]


def _by_rules(word: str) -> Iterator[str]:
    start = 0
    if len(word) > 3 and word.endswith("e") and word[-2] not in "aeiouy":  # a silent e
        word = word[:-1]
    while start < len(word):
        for length in range(_LONGEST_RULE, 0, -1):
            group = word[start : start + length]
            if len(group) == length and group in _RULES:
                if not (length == 1 and start and word[start - 1] == group):  # a double letter is one sound
                    yield _RULES[group]
                start += length
                break
        else:
            start += 1
