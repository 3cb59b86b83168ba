"""Profiles: files with other defaults of the settings of a run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from voxbatch.config import RunOptions
from voxbatch.errors import ConfigError
from voxbatch.settings import settings_of
from voxbatch.storage.address import StoreOptions

PROFILE_KEYS = {
    name
    for kind in (RunOptions, StoreOptions)
    for name, declared in settings_of(kind).items()
    if declared.in_profiles
}  # fmt: skip
"""Settings that a profile may set. It may not set what the run covers, where its data is, who pays for access, and what
a stranger's manifest can reach through it."""


def profile_names() -> list[str]:
    """Return the names of all profiles, sorted."""
    entries = resources.files(__name__).iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


def for_engine(profile: Mapping[str, Any], engine: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a profile, and its engine options, that hold with an engine: its model and its engine
    options are for its own engine.

    Args:
        engine: the engine that was asked for, or "auto".
    """
    settings = {name: value for name, value in profile.items() if name not in ("description", "engine_options")}
    if engine not in ("auto", profile.get("engine")):
        settings.pop("model", None)
        return settings, {}
    return settings, profile.get("engine_options", {})


def load_profile(name: str) -> dict[str, Any]:
    """Return the settings of a profile, by the names of PROFILE_KEYS; `description` may be among them.

    Raises:
        ConfigError: the profile does not exist, or it sets a setting that no profile may set.
    """
    import yaml

    if name not in profile_names():
        raise ConfigError(f"profile {name!r} is unknown; known are {', '.join(profile_names())}")
    text = (resources.files(__name__) / f"{name}.yaml").read_text()
    settings: dict[str, Any] = yaml.safe_load(text) or {}
    if unknown := sorted(set(settings) - PROFILE_KEYS - {"description"}):
        raise ConfigError(
            f"profile {name}: {', '.join(unknown)}: not for profiles; allowed are {', '.join(sorted(PROFILE_KEYS))}"
        )
    return settings
