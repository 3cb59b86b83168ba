"""Run the two networks by onnxruntime on one core, or let a process with a GPU run them: see `network_process`."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from voxbatch.errors import ConfigError, EngineError
from voxbatch.onnx_runtime import import_onnxruntime
from voxbatch.records import Samples
from voxbatch.speakers.embedding import filter_banks
from voxbatch.speakers.segmentation import FRAMES, windows
from voxbatch.speakers.weights import SpeakerWeights

Array = npt.NDArray[np.float32]
GPU_BATCHES = 16
"""Batches of windows (160 s) that a decoder sends to a GPU at a time."""


class Networks(Protocol):
    """The networks of segmentation and embedding."""

    batches: int
    """Batches of windows that are computed at a time. The turns do not depend on it."""

    def segment(self, samples: Samples, count: int) -> Array:
        """Return the scores of the first windows of some samples, shape (count, FRAMES, classes)."""

    def embed(self, pieces: Sequence[Samples]) -> Array:
        """Return a unit vector for the voice in each piece of FRAME samples or more, shape (pieces, dimensions)."""


def networks_of(weights: SpeakerWeights) -> Networks:
    """Return the networks.

    Raises:
        ConfigError: they cannot be loaded.
    """
    return _RemoteNetworks(weights.address) if weights.address else _OnnxNetworks(weights)


class _OnnxNetworks:
    batches = 1

    def __init__(self, weights: SpeakerWeights) -> None:
        self._segmentation, self._embedding = _session(weights.segmentation), _session(weights.embedding)

    def segment(self, samples: Samples, count: int) -> Array:
        return _output(self._segmentation, windows(samples, count)[:, None])

    def embed(self, pieces: Sequence[Samples]) -> Array:
        # Pieces of different lengths make no batch, and a batch of eight would save 20 % of the time.
        vectors = np.concatenate([_output(self._embedding, filter_banks(piece)[None]) for piece in pieces])
        units: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        return units


def _session(path: Path) -> Any:
    try:
        onnxruntime = import_onnxruntime()
    except ImportError as e:
        raise ConfigError("speakers need onnxruntime: pip install voxbatch[cpu]") from e
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as e:  # onnxruntime has a type of exception for each kind of damage
        raise ConfigError(f"cannot load the network {path}: {str(e).splitlines()[0]}") from e


def _output(session: Any, array: Array) -> Array:
    output: Array = session.run(None, {session.get_inputs()[0].name: array})[0]
    return output


class _RemoteNetworks:
    """The networks of a network process.

    Raises:
        EngineError: the process has ended.
    """

    batches = GPU_BATCHES

    def __init__(self, address: str) -> None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
        except OSError as e:
            connection.close()
            raise _gone(e) from e
        self._connection = Connection(connection.detach())

    def segment(self, samples: Samples, count: int) -> Array:
        return self._answer(samples, count).reshape(count, FRAMES, -1)

    def embed(self, pieces: Sequence[Samples]) -> Array:
        return self._answer(np.concatenate(pieces), [len(piece) for piece in pieces]).reshape(len(pieces), -1)

    def _answer(self, samples: Samples, request: int | list[int]) -> Array:
        try:
            self._connection.send(request)
            self._connection.send_bytes(np.ascontiguousarray(samples).data)
            return np.frombuffer(self._connection.recv_bytes(), np.float32)
        except (EOFError, OSError) as e:
            raise _gone(e) from e


def _gone(error: Exception) -> EngineError:
    return EngineError(f"the process that runs the networks of speakers has ended ({error}): run again to go on")
