"""The setting of a cascade: its two models, and how much the large one does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from voxbatch.config import DEFAULT_SHARE, RunOptions
from voxbatch.errors import ConfigError
from voxbatch.records import ALIGN
from voxbatch.storage.address import redacted


@dataclass(frozen=True, slots=True)
class Models:
    """The two models of a cascade."""

    small: str
    """The model that does everything."""
    large: str
    """The model that does the least sure recordings again."""
    share: float | None
    """Largest part of the audio that the large model does, from 0 to 1. None with `wer`."""
    wer: float | None = None
    """Highest expected word error rate of what the large model does not do, from 0 to 1. None with `share`."""


def parse_cascade(text: str) -> Models:
    """Return the models of a cascade.

        "tiny.en,base.en:0.2"    →  Models("tiny.en", "base.en", 0.2)
        "tiny.en,base.en:wer=5"  →  Models("tiny.en", "base.en", None, 0.05)

    Raises:
        ConfigError: the text is something else, the share or the rate is out of range, or both models are the same.
    """
    example = "give SMALL,LARGE or SMALL,LARGE:SHARE, such as tiny.en,base.en:0.3 or tiny.en,base.en:wer=5"
    match = re.fullmatch(r"([^,]+),([^,]+?)(?::([^/,:]*))?", text)
    if match is None:
        raise ConfigError(f"--cascade {text}: {example}")
    small, large = match[1].strip(), match[2].strip()
    try:
        by_wer = (match[3] or "").startswith("wer=")
        share = DEFAULT_SHARE if match[3] is None else float(match[3].removeprefix("wer="))
    except ValueError as e:
        raise ConfigError(f"--cascade {text}: {match[3]!r} is no share of the audio; {example}") from e
    if by_wer and not 0 < share < 100:
        raise ConfigError(f"--cascade {text}: the word error rate is {share:g} %; it must be above 0 and below 100")
    if not by_wer and not 0 < share < 1:
        raise ConfigError(
            f"--cascade {text}: the share is {match[3]}; it must be above 0 and below 1, because with 0 there is no "
            "second pass, and with 1 the large model alone costs less"
        )
    if small == large:
        raise ConfigError(f"--cascade {text}: both models are {small}; give two different ones")
    return Models(small, large, None, share / 100) if by_wer else Models(small, large, share)


def models_of(options: RunOptions) -> Models:
    """Return the models of a run with a cascade."""
    assert options.cascade is not None
    return parse_cascade(options.cascade)


def check(options: RunOptions) -> dict[str, Any]:
    """Check the settings of a cascade, and return those that follow from them.

    Raises:
        ConfigError: see `parse_cascade`; or another setting contradicts the cascade.
    """
    models = models_of(options)
    if options.model not in (None, models.small):
        raise ConfigError(f"--cascade names both models; leave out --model {redacted(options.model)}")
    if options.task == ALIGN:
        raise ConfigError("--cascade is for transcripts: an engine that aligns has no confidence in a text")
    by_wer = models.wer is not None
    if options.calibration is not None and not by_wer:
        raise ConfigError(
            "--calibration is of one model, and --cascade has two; leave out one of them, or choose by the word error "
            "rate that it gives: SMALL,LARGE:wer=5"
        )
    if options.calibration is None and by_wer:
        raise ConfigError(
            f"--cascade {options.cascade}: a word error rate is estimated by a calibration of "
            f"{models.small}; give --calibration FILE, which voxbatch calibrate makes from a run of it"
        )
    return {"model": models.small}
