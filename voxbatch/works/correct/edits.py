"""Find the files of a run that somebody has changed, and the texts in them.

A file in OUT, or beside a recording, is changed if no log of digests has it; see `output.own_files`. Any other file can
be given by name: a subtitle or plain text belongs to the item whose files have its name, and a line of JSON to the item
with its `id` or `audio_filepath`.
"""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from voxbatch.formats import WRITERS
from voxbatch.formats.document import Document, complete_sources, visible_text
from voxbatch.formats.styles import styles_of
from voxbatch.manifest.encoding import TextDecoder
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.beside import BESIDE
from voxbatch.output.entries import Entries
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.item_writer import names_of_files
from voxbatch.output.layout import TRANSCRIPTS, item_file
from voxbatch.output.lines import parse_line
from voxbatch.output.outcomes import read_transcript
from voxbatch.output.own_files import Key, OwnFiles, key_of, sha256
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import Run
from voxbatch.records import Segment
from voxbatch.storage import Store, Stores, parallel_map
from voxbatch.works.correct.chosen_files import ChosenFiles, TextInFile
from voxbatch.works.correct.draft import Draft, draft_of, recut_cues
from voxbatch.works.correct.passages import BROKEN, READERS, Passage, broken_times, is_readable, passages

_TAGS = r"\{\\[^{}]*\}|</?[bisu]>|<(?:font|lang|ruby|[bciu]\.)[^<>]*>"
_VTT_BLOCKS = r"^(?:STYLE|REGION|NOTE)\b(?:.|\r?\n(?!\r?\n))*|(?<=\d[ \t])[ \t]*[a-z]+:[^\r\n]*"
"""Blocks of WebVTT that are no cues, and the settings of a cue after its times."""
_MARKUP = {
    **dict.fromkeys(("srt", "txt"), re.compile(_TAGS)),
    **dict.fromkeys(("vtt", "vtt-words"), re.compile(f"{_TAGS}|{_VTT_BLOCKS}", re.MULTILINE)),
    "ass": re.compile(rf"^(?:Style|Comment|PlayRes[XY]|WrapStyle):.*?(?=\r?$)|{_TAGS}", re.MULTILINE),
    "ttml": re.compile(r"\b(?:tts:\w+|style|region)\s*=\s*[\"'][^\"']*"),
}
"""Patterns of the styles of a file and of the marks in its lines, apart from speakers, by its format."""
_FIELDS_OF_CUE = re.compile(r"^Dialogue:(?:[^,\n]*,){3}" + r"([^,\n]*)," * 2 + r"0*([^,\n]*)," * 3, re.MULTILINE)
"""The style, the name and the margins of a cue of ASS. Some programs write a margin of 0 as 0000."""
RETIMED = "retimed"
"""Mark of a subtitle file with cues of a person. It stays the person's when it is edited again."""
SAME_TIME_S = 0.015
"""Seconds by which the time of a cue may differ from that of voxbatch: ASS has hundredths."""


@dataclass(frozen=True, slots=True)
class TextEdit:
    """The text of one item in a file that somebody has changed."""

    file: str
    """Name of the file in OUT, or its path or address, for people."""
    draft: Draft
    key: Key | None = None
    """Key of a file of voxbatch, which a merge may replace when its text is taken in; see own_files.key_of."""
    is_retimed: bool = False
    """True if cues have other times or lines than those of voxbatch, or markup, or if the first label of a speaker was
    taken away. All formats get its cues, and a file of voxbatch stays as the person has left it."""
    is_kept: bool = False
    """True if the text of such a file was taken in before. It may lack later corrections."""
    subtitles: tuple[Segment, ...] = ()
    """Its cues, or those of before with the corrected text, if they are at times of a person. Empty if they do not
    spell the corrected text."""
    overlaps: tuple[tuple[Passage, Passage], ...] = ()
    """Pairs of its cues of which the second begins before the first ends."""

    @property
    def differs(self) -> bool:
        """True if there is something to take in."""
        return not self.is_kept and (self.draft.differs or self.has_other_cues)

    @property
    def has_other_cues(self) -> bool:
        """True if the times or the lines of its cues are taken in, and are others than before."""
        before, subtitles = self.draft.transcript.subtitles, self.subtitles
        are_retimed = [(cue.start, cue.end) for cue in subtitles] != [(cue.start, cue.end) for cue in before]
        return self.is_retimed and bool(subtitles) and (are_retimed or (subtitles != before and not self.draft.differs))


@dataclass(slots=True)
class EditedItem:
    """An item, with what changed files say about it."""

    index: int
    line: Mapping[str, Any]
    edits: list[TextEdit] = field(default_factory=list)


@dataclass(slots=True)
class Edits:
    """The changes in the files of a run."""

    items: list[EditedItem] = field(default_factory=list)
    untaken: list[str] = field(default_factory=list)
    """Changed files of formats from which nothing is taken."""


class EditFinder:
    """Finds the changes in one pass over the entries of a run.

    Args:
        own: the files that voxbatch has written.
        files: the settings of the files of single items.
        chosen: the files that are taken in.
        lines: changed texts of transcripts.jsonl, by the ids of their items.
    """

    def __init__(
        self,
        store: Store,
        run: Run,
        entries: Entries,
        own: OwnFiles,
        files: ItemFiles,
        stores: Stores,
        chosen: ChosenFiles,
        lines: Mapping[str, str],
    ) -> None:
        self._store, self._run, self._entries, self._own = store, run, entries, own
        self._stores, self._chosen = stores, chosen
        formats = tuple(form for form in WRITERS if store.exists(f"{form}/"))
        self._files = ItemFiles(formats or ("srt",), files.limits, beside=True)
        self._writes_beside = files.beside
        self._has_formats, self._lines = bool(formats), lines
        self.decoder = TextDecoder()
        """Decoder of the files, whose note says which of them are not in UTF-8."""

    def find(self) -> Edits:
        """Return the changes.

        Raises:
            ConfigError: a named file belongs to several items.
            CheckpointError: a part is damaged.
        """
        edits = Edits()
        ids, recordings = names_of_files(self._store, self._run, self._entries, self._files)
        assert ids is not None
        products = self._run.products
        lines = ((entry.index, parse_line(self._store, entry, products)) for entry in self._entries)
        self._chosen.match((index, ids.name(line["id"])) for index, line in lines)

        def look(entry: PartEntry) -> tuple[EditedItem, list[str]]:
            line = parse_line(self._store, entry, products)
            place = recordings.place_beside(line) if recordings and entry.kind == "transcript" else None
            return self._item(entry, line, ids.name(line["id"]), place)

        for item, untaken in parallel_map(self._store.concurrency, look, self._entries):
            edits.untaken += untaken
            if item.edits:
                edits.items.append(item)
        return edits

    def _item(
        self, entry: PartEntry, line: dict[str, Any], name: str, place: str | None
    ) -> tuple[EditedItem, list[str]]:
        """Return an item with the changes of its files, and the changed files from which nothing is taken.

        Args:
            name: name of its files.
            place: place beside its recording, without the extension.
        """
        item, untaken = EditedItem(entry.index, line), list[str]()
        if entry.kind != "transcript":  # a text that is given for it has no item
            return item, untaken
        document = Document(line["id"], read_transcript(line), name, self._files.limits)
        for form in self._files.formats:
            for file, key, content in self._changed(document, form, name, place):
                text = TextInFile(file, self.decoder.decode(content, file), form)
                if form in READERS and (place_of_error := broken_times(form, text.text)):
                    untaken.append(f"{file}, {place_of_error}, {BROKEN}")
                elif form not in READERS or not is_readable(form, text.text):
                    untaken.append(file)
                else:
                    item.edits.append(self._edit(document, text, key))
        texts = self._chosen.texts_of(entry.index, line["id"], line[AUDIO_KEY])
        if (merged := self._lines.get(line["id"])) is not None:
            texts.append(TextInFile(TRANSCRIPTS, merged))
        item.edits += (self._edit(document, text) for text in texts)
        return item, untaken

    def _changed(self, document: Document, form: str, name: str, place: str | None) -> Iterator[tuple[str, Key, bytes]]:
        """Yield the name, the key and the content of the item's files in a format that somebody has changed: in OUT and
        beside the recording."""
        own_name, places = item_file(name, form), list[tuple[str, Store, str]]()
        if self._has_formats and self._chosen.includes(own_name):
            places.append((own_name, self._store, own_name))
        beside = place and f"{place}.{WRITERS[form].beside}"
        if beside and self._chosen.includes(beside) and self._own.has_mark(beside, BESIDE):
            folder, base = posixpath.split(beside)
            places.append((beside, self._stores.out(folder), base))
        for file, store, stored_name in places:
            content = store.read(stored_name) or b""
            # An empty file, or one of zeros, is what a loss of power leaves.
            if not content.strip(b"\0") or self._own.has(own_name, digest := sha256(content)):
                continue
            # Beside recordings, the latest merges may have written nothing.
            is_earlier = file != own_name and not self._writes_beside
            if is_earlier and self._own.has_written(key_of(own_name, digest)):
                continue
            if content != document.written(form).encode("utf-8", "surrogateescape"):
                self._chosen.take(file)
                yield file, key_of(own_name, digest), content

    def _edit(self, document: Document, text: TextInFile, key: Key | None = None) -> TextEdit:
        """Return the edit of a text. That of a file of voxbatch has a key."""
        transcript = document.transcript
        if text.form is None:
            lines = [Passage(tuple(text.text.split("\n")))]
            return TextEdit(text.file, draft_of(transcript, lines), key, subtitles=recut_cues(transcript, lines))
        speakers = {word.speaker for word in transcript.words} | {part.speaker for part in transcript.segments}
        named = [speaker for speaker in speakers if speaker]
        edited = passages(text.form, text.text, named, transcript.text)
        draft, is_kept = draft_of(transcript, edited), key is not None and self._own.is_kept(key)
        was_retimed = key is not None and self._own.has_mark(text.file, RETIMED)
        present = replace(document, transcript=replace(transcript, subtitles=())) if was_retimed else document
        written = present.written(text.form)
        ours = passages(text.form, written, named, transcript.text)
        has_markup = not _marks(text.form, text.text) <= _marks(text.form, written)
        lacks_labels = bool(edited and ours and ours[0].speaker and not edited[0].speaker)
        is_retimed = is_kept or _has_own_cues(edited, ours) or has_markup or lacks_labels
        if text.form == "txt" or not (is_retimed or transcript.subtitles):
            return TextEdit(text.file, draft, key, is_retimed, is_kept, recut_cues(transcript, edited))
        overlaps = tuple(_overlaps(edited))
        return TextEdit(text.file, draft, key, is_retimed, is_kept, _subtitles(edited, draft), overlaps)


def _marks(form: str, text: str) -> set[str | tuple[str, ...]]:
    """Return the styles of a file, and the marks in its lines."""
    return {*_MARKUP[form].findall(text), *(_FIELDS_OF_CUE.findall(text) if form == "ass" else ())}


def _overlaps(cues: Sequence[Passage]) -> Iterator[tuple[Passage, Passage]]:
    """Yield each cue that begins before an earlier one ends, with that one. The cues are in the order of their
    starts."""
    latest_end, latest = 0.0, None
    for cue in cues:
        if cue.start is None or cue.end is None:
            continue
        if latest and cue.start < latest_end - SAME_TIME_S:
            yield latest, cue
        if cue.end >= latest_end:
            latest_end, latest = cue.end, cue


def _subtitles(edited: Sequence[Passage], draft: Draft) -> tuple[Segment, ...]:
    """Return the cues of a file with their speakers; none if they do not spell the corrected text."""
    speakers = [piece.speaker for piece in draft.pieces for _ in visible_text(piece.text)]
    at, subtitles = 0, list[Segment]()
    exact = {_hundredths(cue.start, cue.end): (cue.start, cue.end) for cue in draft.transcript.subtitles}
    for cue in edited:
        text = "\n".join(line for line in map(str.strip, cue.lines) if line)
        speaker = next(iter(speakers[at : at + 1]), None)
        at += len(visible_text(text))
        if text and cue.start is not None and cue.end is not None:
            times = round(cue.start, 3), round(cue.end, 3)
            markup = cue.markup if styles_of(cue.markup, text) else ""
            subtitles.append(Segment(text, *exact.get(_hundredths(*times), times), speaker, markup=markup))
    return (*complete_sources(subtitles, draft.text),)


def _hundredths(*times: float) -> tuple[int, ...]:
    """Return times as ASS has them."""
    return tuple(round(time * 1000) // 10 for time in times)


def _has_own_cues(edited: Sequence[Passage], ours: Sequence[Passage]) -> bool:
    """Return whether a cue has times that none of ours has, or other line breaks in the same text. Both are in the
    order of their starts."""
    starts = [cue.start or 0.0 for cue in ours]
    for cue in edited:
        if cue.start is not None and cue.end is not None:
            near = bisect_left(starts, cue.start - SAME_TIME_S), bisect_right(starts, cue.start + SAME_TIME_S)
            same = [own for own in ours[slice(*near)] if abs((own.end or 0.0) - cue.end) <= SAME_TIME_S]
            lines = [line.split() for line in cue.lines]
            if not same or any(
                " ".join(cue.lines).split() == " ".join(own.lines).split()
                and lines != [line.split() for line in own.lines]
                for own in same
            ):
                return True
    return False
