"""Score a finished run once more, from its merged outputs: the same pairs as in summary.json."""

from __future__ import annotations

import json

from voxbatch.errors import ConfigError
from voxbatch.output import run_file
from voxbatch.output.layout import FAILURES, TRANSCRIPTS
from voxbatch.scoring import CorpusScore, count_errors, line_language
from voxbatch.storage import Store


def score_run(store: Store, language: str | None = None) -> CorpusScore:
    """Return the score of the run in OUT. The words of an item that failed count as deleted.

    Args:
        language: language of the items for which neither the manifest nor the run gave one.

    Raises:
        ConfigError: OUT holds no run, or a run that is not finished, or no item has a reference.
    """
    run = run_file.read_existing(store)
    if not store.exists(TRANSCRIPTS):
        raise ConfigError(
            f"{store.place} has no {TRANSCRIPTS} yet: the run is not finished; run the same command again"
        )
    language, score = language or run.language, CorpusScore()
    for text in store.lines(TRANSCRIPTS):
        line = json.loads(text)
        if line.get("text") is not None:
            lang = line_language(line, language)
            score.add(lang, count_errors(line["text"], line["pred_text"], lang))
    for text in store.lines(FAILURES) if store.exists(FAILURES) else ():
        line = json.loads(text)
        if line.get("text") is not None:
            score.add_missing(line_language(line, language), line["text"])
    if not score.by_language:
        raise ConfigError(
            f"{store.place}: no item has a reference, so there is nothing to score; give --ref FILE, JSON lines with "
            "`id` and `text`"
        )
    return score
