"""Greedy decoding on the frames of an encoder: CTC, RNN-T and TDT. Frames in, columns of tokens out.

A transducer looks at one frame at a time, and at the tokens so far. In each step it takes the likeliest token. Blank
moves on to another frame; any other token is written, changes the state, and may stay at the frame:

    frame 0: "▁so" (2 frames)   frame 2: blank (1)   frame 3: "▁be" (0)   frame 3: "it" (3)   frame 6: end

An RNN-T moves on by one frame at each blank and by none at a token; a TDT predicts by how many (Token-and-Duration
Transducer, arXiv 2304.06795). All clips of a group take their steps together; each has its own frame. On a GPU, the
steps are a CUDA graph: `STEPS` of them cost one launch, and the next launch is queued before the last one has ended.

The rules are those of NeMo 3.0 (label looping): blank moves on by one frame at least, and after `MAX_SYMBOLS` tokens at
one frame the next frame follows. transformers' TDT has no such limit, so that a bad model would never end there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from voxbatch.transducers.tokens import Tokens, ctc_tokens

MAX_SYMBOLS = 10
"""Largest number of tokens at one frame (NeMo: greedy.max_symbols of the published checkpoints)."""
STEPS = 16
"""Steps between two looks at the clips that have ended."""


class CtcDecoder:
    """Takes the likeliest token of each frame. Equal neighbours are one token, and blank is left out.

    Args:
        head: transformers' output layer, a convolution over one frame.
        blank: id of blank.
    """

    def __init__(self, head: Any, blank: int):
        self._head, self._blank = head, blank

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what `decode` takes for encoded frames: id and probability of the likeliest token of each, float32,
        shape (…, 2)."""
        logits = functional.linear(hidden, self._head.weight[:, :, 0], self._head.bias).float()
        highest, ids = logits.max(-1)
        return torch.stack([ids.float(), (highest - logits.logsumexp(-1)).exp()], dim=-1)

    def decode(self, frames: torch.Tensor, lengths: Sequence[int]) -> list[Tokens]:
        """Decode clips; see TransducerDecoder.decode."""
        clips = zip(frames.cpu().numpy(), lengths, strict=True)
        return [ctc_tokens(clip[:length, 0].astype(np.int32), clip[:length, 1], self._blank) for clip, length in clips]


class TransducerDecoder:
    """Takes the steps of an RNN-T or a TDT over groups of clips.

    Args:
        decoder, joint: transformers' prediction network and joint network.
        projector: transformers' projection of the encoder's frames to the size of the joint network.
        durations: frames that the values of a TDT's duration head mean, in their order; empty for an RNN-T.
        blank: id of blank.
        max_clips, max_frames: the largest group.
    """

    def __init__(
        self,
        decoder: Any,
        joint: Any,
        projector: Any,
        durations: Sequence[int],
        blank: int,
        max_clips: int,
        max_frames: int,
    ) -> None:
        self._decoder, self._joint, self._blank, self.project = decoder, joint, blank, projector
        weight = joint.head.weight
        options = {"dtype": weight.dtype, "device": weight.device}
        layers, size = decoder.lstm.num_layers, weight.shape[1]
        self._num_tokens = weight.shape[0] - len(durations)
        self._durations = torch.tensor(durations, dtype=torch.int32, device=weight.device)
        self._frames = torch.zeros(max_clips, max_frames, size, **options)
        self._clips = torch.arange(max_clips, device=weight.device)
        self._lengths, self._at, self._count, self._symbols = (
            torch.zeros(max_clips, dtype=torch.int32, device=weight.device) for _ in range(4)
        )
        self._predicted = torch.zeros(max_clips, size, **options)
        self._states = [torch.zeros(max_clips, size, **options) for _ in range(2 * layers)]
        """Hidden and cell state of each layer."""
        most = max_frames * MAX_SYMBOLS + 1
        self._ids, self._starts, self._spans = (
            torch.zeros(max_clips, most, dtype=torch.int32, device=weight.device) for _ in range(3)
        )
        self._probabilities = torch.zeros(max_clips, most, dtype=torch.float32, device=weight.device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def decode(self, frames: torch.Tensor, lengths: Sequence[int]) -> list[Tokens]:
        """Decode clips.

        Args:
            frames: what `project` gave for the frames of each clip: shape (num_clips, num_frames, size).
            lengths: number of frames of each clip.
        """
        num_clips = len(frames)
        self._frames[:num_clips, : frames.shape[1]] = frames
        self._lengths.zero_()
        self._lengths[:num_clips] = torch.tensor(lengths, dtype=torch.int32).to(frames.device)
        self._begin()
        self._run()
        counts = self._count[:num_clips].cpu().numpy()
        most = int(counts.max(initial=0))
        ids, starts, spans, probabilities = (
            column[:num_clips, :most].to("cpu", copy=True).numpy()  # the next group overwrites the column
            for column in (self._ids, self._starts, self._spans, self._probabilities)
        )
        columns = (ids, starts, starts + spans, probabilities)
        return [Tokens(*(column[clip, :count] for column in columns)) for clip, count in enumerate(counts)]

    def _begin(self) -> None:
        """Set the state of all clips to that of the beginning, as after a blank."""
        for column in (self._at, self._count, self._symbols, *self._states):
            column.zero_()
        blanks = torch.full_like(self._clips, self._blank)
        self._predicted[:], states = self._after(blanks)
        for state, new in zip(self._states, states, strict=True):
            state.copy_(new)

    def _run(self) -> None:
        """Take steps until all clips have ended."""
        if self._frames.device.type != "cuda":
            while bool((self._at < self._lengths).any()):
                self._step()
            return
        if self._graph is None:
            self._graph = self._captured()
            self._begin()
        flags: list[tuple[torch.Tensor, torch.cuda.Event]] = []
        while True:
            self._graph.replay()
            flag = torch.empty((), dtype=torch.bool, pin_memory=True)
            flag.copy_((self._at < self._lengths).any(), non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            flags.append((flag, event))
            if len(flags) < 2:
                continue
            flag, event = flags.pop(0)  # the steps after it are queued, and change nothing if all clips have ended
            event.synchronize()
            if not flag.item():
                return

    def _captured(self) -> torch.cuda.CUDAGraph:
        """Return STEPS steps as a CUDA graph."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step()  # libraries allocate their work space at the first call
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Another thread copies samples meanwhile: only calls of this thread may not disturb the capture.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(STEPS):
                self._step()
        return graph

    def _step(self) -> None:
        """Take one step of all clips, in place."""
        is_active = self._at < self._lengths
        frame = self._frames[self._clips, self._at.clamp(max=self._frames.shape[1] - 1)]
        logits = self._joint.head(self._joint.activation(frame + self._predicted)).float()
        scores = logits[:, : self._num_tokens]
        highest, token = scores.max(-1)
        is_blank = token == self._blank
        if len(self._durations):
            span = self._durations[logits[:, self._num_tokens :].argmax(-1)]
            moves = torch.where(is_blank, span.clamp(min=1), span)
        else:
            span = torch.ones_like(self._at)
            moves = is_blank.int()
        place = self._count.long().unsqueeze(1)  # what a clip writes without a token, its next token replaces
        self._ids.scatter_(1, place, token.int().unsqueeze(1))
        self._starts.scatter_(1, place, self._at.unsqueeze(1))
        self._spans.scatter_(1, place, span.unsqueeze(1))
        self._probabilities.scatter_(1, place, (highest - scores.logsumexp(-1)).exp().unsqueeze(1))
        is_token = is_active & ~is_blank
        self._count += is_token
        self._symbols.add_(1).mul_(is_token & (moves == 0))
        is_full = self._symbols >= MAX_SYMBOLS
        self._symbols.mul_(~is_full)
        self._at += torch.where(is_full, 1, moves) * is_active
        predicted, states = self._after(token)
        for column, new in zip((self._predicted, *self._states), (predicted, *states), strict=True):
            torch.where(is_token.unsqueeze(1), new, column, out=column)

    def _after(self, token: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the projected output of the prediction network after one more token, and its new states.

        The cells are called one by one, because cuDNN's LSTM cannot be part of a graph.
        """
        lstm, value = self._decoder.lstm, self._decoder.embedding(token)
        states: list[torch.Tensor] = []
        for layer in range(lstm.num_layers):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            weights = [getattr(lstm, f"{name}_l{layer}") for name in names]
            value, cell = torch.lstm_cell(value, self._states[2 * layer : 2 * layer + 2], *weights)
            states += [value, cell]
        return self._decoder.decoder_projector(value), states
