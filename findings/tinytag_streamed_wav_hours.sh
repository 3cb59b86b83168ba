#!/usr/bin/env bash
# Good guess: tinytag measures the data of a WAV file that a program wrote into a pipe: its sizes are 0xFFFFFFFF, as
#   ffmpeg and SoX write them, which libsndfile takes for "up to the end of the file"; or it gives no duration.
# What happens: the size is taken as it stands. Two minutes of speech at 16 kHz are 134,217.7 s, 37 hours, without an error.
# Date: 2026-11-29. Source: found by running tinytag==2.3.2.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile tinytag==2.3.2 soundfile==0.14.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import struct
import sys
from importlib.metadata import version
from pathlib import Path

import soundfile
from tinytag import TinyTag

print("versions:", {name: version(name) for name in ("tinytag", "soundfile")}, soundfile.__libsndfile_version__)
rate, unknown = 16_000, 0xFFFFFFFF
head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", unknown, b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", unknown)
Path("voice.wav").write_bytes(head + bytes(2 * rate * 131))
read_s, tagged_s = soundfile.info("voice.wav").duration, TinyTag.get("voice.wav").duration
print("libsndfile:", read_s, "s; tinytag:", tagged_s)
same = read_s == 131 and tagged_s is not None and tagged_s > 100_000

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
