"""Measure the report of a large run: seconds, memory and the size of the page, and the scoring of the same items.

The OUT is made up: parts of items with a reference, a transcript with word times and confidences, and errors in every
fourth item. `voxbatch score` normalises and aligns all pairs again; `voxbatch report` reads the parts and draws the
page.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np
from common import Bars, machine, run

from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.merge import merge_again
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import EngineFacts, Run, RunFacts, create_list
from voxbatch.output.stored_json import json_bytes
from voxbatch.scoring import count_errors
from voxbatch.storage import open_store

WORDS = """
the of and to in a is that it was for on as with be by this not are from at which or have an they you one had all were
there we been more when will would who so no she other its may these what them some him time into only do could new
about two first like any work water long little very after words called just where most know people
"""
PART_ITEMS = 1000
LONGEST_S, PEAK_MB, PAGE_MB = 60, 1000, 2


def make_out(folder: Path, items: int, words: int) -> None:
    """Commit items of so many words as parts, and merge them without a report."""
    random.seed(19)
    store = open_store(str(folder))
    engine = EngineFacts("made up", "none", "none", "made up", {}, {})
    facts = RunFacts(engine, voxbatch="0", python="3", libraries={}, machine="none", workers=1, config={})
    made = Run(run_id="run", identity={}, language=None, manifest="", items=items, folder=None, facts=facts)
    store.create("run.json", [made.to_bytes()])
    keys = np.arange(2 * items, dtype=np.uint64).reshape(items, 2)
    create_list(store, made, keys)
    checkpoint = Checkpoint(store, made, keys)
    for first in range(0, items, PART_ITEMS):
        checkpoint.commit([entry(index, words) for index in range(first, min(items, first + PART_ITEMS))], 12.0)
    checkpoint.mark_complete(items)
    merge_again(store, {"report": False})


def entry(index: int, num_words: int) -> PartEntry:
    """Return the entry of one item."""
    reference = random.choices(WORDS.split(), k=num_words)
    said = [random.choice(WORDS.split()) if index % 4 == 0 and random.random() < 0.1 else word for word in reference]
    counts = count_errors(" ".join(reference), " ".join(said), "fr")  # of words without case: the same as in English
    starts = [0.3 * at + random.random() / 10 for at in range(num_words)]
    timed = [
        {"word": word, "start": round(start, 2), "end": round(start + 0.2 + random.random() / 20, 2),
         "confidence": round(random.random() ** 0.2, 3)} for word, start in zip(said, starts, strict=True)
    ]  # fmt: skip
    return PartEntry(
        index, "transcript", json_bytes({
            "id": f"call-{index:07}", "audio_filepath": f"/data/calls/{index % 100:02}/call-{index:07}.wav",
            "text": " ".join(reference), "speaker": f"speaker-{index % 200}", "lang": "en", "detected_language": None,
            "pred_text": " ".join(said), "words": timed, "segments": [], "audio_duration": 0.3 * num_words,
            "confidence": round(sum(each["confidence"] for each in timed) / num_words, 3),  # type: ignore[misc]
            "flags": [], "warnings": [], "wer": counts.rate, "substitutions": counts.substitutions,
            "insertions": counts.insertions, "deletions": counts.deletions,
            "reference_length": counts.reference_length,
        })
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--words", type=int, default=20)
    given, bars = parser.parse_args(), Bars()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="voxbatch-report-") as name:
        out = Path(name, "out")
        make_out(out, given.items, given.words)
        scored = run(["score", out], traced=True, cores=2)
        reported = run(["report", out, "--by", "speaker"], traced=True, cores=2)
        page = (out / "report.html").stat().st_size
    cpu_s = scored.usage["cpu_s"] + reported.usage["cpu_s"]
    print(f"CPU: score {scored.usage['cpu_s']:.1f} s, report {reported.usage['cpu_s']:.1f} s, together {cpu_s:.1f} s")
    print(f"{given.items:,} items of {given.words} words: score {scored.wall_s:.1f} s, report {reported.wall_s:.1f} s")
    bars.at_most("scoring and report", scored.wall_s + reported.wall_s, LONGEST_S, "s")
    bars.at_most("peak memory", max(scored.usage["peak_mb"], reported.usage["peak_mb"]), PEAK_MB, "MB")
    bars.at_most("size of the page", page / 1e6, PAGE_MB, "MB")
    bars.leave()


if __name__ == "__main__":
    main()
