"""Find the frame rate of a video in ffmpeg's numbers, in what a person gives, and exactly in a rounded number; and its
shape in the line of an item."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from voxbatch.errors import ConfigError

AUTO = "auto"
"""Take the rate of each video."""
DEFAULT = 24.0
"""Frames per second for a recording without a picture."""
LOWEST, HIGHEST = 10.0, 240.0
"""Frame rates at which subtitles may begin. A slide show has a lower one; a clock of a container has a higher one."""
KEY = "frame_rate"
"""Key of a row, and of the line of a video. A row's own value counts before that of the container."""
ASPECT_KEY = "aspect_ratio"
"""Key of the line of a video: the width of its picture divided by its height."""
_NTSC = Fraction(1000, 1001)
_ROUNDED = 0.006
"""Largest difference of a rate that was rounded to two decimals, or cut after them."""


def exact(rate: float) -> float:
    """Return a frame rate that was rounded to two or three decimals. A frame of a film of two hours is 7 ms off if its
    rate stays rounded.

    >>> exact(23.976) == exact(23.98) == 24000 / 1001
    True
    >>> exact(25)
    25
    """
    of_ntsc = float(round(rate) * _NTSC)
    return of_ntsc if abs(rate - of_ntsc) < _ROUNDED else rate


def of_stream(average: float, base: float | None) -> tuple[float, bool]:
    """Return the frame rate of a video stream, with three decimals, and whether its frames come at varying times.

    Args:
        average: frames per second of the whole stream (`fps` of ffmpeg).
        base: lowest rate at whose frames all frames begin (`tbr` of ffmpeg). It is twice the average for interlaced
            video, and any other multiple if frames come at varying times. None if it is unknown.
    """
    ratio = (base or average) / average
    if base is not None and round(ratio) in (1, 2) and abs(ratio - round(ratio)) < 0.02:  # 29.83 and 30: a phone
        return round(exact(base / round(ratio)), 3), False
    is_variable = base is not None
    return round(exact(base if base is not None and is_usable(base) else average), 3), is_variable


def is_usable(rate: Any) -> bool:
    """Return whether a value is a frame rate with which subtitles may begin."""
    return isinstance(rate, int | float) and LOWEST <= rate <= HIGHEST


def of_line(line: Mapping[str, Any]) -> float | None:
    """Return the frame rate in the line of an item, or None. A row may have anything under its key."""
    try:
        rate = parsed(line.get(KEY))
    except ConfigError:
        return None
    return rate if isinstance(rate, float) else None


def aspect_of_line(line: Mapping[str, Any]) -> float | None:
    """Return the aspect ratio in the line of an item, or None. A row may have anything under its key."""
    value = line.get(ASPECT_KEY)
    return float(value) if isinstance(value, int | float) and 0 < value < 100 else None


def parsed(value: Any) -> float | str | None:
    """Return a frame rate that a person gives, with three decimals at most.

    >>> parsed("30000/1001"), parsed(25), parsed("auto")
    (29.97, 25.0, 'auto')

    Raises:
        ConfigError: it is no frame rate.
    """
    if value is None or value == AUTO:
        return AUTO if value else None
    try:
        rate = float(Fraction(value) if isinstance(value, str | int | float) else 0)
    except (ValueError, ZeroDivisionError, OverflowError):
        rate = 0.0
    if not is_usable(rate):
        raise ConfigError(
            f"--frame-rate is {value}; give {AUTO}, or frames per second from {LOWEST:g} to {HIGHEST:g}, such as 25, "
            "29.97 or 30000/1001"
        )
    return round(rate, 3)
