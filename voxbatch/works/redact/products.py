"""The files of a run that redacts: those of a run that transcribes, the recordings, and the list for a review."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from voxbatch.errors import ConfigError
from voxbatch.output.audio_archive import AudioReader, erase_orphans, place_of
from voxbatch.output.entries import Entries
from voxbatch.output.further_list import Changes
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.item_writer import ItemFile, write_item_files
from voxbatch.output.layout import PARTS, item_file
from voxbatch.output.lines import parse_line
from voxbatch.output.own_files import OwnFiles
from voxbatch.output.ownership import Ownership
from voxbatch.output.parts import PartEntry
from voxbatch.output.products import FilesOfEntry, Products
from voxbatch.output.run_file import Run
from voxbatch.output.summary import Summary
from voxbatch.safe_text import counted
from voxbatch.scoring.units import UNDETERMINED
from voxbatch.storage import Store
from voxbatch.works.redact import REVIEW
from voxbatch.works.redact.options import NONE

BY_KIND, WITHOUT_NAMES, CUT = "redactions", "redacted_without_names", "cut_words"
"""Keys of summary.json: the secrets of each kind, the items in languages with patterns alone, and the words of others
that are cut."""
COLUMNS = ("id", "start", "end", "kind", "words", "rule", "is_checked")


class RedactionSums:
    """The secrets by their kinds; see products.OwnSums."""

    def __init__(self) -> None:
        self._sums = {BY_KIND: Counter[str](), WITHOUT_NAMES: Counter[str]()}
        self._cut = 0

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the copy of an item."""
        self._sums[BY_KIND].update(secret["kind"] for secret in line["redactions"])
        self._sums[WITHOUT_NAMES].update([] if line["has_names"] else [line["lang"] or UNDETERMINED])
        self._cut += line["cut_words"]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of secrets and of items."""
        return {name: dict(sorted(sums.items())) for name, sums in self._sums.items()} | {CUT: self._cut}


class RedactedCopies(Products):
    """The copies."""

    counts_missing = False

    def sums(self) -> RedactionSums:
        """See Products."""
        return RedactionSums()

    def outcome_lines(self, summary: Summary) -> Iterator[str]:
        """See Products."""
        kinds = summary.of_kind.get(BY_KIND, {})
        yield "redacted: " + (", ".join(f"{kind} {count:,}" for kind, count in kinds.items()) or "nothing")
        yield f"no detector finds everything: look through {REVIEW}, and check a sample"
        if languages := summary.of_kind.get(WITHOUT_NAMES):
            counts = ", ".join(f"{lang} {count:,}" for lang, count in languages.items())
            yield f"no names were looked for in other languages, patterns alone: {counts}"

    def item_files(self, files: ItemFiles, config: Mapping[str, Any]) -> ItemFiles:
        """See Products."""
        return replace(files, audio=() if config["redaction"]["sound"] == NONE else ("flac",))

    def files_of_entry(self, store: Store, files: ItemFiles) -> FilesOfEntry:
        """See Products."""
        reader = AudioReader(store)

        def recording(entry: PartEntry, item_id: str) -> Iterator[tuple[str, bytes]]:
            if entry.audio:
                yield item_file(item_id, "flac"), reader.flac(entry)

        return recording

    def check_changes(self, place: str, changes: Changes) -> None:
        """See Products: an item may have been corrected to hide more."""
        if changes.changed:
            raise ConfigError(
                f"{place}: {counted(changes.changed, 'item')} with another text now, whose earlier copy would stay in "
                f"{PARTS}/. Choose another OUT with -o, or add --overwrite, which makes all copies again"
            )

    def finish(
        self, store: Store, run: Run, entries: Entries, files: ItemFiles, owner: Ownership, own: OwnFiles
    ) -> None:
        """Write the list for a review, which has no secrets, and delete the archives that no part names."""
        archives, table = set[str](), io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(COLUMNS)
        for entry in entries:
            if entry.audio:
                archives.add(place_of(entry).archive)
            line = parse_line(store, entry, self)
            for secret in line.get("redactions", ()):
                writer.writerow([line["id"], *(secret[name] for name in COLUMNS[1:])])
        write_item_files(store, [ItemFile(REVIEW, table.getvalue().encode())], owner, own)
        erase_orphans(store, run, owner, archives)

    def recordings_place(self, place: str) -> str:
        """See Products: the lines name them from OUT."""
        return f"{place}/"


PRODUCTS = RedactedCopies()
