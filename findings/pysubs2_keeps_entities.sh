#!/usr/bin/env bash
# Good guess: a reader of WebVTT gives the text that a browser shows: "&amp;" is "&", and "&lrm;" an invisible mark.
# What happens: pysubs2 keeps the escapes of WebVTT as text, so that words are "&amp;" and "&lt;"; converted to SubRip,
#   a player shows them.
# Date: 2026-11-29. Source: found by running pysubs2==1.8.1.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile pysubs2==1.8.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import version

print("versions:", {name.partition("==")[0]: version(name.partition("==")[0]) for name in "pysubs2==1.8.1".split()})


import pysubs2

VTT = "WEBVTT\n\n00:01.000 --> 00:02.000\nR&amp;D &lt;now&gt;\n"
subtitles = pysubs2.SSAFile.from_string(VTT, format_="vtt")
print("read:", repr(subtitles[0].plaintext), "| as SubRip:", repr(subtitles.to_string("srt").splitlines()[2]))
same = subtitles[0].plaintext == "R&amp;D &lt;now&gt;" and "R&amp;D" in subtitles.to_string("srt")

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
