"""Measure the watch over texts in the embedded engine: short clips, decoded once and decoded under the watch.

Each English recording of at most six seconds is one clip, as it is and changed: telephone bandwidth, white noise, very
quiet, clipped, with notes of music behind it, with silence before or after it, and cut to its first second (which has
no reference). Foreign speech, music and noise show how much text the model invents. For each group: the texts that were
decoded a second time, the word error rate, the texts that repeat themselves or are longer than anybody speaks (loops),
and the characters of all texts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import soxr
from common import Bars, corpus, machine

from voxbatch.audio import decode
from voxbatch.engines.faster_whisper import FasterWhisperEngine
from voxbatch.engines.pieces import PieceText
from voxbatch.engines.suspect_text import suspicions
from voxbatch.engines.whisper_windows import DecodingOptions, WindowDecoder, speech_probabilities
from voxbatch.records import REPETITION, SAMPLING_RATE, SPEAKING_RATE, Samples
from voxbatch.scoring import ErrorCounts, count_errors
from voxbatch.storage import open_recording

LONGEST_S = 6.0
SEED = 1


@dataclass
class Group:
    """The figures of one kind of clip."""

    clips: int = 0
    again: int = 0
    once: ErrorCounts = field(default_factory=ErrorCounts)
    watched: ErrorCounts = field(default_factory=ErrorCounts)
    invented_once: int = 0
    invented_watched: int = 0
    characters_once: int = 0
    characters_watched: int = 0


def telephone(samples: Samples, rng: np.random.Generator) -> Samples:
    return soxr.resample(soxr.resample(samples, SAMPLING_RATE, 8_000), 8_000, SAMPLING_RATE).astype(np.float32)


def noisy(samples: Samples, rng: np.random.Generator) -> Samples:
    """Add white noise of the speech's own power: 0 dB."""
    return samples + (rng.standard_normal(len(samples)) * np.sqrt((samples**2).mean())).astype(np.float32)


def quiet(samples: Samples, rng: np.random.Generator) -> Samples:
    return samples * np.float32(0.01)


def clipped(samples: Samples, rng: np.random.Generator) -> Samples:
    return (samples * np.float32(30)).clip(-1, 1)


def with_music(samples: Samples, rng: np.random.Generator) -> Samples:
    return samples + melody(len(samples), rng) * np.float32(2 * np.sqrt((samples**2).mean()))


def after_silence(samples: Samples, rng: np.random.Generator) -> Samples:
    return np.concatenate([np.zeros(rng.integers(1, 12) * SAMPLING_RATE, np.float32), samples])


def before_silence(samples: Samples, rng: np.random.Generator) -> Samples:
    return np.concatenate([samples, np.zeros(rng.integers(1, 12) * SAMPLING_RATE, np.float32)])


def melody(num_samples: int, rng: np.random.Generator) -> Samples:
    """Return notes with three harmonics, four in a second, of power 0.1 to 0.2."""
    time = np.arange(SAMPLING_RATE // 4) / SAMPLING_RATE
    pitches = rng.choice([220, 262, 330, 392, 440, 523], num_samples // len(time) + 1)
    notes = [sum(np.sin(2 * np.pi * p * h * time) / h for h in (1, 2, 3)) * np.hanning(len(time)) for p in pitches]
    return np.concatenate(notes).astype(np.float32)[:num_samples]


CHANGES: dict[str, Callable[[Samples, np.random.Generator], Samples]] = {
    "as it is": lambda samples, _: samples,
    "8 kHz": telephone,
    "noise, 0 dB": noisy,
    "40 dB quieter": quiet,
    "clipped": clipped,
    "over music": with_music,
    "after silence": after_silence,
    "before silence": before_silence,
}


def clips(every: int) -> Iterator[tuple[str, Samples, str | None]]:
    """Yield the name of the group, the audio and the reference of each clip. None means that the text is invented."""
    folder = corpus() / "speech"
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    short = [row for row in rows if 1 <= row["duration"] <= LONGEST_S]
    rng = np.random.default_rng(SEED)
    for row in short[::every]:
        path = str(folder / row["audio_filepath"])
        samples = np.concatenate([block.samples for block in decode(open_recording(path), path)])
        if row["lang"] == "en":
            for name, change in CHANGES.items():
                yield name, change(samples, rng), row["text"]
            yield "first second", samples[:SAMPLING_RATE], None
        else:
            yield "foreign speech", samples, None
    for _ in range(60 // every):
        yield "music", melody(rng.integers(1, 12) * SAMPLING_RATE, rng) * np.float32(0.2), None
        noise = rng.standard_normal(rng.integers(1, 12) * SAMPLING_RATE) * 10 ** rng.uniform(-3, -1)
        swell = 1 + np.sin(np.arange(len(noise)) / SAMPLING_RATE * 9)
        yield "swelling noise", (noise * swell).astype(np.float32), None


def is_invented(samples: Samples, text: str) -> bool:
    """Return whether a text repeats itself or is longer than anybody speaks."""
    found = suspicions(samples, PieceText(text), speech_probabilities(samples))
    return any(each.flag.kind in (REPETITION, SPEAKING_RATE) for each in found)


def measure(model: Any, group: Group, samples: Samples, reference: str | None) -> None:
    """Decode a clip once and under the watch, and add its figures to the group."""
    samples = samples.clip(-1, 1)
    decoder = WindowDecoder(model, samples)
    encoded = decoder.encode(0)
    if encoded is None:
        return
    request = (encoded, 0, "en", (), 0.0, DecodingOptions())
    once, watched = decoder.decode(*request), decoder.decode_watched(*request)
    first, kept = ("".join(word.text for word in window.words) for window in (once, watched))
    group.clips += 1
    group.again += any("decoded again" in warning for warning in watched.warnings)
    if reference is not None:
        group.once += count_errors(reference, first, "en")
        group.watched += count_errors(reference, kept, "en")
    group.invented_once += is_invented(samples, first)
    group.invented_watched += is_invented(samples, kept)
    group.characters_once += len(first)
    group.characters_watched += len(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take one of N recordings")
    given = parser.parse_args()
    print(machine())
    model = FasterWhisperEngine(None, {"threads": "1"})._load()
    groups: dict[str, Group] = {}
    for name, samples, reference in clips(given.every):
        measure(model, groups.setdefault(name, Group()), samples, reference)
    print("| clips | number | decoded again | WER once | WER watched | loops once | loops watched | characters |")
    print("|---|---|---|---|---|---|---|---|")
    for name, group in groups.items():
        rates = [
            f"{100 * rate:.2f} %" if (rate := side.rate) is not None else "" for side in (group.once, group.watched)
        ]
        characters = f"{group.characters_once:,} → {group.characters_watched:,}"
        counts = f"{group.invented_once} | {group.invented_watched}"
        print(f"| {name} | {group.clips} | {group.again} | {rates[0]} | {rates[1]} | {counts} | {characters} |")
    bars = Bars()
    plain = groups["as it is"]
    bars.at_most("correct clips that are decoded a second time", 100 * plain.again / plain.clips, 2.0, "%")
    once, watched = (sum(getattr(group, name).errors for group in groups.values()) for name in ("once", "watched"))
    bars.at_most("errors under the watch, of those decoded once", 100 * watched / max(once, 1), 100.0, "%")
    loops, left = (sum(getattr(g, name) for g in groups.values()) for name in ("invented_once", "invented_watched"))
    bars.at_most("loops that are left", 100 * left / max(loops, 1), 25.0, "%")
    bars.leave()


if __name__ == "__main__":
    main()
