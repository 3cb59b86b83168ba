#!/usr/bin/env bash
# Good guess: with the attention mask of the feature extractor, a clip has the same text in a batch as alone, up to rounding.
# What happens: MoonshineForConditionalGeneration normalises the frames of its first convolution by their mean and variance
#   over all channels and the whole length (GroupNorm with one group), padding included. So all frames of a clip beside a
#   longer one differ from those of the clip alone, and so do its tokens. The mask is only applied later, in the attention.
# Date: 2026-11-29. Source: found by running transformers 5.19.0, torch 2.13.0 (CPU).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.19.0 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON' || exit 1
import sys

from importlib.metadata import version

print("versions:", {name: version(name) for name in ("transformers", "torch")})

import numpy as np
import torch
from transformers import MoonshineConfig, MoonshineForConditionalGeneration, Wav2Vec2FeatureExtractor, logging

logging.set_verbosity_error()
torch.set_num_threads(1)
torch.manual_seed(0)
config = MoonshineConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    encoder_num_hidden_layers=2,
    decoder_num_hidden_layers=2,
    encoder_num_attention_heads=2,
    decoder_num_attention_heads=2,
    initializer_range=0.5,
)
model = MoonshineForConditionalGeneration(config).eval()
extractor = Wav2Vec2FeatureExtractor(return_attention_mask=True, do_normalize=False)
random = np.random.default_rng(0)
clips = [random.normal(0, 0.1, seconds * 16_000).astype(np.float32) for seconds in (2, 2, 10)]


def texts_and_frames(batch):
    """Return the tokens and the encoder's frames of the first clip of a batch."""
    inputs = extractor(batch, sampling_rate=16_000, padding=True, return_tensors="pt")
    with torch.no_grad():
        frames = model.model.encoder(**inputs).last_hidden_state[0]
        tokens = model.generate(**inputs, max_new_tokens=12)[0].tolist()
    return frames, tokens


alone, tokens = texts_and_frames(clips[:1])
differences, others = {}, {}
for name, company in (("of the same length", clips[:2]), ("longer", [clips[0], clips[2]])):
    frames, others[name] = texts_and_frames(company)
    differences[name] = (frames[: len(alone)] - alone).abs().amax(dim=1)
    changed = int((differences[name] > 1e-3).sum())
    print(f"beside a clip {name}: {changed} of {len(alone)} frames differ, by up to {differences[name].max():.1e}")
    print(f"  tokens equal: {others[name] == tokens}")
print(f"size of the frames: {alone.abs().max():.1f}")
same = bool((differences["of the same length"] < 1e-4).all() and (differences["longer"] > 1e-3).all())
same = same and others["of the same length"] == tokens != others["longer"]

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
