#!/usr/bin/env bash
# Good guess: a check digit is weak evidence, so that ten digits written as an American telephone number are more of a
#   PHONE_NUMBER than a UK_NHS.
# What happens: one such number in eleven passes the check of an NHS number, and gets UK_NHS with the score 1.0, above the
#   0.4 of PHONE_NUMBER, though nothing in the text is about health or Britain: "call me at 212-555-0105".
# Date: 2026-11-29. Source: found by running presidio-analyzer==2.2.366, spacy==3.8.18.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile presidio-analyzer==2.2.366 spacy==3.8.18
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import version

print("versions:", {name: version(name) for name in ["presidio-analyzer", "spacy"]})


import spacy
from presidio_analyzer import AnalyzerEngine
from presidio_analyzer.nlp_engine import SpacyNlpEngine


class Blank(SpacyNlpEngine):
    def load(self):
        self.nlp = {"en": spacy.blank("en")}


engine = Blank()
engine.load()
analyzer = AnalyzerEngine(nlp_engine=engine)
taken, other = [], []
for number in range(100, 200):
    text = f"call me at 212-555-0{number}"
    results = analyzer.analyze(text, language="en", entities=["UK_NHS", "PHONE_NUMBER"])
    scores = {result.entity_type: result.score for result in results}
    (taken if "UK_NHS" in scores else other).append((text, scores))
print(len(taken), "of 100 are UK_NHS, such as", taken[0], "and others are", other[0])
same = 5 <= len(taken) <= 13 and all(scores["UK_NHS"] == 1.0 and scores["PHONE_NUMBER"] < 1 for _, scores in taken)

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
