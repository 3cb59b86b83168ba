"""Samples in memory that processes share: a file without a name, whose descriptor goes through a socket.

The process that makes the samples writes them once. A process that only passes them on touches no page of them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line needs the records, which import this module, before such libraries are imported
    from multiprocessing.connection import Connection

    import numpy as np
    from numpy.typing import NDArray

    Samples = NDArray[np.float32]

_ITEM_BYTES = 4
"""Bytes of a sample, a float32."""


class SharedSamples:
    """Samples in shared memory. The memory becomes free when no process has the object or its array any more.

    One thread at a time may use an object.

    Args:
        fd: descriptor of the memory. The object closes it.
    """

    def __init__(self, fd: int, num_samples: int) -> None:
        self._fd: int | None = fd
        self._num_samples = num_samples
        self._array: Samples | None = None

    @classmethod
    def of(cls, samples: Samples) -> SharedSamples:
        """Return a copy of samples in shared memory."""
        import numpy as np

        shared = cls(os.memfd_create("voxbatch-samples"), len(samples))
        content = np.ascontiguousarray(samples, np.float32).data.cast("B")
        while content:
            content = content[os.write(shared._descriptor, content) :]
        return shared

    def __len__(self) -> int:
        return self._num_samples

    @property
    def _descriptor(self) -> int:
        assert self._fd is not None, "the array has taken its place"
        return self._fd

    @property
    def array(self) -> Samples:
        """The samples, which are mapped into this process at the first call. Changes stay in this process."""
        if self._array is None:
            import numpy as np

            size = self._num_samples * _ITEM_BYTES
            memory = mmap.mmap(self._descriptor, size, access=mmap.ACCESS_COPY) if size else b""
            self._array = np.frombuffer(memory, np.float32)
            self._close()  # the mapping has its own descriptor
        return self._array

    def send(self, connection: Connection) -> None:
        """Send the descriptor after a message that tells of it.

        Raises:
            OSError: the other process has ended.
        """
        from multiprocessing.reduction import send_handle

        if self._array is not None:
            SharedSamples.of(self._array).send(connection)
        else:
            send_handle(connection, self._descriptor, 0)  # Linux ignores the number of the process

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # the object was not made
            self._close()


def receive(connection: Connection, num_samples: int) -> SharedSamples | Samples:
    """Receive the descriptor of samples.

    If half of the descriptors that this process may have are in use, the samples are copied, because the kernel drops a
    descriptor for which there is no number.

    Raises:
        EOFError, OSError: the other process has ended.
    """
    from multiprocessing.reduction import recv_handle

    fd = recv_handle(connection)
    shared = SharedSamples(fd, num_samples)
    if fd < resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:  # the kernel gives the lowest free number
        return shared
    return shared.array.copy()
