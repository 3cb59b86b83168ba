"""Batch transcription: a manifest of recordings goes in; transcripts, subtitles and a word error rate come out."""

__version__ = "0.1.0"
