"""List the kinds of files with texts that `score` reads.

To add a kind, write a reader in `readers`, and a line in TEXT_KINDS. The command line needs the names, so this module
imports nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextKind:
    """A kind of file with texts."""

    reader: str
    """Module of the package `readers`, and its function that yields the entries of (source, role, name of the file,
    kind, language)."""
    has_references: bool = False
    """True if its rows may have a hypothesis and its reference."""


LINES = "lines"
"""The kind of a file with one text a line and no ids."""
TEXT_KINDS = {
    "jsonl": TextKind("rows.json_line_entries", has_references=True),
    "json": TextKind("rows.json_document_entries", has_references=True),
    "csv": TextKind("rows.csv_entries", has_references=True),
    "tsv": TextKind("rows.tsv_entries", has_references=True),
    "trn": TextKind("nist.trn_entries"),
    "ctm": TextKind("nist.ctm_entries"),
    "stm": TextKind("nist.stm_entries"),
    **dict.fromkeys(
        (
            "srt", "vtt", "sbv", "ass", "ssa", "ttml", "xml", "smi", "sub", "scc", "mcc", "stl", "lrc", "labels",
            "textgrid", "eaf", "exb", "trs", "cha",
        ),
        TextKind("subtitles.transcript_entries"),
    ),
    "kaldi": TextKind("nist.kaldi_entries"),
    LINES: TextKind("nist.line_entries"),
}  # fmt: skip
"""The kinds by their names, which are extensions except for "labels" and the last two."""
