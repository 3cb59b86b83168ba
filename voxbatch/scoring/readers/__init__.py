"""Read the texts of files that many tools write: who said what in which recording.

The kind of a file is decided by its extension, else by its content; see `kind_of`. Each reader yields an Entry for each
text. This package does not match entries to each other (files.py does), normalise or count.
"""

from voxbatch.scoring.readers.entry import Entry, Role, TimedText
from voxbatch.scoring.readers.kinds import Texts, open_texts

__all__ = ["Entry", "Role", "Texts", "TimedText", "open_texts"]
