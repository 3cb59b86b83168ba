"""Subtitles by the rules of editors: gaps, ends of lines, lengths; beside other programs from the same word times.

    voxbatch run speech.jsonl -o OUT --model base
    python benchmarks/subtitles.py OUT --peers FOLDER

The run is of English, German, French and Spanish speech. FOLDER is that of `pip install --no-deps --target FOLDER
whisperx stable-ts`, and stable-ts needs PyTorch. Of WhisperX the writer alone is taken, with sentences as segments; of
stable-ts the default regrouping, with lines of 42 characters.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import runpy
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from common import Bars

from voxbatch.formats import WRITERS, Document
from voxbatch.formats.function_words import LEANING_WORDS
from voxbatch.output.lines import read_transcript

FRAME_RATE, MAX_COLUMNS, MAX_LINES, MAX_S, MIN_S = 24, 42, 2, 7.0, 5 / 6
SENTENCE_END = re.compile(r"[.?!]['\"”’»)]*$")
_TIMES = re.compile(r"(\S+) --> (\S+)\n(.*)", re.DOTALL)
Words = list[dict[str, Any]]


def cues(srt: str) -> Iterator[tuple[float, float, list[str]]]:
    """Yield (start, end, lines) of each cue of SubRip."""
    for block in re.split(r"\n\s*\n", srt):
        if match := _TIMES.search(block):
            start, end = (_seconds(text) for text in match.groups()[:2])
            yield start, end, [line for line in match[3].splitlines() if line.strip()]


def _seconds(text: str) -> float:
    hours, minutes, seconds = text.replace(",", ".").split(":")
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds)


def leans(line: str, lang: str) -> bool:
    """Return whether a line ends in a word that leans on the next one, without a mark after it."""
    return line.rsplit(maxsplit=1)[-1].casefold().rstrip("'’") in LEANING_WORDS[lang]


def count(srt: str, lang: str) -> Counter[str]:
    """Return the numbers of lines, cues, gaps and faults."""
    counts, shown = Counter[str](), list(cues(srt))
    for start, end, lines in shown:
        counts["lines"] += len(lines)
        counts["cues"] += 1
        counts["leaning lines"] += sum(leans(line, lang) for line in lines)
        counts["leaning cues"] += leans(lines[-1], lang)
        is_wide = len(lines) > MAX_LINES or max(map(len, lines)) > MAX_COLUMNS
        counts["over limits"] += is_wide or not MIN_S - 0.001 <= end - start <= MAX_S + 0.001
    for (_, end, _), (start, _, _) in pairwise(shown):
        frames = round((start - end) * FRAME_RATE)
        kind = "0" if frames <= 0 else "1" if frames == 1 else "3 to 11" if 3 <= frames <= 11 else ""
        counts[f"gaps of {kind}"] += bool(kind)
    return counts


def sentences(words: Words) -> list[Words]:
    """Return the words by sentences."""
    groups: list[Words] = [[]]
    for word in words:
        groups[-1].append(word)
        if SENTENCE_END.search(word["word"]):
            groups.append([])
    return [group for group in groups if group]


def whisperx(folder: Path) -> Callable[[Words, str], str]:
    """Return WhisperX's SubRip with `--max_line_width 42 --max_line_count 2`."""
    writer = runpy.run_path(str(folder / "whisperx" / "utils.py"))["WriteSRT"]("")
    options = {"max_line_width": MAX_COLUMNS, "max_line_count": MAX_LINES, "highlight_words": False}

    def write(words: Words, lang: str) -> str:
        segments = [{"words": group, "start": group[0]["start"], "end": group[-1]["end"]} for group in sentences(words)]
        file = io.StringIO()
        writer.write_result({"language": lang, "segments": segments}, file, options)
        return file.getvalue()

    return write


def stable_ts(folder: Path) -> Callable[[Words, str], str]:
    """Return stable-ts's SubRip. It imports torchaudio, and needs it for recordings only."""
    sys.path.append(str(folder))
    sys.modules["torchaudio"] = ModuleType("torchaudio")
    import stable_whisper  # type: ignore[import-not-found]

    def write(words: Words, lang: str) -> str:
        spaced = [{"word": f" {word['word']}", "start": word["start"], "end": word["end"]} for word in words]
        result = stable_whisper.WhisperResult({"language": lang, "segments": [{"words": spaced}]}, check_sorted=False)
        result.regroup().split_by_length(max_chars=MAX_LINES * MAX_COLUMNS)
        result.split_by_length(max_chars=MAX_COLUMNS, newline=True)
        with tempfile.NamedTemporaryFile("r", suffix=".srt", encoding="utf-8") as file:
            result.to_srt_vtt(file.name, word_level=False)
            return file.read()

    return write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--peers", type=Path)
    args = parser.parse_args()
    peers = {"WhisperX": whisperx(args.peers), "stable-ts": stable_ts(args.peers)} if args.peers else {}
    totals: dict[str, Counter[str]] = {name: Counter() for name in ("voxbatch", *peers)}
    with open(args.out / "transcripts.jsonl", encoding="utf-8") as file:
        for line in map(json.loads, file):
            if line["words"]:
                srt = WRITERS["srt"].write(Document(line["id"], read_transcript(line)))
                totals["voxbatch"] += count(srt, line["lang"])
                for name, write in peers.items():
                    totals[name] += count(write(line["words"], line["lang"]), line["lang"])
    for name, counts in totals.items():
        print(f"{name}: {', '.join(f'{counts[key]:,} {key}' for key in sorted(counts))}")
    bars, counts = Bars(), totals["voxbatch"]
    for kind in ("0", "1", "3 to 11"):
        bars.at_most(f"gaps of {kind} frames", counts[f"gaps of {kind}"], 0)
    bars.at_most("lines that end in a function word", 100 * counts["leaning lines"] / counts["lines"], 5, "%")
    bars.at_most("cues that end in a function word", 100 * counts["leaning cues"] / counts["cues"], 2, "%")
    bars.at_most("cues over a limit", counts["over limits"], 0)
    bars.leave()


if __name__ == "__main__":
    main()
