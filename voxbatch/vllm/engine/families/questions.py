"""Questions to Voxtral Mini 3B and Small 24B: several recordings and a text in one instruct prompt, and a free answer.

mistral-common makes each prompt, with a moment of silence in place of each recording; the tokens of the real recordings
are put in afterwards. So a recording is neither encoded as a file nor rounded to 16 bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np

from voxbatch.engines.pieces import Piece, QuestionPiece
from voxbatch.errors import ConfigError
from voxbatch.records import SAMPLING_RATE, Answer, AnswerOptions
from voxbatch.vllm.engine import planned_memory
from voxbatch.vllm.engine.families.answer_format import AnswerFormat
from voxbatch.vllm.engine.families.instruct import WINDOW, WINDOW_S, WINDOW_TOKENS, WindowedVoxtral, require_windows
from voxbatch.vllm.engine.families.request import Request, TokenScores, UnsupportedPiece
from voxbatch.vllm.engine.families.voxtral import scheduler_class
from voxbatch.vllm.engine.model import Model
from voxbatch.vllm.engine.settings import ASK, VllmSettings
from voxbatch.vllm.engine.tekken import Tekken, load_tekken

MAX_RECORDINGS = 8
"""Largest number of recordings of a question, as in the published example for SageMaker (`audio:8`). vLLM's own limit
for Voxtral is 5 (see vllm.plugin.patches.supported_mm_limits)."""
LONGEST_RECORDING = 30 * 60 * SAMPLING_RATE
"""Number of samples of the longest recording: 30 minutes, the model card's limit for transcription."""
CONTEXT = 32_768
"""Default of max_model_len: the context of Voxtral Mini 3B and Small 24B according to their model cards. It holds 41
minutes of audio beside the question and an answer of 1,024 tokens."""
QUESTION_TOKENS = 128
"""Number of tokens of a typical question, with its tools."""
TEXT_TOKENS = 512
"""Number of positions that `max_question_samples` leaves for the question, the system prompt and the tools."""
PROMPTS = 64
"""Number of prompts without audio that are kept. The lines of a manifest often have the same question."""
SILENCE = np.zeros(SAMPLING_RATE // 10, np.float32)


class Questions(WindowedVoxtral):
    """The family of Voxtral Mini 3B and Small 24B with task=ask: see `Family` for its methods."""

    default_context = CONTEXT
    why_no_plugin = "the plugin transcribes chunks and answers no questions"
    max_inputs: Mapping[str, int] = {"audio": MAX_RECORDINGS}
    has_small_jobs = False  # an answer may take thousands of steps
    prefetch = 2  # a question of maximum length, a recording of 30 minutes, has 115 MB
    scores = False
    decoding_settings = ()  # neither of them has an effect on an answer
    prompt_tokens = WINDOW_TOKENS
    decoding: Mapping[str, Any] = {"task": ASK}
    max_recordings = MAX_RECORDINGS

    @classmethod
    def own_arguments(cls) -> dict[str, Any]:
        """Return the only backend that knows the special tokens of a tool call; see `Family.own_arguments`."""
        return {"structured_outputs_config": {"backend": "guidance"}}

    @classmethod
    def scheduler(cls, settings: VllmSettings, on_cpu: bool, kind: str = "Batch") -> str | None:
        """Return the scheduler for questions; see `Family.scheduler`."""
        return scheduler_class("Question", on_cpu) if settings.lift_encoder_cache else None

    @classmethod
    def requests(cls, model: Model, settings: VllmSettings, prefilled: bool, room: float, request_bytes: int) -> int:
        """Return the typical questions, about 30 s, that fit; see `Family.requests`. Each gets the blocks that it
        needs."""
        positions = WINDOW_TOKENS + QUESTION_TOKENS + settings.max_answer_tokens
        footprint = cls.footprint(model.shape(), settings, prefilled)
        return footprint.questions(room, settings.tensor_parallel_size, positions)

    @classmethod
    def unplanned_bytes(
        cls, model: Model, settings: VllmSettings, prefilled: bool, planned: float, requests: int
    ) -> float:
        """Return 0: vLLM sizes the encoder cache for a whole question; see `Family.unplanned_bytes`."""
        return 0

    @classmethod
    def longest_chunk_s(cls, settings: VllmSettings) -> float:
        """Return the length of the longest recording; see `Family.longest_chunk_s`."""
        return LONGEST_RECORDING / SAMPLING_RATE

    def __init__(self, model: Model, settings: VllmSettings):
        super().__init__(model, settings)
        if (room := planned_memory.room(settings)) is not None:
            footprint = self.footprint(model.shape(), settings, prefilled=False)
            fitting = footprint.question_context(room, settings.tensor_parallel_size)
            if fitting < settings.max_model_len:
                self.warning = (
                    f"the GPU's memory holds a context of {fitting:,} positions by calculation, and not of "
                    f"{settings.max_model_len:,}: longer questions are refused"
                )
                self.max_model_len = fitting
        windows = (self.max_model_len - settings.max_answer_tokens - TEXT_TOKENS) // WINDOW_TOKENS
        if windows < 1:
            needed = settings.max_answer_tokens + TEXT_TOKENS + WINDOW_TOKENS
            raise ConfigError(
                f"the context of {model.name} has {self.max_model_len:,} positions here, and {WINDOW_S} s of "
                f"audio ({WINDOW_TOKENS}), a question ({TEXT_TOKENS}) and an answer ({settings.max_answer_tokens:,}) "
                f"take {needed:,}: give a smaller --max-tokens, or more of --engine-option max_model_len"
            )
        self.max_question_samples = windows * WINDOW
        self.max_chunk_samples = min(LONGEST_RECORDING, self.max_question_samples)

    def load(self, folder: Path) -> None:
        """Load the tokenizer and check its counts; see `Family.load`."""
        self._tekken: Tekken = load_tekken(folder)
        require_windows(self._tekken.audio_encoder, folder)
        self._format = lru_cache(PROMPTS)(lambda options: AnswerFormat(options, self._tekken))
        self._text_parts = lru_cache(PROMPTS)(self._encode)

    def request(self, piece: Piece) -> Request:
        """Return the request of a question; see `Family.request`."""
        assert isinstance(piece, QuestionPiece)
        options = piece.question.options
        grammar, prompt = self._format(options).grammar, self.prompt(piece)
        if len(prompt) + options.max_tokens > self.max_model_len:
            audio = sum(map(_num_tokens, piece.recordings))
            raise UnsupportedPiece(
                f"the question has {len(prompt):,} tokens, {audio:,} of them audio ({WINDOW_TOKENS} for each started "
                f"{WINDOW_S} s of a recording), and the answer up to {options.max_tokens:,}; the context holds "
                f"{self.max_model_len:,}: give --map-reduce, shorter recordings or a smaller --max-tokens"
            )
        inputs: dict[str, Any] = {"prompt_token_ids": prompt}
        if piece.recordings:
            ends = list(accumulate(piece.recordings))
            recordings = [piece.samples[end - n : end] for end, n in zip(ends, piece.recordings, strict=True)]
            padded = [(self._tekken.pad(recording), SAMPLING_RATE) for recording in recordings]
            inputs["multi_modal_data"] = {"audio": padded}
        return Request(
            inputs,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            top_p=options.top_p,
            seed=options.seed if options.temperature > 0 else None,
            grammar=grammar,
        )

    def prompt(self, piece: QuestionPiece) -> list[int]:
        """Return the token ids of a question, as mistral-common's encode_chat_completion makes them."""
        first, *others = self._text_parts(piece.question.prompt, piece.question.options, len(piece.recordings))
        prompt, audio = list(first), self._tekken.audio_encoder.audio_token
        for length, text in zip(piece.recordings, others, strict=True):
            prompt += [audio] * _num_tokens(length)
            prompt += text
        return prompt

    def read(self, piece: Piece, token_ids: list[int], finish_reason: str, scores: TokenScores | None = None) -> Answer:
        """Return the answer to a question; see `Family.read`."""
        assert isinstance(piece, QuestionPiece)
        ids = token_ids[:-1] if token_ids[-1:] == [self._tekken.instruct.tokenizer.eos_id] else token_ids
        return self._format(piece.question.options).read(ids, finish_reason, len(self.prompt(piece)))

    def _encode(self, prompt: str, options: AnswerOptions, num_recordings: int) -> list[tuple[int, ...]]:
        """Return the tokens of a question before, between and after its recordings.

        Raises:
            UnsupportedPiece: mistral-common refuses the question, for example for the name of a tool.
        """
        from mistral_common.exceptions import MistralCommonException

        try:
            tokens = self._tekken.mistral.encode_chat_completion(self._chat(prompt, options, num_recordings)).tokens
        except (MistralCommonException, ValueError) as e:
            raise UnsupportedPiece(f"mistral-common refuses the question: {e}") from e
        audio = self._tekken.audio_encoder.audio_token
        parts = [tuple(run) for is_audio, run in groupby(tokens, lambda token: token == audio) if not is_audio]
        assert len(parts) == num_recordings + 1
        return parts

    def _chat(self, prompt: str, options: AnswerOptions, num_recordings: int) -> Any:
        """Return mistral-common's request for a question, with silence in place of its recordings.

        Before v13 the tokenizer has no system prompt beside audio. The system prompt then stands in front of the
        question, as tokenizers before v7 always place it.
        """
        from mistral_common.protocol.instruct.chunk import AudioChunk, TextChunk
        from mistral_common.protocol.instruct.messages import SystemMessage, UserMessage
        from mistral_common.protocol.instruct.request import ChatCompletionRequest
        from mistral_common.protocol.instruct.tool_calls import Tool
        from mistral_common.tokens.tokenizers.audio import Audio
        from mistral_common.tokens.tokenizers.base import TokenizerVersion

        system: list[Any] = []
        if options.system and num_recordings and self._tekken.instruct.tokenizer.version < TokenizerVersion.v13:
            prompt = f"{options.system}\n\n{prompt}"
        elif options.system:
            system = [SystemMessage(content=options.system)]
        silence = AudioChunk.from_audio(Audio(SILENCE, SAMPLING_RATE, format="wav"))
        content = [*[silence] * num_recordings, TextChunk(text=prompt)] if num_recordings else prompt
        tools = [Tool.from_openai(tool) for tool in json.loads(options.tools)] if options.tools else None
        return ChatCompletionRequest(messages=[*system, UserMessage(content=content)], tools=tools)


def _num_tokens(num_samples: int) -> int:
    """Return the number of audio tokens of a recording, which is padded to whole windows, and to at least one."""
    return -(-max(1, num_samples) // WINDOW) * WINDOW_TOKENS
