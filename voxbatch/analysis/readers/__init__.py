"""Read the texts of files that many tools write: who said what in which recording.

The kind of a file is decided by its extension, else by its content; see `kind_of`. Each reader yields a TextEntry
for each text. This package does not match entries to each other (pairs.py does), normalise or count.
"""

from voxbatch.analysis.readers.entry import Role, TextEntry
from voxbatch.analysis.readers.kinds import Texts, agreed_kinds, open_texts
from voxbatch.sources.transcripts import TimedText

__all__ = ["Role", "TextEntry", "Texts", "TimedText", "agreed_kinds", "open_texts"]
