"""Run segmentation 3.0 and CAM++ by PyTorch, on a GPU: the same ONNX files, in batches of many windows and pieces.

PyTorch comes with vLLM; onnxruntime's build for GPUs does not, and onnx2torch knows no LSTM. Both networks are short,
so they are written out here. Each step takes its weights in the order in which the nodes of the file use them. A file
with other shapes is refused.

Batches always have the same shape, filled up with silence, and TF32 is off. So the scores of a window do not depend on
the other windows of its batch, and the turns are those of onnxruntime but for near ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as nnf

from voxbatch.errors import ConfigError
from voxbatch.records import Samples
from voxbatch.speakers import embedding
from voxbatch.speakers.onnx_file import NetworkFile, read_network
from voxbatch.speakers.segmentation import WINDOW
from voxbatch.speakers.weights import SpeakerWeights

Array = npt.NDArray[np.float32]

WINDOWS, PIECES = 32, 64
"""Windows and pieces of a batch on a GPU. A CPU, where only tests run these networks, gets an eighth."""
PIECE_FRAMES = 200
"""Frames of the filter banks of the longest piece: 2 s. CAM++ pools its context over segments of this length, so each
piece is a single one."""
PIECE_SAMPLES = embedding.FRAME + (PIECE_FRAMES - 1) * embedding.HOP
_LSTM_LAYERS, _LSTM_SIZE, _LSTM_START = 4, 128, 13
_CAM_BLOCKS = ((12, 1), (24, 2), (16, 2))
"""Layers and dilation of the blocks of CAM++."""


class TorchNetworks:
    """Both networks on a device of PyTorch: "cuda" or "cpu".

    Raises:
        ConfigError: a file holds another network.
    """

    def __init__(self, weights: SpeakerWeights, device: str) -> None:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        self._device = device
        self._segmentation = self._loaded(_Segmentation, weights.segmentation)
        self._embedding = self._loaded(_Embedding, weights.embedding)

    def segment(self, windows: Sequence[Samples]) -> Array:
        """Return the scores of windows, shape (windows, FRAMES, classes)."""
        scores: Array = self._in_batches(self._segmentation, windows)
        return scores

    def embed(self, pieces: Sequence[Samples]) -> Array:
        """Return a unit vector for each piece of PIECE_SAMPLES at most, shape (pieces, dimensions)."""
        vectors: Array = self._in_batches(self._embedding, pieces)
        return vectors

    def _loaded(self, kind: type[_StepNetwork], path: Path) -> _StepNetwork:
        try:
            network = kind(read_network(path), self._device)
            self._in_batches(network, [np.zeros(PIECE_SAMPLES, np.float32)])
        except (ValueError, IndexError, KeyError, StopIteration, RuntimeError) as e:
            if isinstance(e, torch.OutOfMemoryError):
                raise
            raise ConfigError(f"{path} is not the network that runs on a GPU: {str(e).splitlines()[0]}") from e
        return network

    @torch.inference_mode()  # type: ignore[untyped-decorator] # where PyTorch is not installed
    def _in_batches(self, network: _StepNetwork, rows: Sequence[Samples]) -> Any:
        outputs = []
        size = network.rows if self._device != "cpu" else network.rows // 8
        for start in range(0, len(rows), size):
            batch = np.zeros((size, network.num_samples), np.float32)
            lengths = np.full(size, embedding.FRAME)
            for number, row in enumerate(rows[start : start + size]):
                batch[number, : len(row)], lengths[number] = row, len(row)
            output = network(torch.from_numpy(batch).to(self._device), torch.from_numpy(lengths).to(self._device))
            outputs.append(output[: len(rows) - start])
        return torch.cat(outputs).cpu().numpy()


class _StepNetwork:
    """A network, and the weights that its steps take one after the other."""

    rows: int
    num_samples: int

    def __init__(self, file: NetworkFile, device: str) -> None:
        self._weights = [torch.from_numpy(weight.copy()).to(device) for weight in file.weights]

    def __call__(self, samples: Any, lengths: Any) -> Any:
        """Return the output for a batch of this shape: (rows, num_samples), with the number of samples of each row."""
        left = iter(self._weights)
        output = self._forward(samples, lengths, left.__next__)
        if next(left, None) is not None:
            raise ValueError("it has more weights")
        return output

    def _forward(self, samples: Any, lengths: Any, weight: Any) -> Any:
        raise NotImplementedError


class _Segmentation(_StepNetwork):
    """Segmentation 3.0: SincNet's filters, convolutions, four LSTM of both directions, and three linear layers."""

    rows, num_samples = WINDOWS, WINDOW

    def __init__(self, file: NetworkFile, device: str) -> None:
        super().__init__(file, device)
        end = _LSTM_START + 3 * _LSTM_LAYERS
        recurrent, self._weights = self._weights[_LSTM_START:end], self._weights[:_LSTM_START] + self._weights[end:]
        self._lstm = torch.nn.LSTM(
            recurrent[0].shape[-1], _LSTM_SIZE, _LSTM_LAYERS, batch_first=True, bidirectional=True, device=device
        )
        # ONNX has the gates in the order input, output, forget, cell; PyTorch input, forget, cell, output.
        gates = torch.arange(4 * _LSTM_SIZE, device=device).view(4, -1)[[0, 2, 3, 1]].flatten()
        for number in range(_LSTM_LAYERS):
            inputs, hidden, biases = recurrent[3 * number : 3 * number + 3]
            for direction, suffix in enumerate(("", "_reverse")):
                bias = biases[direction].view(2, -1)[:, gates]
                for name, values in (
                    ("weight_ih", inputs[direction][gates]), ("weight_hh", hidden[direction][gates]),
                    ("bias_ih", bias[0]), ("bias_hh", bias[1]),
                ):  # fmt: skip
                    getattr(self._lstm, f"{name}_l{number}{suffix}").data.copy_(values)

    def _forward(self, samples: Any, lengths: Any, weight: Any) -> Any:
        x = nnf.instance_norm(samples[:, None], weight=weight(), bias=weight())
        x = nnf.conv1d(x, weight(), stride=10).abs()
        for is_last in (False, False, True):
            x = nnf.instance_norm(nnf.max_pool1d(x, 3), weight=weight(), bias=weight())
            x = nnf.leaky_relu(x)
            if not is_last:
                x = nnf.conv1d(x, weight(), weight())
        x = self._lstm(x.transpose(1, 2))[0]
        for _ in range(2):
            x = nnf.leaky_relu(x @ weight() + weight())
        return nnf.log_softmax(x @ weight() + weight(), -1)


class _Embedding(_StepNetwork):
    """CAM++ on Kaldi's filter banks. A mask keeps what follows the end of a piece at zero, as the padding of a piece
    alone is."""

    rows, num_samples = PIECES, PIECE_SAMPLES

    def __init__(self, file: NetworkFile, device: str) -> None:
        super().__init__(file, device)
        self._has_last_relu = file.operations[-1] == "Relu"
        self._povey = torch.from_numpy(embedding.POVEY_WINDOW).to(device)
        self._filters = torch.from_numpy(embedding.FILTERS).to(device)

    def _banks(self, samples: Any, frames: Any) -> Any:
        """Return what `filter_banks` does, shape (rows, PIECE_FRAMES, BINS)."""
        x = samples.unfold(1, embedding.FRAME, embedding.HOP)
        x = x - x.mean(-1, keepdim=True)
        x = x - embedding.PRE_EMPHASIS * torch.cat([x[..., :1], x[..., :-1]], -1)
        spectrum = torch.view_as_real(torch.fft.rfft(x * self._povey, embedding.FFT)[..., : embedding.FFT // 2])
        banks = (spectrum.square().sum(-1) @ self._filters).clamp_min(embedding.FLOOR).log()
        position = torch.arange(PIECE_FRAMES, device=samples.device)
        mean = (banks * (position < frames)[..., None]).sum(1, keepdim=True) / frames[..., None]
        return (banks - mean).gather(1, (position % frames)[..., None].expand_as(banks))

    def _forward(self, samples: Any, lengths: Any, weight: Any) -> Any:
        frames = 1 + (lengths[:, None] - embedding.FRAME) // embedding.HOP
        banks = self._banks(samples, frames)
        frames = frames.clamp_min(embedding.MIN_FRAMES)
        position = torch.arange(PIECE_FRAMES, device=samples.device)
        mask = (position < frames)[:, None, None]

        def convolved(x: Any, stride: int = 1, padding: int = 1) -> Any:
            return nnf.conv2d(x, weight(), weight(), (stride, 1), padding)

        def normalised(x: Any) -> Any:
            scale, bias, mean, variance = (weight() for _ in range(4))
            return nnf.batch_norm(x, mean, variance, scale, bias)

        x = nnf.relu(convolved(banks.transpose(1, 2)[:, None] * mask)) * mask
        for stride in (2, 1, 2, 1):
            y = convolved(nnf.relu(convolved(x, stride)) * mask)
            x = nnf.relu(y + (x if stride == 1 else convolved(x, stride, 0))) * mask
        x = (nnf.relu(convolved(x, 2)) * mask).flatten(1, 2)
        x = nnf.relu(nnf.conv1d(x, weight(), weight(), 2, 2))
        frames = ((frames + 1) // 2)[:, None]
        mask = position[: x.shape[-1]] < frames
        for layers, dilation in _CAM_BLOCKS:
            for _ in range(layers):
                y = nnf.relu(nnf.conv1d(nnf.relu(normalised(x)), weight(), weight())) * mask
                local = nnf.conv1d(y, weight(), padding=dilation, dilation=dilation)
                context = 2 * y.sum(-1, keepdim=True) / frames  # the means of the piece, and of its only segment
                context = nnf.relu(nnf.conv1d(context, weight(), weight()))
                x = torch.cat([x, local * torch.sigmoid(nnf.conv1d(context, weight(), weight()))], 1)
            x = nnf.conv1d(nnf.relu(normalised(x)), weight())
        x = nnf.relu(x + weight()[:, None])
        mean = (x * mask).sum(-1, keepdim=True) / frames
        variance = ((x - mean).square() * mask).sum(-1, keepdim=True) / (frames - 1)
        x = normalised(nnf.conv1d(torch.cat([mean, variance.sqrt()], 1), weight()).squeeze(-1))
        return nnf.normalize(nnf.relu(x) if self._has_last_relu else x, dim=-1)
