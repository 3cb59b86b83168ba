"""Tiny random checkpoints of transcription models, in Hugging Face's format, by the names of their architectures.

transformers makes the weights, and vLLM loads them under the published names. Random words follow the sound, because
the weights are large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

WIDTH = 32
"""Width of the layers."""
SPREAD = 0.4
"""Standard deviation of the weights. With the usual 0.02 the text would be one word, whatever the sound."""
WORDS = ["".join(sounds) for sounds in product("bdfgklmnprst", "aeiou", ("", "n", "r", "s", "l"))]


def tokenizer(specials: list[str], eos: str, **named: Any) -> Any:
    """Return a tokenizer of words that white space separates, with special tokens first."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(["<unk>", *specials, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<unk>",
        eos_token=eos,
        pad_token=specials[0],
        extra_special_tokens={**named, **{f"special_{i}": token for i, token in enumerate(specials)}},
    )


def qwen3_asr(folder: Path) -> None:
    """Write a tiny Qwen3-ASR."""
    from transformers import (
        Qwen3ASRConfig,
        Qwen3ASRFeatureExtractor,
        Qwen3ASRForConditionalGeneration,
        Qwen3ASRProcessor,
    )

    audio = {"audio_bos_token": "<|audio_start|>", "audio_token": "<|audio_pad|>", "audio_eos_token": "<|audio_end|>"}
    words = tokenizer(["<|im_start|>", "<|im_end|>", *audio.values(), "<asr_text>"], "<|im_end|>", **audio)
    config = Qwen3ASRConfig(
        audio_config={**_encoder(), "output_dim": WIDTH, "downsample_hidden_size": 16},
        text_config=_decoder(words),
        audio_token_id=words.convert_tokens_to_ids("<|audio_pad|>"),
        timestamp_token_id=0,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        tie_word_embeddings=False,
    )
    _save(Qwen3ASRForConditionalGeneration(config), folder, {"lm_head.": "thinker.lm_head."})
    Qwen3ASRProcessor(Qwen3ASRFeatureExtractor(), words).save_pretrained(folder)


def glm_asr(folder: Path) -> None:
    """Write a tiny GLM-ASR."""
    from transformers import GlmAsrConfig, GlmAsrForConditionalGeneration, GlmAsrProcessor, WhisperFeatureExtractor

    words = tokenizer(["<|pad|>", "<|user|>", "<|assistant|>"], "<|user|>")
    words.chat_template = CHAT
    config = GlmAsrConfig(
        audio_config={"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, **_layers()},
        text_config={**_decoder(words), "eos_token_id": words.eos_token_id},
        audio_token_id=words.convert_tokens_to_ids("<|pad|>"),
    )
    _save(GlmAsrForConditionalGeneration(config), folder, LANGUAGE_MODEL)
    GlmAsrProcessor(WhisperFeatureExtractor(feature_size=128), words, max_audio_len=60).save_pretrained(folder)


def granite_speech(folder: Path) -> None:
    """Write a tiny Granite Speech."""
    from transformers import (
        GraniteSpeechConfig,
        GraniteSpeechFeatureExtractor,
        GraniteSpeechForConditionalGeneration,
        GraniteSpeechProcessor,
    )

    words = tokenizer(["<|end_of_text|>", "<|audio|>", "<|user|>", "<|assistant|>"], "<|end_of_text|>")
    words.chat_template = CHAT
    config = GraniteSpeechConfig(
        encoder_config={"num_layers": 2, "hidden_dim": WIDTH, "num_heads": 2, "output_dim": 8},
        projector_config={
            **_layers(),
            "model_type": "blip_2_qformer",
            "hidden_size": WIDTH,
            "encoder_hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
        },
        text_config={**_decoder(words), "eos_token_id": words.eos_token_id, "bos_token_id": words.eos_token_id},
        audio_token_index=words.convert_tokens_to_ids("<|audio|>"),
        has_lora_adapter=False,
    )
    _save(GraniteSpeechForConditionalGeneration(config), folder, LANGUAGE_MODEL)
    GraniteSpeechProcessor(GraniteSpeechFeatureExtractor(), words).save_pretrained(folder)


CHAT = "{% for message in messages %}<|user|> {{ message.content }} {% endfor %}<|assistant|>"
LANGUAGE_MODEL = {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.", "model.": ""}
"""Beginnings of the names of tensors: those of transformers 5, and those of the published files."""
MODELS: dict[str, Callable[[Path], None]] = {
    "GlmAsrForConditionalGeneration": glm_asr,
    "GraniteSpeechForConditionalGeneration": granite_speech,
    "Qwen3ASRForConditionalGeneration": qwen3_asr,
}


def _layers() -> dict[str, int]:
    return {"num_hidden_layers": 2, "num_attention_heads": 2}


def _encoder() -> dict[str, Any]:
    return {
        "d_model": WIDTH,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 2 * WIDTH,
    }


def _decoder(words: Any) -> dict[str, Any]:
    return {
        **_layers(),
        "vocab_size": len(words),
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 4_096,
    }


def _save(model: Any, folder: Path, renamed: Mapping[str, str]) -> None:
    """Save a model with new random weights.

    Args:
        renamed: beginnings of transformers' names of tensors, and those of the published files. The first one that fits
            counts.
    """
    import torch
    from safetensors.torch import save_file

    model.config.architectures = [type(model).__name__]
    model.config.dtype = torch.float32
    model.config.save_pretrained(folder)
    torch.manual_seed(0)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.get_text_config().tie_word_embeddings:
            continue
        old = next((beginning for beginning in renamed if name.startswith(beginning)), "")
        is_weight = tensor.is_floating_point() and tensor.ndim > 1
        tensors[renamed.get(old, "") + name.removeprefix(old)] = (
            torch.randn(tensor.shape) * SPREAD if is_weight else tensor.contiguous()
        )
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
