#!/usr/bin/env bash
# Good guess: the tokenizer's decode and batch_decode give the text of the ids, and the processor's batch_decode is the same.
# What happens: ParakeetTokenizer.decode and batch_decode merge equal neighbours, as CTC needs, by default and also for the
#   ids of a transducer (RNN-T, TDT), which has no repeats to merge: "very very" becomes "very". Only
#   group_tokens=False keeps them. ParakeetProcessor.batch_decode passes that by itself: it keeps them.
# Date: 2026-11-28. Source: found by running transformers 5.19.0, torch 2.13.0 (CPU), tokenizers 0.23.3.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.19.0 torch==2.13.0 librosa==0.11.0 numpy==2.4.6 tokenizers==0.23.3
"$folder/venv/bin/python" - "$folder" <<'PYTHON' || exit 1
import sys

from importlib.metadata import version

print("versions:", {name: version(name) for name in ('transformers', 'tokenizers')})

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import ParakeetFeatureExtractor, ParakeetProcessor, ParakeetTokenizer

PIECES = ["<unk>", "<pad>", "▁", "▁very", "▁good", "▁no", "o", "▁1", "0"]
unigram = Tokenizer(models.Unigram([(piece, -1.0) for piece in PIECES], unk_id=0, byte_fallback=False))
unigram.pre_tokenizer = pre_tokenizers.Metaspace()
unigram.decoder = decoders.Metaspace()
tokenizer = ParakeetTokenizer(tokenizer_object=unigram, unk_token="<unk>", pad_token="<pad>")
processor = ParakeetProcessor(ParakeetFeatureExtractor(), tokenizer, blank_token="<blank>", decoder_type="tdt")
ids = [[PIECES.index(piece) for piece in ("▁very", "▁very", "▁good", "▁1", "0", "0")]]
merged = tokenizer.batch_decode(ids)
single = tokenizer.decode(ids[0])
kept = tokenizer.batch_decode(ids, group_tokens=False)
whole = processor.batch_decode(ids)
print("tokenizer.batch_decode:                    ", merged)
print("tokenizer.decode:                          ", single)
print("tokenizer.batch_decode, group_tokens=False:", kept)
print("processor.batch_decode:                    ", whole)
same = merged == [single] == ["very good 10"] and kept == whole == ["very very good 100"]

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
