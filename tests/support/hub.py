"""A server that speaks the hub's download protocol, for folders of this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from web_server import Handler, WebServer, served

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BLOCK = 1 << 20


class _Handler(Handler):
    folders: dict[str, Path]
    seconds_per_block: float
    asked: list[str]
    tokens: set[str]
    damaged: str
    dropped: str
    gated: str

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(f"{self.command} {path}")
        self.tokens.add(self.headers.get("Authorization", ""))
        if path.startswith(("/api/models/", "/api/datasets/")):
            self._api(*path.split("/", 7)[3:])
        else:
            owner, name, _, _, file = path.removeprefix("/datasets").lstrip("/").split("/", 4)
            local = self.folders.get(f"{owner}/{name}", Path("/nowhere")) / file
            if f"{owner}/{name}" == self.gated:
                self._error(403, "GatedRepo")
            elif local.name == self.dropped:
                self.close_connection = True
            else:
                self._file(local)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _api(self, owner: str, name: str, what: str = "", revision: str = "", below: str = "") -> None:
        folder = self.folders.get(f"{owner}/{name}")
        if folder is None:
            self._error(401, "RepoNotFound")  # as the real hub answers strangers
            return
        if revision not in ("", "main", COMMIT, "topic%2Fnew%20words"):
            self._error(404, "RevisionNotFound")
            return
        listed = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [str(path.relative_to(folder)) for path in listed]
        files = [
            (name, path.stat().st_size) for name, path in zip(names, listed, strict=True) if name.startswith(below)
        ]
        siblings = [
            {"rfilename": name, "size": path.stat().st_size, **_large(path)}
            for name, path in zip(names, listed, strict=True)
        ]
        about = {"id": f"{owner}/{name}", "sha": COMMIT, "siblings": siblings}
        tree = [{"type": "file", "path": file, "size": size, "oid": f"{size:040x}"} for file, size in files]
        self._json(tree if what == "tree" else about)

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._error(404, "EntryNotFound")
            return
        asked, size = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")), path.stat().st_size
        begin, end = (int(asked[1]), min(size, int(asked[2]) + 1)) if asked else (0, size)
        self.send_response(206 if asked else 200)
        etag = hashlib.sha256(str(path).encode()).hexdigest()[:40]
        for name, value in {
            "ETag": f'"{etag}"',
            "X-Repo-Commit": COMMIT,
            "Content-Length": end - begin,
            **({"Content-Range": f"bytes {begin}-{end - 1}/{size}"} if asked else {}),
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            with path.open("rb") as file, contextlib.suppress(ConnectionError):
                file.seek(begin)
                while block := file.read(min(BLOCK, end - file.tell())):
                    if path.name == self.damaged:
                        block = bytes(len(block))
                    self.wfile.write(block)
                    if len(block) == BLOCK:
                        time.sleep(self.seconds_per_block)

    def _json(self, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def _error(self, status: int, code: str) -> None:
        self.send_response(status)
        for name, value in {"X-Error-Code": code, "X-Error-Message": "no", "Content-Length": "0"}.items():
            self.send_header(name, value)
        self.end_headers()


def _large(path: Path) -> dict[str, Any]:
    """Return what the hub says about a large file: its SHA-256."""
    if path.suffix != ".safetensors":
        return {}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"lfs": {"sha256": digest, "size": path.stat().st_size, "pointerSize": 134}}


class Hub:
    """A running hub.

    Args:
        damaged: name of a file whose bytes are not those that the hub describes.
        dropped: name of a file whose download ends without an answer.
        gated: name of a model whose terms nobody has accepted.
    """

    def __init__(
        self,
        folders: dict[str, Path],
        home: Path,
        seconds_per_block: float = 0.0,
        damaged: str = "",
        dropped: str = "",
        gated: str = "",
    ):
        self.asked: list[str] = []
        """Requests so far: method and path."""
        self.tokens: set[str] = set()
        """Authorization headers of the requests so far; "" for a request without one."""
        settings = {
            "folders": folders, "seconds_per_block": seconds_per_block, "damaged": damaged, "dropped": dropped,
            "gated": gated, "asked": self.asked, "tokens": self.tokens,
        }  # fmt: skip
        self._stack = contextlib.ExitStack()
        server = self._stack.enter_context(served(WebServer(type("Handler", (_Handler,), settings))))
        self.environment = variables(server.url, home)
        """Variables that make the hub's client use this hub."""

    def close(self) -> None:
        """Stop the server; its address refuses connections from now on."""
        self._stack.close()


def variables(endpoint: str, home: Path) -> dict[str, str]:
    """Return the variables that make the hub's client use an endpoint, with its cache in `home`."""
    return {
        "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
    }  # fmt: skip


@contextlib.contextmanager
def serving(folders: dict[str, Path], home: Path, seconds_per_block: float = 0.0, **faults: str) -> Iterator[Hub]:
    """Serve folders as models and data sets of a hub, by their names (owner/name). `faults` are those of Hub."""
    with contextlib.closing(Hub(folders, home, seconds_per_block, **faults)) as hub:
        yield hub
