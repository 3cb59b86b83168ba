"""Score files of JSON lines: hypotheses as `pred_text`, references as `text` in the same lines or in another file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from voxbatch.errors import BadLine, ManifestError
from voxbatch.safe_text import redact_secrets
from voxbatch.scoring.corpus import CorpusScore, line_language
from voxbatch.scoring.counts import count_errors
from voxbatch.storage import DEFAULT_STORE_OPTIONS, StoreOptions, is_remote, open_remote


def score_files(
    hypotheses: str,
    references: str | None,
    language: str | None = None,
    store_options: StoreOptions = DEFAULT_STORE_OPTIONS,
) -> CorpusScore:
    """Return the score of the corpus.

    Args:
        hypotheses: a file or its address: JSON lines with `pred_text`, and with `text` or an `id` that `references`
            has.
        references: JSON lines with `id` (or `audio_filepath`) and `text`. A reference without a hypothesis counts as
            missing.
        language: language of lines that do not name one.

    Raises:
        ManifestError: a line is not a JSON object or lacks a key, or no line has a reference.
    """
    unmatched: dict[str, dict[str, Any]] = {}
    if references:
        unmatched = {_match_key(row, references, line): row for line, row in _read_rows(references, store_options)}
    score = CorpusScore()
    for line, row in _read_rows(hypotheses, store_options):
        source = unmatched.pop(_match_key(row, hypotheses, line), None) if references else row
        if source is None or not isinstance(source.get("text"), str):
            continue
        lang = line_language(row, line_language(source, language))
        if not isinstance(row.get("pred_text"), str):
            raise ManifestError(
                hypotheses, [BadLine(line, "has no `pred_text`; score takes a run's transcripts.jsonl")]
            )
        score.add(lang, count_errors(source["text"], row["pred_text"], lang))
    for row in unmatched.values():
        if isinstance(row.get("text"), str):
            score.add_missing(line_language(row, language), row["text"])
    if not score.by_language:
        raise ManifestError(
            hypotheses,
            [BadLine(0, "no line has a reference: give `text` in its lines, or --ref FILE with `id` and `text`")],
        )
    return score


def _read_rows(path: str, store_options: StoreOptions) -> Iterator[tuple[int, dict[str, Any]]]:
    with open_remote(path, store_options) if is_remote(path) else open(path, "rb") as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                try:
                    row = json.loads(text)
                except (ValueError, RecursionError) as e:
                    raise ManifestError(path, [BadLine(number, f"not JSON: {e}")]) from e
                if not isinstance(row, dict):
                    seen = redact_secrets(repr(text[:4000]))[:43]
                    reason = f"is not a JSON object: {seen}; write one JSON object a line"
                    raise ManifestError(path, [BadLine(number, reason)])
                yield number, row


def _match_key(row: dict[str, Any], path: str, line: int) -> str:
    key = row.get("id", row.get("audio_filepath"))
    if key is None:
        raise ManifestError(
            path,
            [
                BadLine(
                    line,
                    "has neither `id` nor `audio_filepath`, by which a hypothesis finds its reference; add one of them",
                )
            ],
        )
    return str(key)
