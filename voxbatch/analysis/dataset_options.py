"""The options of a data set."""

from __future__ import annotations

from dataclasses import dataclass

from voxbatch.errors import ConfigError
from voxbatch.settings import check_settings, setting

LAYOUTS = ("webdataset", "nemo-tarred", "shar", "hf")
"""Layouts of a data set."""
SPLIT_BY = BY_RECORDING, BY_SPEAKER = ("recording", "speaker")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """The cuts of a run that a data set has, their splits, and the layout.

    Raises:
        ConfigError: a value is out of range.
    """

    to: str = setting(
        LAYOUTS[0], choices=LAYOUTS, metavar="LAYOUT", help=f"Layout of the data set: {', '.join(LAYOUTS)}."
    )
    min_confidence: float | None = setting(
        None, minimum=0, maximum=1, metavar="P", help="Least mean confidence of the words of a cut."
    )
    max_wer: float | None = setting(
        None, minimum=0, metavar="PERCENT", help="Only items with a reference and at most this error rate."
    )
    min_seconds: float = setting(3.0, minimum=0.1, metavar="S", help="Leave out shorter cuts.")
    max_seconds: float = setting(
        30.0, minimum=1, metavar="S", help="Longest cut. Speech without a pause for longer is left out."
    )
    agree: bool = setting(False, help="Only items of which both models of a cascade made the same text.")
    split_by: str = setting(
        SPLIT_BY[0], choices=SPLIT_BY, metavar="KEY",
        help="recording or speaker: no recording, or no speaker, is in two splits.",
    )  # fmt: skip
    dev: float = setting(5.0, minimum=0, maximum=100, metavar="PERCENT", help="Share of the split dev.")
    test: float = setting(
        5.0, minimum=0, maximum=100, metavar="PERCENT", help="Share of the split test. The rest is train."
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.min_seconds > self.max_seconds:
            raise ConfigError(
                f"--min-seconds {self.min_seconds:g} is more than --max-seconds {self.max_seconds:g}; give less"
            )
        if self.dev + self.test > 100:
            raise ConfigError(f"--dev and --test are {self.dev + self.test:g} % together: they may be 100 % at most")
