"""Measure what a cascade gains: its word error rate beside those of its two models, and of both.

Both models transcribe the short English recordings of speech/ without single digits, and `voxbatch run --cascade` does
the same with three tenths of the audio for the large model. Its rows must be those that are combined here from the two
runs. The gain is the difference of the small model's rate and that of doing everything twice and keeping the more
confident text. The intervals are those of voxbatch's own paired bootstrap, by recording.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from common import ROOT, Bars, english_rows, is_long, machine, parser, transcribed

from voxbatch.config import DEFAULT_SHARE
from voxbatch.output.entries import Entries
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import read_existing
from voxbatch.scoring.bootstrap import Pair, paired_difference
from voxbatch.scoring.counts import ErrorCounts
from voxbatch.storage import Stores
from voxbatch.works.cascade.overlay import Amount, chosen, combined

sys.path.append(str(ROOT / "tests" / "support"))
from whisper_base import assemble

MIN_GAIN = 0.6
"""Smallest part of the gain of doing everything twice that the cascade must reach."""
MAX_COST = 0.35
"""Largest part of the audio that the large model may do for it."""
DIGITS = ("fsdd", "formats_one_two_three")
"""Folders of recordings of digits alone, on which the larger of the two models is the worse one: "Thank you very much"
for "three", and "1, 2, 3" for "one two three". Doing them twice gains nothing of which to reach a part."""


def entries(folder: Path, rows: Iterable[dict[str, object]], *options: object) -> list[PartEntry]:
    """Transcribe rows, and return the entries of the run."""
    transcribed(folder, rows, *options)
    store = Stores().out(str(folder / "out"))
    return list(Entries(store, read_existing(store)))


def pairs(listed: Iterable[PartEntry]) -> list[Pair]:
    """Return (errors, reference length) of each row."""
    counts = [ErrorCounts.of_line(json.loads(entry.line)) for entry in listed]
    return [(count.errors, count.reference_length) for count in counts]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--small", default="tiny.en", metavar="MODEL")
    options.add_argument("--large", metavar="MODEL", help="default: Whisper base, from the packages of the tests")
    given = options.parse_args()
    bars = Bars()
    print(machine())
    rows = [row for row in english_rows() if not is_long(row) and row["id"].split("/")[0] not in DIGITS]
    with tempfile.TemporaryDirectory(prefix="voxbatch-cascade-") as name:
        folder = Path(name)
        if (large_model := given.large) is None:
            (large_model := folder / "base").mkdir()
            assemble(large_model)
        small = entries(folder, rows, "--model", given.small)
        large = entries(folder, rows, "--model", large_model)
        real = entries(folder, rows, "--cascade", f"{given.small},{large_model}")
    again = list(chosen(small, Amount(DEFAULT_SHARE), len(rows), len(rows)))
    wanted = [combined(a, b if is_in else None) for a, b, is_in in zip(small, large, again, strict=True)]
    both = [combined(a, b) for a, b in zip(small, large, strict=True)]
    bars.holds("the rows of the cascade are those of the two runs", [e.line for e in real] == [e.line for e in wanted])
    seconds = [json.loads(entry.line)["audio_duration"] for entry in small]
    print(f"\n{len(small)} recordings, {sum(seconds) / 60:.1f} min\n")
    print("| texts | WER % | difference from the small model, 95 % interval |\n|---|---|---|")
    texts = {"small": small, "large": large, "both, the more confident text": both, "cascade": wanted}
    for title, listed in texts.items():
        difference = paired_difference(pairs(small), pairs(listed))
        assert difference is not None
        assert difference.interval is not None
        low, high = (100 * value for value in difference.interval)
        print(f"| {title} | {wer(listed):.2f} | {100 * difference.difference:+.2f} ({low:+.2f} to {high:+.2f}) |")
    agree = [json.loads(entry.line)["cascade"]["agree"] for entry in both]
    for what in (True, False):
        listed = [entry for entry, is_equal in zip(both, agree, strict=True) if is_equal == what]
        print(f"rows on which both {'agree' if what else 'differ'}: {len(listed)}, WER {wer(listed):.2f} %")
    cost = sum(second for second, is_in in zip(seconds, again, strict=True) if is_in) / sum(seconds)
    bars.at_least("part of the gain", (wer(small) - wer(wanted)) / (wer(small) - wer(both)), MIN_GAIN)
    bars.at_most("part of the audio done again", cost, MAX_COST)
    bars.leave()


def wer(listed: Iterable[PartEntry]) -> float:
    """Return the word error rate of rows, in percent."""
    errors, lengths = (sum(values) for values in zip(*pairs(listed), strict=True))
    return 100 * errors / max(1, lengths)


if __name__ == "__main__":
    main()
