"""A Mistral tokenizer (tekken.json) as the families need it: the prompt's first ids, padded audio, the text of ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxbatch.errors import EngineError


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


def require_agreement(agrees: bool, folder: Path, difference: str) -> None:
    """Raise EngineError where mistral-common counts otherwise than voxbatch: one token too many kills vLLM.

    Args:
        difference: both counts, in words.
    """
    if not agrees:
        from importlib.metadata import version

        raise EngineError(
            f"mistral_common {version('mistral_common')} and voxbatch read {folder}/tekken.json differently: "
            f"{difference}; check the `audio` section of that file, or install the mistral_common that vLLM was "
            "released with"
        )


def load_tekken(folder: Path) -> Tekken:
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    return Tekken(MistralTokenizer.from_file(str(folder / "tekken.json")).instruct_tokenizer)
