#!/usr/bin/env bash
# Good guess: CallbackResampler.read(n) gives up to n samples, and fewer at the end of the input, all of them right.
# What happens: the samples of a read that the input fills are right. In the last read, which it does not fill, the first
#   eight samples are other bytes of the memory, up to 1e16 instead of 0.5. With any block size; the length is right.
# Date: 2026-11-29. Source: found by running samplerate==0.2.4 numpy==2.4.6.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile samplerate==0.2.4 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import version

import numpy as np
import samplerate

print("versions:", {name: version(name) for name in ("samplerate", "numpy")})
RATIO = 1 / 3  # 48 kHz to 16 kHz
tone = (0.5 * np.sin(2 * np.pi * 440 * np.arange(480_000) / 48_000)).astype(np.float32)
expected = samplerate.resample(tone, RATIO, "sinc_fastest")


def wrong_places(read_samples):
    blocks = iter([tone[begin : begin + 4800] for begin in range(0, len(tone), 4800)])
    outputs = []
    with samplerate.CallbackResampler(lambda: next(blocks, None), RATIO, "sinc_fastest") as resampler:
        while len(output := resampler.read(read_samples)):
            outputs.append(output.copy())
    samples, last_read = np.concatenate(outputs), len(tone) // 3 - len(outputs[-1])
    assert len(samples) == len(expected)
    places = np.nonzero(~(np.abs(samples - expected) < 0.001))[0]
    print(f"reads of {read_samples}: the last begins at {last_read}; wrong: {places.tolist()}; peak: {np.nanmax(np.abs(samples)):.1e}")
    return places - last_read


full, partial, whole = wrong_places(1600), wrong_places(1500), wrong_places(200_000)
same = len(full) == 0 and all(len(places) and 0 <= places.min() and places.max() < 8 for places in (partial, whole))

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
