"""Enrol known voices: each sample in a folder, NAME.wav or several in NAME/, is a recording of one voice."""

from __future__ import annotations

import hashlib
import re
from contextlib import closing
from pathlib import PurePath

import numpy as np

from voxbatch.audio.waveforms import decode
from voxbatch.errors import AudioError, ConfigError
from voxbatch.manifest import PathPolicy, items
from voxbatch.records import SpeakerCount
from voxbatch.sources.opening import open_source
from voxbatch.speakers.diarizer import Diarizer, Vectors
from voxbatch.speakers.voices import Voice
from voxbatch.speakers.weights import SpeakerWeights
from voxbatch.storage import Stores

OPTION = "--speaker-names"
SAMPLE_S = 120.0
"""Seconds of a sample that are listened to. Ten are enough."""
BLOCK = 1 << 20
"""Bytes that are read at a time."""


def enrol(place: str, weights: SpeakerWeights, stores: Stores) -> tuple[Voice, ...]:
    """Return the voices whose samples are in a folder, or below an address, in the order of their names.

    Raises:
        ConfigError: there are no samples, one cannot be decoded or holds no speech, or a name is a number's.
        StorageError: a sample cannot be read.
    """
    vectors, digests = dict[str, Vectors](), dict[str, hashlib.blake2b]()
    diarizer = Diarizer(weights, SpeakerCount(1, 1))
    with open_source(place, stores=stores) as source:
        for item in items(source, PathPolicy(allow_outside=True)):
            path = PurePath(item.id)
            name = path.parts[0] if len(path.parts) > 1 else path.stem
            if re.fullmatch(r"Speaker \d+", name):
                raise ConfigError(f"{OPTION} {place}: {name!r} is the label of an unknown speaker; give another name")
            try:
                with closing(stores.recording(item.audio)) as recording:
                    digest = digests.setdefault(name, hashlib.blake2b(digest_size=8))
                    for start in range(0, recording.size, BLOCK):
                        digest.update(recording.pread(BLOCK, start))
                    for block in decode(recording, item.audio, duration=SAMPLE_S):
                        diarizer.add(block.samples)
            except AudioError as e:
                raise ConfigError(f"{OPTION} {place}: {item.id}: {e}") from e
            vector = diarizer.voice()
            if vector is None:
                raise ConfigError(f"{OPTION} {place}: {item.id} holds no speech; give ten seconds of one voice")
            vectors[name] = vectors.get(name, np.zeros_like(vector)) + vector
    return tuple(
        Voice(name, (vector / np.linalg.norm(vector)).tobytes(), digests[name].hexdigest())
        for name, vector in sorted(vectors.items())
    )
