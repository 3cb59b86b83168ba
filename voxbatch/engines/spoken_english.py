"""Write amounts in English texts as they are spoken, for engines that read some of them as other amounts.

    "€2.5bn"  →  "two point five billion euros"        "at 9:05 on 2026-03-05"  →  "at nine oh five on March fifth, …"

Whole numbers of up to four digits stay: they may be years, and engines read them right. What may be read in two ways
(3/4/2026, 3-5) stays, too. A comma before one, two or more than three digits is a decimal point.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Iterable

from voxbatch.engines.align.numbers import ORDINAL, YEAR, number_words

_PRONUNCIATION = re.compile(r"(\[[^\[\]]+\]\(/[^()]*/\))")
_SPACE = "[ \u00a0\u202f\u2009]"
_NUMBER = (
    rf"(?:\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|\d{{1,3}}(?:{_SPACE}\d{{3}})+(?:[.,]\d+)?|\d{{1,3}}(?:\.\d{{3}}){{2,}}(?:,\d+)?"
    r"|\d+(?:[.,]\d+)?)"
)
_BEGIN, _END = rf"(?<![\w.,:/-])(?<!\d{_SPACE})", rf"(?!\w|[.,:/-]\d|{_SPACE}\d)"
_SIGN = "(?P<minus>[-−])?"
_SCALES = {
    "k": "thousand", "thousand": "thousand", "m": "million", "mn": "million", "million": "million", "b": "billion",
    "bn": "billion", "billion": "billion", "tn": "trillion", "trillion": "trillion",
}  # fmt: skip
_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"), "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"), "¥": ("yen", "yen", "", ""), "₹": ("rupee", "rupees", "paisa", "paise"),
}  # fmt: skip
"""One and several of a currency, and of its hundredth."""
_CODES = {"USD": "$", "US$": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹"}
_UNITS = {
    "%": ("percent", "percent"), "km/h": ("kilometre per hour", "kilometres per hour"),
    "mph": ("mile per hour", "miles per hour"), "km": ("kilometre", "kilometres"), "cm": ("centimetre", "centimetres"),
    "mm": ("millimetre", "millimetres"), "m": ("metre", "metres"), "kg": ("kilogram", "kilograms"),
    "mg": ("milligram", "milligrams"), "ml": ("millilitre", "millilitres"), "kWh": ("kilowatt hour", "kilowatt hours"),
    "kW": ("kilowatt", "kilowatts"), "GB": ("gigabyte", "gigabytes"), "MB": ("megabyte", "megabytes"),
    "kHz": ("kilohertz", "kilohertz"), "Hz": ("hertz", "hertz"), "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
}  # fmt: skip


def _any_of(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True)))


_MARKS = rf"{_any_of(_CODES)}|{_any_of(_CURRENCIES)}"
_SCALE = rf"(?:{_SPACE}?(?P<scale>{_any_of(_SCALES)})(?!\w))?"
_MONEY = rf"{_SIGN}(?P<mark>{_MARKS}){_SPACE}?(?P<number>{_NUMBER}){_SCALE}{_END}"
_MONEY_AFTER = (
    rf"{_BEGIN}{_SIGN}(?P<number>{_NUMBER}){_SPACE}?(?P<scale>mn|million|bn|billion|tn|trillion)?{_SPACE}?"
    rf"(?P<mark>{_MARKS})(?!\w)"
)
_MEASURE = rf"{_BEGIN}{_SIGN}(?P<number>{_NUMBER}){_SPACE}?(?P<unit>{_any_of(_UNITS)})(?![\w/²³])"
_DATE = r"(?<![\w-])(?P<year>1[1-9]\d\d|20\d\d)-(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])(?![\w-])"
_TIME = r"(?<![\w.:])(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)(?![\d:])"
_ORDINAL = r"(?<![\w.,])(?P<ordinal>\d+)(?:st|nd|rd|th)(?!\w)"
_PLAIN = rf"{_BEGIN}{_SIGN}(?P<number>{_NUMBER})(?:(?P<scale>mn|bn|tn)(?!\w))?{_END}"


def spoken(text: str) -> str:
    """Return an English text whose amounts are in words. Pronunciations, [10](/tɛn/), stay as they are."""
    parts = _PRONUNCIATION.split(text)
    for pattern, read in _READERS:
        parts[::2] = [re.sub(pattern, read, part) for part in parts[::2]]
    return "".join(parts)


def _money(match: re.Match[str]) -> str:
    mark = match["mark"]
    one, many, cent, cents = _CURRENCIES[_CODES.get(mark, mark)]
    integer, fraction = _parts(match["number"])
    if scale := match["scale"]:
        return _signed(match, f"{_words(integer, fraction)} {_SCALES[scale]} {many}")
    if len(fraction) > 2 or (fraction and not cent):
        return _signed(match, f"{_words(integer, fraction)} {many}")
    hundredths = int(fraction.ljust(2, "0") or 0)
    texts = [f"{_words(integer)} {one if int(integer) == 1 else many}"] if int(integer) or not hundredths else []
    texts += [f"{_words(str(hundredths))} {cent if hundredths == 1 else cents}"] if hundredths else []
    return _signed(match, " and ".join(texts))


def _measure(match: re.Match[str]) -> str:
    integer, fraction = _parts(match["number"])
    one, many = _UNITS[match["unit"]]
    return _signed(match, f"{_words(integer, fraction)} {one if (integer, fraction) == ('1', '') else many}")


def _date(match: re.Match[str]) -> str:
    day, year = number_words(int(match["day"]), "en", ORDINAL), number_words(int(match["year"]), "en", YEAR)
    return f"{calendar.month_name[int(match['month'])]} {day}, {year}"


def _time(match: re.Match[str]) -> str:
    hour, minute = _words(str(int(match["hour"]))), int(match["minute"])
    if not minute:
        return f"{hour} o'clock" if int(match["hour"]) in range(1, 13) else f"{hour} hundred hours"
    return f"{hour} {'oh ' if minute < 10 else ''}{_words(str(minute))}"


def _ordinal(match: re.Match[str]) -> str:
    return number_words(int(match["ordinal"]), "en", ORDINAL)


def _plain(match: re.Match[str]) -> str:
    number = match["number"]
    if not match["scale"] and number.isdigit() and (len(number) <= 4 or number.startswith("0")):
        return f"minus {number}" if match["minus"] else number
    integer, fraction = _parts(number)
    scale = f" {_SCALES[match['scale']]}" if match["scale"] else ""
    return _signed(match, _words(integer, fraction) + scale)


_READERS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (_DATE, _date),
    (_TIME, _time),
    (_MONEY, _money),
    (_MONEY_AFTER, _money),
    (_MEASURE, _measure),
    (_ORDINAL, _ordinal),
    (_PLAIN, _plain),
)
"""Patterns and their readers, in order: a pattern finds no digits in what an earlier one has put into words."""


def _parts(number: str) -> tuple[str, str]:
    """Return the digits before and after the decimal point: "1,234.5" → ("1234", "5"), "1,5" → ("1", "5")."""
    number = re.sub(_SPACE, "", number)
    if number.count(".") > 1:
        number = number.replace(".", "")
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", number):
        number = number.replace(",", "")
    integer, _, fraction = number.replace(",", ".").partition(".")
    return integer, fraction


def _words(integer: str, fraction: str = "") -> str:
    point = " ".join(["", "point", *(number_words(int(digit), "en") for digit in fraction)]) if fraction else ""
    return number_words(int(integer), "en") + point


def _signed(match: re.Match[str], words: str) -> str:
    return f"minus {words}" if match["minus"] else words
