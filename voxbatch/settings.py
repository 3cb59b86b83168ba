"""Declare a setting once: as a dataclass field with its type, default, limits, help and uses.

    max_hours: float = setting(24.0, minimum=0.001, metavar="H", group=SOURCE, help="Fail items with more than …")

The field is the only declaration. From it come the option and the VOXBATCH_* variable of the command line
(`cli/options`), the keyword of the Python interface (`api/keywords`), the check of the value, the keys that a profile
may set (`config`), and the texts of docs/cli.md. The options of engines are declared in the same way, and `parse` reads
them from text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast, get_type_hints

from voxbatch.errors import ConfigError

T = TypeVar("T")

COMMON, QUESTION, SPEECH, SOURCE, MODEL, OUTPUTS, SCORING, MACHINE, STORES = GROUPS = (
    "Options", "Question", "Speech", "Source", "Model", "Outputs", "Scoring", "Machine", "Stores",
)  # fmt: skip
"""Titles of the groups of options in the help, in their order."""
RECORDING, RUN, PROCESS = USES = ("recording", "run", "process")
"""Uses of a setting: for a single recording and for runs; for runs; or for a run of one process alone, not for one of
several tasks."""
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
"""The words for a truth value of an engine option."""
SWITCHES = {**BOOLEANS, "yes": True, "on": True, "no": False, "off": False}
"""The words for a flag in its variable, in lower case."""
_KEY = "setting"


MOST = 10**12
"""Largest whole number of a setting without a maximum of its own: above 2⁶³, some libraries fail. No run has as many
items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The declaration of a setting. For the options of engines, only the help and the limits count."""

    name: str = ""
    hint: Any = None
    default: Any
    help: str
    metavar: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    """Allowed values. Empty if there are others."""
    group: str = COMMON
    """One of GROUPS."""
    use: str = RUN
    """One of USES."""
    in_profiles: bool = True
    """True if a profile may set it."""
    in_identity: bool = False
    """True if it decides the text of the outputs. Runs with other values then do not share an OUT."""

    needs: str | None = None
    """Name of a setting without which it has no meaning."""

    @property
    def flag(self) -> str:
        """Option of the command line, such as --max-hours."""
        return f"--{self.name.replace('_', '-')}"

    def broken_rule(self, value: Any) -> str:
        """Return the rule that a value breaks, or "". None breaks no rule."""
        if value is None:
            return ""
        if self.choices and value not in self.choices:
            return f"it must be one of {', '.join(self.choices)}"
        if self.minimum is not None and self.maximum is not None and not self.minimum <= value <= self.maximum:
            return f"it must be from {self.minimum:g} to {self.maximum:g}"
        if self.minimum is not None and not value >= self.minimum:
            return f"it must be at least {self.minimum}"
        if self.maximum is None and isinstance(value, int) and value > MOST:
            return f"it must be at most {MOST:,}"
        return ""

    def check(self, value: Any) -> None:
        """Check a value.

        Raises:
            ConfigError: it is out of range.
        """
        if not (rule := self.broken_rule(value)):
            return
        if self.choices:
            raise ConfigError(f"{self.flag} {value!r}: known are {', '.join(self.choices)}")
        if self.maximum is not None:
            raise ConfigError(f"{self.flag} is {value:g}; {rule}")
        raise ConfigError(f"{self.flag} is {value!r}; {rule}")


def setting(default: T, *, help: str, **declared: Any) -> T:
    """Return a dataclass field that declares a setting.

    Args:
        declared: further fields of Setting.
    """
    metadata = {_KEY: Setting(default=default, help=help, **declared)}
    if isinstance(default, dict):
        return cast(T, field(default_factory=default.copy, metadata=metadata))
    return field(default=default, metadata=metadata)


def settings_of(cls: type) -> Mapping[str, Setting]:
    """Return the settings that a dataclass declares, by name, in the order of its fields."""
    hints = get_type_hints(cls)
    return {
        entry.name: replace(entry.metadata[_KEY], name=entry.name, hint=hints[entry.name])
        for entry in fields(cls)
        if _KEY in entry.metadata
    }


def check_settings(options: Any) -> None:
    """Check the values of all settings of a dataclass.

    Raises:
        ConfigError: a value is out of range.
    """
    settings = settings_of(type(options))
    for name, declared in settings.items():
        declared.check(getattr(options, name))
    for name, declared in settings.items():
        if declared.needs and getattr(options, name) and getattr(options, declared.needs) is None:
            needed = settings[declared.needs]
            values = [f"{needed.flag} {choice}" for choice in needed.choices]
            raise ConfigError(f"{declared.flag} needs {' or '.join(values) or needed.flag}")


def parse(cls: type[T], engine: str, texts: Mapping[str, str]) -> T:
    """Return the options of an engine from the values of `--engine-option NAME=VALUE`.

    Args:
        cls: a dataclass. Its fields have defaults and are of type int, float, str or bool.

    Raises:
        ConfigError: a name is unknown, or a value has the wrong type or is out of range.
    """
    kinds, values = get_type_hints(cls), dict[str, Any]()
    for name, text in texts.items():
        if name not in kinds:
            raise ConfigError(f"engine option {name!r} is unknown to {engine}; known are {', '.join(sorted(kinds))}")
        kind = kinds[name]
        try:
            values[name] = BOOLEANS[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError) as e:
            raise ConfigError(
                f"engine option {name}={text!r}: {engine} takes a value of type {kind.__name__} here"
            ) from e
    return cls(**values)
