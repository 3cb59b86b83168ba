"""Read subtitles and annotations as one text, with the speakers if the file names them; see sources.transcripts."""

from __future__ import annotations

from collections.abc import Iterator

from voxbatch.analysis.readers.entry import TextEntry, bad_line, whole_file
from voxbatch.manifest.source import Source
from voxbatch.sources.transcripts import joined, read_transcript


def transcript_entries(source: Source, _: object, file_id: str, kind: str, language: str | None) -> Iterator[TextEntry]:
    """Yield the text of a transcript.

    Args:
        kind: one of TEXT_KINDS.
        language: language of the text, if the file has it in several.

    Raises:
        ManifestError: the transcript cannot be read, or does not tell what was said.
    """
    try:
        texts = read_transcript(whole_file(source), kind, source.name, source.decoder, language)
    except ValueError as error:
        raise bad_line(source.name, 0, f"cannot be read as {kind}: {error}") from error
    has_speakers = any(text.speaker for text in texts)
    yield TextEntry(0, file_id, joined(texts), segments=tuple(texts) if has_speakers else (), is_file=True)
