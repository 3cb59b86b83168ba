"""Measure the scoring alone: 100,000 pairs of 20 words with intervals, and pairs of 45,000 and 216,000 words.

The texts are the English references of the test recordings, joined and cut into pieces, with one word in ten
substituted, deleted or inserted. Every case has a process of its own, for its peak of memory. 216,000 words are a day
of speech.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from common import Bars, english_rows, machine

from voxbatch.scoring import CorpusScore, Rules, ScoreOptions, count_errors

LONGEST_S, PEAK_MB = 30, 500
"""Bars of the 100,000 pairs: half of what scoring and report may take together (bench_report.py)."""
ERRORS = 0.1


def sentences(count: int, words: int) -> Iterator[tuple[str, str]]:
    """Yield references and hypotheses of so many words each."""
    random.seed(19)
    said = " ".join(row["text"] for row in english_rows() if row["text"]).split()
    for _ in range(count):
        start = random.randrange(len(said))
        reference = [said[(start + k) % len(said)] for k in range(words)]
        yield " ".join(reference), " ".join(damaged(reference, said))


def damaged(words: list[str], vocabulary: list[str]) -> Iterator[str]:
    """Yield the words with errors."""
    for word in words:
        error = random.random() / ERRORS
        if error > 1 / 3:  # not deleted
            yield random.choice(vocabulary) if error < 2 / 3 else word
        if 2 / 3 <= error < 1:
            yield random.choice(vocabulary)


def items(normalizer: str) -> None:
    """Score 100,000 pairs, by speaker too, and calculate all intervals."""
    score = CorpusScore(options=ScoreOptions(Rules(normalizer), by=("speaker",)))
    for index, (reference, hypothesis) in enumerate(sentences(100_000, 20)):
        score.add_pair("en", reference, hypothesis, {"speaker": f"s{index % 200}"})
    found = score.to_dict()
    print(f"WER {found['wer']:.4f}, interval {found['words']['interval']}, {len(found['by']['speaker'])} speakers")


def long_pair(words: int) -> None:
    """Score one pair."""
    (pair,) = sentences(1, words)
    found = count_errors(*pair, "en")
    print(f"{found.errors:,} errors over {found.reference_length:,} words")


CASES: dict[str, Callable[[], None]] = {
    "100,000 pairs by Whisper's English rules": lambda: items("english"),
    "100,000 pairs by the basic rules": lambda: items("basic"),
    "a pair of 45,000 words": lambda: long_pair(45_000),
    "a pair of 216,000 words": lambda: long_pair(216_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", type=int, help="Run one case in this process.")
    given = parser.parse_args()
    if given.case is not None:
        started = time.process_time()
        list(CASES.values())[given.case]()
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        print(f"{time.process_time() - started:.1f} s of CPU, peak {peak_mb:.0f} MB")
        return
    bars = Bars()
    print(machine())
    for case, name in enumerate(CASES):
        command = [sys.executable, __file__, "--case", str(case)]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        print(f"{name}: {'; '.join(lines)}")
        seconds, *_, peak_mb, _ = lines[-1].split()
        bars.at_most(f"{name}: time", float(seconds), LONGEST_S, "s")
        bars.at_most(f"{name}: memory", float(peak_mb), PEAK_MB, "MB")
    bars.leave()


if __name__ == "__main__":
    main()
