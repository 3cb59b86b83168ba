"""Find who talks when in a recording of any length.

    samples → frames: which local speakers talk → pieces of up to 2 s of one local speaker → a vector for each piece
        → clusters of vectors: the speakers of the recording → turns, with the names of known voices

The samples are not kept: an hour of speech leaves 2 MB of vectors and 1 MB of activity. Nothing is random, and windows
and pieces do not depend on the blocks in which the samples come; so neither do the turns.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxbatch.records import SAMPLING_RATE, Samples, SpeakerCount, Turn
from voxbatch.speakers import embedding, segmentation
from voxbatch.speakers.clustering import cluster
from voxbatch.speakers.network import networks_of
from voxbatch.speakers.segmentation import BATCH, FRAME, LOCAL_SPEAKERS, STEP, WINDOW, Activity, Segmenter
from voxbatch.speakers.voices import Voice, recognised
from voxbatch.speakers.weights import SpeakerWeights

PIECE = 119
"""Most frames of a piece: 2 s."""
SHORTEST = 7
"""Fewest frames of a piece: 0.12 s. What is shorter goes to the speaker next to it."""
RELIABLE = 47
"""Fewest frames of a piece that may found a cluster: 0.8 s."""
SIMILARITY = 0.54
"""Mean cosine from which two clusters of vectors are one speaker, unless the recording shows another one."""
FEW = 5
"""Number of compared pieces at which the recording's own similarity counts for a quarter."""
NEAR = 3 * STEP
"""Frames between the starts of two pieces below which their local speakers are compared: some window has both."""
SMALL_S = 4.0
"""Seconds of a cluster below which SMALL_SIMILARITY is enough to join it to another, as short pieces vary more."""
SMALL_SIMILARITY = 0.45
SMALLEST_S = 1.0
"""Seconds that a speaker talks at least, unless all talk less."""
MEMORY = 178
"""Frames (3 s) in which the weight of other pieces of the same local speaker falls to 1/e."""
OTHERS = 0.2
"""Weight of another piece at no distance. There are many of them, so that at 0.5 they overrule a piece of 2 s whose own
vector is clear, after the segmentation has given a voice the number of another one."""
LATE = 320
"""Samples (20 ms) from the start of a frame to the border of a turn that begins or ends with it: the network tells of
borders early. Measured on conversations, see benchmarks/RESULTS.md."""

_BATCH_STEP = BATCH * STEP * FRAME
"""Samples between the starts of two batches of windows."""
_BATCH_SAMPLES = (BATCH - 1) * STEP * FRAME + WINDOW
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SpeakerPiece:
    """Audio in which one local speaker talks and nobody else."""

    start: int
    """First frame, counted from the start of the recording."""
    end: int
    speaker: int
    """Number of the local speaker."""
    vector: Vectors


class Diarizer:
    """Finds the turns of one recording after the other.

    Raises:
        ConfigError: the weights cannot be loaded.
    """

    def __init__(self, weights: SpeakerWeights, count: SpeakerCount, voices: Sequence[Voice] = ()) -> None:
        self._networks = networks_of(weights)
        self._count, self._voices = count, voices
        self._reset()

    def _reset(self) -> None:
        self._segmenter = Segmenter()
        self._blocks: list[Samples] = []
        self._num_samples = 0
        self._start = 0
        self._activity: list[Activity] = []
        self._pieces: list[SpeakerPiece] = []

    def add(self, block: Samples) -> None:
        """Take the next samples of the recording: mono, 16 kHz, any number."""
        for start in range(0, len(block), _BATCH_SAMPLES):
            self._blocks.append(block[start : start + _BATCH_SAMPLES])
            self._num_samples += len(self._blocks[-1])
            if self._num_samples > _BATCH_SAMPLES + (self._networks.batches - 1) * _BATCH_STEP:
                self._compute()

    def turns(self) -> list[Turn]:
        """Return the turns of the recording that was added, in the order of their starts. The next block that is added
        is the first one of another recording."""
        end = self._start * FRAME + self._num_samples
        self._finish()
        activity = np.concatenate(self._activity or [np.zeros((0, LOCAL_SPEAKERS), np.bool_)])
        turns = _turns(activity, self._pieces, self._count, self._voices, end)
        self._reset()
        return turns

    def voice(self) -> Vectors | None:
        """Return a unit vector for the one voice of the recording that was added, shape (dimensions,); None if nobody
        talks. The next block that is added is the first one of another recording."""
        self._finish()
        vector = _speakers(self._pieces, SpeakerCount(1, 1))[0] if self._pieces else None
        self._reset()
        return vector

    def _finish(self) -> None:
        """Keep the activity and the pieces of the last frames."""
        if self._num_samples:
            self._compute(is_end=True)

    def _compute(self, is_end: bool = False) -> None:
        """Keep the activity and the pieces of the frames of all batches but the last one, or of all, and drop their
        audio. A piece ends where a batch does, so that the pieces do not depend on how many are computed at a time."""
        samples = np.concatenate(self._blocks)
        batches = max(0, -(-(len(samples) - _BATCH_SAMPLES) // _BATCH_STEP))
        count = batches * BATCH
        if is_end:
            count += 1 + max(0, -(-(len(samples) - batches * _BATCH_STEP - WINDOW) // (STEP * FRAME)))
        scores = self._networks.segment(samples, count)
        activities = [self._segmenter.add(scores[start : start + BATCH]) for start in range(0, count, BATCH)]
        if is_end:
            last = np.concatenate([activities.pop(), self._segmenter.rest()])
            frames = max(0, len(samples) - segmentation.FIRST) // FRAME - sum(map(len, activities))
            activities.append(last[:frames])
        places, audio, begin = [], [], 0
        for activity in activities:
            for start, end, speaker in _pieces(activity):
                places.append((self._start + start, self._start + end, speaker))
                first = segmentation.FIRST + (begin + start) * FRAME
                last_sample = max(first + embedding.FRAME, segmentation.FIRST + (begin + end) * FRAME)
                piece = samples[first:last_sample]
                audio.append(np.pad(piece, (0, max(0, embedding.FRAME - len(piece)))))
            begin += len(activity)
            self._start += len(activity)
        if audio:
            vectors = self._networks.embed(audio)
            self._pieces += [SpeakerPiece(*place, vector) for place, vector in zip(places, vectors, strict=True)]
        self._activity += activities
        self._blocks, self._num_samples = [samples[begin * FRAME :]], len(samples) - begin * FRAME


def _runs(values: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Yield the start, the end and the value of each run of equal values."""
    edges = np.flatnonzero(np.diff(values)) + 1
    for start, end in itertools.pairwise([0, *edges.tolist(), len(values)]):
        if end > start:
            yield start, end, int(values[start])


def _pieces(activity: Activity) -> Iterator[tuple[int, int, int]]:
    """Cut the runs in which one local speaker talks alone into equal pieces: start, end, local speaker."""
    alone = np.where(activity.sum(1) == 1, activity.argmax(1), -1)
    for start, end, speaker in _runs(alone):
        if speaker >= 0 and end - start >= SHORTEST:
            cuts = np.linspace(start, end, 1 - (start - end) // PIECE).round().astype(int).tolist()
            yield from ((first, last, speaker) for first, last in itertools.pairwise(cuts))


def _turns(
    activity: Activity, pieces: list[SpeakerPiece], count: SpeakerCount, voices: Sequence[Voice], num_samples: int
) -> list[Turn]:
    """Return the turns of a recording with this activity."""
    if not pieces:
        return []
    speakers = _speakers(pieces, count)
    names, talks = recognised(speakers, voices), _label(activity, pieces, speakers, count.minimum)
    limit = num_samples / SAMPLING_RATE
    turns = [
        (_seconds(start), min(_seconds(end), limit), speaker)
        for speaker, row in enumerate(talks.T)
        for start, end, talking in _runs(row.astype(np.int64))
        if talking and _seconds(start) < limit
    ]
    numbers: dict[int, int] = {}
    return [
        Turn(start, end, numbers.setdefault(speaker, len(numbers)), names.get(speaker))
        for start, end, speaker in sorted(turns)
    ]


def _seconds(frame: int) -> float:
    return (segmentation.FIRST + LATE + frame * FRAME) / SAMPLING_RATE


def _speakers(pieces: list[SpeakerPiece], count: SpeakerCount) -> Vectors:
    """Return a unit vector for each speaker of the recording, those who talk most first."""
    reliable = [piece for piece in pieces if piece.end - piece.start >= RELIABLE]
    if len(reliable) < max(2, count.minimum):
        reliable = pieces
    vectors, lengths = _vectors(reliable), np.array([piece.end - piece.start for piece in reliable])
    similarity = _similarity(reliable)
    labels = cluster(vectors, lengths, similarity, count.minimum, count.maximum)
    sums = np.zeros((labels.max() + 1, vectors.shape[1]), np.float32)
    np.add.at(sums, labels, vectors * lengths[:, None])
    sizes = np.bincount(labels, lengths)
    for small in np.argsort(sizes, kind="stable")[: len(sizes) - count.minimum]:
        seconds = sizes[small] * FRAME / SAMPLING_RATE
        similarities = sums @ sums[small] / np.maximum(sizes * sizes[small], 1)
        similarities[small] = -1
        if seconds < SMALL_S and similarities.max() >= min(SMALL_SIMILARITY, similarity):
            sums[similarities.argmax()] += sums[small]
            sizes[similarities.argmax()] += sizes[small]
            sums[small], sizes[small] = 0, 0
        elif seconds < SMALLEST_S:
            sums[small], sizes[small] = 0, 0
    sums = sums[np.argsort(-sizes, kind="stable")][: np.count_nonzero(sizes)]
    return _unit(sums)


def _similarity(pieces: list[SpeakerPiece]) -> float:
    """Return the mean cosine from which clusters of a recording are one speaker.

    Voices on one telephone line are more similar than voices in a room. The segmentation network tells speakers of one
    window apart, so the pieces of a window show how similar one voice and two voices are in this recording.
    """
    vectors, starts, speakers = _vectors(pieces), [piece.start for piece in pieces], [piece.speaker for piece in pieces]
    sums, counts = np.zeros(2), np.zeros(2)
    for row, start in enumerate(starts):
        end = bisect.bisect_left(starts, start + NEAR)
        is_same = (np.array(speakers[row + 1 : end]) == speakers[row]).astype(int)
        np.add.at(sums, is_same, vectors[row + 1 : end] @ vectors[row])
        np.add.at(counts, is_same, 1)
    if not counts.all():
        return SIMILARITY
    trust = counts.min() / (counts.min() + FEW) / 2
    return float(SIMILARITY + trust * ((sums / counts).mean() - SIMILARITY))


def _unit(vectors: Vectors) -> Vectors:
    units: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units


def _vectors(pieces: list[SpeakerPiece]) -> Vectors:
    return np.stack([piece.vector for piece in pieces])


def _smoothed(pieces: list[SpeakerPiece]) -> Vectors:
    """Return the vectors of pieces, each with a part of those near it that have the same local speaker."""
    vectors = _vectors(pieces)
    starts, ends, speakers = np.array([(piece.start, piece.end, piece.speaker) for piece in pieces]).T
    smoothed = np.empty_like(vectors)
    for row, piece in enumerate(pieces):
        near = slice(*np.searchsorted(starts, (piece.start - NEAR, piece.end + NEAR)))
        gaps = np.maximum(0, np.maximum(starts[near] - piece.end, piece.start - ends[near]))
        weights = OTHERS * np.exp(-gaps / MEMORY) * (ends - starts)[near] * (speakers[near] == piece.speaker)
        weights[row - near.start] = piece.end - piece.start
        smoothed[row] = weights @ vectors[near]
    return _unit(smoothed)


def _label(activity: Activity, pieces: list[SpeakerPiece], speakers: Vectors, minimum: int) -> npt.NDArray[np.bool_]:
    """Return which speaker talks in which frame, shape (frames, speakers). At least `minimum` speakers get a piece, if
    there are as many."""
    scores = _smoothed(pieces) @ speakers.T
    labels = scores.argmax(1)
    for speaker in range(min(minimum, len(speakers))):
        if speaker not in labels:
            spare = np.bincount(labels)[labels] > 1
            labels[np.where(spare, scores[:, speaker], -np.inf).argmax()] = speaker
    talks = np.zeros((len(activity), len(speakers)), np.bool_)
    for piece, best in zip(pieces, labels, strict=True):
        talks[piece.start : piece.end, best] = True
    rows = [[row for row, piece in enumerate(pieces) if piece.speaker == speaker] for speaker in range(LOCAL_SPEAKERS)]
    starts = [[pieces[row].start for row in local] for local in rows]
    for start, end, code in _runs(activity @ (1 << np.arange(LOCAL_SPEAKERS))):
        local = [speaker for speaker in range(LOCAL_SPEAKERS) if code >> speaker & 1]
        unlabelled = start + np.flatnonzero(~talks[start:end].any(1))
        if not local or not len(unlabelled):
            continue
        near = [scores[_nearest(pieces, rows[speaker], starts[speaker], start, end)] for speaker in local]
        if len(near) == 1 or len(speakers) == 1:
            talks[unlabelled, near[0].argmax()] = True
        else:  # two who talk at a time are different speakers
            sums = near[0][:, None] + near[1]
            np.fill_diagonal(sums, -np.inf)
            talks[start:end, list(np.unravel_index(sums.argmax(), sums.shape))] = True
    return talks


def _nearest(pieces: list[SpeakerPiece], rows: list[int], starts: list[int], start: int, end: int) -> int:
    """Return the row, of these, of the piece that is nearest to some frames; of all pieces if there are none."""
    if not rows:
        rows, starts = list(range(len(pieces))), [piece.start for piece in pieces]
    after = bisect.bisect_left(starts, end)
    near = rows[max(0, after - 1) : after + 1]
    return min(near, key=lambda row: max(pieces[row].start - end, start - pieces[row].end))
