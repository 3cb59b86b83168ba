"""The differences between the models: each family makes requests from audio, and text from tokens, in its own way.

A Family is made from the small files of a model, without its weights. Its method `load` loads the tokenizer when the
engine starts. Scheduling, memory and faults are handled elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxbatch.engines.pieces import Piece
from voxbatch.engines.suspect_text import PieceText
from voxbatch.records import SAMPLING_RATE, Answer, Speech
from voxbatch.vllm.engine.model import Model
from voxbatch.vllm.engine.settings import VllmSettings

PROMPT_PROCESSES = 4
"""Most processes for spectrograms that vLLM's processors compute on the CPU. 30 s of audio take 12 to 24 ms (Intel
Xeon, Qwen3-ASR and Granite Speech)."""
CORES_PER_PROMPT_PROCESS = 4
"""Number of the machine's cores for each of them."""


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
    temperature: float = 0.0
    """0 means greedy decoding."""
    top_p: float = 1.0
    seed: int | None = None
    """Seed of this request alone, for a temperature above 0."""
    repetition_penalty: float = 1.0
    """Divisor of the scores of tokens that the text has already; 1 means none."""
    grammar: str = ""
    """Grammar of the text, in llguidance's variant of Lark. Empty means any text."""
    warning: str | None = None
    """Warning about the request, for the transcript."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores:
    """The scores of the tokens of one text, by the model's own distribution. A token without a score has NaN."""

    logprobs: NDArray[np.float32]
    """Shape (num_tokens,): the natural logarithm of the probability of each token."""
    entropies: NDArray[np.float32] | None = None
    """Shape (num_tokens,): the entropy of the distribution from which each token was taken, in nats. None if vLLM's own
    log-probabilities were taken."""

    def probabilities(self) -> list[float]:
        """Return the probability of each token."""
        probabilities: list[float] = np.exp(self.logprobs).tolist()
        return probabilities

    def confidence(self, token_ids: Sequence[int], controls: Collection[int]) -> float | None:
        """Return the mean probability of the text's tokens. None if there are none, or if one has no probability.

        Args:
            controls: ids of control tokens, which are no text.
        """
        pairs = zip(token_ids, self.probabilities(), strict=True)
        text_probabilities = [probability for token, probability in pairs if token not in controls]
        mean = fmean(text_probabilities) if text_probabilities else nan
        return None if isnan(mean) else mean


class UnsupportedPiece(Exception):
    """The model cannot take a piece: it is too long for the model, or in a language that the model does not know.

    A piece that is too long is never truncated.
    """


class UnusableAnswer(Exception):
    """The model's answer does not have the form that was asked for, such as a JSON Schema."""


class Family(ABC):
    """The interface of a family of models. The facts without a comment are those of EngineSpec."""

    max_chunk_samples: int
    """Length of the longest piece, in samples."""
    prompt_tokens: int
    """The largest number of positions that a prompt, with its audio, takes in a step of the engine."""
    decoding: Mapping[str, Any] = {}
    """The family's options that influence the text. They are part of a run's identity."""
    request_bytes = 0
    """Memory of a typical request in the K/V cache, on all GPUs together, if the shape of the model does not tell. 0 if
    it is unknown."""
    warning = ""
    """Warning for the user about the model, or an empty string."""
    languages: frozenset[str] | None = None
    uses_language = False
    takes_hints = False
    translates = False
    word_times = False
    max_question_samples = 0
    sampling_rate = SAMPLING_RATE
    voices: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    max_requests: int | None = None
    """Largest number of requests at a time. None leaves it to the memory."""
    computes_spectrograms = False
    """True if vLLM's processor of the model makes spectrograms on the CPU, in processes of their own."""
    proof: Piece | None = None
    """The piece of a request that shows whether the engine is alive. None means a second of silence."""

    def __init__(self, model: Model, settings: VllmSettings):
        self._name = model.name
        self.max_model_len = settings.max_model_len
        """Number of positions of the context."""

    def load(self, folder: Path) -> None:  # noqa: B027 a family may have loaded its tokenizer before
        """Load the tokenizer of the model in `folder`.

        Raises:
            EngineError: the tokenizer counts tokens differently than voxbatch.
        """

    @abstractmethod
    def request(self, piece: Piece) -> Request:
        """Return the request for a piece.

        Raises:
            UnsupportedPiece: the model cannot take the piece.
        """

    @abstractmethod
    def read(
        self, piece: Piece, token_ids: list[int], finish_reason: str, scores: TokenScores | None = None
    ) -> PieceText | Piece | Answer | Speech:
        """Return the text of the tokens that the model wrote for a piece.

        Args:
            piece: the audio of the request; for a SpokenPiece the speech.
            finish_reason: vLLM's "stop" or "length".

        Returns:
            The text, the answer to a question, or the speech of a text; or a Piece if another request is needed: the
            same piece with its language, for example.

        Raises:
            UnusableAnswer: the answer does not have the form that the question asks for.
        """
