"""Reads a message, which is a Cloud Storage notification or {"manifest": …, "output": …}. Pure.

The result is a RunRequest, an UploadedRecording, or Ignored.

Notifications: https://cloud.google.com/storage/docs/pubsub-notifications#format. Only the attributes are read, because
the payload may be left out (payloadFormat NONE). The reader does not rely on the subscription's filter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from posixpath import commonpath, splitext
from typing import Any

from voxbatch.errors import MessageError
from voxbatch.manifest.folder import RECORDING_SUFFIXES
from voxbatch.manifest.source import SUFFIXES, stem
from voxbatch.storage import is_remote, redacted
from voxbatch.storage.address import is_bucket_address, is_folder, name_of, normalized

FINALIZED = "OBJECT_FINALIZE"


@dataclass(frozen=True, slots=True)
class Message:
    """A message as Pub/Sub delivers it."""

    id: str
    data: bytes
    attributes: Mapping[str, str]
    attempt: int = 0
    """Number of deliveries, including this one; 0 if Pub/Sub does not count them."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run that a message asks for."""

    source: str
    """Address of the manifest."""
    out: str
    only_under: tuple[str, ...] = ()
    """Places that the manifest may name. Set if the listener wrote the manifest, which then never changes, for
    recordings that arrived.
    """


@dataclass(frozen=True, slots=True)
class UploadedRecording:
    """An uploaded recording."""

    uri: str
    generation: str
    prefix: str
    """The place of recordings (see Rules) that the recording lies in."""
    out: str
    """OUT for a run of this recording alone."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A message that asks for nothing here, and is not an error."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rules:
    """The places whose objects are run: normalised addresses of folders, which end in /."""

    out: str | None
    """Folder that holds one folder for each run."""
    prefixes: tuple[str, ...] = ()
    """Places of manifests. If empty: the places of recordings, or else any place."""
    recordings: tuple[str, ...] = ()
    """Places of recordings that are run without a manifest.

    A recording elsewhere is named by a manifest, and would be transcribed twice.
    """

    def __str__(self) -> str:
        """Return a sentence such as "manifests below gs://calls/in/, with outputs in gs://calls/out/"."""
        manifests = (
            f"below {', '.join(self.prefixes or self.recordings)}" if self.prefixes or self.recordings else "anywhere"
        )
        recordings = f", recordings below {', '.join(self.recordings)}" if self.recordings else ""
        outputs = f"with outputs in {self.out}" if self.out else "with outputs where messages say"
        return f"manifests {manifests}{recordings}, {outputs}"

    def out_of(self, uri: str) -> str:
        """Return the folder in OUT for an address.

        Its name is the path below the folder that holds all places, or else bucket and path.

        Raises:
            MessageError: there is no OUT.
        """
        if self.out is None:
            raise MessageError(f"{redacted(uri)}: no output is named for it: start voxbatch listen with -o OUT")
        places = [name_of(each) for each in self.prefixes + self.recordings]
        folder = commonpath(places) if places else ""
        return self.out + name_of(uri).removeprefix(f"{folder}/" if folder else "")

    def place_of_recording(self, uri: str) -> str | None:
        """Return the place of recordings that an address belongs to; None if no place contains it, or if it lies in
        OUT.
        """
        return None if self.out and uri.startswith(self.out) else _place_of(uri, self.recordings)


def _place_of(uri: str, places: tuple[str, ...]) -> str | None:
    """Return the longest place that contains the address; None if there is none."""
    return max((each for each in places if uri.startswith(each)), key=len, default=None)


def read(message: Message, rules: Rules) -> RunRequest | UploadedRecording | Ignored:
    """Return the request of a message.

    Raises:
        MessageError: the message asks for something that can never be run.
    """
    if "eventType" in message.attributes:
        return _notification(message.attributes, rules)
    return _run(_object(message.data), rules)


def _notification(attributes: Mapping[str, str], rules: Rules) -> RunRequest | UploadedRecording | Ignored:
    """Return the request of a Cloud Storage notification, from its attributes."""
    event, bucket, key = (attributes.get(name, "") for name in ("eventType", "bucketId", "objectId"))
    if event != FINALIZED:
        return Ignored(f"{event} of gs://{bucket}/{key}: only {FINALIZED} starts anything")
    if not bucket or not key:
        raise MessageError(f"a notification without bucketId or objectId: {_brief(dict(attributes))}")
    uri = _address(f"gs://{bucket}/{key}", "the object that was uploaded")
    if rules.out and uri.startswith(rules.out):
        return Ignored(f"{uri} lies in OUT")
    if is_folder(uri) or any(part.startswith(".") for part in key.split("/")):
        return Ignored(f"{uri} is a folder or hidden")
    if splitext(key)[1].lower() in RECORDING_SUFFIXES:
        if prefix := rules.place_of_recording(uri):
            return UploadedRecording(uri, attributes.get("objectGeneration", ""), prefix, rules.out_of(uri))
        return Ignored(f"{uri} is a recording, and those below {_listed(rules.recordings)} alone are run by themselves")
    if not uri.lower().endswith(SUFFIXES):
        return Ignored(f"{uri} is neither a manifest ({', '.join(SUFFIXES)}) nor a recording")
    if not _is_in(uri, rules):
        return Ignored(f"{uri} lies below none of {_listed(rules.prefixes or rules.recordings)}")
    return RunRequest(uri, rules.out_of(_stem(uri)))


def _is_in(uri: str, rules: Rules) -> bool:
    """Return whether a manifest lies in a place from which manifests are run."""
    places = rules.prefixes or rules.recordings
    return not places or _place_of(uri, places) is not None


def _listed(places: tuple[str, ...]) -> str:
    return ", ".join(places) or "--recordings PLACE"


_KEYS = ("manifest", "output")
_FORM = 'a message is {"manifest": "gs://…/calls.jsonl", "output": "gs://…/out"}, or a notification of Cloud Storage'


def _object(data: bytes) -> dict[str, Any]:
    """Parse the JSON object of a message."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise MessageError(f"the message is no JSON ({e}): {_brief(data.decode(errors='replace'))}; {_FORM}") from e
    if not isinstance(found, dict):
        raise MessageError(f"the message is {_brief(found)}; {_FORM}")
    if unknown := sorted(set(found) - set(_KEYS)):
        raise MessageError(f"the message has {_brief(', '.join(unknown))}, which nobody knows; {_FORM}")
    return found


def _run(found: Mapping[str, Any], rules: Rules) -> RunRequest:
    """Return the run of a JSON object."""
    source = _given(found, "manifest")
    if is_folder(source) and not is_bucket_address(source):
        raise MessageError(f"manifest {redacted(source)} is a folder of a web server, which cannot be listed")
    if not _is_in(source, rules):
        raise MessageError(
            f"manifest {redacted(source)} lies below none of {_listed(rules.prefixes or rules.recordings)}: put it "
            "there, or give voxbatch listen its --prefix"
        )
    if found.get("output") is None:
        if is_folder(source):
            raise MessageError(f"manifest {source} is a folder, and no output is named for it; {_FORM}")
        return RunRequest(source, rules.out_of(_stem(source)))
    out = _given(found, "output")
    if not is_bucket_address(out):
        raise MessageError(f"output {out} is no address in a bucket; write gs://bucket/folder or s3://bucket/folder")
    if rules.out and not f"{out}/".startswith(rules.out):
        raise MessageError(f"output {out} does not lie in {rules.out}, the -o of voxbatch listen")
    return RunRequest(source, out.rstrip("/"))


def _given(found: Mapping[str, Any], key: str) -> str:
    """Return the address under a key of the JSON object."""
    value = found.get(key)
    if not isinstance(value, str) or not is_remote(value):
        seen = "is missing" if value is None else f"is {_brief(value)}"
        raise MessageError(f"{key} {seen}; it must be an address that every worker sees, such as gs://…; {_FORM}")
    return _address(value, key)


def _address(uri: str, what: str) -> str:
    """Return the normalised address."""
    try:
        return normalized(uri)
    except ValueError as e:
        raise MessageError(f"{what}, {redacted(uri)}, cannot be: {e}") from e


def _stem(uri: str) -> str:
    """Return an address without its suffix: "gs://b/day.jsonl.gz" → "gs://b/day", "gs://b/day/" → "gs://b/day"."""
    return stem(redacted(uri, "").rstrip("/"))


def _brief(value: Any) -> str:
    """Return a value as text of at most 200 characters."""
    text = " ".join((value if isinstance(value, str) else json.dumps(value)).split())
    return text if len(text) <= 200 else text[:200] + "…"
