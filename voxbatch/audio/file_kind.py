"""Name the kind of a file that is no audio by its first bytes, for messages.

A message never quotes these bytes: whoever names a file in a manifest may not be allowed to read it.
"""

from __future__ import annotations

NUM_BYTES = 512
"""Number of first bytes that `file_kind` needs."""
_KINDS = (
    (b"\x00" * 16, "zeros"), (b"%PDF-", "a PDF document"), (b"PK\x03\x04", "a ZIP archive or an office document"),
    (b"\x1f\x8b", "a gzip file"), (b"BZh", "a bzip2 file"), (b"\xfd7zXZ\x00", "an xz file"),
    (b"(\xb5/\xfd", "a Zstandard file"), (b"7z\xbc\xaf\x27\x1c", "a 7z archive"), (b"Rar!", "a RAR archive"),
    (b"\x89PNG", "a PNG image"), (b"\xff\xd8\xff", "a JPEG image"), (b"GIF8", "a GIF image"), (b"\x7fELF", "a program"),
    (b"MZ", "a program"), (b"PAR1", "a Parquet file"), (b"#EXTM3U", "an M3U playlist"), (b"RIFF", "a RIFF file"),
    (b"OggS", "an Ogg file"), (b"fLaC", "a FLAC file"), (b"ID3", "an MP3 file"), (b"FORM", "an IFF file"),
    (b"\x1aE\xdf\xa3", "a Matroska file"),
)  # fmt: skip
"""First bytes of usual kinds of files, and their names. A damaged recording may have those of audio."""


def file_kind(begin: bytes) -> str:
    """Return the kind of a file: b"%PDF-1.7…" → "a PDF document".

    Args:
        begin: the first NUM_BYTES of the file, or all of it.
    """
    if kind := next((name for magic, name in _KINDS if begin.startswith(magic)), None):
        return kind
    if begin[4:8] == b"ftyp":
        return "an MP4 file"
    try:
        text = begin.decode("utf-8", "strict" if len(begin) < NUM_BYTES else "ignore").removeprefix("\ufeff").lstrip()
    except UnicodeDecodeError:
        return "binary data"
    if text.startswith("<"):
        return "HTML or XML"
    if text.startswith(("{", "[")):
        return "JSON"
    return "text" if all(character.isprintable() or character.isspace() for character in text) else "binary data"
