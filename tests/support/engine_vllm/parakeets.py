"""Tiny random models of the Parakeet family as folders in Hugging Face's format, and their reference: transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models

from voxbatch.records import Chunk, Samples, Span

torch.set_num_threads(1)  # two threads wait for each other in loops where other tests use the cores

PIECES = (
    "<unk>", "▁", "▁the", "▁a", "▁so", "s", "t", "e", "ing", "▁¡", "▁¿", "Hola", "!", "?", ".", ",", "▁do", "nde",
    "▁42", "'", "▁при", "вет",
)  # fmt: skip
BLANK = len(PIECES)
ENCODER = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "num_mel_bins": 16,
    "subsampling_conv_channels": 8,
}  # fmt: skip
KINDS = ("tdt", "rnnt", "ctc", "nemotron")
BLANK_BIAS = {"tdt": 0.2, "rnnt": 3.0, "ctc": 0.5, "nemotron": 3.0}
"""Added to blank, so that models write about as many tokens as blanks."""


def network(kind: str, seed: int = 0, durations: tuple[int, ...] = (0, 1, 2, 3, 4)) -> Any:
    """Return a random model of a kind whose tokens, durations and probabilities vary."""
    import transformers

    shared = {"vocab_size": BLANK + 1, "encoder_config": dict(ENCODER)}
    transducer = {**shared, "decoder_hidden_size": 24, "blank_token_id": BLANK, "pad_token_id": 0}
    torch.manual_seed(seed)
    model: Any
    if kind == "tdt":
        config = transformers.ParakeetTDTConfig(**transducer, durations=list(durations))
        model = transformers.ParakeetForTDT(config)
    elif kind == "rnnt":
        model = transformers.ParakeetForRNNT(transformers.ParakeetRNNTConfig(**transducer))
    elif kind == "ctc":
        model = transformers.ParakeetForCTC(transformers.ParakeetCTCConfig(**shared, pad_token_id=BLANK))
    else:
        config = transformers.Nemotron3_5AsrConfig(**transducer, num_prompts=128, prompt_intermediate_size=16)
        model = transformers.Nemotron3_5AsrForRNNT(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = (0.6 if kind == "ctc" else 0.15) if name.startswith("encoder.") else 0.5
            if "norm" not in name:
                weight.normal_(0.0, scale)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0.0, 0.1)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0)
        head = model.ctc_head.bias if kind == "ctc" else model.joint.head.bias
        head[BLANK] += BLANK_BIAS[kind]
    return model.eval()


def tokenizer() -> Tokenizer:
    """Return the tokenizer of the models: Unigram, with blank as a special token."""
    made = Tokenizer(models.Unigram([(piece, 0.0) for piece in PIECES], unk_id=0))
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([AddedToken("<blank>", special=True)])
    assert made.token_to_id("<blank>") == BLANK
    return made


def folder(place: Path, kind: str, seed: int = 0, **given: Any) -> Path:
    """Write a model, and return its folder."""
    network(kind, seed, **given).save_pretrained(place)
    tokenizer().save(str(place / "tokenizer.json"))
    preprocessor = {"feature_size": ENCODER["num_mel_bins"], "sampling_rate": 16_000, "hop_length": 160, "n_fft": 512}
    (place / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return place


def sound(num_samples: int, seed: int) -> Samples:
    """Return a sound that changes like speech."""
    random = np.random.default_rng(seed)
    seconds = np.arange(num_samples) / 16_000
    tones = sum(np.sin(2 * np.pi * pitch * seconds + pitch) for pitch in random.uniform(100, 3000, 5))
    loudness = np.repeat(random.uniform(0.0, 0.2, num_samples // 1600 + 1), 1600)[:num_samples]
    samples: Samples = ((tones + random.normal(0, 0.3, num_samples)) * loudness / 5).astype(np.float32)
    return samples


def chunk(item: int, samples: Samples, lang: str | None = None) -> Chunk:
    """Return a recording of one chunk."""
    return Chunk(item, 0, samples, Span(0, len(samples), 0, len(samples)), lang)


def reference(model: Any, kind: str, samples: Samples, prompt: int = 0) -> list[tuple[int, int, int, float]]:
    """Return transformers' tokens of a clip alone: id, first frame, number of frames, and probability."""
    import transformers

    settings = {"feature_size": ENCODER["num_mel_bins"]}
    streams = kind == "nemotron"
    name = "NemotronAsrStreamingFeatureExtractor" if streams else "ParakeetFeatureExtractor"
    extractor = getattr(transformers, name)(**settings)
    inputs = extractor([samples], sampling_rate=16_000, return_tensors="pt", return_attention_mask=True)
    further = {"prompt_ids": torch.tensor([prompt])} if streams else {}
    with torch.inference_mode():
        if kind == "ctc":
            logits = model(**inputs).logits[0]
            length = int(model._get_subsampling_output_length(inputs["attention_mask"].sum(-1)))
            chances = logits.softmax(-1)
            tokens, before = list[tuple[int, int, int, float]](), BLANK
            for frame, token in enumerate(logits[:length].argmax(-1).tolist()):
                if token == before != BLANK:
                    _, first, count, mean = tokens[-1]
                    mean += (float(chances[frame, token]) - mean) / (count + 1)
                    tokens[-1] = (token, first, count + 1, mean)
                elif token != BLANK:
                    tokens.append((token, frame, 1, float(chances[frame, token])))
                before = token
            return tokens
        model.generation_config.decoder_start_token_id = BLANK
        model.generation_config.suppress_tokens = [BLANK + 1 + i for i in range(5)] if kind == "tdt" else None
        encoded = model.get_audio_features(**inputs, **further)
        length = int(encoded.attention_mask.sum())
        output = model.generate(**inputs, **further, max_new_tokens=10 * length + 20)
        cache = None
        tokens, frame, last = [], 0, BLANK
        from transformers.models.parakeet.generation_parakeet import ParakeetRNNTDecoderCache

        cache = ParakeetRNNTDecoderCache(model.config)
        steps = zip(output.sequences[0, 1:].tolist(), output.durations[0, 1:].tolist(), strict=True)
        for token, moves in steps:
            if frame >= length:
                break
            state = model.decoder(torch.tensor([[last]]), cache=cache)
            logits = model.joint(
                encoder_hidden_states=encoded.pooler_output[:, frame : frame + 1], decoder_hidden_states=state
            )[0, 0, : BLANK + 1]
            assert int(logits.argmax()) == token
            if token != BLANK:
                span = moves if kind == "tdt" else 1
                tokens.append((token, frame, span, float(logits.softmax(-1)[token])))
            frame, last = frame + moves, token
        return tokens
