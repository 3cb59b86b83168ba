#!/usr/bin/env bash
# Good guess: PhoneNumberMatcher finds two telephone numbers that follow each other, written in groups with spaces, or at
#   least one of them, because each alone is found.
# What happens: it finds neither, "212 555 0142 212 555 0143", also for France and at leniency POSSIBLE; each of them alone,
#   both without spaces inside, and both with a word between them are found.
# Date: 2026-11-29. Source: found by running phonenumberslite==9.0.42.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile phonenumberslite==9.0.42
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import version

print("versions:", {name: version(name) for name in ["phonenumberslite"]})

from phonenumbers import Leniency, PhoneNumberMatcher

PAIRS = {"US": ("212 555 0142", "212 555 0143"), "FR": ("06 12 34 56 78", "06 12 34 56 79")}


def count(text, country, leniency):
    return len([*PhoneNumberMatcher(text, country, leniency)])


counts = {}
for country, (first, second) in PAIRS.items():
    texts = {
        "alone": first,
        "together": f"{first} {second}",
        "without spaces": " ".join(number.replace(" ", "") for number in (first, second)),
        "a word between": f"{first} and {second}",
    }
    for leniency in (Leniency.POSSIBLE, Leniency.VALID):
        counts[country, leniency] = {name: count(text, country, leniency) for name, text in texts.items()}
        print(country, leniency, counts[country, leniency])
same = all([*numbers.values()] == [1, 0, 2, 2] for numbers in counts.values())

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
