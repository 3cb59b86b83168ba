"""Measure what is left of echoes in calls with a side in each channel, and what is lost of the speakers.

The calls are those of `bench_channels.py`. The second channel also gets the first one: late, quieter, through a phone.
No model runs: a frame of 20 ms counts as repeated if only the echo is in it and comes out audible (at most 25 dB below
the echo's loud frames, and above the noise); as lost if the channel's own speaker is in it (at most 25 dB below the
loud frames) and comes out 10 dB quieter or more. Three ways are measured: the gate by levels alone; an acoustic echo
canceller from a library and that gate (`pip install pyaec`: SpeexDSP's, left out if it is missing); and voxbatch's
canceller and that gate. The bar is for the last one.
"""

from __future__ import annotations

import importlib.util
import io
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import soundfile
import soxr
from bench_channels import Call, calls
from common import Bars, machine, parser
from scipy import signal

from voxbatch.records import LEVEL_FRAME, SAMPLING_RATE, Samples
from voxbatch.text.crosstalk import CrosstalkGate
from voxbatch.text.echo import EchoCanceller
from voxbatch.voice import loudness

BELOW_LOUD_DB = 25.0
ABOVE_NOISE_DB = 8.0
LOST_DB = 10.0
MOST_REPEATED, MOST_LOST = 0.04, 0.005
"""Shares of the frames of the echo, and of the speaker, that the bar allows. What is repeated after a GSM phone are
parts of consonants, of which Whisper makes no word."""
LIBRARY = "pyaec"
Process = Callable[[Samples], Samples]


def gsm(samples: Samples) -> Samples:
    """Return samples after a GSM phone."""
    file = io.BytesIO()
    narrow = soxr.resample(samples, SAMPLING_RATE, 8000)
    soundfile.write(file, narrow, 8000, format="WAV", subtype="GSM610")
    file.seek(0)
    return _sized(soxr.resample(soundfile.read(file, dtype="float32")[0], 8000, SAMPLING_RATE), len(samples))


def narrow(samples: Samples) -> Samples:
    """Return samples in the band of G.729: 300 to 3,400 Hz."""
    bands = signal.butter(4, (300, 3400), "bandpass", fs=SAMPLING_RATE, output="sos")
    return np.asarray(signal.sosfilt(bands, samples), np.float32)


def moving(samples: Samples) -> Samples:
    """Return samples whose delay jumps by 40 ms every 15 s, as after a jitter buffer."""
    out, part = samples.copy(), 15 * SAMPLING_RATE
    for number, at in enumerate(range(part, len(samples), part), 1):
        out[at : at + part] = late(samples, 40 * (number % 2))[at : at + part]
    return out


def two(samples: Samples) -> Samples:
    """Return samples and their second echo, 140 ms later and 6 dB quieter."""
    return np.asarray(samples + np.float32(0.5) * late(samples, 140), np.float32)


def plain(samples: Samples) -> Samples:
    """Return samples as they are."""
    return samples


PHONES = {phone.__name__: phone for phone in (plain, narrow, gsm, two, moving)}
CONDITIONS = [
    *(("gsm", delay, -15.0) for delay in (0, 10, 60, 100, 160, 300, 500)),
    *(("gsm", 160, level) for level in (-3.0, -6.0, -10.0, -20.0)),
    *(("plain", delay, level) for delay in (0, 40, 500) for level in (-3.0, -20.0)),
    *(("narrow", delay, level) for delay in (100, 250) for level in (-3.0, -20.0)),
    *((phone, 160, level) for phone in ("two", "moving") for level in (-6.0, -15.0)),
]
"""The phone, the delay in milliseconds and the level in dB of each echo."""


def late(samples: Samples, delay_ms: float) -> Samples:
    """Return samples, delayed."""
    delay = round(delay_ms * SAMPLING_RATE / 1000)
    return _sized(np.concatenate([np.zeros(delay, np.float32), samples]), len(samples))


def _sized(samples: Samples, size: int) -> Samples:
    return np.pad(samples[:size], (0, max(0, size - len(samples)))).astype(np.float32)


def gated(samples: Samples) -> Samples:
    """Return a call after the gate by levels."""
    gate = CrosstalkGate(samples.shape[1])
    return np.concatenate([gate(samples), gate.finish()])


def cancelled(samples: Samples) -> Samples:
    """Return a call after voxbatch's canceller and the gate."""
    canceller = EchoCanceller(samples.shape[1])
    return gated(np.concatenate([canceller(samples), canceller.finish()]))


def by_library(samples: Samples) -> Samples:
    """Return a call after SpeexDSP's canceller and the gate. The reference is the first channel.

    The filter is as long as the longest delay. The preprocessor is off: it mutes the channel's own speaker, too.
    """
    from pyaec import Aec

    size, out = SAMPLING_RATE // 50, samples.copy()
    canceller = Aec(size, round(0.6 * SAMPLING_RATE), SAMPLING_RATE, False)
    pcm = np.clip(np.rint(samples * 32767), -32768, 32767).astype(np.int16)
    for at in range(0, len(samples) - size + 1, size):
        part = canceller.cancel_echo(pcm[at : at + size, 1].tolist(), pcm[at : at + size, 0].tolist())
        out[at : at + size, 1] = np.asarray(part, np.float32) / 32768
    return gated(out)


@dataclass(frozen=True, slots=True)
class Count:
    """Frames of one call or several."""

    repeated: int = 0
    echo: int = 0
    lost: int = 0
    own: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.repeated + other.repeated, self.echo + other.echo, self.lost + other.lost, self.own + other.own
        )


def levels(samples: Samples) -> np.ndarray:
    """Return the level of each frame in dB, from 300 Hz on: SpeexDSP's canceller also removes rumble below, which is no
    speech."""
    high = signal.butter(4, 300, "highpass", fs=SAMPLING_RATE, output="sos")
    return loudness(np.asarray(signal.sosfilt(high, samples), np.float32), LEVEL_FRAME)


def count(call: Samples, echo: Samples, out: Samples) -> Count:
    """Return the frames of a call that are repeated or lost.

    Args:
        call: the call without an echo.
        echo: the echo in its second channel.
        out: what a way gives.
    """
    own, heard, left = (levels(part) for part in (call[:, 1], echo, out[:, 1]))
    noise = np.percentile(own, 5) + ABOVE_NOISE_DB
    is_own = own > np.percentile(own, 95) - BELOW_LOUD_DB
    near = np.convolve(is_own, np.ones(25), "same") > 0  # 250 ms: what is beside a word is no word
    floor = max(noise, np.percentile(heard, 95) - BELOW_LOUD_DB)
    is_echo = (heard > floor) & ~near
    total = Count(int((is_echo & (left > floor)).sum()), int(is_echo.sum()))
    first = Count(lost=int((is_own & (left < own - LOST_DB)).sum()), own=int(is_own.sum()))
    agent, agent_left = levels(call[:, 0]), levels(out[:, 0])
    is_agent = agent > np.percentile(agent, 95) - BELOW_LOUD_DB
    second = Count(lost=int((is_agent & (agent_left < agent - LOST_DB)).sum()), own=int(is_agent.sum()))
    return total + first + second


def measured(process: Process, recordings: list[Call], phone: str, delay_ms: float, level_db: float) -> Count:
    """Return the frames of all calls with an echo."""
    total = Count()
    for call in recordings:
        echo = 10 ** (level_db / 20) * late(PHONES[phone](call.samples[:, 0]), delay_ms)
        samples = call.samples.copy()
        samples[:, 1] += echo
        total += count(call.samples, echo.astype(np.float32), process(samples))
    return total


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__)
    options.add_argument("--calls", type=int, default=2, choices=range(1, 6), help="number of calls (default: 2)")
    recordings = calls(options.parse_args().calls)
    ways = {"levels": gated, "library": by_library, "voxbatch": cancelled}
    if importlib.util.find_spec(LIBRARY) is None:
        print(f"{LIBRARY} is not installed: its column is left out")
        del ways["library"]
    seconds = sum(len(call.samples) for call in recordings) / SAMPLING_RATE
    print(machine(), f"{len(recordings)} calls, {seconds:.0f} s", sep="\n")
    print("| echo | " + " | ".join(f"{way}: repeated, lost" for way in ways) + " |")
    print("|---" * (len(ways) + 1) + "|", flush=True)
    bars, spent = Bars(), dict.fromkeys(ways, 0.0)
    for condition in [*CONDITIONS, ("plain", 0, -200.0)]:
        phone, delay_ms, level_db = condition
        title = f"{phone}, {delay_ms} ms, {level_db:g} dB" if level_db > -100 else "none"
        cells = []
        for way, process in ways.items():
            began = time.perf_counter()
            total = measured(process, recordings, phone, delay_ms, level_db)
            spent[way] += time.perf_counter() - began
            repeated, lost = total.repeated / max(1, total.echo), total.lost / max(1, total.own)
            cells.append(f"{repeated:.1%}, {lost:.1%}")
        print(f"| {title} | " + " | ".join(cells) + " |", flush=True)
        bars.at_most(f"repeated, {title}", repeated, MOST_REPEATED)
        bars.at_most(f"lost, {title}", lost, MOST_LOST)
    for way, total_s in spent.items():
        print(f"{way}: {total_s / (len(CONDITIONS) + 1) / seconds:.2%} of real time")
    bars.leave()


if __name__ == "__main__":
    main()
