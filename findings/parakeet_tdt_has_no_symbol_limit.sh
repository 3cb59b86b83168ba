#!/usr/bin/env bash
# Guess: max_symbols_per_step of the configuration limits the tokens at one frame for RNN-T and for TDT, as in NeMo.
# What happens: transformers heeds it for RNN-T alone. A TDT that predicts a duration of 0 stays at its first frame until
# the largest number of new tokens.
# Found by running transformers 5.19.0 on 2026-11-28.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 numpy==2.3.5
"$folder/venv/bin/python" - <<'PYTHON'
import torch, transformers, warnings, logging
torch.manual_seed(0)
encoder = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, num_mel_bins=16, subsampling_conv_channels=8)
def model(kind):
    config = getattr(transformers, f"Parakeet{kind}Config")(vocab_size=9, decoder_hidden_size=16, encoder_config=dict(encoder), blank_token_id=8, pad_token_id=0)
    made = getattr(transformers, f"ParakeetFor{kind}")(config).eval()
    made.generation_config.decoder_start_token_id = 8
    if kind == "TDT":
        made.generation_config.suppress_tokens = [9, 10, 11, 12, 13]
    return made

features, moves = torch.randn(1, 64, 16), {}
for kind in ("RNNT", "TDT"):
    made = model(kind)
    with torch.no_grad():
        made.joint.head.weight.zero_(); made.joint.head.bias.zero_()
        made.joint.head.bias[3] = 9.0
        if kind == "TDT":
            made.joint.head.bias[9] = 9.0
    output = made.generate(features, attention_mask=torch.ones(1, 64, dtype=torch.long), max_new_tokens=60)
    moves[kind] = int(output.durations.sum())
print("transformers", transformers.__version__, "frames moved in 60 tokens:", moves, "limit", made.config.max_symbols_per_step)
if moves != {"RNNT": 6, "TDT": 0}:
    raise SystemExit("changed")
PYTHON
