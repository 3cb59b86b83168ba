"""Samples in memory that processes share: a file without a name, whose descriptor goes through a socket.

The process that makes the samples writes them once. A process that only passes them on touches no page of them.
"""

from __future__ import annotations

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

    A message that has the object takes their number to another process, where `receive` takes their descriptor, which
    `send` sends after the message. One thread at a time may use an object.

    Args:
        num_samples: number of the samples.
        fd: descriptor of the memory, which the object closes. None before it is received.
    """

    def __init__(self, num_samples: int, fd: int | None = None) -> None:
        self._num_samples, self._fd = num_samples, fd
        self._array: Samples | None = None

    @classmethod
    def of(cls, samples: Samples) -> SharedSamples:
        """Return a copy of samples in shared memory."""
        import numpy as np

        fd = os.memfd_create("voxbatch-samples")
        shared = cls(len(samples), fd)
        content = np.ascontiguousarray(samples, np.float32).data.cast("B")
        while content:
            content = content[os.write(fd, content) :]
        return shared

    def __len__(self) -> int:
        return self._num_samples

    def __reduce__(self) -> tuple[type[SharedSamples], tuple[int]]:
        return SharedSamples, (self._num_samples,)

    @property
    def array(self) -> Samples:
        """The samples, which are mapped into this process at the first call. Changes stay in this process."""
        if self._array is None:
            import numpy as np

            assert self._fd is not None, "the descriptor is not received yet"
            size = self._num_samples * _ITEM_BYTES
            memory = mmap.mmap(self._fd, size, access=mmap.ACCESS_COPY) if size else b""
            self._array = np.frombuffer(memory, np.float32)
            self._close()  # the mapping has its own descriptor
        return self._array

    def send(self, connection: Connection) -> None:
        """Send the descriptor.

        Raises:
            OSError: the other process has ended.
        """
        from multiprocessing.reduction import send_handle

        if self._fd is None:
            SharedSamples.of(self.array).send(connection)
        else:
            send_handle(connection, self._fd, 0)  # Linux ignores the number of the process

    def receive(self, connection: Connection) -> None:
        """Receive the descriptor.

        If half of the descriptors that this process may have are in use, the samples are copied, because the kernel
        drops a descriptor for which there is no number.

        Raises:
            EOFError, OSError: the other process has ended.
        """
        from multiprocessing.reduction import recv_handle

        self._fd = recv_handle(connection)
        if self._fd >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:  # the kernel gives the lowest free number
            self._array = self.array.copy()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self._close()
