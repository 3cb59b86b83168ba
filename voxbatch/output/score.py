"""Score a finished run once more, from its merged outputs: the same pairs as in summary.json; or score a file."""

from __future__ import annotations

import json
import os

from voxbatch.errors import ConfigError
from voxbatch.output import run_file
from voxbatch.output.layout import FAILURES, TRANSCRIPTS
from voxbatch.scoring import CorpusScore, count_errors, line_language
from voxbatch.scoring.files import score_files
from voxbatch.storage import DEFAULT_STORE_OPTIONS, Store, StoreOptions, is_remote, open_store


def is_run(place: str) -> bool:
    """Return whether a place is the OUT of a run, and not a file."""
    return not place.endswith((".jsonl", ".json")) if is_remote(place) else os.path.isdir(place)


def score_place(
    place: str,
    references: str | None = None,
    language: str | None = None,
    store_options: StoreOptions = DEFAULT_STORE_OPTIONS,
) -> CorpusScore:
    """Return the score of a run or of a file.

    Args:
        place: the OUT of a run, or JSON lines with `pred_text`; a path or an address.
        references: a file with other references; see score_files.
        language: language of lines that name none.

    Raises:
        UsageError: there is no such file or folder; or see score_run and score_files.
    """
    for each in (place, references):
        if each and not is_remote(each) and not os.path.exists(each):
            raise ConfigError(f"{each} does not exist; give the OUT of a run, or a file of JSON lines")
    if not is_run(place):
        return score_files(place, references, language, store_options)
    if references:
        return score_files(os.path.join(place, TRANSCRIPTS), references, language, store_options)
    return score_run(open_store(place, store_options), language)


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
