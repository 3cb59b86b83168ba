"""Read CHAT, the format of CHILDES and TalkBank.

    *MOT:	the cat &-um (be)cause ice+cream@s . 0_2500      →   the cat because ice cream .

Lines that begin with % depend on the main line before them.
"""

from __future__ import annotations

import re

from voxbatch.sources.transcripts.timed_text import TimedText

_TIMES = re.compile(r"\x15(\d+)_(\d+)\x15")
_CODES = re.compile(
    r"\x15[^\x15]*\x15|\[[^\[\]]*\]|\(\.+\)|\((?:\d+:)?\d+\.?\d*\)|[<>()↑↓⌈⌉⌊⌋„‡‹›∆∇°☺♋⁇∙⁎◉▁▔↫⇗↗→↘⇘∞≈≋≡]"
)
"""Times, codes, pauses, and marks of groups and of the voice."""
_NOT_SPOKEN = re.compile(r"[&+].*|0.*|xxx?|yyy?|www", re.DOTALL)
"""Words that are events, fillers and fragments (&), links and ends of utterances (+), omitted words (0), and speech
that is not transcribed."""
_FORM = re.compile(r"@\S*|[\^ˈˌ≠]|(?<=[^\W\d]):+(?!\d)")
"""Markers of special forms (woof@o, bonjour@s:fra), pauses within words, stress and lengthening (no:)."""
_COMPOUND = re.compile(r"(?<=\w)[+_](?=\w)")


def chat_texts(transcript: str) -> list[TimedText]:
    """Return the main lines of a transcript. A line without times has the start of the one before it.

    Raises:
        ValueError: it has no header of CHAT and no main line.
    """
    lines = re.sub(r"\n[\t ]+", " ", transcript.replace("\r\n", "\n")).split("\n")
    utterances, start, end = list[TimedText](), 0.0, 0.0
    for line in lines:
        if not line.startswith("*"):
            continue
        speaker, _, content = line[1:].partition(":")
        if times := _TIMES.search(content):
            start, end = (int(time) / 1000 for time in times.groups())
        words = _CODES.sub(lambda code: "" if code[0] in "()" else " ", content).split()
        spoken = (word for word in words if not _NOT_SPOKEN.fullmatch(word))
        text = " ".join(_COMPOUND.sub(" ", _FORM.sub("", word)) for word in spoken)
        utterances.append(TimedText(text, start, end, speaker.strip()))
    if not utterances and transcript.strip() and not transcript.lstrip().startswith("@"):
        raise ValueError("it has no line that begins with * and a speaker; save it in CLAN as CHAT")
    return utterances
