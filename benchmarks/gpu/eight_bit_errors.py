"""Calculate on a CPU what 8 bits change: logits of a made-up Voxtral Realtime, and texts of a real Whisper.

    .venv-vllm/bin/python benchmarks/gpu/eight_bit_errors.py voxtral [--seeds N]
    .venv-vllm/bin/python benchmarks/gpu/eight_bit_errors.py whisper SPEECH_DIR [--every N]

Parts of transformers' models compute in emulated 8 bits, as voxbatch's engine option `fp8` does on a GPU. A matrix has
a scale for each output channel, its input one for each row, both are rounded to e4m3, and the product is summed in
float32. K/V are rounded to e4m3 with scale 1. All else is in bfloat16.

`voxtral`: a model of 12 layers in each tower with random weights, whose channels differ in size. All configurations see
the same audio and the same earlier tokens. For each: the KL divergence of the next token's distribution from float32's
(mean and 99th percentile, in nats), and the share of positions with float32's token. A model with random weights has no
outliers like a trained one's, and its texts mean nothing: the figures compare the parts with each other and with
bfloat16.

`whisper`: multilingual Whisper tiny with OpenAI's weights (tests/support/engine_vllm/whisper_tiny.py fetches it once)
over every N-th recording of SPEECH_DIR/manifest.jsonl: the word error rate, and the share of equal texts beside
float32's. It says how 8 bits act on a trained model of 39 million parameters, and nothing about Voxtral's word error
rate, which nobody has measured in 8 bits.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support" / "engine_vllm")]

EIGHT, LARGEST = torch.float8_e4m3fn, 448.0
POSITIONS, DELAY = 400, 6
"""Positions of a chunk of 32 s with its padding, and tokens of the model's own delay (480 ms)."""
FRAMES_PER_TOKEN = 8
DECODER, ENCODER, KV = "decoder", "encoder", "kv"
PARTS = ((), (ENCODER,), (DECODER,), (KV,), (DECODER, ENCODER), (DECODER, ENCODER, KV))


def rounded(x: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    """Return x, rounded to multiples of `scale` by e4m3's numbers, in float32."""
    return (x.float() / scale).clamp(-LARGEST, LARGEST).to(EIGHT).float() * scale


def by_row(x: torch.Tensor) -> torch.Tensor:
    """Return x with each row rounded by its own scale, in float32."""
    return rounded(x, x.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST)


def in_bfloat16(model: Any) -> Any:
    """Convert the weights to bfloat16, and return the model. The rotary embedding's angles stay in float32."""
    for weight in model.parameters():
        weight.data = weight.data.bfloat16()
    return model


def round_products(tower: torch.nn.Module) -> None:
    """Let all linear layers of the tower multiply in emulated 8 bits."""
    for module in tower.modules():
        if isinstance(module, torch.nn.Linear):
            _round_product(module, by_row(module.weight.detach()))


def _round_product(module: torch.nn.Linear, weight: torch.Tensor) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        bias = None if module.bias is None else module.bias.float()
        return torch.nn.functional.linear(by_row(x), weight, bias).to(x.dtype)

    module.forward = forward


# -- Voxtral -----------------------------------------------------------------------------------------------------------


def voxtral(seed: int) -> Any:
    """Return a model in float32 with random weights."""
    from transformers import VoxtralRealtimeConfig, VoxtralRealtimeForConditionalGeneration

    size = {"num_hidden_layers": 12, "head_dim": 64, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    audio = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "sliding_window": 750}
    text = {"hidden_size": 768, "intermediate_size": 2304, "num_attention_heads": 8, "num_key_value_heads": 2}
    config = VoxtralRealtimeConfig(
        audio_config={**size, **rope, **audio, "num_mel_bins": 128, "vocab_size": 8192},
        text_config={**size, **rope, **text, "sliding_window": 8192, "vocab_size": 8192, "tie_word_embeddings": True},
        default_num_delay_tokens=DELAY,
    )
    torch.manual_seed(seed)
    model = VoxtralRealtimeForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1 and name.endswith("weight"):
                weight.copy_(torch.exp(0.3 * torch.randn_like(weight)))  # channels of different size
            elif weight.ndim > 1:
                weight.normal_(std=_gain(name) / weight[0].numel() ** 0.5)
        model.model.language_model.norm.weight.mul_(3)  # so that one token is clearly the likeliest, as in speech
    return model


def _gain(name: str) -> float:
    """Return the gain of a matrix.

    Queries and keys: at 1 attention is near the mean of all positions, so that order hardly matters. Outputs of layers:
    at 1 each layer would replace most of what the ones before it said, and any rounding would change all tokens.
    """
    if "q_proj" in name or "k_proj" in name:
        return 1.2
    return 0.3 if "o_proj" in name or "down_proj" in name else 1.0


def logits(model: Any, features: torch.Tensor, ids: torch.Tensor, in_8_bits: bool) -> torch.Tensor:
    """Return the logits at each position, [positions, vocabulary], float32.

    Args:
        in_8_bits: round the decoder's keys and values.
    """
    from transformers import DynamicCache

    class Rounding(DynamicCache):
        def update(self, key_states: Any, value_states: Any, *others: Any, **named: Any) -> Any:
            kept = (rounded(each, 1.0).to(each.dtype) for each in (key_states, value_states))
            return super().update(*kept, *others, **named)

    with torch.inference_mode():
        found: torch.Tensor = model(
            input_ids=ids, input_features=features.to(model.dtype), num_delay_tokens=DELAY,
            past_key_values=Rounding() if in_8_bits else DynamicCache(),
        ).logits  # fmt: skip
    return found[0].float()


def voxtral_lines(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield the errors of each configuration, over all seeds."""
    from transformers import VoxtralRealtimeFeatureExtractor

    divergences: dict[tuple[str, ...], list[torch.Tensor]] = {parts: [] for parts in PARTS}
    equal: dict[tuple[str, ...], list[torch.Tensor]] = {parts: [] for parts in PARTS}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        loudness = np.interp(np.arange(POSITIONS * 1280), np.arange(0, POSITIONS * 1280, 4_000), rng.random(128))
        audio = (rng.standard_normal(POSITIONS * 1280) * loudness * 0.2).astype(np.float32)
        features = VoxtralRealtimeFeatureExtractor()(audio, sampling_rate=16_000, return_tensors="pt").input_features
        features = features[..., : FRAMES_PER_TOKEN * POSITIONS]
        ids = torch.from_numpy(rng.integers(1000, 8192, (1, POSITIONS)))
        exact = logits(voxtral(seed), features, ids, False).log_softmax(-1)
        for parts in PARTS:
            model = in_bfloat16(voxtral(seed))
            if ENCODER in parts:
                round_products(model.model.audio_tower)
            if DECODER in parts:
                round_products(model.model.language_model.layers)
            found = logits(model, features, ids, KV in parts).log_softmax(-1)
            divergences[parts].append((exact.exp() * (exact - found)).sum(-1))
            equal[parts].append(exact.argmax(-1) == found.argmax(-1))
    for parts in PARTS:
        kl, same = torch.cat(divergences[parts]), torch.cat(equal[parts])
        yield {
            "what": "voxtral", "fp8": ",".join(parts), "positions": len(kl), "kl_mean": round(float(kl.mean()), 5),
            "kl_p99": round(float(kl.quantile(0.99)), 5), "equal_tokens": round(float(same.float().mean()), 4),
        }  # fmt: skip


# -- Whisper -----------------------------------------------------------------------------------------------------------


def whisper_lines(speech: Path, every: int) -> Iterator[dict[str, Any]]:
    """Yield the word error rate of each configuration over every `every`-th recording."""
    import whisper_tiny
    from transformers import AutoProcessor, WhisperForConditionalGeneration

    from voxbatch.scoring import count_errors

    folder = whisper_tiny.whisper_tiny(whisper_tiny.default_cache())
    processor = AutoProcessor.from_pretrained(folder)
    rows = [json.loads(line) for line in (speech / "manifest.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row.get("text") and row["duration"] <= 30][::every]
    audio = [_samples(speech / row["audio_filepath"]) for row in rows]
    first: list[str] = []
    for parts in (None, *(parts for parts in PARTS if KV not in parts)):
        model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        if parts is not None:
            in_bfloat16(model)
            if ENCODER in parts:
                round_products(model.model.encoder)
            if DECODER in parts:
                round_products(model.model.decoder)
        began = time.monotonic()
        texts = [_text(model, processor, each, row["lang"]) for each, row in zip(audio, rows, strict=True)]
        first = first or texts
        counts = [count_errors(row["text"], text, row["lang"]) for row, text in zip(rows, texts, strict=True)]
        errors, words = sum(each.errors for each in counts), sum(each.reference_length for each in counts)
        yield {
            "what": "whisper", "numbers": "float32" if parts is None else "bfloat16", "fp8": ",".join(parts or ()),
            "recordings": len(rows), "minutes": round(sum(map(len, audio)) / 960_000, 1), "words": words,
            "errors": errors, "wer": round(100 * errors / words, 2),
            "equal_texts": round(float(np.mean([a == b for a, b in zip(first, texts, strict=True)])), 3),
            "seconds": round(time.monotonic() - began),
        }  # fmt: skip


def _samples(path: Path) -> np.ndarray:
    from voxbatch.audio import decode
    from voxbatch.storage import open_recording

    with closing(open_recording(str(path))) as recording:
        return np.concatenate([block.samples for block in decode(recording, str(path))])


def _text(model: Any, processor: Any, samples: np.ndarray, language: str) -> str:
    features = processor(samples, sampling_rate=16_000, return_tensors="pt").input_features.to(model.dtype)
    with torch.inference_mode():
        tokens = model.generate(
            features, language=language, task="transcribe", return_timestamps=False, do_sample=False, num_beams=1
        )
    found: str = processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)[0]
    return found.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    models = parser.add_subparsers(dest="model", required=True)
    models.add_parser("voxtral").add_argument("--seeds", type=int, default=4)
    of_whisper = models.add_parser("whisper")
    of_whisper.add_argument("speech", type=Path, metavar="SPEECH_DIR")
    of_whisper.add_argument("--every", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = voxtral_lines(given.seeds) if given.model == "voxtral" else whisper_lines(given.speech, given.every)
    for line in lines:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
