"""A bucket of S3, or of a service that speaks it, through boto3.

The client finds credentials, renews those that have a term, and takes regions, endpoints (AWS_ENDPOINT_URL_S3) and the
address style from its own variables and files; with an endpoint of one's own it addresses by path.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from voxbatch.errors import StorageError
from voxbatch.storage.access import Access
from voxbatch.storage.objects import Absent, Digest, Expired, Interrupted, Piece, Stat, Unfit
from voxbatch.storage.refusal import needs, refusal, retry_after, short, trouble

CONNECT_S, READ_S = 10, 20
"""To connect; and without a byte, after which a request is given up and made again."""
CONNECTIONS = 32
"""Kept open; as many as a process here has at a time."""
STREAM_BYTES = 8 << 20
SINGLE_BYTES = 1 << 30
"""Larger objects go up in parts; one request may carry 5 GB (S3's limit) but would have to be repeated whole."""
PART_BYTES = 128 << 20
"""10,000 parts at most (S3's limit): 1.2 TB."""
_LOGIN = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose an AWS_PROFILE, give the machine a role, or, for a public "
    "bucket, --anonymous"
)
_PERMISSION = {
    "read": "s3:GetObject on the object and s3:ListBucket on the bucket (without which S3 denies what is not there)",
    "list": "s3:ListBucket on the bucket",
    "write": "s3:PutObject on the object",
    "delete": "s3:DeleteObject on the object",
}
_ELSEWHERE = (
    "the server sends its clients elsewhere: check the endpoint's address (AWS_ENDPOINT_URL_S3), whether http or "
    "https, and the region (AWS_REGION)"
)
_UNKNOWN = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
_MD5 = re.compile("[0-9a-f]{32}")


class AmazonBucket:
    """See objects.Objects. Thread-safe."""

    scheme = "s3"

    def __init__(self, bucket: str, access: Access):
        self.bucket, self._access = bucket, access
        self.place = f"s3://{bucket}/"
        self._payer = {"RequestPayer": "requester"} if access.requester_pays else {}
        self.renew()

    def renew(self) -> None:
        with needs("s3", self.place):
            import boto3
            from botocore import UNSIGNED
            from botocore.config import Config

        settings = Config(
            connect_timeout=CONNECT_S, read_timeout=READ_S, max_pool_connections=CONNECTIONS,
            retries={"total_max_attempts": 1}, signature_version=UNSIGNED if self._access.anonymous else None,
        )  # fmt: skip
        with self._errors("read", ""):
            session = boto3.Session()  # boto3.client would keep the first call's credentials for ever
            self._client = session.client("s3", config=settings, endpoint_url=self._access.s3_endpoint_url)

    def get(self, key: str, start: int, end: int, tag: str = "") -> Piece:
        pinned = {"IfMatch": tag} if tag else {}
        with self._errors("read", key):
            try:
                reply = self._get(Key=key, Range=f"bytes={start}-{end - 1}", **pinned)
                with contextlib.closing(reply["Body"]) as body:
                    data = body.read()
            except self._client.exceptions.ClientError as e:
                if _status(e) != 416:  # the object ends before `start`, or is empty
                    raise
                data, reply = b"", {"ETag": tag}
        if len(data) < _announced(reply):
            raise Interrupted(trouble("read", f"{self.place}{key}", f"{len(data)} bytes came of {_announced(reply)}"))
        if not reply["ETag"]:
            stat = self.stat(key)
            return Piece(data, stat.tag, stat.checksum)
        return Piece(data, reply["ETag"], _checksum(reply), reply.get("ContentEncoding") == "gzip")

    def _get(self, **arguments: Any) -> Any:
        return self._client.get_object(Bucket=self.bucket, **self._payer, **arguments)

    def stat(self, key: str, tag: str = "") -> Stat:
        pinned = {"IfMatch": tag} if tag else {}
        with self._errors("read", key):
            reply = self._client.head_object(Bucket=self.bucket, Key=key, **self._payer, **pinned)
        return Stat(key, reply["ContentLength"], reply["ETag"], _checksum(reply), reply["LastModified"].timestamp())

    def stream(self, stat: Stat) -> Iterator[bytes]:
        """One request for the whole, as the client checks the object's own checksum only there."""
        digest = Digest(stat.checksum)
        with self._errors("read", stat.key):
            reply = self._get(Key=stat.key, IfMatch=stat.tag, ChecksumMode="ENABLED")
            with contextlib.closing(reply["Body"]) as body:
                if reply.get("ContentEncoding") == "gzip":
                    what = "it is stored with Content-Encoding: gzip; unpack it"
                    raise Unfit(f"cannot read {self.place}{stat.key}: {what}")
                for data in body.iter_chunks(STREAM_BYTES):
                    digest.update(data)
                    yield data
        digest.check(f"{self.place}{stat.key}")

    def list(self, prefix: str, after: str = "") -> Iterator[Stat]:
        with self._errors("list", prefix):
            pages = self._client.get_paginator("list_objects_v2")
            behind = {"StartAfter": after} if after else {}
            for page in pages.paginate(Bucket=self.bucket, Prefix=prefix, **behind, **self._payer):
                if "IsTruncated" not in page:  # which each listing says; an empty OUT would be begun anew
                    raise Interrupted(trouble("list", f"{self.place}{prefix}", "what came is no listing"))
                for entry in page.get("Contents", ()):
                    # Without a checksum: an entry does not say whether the object is encrypted.
                    yield Stat(entry["Key"], entry["Size"], entry["ETag"], "", entry["LastModified"].timestamp())

    def put(self, key: str, body: BinaryIO, content_type: str, only_if_absent: bool) -> bool:
        absent = {"IfNoneMatch": "*"} if only_if_absent else {}
        size = body.seek(0, 2)
        body.seek(0)
        with self._errors("write", key):
            try:
                if size > SINGLE_BYTES:
                    self._put_parts(key, body, content_type, absent)
                else:
                    self._client.put_object(
                        Bucket=self.bucket, Key=key, Body=body, ContentType=content_type, **absent, **self._payer
                    )
            except self._client.exceptions.ClientError as e:
                if _status(e) != 412 or not only_if_absent:
                    raise
                return False
        return True

    def _put_parts(self, key: str, body: BinaryIO, content_type: str, absent: dict[str, str]) -> None:
        at = {"Bucket": self.bucket, "Key": key, **self._payer}
        upload = self._client.create_multipart_upload(**at, ContentType=content_type)["UploadId"]
        try:
            parts: list[dict[str, Any]] = []
            while data := body.read(PART_BYTES):
                number = len(parts) + 1
                reply = self._client.upload_part(**at, UploadId=upload, PartNumber=number, Body=data)
                parts.append({"PartNumber": number, "ETag": reply["ETag"]})
            self._client.complete_multipart_upload(**at, UploadId=upload, MultipartUpload={"Parts": parts}, **absent)
        except BaseException:  # parts that nobody completes are stored, and paid for, unseen
            with contextlib.suppress(Exception):
                self._client.abort_multipart_upload(**at, UploadId=upload)
            raise

    def delete(self, key: str) -> None:
        with contextlib.suppress(Absent), self._errors("delete", key):
            self._client.delete_object(Bucket=self.bucket, Key=key, **self._payer)

    def _principal(self) -> str:
        """Who we are to the store: the access key's id, never its secret; S3's own words often name the user."""
        if self._access.anonymous:
            return "nobody (--anonymous)"
        found = self._client._request_signer._credentials
        key = getattr(found, "_access_key", None) or getattr(found, "access_key", None)  # the first renews nothing
        return f"the access key {key}" if key else "this account"

    @contextlib.contextmanager
    def _errors(self, verb: str, key: str) -> Iterator[None]:
        with needs("s3", self.place):
            import boto3  # noqa: F401 missing on its own where botocore is there
            from botocore import exceptions as boto
            from urllib3.exceptions import HTTPError

        where = f"{self.place}{key}"
        try:
            yield
        except boto.ClientError as e:
            raise self._refusal(verb, where, e) from e
        except (
            boto.HTTPClientError, boto.ConnectionError, boto.IncompleteReadError, boto.FlexibleChecksumError, HTTPError,
        ) as e:  # fmt: skip
            if isinstance(e, boto.HTTPClientError) and isinstance(e.kwargs.get("error"), RecursionError):
                raise StorageError(f"cannot {verb} {where}: {_ELSEWHERE}") from e
            raise Interrupted(trouble(verb, where, e)) from e
        except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError) as e:
            # A machine's role is asked for over its own network, once: that is worth another look.
            raise Expired(f"cannot {verb} {where}: no usable credentials ({short(e)}): {_LOGIN}") from e
        except RecursionError as e:  # what the client makes of a redirect that names no region
            raise StorageError(f"cannot {verb} {where}: {_ELSEWHERE}") from e
        except boto.BotoCoreError as e:
            raise StorageError(f"cannot {verb} {where}: {e}") from e

    def _refusal(self, verb: str, where: str, error: Any) -> StorageError:
        found, status = error.response.get("Error", {}), _status(error)
        code = found.get("Code", "")
        if code in _EXPIRED:
            return Expired(f"cannot {verb} {where}: the credentials have expired: {_LOGIN}")
        if code == "NoSuchBucket" or (status == 404 and verb in ("list", "write")):
            return StorageError(f"cannot {verb} {where}: there is no bucket {self.bucket}: check its name")
        if code == "InvalidObjectState":  # with status 403
            return Unfit(
                f"cannot {verb} {where}: it is archived ({short(found.get('StorageClass') or code)}): restore it"
            )
        if code in _UNKNOWN:
            said = f"{code}: {found.get('Message') or 'no reason given'}"
            return StorageError(
                f"cannot {verb} {where}: {self._principal()} or its secret is not valid there: {_LOGIN}; "
                f"the store says: {short(said)}"
            )
        if 300 <= status < 400:
            return StorageError(f"cannot {verb} {where}: {_ELSEWHERE}")
        if status == 409 or code in ("SlowDown", "RequestTimeout", "RequestTimeTooSkewed"):
            status = 503  # two writers met, or the server was busy: it may pass
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        granted = f"{self._principal()} lacks {_PERMISSION[verb]}"
        said = f"{code}: {found.get('Message') or 'no reason given'}"
        told = refusal(verb, where, status, said, granted, retry_after(headers.get("retry-after")))
        # To HEAD a store answers without words, so this may be an expired token.
        return Expired(str(told)) if code == "400" else told


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _announced(reply: Any) -> int:
    """Bytes of the stretch, by its Content-Range ("bytes 0-99/1000"): no checksum would miss the others."""
    found = re.match(r"bytes (\d+)-(\d+)/", reply.get("ContentRange", ""))
    return int(found[2]) - int(found[1]) + 1 if found else 0


def _checksum(reply: Any) -> str:
    """An ETag is the MD5 of what was put in one piece and not encrypted with a key of KMS or one's own."""
    etag = reply["ETag"].strip('"')
    encrypted = reply.get("ServerSideEncryption", "AES256") != "AES256" or reply.get("SSECustomerAlgorithm")
    if encrypted or not _MD5.fullmatch(etag):
        return ""
    return f"md5:{base64.b64encode(bytes.fromhex(etag)).decode()}"
