#!/usr/bin/env bash
# Good guess: libsndfile reads Wave64 with A-law as it reads WAV with A-law.
# What happens: with WAVE_FORMAT_EXTENSIBLE, as ffmpeg writes three channels or more, libsndfile 1.2.2 takes the bytes of
#   A-law for integers of 8 bits, without an error: same rate, same length, other samples. WAV with the same header is right.
# Date: 2026-11-29. Source: found by running soundfile==0.13.1 imageio-ffmpeg==0.6.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile soundfile==0.13.1 imageio-ffmpeg==0.6.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import subprocess
import sys

import imageio_ffmpeg
import numpy as np
import soundfile

print("versions:", {"soundfile": soundfile.__version__, "libsndfile": soundfile.__libsndfile_version__})
ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-loglevel", "error", "-y"]
tone = ["-f", "lavfi", "-i", "sine=440:d=1:r=8000"]
for name in ("a.wav", "a.w64"):
    subprocess.run([*ffmpeg, *tone, "-ac", "6", "-c:a", "pcm_alaw", name], check=True)
wav, w64 = (soundfile.read(name)[0] for name in ("a.wav", "a.w64"))
level = {name: round(float(samples.std()), 3) for name, samples in (("WAV", wav), ("Wave64", w64))}
print("shapes:", wav.shape, w64.shape, "levels:", level, "largest difference:", round(float(np.abs(wav - w64).max()), 3))
same = wav.shape == w64.shape and np.abs(wav - w64).max() > 0.1

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
