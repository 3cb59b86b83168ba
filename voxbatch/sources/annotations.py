"""Read the text of a transcript with annotations: NIST's stm, Praat's TextGrid, ELAN, Transcriber, CHAT, TIMIT.

    talk 1 ann 0.00 2.50 <o,f0> the cat sat                                →  the cat sat      (.stm)
    <Sync time="0"/> the cat <Event desc="b" type="noise"/> sat            →  the cat sat      (.trs)
    *MOT:	the cat &-um (be)cause . 0_2500                              →  the cat because  (.cha)

The tiers of several speakers are joined in the order of time. No XML is parsed, so that no entity is expanded.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable

IGNORED_SEGMENT = "ignore_time_segment_in_scoring"
"""Text of a segment of an stm that is left out of the score, in any case of letters."""
_STM_LABELS = re.compile(r"<[^<>\s]*>")
_PRAAT_TOKEN = re.compile(r'"(?:[^"]|"")*"|-?\d+(?:\.\d+)?')
_PRAAT_TIERS = ('"IntervalTier"', '"TextTier"')
_PARTS_OF_WORDS = re.compile(r"phon|phn|syl|segment|tone|mau", re.IGNORECASE)
"""Names of tiers whose labels are smaller than words."""
_WORDS = re.compile(r"word|ort|mot|wrd", re.IGNORECASE)
"""Names of tiers that repeat the utterances as words."""
_SLOT = re.compile(r'<TIME_SLOT\b[^>]*?TIME_SLOT_ID="([^"]*)"[^>]*?TIME_VALUE="(\d+)"')
_ANNOTATION = re.compile(
    r'<ALIGNABLE_ANNOTATION\b[^>]*?TIME_SLOT_REF1="([^"]*)"[^>]*>\s*<ANNOTATION_VALUE>(.*?)</ANNOTATION_VALUE>',
    re.DOTALL,
)
_TURN = re.compile(r"<Turn\b[^>]*>(.*?)</Turn>", re.DOTALL)
_TAG = re.compile(r"<!--.*?-->|<[^<>]*>", re.DOTALL)
_CHAT_CODES = re.compile(
    r"\x15[^\x15]*\x15|\[[^\]]*\]|\(\.+\)|\(\d+\.\d*\)|[&+]\S*|\b0\w+|[<>()↑↓⌈⌉⌊⌋„‡]|\b(?:xxx|yyy|www)\b"
)
"""Times, codes, pauses, events, omitted words, marks, and speech that is not transcribed."""
_TIMIT = re.compile(r"0 \d{4,7} (\S.*)")


def stm_text(stm: str) -> str:
    """Return the text of all scored segments of an stm."""
    texts = []
    for line in stm.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and not line.startswith(";;"):
            text = without_labels(fields[5])
            texts += [] if IGNORED_SEGMENT in text.casefold() else [text.strip()]
    return " ".join(texts)


def without_labels(text: str) -> str:
    """Return the text of a segment of an stm without its labels: "<o,f0> the cat" → "the cat"."""
    label, _, rest = text.partition(" ")
    return rest if _STM_LABELS.fullmatch(label) else text


def praat_text(grid: str) -> str:
    """Return the text of a TextGrid, long or short: that of the first tier of words, else of all tiers but phones."""
    tiers: dict[str, list[tuple[float, str]]] = {}
    labels: list[tuple[float, str]] | None = None
    numbers: list[float] = []
    tokens = iter(_PRAAT_TOKEN.findall(grid))
    for token in tokens:
        if token in _PRAAT_TIERS:
            labels = tiers.setdefault(next(tokens, ""), [])
        elif not token.startswith('"'):
            numbers = [*numbers[-1:], float(token)]
        elif labels is not None and numbers:
            labels.append((numbers[0], token[1:-1].replace('""', '"')))
    words = [labels for name, labels in tiers.items() if _WORDS.search(name)]
    chosen = words[:1] or [labels for name, labels in tiers.items() if not _PARTS_OF_WORDS.search(name)]
    return _in_order_of_time(label for labels in chosen for label in labels)


def elan_text(document: str) -> str:
    """Return the text of the tiers of ELAN that have times of their own; the others translate or gloss them."""
    times = {slot: float(value) for slot, value in _SLOT.findall(document)}
    annotations = _ANNOTATION.findall(document)
    return _in_order_of_time((times.get(slot, 0.0), html.unescape(text)) for slot, text in annotations)


def transcriber_text(document: str) -> str:
    """Return the text of the turns of Transcriber."""
    return _joined(html.unescape(_TAG.sub(" ", turn)) for turn in _TURN.findall(document))


def chat_text(transcript: str) -> str:
    """Return the text of the main lines of a CHAT transcript. The lines that depend on them begin with %."""
    lines = re.sub(r"\n[\t ]+", " ", transcript.replace("\r\n", "\n")).split("\n")
    main = (line.partition(":")[2] for line in lines if line.startswith("*"))
    return _joined(_CHAT_CODES.sub(lambda code: "" if code[0] in "()" else " ", line) for line in main)


def timit_text(text: str) -> str:
    """Return a text without the first and the last sample before it, as TIMIT has them: "0 46797 the cat"."""
    match = _TIMIT.fullmatch(text)
    return match[1] if match else text


def _in_order_of_time(labels: Iterable[tuple[float, str]]) -> str:
    return _joined(text for _, text in sorted(labels, key=lambda label: label[0]))


def _joined(texts: Iterable[str]) -> str:
    return " ".join(" ".join(texts).split())


ANNOTATIONS: dict[str, Callable[[str], str]] = {
    ".stm": stm_text,
    ".textgrid": praat_text,
    ".eaf": elan_text,
    ".trs": transcriber_text,
    ".cha": chat_text,
    ".txt": timit_text,
}
"""Readers by extension. Other extensions have the text as it is."""
