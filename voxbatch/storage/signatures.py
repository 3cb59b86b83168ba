"""Find the signature in an address: what a person signs anew when it has expired, while the object stays the same.

    https://b.s3.amazonaws.com/a.wav?versionId=7&X-Amz-Date=…&X-Amz-Signature=…  →  https://b.s3.amazonaws.com/a.wav?versionId=7

A parameter counts only beside the others of its scheme: `?id=17` and `?expires=never` choose an object.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from voxbatch.storage.address import HTTP_SCHEMES, scheme_of


@dataclass(frozen=True, slots=True)
class _Scheme:
    """A way to sign addresses. Names of parameters are in lower case."""

    signature: frozenset[str]
    """Parameters that all addresses of the scheme have."""
    others: frozenset[str]
    """Further parameters of the signature."""


def _scheme(signature: str, others: str, prefix: str = "") -> _Scheme:
    return _Scheme(*(frozenset(prefix + name for name in names.split()) for names in (signature, others)))


_VERSION_4 = "algorithm credential date expires signedheaders"
_SCHEMES = (
    # Amazon S3 and services that speak S3, signature versions 4 and 2; the session token is that of S3 Express
    _scheme("signature", f"{_VERSION_4} security-token content-sha256 s3session-token", "x-amz-"),
    _scheme("awsaccesskeyid signature", "expires x-amz-security-token"),
    # Google Cloud Storage, versions 4 and 2
    _scheme("signature", _VERSION_4, "x-goog-"),
    _scheme("googleaccessid signature", "expires"),
    # Azure's shared access signatures: of a service, an account or a user
    _scheme("sig sv", "ss srt sr sp st se spr sip si sdd ses skoid sktid skt ske sks skv saoid suoid scid"),
    # CloudFront, with a canned or a custom policy
    _scheme("key-pair-id signature", "expires policy hash-algorithm"),
    # Alibaba OSS, versions 4 and 1; Huawei OBS; Tencent COS
    _scheme("signature", "signature-version credential date expires additional-headers security-token", "x-oss-"),
    _scheme("ossaccesskeyid signature", "expires security-token"),
    _scheme("accesskeyid signature", "expires x-obs-security-token"),
    _scheme("signature", "sign-algorithm ak sign-time key-time header-list url-param-list", "q-"),
    # OpenStack Swift
    _scheme("temp_url_sig temp_url_expires", "temp_url_ip_range"),
)  # fmt: skip

SIGNATURE_REFUSED = "the signature of the address was refused: get a new one"
"""Message about an object of a signed address whose server answers that it may not be read."""
_ADDRESS = re.compile(r"https?://[^\s\"'<>]*", re.IGNORECASE)
"""Address inside a text."""


def unsigned(uri: str) -> str:
    """Return an http(s) address without the parameters of its signature. Any other text stays as it is."""
    if "?" not in uri or scheme_of(uri) not in HTTP_SCHEMES:
        return uri
    place, _, query = uri.partition("?")
    query, mark, fragment = query.partition("#")
    parameters = [(unquote_plus(part.partition("=")[0]).lower(), part) for part in query.split("&")]
    names = {name for name, _ in parameters}
    signature = {name for scheme in _SCHEMES if scheme.signature <= names for name in scheme.signature | scheme.others}
    if not signature:
        return uri
    kept = "&".join(part for name, part in parameters if name not in signature)
    return place + (f"?{kept}" if kept else "") + mark + fragment


def is_signed(uri: str) -> bool:
    """Return whether an address has a signature, which may have expired."""
    return unsigned(uri) != uri


def without_signatures(value: Any) -> Any:
    """Return a value of JSON, all of whose addresses are without their signatures."""
    return _with_texts(value, unsigned)


def unsigned_texts(value: Any) -> Any:
    """Return a value of JSON without the signatures of the addresses that its texts are, or hold somewhere."""
    return _with_texts(value, _unsigned_text)


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value of JSON, all of whose texts are changed; the keys stay."""
    match value:
        case str():
            return change(value)
        case list():
            return [_with_texts(element, change) for element in value]
        case dict():
            return {key: _with_texts(element, change) for key, element in value.items()}
    return value


def _unsigned_text(text: str) -> str:
    return _ADDRESS.sub(lambda match: _unsigned_in_text(match[0]), unsigned(text)) if "?" in text else text


def _unsigned_in_text(uri: str) -> str:
    """Return an address of a sentence without its signature, and with the punctuation that follows it."""
    address = uri.rstrip(".,;:!?)]}")
    return unsigned(address) + uri[len(address) :]
