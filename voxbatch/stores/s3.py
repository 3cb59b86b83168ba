"""Access a bucket of S3, or of a service that speaks S3, through boto3.

The client finds credentials and renews those that expire. It takes regions, endpoints (AWS_ENDPOINT_URL_S3) and the
address style from its own variables and files. With a custom endpoint it puts the bucket into the path.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

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

CONNECT_S, READ_S = 10, 20
"""Seconds to connect, and seconds without a byte after which a request fails and is retried. See `reply_deadline` for
the total."""
CONNECTIONS = 32
"""Number of connections that are kept open: the most that a process here uses at a time."""
STREAM_BYTES = 8 << 20
SINGLE_BYTES = 1 << 30
"""Largest object that is stored in one request. Larger ones go up in parts. One request may carry 5 GB (S3's limit),
but a failed request has to be repeated completely."""
PART_BYTES = 128 << 20
"""Bytes of one part. With 10,000 parts at most (S3's limit), an object has up to 1.2 TB."""
_LOGIN = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose an AWS_PROFILE, give the machine a role, or, for a public "
    "bucket, --anonymous"
)
_PERMISSION = {
    "read": "s3:GetObject on the object and s3:ListBucket on the bucket (without it, S3 denies missing objects)",
    "list": "s3:ListBucket on the bucket",
    "write": "s3:PutObject on the object",
    "delete": "s3:DeleteObject on the object",
}
_ELSEWHERE = (
    "the server redirects to another endpoint: check the endpoint's address (AWS_ENDPOINT_URL_S3), whether http or "
    "https, and the region (AWS_REGION)"
)
_WITHOUT_CHECKSUMS = {"request_checksum_calculation": "when_required", "s3": {"payload_signing_enabled": True}}
"""Settings of the client for stores that refuse checksum headers. The signature of a request covers its bytes."""
_CONDITION = re.compile(r"if-(none-)?match|\bcondition", re.IGNORECASE)
_NO_CONDITIONS = (
    "it seems to have no conditional writes, without which processes replace each other's results: write OUT to a "
    "local folder (-o FOLDER), and copy it when the run is complete: aws s3 sync FOLDER s3://…"
)
_UNKNOWN = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
_MD5 = re.compile("[0-9a-f]{32}")
_WHOLE_CHECKSUMS = {
    "ChecksumCRC32": ("crc32", ""),
    "ChecksumCRC32C": ("crc32c", "google_crc32c"),
    "ChecksumCRC64NVME": ("crc64nvme", "awscrt"),
}
"""Fields of a reply with a checksum → its name in a Stat, and the library that calculates it."""


class _RefusedUpload(StorageError):
    """An upload that the store refuses as it is, perhaps for its headers."""


class AmazonBucket:
    """Bucket of S3. See objects.Bucket for what each method promises. Thread-safe."""

    scheme = "s3"

    def __init__(self, bucket: str, options: StoreOptions):
        self.bucket, self._options = bucket, options
        self.place = f"s3://{bucket}/"
        self._payer = {"RequestPayer": "requester"} if options.requester_pays else {}
        self._has_checksums = True
        """False if the store refuses checksum headers."""
        self.renew()

    def renew(self) -> None:
        """Create a new client, with credentials found anew.

        Raises:
            StorageError: the client library or the credentials are missing.
        """
        with client_library("s3", self.place):
            import boto3
            from botocore import UNSIGNED
            from botocore.config import Config

        settings = Config(
            connect_timeout=CONNECT_S, read_timeout=READ_S, max_pool_connections=CONNECTIONS,
            retries={"total_max_attempts": 1}, signature_version=UNSIGNED if self._options.anonymous else None,
        )  # fmt: skip
        if not self._has_checksums:
            settings = settings.merge(Config(**_WITHOUT_CHECKSUMS))
        with self._errors("read", ""):
            session = boto3.Session()  # boto3.client would keep the credentials of the first call permanently
            self._client = session.client("s3", config=settings, endpoint_url=self._options.s3_endpoint_url)
        pools = self._client._endpoint.http_session._pool_classes_by_scheme
        pools.update(timed(pools))

    def get(self, key: str, start: int, end: int, tag: str = "") -> RangeReply:
        """See objects.ObjectReader. If the reply carries no ETag, a second request fetches the properties."""
        pinned = {"IfMatch": tag} if tag else {}
        with self._errors("read", key):
            try:
                reply = self._get(Key=key, Range=f"bytes={start}-{end - 1}", **pinned)
                with contextlib.closing(reply["Body"]) as body:
                    data = body.read()
            except self._client.exceptions.ClientError as e:
                if _status(e) != 416:  # the object ends at or before `start`, or is empty
                    raise
                data, reply = b"", {"ETag": tag}
        if len(data) < _announced(reply):
            raise TransientError(
                connection_failed("read", f"{self.place}{key}", f"received {len(data)} of {_announced(reply)} bytes")
            )
        self._check_fields("read", key, reply, "ETag")
        if not reply["ETag"]:
            stat = self.stat(key)
            return RangeReply(data, stat.tag, stat.checksum)
        return RangeReply(data, reply["ETag"], _checksum(reply), reply.get("ContentEncoding") == "gzip")

    def _check_fields(self, verb: str, key: str, reply: Any, *names: str) -> None:
        """Check that a reply has what S3 always sends. An error page of a proxy may have status 200.

        Raises:
            TransientError: a field is missing.
        """
        missing = [name for name in names if name not in reply]
        if missing:
            reason = f"the reply has no {missing[0]}, so that it is not from S3"
            raise TransientError(connection_failed(verb, f"{self.place}{key}", reason))

    def _get(self, **arguments: Any) -> Any:
        return self._client.get_object(Bucket=self.bucket, **self._payer, **arguments)

    def stat(self, key: str, tag: str = "") -> Stat:
        """See objects.ObjectReader."""
        pinned = {"IfMatch": tag} if tag else {}
        with self._errors("read", key):
            reply = self._client.head_object(
                Bucket=self.bucket, Key=key, ChecksumMode="ENABLED", **self._payer, **pinned
            )
        self._check_fields("read", key, reply, "ETag", "ContentLength", "LastModified")
        return Stat(key, reply["ContentLength"], reply["ETag"], _checksum(reply), reply["LastModified"].timestamp())

    def stream(self, stat: Stat) -> Iterator[bytes]:
        """See objects.ObjectReader. One request reads the whole object, because only then the client checks the
        object's own checksum."""
        digest = Digest(stat.checksum)
        with self._errors("read", stat.key):
            reply = self._get(Key=stat.key, IfMatch=stat.tag, ChecksumMode="ENABLED")
            with contextlib.closing(reply["Body"]) as body:
                self._check_fields("read", stat.key, reply, "ETag")
                if reply.get("ContentEncoding") == "gzip":
                    raise stored_compressed(f"{self.place}{stat.key}")
                for data in body.iter_chunks(STREAM_BYTES):
                    digest.update(data)
                    yield data
        digest.check(f"{self.place}{stat.key}")

    def list(self, prefix: str, after: str = "") -> Iterator[Stat]:
        """See objects.Bucket. The Stats have no checksum, because a listing does not say whether an object is
        encrypted."""
        where = f"{self.place}{prefix}"
        with self._errors("list", prefix):
            pages = self._client.get_paginator("list_objects_v2")
            behind = {"StartAfter": after} if after else {}
            for page in pages.paginate(Bucket=self.bucket, Prefix=prefix, **behind, **self._payer):
                if "IsTruncated" not in page:  # every listing has it; else OUT would look empty, and restart
                    raise TransientError(connection_failed("list", where, "the reply is not a listing"))
                if page["IsTruncated"] and not page.get("NextContinuationToken"):
                    raise TransientError(connection_failed("list", where, "the listing is cut off"))
                for entry in page.get("Contents", ()):
                    # No checksum: an entry does not say whether the object is encrypted.
                    yield Stat(entry["Key"], entry["Size"], entry["ETag"], "", entry["LastModified"].timestamp())

    def put(self, key: str, body: BinaryIO, content_type: str, replaced: str) -> bool:
        """See objects.Bucket. Objects above SINGLE_BYTES are stored in parts.

        Some stores refuse the checksums that the client adds to each upload. They get the SHA-256 of each request in
        its signature instead.
        """
        try:
            return self._put(key, body, content_type, replaced)
        except _RefusedUpload:
            if not self._has_checksums:
                raise
        self._has_checksums = False
        self.renew()
        return self._put(key, body, content_type, replaced)

    def _put(self, key: str, body: BinaryIO, content_type: str, replaced: str) -> bool:
        condition = {"IfMatch": replaced} if replaced else {"IfNoneMatch": "*"}
        size = body.seek(0, 2)
        body.seek(0)
        with self._errors("write", key):
            try:
                if size > SINGLE_BYTES:
                    self._put_parts(key, body, content_type, condition)
                else:
                    reply = self._client.put_object(
                        Bucket=self.bucket, Key=key, Body=body, ContentType=content_type, **condition, **self._payer
                    )
                    self._check_fields("write", key, reply, "ETag")
            except self._client.exceptions.ClientError as e:
                is_gone = bool(replaced) and e.response.get("Error", {}).get("Code") == "NoSuchKey"
                if _status(e) != 412 and not is_gone:
                    raise
                return False
        return True

    def _put_parts(self, key: str, body: BinaryIO, content_type: str, condition: dict[str, str]) -> None:
        at = {"Bucket": self.bucket, "Key": key, **self._payer}
        begun = self._client.create_multipart_upload(**at, ContentType=content_type)
        self._check_fields("write", key, begun, "UploadId")
        upload = begun["UploadId"]
        try:
            parts: list[dict[str, Any]] = []
            while data := body.read(PART_BYTES):
                number = len(parts) + 1
                reply = self._client.upload_part(**at, UploadId=upload, PartNumber=number, Body=data)
                self._check_fields("write", key, reply, "ETag")
                parts.append({"PartNumber": number, "ETag": reply["ETag"]})
            reply = self._client.complete_multipart_upload(
                **at, UploadId=upload, MultipartUpload={"Parts": parts}, **condition
            )
            self._check_fields("write", key, reply, "ETag")
        except BaseException:  # the parts of an unfinished upload stay stored, invisible, and are billed
            with contextlib.suppress(Exception):
                self._client.abort_multipart_upload(**at, UploadId=upload)
            raise

    def delete(self, key: str, tag: str = "") -> None:
        """See objects.Bucket."""
        condition = {"IfMatch": tag} if tag else {}
        with contextlib.suppress(ObjectNotFound, UnusableObject), self._errors("delete", key):
            self._client.delete_object(Bucket=self.bucket, Key=key, **condition, **self._payer)

    def _principal(self) -> str:
        """Return the id of the access key, never its secret. S3's own messages often name the user."""
        if self._options.anonymous:
            return "nobody (--anonymous)"
        credentials = self._client._request_signer._credentials
        key = getattr(credentials, "_access_key", None) or getattr(
            credentials, "access_key", None
        )  # the second may renew
        return f"the access key {key}" if key else "this account"

    @contextlib.contextmanager
    def _errors(self, verb: str, key: str) -> Iterator[None]:
        with client_library("s3", self.place):
            import boto3  # noqa: F401 boto3 can be missing although botocore is installed
            from botocore import exceptions as boto
            from botocore.parsers import ResponseParserError
            from urllib3.exceptions import HTTPError

        where = f"{self.place}{key}"
        try:
            yield
        except boto.ClientError as e:
            raise self._status_error(verb, where, e) from e
        except (
            boto.HTTPClientError, boto.ConnectionError, boto.IncompleteReadError, boto.FlexibleChecksumError,
            ResponseParserError, HTTPError,
        ) as e:  # fmt: skip
            if isinstance(e, boto.HTTPClientError) and isinstance(e.kwargs.get("error"), RecursionError):
                raise StorageError(f"cannot {verb} {where}: {_ELSEWHERE}") from e
            raise TransientError(connection_failed(verb, where, e)) from e
        except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError) as e:
            # The credentials of a machine's role come over the network, in one request: another try may succeed.
            raise CredentialsExpired(f"cannot {verb} {where}: no usable credentials ({one_line(e)}): {_LOGIN}") from e
        except RecursionError as e:  # the client raises this for a redirect that names no region
            raise StorageError(f"cannot {verb} {where}: {_ELSEWHERE}") from e
        except boto.BotoCoreError as e:
            raise StorageError(f"cannot {verb} {where}: {e}") from e

    def _status_error(self, verb: str, where: str, error: Any) -> StorageError:
        body, status = error.response.get("Error", {}), _status(error)
        code = body.get("Code", "")
        if code in _EXPIRED:
            return CredentialsExpired(f"cannot {verb} {where}: the credentials have expired: {_LOGIN}")
        if code == "NoSuchBucket" or (status == 404 and verb in ("list", "write")):
            text = f"cannot {verb} {where}: there is no bucket {self.bucket}: check its name"
            return StorageError(text, FailureKind.NOT_FOUND)
        if code == "InvalidObjectState":  # with status 403
            return UnusableObject(
                f"cannot {verb} {where}: it is archived ({one_line(body.get('StorageClass') or code)}): restore it"
            )
        if code in _UNKNOWN:
            reason = f"{code}: {body.get('Message') or 'no reason given'}"
            return StorageError(
                f"cannot {verb} {where}: {self._principal()} or its secret is not valid there: {_LOGIN}; "
                f"the store says: {one_line(reason)}",
                FailureKind.NO_ACCESS,
            )
        if 300 <= status < 400:
            return StorageError(f"cannot {verb} {where}: {_ELSEWHERE}")
        if status == 409 or code in ("SlowDown", "RequestTimeout", "RequestTimeTooSkewed"):
            status = 503  # two writers collided, or the server was busy: a retry may succeed
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        granted = f"{self._principal()} lacks {_PERMISSION[verb]}"
        reason = f"{code}: {body.get('Message') or 'no reason given'}"
        result = status_error(verb, where, status, reason, granted, parse_retry_after(headers.get("retry-after")))
        if verb == "write" and status in (400, 501):
            is_condition = status == 501 or _CONDITION.search(reason)
            return _RefusedUpload(
                f"{result}: {_NO_CONDITIONS}" if is_condition else str(result), FailureKind.NOT_ALLOWED
            )
        # A reply to HEAD has no error code, so a status of 400 may mean an expired token.
        return CredentialsExpired(str(result)) if code == "400" else result


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _announced(reply: Any) -> int:
    """Return the number of bytes that Content-Range ("bytes 0-99/1000") promises; 0 if there is none. No checksum would
    notice missing bytes."""
    match = re.match(r"bytes (\d+)-(\d+)/", reply.get("ContentRange", ""))
    return int(match[2]) - int(match[1]) + 1 if match else 0


def _checksum(reply: Any) -> str:
    """Return the MD5 in an ETag, if it is one, or else a checksum of the whole object that can be calculated here.

    An ETag is the MD5 of an object that was stored in one piece and is not encrypted with a KMS key or a customer's
    key. The other checksums come with the replies to HEAD. S3 calls them FULL_OBJECT; those of the type COMPOSITE are
    checksums of the parts' checksums.
    """
    etag = reply["ETag"].strip('"')
    encrypted = reply.get("ServerSideEncryption", "AES256") != "AES256" or reply.get("SSECustomerAlgorithm")
    if not encrypted and _MD5.fullmatch(etag):
        return f"md5:{base64.b64encode(bytes.fromhex(etag)).decode()}"
    if reply.get("ChecksumType") == "FULL_OBJECT":
        for name, (kind, library) in _WHOLE_CHECKSUMS.items():
            if name in reply and (not library or importlib.util.find_spec(library)):
                return f"{kind}:{reply[name]}"
    return ""
