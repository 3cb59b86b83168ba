#!/usr/bin/env bash
# Good guess: a reader of TextGrid takes each number that Praat itself writes, also "1.1102230246251565e-16", the rest of a
#   subtraction, as the beginning of the file.
# What happens: praatio raises that a field is missing. pympi reads on with its digits apart, and invents intervals that
#   end before they begin.
# Date: 2026-11-29. Source: found by running pympi-ling==1.71 praatio==6.2.2.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile pympi-ling==1.71 praatio==6.2.2
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import version

print("versions:", {name.partition("==")[0]: version(name.partition("==")[0]) for name in "pympi-ling==1.71 praatio==6.2.2".split()})


from pathlib import Path

import pympi
from praatio import textgrid

TINY = "1.1102230246251565e-16"
INTERVALS = [(TINY, "1", "first"), ("1", "2", "")]
lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", f"xmin = {TINY}", "xmax = 2", "tiers? <exists>", "size = 1"]
lines += ["item []:", "    item [1]:", '        class = "IntervalTier"', '        name = "words"', f"        xmin = {TINY}"]
lines += ["        xmax = 2", f"        intervals: size = {len(INTERVALS)}"]
for number, (begin, end, text) in enumerate(INTERVALS, 1):
    lines += [f"        intervals [{number}]:", f"            xmin = {begin}", f"            xmax = {end}", f'            text = "{text}"']
Path("a.TextGrid").write_text("\n".join(lines) + "\n")
try:
    entries = [tuple(entry) for entry in textgrid.openTextgrid("a.TextGrid", includeEmptyIntervals=True).getTier("words").entries]
except Exception as error:
    entries = type(error).__name__ + ": " + str(error).splitlines()[0]
print("praatio:", str(entries)[:200])
read = [tuple(interval) for interval in pympi.TextGrid("a.TextGrid").get_tier("words").get_all_intervals()]
print("pympi:", read, "| written:", [(float(b), float(e), t) for b, e, t in INTERVALS])
same = isinstance(entries, str) and any(begin > end for begin, end, *_ in read)

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
