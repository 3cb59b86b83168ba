"""Tests for the configuration: invalid values are refused, and the identity of a run is made of the settings that
decide its text.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.config import FORMATS, Config, RunOptions, digest
from voxbatch.errors import ConfigError
from voxbatch.profiles import PROFILE_KEYS, load_profile, profile_names
from voxbatch.storage import StoreOptions, Stores

ENDPOINT_RULE = "it must be the address of a server, such as https://s3.example.com or http://127.0.0.1:9000"
JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=9)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"limit": 0}, "--limit is 0; it must be at least 1"),
        ({"part_items": -1}, "--part-items is -1; it must be at least 1"),
        ({"part_seconds": float("nan")}, "--part-seconds is nan; it must be at least 0.01"),
        ({"decoders": -1}, "--decoders is -1; it must be at least 0"),
        ({"workers": -1}, "--workers is -1; it must be at least 0"),
        ({"expected_rtfx": 0.0}, "--expected-rtfx is 0.0; it must be at least 0.001"),
        ({"include": ("*.wav", "")}, "--include '' matches nothing; give a pattern such as '*.flac'"),
        ({"formats": ("srt", "sub", "x")}, f"--formats sub,x: unknown; known are {', '.join(FORMATS)}"),
    ],
)
def test_invalid_settings_are_refused(setting: dict[str, Any], message: str) -> None:
    """An invalid setting is refused with its value and the rule."""
    with pytest.raises(ConfigError) as caught:
        Config(source="m.jsonl", out="out", **setting)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_http_gb": 0.0}, "max-http-gb is 0.0; it must be more than 0, and finite"),
        ({"max_http_gb": float("inf")}, "max-http-gb is inf; it must be more than 0, and finite"),
        (
            {"anonymous": True, "requester_pays": True},
            "--anonymous and --requester-pays contradict each other: anonymous requests cannot be billed; give one",
        ),
        (
            {"s3_endpoint_url": "minio:9000"},
            f"s3-endpoint-url is 'minio:9000'; {ENDPOINT_RULE}",
        ),
        (
            {"s3_endpoint_url": "http://me:secret@minio:9000?secret"},
            f"s3-endpoint-url is 'http://minio:9000?…'; {ENDPOINT_RULE}",
        ),
    ],
)
def test_invalid_store_options_are_refused(setting: dict[str, Any], message: str) -> None:
    """An invalid option is refused with its value and the rule."""
    with pytest.raises(ConfigError) as caught:
        StoreOptions(**setting)
    assert str(caught.value) == message


def test_the_limit_of_an_http_object_is_in_units_of_2_to_the_30_bytes() -> None:
    """The limit is rounded up to a byte. Its default is 4."""
    assert Config(source="m.jsonl", out="out").stores == Stores(StoreOptions())
    assert StoreOptions().max_http_bytes == 1 << 32
    assert StoreOptions(max_http_gb=0.5).max_http_bytes == 1 << 29


def test_to_dict_hides_secrets() -> None:
    """Signatures and passwords are left out of run.json and summary.json."""
    config = Config(
        source="https://me:secret@host/m.jsonl?sig=secret",
        out="gs://b/out?",
        model="https://host/model?secret",
        stores=Stores(StoreOptions(s3_endpoint_url="http://me:secret@minio:9000/base")),
        only_under=("gs://calls/", "https://me:secret@host/x", "/data"),
    )
    found = config.to_dict()
    assert "secret" not in json.dumps(found)
    assert (found["source"], found["out"]) == ("https://host/m.jsonl?…", "gs://b/out?")
    assert (found["model"], found["s3_endpoint_url"]) == ("https://host/model?…", "http://minio:9000/base")
    assert found["only_under"] == ("gs://calls/", "https://host/x", "/data")
    assert Config(source="-", out="out").to_dict()["model"] is None


@given(st.dictionaries(st.text(max_size=9), JSON, max_size=5), st.randoms())
def test_digest_depends_on_every_value_and_on_no_order(identity: dict[str, Any], random: Any) -> None:
    """The digest does not depend on the order of keys, but on every value."""
    shuffled = list(identity.items())
    random.shuffle(shuffled)
    assert digest(identity) == digest(dict(shuffled))
    assert digest({**identity, "more": 1}) != digest({**identity, "more": 2})
    assert len(digest(identity)) == 16


def test_digest_is_stable_over_versions() -> None:
    """The digest is stable over versions, because runs are resumed by it: the sha256 of the canonical JSON, calculated
    with sha256sum.
    """
    assert digest({"b": 1, "a": "é"}) == "6d9eb45284090145"


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_is_valid(name: str) -> None:
    """Every profile has a description and sets only permitted keys to valid values."""
    settings = load_profile(name)
    assert settings.pop("description")
    assert settings.keys() <= PROFILE_KEYS
    RunOptions(**{name: value for name, value in settings.items() if name != "max_http_gb"})
    StoreOptions(max_http_gb=settings.get("max_http_gb", 4.0))


def test_profiles_cannot_set_input_output_or_store_options() -> None:
    """The manifest, OUT, the shard and the storage options belong to the command, not to a profile."""
    assert not PROFILE_KEYS & {"source", "out", "shard", "shards", "limit", "overwrite", "profile", "include"}
    assert not PROFILE_KEYS & {"s3_endpoint_url", "anonymous", "requester_pays", "allow_private_addresses"}
