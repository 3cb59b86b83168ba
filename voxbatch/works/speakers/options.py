"""The settings of speakers and of channels."""

from __future__ import annotations

import re
from typing import Any

from voxbatch.config import ANY_SPEAKERS, RunOptions
from voxbatch.errors import ConfigError
from voxbatch.records import SPLIT, SpeakerCount


def check_speakers(options: RunOptions) -> dict[str, Any]:
    """Check the settings of speakers.

    Raises:
        ConfigError: the number of speakers makes no sense, or two settings contradict each other.
    """
    speaker_count(str(options.speakers))
    if options.channels == SPLIT:
        raise ConfigError(
            "--channels split makes each channel a speaker, and --speakers tells the voices of a mixdown apart; "
            "leave out one of them, or give --channels auto"
        )
    return {"speakers": str(options.speakers)}


def check_channels(options: RunOptions) -> dict[str, Any]:
    """Check the names of channels.

    Raises:
        ConfigError: two have the same name.
    """
    names = options.channel_names
    if not all(name.strip() for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"--channel-names {','.join(names)}: give each channel a name of its own")
    return {}


def speaker_count(text: str) -> SpeakerCount:
    """Return the number of speakers that a recording may have: "auto" → from 1, "2" → 2 to 2, "2-4" → 2 to 4.

    Raises:
        ConfigError: the text is something else, or no recording can have so many speakers.
    """
    if text == ANY_SPEAKERS:
        return SpeakerCount()
    match = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", text, re.ASCII)
    if match is None:
        raise ConfigError(f"--speakers {text!r}: give a number, two numbers such as 2-4, or {ANY_SPEAKERS}")
    least = int(match[1])
    most = int(match[2] or least)
    if not 1 <= least <= most:
        raise ConfigError(f"--speakers {text}: the number must be at least 1, and the first one not above the second")
    return SpeakerCount(least, most)
