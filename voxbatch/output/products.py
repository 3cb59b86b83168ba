"""The outputs of a run in OUT in which the kinds of work differ.

`Run.products` has those of a run; every other module of the package asks them, and knows no kind. Products are those of
a run that transcribes. A kind whose files differ derives a class in `works/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from voxbatch.output.entries import Entries
    from voxbatch.output.further_list import Changes
    from voxbatch.output.item_files import ItemFiles
    from voxbatch.output.lines import DoneLine
    from voxbatch.output.own_files import OwnFiles
    from voxbatch.output.ownership import Ownership
    from voxbatch.output.parts import PartEntry
    from voxbatch.output.run_file import Run
    from voxbatch.output.summary import Summary
    from voxbatch.scoring.counts import ErrorCounts
    from voxbatch.storage import Store
    from voxbatch.storage.columns import ItemSet

FilesOfEntry = Callable[["PartEntry", str], Iterator[tuple[str, bytes]]]
"""Yields the name and the content of each file of an entry, whose id is given."""


class OwnSums(Protocol):
    """Sums over the lines of the items that have not failed, which only one kind of work has."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line."""

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as further keys of summary.json, with values for JSON."""


class Products:
    """The outputs of a run that transcribes."""

    line: type[DoneLine] | None = None
    """The keys that each line has of an item that has not failed. None means those of a transcript."""
    counts_missing = True
    """True if an item that failed counts as a transcript without words, if it has a reference."""

    text_key = "pred_text"
    """The key of a line with the text of its recording. Lines of a kind of work without texts have no such key."""

    def text_of(self, line: Mapping[str, Any]) -> str:
        """Return the text of a line that is shown to people."""
        text: str = line[self.text_key]
        return text

    def counts(self, line: Mapping[str, Any]) -> ErrorCounts | None:
        """Return the errors of the text of a line; None without a reference, or if no text was recognised."""
        if line.get("text") is None or line.get("reference_length") is None:
            return None
        from voxbatch.scoring.counts import ErrorCounts

        return ErrorCounts.of_line(line)

    def sums(self) -> OwnSums | None:
        """Return sums without lines; None if the kind of work has none of its own."""
        return None

    def outcome_lines(self, summary: Summary) -> Iterator[str]:
        """Yield lines for people about the sums of a finished run."""
        yield from ()

    def item_files(self, files: ItemFiles, config: Mapping[str, Any]) -> ItemFiles:
        """Return the settings of the files of single items that a stored config gives."""
        return files

    def files_of_entry(self, store: Store, files: ItemFiles) -> FilesOfEntry | None:
        """Return what makes further files of single items; None if there are none."""
        return None

    def finish(
        self, store: Store, run: Run, entries: Entries, files: ItemFiles, owner: Ownership, own: OwnFiles
    ) -> None:
        """Write the files of all items together, and leave those that somebody changed."""

    def recordings_place(self, place: str) -> str:
        """Return the place from which the lines of an OUT name recordings; "" if they have their whole places."""
        return ""

    def check_changes(self, place: str, changes: Changes) -> None:
        """Check that a further list may follow, with what it changes.

        Raises:
            ConfigError: earlier entries may not stay in the parts.
        """

    def check_report(self, place: str, identity: Mapping[str, Any]) -> None:
        """Check that a report can be drawn.

        Raises:
            ConfigError: there are no errors to show.
        """


PRODUCTS = Products()


class SecondPassFiles(Protocol):
    """The files in OUT of a second pass, in which another model does some of the items again."""

    def missing(self, store: Store, run: Run) -> int | None:
        """Return the number of chosen items that no part of the second pass has; None before the pass is complete.

        Raises:
            CheckpointError: the record that it is complete, or a part, is damaged, or another run wrote it.
        """

    def overlaid(self, first: Iterable[PartEntry], second: Iterator[PartEntry]) -> Iterator[PartEntry]:
        """Yield the entries of the first pass, each with what the second pass has of its item. Both are in the order
        of the list."""

    def chosen(self, entries: Iterable[PartEntry], run: Run, num_items: int) -> ItemSet:
        """Return the items that the second pass does.

        Args:
            entries: the entries of the first pass, complete and in the order of the list.
            num_items: number of items in the manifest. Kept transcripts of recordings that are gone follow them.
        """
