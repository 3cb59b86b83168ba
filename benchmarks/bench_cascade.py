"""Measure what a cascade gains: its word error rate beside those of its two models, of both, and of other choices.

Both models transcribe the English recordings of speech/, and `voxbatch run --cascade` does the same with three tenths
of the audio for the large model. Its rows must be those that are combined here from the two runs. The gain is the
difference of the small model's rate and that of doing everything twice and keeping the more confident text. The
intervals are those of voxbatch's own paired bootstrap, by recording.

    bench_cascade.py --keep outs     a second call continues the runs, and only prints
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from common import ROOT, VOXBATCH, Bars, english_rows, is_long, machine, write_manifest

from voxbatch.analysis.calibrate import scored_item
from voxbatch.config import DEFAULT_SHARE
from voxbatch.output.cascade import Amount, chosen, combined
from voxbatch.output.entries import Entries
from voxbatch.output.lines import word_confidences
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import read_existing
from voxbatch.scoring.bootstrap import Pair, paired_difference, rate_interval
from voxbatch.scoring.calibration import calibrate, expected_wrong
from voxbatch.scoring.counts import ErrorCounts
from voxbatch.storage import open_store

sys.path.append(str(ROOT / "tests" / "support"))
from whisper_base import assemble

MIN_GAIN = 0.6
"""Smallest part of the gain of doing everything twice that the cascade must reach."""
MAX_COST = 0.35
"""Largest part of the audio that the large model may do for it."""
DIGITS = ("fsdd", "formats_one_two_three")
"""Folders of recordings of digits alone, on which the larger of the two models is the worse one: "Thank you very much"
for "three", and "1, 2, 3" for "one two three". Doing them twice gains nothing of which to reach a part."""
WERS = (0.05, 0.03)
"""Word error rates of --cascade SMALL,LARGE:wer=."""
DIVISIONS = 20
"""Number of random divisions of the recordings into two halves."""
DRAWS = 200
"""Number of random choices of items."""


def run(out: Path, manifest: Path, *options: str) -> list[PartEntry]:
    """Run voxbatch, or continue its run, and return the entries."""
    command = [*VOXBATCH, "run", manifest, "-o", out, "--engine", "faster-whisper", "--language", "en"]
    subprocess.run([*command, "--allow-outside", "--no-report", "--log-format", "json", *options], check=True)
    store = open_store(str(out))
    return list(Entries(store, read_existing(store)))


def pairs(entries: Iterable[PartEntry]) -> list[Pair]:
    """Return (errors, reference length) of each row."""
    counts = [ErrorCounts.of_line(json.loads(entry.line)) for entry in entries]
    return [(count.errors, count.reference_length) for count in counts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", default="tiny.en", metavar="MODEL")
    parser.add_argument("--large", metavar="MODEL", help="default: Whisper base, from the packages of the tests")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder of the three OUTs")
    arguments = parser.parse_args()
    bars = Bars()
    print(machine())
    rows = english_rows()
    with tempfile.TemporaryDirectory(prefix="voxbatch-cascade-") as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        if (large_model := arguments.large) is None and not (large_model := folder / "base").exists():
            large_model.mkdir()
            assemble(large_model)
        manifest = write_manifest(folder / "rows.jsonl", rows)
        small = run(folder / "small", manifest, "--model", arguments.small)
        large = run(folder / "large", manifest, "--model", str(large_model))
        real = run(folder / "cascade", manifest, "--cascade", f"{arguments.small},{large_model}")
    again = list(chosen(small, Amount(DEFAULT_SHARE), len(rows), len(rows)))
    wanted = [combined(a, b if is_in else None) for a, b, is_in in zip(small, large, again, strict=True)]
    bars.holds("the rows of the cascade are those of the two runs", [e.line for e in real] == [e.line for e in wanted])
    table("all recordings", small, large)
    numbers = [number for number, row in enumerate(rows) if row["id"].split("/")[0] not in DIGITS]
    for title, kept in (
        ("without single digits", numbers),
        ("and without longform/", [number for number in numbers if not is_long(rows[number])]),
    ):
        gain, cost = table(title, [small[number] for number in kept], [large[number] for number in kept])
        bars.at_least(f"{title}: part of the gain", gain, MIN_GAIN)
        bars.at_most(f"{title}: part of the audio done again", cost, MAX_COST)
    by_wer([small[number] for number in kept], [large[number] for number in kept])
    bars.leave()


def by_wer(small: list[PartEntry], large: list[PartEntry]) -> None:
    """Print the expected and the true rate of what `:wer=` leaves to the small model. One half of the recordings makes
    the calibration, and the other is transcribed, over random divisions."""
    print("\n| wer= | done again | the others: expected | true, 95 % interval | small alone | cascade |")
    print("|---|---|---|---|---|---|")
    draws = random.Random(0)
    divisions = [draws.sample(range(len(small)), len(small)) for _ in range(DIVISIONS)]
    for wer in WERS:
        results = [_by_wer(wer, small, large, order) for order in divisions]
        for share, expected, true, low, high, alone, cascade in results[:2]:
            interval = f"{true:.2f} ({low:.2f} to {high:.2f})"
            print(f"| {100 * wer:g} | {share:.2f} | {expected:.2f} | {interval} | {alone:.2f} | {cascade:.2f} |")
        share, expected, true, _, _, alone, cascade = (statistics.mean(values) for values in zip(*results, strict=True))
        within = sum(low <= expected <= high for _, expected, _, low, high, _, _ in results)
        print(
            f"| {100 * wer:g}, mean of {DIVISIONS} | {share:.2f} | {expected:.2f} | {true:.2f}; the expected one is in "
            f"{within} of the intervals | {alone:.2f} | {cascade:.2f} |"
        )


def _by_wer(wer: float, small: list[PartEntry], large: list[PartEntry], order: list[int]) -> tuple[float, ...]:
    """Return the share of the audio that is done again, the expected and the true rate of the others with the ends of
    its interval, and the rates of all by the small model and by the cascade, in percent. The first half of `order` are
    the recordings of the calibration."""
    known = [json.loads(small[number].line) for number in order[: len(order) // 2]]
    scored = [item for line in known if (item := scored_item(line, "en", line["id"]))]
    fit = calibrate(scored, "", "", {}, ["en"]).fit
    rest = sorted(order[len(order) // 2 :])
    ours = [PartEntry(number, small[index].kind, small[index].line) for number, index in enumerate(rest)]
    again = list(chosen(ours, Amount(None, wer, fit), len(ours), len(ours)))
    lines = [json.loads(entry.line) for entry in ours]
    left = [word_confidences(line) or () for line, is_in in zip(lines, again, strict=True) if not is_in]
    expected = fit.errors_per_wrong * sum(expected_wrong(fit, values) for values in left)
    true = pairs(entry for entry, is_in in zip(ours, again, strict=True) if not is_in)
    interval = rate_interval(Counter(true)) or (0.0, 1.0)
    again_s = sum(line["audio_duration"] for line, is_in in zip(lines, again, strict=True) if is_in)
    both = [combined(a, large[index] if is_in else None) for a, index, is_in in zip(ours, rest, again, strict=True)]
    return (
        again_s / sum(line["audio_duration"] for line in lines),
        100 * expected / (fit.length_per_word * sum(map(len, left))),
        _wer(true),
        *(100 * end for end in interval),
        _wer(pairs(ours)),
        _wer(pairs(both)),
    )


def table(title: str, small: list[PartEntry], large: list[PartEntry]) -> tuple[float, float]:
    """Print the table of a set of recordings, and return the parts of the gain and of the audio."""
    lines = [json.loads(entry.line) for entry in small]
    seconds = [line["audio_duration"] for line in lines]
    both = [combined(a, b) for a, b in zip(small, large, strict=True)]
    of_small, of_large, of_both = pairs(small), pairs(large), pairs(both)
    numbered = [PartEntry(number, entry.kind, entry.line) for number, entry in enumerate(small)]

    def chosen_by(order: Iterable[int]) -> list[Pair]:
        """Return the errors if the items are done again in this order, up to the share of the audio."""
        result, left = list(of_small), DEFAULT_SHARE * sum(seconds)
        for number in order:
            if seconds[number] <= left:
                left -= seconds[number]
                result[number] = of_both[number]
        return result

    again = list(chosen(numbered, Amount(DEFAULT_SHARE), len(small), len(small)))
    cascade = [of_both[n] if is_in else pair for n, (pair, is_in) in enumerate(zip(of_small, again, strict=True))]
    best = sorted(range(len(small)), key=lambda n: (of_both[n][0] - of_small[n][0]) / max(seconds[n], 0.01))
    draws = random.Random(0)
    randoms = [_wer(chosen_by(draws.sample(range(len(small)), len(small)))) for _ in range(DRAWS)]
    print(f"\n{title}: {len(small)} recordings, {sum(seconds) / 60:.1f} min\n")
    print("| texts | WER % | difference from the small model, 95 % interval |\n|---|---|---|")
    for name, result in (
        ("small", of_small), ("large", of_large), ("both, the more confident text", of_both),
        (f"cascade, {DEFAULT_SHARE:g} of the audio again", cascade), ("the best items, greedily", chosen_by(best)),
    ):  # fmt: skip
        difference = paired_difference(of_small, result)
        assert difference is not None
        assert difference.interval is not None
        low, high = (100 * value for value in difference.interval)
        print(f"| {name} | {_wer(result):.2f} | {100 * difference.difference:+.2f} ({low:+.2f} to {high:+.2f}) |")
    print(f"| random items, mean of {DRAWS} | {sum(randoms) / DRAWS:.2f} | |")
    gain = (_wer(of_small) - _wer(cascade)) / (_wer(of_small) - _wer(of_both))
    cost = sum(second for second, is_in in zip(seconds, again, strict=True) if is_in) / sum(seconds)
    agree = [n for n, entry in enumerate(both) if json.loads(entry.line)["cascade"]["agree"]]
    others = sorted(set(range(len(both))) - set(agree))
    for what, numbers in (("agree", agree), ("differ", others)):
        print(f"rows on which both {what}: {len(numbers)}, WER {_wer([of_both[n] for n in numbers]):.2f} %")
    return gain, cost


def _wer(result: Iterable[Pair]) -> float:
    """Return the word error rate of rows, in percent."""
    errors, lengths = (sum(values) for values in zip(*result, strict=True))
    return 100 * errors / max(1, lengths)


if __name__ == "__main__":
    main()
