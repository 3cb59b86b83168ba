#!/usr/bin/env bash
# Good guess: begin="25t" with frameRate 25 and no tickRate is one second: TTML2 makes the tick rate the frame rate (times
#   the subframe rate) where a document gives a frame rate and no tick rate.
# What happens: ttconv begins the paragraph at 25 s, as if a tick were a second.
# Date: 2026-11-29. Source: found by running ttconv==1.2.3.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile ttconv==1.2.3
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import version

print("versions:", {name.partition("==")[0]: version(name.partition("==")[0]) for name in "ttconv==1.2.3".split()})


import xml.etree.ElementTree as et

import ttconv.imsc.reader as reader

TTML = """<tt xmlns="http://www.w3.org/ns/ttml" xmlns:ttp="http://www.w3.org/ns/ttml#parameter" xml:lang="en"
    ttp:frameRate="25" %s><body><div><p begin="25t" end="50t">one</p></div></body></tt>"""


def begin(extra):
    document = reader.to_model(et.ElementTree(et.fromstring(TTML % extra)))
    (paragraph,) = list(list(document.get_body())[0])
    return paragraph.get_begin()


begins = [begin(""), begin("ttp:tickRate=\"25\"")]
print("begin without tickRate:", begins[0], "s; with tickRate 25:", begins[1], "s")
same = [float(time) for time in begins] == [25.0, 1.0]

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
