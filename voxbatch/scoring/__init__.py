"""Score transcripts against references: normalise by language, count errors, add up the corpus.

    counts = count_errors("the cat sat", "the cat sat down", "en")      # ErrorCounts(0, 1, 0, 3)
    score = CorpusScore()
    score.add("en", counts)
    score.to_dict()["wer"]                                               # 0.333333

Only the module `files` reads files. Nothing here knows a manifest.
"""

from voxbatch.scoring.corpus import DETECTED_LANGUAGE, CorpusScore, Tally, line_language
from voxbatch.scoring.counts import ErrorCounts, count_errors
from voxbatch.scoring.normalize import UNDETERMINED, error_unit, normalizer, normalizer_name, scored_language

__all__ = [
    "DETECTED_LANGUAGE",
    "UNDETERMINED",
    "CorpusScore",
    "ErrorCounts",
    "Tally",
    "count_errors",
    "error_unit",
    "line_language",
    "normalizer",
    "normalizer_name",
    "scored_language",
]
