"""What differs between the models: how a piece of audio becomes a request, and how its tokens become text.

A Family is made from a model's small files, without loading weights; `load` brings its tokenizer when the engine
starts. It knows nothing of scheduling, memory or faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from voxbatch.records import Samples, Word


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A stretch of a chunk's audio that makes one request."""

    samples: Samples
    """Never longer than the family's limit."""
    lang: str | None = None
    """Primary subtag."""
    lead: int = 0
    """So many of the samples, at the front, are silence that is not the chunk's."""


@dataclass(frozen=True, slots=True)
class Request:
    prompt: Mapping[str, Any]
    """As vLLM's `LLM.generate` takes it."""
    max_tokens: int
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] = ()
    """Empty means all."""
    suppressed_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Heard:
    """What a model made of one piece."""

    text: str
    words: tuple[Word, ...] = ()
    """Times from the piece's first sample; empty where the model gives none."""
    quiet: tuple[float, float] | None = None
    """The longest stretch, in seconds from the piece's first sample, in which a model that speaks as it listens said
    nothing; None for a model that does not."""
    unheard: tuple[float, float] | None = None
    """From where such a model said that it had ended, to the piece's end; None where it listened to the end."""
    truncated: bool = False
    """The text ended because no more tokens were allowed."""
    after_end: tuple[tuple[float, int], ...] = ()
    """Where such a model said that it had ended and yet went on: seconds from the piece's first sample, and characters
    of text that follow. At most one for each request."""


class Unfit(Exception):
    """A piece that this model cannot take: longer than its context (never a reason to truncate), or in a language that
    it does not know."""


class Family(Protocol):
    max_chunk_samples: int
    word_times: bool
    languages: frozenset[str] | None
    """See EngineSpec.languages."""
    uses_language: bool
    """See EngineSpec.uses_language."""
    prompt_tokens: int
    """The most that its prompt alone takes of a step."""
    decoding: Mapping[str, Any]
    """What else decides the text, for the run's identity."""

    def load(self, folder: Path) -> None:
        """Bring the tokenizer of the model in `folder`."""

    def request(self, piece: Piece) -> Request:
        """Raises Unfit."""

    def read(self, piece: Piece, token_ids: list[int], finish_reason: str) -> Heard | Piece:
        """What was heard; or the piece, with what was learnt of it, to be asked again."""
