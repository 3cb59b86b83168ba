"""Flag a whole Transcript: words that the model is unsure of, and text that is not in the language asked for.

The watch of the engines flags chunks, because it looks at their audio. It also checks the speaking rate: a recording's
rate is never above that of its fastest chunk. This module looks at the text and the words only.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from voxbatch.languages import primary_subtag
from voxbatch.records import LOW_CONFIDENCE, OTHER_LANGUAGE, Flag, Transcript
from voxbatch.text.stitching import mean

LOW_MEAN = 0.75
"""Mean confidence of words below which a transcript, or a sentence of it, is flagged. Whisper base on 298 English
recordings (57 minutes): 42 have a lower mean, most of them of one to three words; their WER is 54 %, that of the others
8.7 %. Of 73 recordings in four other languages, 26 have a lower mean, all 20 Czech ones among them (WER 62 %)."""
FEWEST_WORDS = 2
"""Fewest words of a transcript that is judged. The confidence of a single word tells nothing: 28 texts of one word, by
Whisper tiny.en from recordings of spoken digits, all had less than 0.66, and the 7 wrong ones more than the right ones
(0.34 against 0.30 on average). Of 12 texts of three words, 6 were below LOW_MEAN, 5 of them wrong; the others were
right."""
MIN_WORDS = 5
"""Fewest words of a sentence that is judged by itself. The mean of fewer words varies too much."""
MIN_LETTERS = 10
"""Fewest letters of a text whose script is judged."""
OTHER_LETTERS = 0.9
"""Share of letters of other scripts above which a text is flagged. A Chinese text with English names can have more
Latin letters than Chinese characters."""

_LATIN = frozenset({"LATIN"})
_CYRILLIC, _ARABIC, _DEVANAGARI = frozenset({"CYRILLIC"}), frozenset({"ARABIC"}), frozenset({"DEVANAGARI"})
_SCRIPTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("be", "bg", "mk", "ru", "uk", "ba", "ky", "tg", "mn"), _CYRILLIC),
    **dict.fromkeys(("sr", "bs", "kk", "tt", "uz", "az", "tk"), _CYRILLIC | _LATIN | _ARABIC),
    **dict.fromkeys(("ar", "fa", "ur", "ps", "sd", "ug"), _ARABIC),
    **dict.fromkeys(("hi", "mr", "ne", "sa"), _DEVANAGARI),
    "am": frozenset({"ETHIOPIC"}),
    "as": frozenset({"BENGALI"}),
    "bn": frozenset({"BENGALI"}),
    "bo": frozenset({"TIBETAN"}),
    "el": frozenset({"GREEK"}),
    "gu": frozenset({"GUJARATI"}),
    "he": frozenset({"HEBREW"}),
    "yi": frozenset({"HEBREW"}),
    "hy": frozenset({"ARMENIAN"}),
    "ja": frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"}),
    "ka": frozenset({"GEORGIAN"}),
    "km": frozenset({"KHMER"}),
    "kn": frozenset({"KANNADA"}),
    "ko": frozenset({"HANGUL", "CJK"}),
    "lo": frozenset({"LAO"}),
    "ml": frozenset({"MALAYALAM"}),
    "my": frozenset({"MYANMAR"}),
    "pa": frozenset({"GURMUKHI"}) | _ARABIC,
    "si": frozenset({"SINHALA"}),
    "ta": frozenset({"TAMIL"}),
    "te": frozenset({"TELUGU"}),
    "th": frozenset({"THAI"}),
    "yue": frozenset({"CJK"}),
    "zh": frozenset({"CJK"}),
    **dict.fromkeys(("af", "ca", "cs", "cy", "da", "de", "en", "es", "et", "eu", "fi", "fr", "ga", "gl"), _LATIN),
    **dict.fromkeys(("hr", "hu", "id", "is", "it", "lt", "lv", "mt", "nb", "nl", "nn", "no", "pl", "pt"), _LATIN),
    **dict.fromkeys(("ro", "sk", "sl", "sq", "sv", "sw", "tr", "vi"), _LATIN),
}
"""Scripts in which a language is written, by the first word of the Unicode names of their letters. A language that is
not in the table is not judged."""


def item_flags(transcript: Transcript, asked: str | None) -> tuple[Flag, ...]:
    """Return the flags of a whole transcript.

    Args:
        transcript: the transcript; its own flags are not repeated.
        asked: tag of the language that the manifest or the run gives. None if none was given.
    """
    is_foreign = any(flag.kind == OTHER_LANGUAGE for flag in transcript.flags)  # its words are unsure for that reason
    return (*(() if is_foreign else _low_confidence(transcript)), *_other_language(transcript, asked))


def _low_confidence(transcript: Transcript) -> Iterator[Flag]:
    """Yield one flag for a transcript whose words have a low mean confidence, else one for each such sentence."""
    if 0 < len(transcript.words) < FEWEST_WORDS:
        return
    confidence = transcript.confidence
    if confidence is not None and confidence < LOW_MEAN:
        yield Flag(LOW_CONFIDENCE, f"unsure words (mean confidence {confidence:.2f})")
        return
    starts = [word.start for word in transcript.words]
    for segment in transcript.segments if confidence is not None else ():
        inside = transcript.words[bisect_left(starts, segment.start) : bisect_left(starts, segment.end)]
        confidence = mean([word.confidence for word in inside if word.confidence is not None])
        if confidence is not None and confidence < LOW_MEAN and len(inside) >= MIN_WORDS:
            reason = f"{len(inside)} unsure words (mean confidence {confidence:.2f})"
            yield Flag(LOW_CONFIDENCE, reason, segment.start, segment.end)


def _other_language(transcript: Transcript, asked: str | None) -> Iterator[Flag]:
    """Yield a flag if the engine names another language than the one that was asked for, or if nearly all letters
    are of scripts in which that language is not written. Otherwise, yield a flag for each stretch whose words are of
    another language."""
    language = primary_subtag(asked or "")
    if not language:
        return
    if transcript.language and transcript.language != language:
        yield Flag(OTHER_LANGUAGE, f"the model detected {transcript.language}; {language} was asked for")
        return
    from voxbatch.text.drift import drift_flags

    yield from [*_other_script(transcript.text, language)] or drift_flags(transcript, language)


def _other_script(text: str, language: str) -> Iterator[Flag]:
    """Yield a flag if nearly all letters are of scripts in which a language is not written."""
    letters = {char: count for char, count in Counter(text).items() if char.isalpha()}
    scripts, num_letters = _SCRIPTS.get(language), sum(letters.values())
    if scripts is None or num_letters < MIN_LETTERS:
        return
    script_counts = Counter[str]()
    for char, count in letters.items():
        script_counts[_script(char)] += count
    num_others = sum(count for script, count in script_counts.items() if script not in scripts)
    if num_others > OTHER_LETTERS * num_letters:
        common = script_counts.most_common(1)[0][0]
        reason = f"{num_others:,} of {num_letters:,} letters are {common.capitalize()}; {language} was asked for"
        yield Flag(OTHER_LANGUAGE, reason)


@lru_cache(4096)
def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]
