#!/usr/bin/env bash
# Good guess: tinytag raises UnsupportedFormatError for AAC in ADTS, as it does for AMR and AC-3, or gives no duration.
# What happens: bytes in the frames that look like a header of MPEG audio layer III count as frames of MP3, and the
#   duration of a recording of two minutes is a fraction of a second, without an error. Silence alone has no duration.
# Date: 2026-11-29. Source: found by running tinytag==2.3.2.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile tinytag==2.3.2 av==18.1.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import random
import sys
from array import array
from importlib.metadata import version
from pathlib import Path

import av
from tinytag import TinyTag, TinyTagException

print("versions:", {name: version(name) for name in ("tinytag", "av")})
noise = random.Random(0)  # five seconds, and then two minutes of silence
with av.open("voice.aac", "w", format="adts") as output:
    stream = output.add_stream("aac", rate=44_100, layout="mono")
    for number in range(5642):
        frame = av.AudioFrame(format="fltp", layout="mono", samples=1024)
        level = 0.2 if number < 215 else 0.0
        frame.planes[0].update(array("f", [noise.gauss(0, level) for _ in range(1024)]).tobytes())
        frame.sample_rate, frame.pts = 44_100, 1024 * number
        output.mux(stream.encode(frame))
    output.mux(stream.encode())
print("first bytes:", Path("voice.aac").read_bytes()[:4].hex())
with av.open("voice.aac") as recording:
    decoded_s = sum(frame.samples for frame in recording.decode(audio=0)) / 44_100
try:
    tagged_s = TinyTag.get("voice.aac").duration
except TinyTagException as error:
    tagged_s = type(error).__name__
print("decoded:", round(decoded_s, 2), "s; tinytag:", tagged_s)
same = decoded_s > 130 and isinstance(tagged_s, float) and tagged_s < 10

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
