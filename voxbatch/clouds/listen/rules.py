"""The places whose objects are run, and the folders of their outputs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from posixpath import commonpath

from voxbatch.errors import ConfigError, MessageError
from voxbatch.storage import is_remote, redacted
from voxbatch.storage.address import name_of, normalized


@dataclass(frozen=True, slots=True)
class PlaceRules:
    """The places whose objects are run: normalised addresses of folders, which end in /."""

    out: str | None
    """Folder that holds one folder for each run."""
    prefixes: tuple[str, ...] = ()
    """Places of manifests. If empty: the places of recordings, or else any place."""
    recordings: tuple[str, ...] = ()
    """Places of recordings that are run without a manifest.

    A recording elsewhere is named by a manifest, and would be transcribed twice.
    """

    @classmethod
    def from_options(cls, out: str | None, prefixes: Iterable[str], recordings: Iterable[str]) -> PlaceRules:
        """Return the rules that the options -o, --prefix and --recordings make.

        Raises:
            ConfigError: a place is invalid or lies in OUT, or there are recordings without an OUT.
        """
        recordings = tuple(recordings)
        if recordings and not out:
            raise ConfigError("--recordings needs -o OUT, the folder for their transcripts")
        places = [("--prefix", address) for address in prefixes] + [("--recordings", address) for address in recordings]
        for option, place in places:
            if not is_remote(place):
                raise ConfigError(f"{option} {place} is no address in a bucket; write gs://bucket/folder/")
        rules = cls(
            _folder("-o", out) if out else None,
            tuple(_folder(option, place) for option, place in places if option == "--prefix"),
            tuple(_folder(option, place) for option, place in places if option == "--recordings"),
        )
        for place in (*rules.prefixes, *rules.recordings):
            if rules.out and place.startswith(rules.out):
                raise ConfigError(f"{place} lies in {rules.out}, the -o OUT, where nothing is run: give another OUT")
        return rules

    def __str__(self) -> str:
        """Return a sentence such as "manifests below gs://calls/in/, with outputs in gs://calls/out/"."""
        manifests = f"below {', '.join(self.manifest_places)}" if self.manifest_places else "anywhere"
        recordings = f", recordings below {', '.join(self.recordings)}" if self.recordings else ""
        outputs = f"with outputs in {self.out}" if self.out else "with outputs where messages say"
        return f"manifests {manifests}{recordings}, {outputs}"

    @property
    def manifest_places(self) -> tuple[str, ...]:
        """The places from which manifests are run; () for any place."""
        return self.prefixes or self.recordings

    def is_manifest_place(self, uri: str) -> bool:
        """Return whether a manifest lies in a place from which manifests are run."""
        return not self.manifest_places or _place_of(uri, self.manifest_places) is not None

    def place_of_recording(self, uri: str) -> str | None:
        """Return the place of recordings that an address belongs to.

        Returns:
            None if no place contains the address, or if it lies in OUT.
        """
        return None if self.out and uri.startswith(self.out) else _place_of(uri, self.recordings)

    def out_of(self, uri: str) -> str:
        """Return the folder in OUT for an address.

        Its name is the path below the folder that holds all places, or else bucket and path.

        Raises:
            MessageError: there is no OUT.
        """
        if self.out is None:
            raise MessageError(f"{redacted(uri)}: no output is named for it: start voxbatch listen with -o OUT")
        places = [name_of(place) for place in self.prefixes + self.recordings]
        folder = commonpath(places) if places else ""
        return self.out + name_of(uri).removeprefix(f"{folder}/" if folder else "")


def _place_of(uri: str, places: tuple[str, ...]) -> str | None:
    """Return the longest place that contains the address; None if there is none."""
    return max((place for place in places if uri.startswith(place)), key=len, default=None)


def _folder(option: str, place: str) -> str:
    """Return the normalised place, with / at its end."""
    try:
        location = normalized(place) if is_remote(place) else os.path.abspath(place)
    except ValueError as e:
        raise ConfigError(f"{option} {place}: {e}") from e
    return location.rstrip("/") + "/"
