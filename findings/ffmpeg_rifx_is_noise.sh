#!/usr/bin/env bash
# Good guess: ffmpeg reads RIFX, WAV with numbers in big-endian order, since it opens it and names its rate and channels.
# What happens: ffmpeg 7.0.2 reads the header in big-endian order and the samples in little-endian order: noise, with exit
#   code 0 and no message. libsndfile reads them right.
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

print("versions:", {"soundfile": soundfile.__version__, "ffmpeg": imageio_ffmpeg.get_ffmpeg_version()})
tone = (0.3 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)).astype(np.float32)
soundfile.write("a.wav", tone, 16000, subtype="PCM_16", endian="BIG")
print("first bytes:", open("a.wav", "rb").read(4))
command = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-loglevel", "error", "-i", "a.wav", "-f", "f32le", "-"]
done = subprocess.run(command, capture_output=True)
by_ffmpeg, by_libsndfile = np.frombuffer(done.stdout, np.float32), soundfile.read("a.wav", dtype="float32")[0]
size = min(len(by_ffmpeg), len(tone))
likeness = [round(float(np.corrcoef(samples[:size], tone[:size])[0, 1]), 3) for samples in (by_ffmpeg, by_libsndfile)]
print("exit code:", done.returncode, "messages:", done.stderr, "correlation of ffmpeg, libsndfile:", likeness)
same = done.returncode == 0 and not done.stderr and likeness[0] < 0.5 and likeness[1] > 0.99

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
