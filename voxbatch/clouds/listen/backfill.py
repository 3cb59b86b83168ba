"""Send the messages of objects that were uploaded before there was a subscription: `voxbatch listen --backfill`.

Each message has the attributes with which Cloud Storage tells of an upload, so that listeners treat both alike. An
object whose run is done is found done.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from voxbatch.clouds.listen.message import FINALIZED, Ignored, ReceivedMessage, read
from voxbatch.clouds.listen.rules import PlaceRules
from voxbatch.clouds.listen.subscription import Subscription
from voxbatch.errors import ConfigError
from voxbatch.storage import Stores
from voxbatch.storage.address import parse_bucket_address

MESSAGES_AT_A_TIME = 1000
"""Messages in one request (Pub/Sub quotas)."""


def backfill(rules: PlaceRules, stores: Stores, subscription: Subscription) -> int:
    """Send a message for each manifest and recording that lies in the places of the rules, and return their number.

    Raises:
        ConfigError: the rules have no place or no OUT, or a place is not in Cloud Storage.
        QueueError: a message cannot be sent.
        StorageError: a bucket cannot be listed.
    """
    places = {*rules.manifest_places, *rules.recordings}
    if not places or not rules.out:
        raise ConfigError("--backfill needs -o, and --prefix or --recordings, the places to list")
    for place in places:
        if not place.startswith("gs://"):
            raise ConfigError(f"--backfill: {place} is not in Cloud Storage, whose uploads it sends again: give gs://…")
    outermost = [place for place in sorted(places) if not any(place != p and place.startswith(p) for p in places)]
    uploads = (attributes for place in outermost for attributes in _uploads(place, rules, stores))
    count = 0
    while batch := list(islice(uploads, MESSAGES_AT_A_TIME)):
        subscription.send(batch)
        count += len(batch)
    return count


def _uploads(place: str, rules: PlaceRules, stores: Stores) -> Iterator[dict[str, str]]:
    """Yield the attributes of each object below a place that starts a run."""
    bucket = parse_bucket_address(place).bucket
    for stat in stores.list(place):
        attributes = {
            "eventType": FINALIZED, "bucketId": bucket, "objectId": stat.key, "objectGeneration": stat.tag,
            "payloadFormat": "NONE",
        }  # fmt: skip
        if not isinstance(read(ReceivedMessage("", b"", attributes), rules), Ignored):
            yield attributes
