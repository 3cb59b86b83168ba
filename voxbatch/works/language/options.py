"""The settings of a run that detects languages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from voxbatch.errors import ConfigError
from voxbatch.languages import language_tag, primary_subtag, unknown_language
from voxbatch.settings import SOURCE, check_settings, setting
from voxbatch.work import WorkOptions

DEFAULT_MODEL = "base"


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionOptions(WorkOptions):
    """The way in which a run detects languages.

    Raises:
        ConfigError: a value is out of range, or a language is unknown.
    """

    key: ClassVar[str] = "detection"

    windows: int = setting(
        3, minimum=1, maximum=1000, group=SOURCE, metavar="N",
        help="Windows of 30 s, spread over each recording, that are heard.",
    )  # fmt: skip
    candidates: tuple[str, ...] = setting(
        (), group=SOURCE, metavar="LIST",
        help="The only languages that the recordings may have, e.g. en,de,fr. Default: any.",
    )  # fmt: skip
    """Primary subtags, sorted."""

    def __post_init__(self) -> None:
        check_settings(self)
        tags = sorted({primary_subtag(language_tag(name)) for name in self.candidates})
        object.__setattr__(self, "candidates", tuple(tags))  # frozen, and this is its construction
        for tag in tags:
            if reason := unknown_language(tag):
                raise ConfigError(f"--candidates {tag}: {reason}")
        if len(tags) == 1:
            raise ConfigError(f"--candidates {tags[0]}: there is nothing to detect; give two languages or more")
