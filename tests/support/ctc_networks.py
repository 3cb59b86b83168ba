"""A CTC network that hears tones: each letter is a frequency. So a test knows what it says and when."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

RATE = 16_000
FRAME = 320
"""Samples of a frame: 20 ms."""
VOCABULARY = {"<pad>": 0, "|": 1, **{letter: column for column, letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 2)}}
LETTER_FRAMES = 3
PAUSE_FRAMES = 20


def write_network(folder: Path) -> Path:
    """Write model.onnx, vocab.json and preprocessor_config.json to a new folder, and return it."""
    folder.mkdir()
    times = np.arange(FRAME) / RATE
    filters = np.zeros((len(VOCABULARY), 1, FRAME), "<f4")
    for token, column in VOCABULARY.items():
        if token.isalpha():
            filters[column, 0] = 0.125 * np.sin(2 * np.pi * _frequency(token) * times)
    bias = np.full(len(VOCABULARY), 0, "<f4")
    bias[0] = 5
    nodes = [
        _node("Reshape", ["samples", "shape"], "signal"),
        _node("Conv", ["signal", "filters", "bias"], "columns", _integers("strides", [FRAME])),
        _node("Transpose", ["columns"], "logits", _integers("perm", [0, 2, 1])),
    ]
    tensors = [
        _tensor("shape", 7, np.array([1, 1, -1], "<i8")), _tensor("filters", 1, filters), _tensor("bias", 1, bias),
    ]  # fmt: skip
    graph = b"".join(_field(1, node) for node in nodes) + _field(2, b"tones")
    graph += b"".join(_field(5, tensor) for tensor in tensors)
    graph += _field(11, _value("samples", 2)) + _field(12, _value("logits", 3))
    model = _number(1, 8) + _field(8, _field(1, b"") + _number(2, 13)) + _field(7, graph)
    (folder / "model.onnx").write_bytes(model)
    (folder / "vocab.json").write_text(json.dumps(VOCABULARY))
    (folder / "preprocessor_config.json").write_text(json.dumps({"do_normalize": False}))
    return folder


def write_speech(path: Path, words: Iterable[str]) -> list[float]:
    """Write a recording of words, and return their starts in seconds. Signs that are no letters are not spoken."""
    parts, starts = [np.zeros(PAUSE_FRAMES * FRAME)], list[float]()
    for word in words:
        starts.append(sum(map(len, parts)) / RATE)
        for letter in filter(str.isalpha, word.upper()):
            times = np.arange(LETTER_FRAMES * FRAME) / RATE
            parts += [0.5 * np.sin(2 * np.pi * _frequency(letter) * times), np.zeros(FRAME)]
        parts.append(np.zeros(PAUSE_FRAMES * FRAME))
    soundfile.write(path, np.concatenate(parts), RATE, subtype="FLOAT")
    return starts


def _frequency(letter: str) -> float:
    """Return the frequency of a letter: whole waves in a frame, so that no letter sounds in another one's filter."""
    return RATE / FRAME * 2 * VOCABULARY[letter]


def _varint(value: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first."""
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def _number(field: int, value: int) -> bytes:
    """Return a number of a protobuf message."""
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    """Return a text, bytes or a message inside a protobuf message."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _node(operator: str, inputs: list[str], output: str, attribute: bytes = b"") -> bytes:
    """Return a NodeProto of onnx.proto."""
    names = b"".join(_field(1, name.encode()) for name in inputs) + _field(2, output.encode())
    return names + _field(4, operator.encode()) + (_field(5, attribute) if attribute else b"")


def _integers(name: str, values: list[int]) -> bytes:
    """Return an AttributeProto."""
    return _field(1, name.encode()) + b"".join(_number(8, value) for value in values) + _number(20, 7)


def _tensor(name: str, kind: int, values: NDArray[Any]) -> bytes:
    """Return a TensorProto."""
    dims = b"".join(_number(1, size) for size in values.shape)
    return dims + _number(2, kind) + _field(8, name.encode()) + _field(9, values.tobytes())


def _value(name: str, rank: int) -> bytes:
    """Return a ValueInfoProto of a tensor of floats whose sizes are open."""
    shape = b"".join(_field(1, _field(2, f"{name}_{axis}".encode())) for axis in range(rank))
    return _field(1, name.encode()) + _field(2, _field(1, _number(1, 1) + _field(2, shape)))
