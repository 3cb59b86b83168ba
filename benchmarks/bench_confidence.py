"""Measure what the confidences of multilingual Whisper base are worth: calibration, ranking, the estimate of the WER.

The English test recordings are divided into five folds by speaker, or by source if the speaker is not known, and by a
hash of its name. Each fold is judged by a calibration of the other four, so that no speaker is on both sides. Over all
words of all folds:

- Expected calibration error, in 15 bins of equal width: Σ |bin| / words × |mean probability − share of right words|
  (Guo et al., "On calibration of modern neural networks", ICML 2017).
- AUROC of word errors: the probability that a wrong word has a lower probability of being right than a right word.
- The estimated WER beside the true one.

One recording is left out: it joins utterances of ten speakers who are in other recordings, too. It is also printed how
far the estimate is off over halves of the speakers, and how often its interval contains the true WER.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, Bars, english_rows, machine, run, write_manifest
from numpy.typing import NDArray

from voxbatch.calibration import Calibration, CalibrationFile, Estimator, ScoredItem, calibrate
from voxbatch.errors import ConfigError
from voxbatch.output.calibrate import scored_item

sys.path.insert(0, str(ROOT / "tests" / "support"))
import whisper_base

FOLDS = 5
BINS = 15
HALVES = 20
"""Number of divisions into halves that are also looked at."""
MOST_CALIBRATION_ERROR, LEAST_AUROC, MOST_RELATIVE_ERROR = 0.05, 0.80, 0.10
LEFT_OUT = "longform/librispeech_test_other_100utt_10spk.ogg"


def speaker(name: str) -> str:
    """Return the speaker of a recording of the test data, or its source."""
    folder, _, file = name.partition("/")
    if folder.startswith("asterisk"):
        return "asterisk"  # one voice, also in the copies with other codecs
    if folder.startswith("ljspeech") or "ljspeech" in file:
        return "ljspeech"
    if folder.startswith("librispeech"):
        return f"librispeech {file.split('-')[0]}"
    if folder == "fsdd":
        return f"fsdd {file.split('_')[1]}"
    if folder == "pocketsphinx":
        return "austen" if "austen" in file else "pocketsphinx"
    return name if folder == "longform" else folder


def digest(text: str) -> int:
    """Return a number that depends on a text only."""
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def transcribe(rows: Sequence[dict[str, Any]], folder: Path, threads: int) -> list[ScoredItem]:
    """Return the transcripts by Whisper base, with the truth about their words. The run in `folder` is continued."""
    model = folder / "model"
    if not model.exists():
        model.mkdir()
        whisper_base.assemble(model)
    options = ["--model", model, "--allow-outside", "-q", "--engine-option", f"threads={threads}"]
    manifest = write_manifest(folder / "rows.jsonl", rows)
    run(["run", manifest, "-o", folder / "out", *options], ok=(0, 3))
    lines = map(json.loads, (folder / "out" / "transcripts.jsonl").read_text(encoding="utf-8").splitlines())
    items = (scored_item(line, line["lang"], speaker(line["id"])) for line in lines)
    return [item for item in items if item is not None]


def fitted(items: Sequence[ScoredItem]) -> Calibration:
    """Return the calibration of items."""
    return calibrate(items, "faster-whisper", "base", {}, ["en"])


def expected_calibration_error(p: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Return the ECE; see the module."""
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    parts = [bins == b for b in range(BINS) if (bins == b).any()]
    return float(sum(part.mean() * abs(p[part].mean() - right[part].mean()) for part in parts))


def auroc(p: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve, from the rank sum (Mann-Whitney), with ties in the middle."""
    _, inverse, counts = np.unique(p, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positives = int(right.sum())
    return float((ranks[right].sum() - positives * (positives + 1) / 2) / (positives * (len(right) - positives)))


def judge_folds(items: Sequence[ScoredItem], bars: Bars) -> None:
    """Print the figures over all folds, each judged by the calibration of the others, and check the bars."""
    probabilities: list[float] = []
    truths: list[bool] = []
    errors = length = 0.0
    for fold in range(FOLDS):
        held_out = [item for item in items if digest(f"voxbatch {item.cluster}") % FOLDS == fold]
        made = fitted([item for item in items if digest(f"voxbatch {item.cluster}") % FOLDS != fold])
        for item in held_out:
            p = made.probabilities(item.confidences)
            errors += made.fit.errors_per_wrong * float((1 - p).sum())
            length += made.fit.length_per_word * len(p)
            known = [(each, right) for each, right in zip(p.tolist(), item.right, strict=True) if right is not None]
            probabilities += [each for each, _ in known]
            truths += [right for _, right in known]
        speakers = len({item.cluster for item in held_out})
        print(f"  fold {fold}: {len(held_out)} recordings of {speakers} speakers or sources")
    p, right = np.array(probabilities), np.array(truths)
    true = sum(item.errors for item in items) / sum(item.length for item in items)
    print(f"  {len(p):,} words, {(~right).sum():,} wrong; true WER {true:.2%}, estimated {errors / length:.2%}")
    bars.at_most("expected calibration error", expected_calibration_error(p, right), MOST_CALIBRATION_ERROR)
    bars.at_least("AUROC of word errors", auroc(p, right), LEAST_AUROC)
    relative = abs(errors / length / true - 1)
    bars.at_most("estimated WER, relative to the true one, off by", relative, MOST_RELATIVE_ERROR)


def print_halves(items: Sequence[ScoredItem]) -> None:
    """Print how far estimates are off if half of the speakers calibrate and the other half is estimated."""
    for name, by in (("speaker", lambda item: item.cluster), ("recording", lambda item: str(id(item)))):
        print_intervals(f"clusters by {name}", items, by)


def print_intervals(name: str, items: Sequence[ScoredItem], by: Callable[[ScoredItem], str]) -> None:
    """Print the relative error and the coverage of the interval over divisions into halves of the speakers.

    Args:
        by: the cluster of an item in the calibration.
    """
    off: list[float] = []
    inside = 0
    for number in range(HALVES):
        halves: tuple[list[ScoredItem], list[ScoredItem]] = ([], [])
        for item in items:
            halves[digest(f"{number} {item.cluster}") % 2].append(item)
        try:
            made = fitted([ScoredItem(i.confidences, i.right, i.errors, i.length, by(i)) for i in halves[0]])
        except ConfigError:
            continue
        estimator = Estimator(CalibrationFile("", made))
        for item in halves[1]:
            estimator.add("en", item.confidences)
        found = estimator.estimate()
        assert found is not None
        true = sum(item.errors for item in halves[1]) / sum(item.length for item in halves[1])
        off.append(abs(found.wer / true - 1))
        inside += found.interval[0] <= true <= found.interval[1]
    print(
        f"halves of the speakers, {name}: off by {np.median(off):.1%} (median of {len(off)}); the 95 % interval "
        f"contains the true WER in {inside} of them"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the transcripts here, or take them from here")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="cores for Whisper; default: all")
    given = parser.parse_args()
    bars = Bars()
    print(machine(), flush=True)
    rows = [row for row in english_rows() if row["id"] != LEFT_OUT]
    with tempfile.TemporaryDirectory(prefix="voxbatch-confidence-") as temporary:
        folder = given.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        items = transcribe(rows, folder, given.threads)
    print(f"{len(items)} English recordings by Whisper base", flush=True)
    judge_folds(items, bars)
    print_halves(items)
    bars.leave()


if __name__ == "__main__":
    main()
