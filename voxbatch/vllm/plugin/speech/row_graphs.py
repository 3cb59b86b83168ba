"""The work of a step after the language model, in batches of a few sizes: on a GPU one CUDA graph for each size.

A frame takes some 1,500 small kernels. Python needs longer to start them one by one than the GPU needs to run them for
64 requests; a graph starts all of them at once. Products of another number of rows have other last bits, and one other
code changes all later frames of a speech. So the rows are padded to one of the sizes without graphs, too: the codes of
both are the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448, 480, 512)
"""Numbers of rows on a GPU. More rows than the last number are divided."""
CPU_SIZES = (16,)
"""The same on a CPU, whose codes do not depend on the number of requests."""


class RowGraphs:
    """A function of rows that is called with one of a few numbers of rows.

    Args:
        function: function of [rows, width], which returns [rows, columns]. It reads and writes no tensor but those that
            stay where they are.
        padding: [width]: a row that changes nothing.
    """

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], padding: torch.Tensor) -> None:
        self._function, self._padding = function, padding
        self._sizes = SIZES if padding.is_cuda else CPU_SIZES
        self._rows = padding.repeat(self._sizes[-1], 1)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        """By number of rows: the graph, and the tensor of its result."""

    def capture(self, largest: int) -> None:
        """Capture the graphs for up to `largest` rows. They share their memory, because none runs beside another."""
        memory = torch.cuda.graph_pool_handle()
        with torch.inference_mode():
            for size in reversed([size for size in self._sizes if size < 2 * largest]):
                rows, graph = self._rows[:size], torch.cuda.CUDAGraph()
                self._function(rows)  # cuBLAS loads its kernels now, which a capture does not allow
                with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
                    result = self._function(rows)
                self._graphs[size] = graph, result

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the function's result for rows, [rows, columns]."""
        return torch.cat([self._padded(part) for part in rows.split(self._sizes[-1])])

    def _padded(self, rows: torch.Tensor) -> torch.Tensor:
        count = len(rows)
        size = next(size for size in self._sizes if size >= count)
        self._rows[:count] = rows
        self._rows[count:size] = self._padding
        if size not in self._graphs:
            return self._function(self._rows[:size])[:count]
        graph, result = self._graphs[size]
        graph.replay()
        return result[:count].clone()  # the next part may be of the same size
