"""Run a network of one input and one output by onnxruntime, on one core."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxbatch.errors import ConfigError


class Network:
    """A network in an ONNX file.

    Raises:
        ConfigError: onnxruntime is not installed, or cannot load the file.
    """

    def __init__(self, path: Path) -> None:
        # onnxruntime 1.31 otherwise sends statistics to its makers and keeps a device id on disk.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        try:
            import onnxruntime
        except ImportError as e:
            raise ConfigError("speakers need onnxruntime: pip install voxbatch[cpu]") from e
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False
        try:
            self._session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as e:  # onnxruntime has a type of exception for each kind of damage
            raise ConfigError(f"cannot load the network {path}: {str(e).splitlines()[0]}") from e
        self._input = self._session.get_inputs()[0].name

    def __call__(self, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the output of the network for its input."""
        output: npt.NDArray[np.float32] = self._session.run(None, {self._input: array})[0]
        return output
