"""Measure recall and precision of `voxbatch redact` by kind, on invented calls in four languages.

First on the texts as they are written, and with simulated mistakes of a recogniser. With --speak FOLDER, they are also
spoken by pico2wave, if it is installed, else by espeak-ng, and recognised by a Whisper model; then the redacted copies
are recognised, in which no secret may come back. presidio-analyzer, if it is installed, runs on the same texts.

A secret counts as found if each of its words is redacted. A redaction counts as right if it has a word of a secret.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from common import Bars, machine, parser, write_manifest
from rapidfuzz import fuzz
from redact_texts import NUMBER_KINDS, NUMBERS, Call, Planted, calls, misheard
from redact_texts import spoken as said_text

from voxbatch.output.outcomes import read_transcript
from voxbatch.scoring.alignment import edit_blocks
from voxbatch.storage import DEFAULT_STORES
from voxbatch.works.redact.detector import find_secrets
from voxbatch.works.redact.rules import load
from voxbatch.works.redact.transcript import pieces_of

OWN = "voxbatch"
LANGUAGES = ("en", "de", "fr", "es")
PICO_VOICES = {"en": "en-US", "de": "de-DE", "fr": "fr-FR", "es": "es-ES"}
LEAST_NUMBERS, LEAST_NAMES, LEAST_PRECISION = 0.98, 0.9, 0.9
"""Bars of the recall of numbers and names, and of the precision."""
Words = tuple[Sequence[str], Sequence[float | None]]
"""Words as they are written or were recognised, and the confidence of each."""
Row = tuple[Call, Words, Sequence[Planted]]
"""A call, its words, and its secrets in them."""
Detect = Callable[[str, Words], list[tuple[str, set[int]]]]
"""Returns (kind, indexes of words) of each secret found in words of a language."""


class Figures:
    """The secrets that were planted, found, and marked without being one."""

    def __init__(self) -> None:
        self.planted, self.found, self.marked, self.right = (
            Counter[str](),
            Counter[str](),
            Counter[str](),
            Counter[str](),
        )
        self.missed = list[str]()

    def add(
        self, call: Call, words: Sequence[str], places: Sequence[Planted], marked: list[tuple[str, set[int]]]
    ) -> None:
        """Add the result of a call."""
        covered = set[int]().union(*(indexes for _, indexes in marked))
        for secret in places:
            if not secret.core:
                continue
            self.planted[secret.kind] += 1
            is_found = secret.core <= covered
            self.found[secret.kind] += is_found
            if not is_found:
                shown = " ".join(words[max(0, secret.first - 4) : secret.stop + 1])
                self.missed.append(f"{call.lang} {secret.kind}: {shown}")
        inside = {at for secret in places for at in range(secret.first, secret.stop)}
        for kind, indexes in marked:
            self.marked[kind] += 1
            self.right[kind] += bool(indexes & inside)
            if not indexes & inside:
                self.missed.append(f"{call.lang} not {kind}: {' '.join(words[at] for at in sorted(indexes))}")

    def recall(self, kinds: Iterable[str]) -> float:
        """Return the share of the secrets of some kinds that was found."""
        wanted = [*kinds]
        planted = sum(self.planted[kind] for kind in wanted)
        return sum(self.found[kind] for kind in wanted) / planted if planted else 0.0

    @property
    def precision(self) -> float:
        """The share of what was marked that has a word of a secret."""
        return self.right.total() / max(1, self.marked.total())

    def rows(self) -> Iterator[str]:
        """Yield the rows of a table."""
        for kind in sorted(self.planted | self.marked):
            recall = self.found[kind] / self.planted[kind] if self.planted[kind] else float("nan")
            precision = self.right[kind] / self.marked[kind] if self.marked[kind] else float("nan")
            yield f"| {kind} | {self.planted[kind]:,} | {recall:.3f} | {self.marked[kind]:,} | {precision:.3f} |"
        planted = sum(self.planted[kind] for kind in NUMBER_KINDS)
        yield f"| numbers | {planted:,} | {self.recall(NUMBER_KINDS):.3f} | | |"
        totals = self.planted.total(), self.recall(self.planted), self.marked.total(), self.precision
        yield "| all | {:,} | {:.3f} | {:,} | {:.3f} |".format(*totals)


def rules_detector() -> Detect:
    """Return the detector of voxbatch."""
    rules = load(None, DEFAULT_STORES)

    def detect(lang: str, words: Words) -> list[tuple[str, set[int]]]:
        secrets = find_secrets(words[0], [None] * len(words[0]), lang, rules, words[1])
        return [(secret.kind, {*secret.pieces}) for secret in secrets]

    return detect


def presidio_detector() -> Detect:
    """Return presidio-analyzer without a model."""
    import spacy
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer.nlp_engine import SpacyNlpEngine

    class Blank(SpacyNlpEngine):  # type: ignore[misc]
        def load(self) -> None:
            self.nlp = {lang: spacy.blank(lang) for lang in LANGUAGES}

    registry = RecognizerRegistry(supported_languages=[*LANGUAGES])
    registry.load_predefined_recognizers(languages=[*LANGUAGES])
    engine = Blank(models=[{"lang_code": lang, "model_name": "blank"} for lang in LANGUAGES])
    engine.load()
    analyzer = AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=[*LANGUAGES])

    def detect(lang: str, recognised: Words) -> list[tuple[str, set[int]]]:
        words = recognised[0]
        text, begins = " ".join(words), [0]
        for word in words:
            begins.append(begins[-1] + len(word) + 1)
        results = analyzer.analyze(text, language=lang, score_threshold=0.3)
        marked = []
        for result in results:
            indexes = {at for at in range(len(words)) if begins[at] < result.end and begins[at + 1] - 1 > result.start}
            marked.append((result.entity_type.lower(), indexes))
        return marked

    return detect


def placed(call: Call, words: Sequence[str]) -> list[Planted]:
    """Return the secrets of a call in the words that were recognised, by aligning both."""
    before, after = ([word.strip(".,?!").casefold() for word in text] for text in (call.words, words))
    of_word: dict[int, set[int]] = {}
    for kind, i, j, length in edit_blocks(before, after):
        for k in range(length):
            if kind in ("equal", "replace"):
                of_word.setdefault(i + k, set()).add(j + k)
    secrets = []
    for secret in call.secrets:
        places = sorted(at for word in range(secret.first, secret.stop) for at in of_word.get(word, ()))
        low = max((at for word in range(secret.first) for at in of_word.get(word, ())), default=-1)
        high = min((at for word in range(secret.stop, len(before)) for at in of_word.get(word, ())), default=len(after))
        places = _sentence(words, low + 1, high, places)
        core = frozenset(at for at in places if _is_core(secret, call, after[at]))
        if places:
            secrets.append(Planted(secret.kind, places[0], places[-1] + 1, core))
    return secrets


def _sentence(words: Sequence[str], low: int, high: int, places: Sequence[int]) -> list[int]:
    """Return the places of a secret with what was recognised beside them in its sentence, between the words before and
    after it: a recogniser also repeats whole sentences."""
    if not places:
        return [*range(low, high)]
    first, stop = places[0], places[-1] + 1
    while first > low and not words[first - 1].endswith((".", "?", "!")):
        first -= 1
    while stop < high and not words[stop - 1].endswith((".", "?", "!")):
        stop += 1
    return [*range(first, stop)]


def _is_core(secret: Planted, call: Call, word: str) -> bool:
    """Return whether a recognised word tells a part of a secret."""
    if secret.kind in ("person", "email"):
        names = [name.strip(".,").casefold() for name in call.words[secret.first : secret.stop] if len(name) > 3]
        return any(fuzz.ratio(word, name) >= 60 for name in names)
    return any(map(str.isdigit, word)) or word in NUMBERS[call.lang].split()


def spoken(texts: Sequence[Call], folder: Path, model: str) -> Path:
    """Speak the calls, recognise them, and return the OUT. Without pico2wave, English is spoken by `voxbatch speak`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, english = [], []
    for number, call in enumerate(texts):
        item_id, said = f"{number:05d}", said_text(call)
        path = folder / f"{item_id}.wav"
        if path.exists():
            pass  # of a benchmark that was ended
        elif shutil.which("pico2wave"):
            text, spoken_path = f'<speed level="85">{said}</speed>', folder / "new.wav"
            subprocess.run(["pico2wave", "-l", PICO_VOICES[call.lang], "-w", spoken_path, text], check=True)
            spoken_path.rename(path)
        elif call.lang == "en":
            english.append({"id": item_id, "text": said})
            path = folder / "english" / "flac" / f"{item_id}.flac"
        else:
            subprocess.run(["espeak-ng", "-v", call.lang, "-s", "130", "-w", path, said], check=True)
        rows.append({"audio_filepath": str(path), "id": item_id, "lang": call.lang})
    if english:
        write_manifest(folder / "english.jsonl", english)
        _voxbatch("speak", folder / "english.jsonl", "-o", folder / "english", "--engine", "hibari", "-q")
    write_manifest(folder / "calls.jsonl", rows)
    _voxbatch("run", folder / "calls.jsonl", "-o", folder / "out", "--engine", "faster-whisper", "--model", model, "-q")
    return folder / "out"


def _voxbatch(*arguments: Any) -> None:
    subprocess.run([sys.executable, "-m", "voxbatch", *map(str, arguments)], check=True)


def texts_of(out: Path) -> Iterator[Words]:
    """Yield the words that were recognised in each recording, as `voxbatch redact` reads them."""
    for line in (out / "transcripts.jsonl").read_text().splitlines():
        pieces = pieces_of(read_transcript(json.loads(line)))
        yield [piece.text for piece in pieces], [piece.confidence for piece in pieces]


def measure(title: str, detect: Detect, texts: Iterable[Row], bars: Bars | None = None) -> Figures:
    """Print the table of a detector, and hold it to the bars."""
    figures, of_language = Figures(), dict[str, Figures]()
    for call, words, places in texts:
        marked = detect(call.lang, words)
        for sums in (figures, of_language.setdefault(call.lang, Figures())):
            sums.add(call, words[0], places, marked)
    print(f"\n{title}\n\n| kind | planted | recall | marked | precision |\n|---|---|---|---|---|")
    print("\n".join(figures.rows()))
    for lang, sums in of_language.items():
        recalls = {"numbers": NUMBER_KINDS, "names": ["person"], "all": sums.planted}
        shares = {name: sums.recall(kinds) for name, kinds in recalls.items()} | {"precision": sums.precision}
        print(lang, ", ".join(f"{name} {share:.3f}" for name, share in shares.items()))
    if bars:
        bars.at_least("recall of numbers", figures.recall(NUMBER_KINDS), LEAST_NUMBERS)
        bars.at_least("recall of names", figures.recall(["person"]), LEAST_NAMES)
        bars.at_least("precision", figures.precision, LEAST_PRECISION)
    return figures


def come_back(rows: Sequence[Row], detect: Detect, folder: Path, model: str) -> tuple[int, int]:
    """Redact, recognise the copies of some calls again, and return the numbers of secrets that were found and that come
    back all the same: four digits in a row, or a name.

    Args:
        rows: these calls, the first of all.
    """
    _voxbatch("redact", folder / "out", "-o", folder / "copies", "-q", "--keep", "file_name")
    copies = folder / "copies" / "again.jsonl"
    lines = (folder / "copies" / "transcripts.jsonl").read_text().splitlines(keepends=True)
    copies.write_text("".join(lines[: len(rows)]))
    _voxbatch("run", copies, "-o", folder / "again", "--engine", "faster-whisper", "--model", model, "-q")
    found = returned = 0
    for (call, recognised, places), (words, _) in zip(rows, texts_of(folder / "again"), strict=True):
        covered = set[int]().union(*(indexes for _, indexes in detect(call.lang, recognised)))
        before = recognised[0]
        again = {word.strip(".,?!").casefold() for word in words}
        for secret in places:
            if not secret.core or not secret.core <= covered:
                continue
            core = [before[at].strip(".,?!").casefold() for at in sorted(secret.core)]
            digits, said = _digits(core).replace(" ", ""), _digits(words)
            parts = {digits[at : at + 4] for at in range(len(digits) - 3)}
            is_back = any(part in said for part in parts) or (secret.kind == "person" and bool(again & {*core}))
            found, returned = found + 1, returned + is_back
            if is_back:
                print(f"came back: {call.lang} {secret.kind} {' '.join(core)}: {' '.join(words)}")
    return found, returned


def _digits(words: Iterable[str]) -> str:
    """Return the digits of words; other words divide them."""
    values = {word: str(value % 10) for names in NUMBERS.values() for value, word in enumerate(names.split())}
    return "".join(values.get(word.strip(".,").casefold(), "".join(filter(str.isdigit, word)) or " ") for word in words)


def main() -> None:
    """Print the figures, and exit with 1 if a bar is missed."""
    options = parser(__doc__ or "")
    options.add_argument("--calls", type=int, default=170, help="calls for each language")
    options.add_argument("--seed", type=int, default=1, help="of the written calls; spoken ones have the next")
    options.add_argument("--languages", type=lambda text: text.split(","), default=LANGUAGES, help="e.g. en,de")
    options.add_argument("--speak", type=Path, help="folder for recordings")
    options.add_argument("--spoken-calls", type=int, default=40, help="of them, those that are spoken")
    options.add_argument("--again", type=int, help="calls whose copies are recognised again; default: all")
    options.add_argument("--model", default="base", help="Whisper model that recognises them")
    options.add_argument("--show", action="store_true", help="show what was missed")
    arguments = options.parse_args()
    print(machine())
    detectors = {OWN: rules_detector()}
    if importlib.util.find_spec("presidio_analyzer"):
        detectors["presidio alone"] = presidio_detector()
    texts = [call for lang in arguments.languages for call in calls(lang, arguments.calls, arguments.seed)]
    bars = Bars()
    for name, detect in detectors.items():
        own = bars if name == OWN else None
        for title, shown in (("Written", texts), ("Misheard", [misheard(call, arguments.seed) for call in texts])):
            rows = [(call, (call.words, ()), call.secrets) for call in shown]
            figures = measure(f"## {title}, {name}", detect, rows, own if title == "Written" else None)
            print("\n".join(figures.missed) if arguments.show and own else "")
    if not arguments.speak:
        bars.leave()
    assert shutil.which("pico2wave") or shutil.which("espeak-ng"), "apt-get install espeak-ng"
    of_languages = [calls(lang, arguments.spoken_calls, arguments.seed + 1) for lang in arguments.languages]
    said = [call for group in zip(*of_languages, strict=True) for call in group]
    heard = [*texts_of(spoken(said, arguments.speak, arguments.model))]
    rows = [(call, words, placed(call, words[0])) for call, words in zip(said, heard, strict=True)]
    for name, detect in detectors.items():
        figures = measure(f"## Recognised, {name}", detect, rows, bars if name == OWN else None)
        if arguments.show and name == OWN:
            print("\n".join(figures.missed))
    again = rows[: arguments.again]
    found, returned = come_back(again, detectors[OWN], arguments.speak, arguments.model)
    bars.at_most(f"secrets that come back from the sound, of {found} that were found", returned, 0)
    bars.leave()


if __name__ == "__main__":
    main()
