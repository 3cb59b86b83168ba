"""Give a recording without a path to the decoder processes, as a file in TMPDIR: an array of samples, bytes, or an open
file."""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voxbatch.errors import AudioError, ConfigError, StorageError
from voxbatch.failure_kinds import FailureKind
from voxbatch.manifest.recording_path import missing
from voxbatch.records import Failure
from voxbatch.sources.named import is_pattern
from voxbatch.storage import DEFAULT_STORES, is_remote
from voxbatch.storage.temporary_files import temporary_errors

WAV_FORMATS = {"int16": 1, "int32": 1, "float32": 3, "float64": 3}
"""Format tag of a WAV file for each type of samples (WAVE_FORMAT_PCM, WAVE_FORMAT_IEEE_FLOAT). It loses nothing."""
MAX_CHANNELS = 64
"""Most channels of an array. An array with more has its axes the other way round."""
MAX_DATA_BYTES = (1 << 32) - 64
"""Most bytes of samples: a WAV header counts them in 32 bits."""
MAX_PEAK = 100.0
"""Highest sample of an array of floats. Higher ones are 16-bit samples that nobody divided by 32,768; resampling may
exceed the full scale of 1 a little."""
BLOCK_FRAMES = 1 << 20
"""Samples per channel that are written at a time."""
BLOCK_BYTES = 1 << 20
"""Bytes that are read from an open file at a time."""


class OpenFile(Protocol):
    """A file that is open in binary mode: `open(path, "rb")`, `io.BytesIO`, an upload of a web server."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""


Audio: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | OpenFile | NDArray[Any]
"""A path, an address (gs://, s3://, http(s)://), the bytes of a recording, an open file, or samples (`array_file`)."""


@contextlib.contextmanager
def recording_place(audio: Audio, sampling_rate: int | None) -> Iterator[tuple[str, str]]:
    """Yield the absolute path or the address of a recording, and its name for messages. One that has neither is in a
    temporary file meanwhile.

    Raises:
        AudioError: an open file cannot be read.
        ConfigError: `audio` is nothing of the kind, or a sampling rate is missing or superfluous.
    """
    is_array = hasattr(audio, "__array__")
    if sampling_rate is not None and isinstance(audio, list | tuple):
        advice = 'give samples as an array: numpy.array(samples, dtype="float32")'
        raise ConfigError(f"audio is of type {type(audio).__name__}; {advice}")
    if sampling_rate is not None and not is_array:
        raise ConfigError(f"sampling_rate={sampling_rate!r} is for arrays; a recording's file tells its own")
    if isinstance(audio, str | os.PathLike):
        place = os.path.expanduser(audio)
        place = place if is_remote(place) else os.path.abspath(place)
        yield place, place
    elif isinstance(audio, bytes | bytearray | memoryview) or hasattr(audio, "read"):
        with bytes_file(audio) as path:
            yield path, name_of(audio)
    elif is_array:
        with array_file(audio, sampling_rate) as path:
            yield path, "the array"
    else:
        raise ConfigError(
            f"audio is of type {type(audio).__name__}; give one path, address, file, bytes or array, and several to "
            "voxbatch.run or one by one to a Transcriber"
        )


def path_failure(path: str) -> Failure | None:
    """Return the failure of a path that cannot be opened, with what to do. None if it can."""
    try:
        DEFAULT_STORES.recording(path).close()
    except (AudioError, StorageError) as e:
        if os.path.isdir(path):
            return Failure(FailureKind.NOT_AUDIO, f"{path} is a folder; voxbatch.run transcribes all recordings in it")
        if not os.path.lexists(path):
            reason = "it is a pattern, which voxbatch.run takes" if is_pattern(path) else f"it {missing(path)}"
            return Failure(FailureKind.NOT_FOUND, f"cannot open {path}: {reason}")
        return Failure(e.kind, str(e), isinstance(e, StorageError))
    return None


@contextlib.contextmanager
def array_file(audio: ArrayLike, sampling_rate: int | None) -> Iterator[str]:
    """Yield the path of a file with the samples of an array. The file vanishes with this context. Only its user can
    read it.

    Args:
        audio: shape (num_samples,) or (num_channels, num_samples); floats with full scale ±1, or int16 or int32.

    Raises:
        ConfigError: the array has another shape or type, or the sampling rate is missing.
        TemporaryFileError: the file cannot be written.
    """
    samples = np.atleast_2d(np.asarray(audio))
    _check(samples, sampling_rate)
    with _named_file("the array", _wav_blocks(samples, int(sampling_rate or 0))) as path:
        yield path


@contextlib.contextmanager
def bytes_file(audio: bytes | bytearray | memoryview | OpenFile) -> Iterator[str]:
    """Yield the path of a file with the bytes of a recording, in any format. The file vanishes with this context. Only
    its user can read it.

    Args:
        audio: bytes; or an open file, which is read from its position to its end and stays open.

    Raises:
        AudioError: the file cannot be read, or there are no bytes.
        ConfigError: the file is open in text mode.
        TemporaryFileError: the file cannot be written.
    """
    blocks = [audio] if isinstance(audio, bytes | bytearray | memoryview) else _file_blocks(audio)
    with _named_file(name_of(audio), blocks) as path:
        if not os.path.getsize(path):
            advice = "" if isinstance(blocks, list) else "; if it was just written, call seek(0) before"
            raise AudioError(f"the recording is 0 bytes long{advice}", FailureKind.EMPTY)
        yield path


def name_of(audio: object) -> str:
    """Return the name of a recording without a path, for messages: the name that an open file has, else its kind."""
    if isinstance(audio, bytes | bytearray | memoryview):
        return "the bytes"
    name = getattr(audio, "name", None)
    return name if isinstance(name, str) else "the open file"


def _file_blocks(file: OpenFile) -> Iterator[bytes]:
    while block := _read(file):
        yield block


def _read(file: OpenFile) -> bytes:
    """Read the next bytes. A caller's file that fails is not a folder of temporary files that is full."""
    try:
        block = file.read(BLOCK_BYTES)
        if not isinstance(block, bytes):
            raise ConfigError('the file gives text; open it in binary mode, open(path, "rb")')
        return block
    except UnicodeDecodeError as e:
        raise ConfigError(f'{name_of(file)} is open in text mode; open it in binary mode, open(path, "rb")') from e
    except OSError as e:
        raise AudioError(f"{name_of(file)} cannot be read: {e}", FailureKind.UNREACHABLE) from e


@contextlib.contextmanager
def _named_file(name: str, blocks: Iterable[bytes | bytearray | memoryview]) -> Iterator[str]:
    """Yield the path of a temporary file of these bytes. It has a name, because decoders cannot open the files of this
    process: see process.confinement."""
    with contextlib.ExitStack() as stack:
        with temporary_errors(name):
            file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="voxbatch-"))
            file.writelines(blocks)
            file.flush()
        yield file.name


def _check(samples: NDArray[Any], sampling_rate: int | None) -> None:
    if sampling_rate is None or sampling_rate != int(sampling_rate) or not 0 < sampling_rate < 1 << 31:
        raise ConfigError(f"sampling_rate is {sampling_rate!r}; give the array's samples per second, such as 16000")
    if samples.dtype.name not in WAV_FORMATS:
        raise ConfigError(f"the array is of type {samples.dtype}; give one of {', '.join(WAV_FORMATS)}")
    if samples.ndim != 2 or not 0 < len(samples) <= MAX_CHANNELS:
        raise ConfigError(
            f"the array has the shape {samples.shape}; give (num_samples,) or (num_channels, num_samples) with at most "
            f"{MAX_CHANNELS} channels, such as array.T of what soundfile reads"
        )
    if samples.nbytes > MAX_DATA_BYTES:
        raise ConfigError(f"the array has {samples.nbytes:,} bytes; at most {MAX_DATA_BYTES:,} are allowed: use a file")
    if samples.dtype.kind == "f" and samples.size:
        peak = float(np.abs(samples).max())
        if not peak <= MAX_PEAK:
            raise ConfigError(
                f"the highest sample of the array is {peak:g}; floats have the full scale 1, so divide 16-bit samples "
                "by 32768, or give them as int16"
            )


def _wav_blocks(samples: NDArray[Any], sampling_rate: int) -> Iterator[bytes]:
    """Yield a WAV file: the header, then the interleaved samples.

    Args:
        samples: shape (num_channels, num_samples).
    """
    channels, width, size = len(samples), samples.dtype.itemsize, samples.nbytes
    layout = WAV_FORMATS[samples.dtype.name], channels, sampling_rate, sampling_rate * channels * width
    yield struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, *layout, channels * width, 8 * width)
    yield struct.pack("<4sI", b"data", size)
    for start in range(0, samples.shape[1], BLOCK_FRAMES):
        block = samples[:, start : start + BLOCK_FRAMES].T
        yield np.ascontiguousarray(block, samples.dtype.newbyteorder("<")).tobytes()
