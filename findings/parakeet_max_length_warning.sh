#!/usr/bin/env bash
# Good guess: generate without max_length is how the class is meant to be used, so it warns of nothing.
# What happens: ParakeetForTDT.generate and ParakeetForRNNT.generate warn of the "model-agnostic default `max_length`" and
#   tell the user to set max_new_tokens, although the class has just set max_length itself from the number of
#   frames (frames * max_symbols_per_step). Following the advice replaces the right limit by a guess.
# Date: 2026-11-28. Source: found by running transformers 5.19.0, torch 2.13.0 (CPU), librosa 0.11.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.19.0 torch==2.13.0 librosa==0.11.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON' || exit 1
import logging
import sys
import warnings

from importlib.metadata import version

print("versions:", {name: version(name) for name in ('transformers', 'torch')})

import torch
from transformers import ParakeetForRNNT, ParakeetForTDT, ParakeetRNNTConfig, ParakeetTDTConfig


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


class Keep(logging.Handler):
    def emit(self, record):
        messages.append(record.getMessage())


messages = []
logging.getLogger("transformers").addHandler(Keep())
features = torch.randn(1, 64, 80, generator=torch.Generator().manual_seed(0))  # 8 frames of the encoder
mask = torch.ones(1, 64, dtype=torch.bool)
found = []
for cls, config_class in ((ParakeetForTDT, ParakeetTDTConfig), (ParakeetForRNNT, ParakeetRNNTConfig)):
    messages.clear()
    model = tiny(cls, config_class, blank_bias=50.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output = model.generate(input_features=features, attention_mask=mask)
    texts = messages + [str(warning.message) for warning in caught]
    found.append([text for text in texts if "model-agnostic default `max_length`" in text])
    print(f"{cls.__name__}: {output.sequences.shape[1] - 1} steps, warnings: {found[-1]}")
same = all(found)

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
