"""Choose a model of the table by what this machine can do: --quality, and the recommendation of `models` and `doctor`.

The speed on a CPU is calculated from the operations of a model. How many this CPU does in a second is measured once,
with the bundled model and a few seconds of noise, and kept in the cache folder. The speed on a GPU is that of an H200:
what counts is which model is faster than another one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voxbatch.engines import ENGINES, gpu, has_gpu, install_command
from voxbatch.engines.choice import AUTO
from voxbatch.engines.known_models import BUNDLED, ENGLISH, KNOWN_MODELS, KnownModel, bundled_folder, find
from voxbatch.engines.model_files import cache_folder
from voxbatch.errors import ConfigError
from voxbatch.languages import language_tag, primary_subtag
from voxbatch.work import TRANSCRIBE

QUALITIES = {"fast": 0.5, "balanced": 0.1, "best": 0.0}
"""Each quality, and the least speed of its model, as a share of that of the fastest model."""
_CHOOSING = ("model", "cascade", "profile")
"""Other settings that choose the model."""
REAL_TIME = 1.5
"""Least speed of a model that is taken. A slower one may take longer than the recording, see CPU_ERROR."""
CPU_ERROR = 0.4
"""Relative error that a calculated speed on a CPU may have. base took 2.04 times as long as tiny.en, and not 2.1."""
MOST_ERRORS = 5.5
"""A model with a `clean` above it is for English alone: Whisper tiny has 44 % errors on French test sets (model card of
distil-large-v3-fr)."""
_FILE = "cpu.json"
_WINDOW_S, _TOKENS, _BEAMS = 30, 100, 5
_SHARE_OF_RUN = 0.55
"""Share of the measured speed that a run reaches, which also decodes, finds voice and shares the memory's bandwidth: 23
of 42 times real time with tiny.en on two cores (profile cpu)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that this machine can run."""

    model: KnownModel
    rtfx: float | None
    """Seconds of audio per second: on this CPU, calculated; of a model for GPUs, on an H200. None if it is unknown."""

    @property
    def memory_bytes(self) -> int:
        """Memory that the model takes; 0 if it is unknown."""
        return memory_bytes(self.model)

    @property
    def uses_gpu(self) -> bool:
        """Return whether the model runs on a GPU, and its speed is that of an H200."""
        return ENGINES[self.model.engine].uses_gpu

    @property
    def errors(self) -> float | None:
        """Published word error rate in percent, by one source for all models of a kind of machine; None if unknown."""
        return self.model.wer if self.uses_gpu else self.model.clean

    @property
    def hour(self) -> str:
        """Time that an hour of audio takes, for people; empty if it is unknown."""
        if not self.rtfx:
            return ""
        minutes = 60 / self.rtfx
        if minutes < 1:
            return f"{60 * minutes:.2g} s"
        return f"{minutes:.0f} min" if minutes < 59.5 else f"{minutes / 60:.1f} h"

    def __str__(self) -> str:
        where = "on an H200" if self.uses_gpu else "here"
        speed = f", about {self.hour} for an hour of audio {where}" if self.hour else ""
        size = f"{self.model.megabytes:,} MB " if self.model.megabytes else ""
        here = {"no": f", {size}to download", "cached": ", cached"}.get(self.model.place, "")
        return f"{self.model.name}{speed}{here}"


def memory_bytes(model: KnownModel) -> int:
    """Return the memory that a model takes, in bytes; 0 if it is unknown. On a CPU, 8-bit weights are made while those
    of the file are there, too: 227 MB were measured for tiny.en and 344 MB for base, in a process of 100 MB."""
    return round((100 + 1.7 * model.megabytes) * 1e6) if model.megabytes else 0


def free_bytes(uses_gpu: bool) -> int:
    """Return the memory of the largest GPU, or that of this machine that is available."""
    if uses_gpu:
        return max((card.total_bytes for card in gpu.visible_gpus()), default=0)
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def candidates(language: str | None = None, engine: str | None = None) -> list[Candidate]:
    """Return the models that an installed engine can run on this machine, whose memory is enough.

    Args:
        language: tag of the language that they must know. None: any language, so that those for one are left out.
        engine: take only models of this engine.
    """
    installed = {name for name, entry in ENGINES.items() if entry.use and not install_command(name)}
    usable = {name for name in installed if ENGINES[name].uses_gpu == has_gpu()} or installed
    names = {engine} if engine else usable
    return [
        Candidate(model, speed_of(model))
        for model in KNOWN_MODELS
        if model.engine in names and model.work == TRANSCRIBE and knows(model, language) and fits(model)
    ]


def knows(model: KnownModel, language: str | None) -> bool:
    """Return whether a model is good for a language. None is a language that is not known yet."""
    if language is None:
        return len(model.languages) > 1 and knows(model, "other")
    is_weak = model.clean is not None and model.clean > MOST_ERRORS and language not in ENGLISH
    return not is_weak and (language in model.languages or language == "other")


def fits(model: KnownModel) -> bool:
    """Return whether the memory of this machine is enough for a model, as far as both are known."""
    return memory_bytes(model) <= free_bytes(ENGINES[model.engine].uses_gpu)


def recommended(quality: str, language: str | None = None, engine: str | None = None) -> Candidate:
    """Return the most accurate model of a quality, by its published error rate in English.

    Raises:
        ConfigError: no model of the table knows the language, or none can run here.
    """
    known = _with_speed(quality, language, engine)
    least = _least_rtfx(quality, known)
    enough = [candidate for candidate in known if (candidate.rtfx or 0) >= least]
    return min(enough, key=_errors) if enough else max(known, key=lambda candidate: candidate.rtfx or 0)


def choices(language: str | None = None) -> list[tuple[Candidate, list[str]]]:
    """Return the models of which each is more accurate than all faster ones, the fastest first, and the qualities that
    take it.

    Raises:
        ConfigError: see `recommended`.
    """
    better = list[Candidate]()
    for candidate in sorted(_with_speed("best", language), key=lambda entry: (-(entry.rtfx or 0), _errors(entry))):
        if not better or _errors(candidate) < _errors(better[-1]):
            better.append(candidate)
    taken = {quality: recommended(quality, language) for quality in QUALITIES}
    return [(candidate, [quality for quality in QUALITIES if taken[quality] == candidate]) for candidate in better]


def _with_speed(quality: str, language: str | None, engine: str | None = None) -> list[Candidate]:
    """Return the candidates whose speed is known; see `recommended`."""
    known = [candidate for candidate in candidates(language, engine) if candidate.rtfx]
    if not known:
        raise ConfigError(
            f"--quality {quality}: no model of the table runs here{f' for {language}' if language else ''}; "
            "`voxbatch models` lists them, and --model takes any other one"
        )
    return known


def _least_rtfx(quality: str, known: Sequence[Candidate]) -> float:
    """Return the least speed of a model of a quality, in seconds of audio per second."""
    return max(REAL_TIME, QUALITIES[quality] * max(candidate.rtfx or 0 for candidate in known))


def take_quality(quality: str, settings: dict[str, Any], given: Collection[str]) -> str:
    """Put the engine and the model of a quality into the settings of a run. Return the sentence that says which.

    Args:
        settings: they have `language` and `engine` if these are given.
        given: names of the settings that the caller gave.

    Raises:
        ConfigError: another setting chooses the model, too, or no model can run here.
    """
    if other := next((name for name in _CHOOSING if name in given), ""):
        raise ConfigError(f"--quality and --{other} both choose the model; leave out one of them")
    language, engine = settings.get("language"), settings.get("engine", AUTO)
    tag = primary_subtag(language_tag(language)) if language else None
    only = None if engine == AUTO else engine
    candidate, least = recommended(quality, tag, only), _least_rtfx(quality, _with_speed(quality, tag, only))
    is_enough = (candidate.rtfx or 0) >= least
    reason = "the most accurate one of at least" if is_enough else "the fastest one, none has"
    settings |= {"model": candidate.model.name, "engine": candidate.model.engine}
    hint = "" if tag else "; --language en takes models for English, too"
    return f"quality {quality}: {candidate}; {reason} {least:.2g} times real time{hint}"


def _errors(candidate: Candidate) -> tuple[bool, float]:
    """Return a key by which the more accurate model is less: the leaderboard's figure counts where there is one. On
    LibriSpeech, all Whisper models without it are worse than large-v3, which has it."""
    model = candidate.model
    return model.wer is None, model.wer or model.clean or 100.0


def speed_of(model: KnownModel) -> float | None:
    """Return the speed of a model in seconds of audio per second; see Candidate."""
    if ENGINES[model.engine].uses_gpu:
        return model.rtfx
    return gmac_per_s() / model.gmac if model.gmac and bundled_folder() else None


def gmac_per_s() -> float:
    """Return the multiply-adds that a run does in a second on all cores of this CPU, in 10⁹. The first call measures
    them in about three seconds; later ones read the file in the cache folder."""
    if (stored := _stored()) is None:
        place, stored = cache_folder() / _FILE, _measured()
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps({"cpu": _cpu(), "gmac_per_s": stored}))
        except OSError:
            pass  # a folder that cannot be written: the next call measures again
    return stored


def measured_speed(model: KnownModel) -> float | None:
    """Return the speed of a model on this CPU by an earlier measurement; None if there was none. Nothing is loaded."""
    stored = None if ENGINES[model.engine].uses_gpu else _stored()
    return float(f"{stored / model.gmac:.2g}") if stored and model.gmac else None


def _stored() -> float | None:
    """Return the result of an earlier measurement of this CPU; None if there was none."""
    try:
        stored = json.loads((cache_folder() / _FILE).read_text())
    except (OSError, ValueError):
        return None
    return float(stored["gmac_per_s"]) if stored.get("cpu") == _cpu() else None


def _cpu() -> str:
    """Return the name of the CPU, and the number of its usable cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{len(os.sched_getaffinity(0))} x {name}"


def _measured() -> float:
    """Transcribe one window of noise on one core, twice, and return the rate of all cores by the faster time. Only the
    processor's time counts, not that of other programs."""
    from faster_whisper import WhisperModel

    folder, bundled = bundled_folder(), find(BUNDLED)
    assert folder is not None
    assert bundled is not None
    assert bundled.gmac is not None
    model = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=1)
    noise = np.random.default_rng(0).standard_normal((80, 3000), dtype=np.float32)
    end_of_text, start = 50256, 50257  # of English-only models
    seconds = list[float]()
    for _ in range(2):
        begin = time.process_time()
        encoded = model.encode(noise)
        # CTranslate2 writes half of max_length; without its end, each text has as many tokens.
        model.model.generate(
            encoded, [[start]], beam_size=_BEAMS, max_length=2 * _TOKENS, suppress_tokens=[end_of_text]
        )
        seconds.append(time.process_time() - begin)
    cores = len(os.sched_getaffinity(0))
    return _SHARE_OF_RUN * cores * bundled.gmac * _WINDOW_S / min(seconds)
