"""A Mistral tokenizer (tekken.json) as the families need it: the prompt's first ids, padded audio, the text of ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Tekken:
    instruct: Any
    """mistral-common's InstructTokenizer."""

    @property
    def start(self) -> list[int]:
        return list(self.instruct.start())

    @property
    def audio_encoder(self) -> Any:
        return self.instruct.audio_encoder

    def encode(self, text: str) -> list[int]:
        return list(self.instruct.tokenizer.encode(text, bos=False, eos=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids; control tokens say nothing."""
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

        return str(self.instruct.tokenizer.decode(list(token_ids), special_token_policy=SpecialTokenPolicy.IGNORE))


def load_tekken(folder: Path) -> Tekken:
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    return Tekken(MistralTokenizer.from_file(str(folder / "tekken.json")).instruct_tokenizer)
