"""Interface of the place of a run's outputs (OUT), which `local` and `bucket` implement."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Protocol


class Store(Protocol):
    """Place of a run's outputs. Names are relative POSIX paths below the place. Every method raises StorageError if the
    place fails."""

    place: str
    """Folder or bucket prefix, for messages."""
    concurrency: int
    """Number of concurrent calls that is worthwhile."""
    max_open: int
    """Number of objects whose `lines` may be read at a time: each takes a buffer or a file descriptor."""

    def prepare(self) -> str | None:
        """Create the place and prove that it can be written.

        Returns:
            A warning if the place can be written, but its `create` replaces existing objects; otherwise None.
        """

    def read(self, name: str) -> bytes | None:
        """Return the whole object, or None if it does not exist."""

    def exists(self, name: str) -> bool:
        """Return whether the object exists, or, for a name that ends in /, whether anything exists below it."""

    def checksum(self, name: str) -> str:
        """Return the checksum that the place keeps of an object, such as "crc32c:…"; "" if there is none."""

    def lines(self, name: str) -> Generator[bytes]:
        """Yield the object's lines as a stream. Close the generator if it is not exhausted."""

    def names(self, prefix: str) -> list[str]:
        """Return the names below a folder, sorted; [] if the folder does not exist."""

    def create(self, name: str, blocks: Iterable[bytes], durable: bool = True) -> bool:
        """Write the object unless it exists. All of it appears at once, or nothing.

        Args:
            durable: the object survives a loss of power from now on. Otherwise it does so after `sync`; before that,
                its name may be left with other bytes.

        Returns:
            False if the object existed already.
        """

    def write(self, name: str, blocks: Iterable[bytes], durable: bool = True) -> None:
        """Write or replace the object, all at once. See `create` for `durable`.

        Raises:
            StorageError: in a bucket, another process has written the object since this call began to read `blocks`.
        """

    def sync(self) -> None:
        """Make everything durable that was written so far, also by other processes of this machine."""

    def delete(self, name: str, check: Callable[[], None] | None = None) -> None:
        """Remove the object. Removing a missing object is not an error.

        Args:
            check: raises an error if the object may not be removed. In a bucket, the revision that is removed is read
                before it: a request that is delayed, or repeated for minutes, cannot remove a later one.
        """
