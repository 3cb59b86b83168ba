"""Parse and print the addresses of remote objects: gs://bucket/key, s3://bucket/key, hf://datasets/owner/name/key,
http(s)://host/path. StoreOptions says how their stores are entered, as far as a person can choose: the stores' own
clients find everything else (credentials, regions, emulators, proxies, address styles).

No function here opens a connection. A key is the store's own name of an object, in which / and . have no special
meaning. The path that `join` adds to a key is a relative path, in which they have one.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote

from voxbatch.errors import ConfigError
from voxbatch.settings import RECORDING, STORES, setting

BUCKET_SCHEMES = ("gs", "s3", "hf")
"""Schemes of places that are listed. The one bucket of hf:// is `datasets`; see `hf`."""
HTTP_SCHEMES = ("http", "https")

_REMOTE = re.compile(r"(gs|s3|hf|https?)://", re.IGNORECASE)
_WEB = re.compile(r"https?://(?P<user>[^/?#]*@)?(?P<host>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]+)(:[0-9]{1,5})?")
_USUAL_PORT = {"http": ":80", "https": ":443"}
_PLAIN = "!$%&'()*+,/:;=@[]"
"""Characters that stay as they are in a path or a query, in addition to letters, digits and -._~."""
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]")
"""Names that the rules of either store allow (Cloud Storage: 3 to 222 characters with dots; S3: 3 to 63, older ones
with capitals)."""
_DATA_SET = re.compile(r"datasets/[\w.-]+/[\w.-]+(@[^/]+)?(/|$)")


class Address(NamedTuple):
    """Address of an object or a prefix in a bucket."""

    scheme: str
    bucket: str
    key: str
    """Name of the object in the bucket. Empty for the bucket itself; ends in / for a prefix."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"


def scheme_of(text: str) -> str:
    """Return the scheme in lower case ("GS://b/k" → "gs"), or "" if the text is not a remote address."""
    match = _REMOTE.match(text)
    return match[1].lower() if match else ""


def is_remote(text: str) -> bool:
    """Return whether the text begins with gs://, s3://, hf://, http:// or https://."""
    return bool(scheme_of(text))


def is_bucket_address(text: str) -> bool:
    """Return whether the text is the address of a bucket, or of something in a bucket."""
    return scheme_of(text) in BUCKET_SCHEMES


def parse_bucket_address(uri: str) -> Address:
    """Return the parts of gs://bucket/key or s3://bucket/key.

    Raises:
        ValueError: it is not such an address, or no bucket can have that name, or the key has a part "." or "..", which
            HTTP clients would resolve to another key.
    """
    scheme = scheme_of(uri)
    bucket, _, key = uri[len(scheme) + 3 :].partition("/")
    if not is_bucket_address(uri):
        raise ValueError("the address of a bucket is gs://bucket/prefix or s3://bucket/prefix")
    if scheme == "hf" and not _DATA_SET.match(f"{bucket}/{key}"):
        raise ValueError("the address of a data set of the hub is hf://datasets/OWNER/NAME/ or …/NAME@REVISION/PATH")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError(f"{bucket!r} is not a valid bucket name: names have 3 to 222 letters, digits, dots and dashes")
    if not {".", ".."}.isdisjoint(key.split("/")):
        raise ValueError('a part of the name is "." or ".."; write the name without it')
    return Address(scheme, bucket, key)


def normalized(uri: str) -> str:
    """Return the normal form of an address: "HTTPS://Host:443/a b.wav#t" → "https://host/a%20b.wav", "S3://b/k" →
    "s3://b/k".

    Raises:
        ValueError: nothing can have that address (see parse_bucket_address), or it holds a user's name or password.
    """
    if scheme_of(uri) not in HTTP_SCHEMES:
        return str(parse_bucket_address(uri))
    web = _web(uri)
    if web["user"]:
        raise ValueError("it contains a user name or password; remove it, and use a signed address instead")
    if not _AUTHORITY.fullmatch(web["host"]):
        raise ValueError("the host or port is not valid; write https://host/path or https://host:port/path, in ASCII")
    if not {".", ".."}.isdisjoint(unquote(web["path"]).replace("\\", "/").split("/")):
        raise ValueError('a part of the path is "." or ".."; write the path without it')
    return place_of(uri) + quote(_path(uri) + (web["query"] or ""), safe=_PLAIN + "?")


def is_folder(uri: str) -> bool:
    """Return whether an address ends at the point where a file's name would begin: gs://bucket, gs://bucket/day/,
    https://host.

    An http(s) address with a query is not a folder, because the server may return a file for it.
    """
    is_asked = scheme_of(uri) in HTTP_SCHEMES and bool(_web(uri)["query"])
    return not is_asked and _path(uri)[-1:] in ("", "/")


def is_endpoint(uri: str) -> bool:
    """Return whether a service may answer at an address: http(s), a server's name, and perhaps a path."""
    if scheme_of(uri) not in HTTP_SCHEMES:
        return False
    web = _web(uri)
    return bool(_AUTHORITY.fullmatch(web["host"])) and web.end() == len(uri) and not web["query"]


def folder_of(uri: str) -> str:
    """Return the address of the folder of a file: "gs://b/x/m.jsonl" → "gs://b/x/". A query is dropped."""
    folder, slash, _ = _path(uri).rpartition("/")
    return place_of(uri) + folder + slash


def place_of(uri: str) -> str:
    """Return the address of the bucket or server, which answers or fails as a whole; "" if the text is not a remote
    address.

    "gs://b/x.wav" → "gs://b/", "HTTPS://Host:443/x" → "https://host/".
    """
    scheme = scheme_of(uri)
    if not scheme:
        return ""
    if scheme not in HTTP_SCHEMES:
        return f"{scheme}://{uri[len(scheme) + 3 :].partition('/')[0]}/"
    host = _web(uri)["host"].lower()
    return f"{scheme}://{host.removesuffix(_USUAL_PORT[scheme])}/"


def name_of(uri: str) -> str:
    """Return the name of an object, independent of how the object is accessed: the address without the scheme and the
    query.

    "gs://b/x.wav" → "b/x.wav", "https://host/x.wav?signature" → "host/x.wav".
    """
    return place_of(uri).partition("://")[2] + _path(uri)


def join(folder: str, path: str) -> str:
    """Resolve a relative path in a manifest against the manifest's remote folder. `folder` ends in / and stays as it is
    written.

    In a path on a web server, characters that an address cannot contain are percent-encoded, including ? and #. A %
    stays.

    Raises:
        ValueError: the path leads out of the bucket or the host.
    """
    place, steps = place_of(folder), _path(folder).split("/")[:-1]
    is_web = scheme_of(folder) in HTTP_SCHEMES
    for part in path.split("/"):
        if part == ".." and not steps:
            raise ValueError(f"it leads out of {place}")
        if part == "..":
            steps.pop()
        elif part not in ("", "."):
            steps.append(quote(part, safe=_PLAIN) if is_web else part)
    ends_in_folder = path.rpartition("/")[2] in ("", ".", "..")
    return place + "/".join([*steps, ""] if steps and ends_in_folder else steps)


def redacted(uri: str, instead: str = "?…") -> str:
    """Return an address for messages and logs: without a query, which may be a signature, and without a user's name and
    password."""
    scheme = scheme_of(uri)
    if scheme not in HTTP_SCHEMES:
        return uri
    web = _web(uri)
    if not _AUTHORITY.fullmatch(web["host"]):  # for example a password with a slash in it
        return f"{scheme}://…"
    return f"{scheme}://{web['host']}{web['path']}" + (instead if len(web["query"] or "") > 1 else "")


def _web(uri: str) -> re.Match[str]:
    match = _WEB.match(uri)
    assert match is not None
    return match


def _path(uri: str) -> str:
    """Return the part after the place, as it is written: a key, or a path without its first slash and its query."""
    if scheme_of(uri) in HTTP_SCHEMES:
        return _web(uri)["path"].removeprefix("/")
    return uri.partition("://")[2].partition("/")[2]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options for access to the stores of inputs, models and outputs.

    Raises:
        ConfigError: a value is invalid, or two options contradict each other.
    """

    s3_endpoint_url: str | None = setting(
        None, use=RECORDING, group=STORES, in_profiles=False, metavar="URL",
        help="Address of an S3-compatible service. Default: AWS_ENDPOINT_URL_S3, or Amazon's.",
    )  # fmt: skip
    anonymous: bool = setting(
        False, use=RECORDING, group=STORES, in_profiles=False, help="Access public buckets without credentials."
    )
    requester_pays: bool = setting(
        False, use=RECORDING, group=STORES, in_profiles=False, help="Pay for requests to requester-pays buckets."
    )
    """Cloud Storage charges the client's own project (GOOGLE_CLOUD_PROJECT)."""
    allow_private_addresses: bool = setting(
        False, use=RECORDING, group=STORES, in_profiles=False,
        help="Let http(s) addresses lead to this machine and to private networks.",
    )  # fmt: skip
    max_http_gb: float = setting(
        4.0, use=RECORDING, group=STORES, metavar="GB",
        help="Refuse larger files at http(s) addresses (2^30 bytes each).",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not 0 < self.max_http_gb < math.inf:
            raise ConfigError(f"max-http-gb is {self.max_http_gb!r}; it must be more than 0, and finite")
        if self.anonymous and self.requester_pays:
            raise ConfigError(
                "--anonymous and --requester-pays contradict each other: anonymous requests cannot be billed; give one"
            )
        if self.s3_endpoint_url is not None and not is_endpoint(self.s3_endpoint_url):
            raise ConfigError(
                f"s3-endpoint-url is {redacted(self.s3_endpoint_url)!r}; it must be the address of a server, such as "
                "https://s3.example.com or http://127.0.0.1:9000"
            )

    @property
    def max_http_bytes(self) -> int:
        """Largest object that is fetched from an http(s) address, in bytes."""
        return math.ceil(self.max_http_gb * (1 << 30))
