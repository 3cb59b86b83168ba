"""Read the weights of an ONNX file without onnx, which neither vLLM nor voxbatch installs (32 MB).

An ONNX file is a protocol buffer. Here its wire format is read directly: the numbers of the fields are those of
onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

_GRAPH, _NODE, _INITIALIZER = 7, 1, 5
_INPUT, _OUTPUT, _OPERATION, _ATTRIBUTE, _ATTRIBUTE_TENSOR = 1, 2, 4, 5, 5
_DIMS, _TYPE, _FLOATS, _NAME, _RAW = 1, 2, 4, 8, 9
_FLOAT = 1
"""TensorProto.DataType of float32."""
_SIZES = {1: 8, 5: 4}
"""Bytes of a field, by its wire type, if they are fixed."""


@dataclass(slots=True)
class NetworkFile:
    """Content of an ONNX file."""

    operations: list[str] = field(default_factory=list)
    """The operations of the nodes, in their order."""
    weights: list[Array] = field(default_factory=list)
    """The arrays of floats that the nodes take, in the order of the nodes and their inputs. No scalars."""


def read_network(path: Path) -> NetworkFile:
    """Return the operations and the weights of a file.

    Raises:
        ValueError, IndexError, KeyError, StopIteration: it is no ONNX file.
    """
    graph = next(value for number, value in _fields(memoryview(path.read_bytes())) if number == _GRAPH)
    arrays = dict(_tensor(value) for number, value in _fields(graph) if number == _INITIALIZER)
    network = NetworkFile()
    for node in (value for number, value in _fields(graph) if number == _NODE):
        fields = list(_fields(node))
        inputs = [bytes(value).decode() for number, value in fields if number == _INPUT]
        operation = next(bytes(value).decode() for number, value in fields if number == _OPERATION)
        if operation == "Constant":
            output = next(bytes(value).decode() for number, value in fields if number == _OUTPUT)
            attributes = [value for number, value in fields if number == _ATTRIBUTE]
            tensors = [value for value in attributes for number, value in _fields(value) if number == _ATTRIBUTE_TENSOR]
            arrays.update((output, _tensor(tensor)[1]) for tensor in tensors)
        network.operations.append(operation)
        network.weights += [array for name in inputs if (array := arrays.get(name)) is not None and array.ndim]
    return network


def _tensor(data: memoryview) -> tuple[str, Array | None]:
    """Return the name and the content of a tensor; None if it does not hold floats."""
    dims, name, kind, content = list[int](), "", 0, memoryview(b"")
    for number, value in _fields(data):
        if number == _DIMS:
            dims += _varints(value)
        elif number == _TYPE:
            (kind,) = _varints(value)
        elif number in (_FLOATS, _RAW):
            content = value
        elif number == _NAME:
            name = bytes(value).decode()
    return name, np.frombuffer(content, "<f4").reshape(dims) if kind == _FLOAT else None


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and the content of each field of a message. A number is a memoryview, too: see `_varints`."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        start = position
        if (wire_type := tag & 7) == 0:
            _, position = _varint(data, position)
        elif wire_type == 2:
            length, start = _varint(data, position)
            position = start + length
        else:
            position += _SIZES[wire_type]
        yield tag >> 3, data[start:position]


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return a number of variable length, and the position after it."""
    value = shift = 0
    while data[position] & 128:
        value |= (data[position] & 127) << shift
        position, shift = position + 1, shift + 7
    return value | data[position] << shift, position + 1


def _varints(data: memoryview) -> Iterator[int]:
    """Yield the numbers of a field."""
    position = 0
    while position < len(data):
        value, position = _varint(data, position)
        yield value
