"""The settings of a run that redacts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from voxbatch.errors import ConfigError
from voxbatch.settings import OUTPUTS, SOURCE, check_settings, setting
from voxbatch.work import WorkOptions
from voxbatch.works.redact.rules import KINDS

SILENCE, TONE, NONE = SOUNDS = ("silence", "tone", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactionOptions(WorkOptions):
    """The way in which a run redacts.

    Raises:
        ConfigError: a value is out of range, or a kind is unknown.
    """

    key: ClassVar[str] = "redaction"
    hidden: ClassVar[frozenset[str]] = frozenset(
        ("source", "out", "rules", "answers")
    )  # names of files may tell names of people

    keep: tuple[str, ...] = setting(
        (), group=SOURCE, metavar="LIST", help=f"Kinds of secrets that stay: {','.join(KINDS)}.",
    )  # fmt: skip
    only: tuple[str, ...] = setting(
        (), group=SOURCE, metavar="LIST", help="The only kinds that are redacted; file_name is one of them.",
    )  # fmt: skip
    rules: str | None = setting(
        None, group=SOURCE, metavar="FILE",
        help="A YAML file with names and patterns of your own, which are redacted, too.",
    )  # fmt: skip
    answers: str | None = setting(
        None, group=SOURCE, metavar="OUT",
        help="An OUT of voxbatch ask whose answers list further secrets: the second detector.",
    )  # fmt: skip
    sound: str = setting(
        SILENCE, choices=SOUNDS, group=OUTPUTS, metavar="NAME",
        help="In the place of a secret: silence or tone; none writes no recordings.",
    )  # fmt: skip
    margin: float = setting(
        0.25, minimum=0, maximum=2, group=OUTPUTS, metavar="S",
        help="Seconds around a secret that are silent, too, where no other word is.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_settings(self)
        if unknown := sorted({*self.keep, *self.only} - {*KINDS}):
            raise ConfigError(f"--keep and --only: {', '.join(unknown)} is unknown; known are {', '.join(KINDS)}")
        if both := sorted({*self.keep} & {*self.only}):
            raise ConfigError(f"--keep and --only both name {', '.join(both)}; leave it out of one of them")

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the copies. The rules count by their digest, which the engine has, and
        answers by the rows of the items."""
        return {name: value for name, value in asdict(self).items() if name not in ("rules", "answers")}

    def redacts(self, kind: str) -> bool:
        """Return whether a kind of secret is redacted."""
        return kind in self.only if self.only else kind not in self.keep
