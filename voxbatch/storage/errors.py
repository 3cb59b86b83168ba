"""The errors of object stores."""

from __future__ import annotations

from voxbatch.errors import StorageError
from voxbatch.failure_kinds import FailureKind


class TransientError(StorageError):
    """Transient error: the network or the server failed, or the received bytes are not the stored ones. A retry may
    succeed."""

    def __init__(self, message: str, retry_after_s: float = 0.0, since: float = 0.0):
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """Seconds that the server asks clients to wait."""
        self.since = since
        """Middle of several failed attempts (time.monotonic). A later arrival came while these attempts failed."""


class UnknownHost(TransientError):
    """No server has this name. Further attempts are of no use, but the network of this machine may be down."""

    kind = FailureKind.NOT_FOUND


class ObjectNotFound(StorageError):
    """There is no such object."""

    kind = FailureKind.NOT_FOUND


class UnusableObject(StorageError):
    """The object exists and cannot be used: it changed while it was read, is too large, or is stored compressed."""

    kind = FailureKind.NOT_DELIVERED
    retryable = False
    """True if the same recording may be read in another run with nothing changed."""


def stored_compressed(where: str) -> UnusableObject:
    """Return the error of an object whose bytes are those of a gzip file, because it has Content-Encoding gzip."""
    return UnusableObject(f"cannot read {where}: it is stored with Content-Encoding: gzip: store it uncompressed")


class DamagedTransfer(TransientError):
    """The received bytes do not match the checksum of the stored ones."""


class DamagedObject(UnusableObject):
    """The bytes of an object never match its checksum. Its place answers, and the object is to blame."""

    kind = FailureKind.DAMAGED
    retryable = True


class VaryingObject(UnusableObject):
    """An object of which two replies have different contents, although its revision is the same."""

    kind = FailureKind.CHANGED
    retryable = True

    def __init__(self, where: str):
        super().__init__(
            f"cannot read {where}: its server sends other bytes to each request, as servers that insert advertisements "
            "do, and other bytes of it were already decoded: run the item again, or download it and give the file"
        )


class CredentialsExpired(StorageError):
    """The credentials were valid once; new ones may be available."""

    kind = FailureKind.NO_ACCESS
