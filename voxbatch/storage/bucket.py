"""What lies below a prefix of a bucket, and its bytes: Google Cloud Storage and S3 through their own clients.

The clients find credentials and repeat failed requests by themselves. Of their many errors two leave this module:
StorageError, which says what to do, and its kind `Interrupted`, after which another attempt may succeed.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from voxbatch.errors import StorageError

PIECE_BYTES = 8 << 20
"""What one download holds in memory, some copies aside. At 100 MB/s so much takes 80 ms, several times what asking for
it takes."""

_LOGIN = {
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to a key file, run gcloud auth application-default login, "
    "or give the machine a service account",
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose an AWS_PROFILE, or give the machine a role",
}
_GRANT = {
    "gs": "give this account the role roles/storage.objectViewer on the bucket",
    "s3": "give this account s3:ListBucket on the bucket and s3:GetObject on its objects",
}


class Interrupted(StorageError):
    """The network failed, or the bytes that came are not the listed ones."""


@dataclass(frozen=True, slots=True)
class Address:
    scheme: str
    bucket: str
    prefix: str
    """Empty, or ending in /, so that model/ does not take in model-v2/."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}"


@dataclass(frozen=True, slots=True)
class Remote:
    """An object below a prefix."""

    name: str
    """Without the prefix; with / between folders."""
    size: int
    """Bytes, as stored."""
    tag: str
    """Changes with the content: its MD5 where Cloud Storage knows it, else the generation; the ETag of S3."""
    pieces: Callable[[], Iterator[bytes]] = field(compare=False, repr=False)
    """The bytes of this very revision, from the start; raises StorageError, Interrupted among them."""


def address(uri: str) -> Address:
    """
    Raises:
        StorageError: it is no gs://bucket/prefix or s3://bucket/prefix.
    """
    scheme, _, path = uri.partition("://")
    bucket, _, prefix = path.rstrip("/").partition("/")
    if scheme not in _LISTINGS or not bucket:
        raise StorageError(f"cannot read {uri}: the address of a bucket is gs://bucket/prefix or s3://bucket/prefix")
    return Address(scheme, bucket, f"{prefix}/" if prefix else "")


def remotes(place: Address) -> Iterator[Remote]:
    """Every object below the place, those that stand for folders too.

    Raises:
        StorageError: the client is not installed, finds no credentials or is not let in, or there is no such bucket.
    """
    return _LISTINGS[place.scheme](place)


def _gcs_listing(place: Address) -> Iterator[Remote]:
    with _gcs_errors(str(place)):
        for blob in _gcs_client().list_blobs(place.bucket, prefix=place.prefix):
            tag = blob.md5_hash or f"{blob.generation}"  # an object composed of parts has no MD5
            yield Remote(blob.name.removeprefix(place.prefix), blob.size, tag, partial(_gcs_pieces, blob))


def _gcs_client() -> Any:
    """Without a project, which reading needs not and a person's own credentials often lack. With STORAGE_EMULATOR_HOST
    set, the client asks for no credentials."""
    from google.cloud import storage

    return storage.Client(project=None)


def _gcs_pieces(listed: Any) -> Iterator[bytes]:
    """One request a piece, so that the client repeats a piece and not 8 GB. Nobody but us sees the whole, so its
    checksum is ours to check. The listed blob stays as it is: a download writes what it met into the blob it is called
    on."""
    import google_crc32c

    where = f"gs://{listed.bucket.name}/{listed.name}"
    _refuse_packed(where, listed.content_encoding)
    blob = listed.bucket.blob(listed.name, generation=listed.generation)
    crc = 0
    with _gcs_errors(where):
        for start in range(0, listed.size, PIECE_BYTES):
            end = min(start + PIECE_BYTES, listed.size) - 1
            piece = blob.download_as_bytes(start=start, end=end, raw_download=True, checksum=None)
            crc = google_crc32c.extend(crc, piece)
            yield piece
    if crc != int.from_bytes(base64.b64decode(listed.crc32c), "big"):
        raise Interrupted(f"cannot read {where}: what came does not match its CRC32C, {listed.crc32c}: start again")


@contextlib.contextmanager
def _gcs_errors(where: str) -> Iterator[None]:
    with _needs("gs", where):
        from google.api_core.exceptions import GoogleAPICallError, RetryError
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.cloud import storage  # noqa: F401 missing on its own where another Google library brought the rest
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

    try:
        yield
    except (RequestException, HTTPError, TransportError, RetryError) as e:
        raise Interrupted(_cut(where, e)) from e
    except GoogleAuthError as e:
        raise StorageError(f"cannot read {where}: no usable credentials ({e}): {_LOGIN['gs']}") from e
    except GoogleAPICallError as e:
        raise _refusal(where, e.code or 0, e) from e


def _s3_listing(place: Address) -> Iterator[Remote]:
    with _s3_errors(str(place)):
        import boto3

        client = boto3.Session().client("s3")  # boto3.client would keep the first call's credentials for ever
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=place.bucket, Prefix=place.prefix):
            for entry in page.get("Contents", ()):
                pieces = partial(_s3_pieces, client, place.bucket, entry["Key"], entry["ETag"])
                name = entry["Key"].removeprefix(place.prefix)
                yield Remote(name, entry["Size"], entry["ETag"].strip('"'), pieces)


def _s3_pieces(client: Any, bucket: str, key: str, etag: str) -> Iterator[bytes]:
    """One request for the whole, as the client checks the object's checksum only there. If-Match pins the revision."""
    with _s3_errors(f"s3://{bucket}/{key}"):
        reply = client.get_object(Bucket=bucket, Key=key, IfMatch=etag, ChecksumMode="ENABLED")
        with contextlib.closing(reply["Body"]) as body:
            _refuse_packed(f"s3://{bucket}/{key}", reply.get("ContentEncoding"))
            yield from body.iter_chunks(PIECE_BYTES)


@contextlib.contextmanager
def _s3_errors(where: str) -> Iterator[None]:
    with _needs("s3", where):
        import boto3  # noqa: F401 missing on its own where botocore is there
        from botocore import exceptions as boto

    try:
        yield
    except boto.ClientError as e:
        raise _refusal(where, e.response["ResponseMetadata"]["HTTPStatusCode"], e) from e
    except (boto.HTTPClientError, boto.ConnectionError, boto.IncompleteReadError, boto.FlexibleChecksumError) as e:
        raise Interrupted(_cut(where, e)) from e
    except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError) as e:
        raise StorageError(f"cannot read {where}: no usable credentials ({e}): {_LOGIN['s3']}") from e
    except boto.BotoCoreError as e:
        raise StorageError(f"cannot read {where}: {e}") from e


_LISTINGS = {"gs": _gcs_listing, "s3": _s3_listing}
_EXTRAS = {"gs": "gcs", "s3": "s3"}


@contextlib.contextmanager
def _needs(scheme: str, where: str) -> Iterator[None]:
    try:
        yield
    except ImportError as e:
        install = f"pip install 'voxbatch[{_EXTRAS[scheme]}]'"
        raise StorageError(f"cannot read {where}: the client library is not installed ({e}): {install}") from e


def _refuse_packed(where: str, encoding: str | None) -> None:
    """Neither client unpacks what it reads in ranges or raw, and an engine that meets gzip in a JSON file says nothing
    that leads here."""
    if encoding == "gzip":
        raise StorageError(f"cannot read {where}: it is stored with Content-Encoding: gzip; upload it as it is")


def _cut(where: str, error: Exception) -> str:
    return f"cannot read {where}: the connection failed ({error}): check the network, and start again"


def _refusal(where: str, status: int, error: Exception) -> StorageError:
    """What an HTTP status means to whoever started the run."""
    scheme = where.partition("://")[0]
    if status in (408, 429) or status >= 500:
        return Interrupted(_cut(where, error))
    mend = {
        401: f"permission denied: {_GRANT[scheme]}",
        403: f"permission denied: {_GRANT[scheme]}",
        404: "there is no such bucket, or the object is gone: check the name, or start again if it was just replaced",
        412: "it was replaced meanwhile: start again",
    }.get(status, "the store refused")
    return StorageError(f"cannot read {where}: {mend} ({error})")
