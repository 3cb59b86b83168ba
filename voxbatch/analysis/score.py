"""Score a finished run once more, from its merged outputs: the same pairs as in summary.json; or score a file."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from voxbatch.analysis.matching import Matching
from voxbatch.analysis.pairs import read_pairs
from voxbatch.analysis.speakers import Sessions
from voxbatch.analysis.text_kinds import TEXT_KINDS
from voxbatch.errors import BadLine, ConfigError, ManifestError
from voxbatch.output import run_file
from voxbatch.output.layout import FAILURES, RUN_FILE, TRANSCRIPTS
from voxbatch.output.lines import REFERENCE_SEGMENTS_KEY, REFERENCE_WORDS_KEY, parse_merged_line
from voxbatch.scoring.corpus import DEFAULT_OPTIONS, NO_VALUE, CorpusScore, ScoreOptions, line_language
from voxbatch.scoring.records import SpeakerErrors, TimeAccuracy
from voxbatch.scoring.speakers import SpeakerScore, texts_of_speakers
from voxbatch.scoring.word_times import WordTimes, timed_words
from voxbatch.storage import DEFAULT_STORES, Store, Stores, is_remote, redacted

NO_REFERENCE = "no line has a reference: give `text` in its lines, or --ref FILE with `id` and `text`"


@dataclass(frozen=True, slots=True)
class PlaceScore:
    """The score of a run or of files."""

    corpus: CorpusScore
    matching: Matching | None = None
    """How hypotheses and references of two files were matched."""
    word_times: TimeAccuracy | None = None
    """None if no reference has word times."""
    speakers: SpeakerErrors | None = None
    """None if the texts name no speakers."""
    notes: tuple[str, ...] = ()
    """Sentences for people."""

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON: those of the corpus, `matching` if there were two files, and `word_times` and
        `speakers` if the texts have them."""
        more = {
            "word_times": self.word_times and self.word_times.to_dict(),
            "speakers": self.speakers and asdict(self.speakers),
            "matching": self.matching and self.matching.to_dict(),
        }
        return self.corpus.to_dict() | {key: value for key, value in more.items() if value}


def is_run(place: str) -> bool:
    """Return whether a place is the OUT of a run, and not a file or a folder of texts."""
    if is_remote(place):
        return not place.removesuffix(".gz").endswith(tuple(f".{kind}" for kind in (*TEXT_KINDS, "txt")))
    return os.path.isfile(os.path.join(place, RUN_FILE))


def require_place(place: str) -> None:
    """Raise ConfigError if there is no such file or folder on this machine. Addresses are not looked up."""
    if not is_remote(place) and not os.path.exists(place):
        raise ConfigError(f"{place} does not exist; give the OUT of a run, or a file with transcripts")


def score_place(
    place: str,
    references: str | None = None,
    language: str | None = None,
    kind: str | None = None,
    stores: Stores = DEFAULT_STORES,
    options: ScoreOptions = DEFAULT_OPTIONS,
) -> PlaceScore:
    """Return the score of a run or of files.

    Args:
        place: the OUT of a run, or hypotheses; a path or an address.
        references: other references than those of the run or the file; see read_pairs.
        kind: kind of a file whose extension says nothing; see read_pairs.

    Raises:
        UsageError: there is no such file or folder; or see score_run and read_pairs.
    """
    for required in (place, references):
        if required:
            require_place(required)
    if not is_run(place):
        return score_files(place, references, language, kind, stores, options)
    run_file.read_existing(stores.out(place)).check_reader("score", place)
    if references:
        return score_files(os.path.join(place, TRANSCRIPTS), references, language, kind, stores, options)
    return score_run(stores.out(place), language, options)


def score_files(
    hypotheses: str,
    references: str | None = None,
    language: str | None = None,
    kind: str | None = None,
    stores: Stores = DEFAULT_STORES,
    options: ScoreOptions = DEFAULT_OPTIONS,
) -> PlaceScore:
    """Return the score of a file with both texts, or of two files. See read_pairs for the arguments.

    Raises:
        ManifestError: a file cannot be read, or there is no reference.
    """
    pairs, matching = read_pairs(hypotheses, references, language, kind, options.keys, stores)
    corpus, times, sessions = CorpusScore(options=options), WordTimes(options.rules), Sessions()
    for pair in pairs:
        pair.add_word_times(times)
        sessions.add(pair.reference_entry, pair.hypothesis_entry, pair.lang)
        if pair.hypothesis is None:
            corpus.add_missing(pair.lang, pair.reference, pair.row)
        else:
            corpus.add_pair(pair.lang, pair.reference, pair.hypothesis, pair.row)
    if not corpus.by_language:
        raise ManifestError(redacted(hypotheses), [BadLine(0, NO_REFERENCE)])
    _check_keys(corpus, redacted(hypotheses))
    notes = tuple(f"Warning: {note}" for note in filter(None, [matching.decoder.note()]))
    speakers = sessions.errors(options.rules)
    return PlaceScore(corpus, matching if references else None, times.accuracy(), speakers, notes)


def score_run(store: Store, language: str | None = None, options: ScoreOptions = DEFAULT_OPTIONS) -> PlaceScore:
    """Return the score of the run in OUT. The words of an item that failed count as deleted.

    Args:
        language: language of the items for which neither the manifest nor the run gave one.

    Raises:
        ConfigError: OUT holds no run, or a run that is not finished, or no item has a reference.
        CheckpointError: run.json or a merged output was changed or damaged.
    """
    run = run_file.read_existing(store)
    if not store.exists(TRANSCRIPTS):
        raise ConfigError(
            f"{store.place} has no {TRANSCRIPTS} yet: the run is not finished; run the same command again"
        )
    language, score, times = language or run.language, CorpusScore(options=options), WordTimes(options.rules)
    speakers = SpeakerScore(options.rules)
    for name in (TRANSCRIPTS, FAILURES) if store.exists(FAILURES) else (TRANSCRIPTS,):
        for number, text in enumerate(store.lines(name), 1):
            line = parse_merged_line(store, name, number, text)
            lang = line_language(line, language)
            times.add(timed_words(line.get(REFERENCE_WORDS_KEY)), timed_words(line.get("words")), lang)
            references = texts_of_speakers(line.get(REFERENCE_SEGMENTS_KEY))
            speakers.add(references, texts_of_speakers(line.get("segments")), lang)
            if line.get("text") is not None and name == TRANSCRIPTS:
                score.add_pair(lang, line["text"], line["pred_text"], line)
            elif line.get("text") is not None:
                score.add_missing(lang, line["text"], line)
    if not score.by_language:
        raise ConfigError(
            f"{store.place}: no item has a reference, so there is nothing to score; give --ref FILE, JSON lines with "
            "`id` and `text`"
        )
    _check_keys(score, store.place)
    return PlaceScore(score, word_times=times.accuracy(), speakers=speakers.errors())


def _check_keys(score: CorpusScore, place: str) -> None:
    """Raise ConfigError if no item has one of the keys by which the items are grouped."""
    for key in score.options.keys:
        if score.values(key) <= {NO_VALUE}:
            raise ConfigError(
                f"{place}: no item with a reference has the key {key!r}; give a key of the manifest's rows"
            )
