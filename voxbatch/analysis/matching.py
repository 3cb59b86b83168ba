"""Counts of how the texts of two files were matched, for people and for JSON. `pairs` matches them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from voxbatch.analysis.readers import TextEntry
from voxbatch.manifest.encoding import TextDecoder
from voxbatch.manifest.json_line import quote
from voxbatch.safe_text import counted

LISTED = 1000
"""Most ids of unmatched texts that are kept for a list. All of them are counted."""
EXAMPLES = 3
"""Ids that a message shows."""


@dataclass(slots=True)
class Unmatched:
    """Texts of one file that have no counterpart in the other."""

    count: int = 0
    ids: list[str] = field(default_factory=list)
    """The first LISTED of them."""

    def add(self, entry: TextEntry) -> None:
        """Count an entry."""
        self.count += 1
        if len(self.ids) < LISTED:
            self.ids.append(entry.id)

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return {"count": self.count, "ids": self.ids}


@dataclass(slots=True)
class Matching:
    """Counts of the texts of two files that were matched, complete once all pairs were yielded."""

    by_id: int = 0
    """Matched by the id, by the path, or by its last folders and its name."""
    by_name: int = 0
    by_line: int = 0
    without_hypothesis: Unmatched = field(default_factory=Unmatched)
    """References without a hypothesis. Their words count as deleted."""
    without_reference: Unmatched = field(default_factory=Unmatched)
    """Hypotheses without a reference. They are not scored."""
    decoder: TextDecoder = field(default_factory=TextDecoder)
    """Decoder of the texts, whose note says which files are not in UTF-8."""

    def notes(self, hypotheses: str, references: str) -> Iterator[str]:
        """Yield sentences for people about what did not match by id."""
        if self.by_line:
            yield f"{hypotheses} and {references} have no ids: line N of one was matched with line N of the other"
        if self.by_name:
            yield f"{counted(self.by_name, 'text')} matched by name alone, without folder and extension"
        for unmatched, file, other_file, effect in (
            (self.without_hypothesis, references, hypotheses, "; all of their words count as deleted"),
            (self.without_reference, hypotheses, references, "; they are not scored"),
        ):
            if unmatched.count:
                more = ", …" if unmatched.count > EXAMPLES else ""
                ids = ", ".join(map(quote, unmatched.ids[:EXAMPLES])) + more
                texts = counted(unmatched.count, "text")
                yield f"Warning: no match in {other_file} for {texts} of {file}: {ids}{effect}"

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return {
            "by_id": self.by_id,
            "by_name": self.by_name,
            "by_line": self.by_line,
            "references_without_hypothesis": self.without_hypothesis.to_dict(),
            "hypotheses_without_reference": self.without_reference.to_dict(),
        }
