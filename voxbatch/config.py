"""What a run was asked to do: flag > VOXBATCH_* > a file for vLLM > profile > default, validated once, here.

The command line's parser settles the first two; `engines/vllm/properties` and `engines/vllm/vllm_config` read the
third; a profile is a YAML file in `profiles/` that gives other defaults. The resolved Config is written beside the
outputs, and the part of it that decides what text comes out is the run's identity.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from typing import TYPE_CHECKING, Any

from voxbatch.errors import ConfigError

if TYPE_CHECKING:
    from voxbatch.storage import Access

FORMATS = ("srt", "vtt", "txt", "ctm", "json")
LOG_FORMATS = ("auto", "json", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A run's settings. Raises ConfigError when they make no sense."""

    source: str
    """Manifest (.jsonl, .jsonl.gz, -) or folder, here or at an address."""
    out: str
    """Folder of the outputs, here or in a bucket."""
    engine: str = "auto"
    model: str | None = None
    """None means the engine's default."""
    engine_options: Mapping[str, str] = field(default_factory=dict)
    language: str | None = None
    """For items that do not say; None leaves it to the engine."""
    formats: tuple[str, ...] = ()
    shard: int = 0
    shards: int = 1
    limit: int | None = None
    overwrite: bool = False
    allow_outside: bool = False
    only_under: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    """Of a folder's recordings, those that match one of these patterns; see manifest.folder.is_included."""
    s3_endpoint_url: str | None = None
    """This and the next four: see `access`."""
    anonymous: bool = False
    requester_pays: bool = False
    allow_private_addresses: bool = False
    max_http_gb: float = 4.0
    """2^30 bytes each."""
    fail_unreachable: bool = False
    """Record recordings as failed whose place does not answer or lets nobody in; else that stops the run."""
    part_items: int = 200
    """Commit after so many finished items …"""
    part_seconds: float = 30.0
    """… or so many seconds, whichever comes first: what a kill can cost."""
    decoders: int = 0
    """Worker processes that decode; 0 means one a core, at most 16. Each of several workers has as many of its own;
    there 0 shares the cores out."""
    workers: int = 0
    """Processes that transcribe side by side, at most: one a GPU; 0 leaves it to the engine."""
    profile: str | None = None
    expected_rtfx: float | None = None
    """For --dry-run: audio seconds a second that this profile was measured at."""
    usd_per_hour: float | None = None
    """What one task's machine costs; see prices."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.formats) - set(FORMATS))
        if unknown:
            raise ConfigError(f"--formats {','.join(unknown)}: unknown; known are {', '.join(FORMATS)}")
        if self.overwrite and self.shards > 1:
            raise ConfigError(
                f"--overwrite by one of {self.shards} shards or tasks would erase what the others have done; give all "
                "of them another OUT, or erase it once by hand"
            )
        for name, least in (
            ("limit", 1),
            ("part_items", 1),
            ("part_seconds", 0.01),
            ("decoders", 0),
            ("workers", 0),
            ("expected_rtfx", 0.001),
        ):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ConfigError(f"{name.replace('_', '-')} is {value!r}; it must be at least {least}")
        self._check_access()

    def _check_access(self) -> None:
        if not all(self.include):
            raise ConfigError("--include '' matches nothing; give a pattern such as '*.flac'")
        if not 0 < self.max_http_gb < math.inf:
            raise ConfigError(f"max-http-gb is {self.max_http_gb!r}; it must be more than 0, and finite")
        if self.anonymous and self.requester_pays:
            raise ConfigError(
                "--anonymous and --requester-pays contradict each other: nobody cannot pay; give one of them"
            )
        if self.s3_endpoint_url is not None:
            from voxbatch.storage.address import is_endpoint, shown

            if not is_endpoint(self.s3_endpoint_url):
                what = "it must be the address of a server, such as https://s3.example.com or http://127.0.0.1:9000"
                raise ConfigError(f"s3-endpoint-url is {shown(self.s3_endpoint_url)!r}; {what}")

    @property
    def access(self) -> Access:
        """How the stores of in- and outputs are entered."""
        from voxbatch.storage import Access

        return Access(
            s3_endpoint_url=self.s3_endpoint_url,
            anonymous=self.anonymous,
            requester_pays=self.requester_pays,
            allow_private_addresses=self.allow_private_addresses,
            max_http_bytes=math.ceil(self.max_http_gb * (1 << 30)),
        )

    def to_dict(self) -> dict[str, Any]:
        """For people and for files: no address in it has a query, which may be a signature, or a password."""
        from voxbatch.storage import shown

        addresses = {name: value and shown(value) for name, value in asdict(self).items() if name in _ADDRESSES}
        return {**asdict(self), **addresses, "only_under": tuple(map(shown, self.only_under))}


_ADDRESSES = ("source", "out", "model", "s3_endpoint_url")


def digest(identity: Mapping[str, Any]) -> str:
    """16 hex digits that two runs share exactly when their identities are equal."""
    canonical = json.dumps(identity, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def profile_names() -> list[str]:
    folder = resources.files("voxbatch") / "profiles"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_profile(name: str) -> dict[str, Any]:
    """A profile's settings by Config field name.

    Raises:
        ConfigError: there is no such profile, or it sets what no profile may set.
    """
    import yaml

    if name not in profile_names():
        raise ConfigError(f"profile {name!r} is unknown; known are {', '.join(profile_names())}")
    text = (resources.files("voxbatch") / "profiles" / f"{name}.yaml").read_text()
    settings: dict[str, Any] = yaml.safe_load(text) or {}
    if unknown := sorted(set(settings) - PROFILE_KEYS - {"description"}):
        raise ConfigError(
            f"profile {name}: {', '.join(unknown)}: no profile sets that; {', '.join(sorted(PROFILE_KEYS))} are allowed"
        )
    return settings


_NO_PROFILES = {
    "source", "out", "profile", "shard", "shards", "limit", "overwrite",
    "include", "s3_endpoint_url", "anonymous", "requester_pays", "allow_private_addresses",
}  # fmt: skip
"""What a run is over, where that lies, who pays for it, and what a stranger's manifest can reach through it."""
PROFILE_KEYS = {f.name for f in fields(Config)} - _NO_PROFILES
