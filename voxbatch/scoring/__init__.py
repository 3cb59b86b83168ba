"""Score transcripts against references: normalise by language, count errors, add up the corpus.

    counts = count_errors("the cat sat", "the cat sat down", "en")      # ErrorCounts(0, 1, 0, 3)
    score = CorpusScore()
    score.add("en", counts)
    score.to_dict()["wer"]                                               # 0.333333

Nothing here knows a manifest or OUT, and only `calibration`, `leaderboard` and `replacements` read files: their own.
"""

from voxbatch.scoring.corpus import (
    DEFAULT_OPTIONS,
    DETECTED_LANGUAGE,
    NO_VALUE,
    CorpusScore,
    ScoreOptions,
    Tally,
    line_language,
)
from voxbatch.scoring.counts import ErrorCounts, count_characters, count_errors
from voxbatch.scoring.normalize import (
    DEFAULT_RULES,
    NORMALIZERS,
    RATES,
    UNDETERMINED,
    Rules,
    Unit,
    error_unit,
    normalizer,
    normalizer_name,
    scored_language,
)

__all__ = [
    "DEFAULT_OPTIONS",
    "DEFAULT_RULES",
    "DETECTED_LANGUAGE",
    "NORMALIZERS",
    "NO_VALUE",
    "RATES",
    "UNDETERMINED",
    "CorpusScore",
    "ErrorCounts",
    "Rules",
    "ScoreOptions",
    "Tally",
    "Unit",
    "count_characters",
    "count_errors",
    "error_unit",
    "line_language",
    "normalizer",
    "normalizer_name",
    "scored_language",
]
