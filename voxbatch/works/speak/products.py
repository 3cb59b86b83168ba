"""The files of a run that speaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from voxbatch.errors import ConfigError
from voxbatch.output.entries import Entries
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.lines import DoneLine, SegmentKeys
from voxbatch.output.own_files import OwnFiles
from voxbatch.output.ownership import Ownership
from voxbatch.output.products import FilesOfEntry, Products
from voxbatch.output.run_file import Run
from voxbatch.output.summary import Summary
from voxbatch.scoring.counts import ErrorCounts
from voxbatch.storage import Store

BY_VOICE = "wer_by_voice"
"""Key of summary.json for the word error rate of each voice."""


class SpokenLine(DoneLine, kw_only=True):
    """The line of a text that was spoken. It has the text that was heard, and its errors, if an engine listened."""

    segments: list[SegmentKeys]
    voice: str
    pred_text: str | None = None


class VoiceErrors:
    """The errors of the texts that were heard, by the voice that spoke; see products.OwnSums."""

    def __init__(self) -> None:
        self._counts: dict[str, ErrorCounts] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the errors of a line, if an engine listened."""
        if counts := PRODUCTS.counts(line):
            voice = line["voice"]
            self._counts[voice] = self._counts.get(voice, ErrorCounts()) + counts

    def to_dict(self) -> dict[str, Any]:
        """Return the word error rate of each voice."""
        rates = {voice: counts.reported_rate or 0.0 for voice, counts in sorted(self._counts.items())}
        return {BY_VOICE: rates} if rates else {}


class SpokenProducts(Products):
    """The recordings, with recordings.jsonl, a manifest of them, in the place of the transcripts."""

    line = SpokenLine
    counts_missing = False
    """A text that could not be spoken is no transcript with errors."""
    text_key = "text"

    def sums(self) -> VoiceErrors:
        """See Products."""
        return VoiceErrors()

    def outcome_lines(self, summary: Summary) -> Iterator[str]:
        """See Products."""
        if rates := summary.of_kind.get(BY_VOICE):
            yield "by voice: " + ", ".join(f"{voice} {wer:.2%}" for voice, wer in rates.items())

    def item_files(self, files: ItemFiles, config: Mapping[str, Any]) -> ItemFiles:
        """See Products. Without an engine that listens, a report has nothing to show."""
        speech = config["speech"]
        audio = tuple(dict.fromkeys(("flac", *speech["audio_formats"])))
        return replace(files, audio=audio, report=files.report and bool(speech["verify"]))

    def files_of_entry(self, store: Store, files: ItemFiles) -> FilesOfEntry:
        """See Products."""
        from voxbatch.works.speak.recordings import RecordingEncoder

        return RecordingEncoder(store, files.audio).files

    def finish(
        self, store: Store, run: Run, entries: Entries, files: ItemFiles, owner: Ownership, own: OwnFiles
    ) -> None:
        """See Products."""
        from voxbatch.works.speak.recordings import finish

        finish(store, run, entries, files.audio, owner, own)

    def recordings_place(self, place: str) -> str:
        """See Products: the lines name them from OUT."""
        return f"{place}/"

    def check_report(self, place: str, identity: Mapping[str, Any]) -> None:
        """See Products."""
        if not identity["speech"]["verify"]:
            raise ConfigError(f"{place} holds recordings that no engine has heard; add --verify to voxbatch speak")


PRODUCTS = SpokenProducts()
