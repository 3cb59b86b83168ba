#!/usr/bin/env bash
# Guess: the tokenizer of a transducer decodes two equal tokens as two words: repeats mean something only with CTC.
# What happens: tokenizer.batch_decode and tokenizer.decode of transformers merge equal neighbours unless group_tokens is
# False, whatever the model is, so that "very very" becomes "very".
# Found by running transformers 5.19.0 on 2026-11-28.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 numpy==2.3.5 tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
import tempfile, transformers
from tokenizers import Tokenizer, decoders, models
made = Tokenizer(models.Unigram([(piece, 0.0) for piece in ("<unk>", "▁very", "▁good", "<pad>")], unk_id=0))
made.decoder = decoders.Metaspace()
with tempfile.NamedTemporaryFile(suffix=".json") as file:
    made.save(file.name)
    tokenizer = transformers.ParakeetTokenizer(tokenizer_file=file.name, pad_token="<pad>", unk_token="<unk>")
merged, kept = tokenizer.batch_decode([[1, 1, 2]])[0], tokenizer.decode([1, 1, 2], group_tokens=False)
print("transformers", transformers.__version__, repr(merged), repr(kept))
if (merged.split(), kept.split()) != (["very", "good"], ["very", "very", "good"]):
    raise SystemExit("changed")
PYTHON
