"""The engine does not start if mistral-common counts tokens differently: one token too many kills vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from voxbatch.engines.vllm.families.instruct import Instruct
from voxbatch.engines.vllm.families.realtime import Realtime
from voxbatch.engines.vllm.model import INSTRUCT, REALTIME, Model
from voxbatch.engines.vllm.settings import resolve
from voxbatch.errors import EngineError

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


def refused(family: Realtime | Instruct, folder: Path) -> str:
    """Return the error of a family that refuses to load."""
    with pytest.raises(EngineError) as caught:
        family.load(folder)
    text = str(caught.value)
    assert f"mistral_common {mistral_common.__version__}" in text
    return text


def test_another_frame_rate_is_refused(tmp_path: Path) -> None:
    """Realtime tokens of 40 ms are refused: mistral-common makes a prompt of 45 tokens, and voxbatch counts 39."""
    model = write(tmp_path, True, frame_rate=25.0)
    assert "the prompt has 45 tokens, and voxbatch counts 39" in refused(realtime(model), tmp_path)


def test_another_word_buffer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of mistral-common that adds more silence after the audio is refused."""
    from mistral_common.tokens.tokenizers import audio

    model = write(tmp_path, True)
    monkeypatch.setattr(audio, "OFFLINE_STREAMING_BUFFER_TOKENS", 12)
    told = refused(realtime(model), tmp_path)
    assert "0 samples are padded to 65280 samples, and voxbatch counts 62720" in told


def test_a_folder_with_another_delay_is_refused(tmp_path: Path) -> None:
    """A folder is refused if its delay differs from the one that the engine counts with."""
    model = write(tmp_path, True)
    assert "has 39 tokens, and voxbatch counts 63" in refused(realtime(model, delay_ms="2400"), tmp_path)


def test_the_published_tokenizers_load(tmp_path: Path) -> None:
    """A vocabulary of the published size loads, with an instruct model's audio section and with Realtime's."""
    from test_shapes import full_size

    families: dict[str, Callable[[Model], Realtime | Instruct]] = {"mini-4b-realtime": realtime, "mini-3b": instruct}
    for name, family in families.items():
        full_size().write(tmp_path / name, name)
        kind = REALTIME if name == "mini-4b-realtime" else INSTRUCT
        made = family(Model("m", tmp_path / name, kind, is_mistral=True))
        made.load(tmp_path / name)
        assert isinstance(made, Realtime) or len(made.prompt(480_000, "en")) == made.prompt_tokens


@pytest.mark.parametrize(("changes", "tokens"), [({"frame_rate": 25.0}, 750), ({"chunk_length_s": 40.0}, 500)])
def test_another_window_is_refused(tmp_path: Path, changes: dict[str, Any], tokens: int) -> None:
    """An instruct model is refused unless a started window of 30 s has 375 tokens."""
    model = write(tmp_path, False, **changes)
    told = refused(instruct(model), tmp_path)
    assert f"audio of 1 samples has {tokens} tokens, and voxbatch counts 375" in told


def test_a_longer_instruct_prompt_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instruct prompt with more tokens beside the audio than PROMPT_TOKENS is refused."""
    family = instruct(write(tmp_path, False))
    family.load(tmp_path)
    monkeypatch.setattr("voxbatch.engines.vllm.families.instruct.PROMPT_TOKENS", 4)
    assert "5 tokens beside the audio, and voxbatch counts at most 4" in refused(family, tmp_path)
