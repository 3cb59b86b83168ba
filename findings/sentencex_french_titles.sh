#!/usr/bin/env bash
# Good guess: a splitter with lists of abbreviations for 244 languages keeps "M. Dupont", "av. J.-C." and "approx. 5" in one
#   sentence, as it keeps "Ms. Smith" and "z. B.".
# What happens: sentencex ends a sentence after the French titles "M." and "Mme.", within "J.-C.", after the English "approx."
#   before a number, and after the Spanish "p. m."; a voice that pauses between sentences pauses there.
# Date: 2026-11-29. Source: found by running sentencex==1.0.32.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile sentencex==1.0.32
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import version

from sentencex import segment

print("versions:", {"sentencex": version("sentencex")})
SENTENCES = {
    "fr": ["M. Dupont est venu hier.", "Il est mort en 50 av. J.-C. \u00e0 Rome."],
    "en": ["We left at approx. 5 in the morning.", "Ms. Smith left early."],
    "es": ["Lleg\u00f3 a las 5 p. m. de ayer."],
    "de": ["Das war z. B. am 3. Mai."],
}
EXPECTED = {"fr": [2, 3], "en": [2, 1], "es": [2], "de": [1]}
numbers = {}
for language, sentences in SENTENCES.items():
    parts = [[part.strip() for part in segment(language, sentence)] for sentence in sentences]
    print(language, parts)
    numbers[language] = [len(part) for part in parts]
same = numbers == EXPECTED
print("as described" if same else f"THE BEHAVIOUR HAS CHANGED: {numbers}")
sys.exit(0 if same else 1)
PYTHON
