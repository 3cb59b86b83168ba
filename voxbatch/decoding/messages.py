"""Messages between a pool and its decoders.

In addition, a decoder sends heartbeats while it waits for a recording: None, or the RetryWait of a store that does not
answer. A decoder that cannot work on this machine says so with a DecoderRefused.
"""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from voxbatch.records import OVERLAP, SAMPLING_RATE, Chunk, Failure, Span, SpeakerCount, Turn
from voxbatch.storage import Stores
from voxbatch.storage.address import is_remote
from voxbatch.storage.circuit_breaker import Reachable, Report

if TYPE_CHECKING:  # a run that does not tell speakers apart does not import the package
    from multiprocessing.connection import Connection

    from voxbatch.speakers import SpeakerWeights, Voice

SPLIT_ADVICE = "raise --max-hours, or split it with `offset` and `duration`"
"""Advice about a recording with too many hours."""


@dataclass(frozen=True, slots=True)
class Diarization:
    """The way to tell the speakers of a recording apart."""

    weights: SpeakerWeights
    count: SpeakerCount
    voices: tuple[Voice, ...] = ()


@dataclass(frozen=True, slots=True)
class DecoderSettings:
    """First message to a decoder."""

    stores: Stores
    received_fd: int
    """See decoder.Allowance."""


@dataclass(frozen=True, slots=True)
class DecodeTask:
    """Part of an Item that a decoder needs."""

    item: int
    """Item.index."""
    audio: str
    offset: float
    duration: float | None
    channel: int | None
    lang: str | None
    limit: int
    """Length of the engine's longest chunk, in samples."""
    audio_stream: int | str | None = None
    max_samples: int = sys.maxsize
    """Length of the longest recording, or part of one, that is decoded to its end, in samples."""
    overlap: int = OVERLAP
    """Samples by which both sides of a forced cut extend beyond the cut."""
    advice: str = SPLIT_ADVICE
    """Advice about a recording that is longer."""
    recording: int = 0
    """Number of the recording among those of its item's question, from 0. The indexes of its chunks start with it."""
    is_retry: bool = False
    """True if a decoder died with this task, or its ffmpeg was killed. Then ffmpeg is not started a third time."""
    received: tuple[Span, ...] = ()
    """Spans of the chunks that were received before the retry. They are not sent again."""
    channels: str | None = None
    """The way to recognise the channels alone: see audio.sides. None mixes them down."""
    diarization: Diarization | None = None
    """The way to tell the speakers apart. None does not."""
    excerpts: int | None = None
    """Number of excerpts of `limit` samples that are decoded of a longer recording. None decodes all of it."""

    @property
    def row_group(self) -> str | None:
        """The row group of a remote Parquet file that a decoder fetches whole for the task: its file and its number, as
        in the address of a parquet_members.ParquetMember. None if there is none."""
        file, _, row = self.audio.rpartition("#row=")
        is_fetched = file.lower().endswith(".parquet") and is_remote(file)
        return f"{file}#row={row.partition('+')[0]}" if is_fetched else None


@dataclass(frozen=True, slots=True)
class Decoded:
    """Final message of an item whose chunks have all been sent."""

    item: int
    spans: tuple[Span, ...]
    warnings: tuple[str, ...]
    cpu_s: float
    """CPU seconds of decoding and cutting."""
    report: Reachable
    """Report that the recording's place answers."""
    recording: int = 0
    """See DecodeTask."""
    levels: tuple[bytes, ...] = ()
    """Levels of the channels that were recognised alone, one byte for each LEVEL_FRAME samples of each channel: dB
    above MIN_LEVEL_DB. Twelve hours of a channel take 2 MB. Empty if the channels were mixed down."""
    turns: tuple[Turn, ...] | None = None
    """The turns of the speakers on the recording's clock. None if they were not told apart."""
    claimed_s: float | None = None
    """Seconds of the recording by its header, if only excerpts of it were decoded; 0 if the header does not tell. None
    if all of it was decoded."""
    frame_rate: float | None = None
    """Frames per second of the picture. None without one."""
    aspect_ratio: float | None = None
    """Width of the picture divided by its height. None without one."""

    @property
    def seconds(self) -> float:
        """Seconds of audio in the cores of all chunks. Channels that are recognised alone count once."""
        return sum(span.core_end - span.core_start for span in self.spans if not span.channel) / SAMPLING_RATE


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Final message of an item that failed."""

    item: int
    failure: Failure
    report: Report | None = None
    """Report about the recording's place; None if the failure says nothing about the place."""
    retry: DecodeTask | None = None
    """Task to give out again. If `report` says that the place is unreachable, the retry waits until the place answers.
    Without a report, ffmpeg was killed, and the retry is immediate. None if a retry cannot help."""
    recording: int = 0
    """See DecodeTask."""


@dataclass(frozen=True, slots=True)
class DecoderRefused:
    """Last message of a decoder that cannot work because of a limit of this machine. No recording is to blame."""

    reason: str


Message = Chunk | Decoded | Undecodable


def receive(connection: Connection) -> Any:
    """Return the next message of a decoder.

    Raises:
        EOFError, OSError: the decoder has died, or sent what no decoder sends: a recording may have taken it over.
    """
    try:
        return _Records(io.BytesIO(connection.recv_bytes())).load()
    except pickle.UnpicklingError as e:
        raise EOFError(str(e)) from e


class _Records(pickle.Unpickler):  # noqa: S301 find_class admits records alone
    """Unpickler of the records of voxbatch alone. Any other object could run code of the sender's choice here."""

    OTHERS = frozenset((
        "voxbatch.shared_samples.SharedSamples", "numpy.dtype", "numpy._core.multiarray.scalar", "pathlib.PosixPath",
        "pathlib._local.PosixPath",
    ))  # fmt: skip
    """Further classes of the values in records."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class of a record, an enumeration, or another value."""
        if f"{module}.{name}" == "builtins.getattr":  # by which Python 3.11 names a member of an enumeration
            return _member
        if f"{module}.{name}" in self.OTHERS:
            return super().find_class(module, name)
        loaded = super().find_class(module, name) if module.startswith("voxbatch.") and "." not in name else None
        if isinstance(loaded, type) and (is_dataclass(loaded) or issubclass(loaded, Enum)):
            return loaded
        raise pickle.UnpicklingError(f"{module}.{name} is no record of a message")


def _member(kind: Any, name: str) -> Enum:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind[name]
    raise pickle.UnpicklingError(f"{kind} is no enumeration")
