"""Score transcripts against references: normalise by language, count errors, add up the corpus.

    counts = count_errors("the cat sat", "the cat sat down", "en")      # ErrorCounts(0, 1, 0, 3)
    score = CorpusScore()
    score.add("en", counts)
    score.to_dict()["wer"]                                               # 0.333333

Only the module `files` reads files. Nothing here knows a manifest.
"""

from voxbatch.scoring.corpus import CorpusScore, Tally
from voxbatch.scoring.counts import ErrorCounts, count_errors
from voxbatch.scoring.normalize import error_unit, normalizer, primary_subtag

__all__ = ["CorpusScore", "ErrorCounts", "Tally", "count_errors", "error_unit", "normalizer", "primary_subtag"]
