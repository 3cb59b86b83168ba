#!/usr/bin/env bash
# Good guess: ffmpeg decodes ALAC in CAF, which is lossless, to the samples that libsndfile wrote.
# What happens: up to 2047 samples of the end are missing, 0.13 s at 16 kHz, with exit code 0: whenever more than half of the
#   last packet of 4096 is filled, its empty rest is cut off a second time. The same ALAC in M4A is whole, and so is the
#   CAF with "-flags2 skip_manual".
# Date: 2026-11-29. Source: found by running soundfile==0.14.0 imageio-ffmpeg==0.8.1 numpy==2.4.6.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile soundfile==0.14.0 imageio-ffmpeg==0.8.1 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import subprocess
import sys

import imageio_ffmpeg
import numpy as np
import soundfile

PACKET = 4096
program = imageio_ffmpeg.get_ffmpeg_exe()
print("versions:", soundfile.__libsndfile_version__, subprocess.check_output([program, "-version"], text=True).splitlines()[0])
ffmpeg = [program, "-nostdin", "-loglevel", "error", "-y"]


def decoded(*arguments):
    return np.frombuffer(subprocess.check_output([*ffmpeg, *arguments, "-f", "s16le", "-"]), np.int16)


same = True
for in_last_packet in (40, 2000, 2060, 3000, 4000):
    written = (np.arange(10 * PACKET + in_last_packet) % 30_000).astype(np.int16)
    soundfile.write("a.caf", written, 16_000, format="CAF", subtype="ALAC_16")
    caf, unskipped = decoded("-i", "a.caf"), decoded("-flags2", "skip_manual", "-i", "a.caf")
    subprocess.run([*ffmpeg, "-flags2", "skip_manual", "-i", "a.caf", "-c:a", "alac", "a.m4a"], check=True)
    m4a = decoded("-i", "a.m4a")
    missing = len(written) - len(caf)
    print(f"{in_last_packet} samples in the last packet: {missing} missing from CAF, {len(written) - len(m4a)} from M4A")
    same &= np.array_equal(caf, written[: len(caf)]) and np.array_equal(unskipped, written) and np.array_equal(m4a, written)
    same &= np.array_equal(soundfile.read("a.caf", dtype="int16")[0], written)
    same &= missing == (PACKET - in_last_packet if in_last_packet > PACKET // 2 else 0)

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
