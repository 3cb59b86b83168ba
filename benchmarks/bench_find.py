"""Measure the full-text index of `voxbatch find`: how fast it is made, how large it is, and how long a search takes.

The texts are of made-up words whose frequencies are those of speech (Zipf), 1,500 in a recording of ten minutes, each
with its time and its confidence. They are committed through the real Checkpoint. The speed of the index is that of one
core: bytes of text by CPU time.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from common import ROOT, Bars, machine, parser

sys.path.append(str(ROOT / "tests" / "support"))

WORDS = 1_500
VOCABULARY = 30_000
PART_ITEMS = 200
QUERIES = {"a rare word": ("w20000",), "a phrase": ("w40 w3",), "a common word": ("w1",), "a prefix": ("w123*",)}
"""Texts to look for. w0 is the most frequent word."""


def entries(items: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield the index, the line and the bytes of text of each item."""
    from voxbatch.output.stored_json import json_bytes

    rng = np.random.default_rng(1)
    weights = 1 / np.arange(1, VOCABULARY + 1)
    for index in range(items):
        numbers = rng.choice(VOCABULARY, WORDS, p=weights / weights.sum())
        words = [
            {"word": f"w{number}", "start": round(at * 0.4, 3), "end": round(at * 0.4 + 0.3, 3), "confidence": 0.9}
            for at, number in enumerate(numbers.tolist())
        ]
        text = " ".join(str(word["word"]) for word in words)
        line = {
            "audio_filepath": f"{index}.flac", "lang": "en", "id": f"call-{index}", "pred_text": text, "words": words,
            "segments": [], "audio_duration": 600.0, "engine": "none", "model": "none", "confidence": 0.9, "flags": [],
            "warnings": [], "version": 1,
        }  # fmt: skip
        yield index, json_bytes(line), len(text)


def fill(out: Path, items: int) -> int:
    """Commit the items. Return the bytes of their texts."""
    from outputs import owned

    from voxbatch.output.checkpoint import Checkpoint
    from voxbatch.output.parts import PartEntry
    from voxbatch.storage import Stores

    store = Stores().out(str(out))
    checkpoint = Checkpoint(store, owned(store, items=items))
    batch, num_bytes = list[PartEntry](), 0
    for index, line, size in entries(items):
        batch.append(PartEntry(index, "transcript", line))
        num_bytes += size
        if len(batch) == PART_ITEMS or index == items - 1:
            checkpoint.commit(batch, 1.0)
            batch = []
    return num_bytes


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--items", type=int, default=2_000)
    given = options.parse_args()
    from voxbatch.analysis.find.index import index_path, open_index, update
    from voxbatch.analysis.find.search import Query, find_places
    from voxbatch.log import Log
    from voxbatch.output import run_file
    from voxbatch.storage import Stores

    bars = Bars()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="voxbatch-find-") as name:
        os.environ["XDG_CACHE_HOME"] = name
        num_bytes = fill(Path(name) / "out", given.items)
        store = Stores().out(f"{name}/out")
        run, path = run_file.read_existing(store), index_path(store)
        with open_index(path) as database:
            began, began_cpu = time.perf_counter(), time.process_time()
            update(database, path, store, run, Log(quiet=True))
            wall_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
            print(f"{given.items:,} items, {num_bytes / 1e6:,.0f} MB of text: {wall_s:.1f} s, {cpu_s:.1f} s of CPU; "
                  f"index {path.stat().st_size / 1e6:,.0f} MB")  # fmt: skip
            bars.at_least("text indexed by a core", 60 * num_bytes / 1e6 / cpu_s, 50, "MB a minute")
            bars.at_most("memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 600, "MB")
            for title, phrases in QUERIES.items():
                seconds = list[float]()
                for _ in range(7):
                    began = time.perf_counter()
                    update(database, path, store, run, Log(quiet=True))
                    places = find_places(database, Query(phrases=phrases))
                    shown = [place for _, place in zip(range(20), places.places, strict=False)]
                    seconds.append(time.perf_counter() - began)
                title = f"search for {title} ({places.items:,} items, {len(shown)} places shown)"
                bars.at_most(title, 1000 * statistics.median(seconds), 100, "ms")
    bars.leave()


if __name__ == "__main__":
    main()
