"""Turn the confidences of words into probabilities that the words are right, and these into an estimate of the WER.

The calibration is logistic regression (J. Platt, "Probabilistic outputs for support vector machines", 1999) on two
features of a word: the logit of its confidence, and the mean logit of the words of its item. It is fitted on a run with
references. Two ratios of that run complete the estimate, because no confidence says anything about words that are
missing: errors (with the deletions) to expected wrong words, and reference words to transcribed words.

    estimated WER = errors_per_wrong × Σ (1 − probability) / (length_per_word × number of words)

The module reads the file of a calibration, and else does arithmetic on numbers: it aligns no text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxbatch.errors import ConfigError
from voxbatch.scoring.records import EstimatedWer
from voxbatch.storage import DEFAULT_STORES, Stores, is_remote, redacted

Array = NDArray[np.float64]

VERSION = 1
MAX_BYTES = 1 << 20
"""Size of the largest file that is read. A calibration has about 20 kB."""
RESAMPLES = 200
"""Number of resampled calibrations. They give the interval of an estimate."""
INTERVAL = 0.95
"""Part of the resampled estimates that lies in the interval."""
MIN_ITEMS, MIN_WRONG = 20, 50
"""Fewest items, and fewest wrong words, of a calibration. With fewer, a few recordings would decide the result."""
EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Confidences between which the words of a reliability table are counted."""
_CLIP = 0.001
"""Confidences nearer to 0 or 1 count as this near. Output lines round confidences to three decimals."""
_RIDGE = 1.0
"""Weight of the penalty on the squared slopes. It keeps a resample without errors finite, and changes nothing else."""
_STEPS, _RESAMPLE_STEPS = 25, 4
"""Newton steps of a fit from nothing, and of a fit that begins at the result of all items."""
_SEED = 1999
"""Seed of the resamples, so that the same run has the same calibration everywhere."""


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """The words of one transcript, and the truth about them."""

    confidences: tuple[float, ...]
    right: tuple[bool | None, ...]
    """One entry for each confidence; None for a word that no count sees."""
    errors: int
    """Substitutions, insertions and deletions."""
    length: int
    """Number of words of the normalised reference."""
    cluster: str
    """Items of one cluster, for example of one speaker, are resampled together."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The numbers that make an estimate from confidences."""

    intercept: float
    word: float
    """Slope of the word's own logit."""
    item: float
    """Slope of the mean logit of the item."""
    errors_per_wrong: float
    length_per_word: float


@dataclass(frozen=True, slots=True)
class ConfidenceBin:
    """A row of a reliability table: the words whose confidence is at least `least` and below `most`; in the last row,
    also those of confidence 1."""

    least: float
    most: float
    words: int
    mean: float
    """Mean confidence of the words."""
    right: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibration of one model."""

    engine: str
    model: str
    decoding: Mapping[str, Any]
    """Options of the engine that influence the text; see EngineSpec."""
    languages: tuple[str, ...]
    items: int
    clusters: int
    words: int
    wrong: int
    wer: float
    """The true WER of the scored run."""
    dispersion: float
    """Variance of the errors of a cluster over their expected number: 1 for independent errors, more if errors come
    together (the dispersion of quasi-Poisson models; McCullagh and Nelder, Generalized Linear Models, 1989)."""
    fit: Fit
    resampled: tuple[Fit, ...]
    reliability: tuple[ConfidenceBin, ...] = ()
    """How often words of each confidence are right. Empty in files of earlier versions."""

    def refuse_other_model(self, place: str, engine: str, model: str, decoding: Mapping[str, Any]) -> None:
        """Refuse to be used for another model than the one that was calibrated.

        Args:
            engine, model, decoding: those of the run. The folder of a model may have another name if its files are
                the same.

        Raises:
            ConfigError: the run's model, or an option of its decoding, is another.
        """
        same_model = self.model == model or ("model_files" in decoding and "model_files" in self.decoding)
        differing = sorted(
            name for name in {*decoding, *self.decoding} if decoding.get(name) != self.decoding.get(name)
        )
        if self.engine == engine and same_model and not differing:
            return
        options = f", {', '.join(f'{name}={self.decoding.get(name)!r}' for name in differing)}" if differing else ""
        run_options = f", {', '.join(f'{name}={decoding.get(name)!r}' for name in differing)}" if differing else ""
        raise ConfigError(
            f"{place} calibrates {self.engine}, model {self.model}{options}; this run has {engine}, model "
            f"{model}{run_options}; score a run of this model and make a calibration from it: voxbatch calibrate OUT"
        )

    def probabilities(self, confidences: Sequence[float]) -> Array:
        """Return the probability of each word of an item that it is right, shape (len(confidences),)."""
        return _probabilities(_features(confidences), _slopes(self.fit))

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file as values for JSON."""
        content = asdict(self)
        resampled = [list(asdict(fit).values()) for fit in self.resampled]
        return {"version": VERSION, **content, "languages": list(self.languages), "resampled": resampled}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Calibration:
        """Rebuild a calibration from the result of `to_dict`.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: the value is no calibration of this version.
        """
        if stored["version"] != VERSION:
            raise ValueError(f"version {stored['version']!r} is not {VERSION}")
        numbers = {name: int(stored[name]) for name in ("items", "clusters", "words", "wrong")}
        resampled = tuple(Fit(*map(_finite, values)) for values in stored["resampled"])
        if not resampled:
            raise ValueError("it has no resamples")
        return cls(
            engine=str(stored["engine"]),
            model=str(stored["model"]),
            decoding=dict(stored["decoding"].items()),
            languages=tuple(map(str, stored["languages"])),
            wer=_finite(stored["wer"]),
            dispersion=_finite(stored["dispersion"]),
            fit=Fit(**{name: _finite(value) for name, value in stored["fit"].items()}),
            resampled=resampled,
            reliability=tuple(ConfidenceBin(**row) for row in stored.get("reliability", ())),
            **numbers,
        )


def reliability(items: Sequence[ScoredItem]) -> tuple[ConfidenceBin, ...]:
    """Return how often words of each confidence are right. Words that no count sees are left out.

    confidences 0.4, 0.6, 0.6 of which the first and the last are right  →  0.0 to 0.5: 1 of 1; 0.5 to 0.7: 1 of 2
    """
    pairs = [pair for item in items for pair in zip(item.confidences, item.right, strict=True) if pair[1] is not None]
    confidences, right = (np.array(column, float) for column in (zip(*pairs, strict=True) if pairs else ((), ())))
    numbers = np.clip(np.digitize(confidences, EDGES) - 1, 0, len(EDGES) - 2)
    rows = [(k, confidences[numbers == k], right[numbers == k]) for k in range(len(EDGES) - 1)]
    return tuple(
        ConfidenceBin(EDGES[k], EDGES[k + 1], len(own), round(float(own.mean()), 3), int(is_right.sum()))
        for k, own, is_right in rows
        if len(own)
    )


def expected_wrong(fit: Fit, confidences: Sequence[float]) -> float:
    """Return the expected number of wrong words of an item."""
    return float((1 - _probabilities(_features(confidences), _slopes(fit))).sum())


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{value!r:.80} is not a finite number")
    return float(value)


def calibrate(
    items: Sequence[ScoredItem], engine: str, model: str, decoding: Mapping[str, Any], languages: Sequence[str]
) -> Calibration:
    """Fit a calibration to the words of a run with references.

    Time is linear in the number of words: 400,000 words take 45 s of one core.

    Args:
        items: the transcripts. Those without words count with their deletions.
        engine, model, decoding: the engine of the run.
        languages: languages of the items.

    Raises:
        ConfigError: there are too few items or wrong words for a calibration.
    """
    owner = np.repeat(np.arange(len(items)), [len(item.confidences) for item in items])
    features = np.concatenate([_features(item.confidences) for item in items] or [np.zeros((0, 3))])
    truth = np.array([math.nan if right is None else right for item in items for right in item.right], dtype=float)
    counted = ~np.isnan(truth)
    errors = np.array([item.errors for item in items], dtype=float)
    lengths = np.array([item.length for item in items], dtype=float)
    words = np.array([len(item.confidences) for item in items], dtype=float)
    wrong = int((truth == 0).sum())
    if len(items) < MIN_ITEMS or wrong < MIN_WRONG or not (truth == 1).any():
        raise ConfigError(
            f"{len(items):,} items with {wrong:,} wrong words are too few for a calibration; it takes at least "
            f"{MIN_ITEMS} items and {MIN_WRONG} wrong words: score more recordings"
        )
    names = sorted({item.cluster for item in items})
    position = {name: index for index, name in enumerate(names)}
    cluster = np.array([position[item.cluster] for item in items])

    def fitted(weights: Array, start: Array, steps: int) -> tuple[Fit, Array]:
        """Return the fit with a weight for each item, and the expected wrong words of each item."""
        slopes = _newton(features[counted], truth[counted], weights[owner][counted], start, steps)
        expected = np.bincount(owner, 1 - _probabilities(features, slopes), len(items)).astype(float)
        ratios = (weights @ errors) / (weights @ expected), (weights @ lengths) / (weights @ words)
        return Fit(*(float(value) for value in (*slopes, *ratios))), expected

    fit, expected = fitted(np.ones(len(items)), np.zeros(3), _STEPS)
    residuals = np.bincount(cluster, errors - fit.errors_per_wrong * expected)
    # RandomState, because NumPy promises that its numbers stay the same in all versions.
    random, share = np.random.RandomState(_SEED), np.full(len(names), 1 / len(names))
    resampled = [
        fitted(random.multinomial(len(names), share)[cluster].astype(float), _slopes(fit), _RESAMPLE_STEPS)[0]
        for _ in range(RESAMPLES)
    ]
    return Calibration(
        engine=engine,
        model=model,
        decoding=dict(decoding),
        languages=tuple(sorted(languages)),
        items=len(items),
        clusters=len(names),
        words=int(words.sum()),
        wrong=wrong,
        wer=round(float(errors.sum() / lengths.sum()), 6),
        dispersion=float((residuals**2).sum() / errors.sum()),
        fit=fit,
        resampled=tuple(resampled),
        reliability=reliability(items),
    )


def _features(confidences: Sequence[float]) -> Array:
    """Return the features of the words of an item, shape (len(confidences), 3): 1, own logit, mean logit."""
    clipped = np.clip(np.asarray(confidences, dtype=float), _CLIP, 1 - _CLIP)
    logits = np.log(clipped / (1 - clipped))
    mean = logits.mean() if len(logits) else 0.0
    return np.stack([np.ones(len(logits)), logits, np.full(len(logits), mean)], axis=1)


def _slopes(fit: Fit) -> Array:
    return np.array([fit.intercept, fit.word, fit.item])


def _probabilities(features: Array, slopes: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(features @ slopes, -30, 30))))


def _newton(features: Array, truth: Array, weights: Array, start: Array, steps: int) -> Array:
    """Return the slopes of the weighted logistic regression, by Newton's method."""
    penalty = np.diag([0.0, _RIDGE, _RIDGE])
    slopes = start
    for _ in range(steps):
        p = _probabilities(features, slopes)
        gradient = features.T @ (weights * (p - truth)) + penalty @ slopes
        curvature = (features * (weights * p * (1 - p))[:, None]).T @ features + penalty + 1e-9 * np.eye(3)
        slopes = slopes - np.linalg.solve(curvature, gradient)
    return slopes


@dataclass(frozen=True, slots=True)
class CalibrationFile:
    """A calibration and the file that it is in."""

    place: str
    calibration: Calibration


def read_calibration(path: str, stores: Stores = DEFAULT_STORES) -> CalibrationFile:
    """Return the calibration in a file or at an address.

    Raises:
        ConfigError: there is no such file, or it is no calibration of this version.
        StorageError: the address cannot be read.
    """
    try:
        with stores.open(path) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise ConfigError(f"--calibration {path}: {e.strerror}; give a file that voxbatch calibrate wrote") from e
    try:
        if len(content) > MAX_BYTES:
            raise ValueError("it is too large")
        return CalibrationFile(redacted(path) if is_remote(path) else path, Calibration.from_dict(json.loads(content)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ConfigError(
            f"--calibration {path}: not a calibration, damaged, or of another version of voxbatch "
            f"({type(e).__name__}: {e!s:.80}); make it again: voxbatch calibrate OUT -o FILE"
        ) from e


def calibration_for(
    path: str,
    engine: str,
    model: str,
    decoding: Mapping[str, Any],
    stores: Stores = DEFAULT_STORES,
) -> CalibrationFile:
    """Return the calibration in a file, for a run of this engine.

    Raises:
        ConfigError: see `read_calibration`; or it is of another model.
        StorageError: the address cannot be read.
    """
    file = read_calibration(path, stores)
    file.calibration.refuse_other_model(f"--calibration {file.place}", engine, model, decoding)
    return file


@dataclass(slots=True)
class Estimator:
    """Adds up the transcripts of a run for an estimate of its WER, one at a time."""

    file: CalibrationFile
    items: int = 0
    left_out: int = 0
    words: int = 0
    wrong: Any = 0.0
    """Expected wrong words by each fit: the fit of all items first, then the resampled ones."""
    _slopes: Any = field(default=None, repr=False)

    def add(self, language: str, confidences: Sequence[float] | None) -> None:
        """Add a transcript.

        Args:
            language: its language, as scoring.units.scored_language names it.
            confidences: confidences of its words. None if the engine gives none.
        """
        if confidences is None or language not in self.file.calibration.languages:
            self.left_out += 1
            return
        if self._slopes is None:
            fits = (self.file.calibration.fit, *self.file.calibration.resampled)
            self._slopes = np.stack([_slopes(fit) for fit in fits], axis=1)
        self.items += 1
        self.words += len(confidences)
        self.wrong = self.wrong + (1 - _probabilities(_features(confidences), self._slopes)).sum(axis=0)

    def estimate(self) -> EstimatedWer | None:
        """Return the estimate; None without words that it can be about.

        The interval comes from the resampled calibrations. To each of them the scatter is added that the errors of a
        corpus of this size have around their expected number.
        """
        if not self.words:
            return None
        fits = (self.file.calibration.fit, *self.file.calibration.resampled)
        errors = self.wrong * np.array([fit.errors_per_wrong for fit in fits])
        lengths = self.words * np.array([fit.length_per_word for fit in fits])
        scatter = np.random.RandomState(_SEED).standard_normal(len(fits) - 1)
        drawn = errors[1:] + scatter * np.sqrt(self.file.calibration.dispersion * errors[1:])
        low, high = np.quantile(drawn.clip(0) / lengths[1:], [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2]).tolist()
        wer = float(errors[0] / lengths[0])
        interval = round(min(low, wer), 6), round(max(high, wer), 6)
        return EstimatedWer(round(wer, 6), interval, self.items, self.left_out, self.file.place)
