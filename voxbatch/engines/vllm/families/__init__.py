"""The differences between the models: each family makes requests from audio, and text from tokens, in its own way.

A Family is made from the small files of a model, without its weights. Its method `load` loads the tokenizer when the
engine starts. Scheduling, memory and faults are handled elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from voxbatch.records import Samples, Word


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A part of a chunk's audio that becomes one request."""

    samples: Samples
    """Samples of shape (num_samples,), at most `max_chunk_samples` of the family."""
    lang: str | None = None
    """Primary subtag of the language. None means that the language is unknown."""
    lead: int = 0
    """Number of samples of silence at the front that are not part of the chunk."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to vLLM."""

    prompt: Mapping[str, Any]
    """The prompt in the form that vLLM's `LLM.generate` takes."""
    max_tokens: int
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] = ()
    """The only tokens that the text may have. Empty means all tokens."""
    suppressed_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PieceText:
    """The text of one piece, and what is known about it."""

    text: str
    words: tuple[Word, ...] = ()
    """Words with times from the first sample of the piece. Empty if the model gives no word times."""
    longest_pause: tuple[float, float] | None = None
    """Start and end of the longest stretch without text, in seconds from the first sample of the piece. None for models
    that do not write text while they listen."""
    untranscribed: tuple[float, float] | None = None
    """Start and end of the audio after the point at which the model ended its text, in seconds from the first sample of
    the piece. None if the model listened to the end, or does not write text while it listens."""
    truncated: bool = False
    """True if the text ended because no more tokens were allowed."""
    text_after_eos: tuple[tuple[float, int], ...] = ()
    """Points at which the model wrote EOS and then more text: seconds from the first sample of the piece, and number of
    characters that follow. Each request gives at most one."""


class UnsupportedPiece(Exception):
    """The model cannot take a piece: it is too long for the model, or in a language that the model does not know.

    A piece that is too long is never truncated.
    """


class Family(Protocol):
    """The interface of a family of models."""

    max_chunk_samples: int
    """Length of the longest piece, in samples."""
    word_times: bool
    """See EngineSpec.word_times."""
    languages: frozenset[str] | None
    """See EngineSpec.languages."""
    uses_language: bool
    """See EngineSpec.uses_language."""
    prompt_tokens: int
    """The largest number of positions that a prompt, with its audio, takes in a step of the engine."""
    decoding: Mapping[str, Any]
    """The family's options that influence the text. They are part of a run's identity."""

    def load(self, folder: Path) -> None:
        """Load the tokenizer of the model in `folder`.

        Raises:
            EngineError: the tokenizer counts tokens differently than voxbatch.
        """

    def request(self, piece: Piece) -> Request:
        """Return the request for a piece.

        Raises:
            UnsupportedPiece: the model cannot take the piece.
        """

    def read(self, piece: Piece, token_ids: list[int], finish_reason: str) -> PieceText | Piece:
        """Return the text of the tokens that the model wrote for a piece.

        Args:
            piece: the audio of the request.
            token_ids: the tokens of the text.
            finish_reason: vLLM's "stop" or "length".

        Returns:
            The text; or a Piece if another request is needed: the same piece with its language, for example.
        """
