"""Make the words of a corrected text: a word that is the same keeps its times, its confidence and its segment.

    "the cat sat" → "The black cat sat."
        The [0.0, 0.2]   black [?]   cat [0.2, 0.5]   sat. [0.5, 0.9]

Words are the same if they differ in case and punctuation alone. In scripts without spaces, such as Chinese, the
characters are compared. Line breaks mean nothing: a word that a subtitle has broken is whole again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from voxbatch.formats.document import complete_sources, visible_text
from voxbatch.records import Segment, Transcript, Word
from voxbatch.scoring.alignment import edit_blocks
from voxbatch.text.stitching import SENTENCE_END
from voxbatch.works.correct.passages import Passage
from voxbatch.works.correct.units import SAID, Unit, units, units_of

CONTEXT = 3
"""Words that are shown before and after a change."""


@dataclass(slots=True, eq=False)
class DraftPiece:
    """A stretch of the corrected text that has whole words."""

    text: str
    space: str
    """White space before it."""
    segment: int
    """Index of its segment in the transcript."""
    speaker: str | None
    speaker_before: str | None
    """The speaker of the transcript."""
    words: tuple[Word, ...] = ()
    """Its words with times. A new piece has none before its times are known."""
    is_new: bool = False
    low: float | None = None
    high: float | None = None
    """Seconds between which a new piece is spoken, by the words that it replaces, or else by its neighbours."""

    is_opening: bool = False
    """True for a mark that belongs to the piece after it."""

    def prepend(self, mark: DraftPiece) -> None:
        """Put a mark before it, which nobody speaks."""
        head = mark.text + self.space
        self.text, self.space = head + self.text, mark.space
        self.words = (*(replace(word, text=head + word.text) for word in self.words[:1]), *self.words[1:])

    def append(self, mark: DraftPiece) -> None:
        """Append punctuation, which nobody speaks."""
        tail = mark.space + mark.text
        self.text += tail
        self.words = (*self.words[:-1], *(replace(word, text=word.text + tail) for word in self.words[-1:]))


@dataclass(slots=True)
class Draft:
    """The corrected text of an item, whose new words may lack times."""

    pieces: list[DraftPiece]
    transcript: Transcript
    """The transcript before."""
    has_words: bool
    """True if the transcript has words that spell its text."""

    @property
    def text(self) -> str:
        """The corrected text."""
        return "".join(piece.space + piece.text for piece in self.pieces).strip()

    @property
    def differs(self) -> bool:
        """True if the text or a speaker is another one than before."""
        return self.has_other_speaker or self.text != self.transcript.text.strip()

    @property
    def has_other_speaker(self) -> bool:
        """True if a speaker is another one than before."""
        return any(piece.speaker != piece.speaker_before for piece in self.pieces)

    @property
    def said(self) -> list[tuple[str, str | None]]:
        """The texts and speakers of all pieces, by which two files of an item are compared."""
        return [(piece.text, piece.speaker) for piece in self.pieces]

    @property
    def num_changes(self) -> int:
        """The number of words, and of characters of scripts without spaces, that are new or left out."""
        *_, blocks = self._compared()
        return sum(length for kind, _, _, length in blocks if kind != "equal")

    def excerpts(self) -> Iterator[str]:
        """Yield the changes with the words around them: "… on the [-cat-]{+dog+} sat down …"."""
        before, after, blocks = self._compared()
        excerpt, has_change = "", False
        for is_same, group in groupby(blocks, lambda block: block[0] == "equal"):
            run = [*group]
            _, start, at, _ = run[0]
            old = before[start : start + sum(length for kind, _, _, length in run if kind != "insertion")]
            new = after[at : at + sum(length for kind, _, _, length in run if kind != "deletion")]
            if not is_same:
                excerpt += f"{(new or old)[0].space}{_marked('[-', old, '-]')}{_marked('{+', new, '+}')}"
                has_change = True
            elif has_change and len(new) <= 2 * CONTEXT:
                excerpt += _spelled(new)
            else:
                if has_change:
                    yield " ".join(f"{excerpt}{_spelled(new[:CONTEXT])} …".split())
                excerpt, has_change = "… " * (len(new) > CONTEXT) + _spelled(new[-CONTEXT:]), False
        if has_change:
            yield " ".join(excerpt.split())

    def _compared(self) -> tuple[list[Unit], list[Unit], Iterator[tuple[str, int, int, int]]]:
        """Return the units before and after the correction, and the blocks in which they are equal or differ."""
        before, after = units(self.transcript.text), units(self.text)
        return before, after, edit_blocks([unit.text for unit in before], [unit.text for unit in after])

    @property
    def new_pieces(self) -> list[DraftPiece]:
        """The pieces whose times are looked for."""
        return [piece for piece in self.pieces if piece.is_new] if self.has_words else []

    def words(self) -> list[Word]:
        """Return the words of the corrected text, those of each piece with its speaker."""
        return [replace(word, speaker=piece.speaker) for piece in self.pieces for word in piece.words]

    def segments(self) -> list[Segment]:
        """Return the segments of the corrected text: those of the transcript, each with what its text is now, divided
        where the speaker changes."""
        groups = [[*group] for _, group in groupby(self.pieces, lambda piece: (piece.segment, piece.speaker))]
        counts = Counter(group[0].segment for group in groups)
        return [self._segment(group, is_whole=counts[group[0].segment] == 1) for group in groups]

    def _segment(self, group: Sequence[DraftPiece], is_whole: bool) -> Segment:
        """Return the segment of pieces. One that is as before, or that has no words, keeps its times."""
        text = "".join(piece.space + piece.text for piece in group).strip()
        words = [word for piece in group for word in piece.words]
        segments, at = self.transcript.segments, group[0].segment
        before = segments[at] if at < len(segments) else Segment("", 0.0, self.transcript.audio_duration)
        start, end = before.start, before.end
        if words and not (is_whole and visible_text(before.text) == visible_text(text)):
            start, end = words[0].start, max(word.end for word in words)
        return Segment(text, start, end, group[0].speaker)


def _spelled(words: Sequence[Unit]) -> str:
    return "".join(unit.space + unit.text for unit in words)


def _marked(begin: str, words: Sequence[Unit], end: str) -> str:
    return f"{begin}{_spelled(words).strip()}{end}" if words else ""


def draft_of(transcript: Transcript, passages: Sequence[Passage]) -> Draft:
    """Return the draft of a corrected text.

    Args:
        transcript: the present transcript of the item, as `read_transcript` gives it.
        passages: the corrected text.
    """
    before = units(transcript.text)
    after = units_of(passages, before)
    has_words = bool(complete_sources(transcript.words, transcript.text))
    blocks = edit_blocks([unit.key for unit in before], [unit.key for unit in after])
    same = {i + k: j + k for kind, i, j, length in blocks if kind == "equal" for k in range(length)}
    pieces, waiting, reached = list[DraftPiece](), list[_Atom](), 0
    for atom in _atoms(before, transcript, has_words):
        places = [same.get(at, -1) for at in atom.units]
        if places[0] < reached or places != [*range(places[0], places[0] + len(places))]:
            waiting.append(atom)
            continue
        pieces += _changed(waiting, after[reached : places[0]], pieces[-1:], atom)
        follows_kept = not waiting and places[0] == reached
        pieces.append(_kept(atom, before, [after[at] for at in places], follows_kept))
        waiting, reached = [], places[-1] + 1
    pieces += _changed(waiting, after[reached:], pieces[-1:], None)
    draft = Draft(_joined(pieces), transcript, has_words)
    _set_bounds(draft)
    return draft


def recut_cues(transcript: Transcript, passages: Sequence[Passage]) -> tuple[Segment, ...]:
    """Return the cues that a person has timed, with a corrected text that has no times. New words belong to the cue of
    those that they replace, and a cue without words goes.

        "the cat" [1.0, 2.0], "sat" [3.0, 4.0] and "the black cat sat"  →  "the black cat" [1.0, 2.0], "sat" [3.0, 4.0]

    Args:
        transcript: the present transcript of the item, with these cues.
        passages: the corrected text.
    """
    cues = transcript.subtitles
    lines = replace(transcript, text="\n".join(cue.text for cue in cues), words=(), segments=cues)
    pieces, recut = draft_of(lines, passages).pieces if cues else (), list[Segment]()
    for number, group in groupby(pieces, lambda piece: piece.segment):
        of_cue = [*group]
        text = "".join(piece.space + piece.text for piece in of_cue).strip()
        recut.append(replace(cues[number], text=_broken(text, cues[number].text), speaker=of_cue[0].speaker))
    return tuple(recut)


def _broken(text: str, before: str) -> str:
    """Return the text of a cue with as many lines as before: a break that went with its word is put at the space
    nearest to its place."""
    if text.count("\n") >= before.count("\n"):
        return text
    text = text.replace("\n", " ")
    for share in (match.start() / len(before) for match in re.finditer("\n", before)):
        if spaces := [match.start() for match in re.finditer(" ", text)]:
            at = min(spaces, key=lambda space: abs(space - share * len(text)))
            text = f"{text[:at]}\n{text[at + 1 :]}"
    return text


@dataclass(frozen=True, slots=True)
class _Atom:
    """Units of a transcript that have whole words: usually one unit and one word."""

    units: range
    words: tuple[Word, ...]
    segment: int
    speaker: str | None


def _atoms(before: Sequence[Unit], transcript: Transcript, has_words: bool) -> Iterator[_Atom]:
    """Yield the atoms of a transcript. Words and segments are found by the visible characters."""
    words = _of_characters(transcript.words) if has_words else []
    segments = _of_characters(complete_sources(transcript.segments, transcript.text))
    first, begin, at = 0, 0, 0
    for number, unit in enumerate(before):
        at += len(visible_text(unit.text))
        if words and at < len(words) and words[at] == words[at - 1]:
            continue  # the word goes on in the next unit
        present = transcript.words[words[begin] : words[at - 1] + 1] if words else ()
        segment = segments[begin] if segments else 0
        speaker = transcript.segments[segment].speaker if segments else None
        yield _Atom(range(first, number + 1), present, segment, present[0].speaker if present else speaker)
        first, begin = number + 1, at


def _of_characters(sources: Sequence[Word] | Sequence[Segment]) -> list[int]:
    """Return the index of the source of each visible character."""
    lengths = (len(visible_text(source.text)) for source in sources)
    return [index for index, length in enumerate(lengths) for _ in range(length)]


def _kept(atom: _Atom, before: Sequence[Unit], after: Sequence[Unit], follows_kept: bool) -> DraftPiece:
    """Return the piece of an atom that is the same in the corrected text.

    Args:
        after: its units in the corrected text, which may differ in case and punctuation.
        follows_kept: the atom before it is the same, too, and stands before it.
    """
    present = [before[at] for at in atom.units]
    spaces = [_space(*pair) for pair in zip(present, after, strict=True)]
    text = after[0].text + "".join(space + unit.text for space, unit in zip(spaces[1:], after[1:], strict=True))
    words = atom.words
    if words and [unit.text for unit in after] != [unit.text for unit in present]:
        words = (Word(text, words[0].start, words[-1].end, words[0].confidence),)
    is_told = not follows_kept and not (after[0].follows_break and atom.units[0])
    space = after[0].space if is_told else spaces[0]
    return DraftPiece(text, space, atom.segment, after[0].speaker_after(atom.speaker), atom.speaker, words)


def _space(present: Unit, unit: Unit) -> str:
    """Return the white space before a unit that is the same as before. A line break tells nothing about it."""
    return present.space if unit.follows_break or bool(unit.space) == bool(present.space) else unit.space


def _changed(
    atoms: Sequence[_Atom],
    after: Sequence[Unit],
    previous: Sequence[DraftPiece],
    following: _Atom | None,
) -> Iterator[DraftPiece]:
    """Yield the pieces of units of the corrected text that stand in the place of atoms; of none that were left out.

    Args:
        atoms: the atoms that are not the same. Empty if the units were added.
        previous: the piece before them, if there is one.
    """
    segment, speaker = (following.segment, following.speaker) if following else (0, None)
    if previous and not (following and previous[0].text.endswith(SENTENCE_END)):
        segment, speaker = previous[0].segment, previous[0].speaker
    if atoms:
        segment, speaker = atoms[0].segment, atoms[0].speaker
    words = [word for atom in atoms for word in atom.words]
    low, high = min((word.start for word in words), default=None), max((word.end for word in words), default=None)
    for unit in after:
        new_speaker = unit.speaker_after(speaker)
        yield DraftPiece(unit.text, unit.space, segment, new_speaker, new_speaker, (), True, low, high, unit.is_opening)


def _joined(pieces: Iterable[DraftPiece]) -> list[DraftPiece]:
    """Return the pieces; new ones without a space between them are one, and punctuation belongs to the piece before,
    or after it if it begins a line."""
    joined = list[DraftPiece]()
    for piece in pieces:
        before = joined[-1] if joined else None
        if before and before.is_opening and SAID.search(piece.text):
            piece.prepend(before)
            joined[-1] = piece
        elif before and piece.is_new and not piece.is_opening and not SAID.search(piece.text):
            before.append(piece)
        elif before and before.is_new and piece.is_new and not piece.space and before.speaker == piece.speaker:
            before.text += piece.text
        else:
            joined.append(piece)
    return joined


def _set_bounds(draft: Draft) -> None:
    """Set the times between which those new pieces are spoken that replace no words: the times of their neighbours."""
    latest = 0.0
    for piece in draft.pieces:
        piece.low = latest if piece.low is None else piece.low
        latest = max([latest, *(word.end for word in piece.words)])
    words = draft.transcript.words
    earliest = words[-1].end if words else draft.transcript.audio_duration
    for piece in reversed(draft.pieces):
        piece.high = max(piece.low or 0.0, earliest) if piece.high is None else piece.high
        earliest = piece.words[0].start if piece.words else earliest
