"""A program on PATH whose calls the test process answers.

The program is a short bash script that sends its arguments over a socket, so that a script of a hundred commands takes
seconds.
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CLIENT = """#!/usr/bin/env bash
stdin=""
case " $* " in *" --data-file=- "*) IFS= read -r -d '' stdin ;; esac
exec 3<>"/dev/tcp/127.0.0.1/PORT"
printf '%s\\0' "$#" "$@" "$stdin" "$(export -p)" >&3
IFS= read -r -d '' code <&3
IFS= read -r -d '' out <&3
IFS= read -r -d '' error <&3
printf '%s' "$out"
printf '%s' "$error" >&2
exit "$code"
"""

Answer = Callable[[list[str], str, str], tuple[int, str, str]]
"""A function of the arguments, the text for `--data-file=-` and the exported variables. It returns the exit code,
standard output and standard error.
"""


class _Server(socketserver.TCPServer):
    """A server for one call at a time, because the scripts issue them one after the other."""

    answer: Answer
    allow_reuse_address = True


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def word(self) -> str:
        """Read one argument, which ends in a NUL byte."""
        text = bytearray()
        while (byte := self.rfile.read(1)) != b"\0":
            text += byte
        return text.decode()

    def handle(self) -> None:
        arguments = [self.word() for _ in range(int(self.word()))]
        answer = self.server.answer(arguments, self.word(), self.word())
        self.wfile.write("".join(f"{part}\0" for part in answer).encode())


@contextmanager
def fake_program(path: Path, answer: Answer) -> Iterator[None]:
    """Install a program for the duration of the context."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.answer = answer
        path.write_text(CLIENT.replace("PORT", str(server.server_address[1])))
        path.chmod(0o755)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
