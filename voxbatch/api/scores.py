"""Score texts in memory, the outputs of a run, or files; and compare two runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

from voxbatch.analysis.compare import Comparison, compare_places
from voxbatch.analysis.score import score_place
from voxbatch.api.keywords import place_of
from voxbatch.errors import ConfigError
from voxbatch.languages import language_tag, unknown_language
from voxbatch.scoring.corpus import CorpusScore, ScoreOptions
from voxbatch.scoring.normalize import Normalizer, Replacements, Rules
from voxbatch.scoring.replacements import read_replacements, replacements_of

Path = str | os.PathLike[str]


@overload
def score(
    references: Iterable[str],
    hypotheses: Iterable[str],
    *,
    language: str,
    normalizer: str | Normalizer = "auto",
    case: bool = False,
    punctuation: bool = False,
    replace: Path | Mapping[str, str] | None = None,
) -> CorpusScore: ...


@overload
def score(
    references: Path,
    *,
    ref: Path | None = None,
    language: str | None = None,
    normalizer: str | Normalizer = "auto",
    case: bool = False,
    punctuation: bool = False,
    replace: Path | Mapping[str, str] | None = None,
    by: Iterable[str] = (),
    cluster: str | None = None,
) -> CorpusScore: ...


def score(
    references: Path | Iterable[str],
    hypotheses: Iterable[str] | None = None,
    *,
    ref: Path | None = None,
    language: str | None = None,
    normalizer: str | Normalizer = "auto",
    case: bool = False,
    punctuation: bool = False,
    replace: Path | Mapping[str, str] | None = None,
    by: Iterable[str] = (),
    cluster: str | None = None,
) -> CorpusScore:
    """Return the score of two lists of texts; or of a run or a file, as `voxbatch score` does.

        voxbatch.score(["Mr. Grey's colour"], ["mister gray is color"], language="en").wer   →  0.0
        voxbatch.score("out").wer                                                            →  the run's own figure

    The word error rate of a corpus is the sum of the errors over the sum of the reference words. The texts are
    normalised by the rules of their language first.

    Args:
        references: texts that are right; or in place of both lists the OUT of a run, or a file of JSON lines with
            `pred_text`, or the address of one.
        hypotheses: texts that were recognised, one for each reference.
        ref: with a file: another file with the references, joined by `id`.
        language: language of the texts, such as "en". Lists need it. With a run or a file it is for the lines that do
            not name one.
        normalizer: rules for the texts: "auto", "english", "basic", "whisper", "whisper-basic" or "none"; or a function
            from a text to its normalised form.
        case: upper and lower case differ.
        punctuation: punctuation counts.
        replace: words to replace after the normaliser, {"ok": "okay"}, or a file of them.
        by: with a run or a file: keys of its rows by which the score is also grouped.
        cluster: with a run or a file: the key whose values are resampled for the intervals, instead of items.

    Raises:
        UsageError: an argument is missing or does not fit, or there is no reference.
    """
    tag = _tag(language)
    rules = _rules(normalizer, case, punctuation, replace)
    options = ScoreOptions(rules, _keys(by), cluster)
    if hypotheses is None:
        if not isinstance(references, str | os.PathLike):
            raise ConfigError("score needs the hypotheses, too: score(references, hypotheses, language=…)")
        other = None if ref is None else place_of(ref, "ref")
        return score_place(place_of(references, "references"), other, tag, options=options).corpus
    if isinstance(references, str | os.PathLike) or isinstance(hypotheses, str):
        raise ConfigError("score takes two lists of texts; for one pair give score([reference], [hypothesis], …)")
    if options.keys:
        raise ConfigError("two lists of texts have no keys: give `by` and `cluster` with a run or a file")
    if tag is None:
        raise ConfigError(
            "score needs the language of the texts, such as language='en', which decides their rules and whether words "
            "or characters are counted"
        )
    right, recognised = list(references), list(hypotheses)
    if len(right) != len(recognised):
        raise ConfigError(
            f"there are {len(right):,} references and {len(recognised):,} hypotheses; give as many of both"
        )
    _check_texts("reference", right)
    _check_texts("hypothesis", recognised)
    corpus = CorpusScore(options=options)
    for reference, hypothesis in zip(right, recognised, strict=True):
        corpus.add_pair(tag, reference, hypothesis)
    return corpus


def compare(
    a: Path,
    b: Path,
    *,
    ref: Path | None = None,
    language: str | None = None,
    normalizer: str | Normalizer = "auto",
    case: bool = False,
    punctuation: bool = False,
    replace: Path | Mapping[str, str] | None = None,
    cluster: str | None = None,
    by: Iterable[str] = (),
    limit: int = 10,
) -> Comparison:
    """Return how B differs from A on the items that both have, as `voxbatch compare` does.

        voxbatch.compare("out-tiny", "out-base").words.difference   →  -0.0147: B has 1.47 points less

    Args:
        a: the OUT of a finished run, or a file with transcripts and references; a path or an address.
        b: likewise.
        ref: a file or a folder with the references, in place of those of both.
        language: language of the items that name none, such as "en".
        normalizer, case, punctuation, replace: rules for the texts, as for `score`.
        cluster: key of the lines, such as "speaker". Items with the same value are resampled together for the
            interval.
        by: keys of the lines, for each value of which the result also has the difference: `comparison.groups`.
        limit: number of changed items in the result.

    Raises:
        UsageError: there is no such run or file, or the two have no item with a reference in common.
    """
    rules = _rules(normalizer, case, punctuation, replace)
    places, place = (place_of(a, "a"), place_of(b, "b")), None if ref is None else place_of(ref, "ref")
    return compare_places(*places, _tag(language), cluster, limit, rules=rules, by=_keys(by), ref=place)


def _keys(by: Iterable[str]) -> tuple[str, ...]:
    return (by,) if isinstance(by, str) else tuple(by)


def _rules(
    normalizer: str | Normalizer, case: bool, punctuation: bool, replace: Path | Mapping[str, str] | None
) -> Rules:
    function: Any = normalizer
    if callable(function) and function.__hash__ is None:  # an object of a dataclass
        normalizer = function.__call__
    return Rules(normalizer, case, punctuation, _replacements(replace))


def _replacements(replace: Path | Mapping[str, str] | None) -> Replacements | None:
    if replace is None:
        return None
    if isinstance(replace, Mapping):
        return replacements_of(replace)
    return read_replacements(place_of(replace, "replace"))


def _check_texts(noun: str, texts: Sequence[object]) -> None:
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise ConfigError(f'{noun} {number} of {len(texts)} is {text!r}; give a text, or "" for none')


def _tag(language: str | None) -> str | None:
    tag = None if language is None else language_tag(language)
    if tag is not None and (reason := unknown_language(tag)):
        raise ConfigError(f"language {language!r}: {reason}")
    return tag
