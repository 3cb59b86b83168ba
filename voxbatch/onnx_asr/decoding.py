"""Greedy decoding of the outputs of ONNX networks, with numpy.

onnx-asr decodes one clip after another. A step of Parakeet's decoder reads 70 MB of weights, so that a step for eight
clips takes 1.4 times as long as one for a single clip (3.9 and 5.4 ms; 20 ms and 4 ms for a second of audio).

The rule is that of NeMo's label looping: a token moves on by its duration; blank moves on by one frame at least; and
`max_symbols` tokens at the same frame move on by one. onnx-asr has the same rule, except that it takes the place of a
duration in the list for the duration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxbatch.records import Samples
from voxbatch.transducers.tokens import Tokens

MAX_SYMBOLS = 10
"""Tokens at one frame, if config.json gives no number (NeMo's max_symbols)."""
INTEGERS = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}
"""Types of the decoder's inputs: newer exports have int32, older ones int64."""


class Transducer:
    """The decoder and joint network of an RNN-T or TDT model."""

    def __init__(self, session: Any, vocabulary_size: int, durations: Sequence[int] | None, max_symbols: int):
        """Keep the network.

        Args:
            session: an onnxruntime.InferenceSession of decoder_joint-model.onnx.
            vocabulary_size: number of tokens with blank, which is the last one.
            durations: frames that a TDT model can move on by. None means that the model is an RNN-T.
            max_symbols: largest number of tokens at one frame.
        """
        self._session, self._size, self._max_symbols = session, vocabulary_size, max_symbols
        self._durations = None if durations is None else np.array(durations, np.int64)
        inputs = {entry.name: entry for entry in session.get_inputs()}
        self._integers = INTEGERS[inputs["targets"].type], INTEGERS[inputs["target_length"].type]
        self._states = [(inputs[name].shape[0], inputs[name].shape[2]) for name in ("input_states_1", "input_states_2")]

    def step(
        self, frames: Samples, targets: NDArray[np.int64], states: Sequence[Samples]
    ) -> tuple[Samples, Samples, Samples]:
        """Return the scores of one step of several clips, of shape (clips, scores), and their new states.

        Args:
            frames: the encoder's output at one frame of each clip, of shape (clips, width).
            targets: the last token of each clip.
            states: of shape (layers, clips, width).
        """
        token_type, length_type = self._integers
        scores, *new_states = self._session.run(
            ["outputs", "output_states_1", "output_states_2"],
            {
                "encoder_outputs": frames[:, :, None],
                "targets": targets[:, None].astype(token_type),
                "target_length": np.ones(len(targets), length_type),
                "input_states_1": states[0],
                "input_states_2": states[1],
            },
        )
        return scores.reshape(len(targets), -1), new_states[0], new_states[1]

    def start(self, clips: int) -> tuple[NDArray[np.int64], list[Samples]]:
        """Return the last tokens (blank) and the states before the first step."""
        states = [np.zeros((layers, clips, width), np.float32) for layers, width in self._states]
        return np.full(clips, self._size - 1), states

    def decode(self, clips: Sequence[Samples]) -> list[Tokens]:
        """Return the tokens of clips.

        Args:
            clips: the encoder's outputs, of shape (frames, width).
        """
        blank, lengths = self._size - 1, np.array([len(clip) for clip in clips])
        frames = np.zeros((len(clips), int(lengths.max(initial=0)), clips[0].shape[1]), np.float32)
        for row, clip in enumerate(clips):
            frames[row, : len(clip)] = clip
        last, states = self.start(len(clips))
        at, symbols = np.zeros(len(clips), np.int64), np.zeros(len(clips), np.int64)
        emitted = list[tuple[NDArray[Any], ...]]()
        active = np.flatnonzero(lengths)
        while len(active):
            scores, *new = self.step(frames[active, at[active]], last[active], [state[:, active] for state in states])
            tokens = scores[:, : self._size].argmax(1)
            jumps = (
                np.zeros_like(tokens) if self._durations is None else self._durations[scores[:, self._size :].argmax(1)]
            )
            emits = tokens != blank
            if emits.any():
                rows = active[emits]
                last[rows] = tokens[emits]
                for state, new_state in zip(states, new, strict=True):
                    state[:, rows] = new_state[:, emits]
                lasting = np.ones_like(rows) if self._durations is None else jumps[emits]
                emitted.append((rows, tokens[emits], at[rows], lasting, _best_probability(scores[emits, : self._size])))
            symbols[active] += 1
            stuck = (jumps == 0) & (~emits | (symbols[active] >= self._max_symbols))
            moves = np.where(stuck, 1, jumps)
            at[active] += moves
            symbols[active[moves > 0]] = 0
            active = active[at[active] < lengths[active]]
        return _by_clip(emitted, len(clips))


def _best_probability(scores: Samples) -> Samples:
    """Return the probability of the best token of each row."""
    probabilities: Samples = 1 / np.exp(scores - scores.max(1, keepdims=True)).sum(1)
    return probabilities


def _by_clip(emitted: Sequence[tuple[NDArray[Any], ...]], num_clips: int) -> list[Tokens]:
    if not emitted:
        empty = np.zeros(0, np.int64)
        return [Tokens(empty, empty, empty, np.zeros(0, np.float32)) for _ in range(num_clips)]
    rows, ids, starts, lasting, probabilities = (np.concatenate(column) for column in zip(*emitted, strict=True))
    places = [np.flatnonzero(rows == row) for row in range(num_clips)]
    return [Tokens(ids[p], starts[p], starts[p] + lasting[p], probabilities[p]) for p in places]
