"""Choose the tiers of an annotation that have what was said: all speakers, and each word once.

    Ann, Bob                              two speakers                    →  both
    Ann - words, Ann, Bob - words, Bob    their utterances and words      →  the words of each
    words, phones, tones                  words, their sounds and pitch   →  the words
    Ann, translation                      what was said, and a remark     →  Ann

A name tells what a tier has only by its whole parts, because speakers may be called Sylvia, Norton or Stone. Parts that
are names, too (Tone, Ort), count only where labels are single words, at the times of other labels. What two tiers have
at the same times is read once.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, combinations

from voxbatch.sources.transcripts.timed_text import TimedText, in_order


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


_WORDS = _names(
    "word words wrd wrds wordsalign mot mots wort wörter palabra palabras parola parole palavra palavras token tokens"
    " tokensalign ort orth ortho orthography orthographic"
)
"""Parts of the names of tiers that have a word in each label."""
_UTTERANCES = _names(
    "utterance utterances utt utts segment segments sentence sentences transcript transcripts transcription"
    " transcriptions phrase phrases text texts txt tx trn ipu ipus"
)
_REMARKS = _names(
    "phone phones phoneme phonemes phonemic phonetic phonetics phono phn phns phonalign phon syll sylls syllable"
    " syllables syllalign ipa sampa xsampa tobi pos morph morphs morpheme morphemes lemma lemmas gloss glosses"
    " translation translations translit transliteration comment comments note notes remark remarks event events noise"
    " noises pitch f0 intonation prosody breaks gesture gestures gaze momel intsint"
)
"""Parts of the names of tiers that have no words, but sounds, meanings, and remarks of annotators."""
_SOUNDS = _names("tone tones mau mas kan syl")
"""The same, where labels are single words. Speakers are called so, too."""
_HEADINGS = _names("speaker speakers participant participants turn turns")
"""The same, as whole names: "Speaker 1" is a speaker. "turn - ab1" is LaBB-CAT's tier with the name of ab1."""
_TITLES = _names("mr mrs ms miss mx dr prof sir madam herr frau m mme mlle sr sra señor señora")
"""Words before the name of a person."""
_WITHOUT_SPACES = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_TOKEN = re.compile(rf"[{_WITHOUT_SPACES}]|(?:(?![{_WITHOUT_SPACES}])\w)+(?:['’]\w+)*")
"""A word, or a character of Thai, Lao, Burmese, Khmer, Japanese and Chinese."""
_SEPARATORS = " -_:./()[]@"
_SILENCES = frozenset(("sil", "sp", "spn", "pau", "<sil>", "<p:>", "<p>", "<eps>", "<usb>", "<nib>", "{sl}"))
"""Labels of aligners for pauses and noises."""
_SENTENCES = 0.2
"""Share of labels with several words, above which a tier has utterances."""
_SAME, _SAME_UTTERANCES = 0.5, 0.9
"""Share of the words of a tier that others have at the same times, above which it repeats them: of a tier of words, and
of utterances."""
_FEWEST_WORDS = 5
"""Words of a tier of utterances from which it may repeat another one. A speaker who says "yes" repeats nobody."""
_SAME_TIMES, _FEWEST_LABELS = 0.9, 3
"""Share and number of labels with the times of another tier's, from which one of both depends on the other."""


@dataclass(slots=True)
class Tier:
    """A tier with its labels."""

    name: str
    labels: list[TimedText] = field(default_factory=list)
    speaker: str = ""
    """The speaker, where the file says so apart from the name."""
    is_points: bool = False
    """True if the labels have no length."""


def spoken(tiers: Iterable[Tier]) -> list[TimedText]:
    """Return what the tiers say, in the order of time, with the speakers. Nothing if no tier has a label.

    Raises:
        ValueError: the tiers have no words, or their names do not tell which of two was said.
    """
    labelled = [replace(tier, labels=labels) for tier in tiers if (labels := _without_silences(tier.labels))]
    intervals = [tier for tier in labelled if not tier.is_points] or labelled
    candidates = _without_sounds([candidate for tier in intervals if (candidate := _candidate(tier))])
    if labelled and not candidates:
        names = ", ".join(repr(tier.name) for tier in labelled)
        raise ValueError(f"by their names, its tiers have no words ({names}); call the tier of what was said 'words'")
    by_speaker: dict[str, list[_Candidate]] = {}
    for candidate in candidates:
        by_speaker.setdefault(candidate.speaker, []).append(candidate)
    best = [candidate for group in by_speaker.values() for candidate in _best(group)]
    chosen: list[_Candidate] = []
    for candidate in sorted(best, key=lambda candidate: not candidate.speaker):  # those with a speaker come first
        if not _repeats(candidate, [label for kept in chosen for label in kept.labels]):
            chosen.append(candidate)
    _refuse_translations(chosen)
    return in_order(replace(label, speaker=kept.speaker) for kept in chosen for label in kept.labels)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A tier that may have been said."""

    name: str
    speaker: str
    kind: str
    """ "words", "sounds" or "utterances"."""
    labels: Sequence[TimedText]

    @property
    def num_words(self) -> int:
        """Number of words, without marks that stand alone."""
        return sum(len(_words(label.text)) for label in self.labels)

    @property
    def has_sentences(self) -> bool:
        """True if labels have several words."""
        return sum(len(label.text.split()) > 1 for label in self.labels) > _SENTENCES * len(self.labels)


def _candidate(tier: Tier) -> _Candidate | None:
    """Return a tier with what its name says; None if the name says that it has no speech."""
    parts = list(re.finditer(r"[^\W_]+", tier.name))
    names = [part[0].casefold() for part in parts]
    candidate = _Candidate(tier.name, tier.speaker or tier.name, "utterances", tier.labels)
    if not names or names[0] in _TITLES:
        return candidate
    if has_remarks(tier.name):
        return None
    layers = _UTTERANCES
    if not candidate.has_sentences:
        if not _WORDS.isdisjoint(names):
            candidate, layers = replace(candidate, kind="words"), _WORDS | _SOUNDS
        elif not _SOUNDS.isdisjoint(names) or names[0] == "turn" or {*names} <= _HEADINGS:
            return replace(candidate, kind="sounds")
    speaker = tier.name
    for part in reversed(parts):
        if part[0].casefold() in layers:
            speaker = speaker[: part.start()].rstrip(_SEPARATORS) + speaker[part.end() :]
    return replace(candidate, speaker=tier.speaker or speaker.strip(_SEPARATORS))


def has_remarks(name: str, codes: frozenset[str] = frozenset()) -> bool:
    """Return whether a tier has no words by its name.

    Args:
        codes: further parts of names of such tiers.
    """
    return not (_REMARKS | codes).isdisjoint(re.findall(r"[^\W_]+", name.casefold()))


def _without_sounds(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Return the candidates without those that have sounds by their names, unless most of these lie beside the speech
    of all others: then a speaker is called so."""
    others = _Timeline(label for tier in candidates if tier.kind != "sounds" for label in tier.labels)
    return [
        tier
        for tier in candidates
        if tier.kind != "sounds"
        or sum(bool(others.at(label)) for label in tier.labels) < len(tier.labels) / 2 * bool(others.labels)
    ]


def _best(candidates: Sequence[_Candidate]) -> Sequence[_Candidate]:
    """Return of the tiers of a speaker the one with the words, unless an aligner left out some; else the utterances."""
    words = max((tier for tier in candidates if tier.kind == "words"), key=lambda tier: tier.num_words, default=None)
    utterances = [tier for tier in candidates if tier.kind != "words"]
    if words is None:
        return utterances
    # LaBB-CAT calls sounds "segments". There are more of them than words.
    utterances = [tier for tier in utterances if tier.has_sentences or len(tier.labels) <= len(words.labels)]
    return utterances if any(tier.num_words > words.num_words for tier in utterances) else [words]


def _repeats(candidate: _Candidate, others: Sequence[TimedText]) -> bool:
    """Return whether most words of a tier are those of others at the same times."""
    timeline, num_same, num_words = _Timeline(others), 0, candidate.num_words
    for label in candidate.labels:
        heard = Counter(word for other in timeline.at(label) for word in _words(other.text))
        num_same += (Counter(_words(label.text)) & heard).total()
    if candidate.kind == "words":
        return num_same > _SAME * num_words
    return num_words >= _FEWEST_WORDS and num_same > _SAME_UTTERANCES * num_words


def _refuse_translations(candidates: Iterable[_Candidate]) -> None:
    """Raise ValueError if two tiers have labels with the same times, unless these follow a grid."""
    for pair in combinations(candidates, 2):
        times = [{(round(label.start, 3), round(label.end, 3)) for label in tier.labels} for tier in pair]
        fewest = max(_FEWEST_LABELS, _SAME_TIMES * max(map(len, times)))
        lengths = {round(end - start, 1) for start, end in times[0]}
        if len(times[0] & times[1]) >= fewest and len(lengths) > 1:
            raise ValueError(
                f"its tiers {pair[0].name!r} and {pair[1].name!r} have other words at the same times, as a translation "
                "has; keep the tiers of what was said, or call the other one 'translation'"
            )


class _Timeline:
    """Labels that are found by time."""

    def __init__(self, labels: Iterable[TimedText]):
        self.labels = in_order(labels)
        self._starts = [label.start for label in self.labels]
        self._latest_ends = list(accumulate((label.end for label in self.labels), max))

    def at(self, label: TimedText) -> list[TimedText]:
        """Return the labels that overlap with one."""
        first = bisect_right(self._latest_ends, label.start)
        end = max(bisect_left(self._starts, label.end), bisect_right(self._starts, label.start))
        return [other for other in self.labels[first:end] if other.end > label.start]


def _without_silences(labels: Iterable[TimedText]) -> list[TimedText]:
    return in_order(label for label in labels if label.text.strip().casefold() not in _SILENCES)


def _words(text: str) -> list[str]:
    return _TOKEN.findall(text.casefold())
