#!/usr/bin/env bash
# Good guess: `input_features_mask`, which the processor of Granite Speech makes for a batch, keeps the padding of a clip from
#   its embeddings, so that these are those of the clip alone, up to rounding.
# What happens: the mask only chooses the embeddings afterwards. `get_audio_features` runs the encoder and the projector over
#   the padding as if it were sound. Beside a longer clip, all embeddings of a clip differ, by up to half of their size, and
#   its tokens, too. vLLM 0.32.0 does the same with all recordings of a step (granite_speech.py: _process_audio_input).
# Date: 2026-11-30. Source: found by running transformers 5.19.0, torch 2.13.0 (CPU).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.19.0 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys

from importlib.metadata import version

print("versions:", {name: version(name) for name in ("transformers", "torch")})

import torch
from transformers import GraniteSpeechConfig, GraniteSpeechForConditionalGeneration, logging

logging.set_verbosity_error()
torch.set_num_threads(1)
torch.manual_seed(1)
layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 64}
config = GraniteSpeechConfig(
    encoder_config={"num_layers": 2, "hidden_dim": 32, "num_heads": 2, "output_dim": 8},
    projector_config={**layers, "encoder_hidden_size": 32, "model_type": "blip_2_qformer"},
    text_config={**layers, "num_key_value_heads": 1, "vocab_size": 64, "eos_token_id": 0, "bos_token_id": 0},
    audio_token_index=1,
    has_lora_adapter=False,
)
model = GraniteSpeechForConditionalGeneration(config).eval()
for weight in model.parameters():
    if weight.ndim > 1:
        torch.nn.init.normal_(weight, std=0.4)  # with the usual 0.02 all embeddings would be alike
clip, equal, longer = torch.randn(90, 160), torch.randn(90, 160), torch.randn(600, 160)
EMBEDDINGS = 18
"""Three for each window of 15 frames."""


def embeddings_and_tokens(*clips):
    """Return the embeddings of the first clip of a batch, and its tokens. Shorter clips are padded with zeros."""
    features = torch.nn.utils.rnn.pad_sequence(clips, batch_first=True)
    with torch.no_grad():
        embeddings = model.get_audio_features(features).pooler_output[0, :EMBEDDINGS]
        prompt = model.get_input_embeddings()(torch.tensor([[2]]))
        tokens = model.generate(
            inputs_embeds=torch.cat((embeddings[None], prompt), dim=1), max_new_tokens=24, do_sample=False
        )
    return embeddings, tokens[0].tolist()


alone, tokens = embeddings_and_tokens(clip)
differences, others = {}, {}
for name, company in (("of the same length", equal), ("longer", longer)):
    embeddings, others[name] = embeddings_and_tokens(clip, company)
    differences[name] = (embeddings - alone).abs().amax(dim=1)
    changed = int((differences[name] > 1e-3).sum())
    print(f"beside a clip {name}: {changed} of {EMBEDDINGS} embeddings differ, by up to {differences[name].max():.1e}")
    print(f"  tokens equal: {others[name] == tokens}")
print(f"size of the embeddings: {alone.abs().max():.1f}")
same = differences["of the same length"].max() < 1e-3 and (differences["longer"] > 1e-2).float().mean() > 0.5
same = same and others["of the same length"] == tokens != others["longer"]

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
