"""Read a message, which is a Cloud Storage notification or {"manifest": …, "output": …}. Pure.

The result is a RunRequest, an UploadedRecording, or Ignored.

Notifications: https://cloud.google.com/storage/docs/pubsub-notifications#format. Only the attributes are read, because
the payload may be left out (payloadFormat NONE). The reader does not rely on the subscription's filter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from posixpath import splitext
from typing import Any

from voxbatch.clouds.listen.rules import PlaceRules
from voxbatch.errors import MessageError
from voxbatch.manifest.recording_path import RECORDING_SUFFIXES
from voxbatch.safe_text import redact_secrets
from voxbatch.sources.kinds import JSON_LINES, without_suffix
from voxbatch.storage import is_remote, redacted
from voxbatch.storage.address import is_bucket_address, is_folder, normalized

FINALIZED = "OBJECT_FINALIZE"


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message as Pub/Sub delivers it."""

    id: str
    data: bytes
    attributes: Mapping[str, str]
    delivery_attempt: int = 0
    """Number of deliveries, including this one; 0 if Pub/Sub does not count them."""
    ack_id: str = ""
    """Identity of this delivery. It acknowledges the message, or extends its deadline."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run that a message asks for."""

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
    """The place of recordings (see PlaceRules) that the recording lies in."""
    out: str
    """OUT for a run of this recording alone."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A message that asks for nothing here, and is not an error."""

    reason: str


_KEYS = ("manifest", "output")
_FORM = 'a message is {"manifest": "gs://…/calls.jsonl", "output": "gs://…/out"}, or a notification of Cloud Storage'


def read(message: ReceivedMessage, rules: PlaceRules) -> RunRequest | UploadedRecording | Ignored:
    """Return the request of a message.

    Raises:
        MessageError: the message asks for something that can never be run.
    """
    if "eventType" in message.attributes:
        return _notification(message.attributes, rules)
    try:
        fields = json.loads(message.data)
    except (ValueError, RecursionError) as e:
        beginning = _shortened(message.data.decode(errors="replace"))
        raise MessageError(f"the message is not JSON ({e}): {beginning}; {_FORM}") from e
    if not isinstance(fields, dict):
        raise MessageError(f"the message is {_shortened(fields)}; {_FORM}")
    if unknown := sorted(set(fields) - set(_KEYS)):
        raise MessageError(f"the message has unknown keys ({_shortened(', '.join(unknown))}); {_FORM}")
    return _run(fields, rules)


def _notification(attributes: Mapping[str, str], rules: PlaceRules) -> RunRequest | UploadedRecording | Ignored:
    """Return the request of a Cloud Storage notification, from its attributes."""
    event, bucket, key = (attributes.get(name, "") for name in ("eventType", "bucketId", "objectId"))
    if event != FINALIZED:
        return Ignored(f"{event} of gs://{bucket}/{key}: only {FINALIZED} starts a run")
    if not bucket or not key:
        raise MessageError(f"a notification without bucketId or objectId: {_shortened(dict(attributes))}")
    uri = _address(f"gs://{bucket}/{key}", "the uploaded object")
    if rules.out and uri.startswith(rules.out):
        return Ignored(f"{uri} lies in OUT")
    if is_folder(uri) or any(part.startswith(".") for part in key.split("/")):
        return Ignored(f"{uri} is a folder or hidden")
    if splitext(key)[1].lower() in RECORDING_SUFFIXES:
        if prefix := rules.place_of_recording(uri):
            return UploadedRecording(uri, attributes.get("objectGeneration", ""), prefix, rules.out_of(uri))
        places = ", ".join(rules.recordings) or "--recordings PLACE"
        return Ignored(f"{uri} is a recording, and only recordings below {places} are run without a manifest")
    if not uri.lower().endswith(JSON_LINES.certain):
        return Ignored(f"{uri} is neither a manifest ({', '.join(JSON_LINES.certain)}) nor a recording")
    if not rules.is_manifest_place(uri):
        return Ignored(f"{uri} lies below none of {', '.join(rules.manifest_places)}")
    return RunRequest(uri, rules.out_of(_stem(uri)))


def _run(fields: Mapping[str, Any], rules: PlaceRules) -> RunRequest:
    """Return the run of a JSON object."""
    source = _given(fields, "manifest")
    if is_folder(source) and not is_bucket_address(source):
        raise MessageError(f"manifest {redacted(source)} is a folder of a web server, which cannot be listed")
    if not rules.is_manifest_place(source):
        raise MessageError(
            f"manifest {redacted(source)} lies below none of {', '.join(rules.manifest_places)}: put it "
            "there, or give voxbatch listen its --prefix"
        )
    if fields.get("output") is None:
        if is_folder(source):
            raise MessageError(f"manifest {source} is a folder, and no output is named for it; {_FORM}")
        out = rules.out_of(_stem(source))
    else:
        out = _given(fields, "output")
        if not is_bucket_address(out):
            text = f"output {out} is no address in a bucket; write gs://bucket/folder or s3://bucket/folder"
            raise MessageError(text)
        if rules.out and not f"{out}/".startswith(rules.out):
            raise MessageError(f"output {out} does not lie in {rules.out}, the -o of voxbatch listen")
    if rules.out and out.rstrip("/") == rules.out.rstrip("/"):
        raise MessageError(f"output {out} is the -o of voxbatch listen, which holds all runs: name a folder in it")
    return RunRequest(source, out.rstrip("/"))


def _given(fields: Mapping[str, Any], key: str) -> str:
    """Return the address under a key of the JSON object."""
    value = fields.get(key)
    if not isinstance(value, str) or not is_remote(value):
        problem = "is missing" if value is None else f"is {_shortened(value)}"
        raise MessageError(f"{key} {problem}; it must be an address that every worker sees, such as gs://…; {_FORM}")
    return _address(value, key)


def _address(uri: str, role: str) -> str:
    try:
        return normalized(uri)
    except ValueError as e:
        raise MessageError(f"{role}, {redacted(uri)}, has no valid address: {e}") from e


def _stem(uri: str) -> str:
    """Return an address without its suffix: "gs://b/day.jsonl.gz" → "gs://b/day", "gs://b/day/" → "gs://b/day"."""
    return without_suffix(redacted(uri, "").rstrip("/"))


def _shortened(value: Any) -> str:
    """Return a value as text of at most 200 characters, without the secrets of an address."""
    text = redact_secrets(" ".join((value if isinstance(value, str) else json.dumps(value)).split()))
    return text if len(text) <= 200 else text[:200] + "…"
