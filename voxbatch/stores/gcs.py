"""Access a bucket of Google Cloud Storage through Google's own client.

The client finds credentials (GOOGLE_APPLICATION_CREDENTIALS, gcloud's, the machine's service account) and renews them.
It reads STORAGE_EMULATOR_HOST and API_ENDPOINT_OVERRIDE.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.request import getproxies

from voxbatch.errors import StorageError
from voxbatch.failure_kinds import FailureKind
from voxbatch.storage.address import StoreOptions
from voxbatch.storage.errors import (
    CredentialsExpired,
    ObjectNotFound,
    TransientError,
    UnusableObject,
    stored_compressed,
)
from voxbatch.storage.objects import Digest, RangeReply, Stat
from voxbatch.stores.http_errors import client_library, connection_failed, one_line, parse_retry_after, status_error
from voxbatch.stores.reply_deadline import timed

TIMEOUT_S = (10, 20)
"""Seconds to connect, and seconds without a byte after which a request fails and is retried. See `reply_deadline` for
the total."""
_NO_BUCKET_METADATA = "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA"
"""Variable that stops an extra request. Without it, the client (3.17) also requests the bucket, in its own thread, even
if tracing is off. Nothing here counts that request, and it needs another permission, storage.buckets.get."""
CONNECTIONS = 32
"""Number of connections that are kept open: the most that a process here uses at a time. The client alone keeps ten,
and opens all others anew."""
STREAM_BYTES = 8 << 20
"""Bytes that one request of a download holds in memory, not counting some copies. At 100 MB/s these take 80 ms, several
times the latency of a request."""
UPLOAD_BYTES = 32 << 20
"""Bytes that one request of an upload holds in memory. The client's own value is 100 MB."""
_LOGIN = (
    "set GOOGLE_APPLICATION_CREDENTIALS to a key file, run gcloud auth application-default login, give the machine a "
    "service account, or, for a public bucket, --anonymous"
)
_PERMISSION = {
    "read": "storage.objects.get (role roles/storage.objectViewer)",
    "list": "storage.objects.list (role roles/storage.objectViewer)",
    "write": "storage.objects.create and, to replace, storage.objects.delete (role roles/storage.objectUser)",
    "delete": "storage.objects.delete (role roles/storage.objectUser)",
}


class GoogleBucket:
    """Bucket of Cloud Storage. See objects.Bucket for what each method promises. Thread-safe."""

    scheme = "gs"

    def __init__(self, bucket: str, options: StoreOptions):
        self.bucket, self._options = bucket, options
        self.place = f"gs://{bucket}/"
        self._client: Any = None
        self.renew()

    def renew(self) -> None:
        """Create a new client, with credentials found anew.

        Raises:
            StorageError: the client library, the credentials or the project to charge are missing.
        """
        with client_library("gs", self.place):
            from google.cloud import storage
            from requests.adapters import HTTPAdapter
            from urllib3.poolmanager import pool_classes_by_scheme
        os.environ.setdefault(_NO_BUCKET_METADATA, "true")
        with self._errors("read", ""):
            if self._options.anonymous:
                self._client = storage.Client.create_anonymous_client()
            elif self._options.requester_pays:
                with contextlib.suppress(OSError):  # the client raises this if it finds no project
                    self._client = storage.Client()
            else:  # without a project: reading does not need one, and a person's own credentials often have none
                self._client = storage.Client(project=None)
        if self._options.requester_pays and (self._client is None or self._client.project is None):
            raise StorageError(
                f"cannot access {self.place}: --requester-pays bills a project, and none is set: "
                "set GOOGLE_CLOUD_PROJECT"
            )
        payer = str(self._client.project) if self._options.requester_pays else None
        self._bucket = self._client.bucket(self.bucket, user_project=payer)
        session = self._client._http
        if not session.is_mtls:  # a session with mutual TLS has its own adapters
            proxies = [proxy for proxy in getproxies().values() if proxy.startswith("http")]
            for scheme in ("http://", "https://"):
                adapter = HTTPAdapter(pool_maxsize=CONNECTIONS)
                for manager in (adapter.poolmanager, *map(adapter.proxy_manager_for, proxies)):
                    manager.pool_classes_by_scheme = timed(pool_classes_by_scheme)
                session.mount(scheme, adapter)
        if not getproxies():  # otherwise the session searches the whole environment at each request: 1/8 of its time
            session.trust_env = False
            session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True

    def get(self, key: str, start: int, end: int, tag: str = "") -> RangeReply:
        """See objects.ObjectReader. If the reply carries no revision or checksum, a second request fetches them."""
        from google.api_core.exceptions import RequestRangeNotSatisfiable

        blob = self._bucket.blob(key, generation=int(tag) if tag else None)
        with self._errors("read", key, tag):
            try:
                data = blob.download_as_bytes(
                    start=start, end=end - 1, raw_download=True, checksum=None, retry=None, timeout=TIMEOUT_S
                )
            except RequestRangeNotSatisfiable:  # the object ends at or before `start`, or is empty
                data = b""
        if not (tag or (blob.generation and blob.crc32c)):
            stat = self.stat(key, str(blob.generation or ""))  # a reply without bytes carries no generation either
            return RangeReply(data, stat.tag, stat.checksum, blob.content_encoding == "gzip")
        return RangeReply(data, str(blob.generation or tag), _checksum(blob), blob.content_encoding == "gzip")

    def stat(self, key: str, tag: str = "") -> Stat:
        """See objects.ObjectReader."""
        blob = self._bucket.blob(key, generation=int(tag) if tag else None)
        with self._errors("read", key, tag):
            blob.reload(retry=None, timeout=TIMEOUT_S)
            return _stat(blob)

    def stream(self, stat: Stat) -> Iterator[bytes]:
        """See objects.ObjectReader. The object is read in requests of STREAM_BYTES."""
        digest = Digest(stat.checksum)
        for start in range(0, stat.size, STREAM_BYTES):
            piece = self.get(stat.key, start, min(start + STREAM_BYTES, stat.size), stat.tag)
            if piece.is_gzipped:
                raise stored_compressed(f"{self.place}{stat.key}")
            digest.update(piece.data)
            yield piece.data
        digest.check(f"{self.place}{stat.key}")

    def list(self, prefix: str, after: str = "") -> Iterator[Stat]:
        """See objects.Bucket."""
        with self._errors("list", prefix):
            blobs = self._client.list_blobs(
                self._bucket, prefix=prefix, start_offset=after or None, retry=None, timeout=TIMEOUT_S
            )
            for blob in blobs:
                if blob.name > after or not after:
                    yield _stat(blob)

    def put(self, key: str, body: BinaryIO, content_type: str, replaced: str) -> bool:
        """See objects.Bucket."""
        from google.api_core.exceptions import PreconditionFailed
        from google.cloud.storage.exceptions import InvalidResponse

        blob = self._bucket.blob(key, chunk_size=UPLOAD_BYTES)
        with self._errors("write", key):
            try:
                blob.upload_from_file(
                    body, rewind=True, size=body.seek(0, 2), content_type=content_type,
                    if_generation_match=int(replaced or 0), retry=None, timeout=TIMEOUT_S, checksum="crc32c",
                )  # fmt: skip
            except PreconditionFailed:
                return False
            except InvalidResponse as e:  # an upload in pieces raises this in place of PreconditionFailed
                if e.response.status_code != 412:
                    raise
                return False
        return True

    def delete(self, key: str, tag: str = "") -> None:
        """See objects.Bucket."""
        with contextlib.suppress(ObjectNotFound, UnusableObject), self._errors("delete", key):
            self._bucket.blob(key).delete(if_generation_match=int(tag) if tag else None, retry=None, timeout=TIMEOUT_S)

    def _lacks(self, verb: str) -> str:
        """Return the account's name (never its secret) and the permission that it lacks."""
        email = getattr(self._client._credentials, "service_account_email", None)
        account = "nobody (--anonymous)" if self._options.anonymous else str(email or "this account")
        return f"{account} lacks {_PERMISSION[verb]}"

    @contextlib.contextmanager
    def _errors(self, verb: str, key: str, tag: str = "") -> Iterator[None]:
        with client_library("gs", self.place):
            from google.api_core.exceptions import GoogleAPICallError, RetryError
            from google.auth.credentials import AnonymousCredentials
            from google.auth.exceptions import GoogleAuthError, TransportError
            from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
            from requests.exceptions import RequestException
            from urllib3.exceptions import HTTPError

        where = f"{self.place}{key}"
        try:
            yield
        except (RequestException, HTTPError, TransportError, RetryError, DataCorruption) as e:
            raise TransientError(connection_failed(verb, where, e)) from e
        except GoogleAuthError as e:
            if getattr(e, "retryable", False):
                raise TransientError(connection_failed(verb, where, e)) from e
            # After a refused request the client renews its credentials, and anonymous ones cannot be renewed.
            if self._client and isinstance(self._client._credentials, AnonymousCredentials):
                raise status_error(verb, where, 401, "it allows no anonymous access", self._lacks(verb)) from e
            reason = one_line(e.args[0] if e.args else e)
            raise CredentialsExpired(f"cannot {verb} {where}: no usable credentials ({reason}): {_LOGIN}") from e
        except InvalidResponse as e:
            raise self._status_error(verb, where, e.response.status_code, e, e.response, tag) from e
        except GoogleAPICallError as e:
            raise self._status_error(verb, where, int(e.code or 0), e, e.response, tag) from e
        except (AttributeError, KeyError, TypeError) as e:  # the client expects an object of JSON in each reply
            reason = f"the reply is not from Cloud Storage: {e}"
            raise TransientError(connection_failed(verb, where, reason)) from e

    def _status_error(
        self, verb: str, where: str, status: int, error: Exception, response: Any, tag: str
    ) -> StorageError:
        if status == 401 and not self._options.anonymous:
            return CredentialsExpired(f"cannot {verb} {where}: the credentials are invalid or have expired: {_LOGIN}")
        if status == 404 and ("bucket does not exist" in str(error) or verb in ("list", "write")):
            text = f"cannot {verb} {where}: there is no bucket {self.bucket}: check its name"
            return StorageError(text, FailureKind.NOT_FOUND)
        if status == 404 and tag:  # only this generation is missing; another may exist
            status = 412
        headers = getattr(response, "headers", None) or {}
        reason: object = error
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            # The message in the store's reply: the client's own message begins with a long address.
            reason = response.json()["error"]["message"] or error
        return status_error(
            verb, where, status, reason, self._lacks(verb), parse_retry_after(headers.get("Retry-After"))
        )


def _stat(blob: Any) -> Stat:
    created = blob.time_created.timestamp() if blob.time_created else 0.0
    return Stat(blob.name, int(blob.size or 0), str(blob.generation or ""), _checksum(blob), created)


def _checksum(blob: Any) -> str:
    return f"crc32c:{blob.crc32c}" if blob.crc32c else ""
