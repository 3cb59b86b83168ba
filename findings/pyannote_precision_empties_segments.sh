#!/usr/bin/env bash
# Good guess: after Segment.set_precision(2), times are multiples of 0.01 s, and a segment of 0.01 s has that duration.
# What happens: three in five segments of 0.01 s are empty, by the rounding of floats: they have no duration, and an
#   Annotation and a Timeline leave them out without a word. With set_precision(1), so are two in five of 0.1 s.
# Date: 2026-11-29. Source: found by running pyannote.core==6.1.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile pyannote.core==6.1.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import version

from pyannote.core import Annotation, Segment, Timeline

print("versions:", {"pyannote.core": version("pyannote.core")})


def kept(digits, times):
    """Return how many of a thousand neighbouring segments of `times` steps are in an Annotation and in a Timeline."""
    Segment.set_precision(digits)
    segments = [Segment(begin / 10**digits, (begin + times) / 10**digits) for begin in range(1000)]
    annotation = Annotation()
    for segment in segments:
        annotation[segment] = "speaker"
    return len(annotation), len(Timeline(segments))


Segment.set_precision(2)
print("durations:", Segment(1.0, 1.01).duration, Segment(3.0, 3.01).duration, Segment(0.01, 0.02).duration)
counts = {(digits, times): kept(digits, times) for digits in (1, 2) for times in (1, 2)}
for (digits, times), count in counts.items():
    print(f"set_precision({digits}), segments of {times / 10**digits} s: {count} of 1000 are kept")
same = counts == {(1, 1): (552, 552), (1, 2): (1000, 1000), (2, 1): (392, 392), (2, 2): (1000, 1000)}

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
