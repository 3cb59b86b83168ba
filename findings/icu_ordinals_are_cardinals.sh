#!/usr/bin/env bash
# Good guess: ICU's rule set %spellout-ordinal spells ordinals in each language that has it, or raises where it does not.
# What happens: fr, es, it and pt have no rule set of this name, and the name is accepted: 21 is spelt as the cardinal,
#   "vingt-et-un", "veintiuno", "ventuno", "vinte e um". Their ordinals are in %spellout-ordinal-masculine. English and
#   German have it: "twenty-first", "einundzwanzigste".
# Date: 2026-11-29. Source: found by running icu4py==1.2.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile icu4py==1.2.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import version

print("versions:", {name.partition("==")[0]: version(name.partition("==")[0]) for name in "icu4py==1.2.0".split()})


from icu4py.messageformat import MessageFormat

spelt = {
    language: MessageFormat("{n,spellout,%spellout-ordinal}", language).format({"n": 21})
    for language in ("en", "de", "fr", "es", "it", "pt")
}
cardinals = {language: MessageFormat("{n,spellout}", language).format({"n": 21}) for language in spelt}
ordinals = {
    language: MessageFormat("{n,spellout,%spellout-ordinal-masculine}", language).format({"n": 21}) for language in spelt
}
print("%spellout-ordinal:", spelt)
print("cardinals:", cardinals)
print("%spellout-ordinal-masculine:", ordinals)
silent = {language for language in spelt if spelt[language] == cardinals[language]}
print("cardinals in place of ordinals:", sorted(silent))
same = {"fr", "es", "it", "pt"} == silent and all(ordinals[language] != cardinals[language] for language in silent)

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
