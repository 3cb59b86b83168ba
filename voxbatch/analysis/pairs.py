"""Match the hypotheses of one file with the references of another, by id; or take both from the rows of one file.

A hypothesis and a reference match if they have the same id or the same path of the recording. Those that are left match
by the longest common end of their ids or paths, without the extension of a recording: by some folders and the name, or
else by the name alone. Names are equal if Unicode says that they are the same text (NFC and NFD). Two files that are
one text each match. Rows never match by position, except the lines of two files without ids (`lines`), which must have
equally many. References are held in memory (about 1.3 kB and their text each), hypotheses come as a stream.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from voxbatch.analysis.matching import Matching
from voxbatch.analysis.readers import Role, TextEntry, Texts, agreed_kinds, open_texts
from voxbatch.analysis.readers.entry import SESSION_KEYS, SPEAKER_KEY, bad_line
from voxbatch.analysis.text_kinds import LINES
from voxbatch.errors import ManifestError
from voxbatch.languages import DETECTED_LANGUAGE
from voxbatch.manifest.json_line import quote
from voxbatch.output.item_names import short_name
from voxbatch.scoring.corpus import line_language
from voxbatch.scoring.word_times import WordTimes
from voxbatch.sources.references import canonical
from voxbatch.storage import DEFAULT_STORES, Stores

MOST_FOLDERS = 3
"""Folders above a name by which texts of one name are told apart."""
_AMBIGUOUS = -1
_ROW_KEYS = (DETECTED_LANGUAGE, SPEAKER_KEY, *SESSION_KEYS)
"""Keys of the references' rows that a score needs."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A reference and its hypothesis."""

    id: str
    reference: str
    hypothesis: str | None
    """None if there is no transcript, which counts as all deletions."""
    lang: str | None
    reference_entry: TextEntry
    hypothesis_entry: TextEntry | None

    def add_word_times(self, times: WordTimes) -> None:
        """Add the pair to the comparison of word times, if its reference has them."""
        hypothesis = self.hypothesis_entry
        reference_words = (
            self.reference_entry.reference_words if hypothesis is self.reference_entry else self.reference_entry.words
        )
        if reference_words:
            times.add(reference_words, hypothesis.words if hypothesis else (), self.lang)

    @property
    def row(self) -> dict[str, Any]:
        """The values of both rows. Those of the reference come first where both have one."""
        return {**(self.hypothesis_entry.row if self.hypothesis_entry else {}), **self.reference_entry.row}


def read_pairs(
    hypotheses: str,
    references: str | None,
    language: str | None = None,
    kind: str | None = None,
    keys: Iterable[str] = (),
    stores: Stores = DEFAULT_STORES,
) -> tuple[Iterator[Pair], Matching]:
    """Return the pairs of a file with both texts, or of two files, and how those were matched.

    Args:
        hypotheses: a file, a folder with one file for each recording, or an address.
        references: likewise; None takes the references from the rows of `hypotheses`.
        language: language of texts that do not name one.
        kind: kind of a file whose extension says nothing; see TEXT_KINDS.
        keys: keys whose values Pair.row must have. Other values of the references' rows are not held in memory.

    Raises:
        ManifestError: a file cannot be read, an id is given twice, or nothing matches. Iterating raises it.
    """
    matching = Matching()

    def pairs() -> Iterator[Pair]:
        with open_texts(hypotheses, kind, stores, matching.decoder, language) as hypothesis_texts:
            if references is None:
                lines: dict[str, int] = {}  # two rows may have one path, but not one `id`
                for entry in hypothesis_texts.entries(Role.BOTH):
                    if (
                        entry.row.get("id") is not None
                        and (first := lines.setdefault(entry.id, entry.line)) != entry.line
                    ):
                        raise _repeated(hypothesis_texts.name, entry, first)
                    if entry.reference is not None:
                        yield Pair(entry.id, entry.reference, entry.text, _language(entry, language), entry, entry)
                return
            with open_texts(references, kind, stores, matching.decoder, language) as reference_texts:
                agreed, reference_texts = agreed_kinds(hypothesis_texts, reference_texts)
                yield from _matched_pairs(
                    agreed, _ReferenceFile(reference_texts, (*_ROW_KEYS, *keys)), language, matching
                )

    return pairs(), matching


class _ReferenceFile:
    """The references of a file, which are found by id, path or name."""

    def __init__(self, texts: Texts, keys: Sequence[str]):
        self.entries: list[TextEntry] = []
        self.name, self.kind = texts.name, texts.kind
        self._by_key: dict[str, int] = {}
        self._by_end: dict[str, int] = {}
        for entry in texts.entries(Role.REFERENCE):
            key = canonical(entry.id)
            if key in self._by_key:
                raise _repeated(texts.name, entry, self.entries[self._by_key[key]].line)
            self._by_key[key] = len(self.entries)
            # The values of a row take more memory than its text.
            row = {key: entry.row[key] for key in keys if key in entry.row}
            self.entries.append(replace(entry, row=row))
        for number, entry in enumerate(self.entries):
            if entry.path:
                self._by_key.setdefault(canonical(entry.path), number)
            for end in {*path_ends(entry.id), *path_ends(entry.path or entry.id)}:
                if self._by_end.setdefault(end, number) != number:
                    self._by_end[end] = _AMBIGUOUS
        self.taken_by: list[TextEntry | None] = [None] * len(self.entries)
        """The hypothesis of each reference, without its text."""

    def take(self, hypothesis: TextEntry, texts: Texts) -> tuple[TextEntry, bool] | None:
        """Return (the reference of a hypothesis, whether it was found by name alone), or None. Each is taken once.

        Raises:
            ManifestError: several references fit, or the reference was taken before.
        """
        match = self._find(hypothesis, texts)
        if match is None:
            return None
        number, _ = match
        reference, earlier = self.entries[number], self.taken_by[number]
        if earlier is not None and earlier.id == hypothesis.id:
            raise _repeated(texts.name, hypothesis, earlier.line)
        if earlier is not None:
            reason = f"ids {quote(earlier.id)} and {quote(hypothesis.id)} both fit the reference {quote(reference.id)}"
            raise bad_line(texts.name, hypothesis.line, f"{reason}; give each hypothesis the `id` of its reference")
        self.taken_by[number] = TextEntry(hypothesis.line, hypothesis.id, None)
        return reference, match[1]

    def _find(self, hypothesis: TextEntry, texts: Texts) -> tuple[int, bool] | None:
        if hypothesis.is_file and len(self.entries) == 1 and self.entries[0].is_file:
            return 0, False
        keys = [canonical(key) for key in (hypothesis.id, hypothesis.path) if key is not None]
        for key in keys:
            if (number := self._by_key.get(key)) is not None:
                return number, False
        ends = dict.fromkeys(end for key in keys for end in path_ends(key))
        for end in sorted(ends, key=lambda end: -end.count("/")):
            if (number := self._by_end.get(end)) is not None:
                is_name = "/" not in end
                if number == _AMBIGUOUS:
                    what = "its name" if is_name else quote(end)
                    reason = f"id {quote(hypothesis.id)} fits several references of {self.name} by {what} alone"
                    raise bad_line(texts.name, hypothesis.line, f"{reason}; give both the same `id`")
                return number, is_name
        return None


def _matched_pairs(
    hypotheses: Texts, references: _ReferenceFile, language: str | None, matching: Matching
) -> Iterator[Pair]:
    by_line, num_hypotheses, example = hypotheses.kind == references.kind == LINES, 0, ""
    for entry in hypotheses.entries(Role.HYPOTHESIS):
        num_hypotheses += 1
        match = references.take(entry, hypotheses)
        if match is None:
            example = example or entry.id
            matching.without_reference.add(entry)
            continue
        reference, by_name = match
        matching.by_line += by_line
        matching.by_name += by_name
        matching.by_id += not by_line and not by_name
        if reference.text is not None:
            yield from _pairs(reference, entry, language)
    _check_matching(hypotheses, references, num_hypotheses, example)
    for reference, hypothesis in zip(references.entries, references.taken_by, strict=True):
        if hypothesis is None:
            matching.without_hypothesis.add(reference)
            if reference.text is not None:
                yield from _pairs(reference, None, language)


def _check_matching(hypotheses: Texts, references: _ReferenceFile, num_hypotheses: int, example: str) -> None:
    """Refuse files without ids of which one has more lines, and files of which nothing matches."""
    if hypotheses.kind == references.kind == LINES and num_hypotheses != len(references.entries):
        difference = f"has {num_hypotheses:,} lines, and {references.name} has {len(references.entries):,}"
        advice = "without ids, line N of one file belongs to line N of the other: correct the files, or write ids"
        raise bad_line(hypotheses.name, 0, f"{difference}; {advice}")
    if num_hypotheses and references.entries and not any(references.taken_by):
        sides = (hypotheses.kind != LINES, hypotheses.name, example), (
            references.kind != LINES, references.name, references.entries[0].id,
        )  # fmt: skip
        (first_has_ids, lines, _), (second_has_ids, other, example_id) = sorted(sides)
        if second_has_ids and not first_has_ids:
            reason = f"plain lines, and {other} has ids such as {quote(example_id)}: lines match only lines"
            advice = "give both as lines in one order, or write a CSV with a column `id`"
            raise bad_line(lines, 0, f"{reason}, line N with line N; {advice}")
        ids = f"read as {hypotheses.kind}, with ids such as {quote(example)}"
        counterpart = (
            f"{references.name}, read as {references.kind}, with ids such as {quote(references.entries[0].id)}"
        )
        raise bad_line(
            hypotheses.name,
            0,
            f"{ids}, has no id of {counterpart}; give both the same ids, or name the kind with --format",
        )


def _pairs(reference: TextEntry, hypothesis: TextEntry | None, language: str | None) -> Iterator[Pair]:
    """Yield the pair of two entries; or one pair for each segment of the reference, if the hypothesis has word times.

    A word belongs to the first segment that ends after the middle of the word, or else to the last segment, as in
    NIST's sclite. The words of ignored segments are not scored.
    """
    lang = (
        _language(reference, language) if hypothesis is None else _language(hypothesis, _language(reference, language))
    )
    if hypothesis is None or not hypothesis.words or not reference.by_segment:
        text = None if hypothesis is None else hypothesis.text
        yield Pair(reference.id, reference.text or "", text, lang, reference, hypothesis)
        return
    words, at = sorted(hypothesis.words, key=lambda word: word.start), 0
    for number, segment in enumerate(reference.segments, 1):
        begin, is_last = at, number == len(reference.segments)
        while at < len(words) and (is_last or (words[at].start + words[at].end) / 2 < segment.end):
            at += 1
        if segment.scored:
            text = " ".join(word.text for word in words[begin:at])
            name = f"{reference.id}#{segment.start:g}-{segment.end:g}"
            yield Pair(name, segment.text, text, lang, reference, hypothesis)


def _language(entry: TextEntry, language: str | None) -> str | None:
    return line_language({"lang": entry.lang, DETECTED_LANGUAGE: entry.row.get(DETECTED_LANGUAGE)}, language)


def path_ends(path: str) -> list[str]:
    """Return the ends of a path or an id, without the extension: "/x/day/a.wav" → ["x/day/a", "day/a", "a"]."""
    folders = [folder for folder in canonical(posixpath.dirname(path.rstrip("/"))).split("/") if folder]
    ends = [match_name(path)]
    for folder in reversed(folders[-MOST_FOLDERS:]):
        ends.insert(0, f"{folder}/{ends[0]}")
    return ends


def match_name(path: str) -> str:
    """Return the last part of an id or a path without the extension of a recording: "x/a.wav#5-2" → "a#5-2"."""
    return canonical(short_name(posixpath.basename(path.rstrip("/"))) or path)


def _repeated(name: str, entry: TextEntry, first: int) -> ManifestError:
    return bad_line(name, entry.line, f"id {quote(entry.id)} is also line {first}'s; give each text its own id")
