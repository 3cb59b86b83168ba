"""Store options: how stores are entered, as far as a person can choose. The stores' own clients find everything else
(credentials, regions, emulators, proxies, address styles)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from voxbatch.errors import ConfigError
from voxbatch.storage.address import is_endpoint, redacted


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options for access to the stores of inputs, models and outputs.

    Raises:
        ConfigError: a value is invalid, or two options contradict each other.
    """

    s3_endpoint_url: str | None = None
    """Endpoint of another service than Amazon's that speaks S3. None leaves the choice to AWS_ENDPOINT_URL_S3 and
    AWS_ENDPOINT_URL."""
    anonymous: bool = False
    """Use no credentials, as for public buckets."""
    requester_pays: bool = False
    """Charge requests to us. Cloud Storage charges the client's own project (GOOGLE_CLOUD_PROJECT)."""
    allow_private_addresses: bool = False
    """Let http(s) addresses lead to this machine and to private networks."""
    max_http_gb: float = 4.0
    """Largest object that is fetched from an http(s) address, in units of 2^30 bytes."""

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


DEFAULT_STORE_OPTIONS = StoreOptions()
"""Default options."""
