"""Numbers as they are spoken, by the rules of ICU (the Unicode CLDR's rule-based number formats)."""

from __future__ import annotations

CARDINAL, ORDINAL, YEAR = "", ",%spellout-ordinal", ",%spellout-numbering-year"
"""Sets of ICU's rules. English has all three; other languages have the first one."""


def number_words(number: float, lang: str, rules: str = CARDINAL) -> str:
    """Return a number in words: (21, "en", ORDINAL) → "twenty-first". A language that ICU does not know gets English.

    Args:
        rules: CARDINAL, ORDINAL or YEAR.
    """
    from icu4py.messageformat import MessageFormat

    words = MessageFormat(f"{{number, spellout{rules}}}", lang).format({"number": number})
    return str(words).replace("\u00ad", "")  # German words have soft hyphens
