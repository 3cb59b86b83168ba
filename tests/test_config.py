"""A config that makes no sense is never built; a run's identity is what decides its text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.config import PROFILE_KEYS, Config, digest, load_profile, profile_names
from voxbatch.errors import ConfigError

JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=9)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"limit": 0}, "limit is 0; it must be at least 1"),
        ({"part_items": -1}, "part-items is -1; it must be at least 1"),
        ({"part_seconds": float("nan")}, "part-seconds is nan; it must be at least 0.01"),
        ({"decoders": -1}, "decoders is -1; it must be at least 0"),
        ({"expected_rtfx": 0.0}, "expected-rtfx is 0.0; it must be at least 0.001"),
        ({"formats": ("srt", "doc", "x")}, "--formats doc,x: unknown; known are srt, vtt, txt, ctm, json"),
    ],
)
def test_senseless_settings_are_refused(setting: dict[str, Any], message: str) -> None:
    """What was seen and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        Config(source="m.jsonl", out="out", **setting)
    assert str(caught.value) == message


@given(st.dictionaries(st.text(max_size=9), JSON, max_size=5), st.randoms())
def test_a_digest_is_of_the_content(identity: dict[str, Any], random: Any) -> None:
    """The order of the keys does not matter; any value does."""
    shuffled = list(identity.items())
    random.shuffle(shuffled)
    assert digest(identity) == digest(dict(shuffled))
    assert digest({**identity, "more": 1}) != digest({**identity, "more": 2})
    assert len(digest(identity)) == 16


def test_a_digest_does_not_change_from_version_to_version() -> None:
    """Runs are resumed by it: the sha256 of the canonical JSON, worked out by hand with sha256sum."""
    assert digest({"b": 1, "a": "é"}) == "6d9eb45284090145"


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_is_sound(name: str) -> None:
    """It says what it is for, and sets what a profile may set, to values that make a Config."""
    settings = load_profile(name)
    assert settings.pop("description")
    assert settings.keys() <= PROFILE_KEYS
    Config(source="m.jsonl", out="out", **settings)


def test_no_profile_decides_what_a_run_is_over() -> None:
    """The manifest, OUT and the shard are the command's own."""
    assert not PROFILE_KEYS & {"source", "out", "shard", "shards", "limit", "overwrite", "profile"}
