#!/usr/bin/env bash
# Good guess: models with layer norm in their convolutions take an attention mask, with which padding changes no clip. So it
#   is for Wav2Vec2, Hubert and WavLM.
# What happens: in Wav2Vec2Conformer and Data2VecAudio padding changes the last frames of a clip, by a third of their size and
#   more. Each depthwise convolution of the first reads 15 frames beyond the end, which the feed-forward layer before it has
#   filled. The second applies five convolutions for positions with a norm after each, and masks the padding only before
#   the first. Each further layer and its attention carry this on to all frames.
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
import transformers
from transformers import Wav2Vec2FeatureExtractor

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "conv_dim": (16,) * 7,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
}
extractor = Wav2Vec2FeatureExtractor(return_attention_mask=True)
random = np.random.default_rng(0)
clips = [random.normal(0, 0.1, seconds * 16_000).astype(np.float32) for seconds in (2, 6)]
differences = {}
for name in ("Wav2Vec2", "Hubert", "WavLM", "Data2VecAudio", "Wav2Vec2Conformer"):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**TINY)
    model = getattr(transformers, f"{name}Model")(config).eval()
    frames = []
    for batch in (clips[:1], clips):
        inputs = extractor(batch, sampling_rate=16_000, padding=True, return_tensors="pt")
        with torch.no_grad():
            frames.append(model(**inputs).last_hidden_state[0])
    difference = (frames[1][: len(frames[0])] - frames[0]).abs().amax(dim=1)
    differences[name] = difference
    changed = int((difference > 1e-3).sum())
    print(f"{name}: {changed} of {len(difference)} frames differ, by up to {difference.max():.1e} of {frames[0].abs().max():.1f}")
same = all((differences[name] < 1e-4).all() for name in ("Wav2Vec2", "Hubert", "WavLM"))
same = same and all((differences[name][-5:] > 1e-2).all() for name in ("Data2VecAudio", "Wav2Vec2Conformer"))

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
