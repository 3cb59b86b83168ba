"""Places for a benchmark's input and output: a local folder, or a bucket of a real server that the benchmark starts."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ROOT

from voxbatch.storage import Store, Stores, connect

sys.path.append(str(ROOT / "tests" / "support"))
import servers
from outputs import committed, difference, outputs

__all__ = ["KINDS", "Place", "committed", "difference", "outputs", "place"]
KINDS = ("local", "gcs", "moto", "seaweedfs")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, local or in a bucket."""

    kind: str
    root: str
    _server: servers.Server | None = field(default=None, repr=False)

    def __truediv__(self, name: str) -> str:
        """Return the address of a name in the place."""
        return f"{self.root}/{name}"

    def store(self, name: str) -> Store:
        """Return the store for outputs below a name."""
        return Stores().out(self / name)

    def put_rows(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        """Write rows as a manifest."""
        self._put(name, "".join(f"{json.dumps(row)}\n" for row in rows).encode())

    def put(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Write files as (name, content), several at a time."""
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(lambda file: self._put(*file), files):
                pass

    def _put(self, name: str, data: bytes) -> None:
        if self._server is None:
            path = Path(self / name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        else:
            bucket, _, prefix = self.root.partition("://")[2].partition("/")
            self._server.put(bucket, f"{prefix}/{name}", data)


@contextlib.contextmanager
def place(kind: str) -> Iterator[Place]:
    """Create a place of this kind; inside the context the environment leads voxbatch to it."""
    with tempfile.TemporaryDirectory(prefix="voxbatch-bench-") as folder:
        if kind == "local":
            yield Place(kind, folder)
            return
        started = {
            "gcs": servers.google_server,
            "moto": servers.amazon_server,
            "seaweedfs": lambda: servers.seaweed_server(Path(folder)),
        }[kind]
        with started() as server, _environment(server.settings(f"http://127.0.0.1:{server.port}")):
            bucket = f"bench-{uuid.uuid4().hex[:8]}"
            server.make(bucket)
            yield Place(kind, f"{server.scheme}://{bucket}/job", server)


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(settings)
    connect.bucket.cache_clear()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        connect.bucket.cache_clear()
