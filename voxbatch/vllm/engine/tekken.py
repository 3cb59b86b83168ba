"""A Mistral tokenizer (tekken.json) with the functions that the families need: prompts, padded audio, and text."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voxbatch.errors import EngineError
from voxbatch.records import SAMPLING_RATE, Samples
from voxbatch.vllm.plugin import preload


@dataclass(frozen=True)
class Tekken:
    """A Mistral tokenizer."""

    instruct: Any
    """The InstructTokenizer of mistral-common."""
    mistral: Any = None
    """The MistralTokenizer of mistral-common, which encodes chats."""

    @property
    def start(self) -> list[int]:
        """Return the first token ids of every prompt."""
        return list(self.instruct.start())

    @property
    def audio_encoder(self) -> Any:
        """Return the AudioEncoder of mistral-common, which pads audio and makes its token ids."""
        return self.instruct.audio_encoder

    def pad(self, samples: Samples) -> Samples:
        """Return audio with the silence that the model needs around it. Audio without samples becomes silence."""
        padded: Samples = self.audio_encoder.pad(samples if len(samples) else np.zeros(1, np.float32), SAMPLING_RATE)
        return padded

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without [BOS] and [EOS]."""
        return list(self.instruct.tokenizer.encode(text, bos=False, eos=False))

    @functools.cached_property
    def token_bytes(self) -> Callable[[int], bytes]:
        """The function that returns the bytes in UTF-8 of a text token, which may begin or end within a character.

        It keeps them: mistral-common takes 20 times as long to decode the tokens of a word.
        """
        return functools.cache(self.instruct.tokenizer.id_to_byte_piece)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids. Control tokens give no text."""
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

        return str(self.instruct.tokenizer.decode(list(token_ids), special_token_policy=SpecialTokenPolicy.IGNORE))


def require_agreement(agrees: bool, folder: Path, difference: str) -> None:
    """Check that mistral-common counts tokens as voxbatch does, because one token too many kills vLLM.

    Raises:
        EngineError: the counts differ.
    """
    if not agrees:
        from importlib.metadata import version

        raise EngineError(
            f"mistral_common {version('mistral_common')} and voxbatch read {folder}/tekken.json differently: "
            f"{difference}; check the `audio` section of that file, or install the mistral_common that vLLM was "
            "released with"
        )


def load_tekken(folder: Path) -> Tekken:
    """Return the tokenizer in the tekken.json of a folder.

    To load it takes a second, and vLLM keeps one for its engine. So if this process has imported vLLM, the tokenizer is
    vLLM's.
    """
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    mistral = None
    if "vllm.tokenizers" in sys.modules:
        with contextlib.suppress(Exception):  # another version of vLLM may keep it elsewhere
            mistral = preload.load_tokenizer(str(folder)).mistral
    if not isinstance(mistral, MistralTokenizer):
        mistral = MistralTokenizer.from_file(str(folder / "tekken.json"))
    return Tekken(mistral.instruct_tokenizer, mistral)
