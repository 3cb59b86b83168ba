"""Measure multilingual Whisper base on the test recordings: WER by language, with and without the language given.

Without the language, the model detects it, and the share of recordings whose language is right is printed as well.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from common import ROOT, Bars, corpus, machine, run, write_manifest

sys.path.insert(0, str(ROOT / "tests" / "support"))
import whisper_base

MIN_DETECTED = 0.9
"""Share of the recordings of at least 3 s whose language must be right."""
SHORTEST_S = 3.0
LONGEST_S = 60.0
"""Seconds of the longest recording with --short."""
ENGLISH = 40
"""Number of English recordings; of the other languages, all are taken."""


def rows(languages: list[str], with_long: bool) -> list[dict[str, Any]]:
    """Return the rows, with absolute paths, and the language as `spoken`."""
    folder = corpus() / "speech"
    found = [json.loads(line) for line in (folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    english = [row for row in found if row["lang"] == "en" and SHORTEST_S < row["duration"] < 30]
    chosen = [row for row in found if row["lang"] != "en"] + english[:: max(1, len(english) // ENGLISH)]
    chosen = [row for row in chosen if row["lang"] in languages or not languages]
    return [
        {
            "id": row["audio_filepath"],
            "audio_filepath": str(folder / row["audio_filepath"]),
            "text": row["text"],
            "duration": row["duration"],
            "spoken": row["lang"],
        }
        for row in chosen
        if with_long or row["duration"] < LONGEST_S
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--languages", nargs="*", default=[], metavar="LANG", help="only these, e.g. de fr")
    parser.add_argument("--short", action="store_true", help=f"only recordings below {LONGEST_S:g} s")
    given = parser.parse_args()
    bars, wanted = Bars(), rows(given.languages, not given.short)
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="voxbatch-languages-") as temporary:
        folder = Path(temporary)
        (folder / "base").mkdir()
        whisper_base.assemble(folder / "base")
        for how in ("detected", "given"):
            told = [{**row, "lang": row["spoken"]} if how == "given" else row for row in wanted]
            manifest, out = write_manifest(folder / f"{how}.jsonl", told), folder / how
            run(["run", manifest, "-o", out, "--model", folder / "base", "--allow-outside", "-q"], ok=(0, 3))
            lines = [json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()]
            summary = json.loads((out / "summary.json").read_text())
            seconds = summary["audio_s"]
            print(
                f"\nlanguage {how}: {len(lines)} recordings, {seconds / 60:.1f} min, RTFx {summary['rtfx']}", flush=True
            )
            for language in sorted({line["spoken"] for line in lines}):
                own = [line for line in lines if line["spoken"] == language]
                errors = sum(line["substitutions"] + line["insertions"] + line["deletions"] for line in own)
                words = sum(line["reference_length"] for line in own)
                heard = Counter(line.get("lang", "none") for line in own)
                text = ", ".join(f"{name} {count}" for name, count in heard.most_common())
                print(f"  {language}: {len(own)} recordings, WER {errors / words:.2%} of {words:,} words; lang: {text}")
            if how == "detected":
                long = [line for line in lines if line["audio_duration"] >= SHORTEST_S]
                right = sum(line.get("lang") == line["spoken"] for line in long) / len(long)
                bars.at_least(
                    f"language right, of {len(long)} recordings of {SHORTEST_S:g} s and more", right, MIN_DETECTED
                )
    bars.leave()


if __name__ == "__main__":
    main()
