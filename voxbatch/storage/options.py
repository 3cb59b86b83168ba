"""Store options: how stores are entered, as far as a person can choose. The stores' own clients find everything else
(credentials, regions, emulators, proxies, address styles)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of a run for access to stores."""

    s3_endpoint_url: str | None = None
    """Endpoint of another service than Amazon's that speaks S3. None leaves the choice to AWS_ENDPOINT_URL_S3 and
    AWS_ENDPOINT_URL."""
    anonymous: bool = False
    """Use no credentials, as for public buckets."""
    requester_pays: bool = False
    """Charge requests to us. Cloud Storage charges the client's own project (GOOGLE_CLOUD_PROJECT)."""
    allow_private_addresses: bool = False
    """Let http(s) addresses lead to this machine and to private networks."""
    max_http_bytes: int = 4 << 30
    """Largest size of one object at an http(s) address."""


DEFAULT_STORE_OPTIONS = StoreOptions()
"""Default options."""
