#!/usr/bin/env bash
# Good guess: digits that are said one by one stay apart or join all alike: "zero seven nine four" is "0 7 9 4" or "0794".
# What happens: alpha2digit joins a zero with the one number after it, and no other: "07 9 4", in English, German, French
#   and Spanish. A number without a zero stays apart: "seven nine four" is "7 9 4".
# Date: 2026-11-29. Source: found by running text2num==3.1.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile text2num==3.1.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import version

print("versions:", {name: version(name) for name in ["text2num"]})


from text_to_num import alpha2digit

said = {
    "en": "zero seven nine four",
    "de": "null sieben neun vier",
    "fr": "zéro sept neuf quatre",
    "es": "cero siete nueve cuatro",
}
written = {lang: alpha2digit(text, lang) for lang, text in said.items()}
without = {lang: alpha2digit(text.split(" ", 1)[1], lang) for lang, text in said.items()}
print("with a zero:", written)
print("without:", without)
same = {*written.values()} == {"07 9 4"} and {*without.values()} == {"7 9 4"}

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
