#!/usr/bin/env bash
# Guess: the features of a clip of 15 ms are numbers, or an error.
# What happens: all of them are NaN, without a word, because the variance is divided by the number of frames less one. In
# a batch the row goes on to the end of the longest clip.
# Found by running transformers 5.19.0 on 2026-11-28.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 numpy==2.3.5 librosa==0.11.0
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np, transformers
extractor = transformers.ParakeetFeatureExtractor(feature_size=80)
share = {}
for samples in (240, 319, 320, 1600):
    clip = np.sin(np.arange(samples) / 9).astype(np.float32)
    features = extractor([clip], sampling_rate=16_000, return_tensors="np")["input_features"]
    share[samples] = float(np.isnan(features).mean())
print("transformers", transformers.__version__, "share of NaN by samples:", share)
if [value == 1.0 for value in share.values()] != [True, True, False, False]:
    raise SystemExit("changed")
PYTHON
