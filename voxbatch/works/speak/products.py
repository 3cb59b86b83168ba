"""The files of a run that speaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from voxbatch.errors import ConfigError
from voxbatch.output.entries import Entries
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.layout import RECORDINGS
from voxbatch.output.own_files import OwnFiles
from voxbatch.output.products import FilesOfEntry, Products
from voxbatch.output.run_file import Ownership, Run
from voxbatch.storage import Store


class SpokenProducts(Products):
    """The recordings, with recordings.jsonl, a manifest of them, in the place of the transcripts."""

    merged = RECORDINGS
    text_key = "text"
    counts_missing = False
    """A text that could not be spoken is no transcript with errors."""
    group_key = "voice"

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

    def check_score(self, place: str) -> None:
        """See Products."""
        raise ConfigError(
            f"{place} holds spoken texts; transcribe them, and score that OUT: voxbatch run {place}/{RECORDINGS}"
        )

    def check_data_set(self, place: str) -> None:
        """See Products."""
        raise ConfigError(f"{place}: its recordings are spoken by voxbatch, and parts/ has them with their texts")


PRODUCTS = SpokenProducts()
