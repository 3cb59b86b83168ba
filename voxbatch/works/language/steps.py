"""The steps of a run that detects languages.

The engine names the languages of some windows of each recording, and is told none. `detection` adds them up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from voxbatch.decoding import Decoded
from voxbatch.engines import EngineSpec, Feed, multilingual_model
from voxbatch.engines.choice import AUTO, EngineChoice, choose
from voxbatch.engines.known_models import LATER_LANGUAGES
from voxbatch.errors import ConfigError
from voxbatch.languages import primary_subtag
from voxbatch.manifest import PathPolicy
from voxbatch.output.layout import VERSION
from voxbatch.output.lines import manifest_keys
from voxbatch.output.parts import PartEntry
from voxbatch.output.stored_json import json_bytes
from voxbatch.records import (
    LOW_CONFIDENCE,
    OTHER_LANGUAGE,
    SAMPLING_RATE,
    Failure,
    Flag,
    Hypothesis,
    Item,
    Outcome,
    Transcript,
)
from voxbatch.runner.shared import EventQueue, InProgress, PendingItem
from voxbatch.runner.steps import Outcomes, Steps, Transcripts
from voxbatch.works.language.detector import DETECTORS, WINDOW_S
from voxbatch.works.language.options import DEFAULT_MODEL, DetectionOptions
from voxbatch.works.language.policy import UnhintedPolicy

if TYPE_CHECKING:
    from voxbatch.scoring.counts import ErrorCounts

CERTAIN = 0.5
"""Probability from which a language is certain: no other one is as probable then."""
MAX_ALTERNATIVES, MIN_ALTERNATIVE = 3, 0.01
"""Most alternatives of a line, and the least probability of one."""


@dataclass(frozen=True, slots=True)
class HeardWindow:
    """A window of a recording."""

    start: float
    end: float
    """Seconds on the recording's clock."""
    language: str | None
    """The most probable one. None if nobody speaks."""
    probability: float | None


@dataclass(frozen=True, slots=True)
class Detection(Transcript):
    """The languages of an item. There is no text. `language` is None if nobody speaks."""

    probabilities: tuple[tuple[str, float], ...] = ()
    """Mean probability of each language in the windows with speech, weighted by their lengths, the highest first."""
    windows: tuple[HeardWindow, ...] = ()
    recording_s: float | None = None
    """Seconds of the whole item. None if the header of its recording does not tell."""


def detection(decoded: Decoded, hypotheses: Iterable[Hypothesis], candidates: Iterable[str]) -> Detection:
    """Return the languages of an item, all of whose windows have results.

    Args:
        candidates: the only languages that it may have. Empty means any.
    """
    windows, totals, heard_s = list[HeardWindow](), defaultdict[str, float](float), 0.0
    for span, hypothesis in zip(decoded.spans, hypotheses, strict=True):
        start, end = span.core_start / SAMPLING_RATE, span.core_end / SAMPLING_RATE
        probabilities = _among(dict(hypothesis.languages), candidates)
        language = max(probabilities, key=lambda tag: probabilities[tag], default=None)
        windows.append(HeardWindow(start, end, language, probabilities.get(language or "")))
        for tag, probability in probabilities.items():
            totals[tag] += probability * (end - start)
        heard_s += end - start if probabilities else 0.0
    ranked = tuple(sorted(((tag, total / heard_s) for tag, total in totals.items()), key=lambda pair: -pair[1]))
    return Detection(
        "",
        audio_duration=decoded.seconds,
        warnings=(*decoded.warnings, *_doubts(decoded, windows)),
        language=ranked[0][0] if ranked else None,
        probabilities=ranked,
        windows=tuple(windows),
        recording_s=decoded.seconds if decoded.claimed_s is None else decoded.claimed_s or None,
    )


def _among(probabilities: dict[str, float], candidates: Iterable[str]) -> dict[str, float]:
    """Return the probabilities of the candidates, which then add up to 1; of all languages if there are none."""
    chosen = {tag: probabilities.get(tag, 0.0) for tag in candidates if probabilities}
    total = sum(chosen.values()) or 1.0
    return {tag: probability / total for tag, probability in chosen.items()} or probabilities


def _doubts(decoded: Decoded, windows: list[HeardWindow]) -> Iterator[str]:
    """Yield the warnings about the windows of a recording."""
    if all(window.language is None for window in windows):
        advice = "" if decoded.claimed_s is None else "; more --windows hear more of it"
        yield f"no speech in the {decoded.seconds:.1f} s that were heard{advice}"
    certain = Counter(window.language for window in windows if (window.probability or 0.0) >= CERTAIN)
    if len(certain) > 1:
        counts = ", ".join(f"{tag} in {count}" for tag, count in certain.most_common())
        yield f"several languages: {counts} of {len(windows)} windows"


class Detect(Steps):
    """Detect the language of each recording."""

    engines = DETECTORS
    carries_over = False
    has_known_speed = False

    @property
    def _own(self) -> DetectionOptions:
        assert isinstance(self.options.own, DetectionOptions)
        return self.options.own

    @property
    def excerpts(self) -> int | None:
        """See Steps."""
        return self._own.windows

    def path_policy(self) -> PathPolicy:
        """See Steps."""
        return UnhintedPolicy(self.options.allow_outside, self.options.only_under)

    def choose_engine(self) -> EngineChoice:
        """See Steps."""
        if (name := self.options.engine) not in (AUTO, *self.engines):
            raise ConfigError(
                f"engine {name} does not detect languages; voxbatch language takes faster-whisper with a multilingual "
                f"Whisper model: --engine faster-whisper --model {DEFAULT_MODEL}"
            )
        return choose(name, self.engines)

    def check_engine(self, spec: EngineSpec) -> None:
        """See Steps."""
        if only := spec.only_language:
            model = multilingual_model(spec.name)
            raise ConfigError(
                f"the model {spec.model} knows the language {only} alone, and would hear it in every recording; take "
                f"one that knows more: --model {model}",
                ("--model", model),
            )
        if unknown := sorted({*self._own.candidates} - {*LATER_LANGUAGES, "jv"}):
            raise ConfigError(f"--candidates {','.join(unknown)}: Whisper does not know it; leave it out")

    def size(self, audio_s: float, chunks: int) -> tuple[str, str]:
        """See Steps."""
        return "windows", f"at most {self._own.windows:,} of {WINDOW_S} s for each recording"

    def outcomes(self, spec: EngineSpec, feed: Feed, shared: InProgress, events: EventQueue) -> Outcomes:
        """See Steps."""
        return _Detections(self._own)

    def entry(
        self,
        item: Item,
        outcome: Any,
        spec: EngineSpec,
        lang: str | None,
        folder: str | None,
        counts: ErrorCounts | None,
    ) -> PartEntry:
        """See Steps. The line is one of a manifest: its `lang` is that of the row, else the one that was detected."""
        probability = outcome.probabilities[0][1] if outcome.probabilities else None
        line = {
            **manifest_keys(item, folder), "lang": lang or outcome.language, "id": item.id,
            "language": outcome.language, "language_probability": _rounded(probability),
            "alternatives": [
                {"language": tag, "probability": _rounded(other)}
                for tag, other in outcome.probabilities[1 : 1 + MAX_ALTERNATIVES]
                if other >= MIN_ALTERNATIVE
            ],
            "windows": [
                {"start": _rounded(window.start), "end": _rounded(window.end), "language": window.language,
                 "probability": _rounded(window.probability)}
                for window in outcome.windows
            ],
            "recording_duration": _rounded(outcome.recording_s), "audio_duration": _rounded(outcome.audio_duration),
            "engine": spec.name, "model": spec.model,
            "flags": [asdict(flag) for flag in _flags(outcome.language, probability, lang)],
            "warnings": list(outcome.warnings), "version": VERSION,
        }  # fmt: skip
        return PartEntry(item.index, "transcript", json_bytes(line))


def _flags(language: str | None, probability: float | None, lang: str | None) -> Iterator[Flag]:
    """Yield the reasons to distrust the language of a recording, or the `lang` of its row."""
    if language is None or probability is None:
        return
    if probability < CERTAIN:
        yield Flag(LOW_CONFIDENCE, f"the most probable language is {language}, with a probability of {probability:.2f}")
    elif lang and primary_subtag(lang) != language:
        yield Flag(OTHER_LANGUAGE, f"`lang` is {lang}, and the probability of {language} is {probability:.2f}")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


class _Detections(Transcripts):
    """The outcomes of items whose languages are detected."""

    def __init__(self, options: DetectionOptions) -> None:
        super().__init__(())
        self._options = options

    def outcome(self, pending: PendingItem, decoded: Decoded) -> Outcome | None:
        """See Transcripts."""
        hypotheses = pending.of_chunks(decoded, Hypothesis)
        if isinstance(hypotheses, Failure):
            return hypotheses
        return detection(decoded, hypotheses, self._options.candidates)
