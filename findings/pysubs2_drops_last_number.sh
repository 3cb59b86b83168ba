#!/usr/bin/env bash
# Good guess: pysubs2 reads back what it wrote, and keeps a line that is a number as it keeps one in the middle of a file.
# What happens: the last line of the last caption is lost if it is a number and another line precedes it: "Room" and "101"
#   become "Room", in SubRip and WebVTT, also in pysubs2's own output. webvtt-py and pycaption keep the line.
# Date: 2026-11-29. Source: found by running pysubs2==1.8.1 webvtt-py==0.6.0 pycaption==2.3.14.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile pysubs2==1.8.1 webvtt-py==0.6.0 pycaption==2.3.14
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import version
from pathlib import Path

import pycaption
import pysubs2
import webvtt

print("versions:", {name: version(name) for name in ("pysubs2", "webvtt-py", "pycaption")})
CAPTIONS = ["The year was\n1984", "42", "Room\n101"]
written = pysubs2.SSAFile()
for number, text in enumerate(CAPTIONS):
    written.append(pysubs2.SSAEvent(2000 * number, 2000 * number + 1500, text.replace("\n", "\\N")))
texts = {}
for form in ("srt", "vtt"):
    Path("a." + form).write_text(written.to_string(form))
    texts["pysubs2 " + form] = [event.plaintext for event in pysubs2.load("a." + form)]
texts["webvtt"] = [caption.text for caption in webvtt.from_srt("a.srt")]
captions = pycaption.SRTReader().read(Path("a.srt").read_text()).get_captions("en-US")
texts["pycaption"] = [caption.get_text() for caption in captions]
for reader, lines in texts.items():
    print(f"{reader}: {lines}")
short = [*CAPTIONS[:2], "Room"]
same = list(texts.values()) == [short, short, CAPTIONS, CAPTIONS]

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
