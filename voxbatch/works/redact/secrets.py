"""The record of a secret that was found, and how the finders look around a word."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from voxbatch.works.redact.tokens import Token


@dataclass(frozen=True, slots=True)
class Secret:
    """Words of an item that are a secret."""

    kind: str
    """One of rules.KINDS."""
    pieces: tuple[int, ...]
    """Indexes of the words, ascending."""
    rule: str
    """Name of the rule that found it, for people."""
    is_checked: bool = False
    """True if its check digits are right."""


def begins(tokens: Sequence[Token], texts: Iterable[tuple[str, ...]], at: int) -> int:
    """Return the number of words of the longest text that begins at a word; 0 if none does."""
    return max((len(text) for text in texts if _is_at(tokens, text, at)), default=0)


def is_near(tokens: Sequence[Token], texts: Iterable[tuple[str, ...]], first: int, stop: int) -> bool:
    """Return whether one of the texts begins among some words."""
    return any(_is_at(tokens, text, at) for text in texts for at in range(max(0, first), min(stop, len(tokens))))


def _is_at(tokens: Sequence[Token], text: tuple[str, ...], at: int) -> bool:
    return at + len(text) <= len(tokens) and all(tokens[at + k].folded == word for k, word in enumerate(text))


def followed_by(tokens: Sequence[Token], at: int, words: Collection[str]) -> bool:
    """Return whether a word is one of some."""
    return at < len(tokens) and tokens[at].folded in words
