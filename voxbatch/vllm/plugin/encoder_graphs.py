"""CUDA graphs of the encoder's layers and the adapter: one for each number of frames that a group may have.

A group of four chunks takes 14 ms of an H200's time in 8 bits, in some 350 kernels. Python needs longer than that to
start so many kernels one by one, and meanwhile the GPU waits. A graph starts all of them at once. With products in 16
bits the encoder has no graphs: the host keeps up, and the padding costs 2 % of the speed (benchmarks/RESULTS.md).

A graph has fixed sizes and reads and writes fixed memory. So a group is padded: its frames to a multiple of FRAMES, by
one more chunk that nobody reads, and its chunks to CHUNKS, by chunks without frames and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from voxbatch.vllm.plugin import GROUP_FRAMES
from voxbatch.vllm.plugin.packing import Packed, copy_to, pack

FRAMES = 256
"""Step from size to size. Matrix products compute whole tiles of 128 or 256 rows anyway."""
CHUNKS = 32
"""Largest number of chunks of a group, with the chunk that pads it. Groups of more and shorter chunks have no graph."""

FIELDS = ("starts", "key_starts", "positions", "places")
"""Tensors of a layout that a graph reads."""

RunLayers = Callable[[torch.Tensor, Packed], torch.Tensor]
"""Function from convolved frames, [frames, dim], and their layout to rows, [tokens, width]. It may overwrite the
frames."""


class EncoderGraphs:
    """Graphs for groups of chunks that all begin with the same known frames.

    The first group of a size runs kernel by kernel, so that Triton and cuBLAS load what they need. The second one is
    captured. On a CPU nothing is captured.

    Args:
        run_layers: the work of a graph. It reads only the arguments, and tensors that stay where they are.
        known: number of known frames; see Packed.
        frames: [GROUP_FRAMES, dim]: memory for the frames of a group.
        rows: [GROUP_FRAMES / frames of a row, width]: memory for the rows of a group.
    """

    def __init__(self, run_layers: RunLayers, known: int, frames: torch.Tensor, rows: torch.Tensor):
        self._run_layers, self._known = run_layers, known
        self._frames, self._rows = frames, rows
        layout = self._padded([], GROUP_FRAMES)
        tensors = {name: getattr(layout, name).to(frames.device) for name in FIELDS}
        self._layout = replace(layout, lengths=[GROUP_FRAMES, *[0] * (CHUNKS - 1)], **tensors)
        """Layout for groups of the largest size, whose tensors the graphs read."""
        self._sizes: set[int] = set()
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle() if frames.is_cuda else None

    def fit(self, lengths: Sequence[int]) -> bool:
        """Return whether a group has a graph.

        Args:
            lengths: frames of each chunk, without the known frames.
        """
        return len(lengths) < CHUNKS and sum(lengths) <= GROUP_FRAMES

    def __call__(self, frames: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Return the rows of a group that `fit` accepts, [tokens, width]. The next call overwrites them.

        Args:
            frames: [frames, dim], the convolved frames of all chunks end to end.
            lengths: frames of each chunk, without the known frames.
        """
        size = -(-len(frames) // FRAMES) * FRAMES
        self._frames[: len(frames)] = frames
        layout = self._padded(lengths, size)
        for name in FIELDS:
            values = getattr(layout, name)
            copy_to(getattr(self._layout, name)[: len(values)], values)
        if size not in self._sizes or self._memory is None:
            self._sizes.add(size)
            self._run(size)
        else:
            if size not in self._graphs:
                graph = torch.cuda.CUDAGraph()
                # All graphs share their memory, because none runs beside another. Other threads may use the GPU
                # meanwhile: vLLM's copies the sampled tokens to the host.
                with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
                    self._run(size)
                self._graphs[size] = graph
            self._graphs[size].replay()
        tokens = len(frames) * len(self._rows) // GROUP_FRAMES
        return self._rows[:tokens]

    def _padded(self, lengths: Sequence[int], size: int) -> Packed:
        """Return the layout of a group with its padding, on the host."""
        padding = size - sum(lengths)
        layout = pack([*lengths, padding] if padding else lengths, torch.device("cpu"), self._known)
        no_chunks = (0, CHUNKS + 1 - len(layout.starts))
        starts, key_starts = layout.starts, layout.key_starts
        return replace(
            layout,
            starts=functional.pad(starts, no_chunks, value=int(starts[-1])),
            key_starts=functional.pad(key_starts, no_chunks, value=int(key_starts[-1])),
        )

    def _run(self, size: int) -> None:
        fixed = self._layout
        layout = replace(
            fixed,
            lengths=[size, *fixed.lengths[1:]],
            positions=fixed.positions[:size],
            places=fixed.places[:size],
        )
        rows = self._run_layers(self._frames[:size], layout)
        self._rows[: len(rows)] = rows
