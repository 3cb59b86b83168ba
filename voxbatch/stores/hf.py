"""Read data sets of the Hugging Face hub as a bucket: hf://datasets/owner/name@revision/path.

The hub's own client lists the files, at HF_ENDPOINT if that is set. They are read in ranges from its web server, which
gets the token of HF_TOKEN or of `hf auth login`; a server that it redirects to does not.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, NamedTuple
from urllib.parse import quote, unquote

from voxbatch.errors import StorageError
from voxbatch.failure_kinds import FailureKind
from voxbatch.storage.address import StoreOptions, parse_bucket_address
from voxbatch.storage.errors import ObjectNotFound, TransientError, UnusableObject
from voxbatch.storage.objects import RangeReply, Stat
from voxbatch.stores.http_errors import client_library, connection_failed, one_line
from voxbatch.stores.web import WebServer

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_PLACE = "hf://datasets/"
_KEY = re.compile(
    r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?(/(?P<path>.*))?", re.DOTALL
)
_COMMIT = re.compile("[0-9a-f]{40}")
_ACCESS = "accept its terms on its page of the hub, and set HF_TOKEN to a token of that account"


class _HubPlace(NamedTuple):
    """Place of a file or a folder."""

    name: str
    """owner/name of the data set."""
    revision: str
    """Branch, tag or commit. In an address it is percent-encoded, as the hub's own client reads it: a%2Fb is a/b."""
    path: str


def _parsed(key: str) -> _HubPlace:
    match = _KEY.fullmatch(key)
    assert match is not None, "address.parse_bucket_address refuses it"
    return _HubPlace(match["name"], unquote(match["revision"] or "main"), match["path"] or "")


def pinned(uri: str, options: StoreOptions) -> str:
    """Return the address of a data set, or of something in it, at the commit that its revision is now, so that all its
    files are of one commit: "hf://datasets/o/n" → "hf://datasets/o/n@0123…/".

    Raises:
        ValueError: it is not such an address.
        StorageError: the hub does not answer, or has no such data set or revision.
    """
    place = _parsed(parse_bucket_address(uri).key)
    revision = place.revision
    if not _COMMIT.fullmatch(revision):
        with _errors(uri):
            revision = _api(options).dataset_info(place.name, revision=revision).sha or revision
    return f"{_PLACE}{place.name}@{revision}/{place.path}"


def _api(options: StoreOptions) -> HfApi:
    """Return the hub's client, with the token of this user if there is one."""
    from huggingface_hub import HfApi, get_token

    token = None if options.anonymous else get_token()
    return HfApi(os.environ.get("HF_ENDPOINT") or None, token=token or False)


class HubDatasets:
    """All data sets of the hub. See objects.Bucket for what each method promises. Thread-safe. Nothing is written."""

    scheme, bucket, place = "hf", "datasets", _PLACE

    def __init__(self, options: StoreOptions):
        self._options = options
        self._stats: dict[str, Stat] = {}
        """The properties of files, of which those of a commit never change."""
        self.renew()

    def renew(self) -> None:
        """Find the token again."""
        options = self._options
        with client_library("hf", self.place):
            self._api = api = _api(options)
        if os.environ.get("HF_ENDPOINT"):  # the user has chosen it, and no manifest has: it may be in a private network
            options = replace(options, allow_private_addresses=True)
        headers = {"Authorization": f"Bearer {api.token}"} if api.token else {}
        self._web = WebServer(api.endpoint.rstrip("/") + "/", options, headers)

    def get(self, key: str, start: int, end: int, tag: str = "") -> RangeReply:
        """See objects.ObjectReader. The hub's servers know no revisions in requests; a commit is one."""
        with self._readable(key) as target:
            return self._web.get(target, start, end)

    def stat(self, key: str, tag: str = "") -> Stat:
        """See objects.ObjectReader."""
        if key not in self._stats:
            with self._readable(key) as target:
                stat = replace(self._web.stat(target), key=key)
            if not _COMMIT.fullmatch(_parsed(key).revision):
                return stat
            self._stats[key] = stat
        return self._stats[key]

    def stream(self, stat: Stat) -> Iterator[bytes]:
        """See objects.ObjectReader."""
        with self._readable(stat.key) as target:
            yield from self._web.stream(replace(stat, key=target, tag=""))

    def list(self, prefix: str, after: str = "") -> Iterator[Stat]:
        """See objects.Bucket. The card of a data set, README.md, is left out."""
        name, revision, path = _parsed(prefix)
        base = prefix.removesuffix(path)
        with _errors(_PLACE + prefix):
            from huggingface_hub.errors import EntryNotFoundError
            from huggingface_hub.hf_api import RepoFile

            tree = self._api.list_repo_tree(
                name, path.rpartition("/")[0] or None, recursive=True, revision=revision, repo_type="dataset"
            )
            stats = []
            with contextlib.suppress(EntryNotFoundError):
                stats = [Stat(base + file.path, file.size, file.blob_id) for file in tree if isinstance(file, RepoFile)]
        for stat in sorted(stats, key=lambda stat: stat.key):
            if stat.key.startswith(prefix) and stat.key > after and stat.key != f"{base}README.md":
                yield stat

    def put(self, key: str, body: BinaryIO, content_type: str, replaced: str) -> bool:
        """Refuse to write."""
        raise StorageError(f"cannot write {self.place}{key}: data sets of the hub are only read")

    def delete(self, key: str, tag: str = "") -> None:
        """Refuse to delete."""
        raise StorageError(f"cannot delete {self.place}{key}: data sets of the hub are only read")

    @contextlib.contextmanager
    def _readable(self, key: str) -> Iterator[str]:
        """Yield the path of a file on the hub's server, and say what to do if it may not be read."""
        name, revision, path = _parsed(key)
        try:
            yield f"datasets/{name}/resolve/{quote(revision, safe='')}/{quote(path)}"
        except UnusableObject as e:
            if e.kind is FailureKind.NO_ACCESS:
                text = f"cannot read {self.place}{key}: permission denied: {_ACCESS}"
                raise UnusableObject(text, FailureKind.NO_ACCESS) from e
            raise


@contextlib.contextmanager
def _errors(uri: str) -> Iterator[None]:
    """Convert the errors of the hub's client to ours."""
    with client_library("hf", uri):
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
    try:
        yield
    except GatedRepoError as e:
        raise StorageError(f"cannot read {uri}: it is gated: {_ACCESS}") from e
    except RepositoryNotFoundError as e:
        text = "there is no such data set on the hub; if it is private, set HF_TOKEN"
        raise ObjectNotFound(f"cannot read {uri}: {text}") from e
    except RevisionNotFoundError as e:
        text = "it has no such revision; give a branch, a tag or a commit of it"
        raise ObjectNotFound(f"cannot read {uri}: {text}") from e
    except Exception as e:  # the hub's client raises other types in each major version
        raise TransientError(connection_failed("list", f"{uri} on the hub", one_line(e))) from e
