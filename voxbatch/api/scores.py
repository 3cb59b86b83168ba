"""Score texts in memory."""

from __future__ import annotations

from collections.abc import Iterable

from voxbatch.errors import UsageError
from voxbatch.scoring import CorpusScore, count_errors


def score(references: Iterable[str], hypotheses: Iterable[str], *, language: str | None) -> CorpusScore:
    """Return the score of hypotheses, with the normalisation of a run.

        voxbatch.score(["Mr. Grey's colour"], ["mister gray is color"], language="en").wer  →  0.0

    The word error rate of the corpus is the sum of the errors over the sum of the reference words.

    Args:
        references: texts that are right.
        hypotheses: texts that were recognised, one for each reference.
        language: language of the texts, such as "en". It decides the normalisation. None takes the rules for languages
            without rules of their own.

    Raises:
        UsageError: the two have different lengths, or one of them is a single string.
    """
    if isinstance(references, str) or isinstance(hypotheses, str):
        raise UsageError("score takes two lists of texts; for one pair give score([reference], [hypothesis], …)")
    wanted, found = list(references), list(hypotheses)
    if len(wanted) != len(found):
        raise UsageError(f"there are {len(wanted):,} references and {len(found):,} hypotheses; give as many of both")
    corpus = CorpusScore()
    for reference, hypothesis in zip(wanted, found, strict=True):
        corpus.add(language, count_errors(reference, hypothesis, language))
    return corpus
