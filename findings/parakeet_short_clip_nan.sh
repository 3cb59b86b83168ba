#!/usr/bin/env bash
# Good guess: a very short clip gives one frame of features, and a short clip in a batch changes no other clip.
# What happens: ParakeetFeatureExtractor gives NaN for all features of a clip below 320 samples (20 ms), its padding as well,
#   without a warning: it divides the variance by N - 1 frames (for less than 160 samples also the mean by 0).
#   In a batch, the row of the short clip is NaN over the whole length; the other rows are not.
# Date: 2026-11-28. Source: found by running transformers 5.19.0, torch 2.13.0 (CPU), librosa 0.11.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.19.0 torch==2.13.0 librosa==0.11.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON' || exit 1
import sys
import warnings

from importlib.metadata import version

print("versions:", {name: version(name) for name in ('transformers', 'torch', 'librosa')})

import numpy as np
import torch
from transformers import ParakeetFeatureExtractor

warnings.simplefilter("error")
extractor = ParakeetFeatureExtractor()
random = np.random.default_rng(0)
found = {}
for length in (159, 160, 319, 320, 480, 16_000):
    clip = random.normal(0, 0.1, length).astype(np.float32)
    output = extractor([clip], sampling_rate=16_000, return_tensors="pt")
    nan = output["input_features"].isnan()
    found[length] = bool(nan.all()), bool(nan.any())
    print(f"{length} samples: {int(output['attention_mask'].sum())} frame(s), all NaN {found[length][0]}, any {found[length][1]}")
clips = [random.normal(0, 0.1, length).astype(np.float32) for length in (319, 16_000)]
rows = extractor(clips, sampling_rate=16_000, return_tensors="pt")["input_features"].isnan()
batch = [bool(row.all()) for row in rows], [bool(row.any()) for row in rows]
print(f"batch of 319 and 16000 samples: rows all NaN {batch[0]}, any NaN {batch[1]}")
same = all(found[length] == (True, True) for length in (159, 160, 319))
same = same and all(found[length] == (False, False) for length in (320, 480, 16_000))
same = same and batch == ([True, False], [True, False])

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
