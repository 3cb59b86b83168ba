#!/usr/bin/env bash
# Good guess: max_symbols_per_step=10 of the configuration limits the tokens at one frame, as for ParakeetForRNNT and in NeMo.
# What happens: ParakeetForTDT.generate has no such limit. A joint network that prefers duration 0 emits tokens at frame 0
#   until the greatest length, and never looks at the next frame; ParakeetForRNNT moves on after 10 tokens.
# Date: 2026-11-28. Source: found by running transformers 5.19.0, torch 2.13.0 (CPU), librosa 0.11.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.19.0 torch==2.13.0 librosa==0.11.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON' || exit 1
import logging
import sys

from importlib.metadata import version

print("versions:", {name: version(name) for name in ('transformers', 'torch')})

import torch
from transformers import ParakeetForRNNT, ParakeetForTDT, ParakeetRNNTConfig, ParakeetTDTConfig

logging.getLogger("transformers").setLevel(logging.ERROR)


def tiny(cls, config_class, blank_bias, token_bias=0.0, **more):
    """Return a random model, whose joint network has biases for the blank, the first token and the durations."""
    torch.manual_seed(0)
    config = config_class(
        vocab_size=9,
        blank_token_id=8,
        pad_token_id=2,
        decoder_hidden_size=16,
        max_symbols_per_step=10,
        encoder_config={
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "subsampling_conv_channels": 4,
        },
    )
    model = cls(config).eval()
    model.generation_config.decoder_start_token_id = 8  # the blank
    model.generation_config.suppress_tokens = list(range(9, model.joint.head.bias.numel())) or None  # durations
    bias = model.joint.head.bias.data
    bias.zero_()
    bias[8], bias[5] = blank_bias, token_bias
    for duration, value in more.items():
        bias[9 + int(duration.removeprefix("duration"))] = value
    return model


features = torch.randn(1, 64, 80, generator=torch.Generator().manual_seed(0))  # 8 frames of the encoder
mask = torch.ones(1, 64, dtype=torch.bool)
found = {}
for cls, config_class, biases in (
    (ParakeetForTDT, ParakeetTDTConfig, {"duration0": 50.0}),
    (ParakeetForRNNT, ParakeetRNNTConfig, {}),
):
    model = tiny(cls, config_class, blank_bias=-50.0, token_bias=50.0, **biases)
    output = model.generate(input_features=features, attention_mask=mask, max_new_tokens=60)
    found[cls] = output.durations[0, 1:].tolist()
    tokens = output.sequences.shape[1] - 1
    print(f"{cls.__name__}: max_symbols_per_step {model.config.max_symbols_per_step}, {tokens} tokens")
    print("  frames moved on after each token:", found[cls])
same = found[ParakeetForTDT] == [0] * 60 and found[ParakeetForRNNT] == ([0] * 9 + [1]) * 6

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
