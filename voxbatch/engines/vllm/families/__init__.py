"""The differences between the models: each family makes requests from audio, and text from tokens, in its own way.

A Family is made from the small files of a model, without its weights. Its method `load` loads the tokenizer when the
engine starts. Scheduling, memory and faults are handled elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from voxbatch.engines.pieces import Piece, PieceText


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
