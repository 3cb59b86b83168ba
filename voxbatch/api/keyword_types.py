"""The types of the keyword arguments of the Python interface, for type checkers.

`make docs` writes this module from the declarations of the settings (`config`, `records`, `storage.address`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, TypedDict


class StoreKeywords(TypedDict, total=False):
    """Options for access to buckets and web servers."""

    s3_endpoint_url: str | None
    anonymous: bool
    requester_pays: bool
    allow_private_addresses: bool
    max_http_gb: float


class TranscribeKeywords(StoreKeywords, total=False):
    """Options of one recording's transcription."""

    quality: Literal["fast", "balanced", "best"] | None
    engine: str
    model: str | None
    engine_options: Mapping[str, object]
    kernel_cache: str | None
    language: str | None
    task: Literal["transcribe", "translate", "align"]
    hotwords: str | None
    prompt: str | None
    audio_stream: str | int | None
    channels: Literal["split", "auto"] | None
    channel_names: str | Collection[str]
    speakers: str | int | None
    speaker_model: str | None
    speaker_names: str | None
    max_hours: float
    profile: str | None


class ShardKeywords(TranscribeKeywords, total=False):
    """Options of a run whose shards several processes transcribe."""

    cascade: str | None
    formats: str | Collection[str]
    beside: bool | None
    report: bool | None
    max_line: int | None
    max_lines: int | None
    max_cps: float | None
    frame_rate: str | float | None
    min_gap: int | None
    limit: int | None
    allow_outside: bool
    only_under: str | Collection[str]
    include: str | Collection[str]
    fail_unreachable: bool
    calibration: str | None
    part_items: int
    part_seconds: float
    decoders: int
    workers: int
    expected_rtfx: float | None
    usd_per_hour: float | None


class RunKeywords(ShardKeywords, total=False):
    """Options of a run."""

    overwrite: bool
    update: bool
    retry_failed: Literal["retryable", "all"] | None
    keep_engine: float


class AskKeywords(TypedDict, total=False):
    """Options of a run that asks questions."""

    system: str | None
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    map_reduce: bool
    engine: str
    model: str | None
    engine_options: Mapping[str, object]
    kernel_cache: str | None
    report: bool | None
    limit: int | None
    overwrite: bool
    update: bool
    retry_failed: Literal["retryable", "all"] | None
    allow_outside: bool
    only_under: str | Collection[str]
    include: str | Collection[str]
    fail_unreachable: bool
    audio_stream: str | int | None
    max_hours: float
    part_items: int
    part_seconds: float
    decoders: int
    workers: int
    profile: str | None
    expected_rtfx: float | None
    usd_per_hour: float | None
    s3_endpoint_url: str | None
    anonymous: bool
    requester_pays: bool
    allow_private_addresses: bool
    max_http_gb: float


class SpeakKeywords(TypedDict, total=False):
    """Options of a run that speaks texts."""

    voice: str | None
    seed: int
    loudness: float
    verify: bool
    max_wer: float
    accept_licence: bool
    engine: str
    model: str | None
    engine_options: Mapping[str, object]
    language: str | None
    limit: int | None
    overwrite: bool
    update: bool
    retry_failed: Literal["retryable", "all"] | None
    max_hours: float
    part_items: int
    part_seconds: float
    expected_rtfx: float | None
    usd_per_hour: float | None
    s3_endpoint_url: str | None
    anonymous: bool
    requester_pays: bool
    allow_private_addresses: bool
    max_http_gb: float
