#!/usr/bin/env bash
# Good guess: a text without a letter has no language: with norm_probs=True all languages are equal,
#   and norm_probs only rescales the scores, so that the best language is the same with and without it.
# What happens: an empty text, "..." or "42" is "sr", with twice the probability of the other languages ("uz" ties), as
#   the columns of two aliases are added; "2026 42" is "id" without norm_probs and "uz" with it. The probability
#   is low (below 0.02), so only min_confidence tells such an answer from a real one.
# Date: 2026-11-28. Source: found by running py3langid 0.4.0, numpy 2.4.6.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile py3langid==0.4.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON' || exit 1
import sys

from importlib.metadata import version

print("versions:", {name: version(name) for name in ('py3langid', 'numpy')})

from py3langid.langid import MODEL_FILE, LanguageIdentifier

normal = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
raw = LanguageIdentifier.from_model_file(MODEL_FILE)
for text in ("", "...", "42", "2026 42", "the quick brown fox jumps over the lazy dog"):
    print(f"{text!r:50} norm_probs: {normal.rank(text)[:3]} raw: {raw.classify(text)[0]}")

(_, first), _, (_, third) = normal.rank("")[:3]
same = all(normal.classify(text)[0] == "sr" for text in ("", "...", "42"))
same = same and abs(first / third - 2) < 0.01 and first < 0.02
same = same and (normal.classify("2026 42")[0], raw.classify("2026 42")[0]) == ("uz", "id")
same = same and normal.classify("the quick brown fox jumps over the lazy dog")[0] == "en"

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
