"""Read the headers of recordings in a child process without credentials, for a process that may do more than decode.

The child, which parses them, gets no variable with a secret, no network, and no file but a recording that is one on
this machine, as far as the kernel grants it (see process.confinement). Of other recordings the parent fetches the
bytes, and the child asks for them one read at a time. All that crosses is bytes of a fixed form, because a pickled
object of a child that was taken over could run code in the parent.

    parent → child   the size of the recording, the question, and whether it is a file, which follows; else the bytes
                     of each read
    child → parent   a read: a count and a position; or the end: the number that answers, NaN if the header does not
                     tell
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import struct
import threading
from collections.abc import Callable
from enum import IntEnum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle

from voxbatch.decoding.decoder import MEMORY_LIMIT
from voxbatch.errors import AudioError, VoxbatchError
from voxbatch.process import confinement
from voxbatch.process.child import ChildProcess, for_program, handle_stop_signals
from voxbatch.storage.recording import FileRecording, Recording

SILENCE_S = 30.0
"""Seconds without a message of the child after which it hangs. It only parses."""
MAX_READ_BYTES = 1 << 20
"""Most bytes of one read. libsndfile reads some KB of a header at a time."""
MAX_READS = 10_000
"""Most reads of one header."""
_QUESTION, _MESSAGE = struct.Struct("=qB?"), struct.Struct("=?qqd")
"""The size, the question, and whether a file follows. True for the end; the count, the position, and the answer."""


class _Question(IntEnum):
    SECONDS = 0
    CERTAIN_SECONDS = 1
    CHANNELS = 2


class HeaderReader:
    """Reads headers in a child process, which is started when it is needed, and again if it has died. Thread-safe."""

    def __init__(self, is_brief: bool = False) -> None:
        """Start nothing yet.

        Args:
            is_brief: start no program such as ffmpeg, and call no length certain.
        """
        self._is_brief = is_brief
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None

    def __enter__(self) -> HeaderReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def seconds(self, recording: Recording, certain: bool = False) -> float | None:
        """Return the seconds that the header of a recording claims, as `audio.waveforms.probe` does. If the child does
        not know them, or has died of them, ffmpeg is asked, which is a confined process, too.

        Raises:
            TransientError, LocalReadError, UnusableObject: the recording cannot be read.
        """
        if certain:
            return None if self._is_brief else self._ask(recording, _Question.CERTAIN_SECONDS)
        seconds = self._ask(recording, _Question.SECONDS)
        if seconds or self._is_brief:
            return seconds
        from voxbatch.audio.ffmpeg_header import header_seconds

        return header_seconds(recording)

    def best_seconds(self, recording: Recording) -> tuple[float | None, bool]:
        """Return the certain seconds of a recording, else those that its header claims, and whether they are certain.

        Raises:
            TransientError, LocalReadError, UnusableObject: the recording cannot be read.
        """
        certain = self.seconds(recording, certain=True)
        return (self.seconds(recording), False) if certain is None else (certain, True)

    def channels(self, recording: Recording) -> int | None:
        """Return the number of channels by the header; None if the child does not know the format.

        Raises:
            TransientError, LocalReadError, UnusableObject: the recording cannot be read.
        """
        number = self._ask(recording, _Question.CHANNELS)
        return None if number is None else round(number)

    def _ask(self, recording: Recording, question: _Question) -> float | None:
        """Return the answer of the child; None if the header does not tell, or if the child died of it."""
        ours, theirs = Pipe()
        with ours, contextlib.suppress(EOFError, OSError, struct.error):
            with theirs:
                child = self._send(theirs)
            ours.send_bytes(_QUESTION.pack(recording.size, question, recording.is_file))
            if recording.is_file:
                send_handle(ours, recording.fileno(), child.pid)
            for _ in range(MAX_READS):
                if not ours.poll(SILENCE_S):
                    break
                is_end, count, position, answer = _MESSAGE.unpack(ours.recv_bytes(_MESSAGE.size))
                if is_end:
                    return float(answer) if 0 < answer < math.inf else None
                ours.send_bytes(recording.pread(max(0, min(count, MAX_READ_BYTES)), max(0, position)))
            child.kill()
        return None

    def _send(self, connection: Connection) -> ChildProcess:
        """Give the child a connection on which it reads a header."""
        with self._lock:
            if self._child is None or self._child.has_ended():
                self._end()
                self._child = ChildProcess(__name__, inherited=for_program(os.environ), dies_with_parent=True)
            send_handle(self._child.connection, connection.fileno(), self._child.pid)
            return self._child

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._end()


class _AskedRecording:
    """Recording whose bytes the parent sends."""

    is_file = False
    last_arrival = 0.0
    warnings: tuple[str, ...] = ()

    def __init__(self, connection: Connection, size: int):
        self._connection, self.size = connection, size
        self.on_wait: Callable[[], None] = lambda: None

    def pread(self, count: int, at: int) -> bytes:
        """See Recording. The end of the connection is an EOFError or an OSError."""
        data = bytearray()
        while missing := min(count, max(0, self.size - at)) - len(data):
            self._connection.send_bytes(_MESSAGE.pack(False, missing, at + len(data), math.nan))
            if not (part := self._connection.recv_bytes()):
                break
            data += part
        return bytes(data)

    def fileno(self) -> int:
        """Raise an error: nothing that needs the whole recording is done for its header."""
        raise AudioError("a recording of which only single reads come is no file")

    def verify_unchanged(self) -> None:
        """Do nothing: a header is read once."""

    def close(self) -> None:
        """Do nothing: the connection is closed by its owner."""


def main(connection: Connection) -> None:
    """Read headers, each in a thread of its own, until the parent process ends."""
    handle_stop_signals(lambda *_: None)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    # All modules are imported before this process cannot open files any more.
    from voxbatch.audio import mp4_header, mpeg_frames, waveforms  # noqa: F401

    confinement.confine(confinement.Limits(()))
    with contextlib.suppress(EOFError, OSError, RuntimeError):  # RuntimeError: a limit of threads, which the run tells
        while True:
            header = Connection(recv_handle(connection))
            threading.Thread(target=_read_header, args=(header,), daemon=True).start()


def _read_header(connection: Connection) -> None:
    """Answer one question."""
    with connection, contextlib.suppress(EOFError, OSError):
        size, question, is_file = _QUESTION.unpack(connection.recv_bytes())
        recording = FileRecording(recv_handle(connection)) if is_file else _AskedRecording(connection, size)
        with contextlib.closing(recording):
            connection.send_bytes(_MESSAGE.pack(True, 0, 0, _answer(recording, _Question(question)) or math.nan))


def _answer(recording: Recording, question: _Question) -> float | None:
    """Return the number that answers a question; None if the header does not tell."""
    from soundfile import LibsndfileError

    from voxbatch.audio.libsndfile import SoundFileStream
    from voxbatch.audio.waveforms import is_mpeg_audio, probe

    with contextlib.suppress(VoxbatchError, LibsndfileError):
        if question is not _Question.CHANNELS:
            return probe(recording, certain=question is _Question.CERTAIN_SECONDS, by_ffmpeg=False)
        return None if is_mpeg_audio(recording) else SoundFileStream(recording).channels
    return None
