"""Recognise known voices among the speakers of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

KNOWN = 0.65
"""Cosine of the mean vectors of a speaker and of a known voice from which they are one person; see docs/speakers.md for
the cosines of the same and of different people."""


@dataclass(frozen=True, slots=True)
class Voice:
    """A known voice."""

    name: str
    vector: bytes
    """The unit vector of the voice: float32, shape (dimensions,)."""
    digest: str
    """16 hex digits that identify its samples, for the identity of a run."""


def recognised(speakers: npt.NDArray[np.float32], voices: Sequence[Voice]) -> dict[int, str]:
    """Return the names of the speakers with a known voice, by row. The most similar pair comes first, and each speaker
    and each voice counts once.

    Args:
        speakers: a unit vector for each speaker, shape (speakers, dimensions).
        voices: the known voices.
    """
    names = dict[int, str]()
    if not voices:
        return names
    similarities = speakers @ np.stack([np.frombuffer(voice.vector, np.float32) for voice in voices]).T
    while similarities.max() >= KNOWN:
        speaker, voice = divmod(int(similarities.argmax()), len(voices))
        names[speaker] = voices[voice].name
        similarities[speaker] = similarities[:, voice] = -1
    return names
