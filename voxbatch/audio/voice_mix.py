"""Mix three or more channels down to one, so that a voice detector hears as much voice as in any of them.

Energy does not tell where the voice is: music in a film, or hum on one input of a mixer, is as loud as the speech. So
several mixes of each window are compared: the standard downmix of a known layout, otherwise the mix by energy (see
`mixdown`); the mix of the channels with voice; the channel with the most voice; and the mean. The first one is kept
unless another one has clearly more voice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from voxbatch.audio.libsndfile import NativeBlock
from voxbatch.audio.mixdown import FADE_SECONDS, Mixdown
from voxbatch.records import SAMPLING_RATE, Samples
from voxbatch.voice import is_silent, voice_seconds

WINDOW = 10 * SAMPLING_RATE
"""Samples in which the mix is chosen: 10 s, which hold some sentences. Within a window, the mix by energy follows the
speakers."""
MIN_VOICE_S = 0.3
"""Seconds of voice in a window from which a channel has voice."""
CLEARLY_MORE = 1.15
"""Factor of voice from which another mix is better. It must have MIN_VOICE_S more, too."""

DENSE_SHARE = 0.5
"""Share of voice in a window from which the last mix is kept without a comparison, which costs many times as much."""

_CENTRE, _SIDE = 2.0**0.5, 2.0**-0.5
_DOWNMIX = {
    "3.0": (1, 1, _CENTRE),
    "4.0": (1, 1, _CENTRE, _SIDE * _CENTRE),
    "quad": (1, 1, _SIDE, _SIDE),
    "5.0": (1, 1, _CENTRE, _SIDE, _SIDE),
    "5.1": (1, 1, _CENTRE, 0, _SIDE, _SIDE),
    "6.1": (1, 1, _CENTRE, 0, _SIDE * _CENTRE, _SIDE, _SIDE),
    "7.1": (1, 1, _CENTRE, 0, _SIDE, _SIDE, _SIDE, _SIDE),
}
"""Weights of the channels in the sum of the two channels of the standard downmix (ITU-R BS.775), by ffmpeg's names of
layouts. Low-frequency effects are left out."""


@dataclass(frozen=True, slots=True)
class _Mix:
    name: str
    mixed: Callable[[NativeBlock], Samples]
    """Function from a window of shape (samples, channels) to one channel."""


class VoiceMix:
    """Callable that mixes consecutive blocks of one recording: (samples, channels) float32 at 16 kHz → (samples,).

    Call `finish` after the last block.

    Args:
        layout: ffmpeg's name of their layout, such as "5.1(side)". Empty if it is unknown.
    """

    def __init__(self, channels: int, layout: str):
        self._channels = channels
        weights = np.array(_DOWNMIX.get(layout.partition("(")[0], ()), np.float32)
        if len(weights) == channels:
            self._preferred = _Mix("the standard downmix", lambda window: window @ (weights / weights.sum()))
        else:
            self._preferred = _Mix("the mix by loudness", _mixed_by_energy(range(channels)))
        self._mean = _Mix("the mean", lambda window: window.mean(axis=1))
        self._taken: _Mix | None = None
        self._pending: NativeBlock = np.zeros((0, channels), np.float32)
        self._seconds: dict[str, float] = {}
        """Seconds that each mix was taken."""

    def __call__(self, block: NativeBlock) -> Samples:
        """Return the samples that are decided with this block, of shape (samples,)."""
        block = np.concatenate([self._pending, block])
        end = len(block) // WINDOW * WINDOW
        self._pending = block[end:]
        parts = [self._mix(block[at : at + WINDOW]) for at in range(0, end, WINDOW)]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def finish(self) -> Samples:
        """Return the samples of the incomplete last window."""
        return self._mix(self._pending) if len(self._pending) else np.zeros(0, np.float32)

    def choice(self) -> str:
        """Return which mixes were taken, as text for people.

        "6 channels: by voice, the standard downmix was taken for 60.0 s, channel 2 for 20.0 s; see `channel`"
        """
        (first, seconds), *others = sorted(self._seconds.items(), key=lambda item: -item[1]) or [
            (self._preferred.name, 0.0)
        ]
        taken = "".join(f", {name} for {other:.1f} s" for name, other in others)
        return f"{self._channels} channels: by voice, {first} was taken for {seconds:.1f} s{taken}; see `channel`"

    def _mix(self, window: NativeBlock) -> Samples:
        before = self._taken.mixed(window) if self._taken else None
        if before is not None and voice_seconds(before) >= DENSE_SHARE * len(window) / SAMPLING_RATE:
            mix = before
        else:
            mix = self._choose(window, before)
        assert self._taken is not None
        if before is not None and mix is not before:
            size = min(round(FADE_SECONDS * SAMPLING_RATE), len(mix))
            ramp = np.linspace(0, 1, size, dtype=np.float32)
            mix = np.concatenate([ramp * mix[:size] + (1 - ramp) * before[:size], mix[size:]])
        name = self._taken.name
        self._seconds[name] = self._seconds.get(name, 0.0) + len(mix) / SAMPLING_RATE
        return mix

    def _choose(self, window: NativeBlock, before: Samples | None) -> Samples:
        """Take the mix with the most voice, and return its samples. Without voice, the last mix is kept, whose samples
        are `before`."""
        channels = [window[:, number] for number in range(self._channels)]
        channel_voice = [0.0 if is_silent(channel) else voice_seconds(channel) for channel in channels]
        with_voice = [number for number, seconds in enumerate(channel_voice) if seconds >= MIN_VOICE_S]
        candidates = [self._preferred]
        if 1 < len(with_voice) < self._channels:
            numbers = ", ".join(map(str, with_voice))
            candidates.append(_Mix(f"the mix of channels {numbers}", _mixed_by_energy(with_voice)))
        if with_voice:
            best = int(np.argmax(channel_voice))
            candidates.append(_Mix(f"channel {best}", lambda window: window[:, best]))
        candidates.append(self._mean)
        taken, mix, voice = self._taken, before, 0.0 if before is not None else -1.0
        for candidate in candidates:
            samples = before if candidate is self._taken and before is not None else candidate.mixed(window)
            seconds = voice_seconds(samples)
            if seconds > max(CLEARLY_MORE * voice, voice + MIN_VOICE_S) or mix is None:
                taken, mix, voice = candidate, samples, seconds
        self._taken = taken
        assert mix is not None
        return mix


def _mixed_by_energy(channels: Sequence[int]) -> Callable[[NativeBlock], Samples]:
    """Return a function that mixes some of the channels by their energy."""
    mixdown = Mixdown(SAMPLING_RATE, len(channels))
    return lambda window: np.concatenate([mixdown(window[:, channels]), mixdown.finish()])
