"""Read the kinds of XML, which the root tells apart: TTML, YouTube's, ELAN, EXMaRALDA and Transcriber."""

from __future__ import annotations

from voxbatch.sources.transcripts.elan import elan_texts
from voxbatch.sources.transcripts.exmaralda import exmaralda_texts
from voxbatch.sources.transcripts.timed_text import TimedText
from voxbatch.sources.transcripts.transcriber import transcriber_texts
from voxbatch.sources.transcripts.ttml import ttml_texts, youtube_texts
from voxbatch.sources.xml_tree import local_name, xml_root

_READERS = {
    "tt": ttml_texts,
    "transcript": youtube_texts,
    "timedtext": youtube_texts,
    "ANNOTATION_DOCUMENT": elan_texts,
    "basic-transcription": exmaralda_texts,
    "Trans": transcriber_texts,
}


def xml_texts(document: str) -> list[TimedText]:
    """Return the texts of a document.

    Raises:
        ValueError: the document is no XML, or of another kind; or see its reader.
    """
    root = xml_root(document)
    if reader := _READERS.get(local_name(root)):
        try:
            return reader(root)
        except RecursionError as error:
            raise ValueError("its elements are nested too deep; save it again") from error
    raise ValueError(f"it is XML of another kind (<{local_name(root)}>); read are {', '.join(_READERS)}")
