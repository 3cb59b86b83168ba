"""Read the headers of recordings in a child process without credentials, for a process that may do more than decode.

The parent fetches the bytes, and the child, which parses them, asks for them one read at a time. The child gets no
variable with a secret, no file and no network, as far as the kernel grants it (see process.confinement). All that
crosses is bytes of a fixed form, because a pickled object of a child that was taken over could run code in the parent.

    parent → child   the size of the recording; then the bytes of each read
    child → parent   a read: a count and a position; or the end: the seconds, NaN if the header does not tell
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import struct
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle

from voxbatch.decoding.decoder import MEMORY_LIMIT
from voxbatch.errors import VoxbatchError
from voxbatch.process import confinement
from voxbatch.process.child import ChildProcess, for_program, handle_stop_signals
from voxbatch.storage.recording import Recording

SILENCE_S = 30.0
"""Seconds without a message of the child after which it hangs. It only parses."""
MAX_READ_BYTES = 1 << 20
"""Most bytes of one read. libsndfile reads some KB of a header at a time."""
MAX_READS = 10_000
"""Most reads of one header."""
_SIZE, _MESSAGE = struct.Struct("=q"), struct.Struct("=?qqd")
"""True for the end; the count, the position, and the seconds."""


class HeaderReader:
    """Reads headers in a child process, which is started when it is needed, and again if it has died. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None

    def __call__(self, recording: Recording) -> float | None:
        """Return the seconds that the header of a recording claims; None if it does not tell, or if the child died of
        it. No program such as ffmpeg is started.

        Raises:
            TransientError, LocalReadError, UnusableObject: the recording cannot be read.
        """
        ours, theirs = Pipe()
        with ours, contextlib.suppress(EOFError, OSError, struct.error):
            with theirs:
                child = self._send(theirs)
            ours.send_bytes(_SIZE.pack(recording.size))
            for _ in range(MAX_READS):
                if not ours.poll(SILENCE_S):
                    break
                is_end, count, position, seconds = _MESSAGE.unpack(ours.recv_bytes(_MESSAGE.size))
                if is_end:
                    return float(seconds) if 0 < seconds < math.inf else None
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

    def __init__(self, connection: Connection):
        self._connection = connection
        (self.size,) = _SIZE.unpack(connection.recv_bytes())
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
        """Raise an error: only programs need a file, and none is started."""
        raise NotImplementedError

    def verify_unchanged(self) -> None:
        """Do nothing: a header is read once."""

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def main(connection: Connection) -> None:
    """Read headers, each in a thread of its own, until the parent process ends."""
    handle_stop_signals(lambda *_: None)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    # All modules are imported before this process cannot open files any more.
    from voxbatch.audio import mp4_header, mpeg_frames, waveforms  # noqa: F401

    confinement.confine(confinement.Limits(()))
    with contextlib.suppress(EOFError, OSError):
        while True:
            header = Connection(recv_handle(connection))
            threading.Thread(target=_read_header, args=(header,), daemon=True).start()


def _read_header(connection: Connection) -> None:
    from voxbatch.audio.waveforms import probe

    with contextlib.suppress(EOFError, OSError), contextlib.closing(_AskedRecording(connection)) as recording:
        seconds = None
        with contextlib.suppress(VoxbatchError):
            seconds = probe(recording, by_ffmpeg=False)
        connection.send_bytes(_MESSAGE.pack(True, 0, 0, math.nan if seconds is None else seconds))
