"""HTTP servers in threads of the tests' own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar


class Handler(BaseHTTPRequestHandler):
    """A handler of one request that writes no log."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


class WebServer(ThreadingHTTPServer):
    """A server on a free port of this machine, with one thread for each request."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler]):
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: a client that closes the connection is no error of the server."""


_Server = TypeVar("_Server", bound=WebServer)


@contextmanager
def served(server: _Server) -> Iterator[_Server]:
    """Answer requests during the context."""
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def served_folder(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve the files of a folder. Yield the address of the folder, and the paths that clients ask for."""
    asked: list[str] = []

    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, format: str, *args: Any) -> None:
            asked.append(self.path)

    with served(WebServer(Files)) as server:
        yield server.url, asked
