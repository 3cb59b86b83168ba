"""Random checkpoints of transcription models, in Hugging Face's format: tiny ones, and configurations of any size.

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


def tokenizer(specials: list[str], eos: str, size: int = 0, **named: Any) -> Any:
    """Return a tokenizer of words that white space separates, of at least `size` tokens, with special tokens first."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    further = (f"word{i}" for i in range(1 + len(specials) + len(WORDS), size))
    vocabulary = {token: i for i, token in enumerate(["<unk>", *specials, *WORDS, *further])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<unk>",
        eos_token=eos,
        pad_token=specials[0],
        extra_special_tokens={**named, **{f"special_{i}": token for i, token in enumerate(specials)}},
    )


def qwen3_asr(audio: Mapping[str, Any], text: Mapping[str, Any], words: int = 0) -> tuple[Any, Any]:
    """Return the configuration and the processor of a Qwen3-ASR.

    Args:
        audio: sizes of the encoder.
        text: sizes of the decoder.
        words: least number of tokens.
    """
    from transformers import Qwen3ASRConfig, Qwen3ASRFeatureExtractor, Qwen3ASRProcessor

    named = {"audio_bos_token": "<|audio_start|>", "audio_token": "<|audio_pad|>", "audio_eos_token": "<|audio_end|>"}
    tokens = tokenizer(["<|im_start|>", "<|im_end|>", *named.values(), "<asr_text>"], "<|im_end|>", words, **named)
    config = Qwen3ASRConfig(
        audio_config=dict(audio),
        text_config={**text, "vocab_size": len(tokens)},
        audio_token_id=tokens.convert_tokens_to_ids("<|audio_pad|>"),
        timestamp_token_id=0,
        eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
        tie_word_embeddings=False,
    )
    return config, Qwen3ASRProcessor(Qwen3ASRFeatureExtractor(), tokens)


def glm_asr(audio: Mapping[str, Any], text: Mapping[str, Any], words: int = 0) -> tuple[Any, Any]:
    """Return the configuration and the processor of a GLM-ASR; see `qwen3_asr`."""
    from transformers import GlmAsrConfig, GlmAsrProcessor, WhisperFeatureExtractor

    tokens = tokenizer(["<|pad|>", "<|user|>", "<|assistant|>"], "<|user|>", words)
    tokens.chat_template = CHAT
    config = GlmAsrConfig(
        audio_config=dict(audio),
        text_config={**text, "vocab_size": len(tokens), "eos_token_id": tokens.eos_token_id},
        audio_token_id=tokens.convert_tokens_to_ids("<|pad|>"),
    )
    return config, GlmAsrProcessor(WhisperFeatureExtractor(feature_size=128), tokens, max_audio_len=60)


def granite_speech(
    audio: Mapping[str, Any], text: Mapping[str, Any], words: int = 0, projector: Mapping[str, Any] | None = None
) -> tuple[Any, Any]:
    """Return the configuration and the processor of a Granite Speech; see `qwen3_asr`.

    Args:
        audio: sizes of the encoder.
        text: sizes of the decoder.
        words: least number of tokens.
        projector: sizes of the network between them.
    """
    from transformers import GraniteSpeechConfig, GraniteSpeechFeatureExtractor, GraniteSpeechProcessor

    tokens = tokenizer(["<|end_of_text|>", "<|audio|>", "<|user|>", "<|assistant|>"], "<|end_of_text|>", words)
    tokens.chat_template = CHAT
    ends = {"eos_token_id": tokens.eos_token_id, "bos_token_id": tokens.eos_token_id}
    config = GraniteSpeechConfig(
        encoder_config=dict(audio),
        projector_config={**(projector or TINY_PROJECTOR), "model_type": "blip_2_qformer"},
        text_config={**text, "vocab_size": len(tokens), **ends},
        audio_token_index=tokens.convert_tokens_to_ids("<|audio|>"),
        has_lora_adapter=False,
    )
    return config, GraniteSpeechProcessor(GraniteSpeechFeatureExtractor(), tokens)


CHAT = "{% for message in messages %}<|user|> {{ message.content }} {% endfor %}<|assistant|>"
LANGUAGE_MODEL = {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.", "model.": ""}
"""Beginnings of the names of tensors: those of transformers 5, and those of the published files."""
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2}
TINY = {**LAYERS, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH}
TINY_ENCODER = {"d_model": WIDTH, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 2 * WIDTH}
TINY_DECODER = {**TINY, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 4_096}
TINY_PROJECTOR = {**TINY, "encoder_hidden_size": WIDTH}


def write_glm_asr(folder: Path) -> None:
    """Write a tiny GLM-ASR."""
    from transformers import GlmAsrForConditionalGeneration

    _save(GlmAsrForConditionalGeneration, folder, *glm_asr(TINY, TINY_DECODER), LANGUAGE_MODEL)


def write_granite_speech(folder: Path) -> None:
    """Write a tiny Granite Speech."""
    from transformers import GraniteSpeechForConditionalGeneration

    encoder = {"num_layers": 2, "hidden_dim": WIDTH, "num_heads": 2, "output_dim": 8}
    made = granite_speech(encoder, TINY_DECODER)
    _save(GraniteSpeechForConditionalGeneration, folder, *made, LANGUAGE_MODEL)


def write_qwen3_asr(folder: Path) -> None:
    """Write a tiny Qwen3-ASR."""
    from transformers import Qwen3ASRForConditionalGeneration

    made = qwen3_asr({**TINY_ENCODER, "output_dim": WIDTH, "downsample_hidden_size": 16}, TINY_DECODER)
    _save(Qwen3ASRForConditionalGeneration, folder, *made, {"lm_head.": "thinker.lm_head."})


MODELS: dict[str, Callable[[Path], None]] = {
    "GlmAsrForConditionalGeneration": write_glm_asr,
    "GraniteSpeechForConditionalGeneration": write_granite_speech,
    "Qwen3ASRForConditionalGeneration": write_qwen3_asr,
}


def _save(kind: Any, folder: Path, config: Any, processor: Any, renamed: Mapping[str, str]) -> None:
    """Save a model with random weights.

    Args:
        kind: class of the model in transformers.
        renamed: beginnings of transformers' names of tensors, and those of the published files. The first one that fits
            counts.
    """
    import torch
    from safetensors.torch import save_file

    config.architectures = [kind.__name__]
    config.dtype = torch.float32
    model = kind(config)
    model.config.save_pretrained(folder)
    processor.save_pretrained(folder)
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
