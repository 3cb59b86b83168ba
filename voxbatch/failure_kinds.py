"""The kinds of failures of items, with their words and their advice for people.

An exception carries the kind from the place where it is raised (`errors`), and so does the failure that is recorded for
an item (`records.Failure`). No kind is guessed from the text of a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

KIND_KEY = "error_kind"
"""Key of the kind in the lines of failures.jsonl."""
AGAIN = "--retry-failed"
AGAIN_ALL = "--retry-failed all"
UPDATE = "--update"
OTHER_MODEL = "--model MODEL -o OUT"
"""Stands for options with a model that knows more languages, and with another OUT."""
NO_AUDIO_TRACK = "the video has no audio track"
"""Warning of a transcript that is empty for this reason, and no failure."""


class FailureKind(StrEnum):
    """The reason why an item has no transcript, as failures.jsonl names it."""

    NOT_FOUND = "not_found"
    NO_ACCESS = "no_access"
    NOT_ALLOWED = "not_allowed"
    UNREACHABLE = "unreachable"
    NOT_DELIVERED = "not_delivered"
    CHANGED = "changed"
    EMPTY = "empty"
    DAMAGED = "damaged"
    NOT_AUDIO = "not_audio"
    NO_AUDIO_TRACK = "no_audio_track"
    NO_SUCH_PART = "no_such_part"
    TOO_LONG = "too_long"
    NO_FFMPEG = "no_ffmpeg"
    DECODER = "decoder"
    LANGUAGE = "language"
    TEXT = "text"
    VOICE = "voice"
    ENGINE = "engine"
    ENGINE_CRASH = "engine_crash"
    FORGOTTEN = "forgotten"
    UNKNOWN = "unknown"
    """A kind that only a later version of voxbatch knows."""

    @property
    def facts(self) -> KindFacts:
        """The words, the advice and the class of the kind."""
        return _FACTS[self]

    @classmethod
    def of_line(cls, line: Mapping[str, object]) -> FailureKind:
        """Return the kind in a line of failures.jsonl."""
        return next((kind for kind in cls if kind == line[KIND_KEY]), cls.UNKNOWN)


@dataclass(frozen=True, slots=True)
class KindFacts:
    """The words and the advice for people about a kind of failure."""

    words: str
    """The kind in a few words that follow a number: "2 not found"."""
    advice: str
    """The thing to do, before the command is run again."""
    options: str
    """Options of the command that does such items again. Empty if no command helps."""
    error: str = "AudioError"
    """Name of the class in errors.py."""


_LEAVE_OUT = "nothing can be transcribed; move them away, or name the others by --include"
_FACTS = {
    FailureKind.NOT_FOUND: KindFacts("not found", "put the recordings in place", AGAIN_ALL),
    FailureKind.NO_ACCESS: KindFacts("no access", "allow this account to read", AGAIN_ALL),
    FailureKind.NOT_ALLOWED: KindFacts("not allowed", "add the option that the reason names", AGAIN_ALL),
    FailureKind.UNREACHABLE: KindFacts("unreachable", "see that the place answers", AGAIN),
    FailureKind.NOT_DELIVERED: KindFacts("not delivered by the server", "open the address in a browser", AGAIN_ALL),
    FailureKind.CHANGED: KindFacts("changed while being read", "let the writer finish", AGAIN_ALL),
    FailureKind.EMPTY: KindFacts("empty", "replace them by whole files", AGAIN_ALL),
    FailureKind.DAMAGED: KindFacts("damaged", "replace them by whole files", AGAIN_ALL),
    FailureKind.NOT_AUDIO: KindFacts("not audio", _LEAVE_OUT, ""),
    FailureKind.NO_AUDIO_TRACK: KindFacts("no audio track", _LEAVE_OUT, ""),
    FailureKind.NO_SUCH_PART: KindFacts("no such channel or time", "correct `channel`, `offset` or the stream", UPDATE),
    FailureKind.TOO_LONG: KindFacts("too long", "allow more hours", f"{AGAIN_ALL} --max-hours 1000"),
    FailureKind.NO_FFMPEG: KindFacts("ffmpeg is missing", "pip install imageio-ffmpeg", AGAIN_ALL),
    FailureKind.DECODER: KindFacts("killed the decoder", "see that memory is free", f"{AGAIN_ALL} --decoders 1"),
    FailureKind.LANGUAGE: KindFacts(
        "wrong language", "take a model that knows the language", OTHER_MODEL, "LanguageError"
    ),
    FailureKind.TEXT: KindFacts("not speakable", "correct the texts", UPDATE, "SpeechError"),
    FailureKind.VOICE: KindFacts("unknown voice", "correct `voice`", UPDATE, "SpeechError"),
    FailureKind.ENGINE: KindFacts("failed in the engine", "see the reasons", AGAIN_ALL, "TranscriptionError"),
    FailureKind.ENGINE_CRASH: KindFacts(
        "crashed the engine", "update the engine, or free memory", AGAIN_ALL, "CrashError"
    ),
    FailureKind.FORGOTTEN: KindFacts("forgotten", "erased by `voxbatch forget`", "", "ItemError"),
    FailureKind.UNKNOWN: KindFacts("of an unknown kind", "see the reasons", AGAIN_ALL, "ItemError"),
}


def in_words(by_kind: Mapping[str, int]) -> str:
    """Return the numbers of failures by the names of their kinds as words: "2 not found, 1 damaged"."""
    words = {kind.value: kind.facts.words for kind in FailureKind}
    return ", ".join(f"{count:,} {words.get(name, name)}" for name, count in by_kind.items())
