#!/usr/bin/env bash
# Good guess: a row of a batch ends at the end of its own clip, and is padded from there: its tokens are those of the clip alone.
# What happens: a row of ParakeetForTDT.generate goes on emitting tokens, which are not pad or blank, after the end of its
#   frames until the longest clip of the batch ends. The sequence has to be cut at the row's own number of frames,
#   by the cumulative durations.
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
from transformers import ParakeetForTDT, ParakeetTDTConfig

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


# Two clips of 64 and 16 feature frames: 8 and 2 frames of the encoder. Each token lasts one frame.
features = torch.randn(2, 64, 80, generator=torch.Generator().manual_seed(0))
mask = torch.ones(2, 64, dtype=torch.bool)
mask[1, 16:] = False
features[1, 16:] = 0
model = tiny(ParakeetForTDT, ParakeetTDTConfig, blank_bias=-50.0, token_bias=50.0, duration1=50.0)


def written(output, row):
    special = (model.config.pad_token_id, model.config.blank_token_id)
    return [token for token in output.sequences[row, 1:].tolist() if token not in special]


alone = model.generate(input_features=features[1:, :16], attention_mask=mask[1:, :16])
batch = model.generate(input_features=features, attention_mask=mask)
print("short clip alone:     ", written(alone, 0))
print("short clip in a batch:", written(batch, 1), "durations", batch.durations[1].tolist())
starts = batch.durations[1].cumsum(0)[:-1]
cut = [token for token, start in zip(batch.sequences[1, 1:].tolist(), starts.tolist()) if start < 2]
print("cut at its 2 frames:  ", cut)
same = written(alone, 0) == [5, 5] == cut and written(batch, 1) == [5] * 8

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
