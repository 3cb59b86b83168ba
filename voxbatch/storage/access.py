"""How stores are entered, where a person has a choice; all else is the stores' clients' own to find (credentials,
regions, emulators, proxies, address styles)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    s3_endpoint_url: str | None = None
    """Another service than Amazon's that speaks S3; None leaves it to AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL."""
    anonymous: bool = False
    """Use no credentials: for public buckets."""
    requester_pays: bool = False
    """Have requests charged to us. Cloud Storage charges the client's own project (GOOGLE_CLOUD_PROJECT)."""
    allow_private_addresses: bool = False
    """Let http(s) addresses lead to this machine and to private networks."""
    max_http_bytes: int = 4 << 30
    """Of one object at an http(s) address."""


USUAL = Access()
