#!/usr/bin/env bash
# Guess: generate of a Parakeet transducer, which derives the largest length from the encoder, says nothing about lengths.
# What happens: it warns of a "model-agnostic default" of max_length, although the number is its own, because the flag that
# should prevent the warning is set in a local variable.
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

said = []
class Heard(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("transformers").addHandler(Heard())
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model("TDT").generate(torch.randn(1, 64, 16), attention_mask=torch.ones(1, 64, dtype=torch.long))
texts = [text for text in [*said, *(str(entry.message) for entry in caught)] if "max_length" in text]
print("transformers", transformers.__version__, [text[:130] for text in texts])
if not any("model-agnostic" in text for text in texts):
    raise SystemExit("changed: no warning")
PYTHON
