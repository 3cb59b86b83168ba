"""The engine does not start if mistral-common counts tokens differently: one token too many kills vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shapes import full_size

from voxbatch.errors import EngineError
from voxbatch.vllm.engine.families.choice import resolve
from voxbatch.vllm.engine.families.instruct import Instruct
from voxbatch.vllm.engine.families.realtime import Realtime
from voxbatch.vllm.engine.model import INSTRUCT, REALTIME, Model

mistral_common = pytest.importorskip("mistral_common")


def write(folder: Path, is_realtime: bool, **changes: Any) -> Model:
    """Write the tokenizer of a tiny model with these changes in its audio section."""
    pytest.importorskip("safetensors")
    from checkpoints import write_tekken, write_voxtral

    (write_tekken if is_realtime else write_voxtral)(folder)
    tekken = json.loads((folder / "tekken.json").read_text())
    tekken["audio"] |= changes
    (folder / "tekken.json").write_text(json.dumps(tekken))
    return Model("m", folder, REALTIME if is_realtime else INSTRUCT, is_mistral=True)


def realtime(model: Model, **options: str) -> Realtime:
    """Return the Realtime family of a model."""
    return Realtime(model, resolve("realtime", {"delay_ms": "0", **options}))


def instruct(model: Model) -> Instruct:
    """Return the instruct family of a model."""
    return Instruct(model, resolve("instruct", {}))


@pytest.mark.parametrize("changes", [{}, {"streaming_n_left_pad_tokens": 16}, {"transcription_delay_ms": 2400.0}])
@pytest.mark.parametrize("context", ["128", "512", "131072"])
def test_what_both_read_alike_loads(tmp_path: Path, changes: dict[str, Any], context: str) -> None:
    """Other pads, delays and contexts are accepted, because both count them alike."""
    model = write(tmp_path, True, **changes)
    realtime(model, max_model_len=context).load(tmp_path)


@pytest.mark.parametrize(
    ("is_realtime", "changes", "options", "difference"),
    [
        (True, {"frame_rate": 25.0}, {}, "the prompt has 45 tokens, and voxbatch counts 39"),
        (True, {}, {"delay_ms": "2400"}, "has 39 tokens, and voxbatch counts 63"),
        (False, {"frame_rate": 25.0}, {}, "audio of 1 samples has 750 tokens, and voxbatch counts 375"),
        (False, {"chunk_length_s": 40.0}, {}, "audio of 1 samples has 500 tokens, and voxbatch counts 375"),
    ],
    ids=["tokens of 40 ms", "another delay than the folder's", "two tokens for one", "longer windows"],
)
def test_another_count_is_refused(
    tmp_path: Path, is_realtime: bool, changes: dict[str, Any], options: dict[str, str], difference: str
) -> None:
    """The refusal has both counts, and the version of mistral-common."""
    model = write(tmp_path, is_realtime, **changes)
    refuses_to_load(realtime(model, **options) if is_realtime else instruct(model), tmp_path, difference)


def refuses_to_load(family: Realtime | Instruct, folder: Path, difference: str) -> None:
    with pytest.raises(EngineError) as caught:
        family.load(folder)
    assert f"mistral_common {mistral_common.__version__}" in str(caught.value)
    assert difference in str(caught.value)


def test_another_mistral_common_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that adds more silence after the audio is refused, and one that makes a longer instruct prompt."""
    from mistral_common.tokens.tokenizers import audio

    (tmp_path / "instruct").mkdir()
    family = instruct(write(tmp_path / "instruct", False))
    family.load(tmp_path / "instruct")
    monkeypatch.setattr("voxbatch.vllm.engine.families.instruct.PROMPT_TOKENS", 4)
    longer = "5 tokens beside the audio, and voxbatch counts at most 4"
    refuses_to_load(family, tmp_path / "instruct", longer)
    model = write(tmp_path, True)
    monkeypatch.setattr(audio, "OFFLINE_STREAMING_BUFFER_TOKENS", 12)
    padded = "0 samples are padded to 65280 samples, and voxbatch counts 62720"
    refuses_to_load(realtime(model), tmp_path, padded)


def test_the_published_tokenizers_load(tmp_path: Path) -> None:
    """A vocabulary of the published size loads, with an instruct model's audio section and with Realtime's."""
    families: dict[str, Callable[[Model], Realtime | Instruct]] = {"mini-4b-realtime": realtime, "mini-3b": instruct}
    for name, family in families.items():
        full_size().write(tmp_path / name, name)
        kind = REALTIME if name == "mini-4b-realtime" else INSTRUCT
        made = family(Model("m", tmp_path / name, kind, is_mistral=True))
        made.load(tmp_path / name)
        assert isinstance(made, Realtime) or len(made.prompt(480_000, "en")) == made.prompt_tokens
