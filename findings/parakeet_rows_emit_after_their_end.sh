#!/usr/bin/env bash
# Guess: generate pads the row of a clip that has ended while a longer clip of the batch goes on.
# What happens: the row goes on emitting tokens and durations beyond its last frame; they have to be cut off by the running
# sum of the durations.
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

made = model("RNNT")
with torch.no_grad():
    made.joint.head.weight.zero_(); made.joint.head.bias.zero_(); made.joint.head.bias[3] = 9.0
mask = torch.zeros(2, 160, dtype=torch.long); mask[0, :16] = 1; mask[1] = 1
output = made.generate(torch.randn(2, 160, 16), attention_mask=mask, max_new_tokens=200)
frames = made._get_subsampling_output_length(mask.sum(-1)).tolist()
tokens = (output.sequences[:, 1:] == 3).sum(-1).tolist()
print("transformers", transformers.__version__, "frames", frames, "tokens", tokens, "of at most", [10 * count for count in frames])
if not tokens[0] > 10 * frames[0]:
    raise SystemExit("changed: the short row ends")
PYTHON
