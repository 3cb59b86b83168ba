"""The whole network of a model: chunks in, tokens out.

    clips → batches of rows → features → encoder → frames of clips → tokens

The CPU's part, `prepare`, may be done for the next group of clips while the GPU works on one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from voxbatch.records import SAMPLING_RATE, Chunk
from voxbatch.transducers.encoder import ConformerEncoder
from voxbatch.transducers.features import LogMel
from voxbatch.transducers.greedy import CtcDecoder, TransducerDecoder
from voxbatch.transducers.model import CTC, TDT, TransducerModel
from voxbatch.transducers.packing import Batch, packed
from voxbatch.transducers.tokens import Tokens

MIN_SAMPLES = 320
"""Samples of the shortest clip: its features have a variance from two on. Nobody says anything in 20 ms."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A batch in the memory of the device."""

    samples: torch.Tensor
    ends: torch.Tensor
    clips: torch.Tensor
    """See LogMel for these three."""
    frames: torch.Tensor
    """Indexes of the frames of each clip among all frames of the rows, shape (num_clips, num_frames)."""
    prompts: torch.Tensor
    """Prompt of each row."""
    order: tuple[int, ...]
    """Index of each clip in its group."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkGroup:
    """Chunks that are decoded together."""

    lengths: tuple[int, ...]
    """Frames of each clip."""
    batches: tuple[Rows, ...]
    is_sent: torch.cuda.Event | None
    """The end of the copies to the GPU."""


class Network:
    """A model on a device.

    Args:
        network: transformers' model, with its weights, in evaluation mode and on its device.
        row_frames: lengths that a row of clips may have, in frames, ascending.
        max_rows: most rows of a batch.
        max_clips: most clips of a group.
    """

    def __init__(
        self, model: TransducerModel, network: Any, row_frames: Sequence[int], max_rows: int, max_clips: int
    ) -> None:
        config, weight = network.config, next(network.parameters())
        self._network, self._device, self._dtype = network, weight.device, weight.dtype
        self._hop = model.features.hop_length
        self._step = round(model.frame_s * SAMPLING_RATE)
        self._log_mel = LogMel(model.features, self._device)
        self._row_frames, self._max_rows, self.is_compiled = tuple(row_frames), max_rows, False
        self._prompt = model.prompt if model.prompts else lambda _: 0
        self._copies = torch.cuda.Stream() if self._device.type == "cuda" else None
        is_packed = config.encoder_config.model_type == "parakeet_encoder"
        self._encoder = ConformerEncoder(network.encoder) if is_packed else None
        self._decoder: CtcDecoder | TransducerDecoder
        if model.architecture == CTC:
            self._decoder = CtcDecoder(network.ctc_head, config.pad_token_id)
        else:
            self._decoder = TransducerDecoder(
                network.decoder,
                network.joint,
                network.encoder_projector,
                tuple(config.durations) if model.architecture == TDT else (),
                config.blank_token_id,
                max_clips,
                row_frames[-1],
            )

    @property
    def on_gpu(self) -> bool:
        """True if the model is on a GPU."""
        return self._copies is not None

    def compile(self) -> None:
        """Compile the encoder at its next calls; see `ConformerEncoder`. An encoder of streams is not compiled."""
        if self._encoder is not None and not self.is_compiled:
            self.is_compiled = True
            self._encoder.compile(self._max_rows)

    def _num_frames(self, num_features: Sequence[int]) -> list[int]:
        """Return the frames that the encoder makes of so many features."""
        lengths: list[int] = self._network._get_subsampling_output_length(torch.tensor(num_features)).tolist()
        return lengths

    def prepare(self, clips: Sequence[Chunk]) -> ChunkGroup:
        """Return a group in the memory of the device. One thread may call this while another one calls `decode`."""
        with torch.inference_mode():
            return self._group(clips)

    def _group(self, clips: Sequence[Chunk]) -> ChunkGroup:
        lengths = self._num_frames([len(clip.samples) // self._hop for clip in clips])
        clips_of_row = {} if self._encoder is not None else {"max_clips": 1}
        batches = packed(lengths, self._row_frames, self._max_rows, **clips_of_row)
        if self._copies is None:
            return ChunkGroup(tuple(lengths), tuple(self._rows(clips, lengths, batch) for batch in batches), None)
        with torch.cuda.stream(self._copies):
            rows = tuple(self._rows(clips, lengths, batch) for batch in batches)
            event = torch.cuda.Event()
            event.record()
        return ChunkGroup(tuple(lengths), rows, event)

    def _rows(self, clips: Sequence[Chunk], lengths: Sequence[int], batch: Batch) -> Rows:
        num_rows = self._max_rows if self.is_compiled else batch.num_rows
        factor, row_samples = self._step // self._hop, batch.num_frames * self._step + self._hop
        (row_frames,) = self._num_frames([batch.num_frames * factor])
        # 130 MB, for which pinned memory is faster. It is used again when the copy is done.
        samples = torch.empty(num_rows, row_samples, pin_memory=self._copies is not None)
        numbers = np.full((num_rows, batch.num_frames * factor), -1, np.int8)
        frames = np.zeros((len(batch.places), max(lengths[place.clip] for place in batch.places)), np.int64)
        prompts, ends = np.zeros(num_rows, np.int64), np.zeros(len(batch.places), np.int64)
        all_samples, row_ends, row_counts = samples.numpy(), [0] * num_rows, [0] * num_rows
        for index, place in enumerate(batch.places):
            clip, row, first = clips[place.clip], place.row, place.start * self._step
            end = first + len(clip.samples)
            all_samples[row, row_ends[row] : first] = 0.0
            all_samples[row, first:end] = clip.samples
            feature = place.start * factor
            numbers[row, feature : feature + len(clip.samples) // self._hop] = row_counts[row]
            length, frame = lengths[place.clip], row * row_frames + place.start
            frames[index, :length] = np.arange(frame, frame + length)
            ends[index] = row * row_samples + end
            row_ends[row], row_counts[row], prompts[row] = end, row_counts[row] + 1, self._prompt(clip.lang)
        for row, end in enumerate(row_ends):
            all_samples[row, end:] = 0.0
        return Rows(
            samples.to(self._device, non_blocking=True),
            self._sent(ends),
            self._sent(numbers),
            self._sent(frames),
            self._sent(prompts),
            tuple(place.clip for place in batch.places),
        )

    def _sent(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)

    def decode(self, group: ChunkGroup) -> list[Tokens]:
        """Return the tokens of each clip of a group, in the order of the clips."""
        with torch.inference_mode():
            return self._tokens(group)

    def _tokens(self, group: ChunkGroup) -> list[Tokens]:
        if group.is_sent is not None:
            torch.cuda.current_stream().wait_event(group.is_sent)
        parts = [self._frames(rows) for rows in group.batches]
        order = [clip for rows in group.batches for clip in rows.order]
        longest = max(part.shape[1] for part in parts)
        frames = parts[0].new_zeros(len(order), longest, parts[0].shape[2])
        for part, first in zip(parts, np.cumsum([0, *map(len, parts)]).tolist(), strict=False):
            frames[first : first + len(part), : part.shape[1]] = part
        tokens = self._decoder.decode(frames, [group.lengths[clip] for clip in order])
        return [tokens for _, tokens in sorted(zip(order, tokens, strict=True), key=lambda pair: pair[0])]

    def _frames(self, rows: Rows) -> torch.Tensor:
        """Return what the decoder takes for the frames of each clip, shape (num_clips, num_frames, …)."""
        if self._copies is not None:
            for tensor in (rows.samples, rows.ends, rows.clips, rows.frames, rows.prompts):
                tensor.record_stream(torch.cuda.current_stream())
        features = self._log_mel(rows.samples, rows.ends, rows.clips).to(self._dtype)
        if self._encoder is not None:
            hidden = self._encoder(features, rows.clips)
        else:
            hidden = self._network.encoder(features, rows.clips >= 0).last_hidden_state
        if hasattr(self._network, "prompt_projector"):
            prompts = functional.one_hot(rows.prompts, self._network.config.num_prompts).to(hidden.dtype)
            with_prompt = [hidden, prompts[:, None].expand(-1, hidden.shape[1], -1)]
            hidden = self._network.prompt_projector(torch.cat(with_prompt, dim=-1))
        return self._decoder.project(hidden).flatten(0, 1)[rows.frames]
