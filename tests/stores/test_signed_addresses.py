"""Tests for signed addresses that expire in the middle of a run: renewed ones continue it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import web_server
from conftest import Voxbatch

pytestmark = pytest.mark.slow

ITEMS, BEFORE_EXPIRY = 12, 5
RUN = ("--allow-private-addresses", "--engine", "scripted", "--part-items", "2", "--no-report")


class Server(web_server.WebServer):
    """A store that delivers BEFORE_EXPIRY recordings before the signature 1 expires."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.delivered: list[tuple[str, str]] = []
        """Recording and signature of each recording that was delivered."""


class _Handler(web_server.Handler):
    server: Any

    def do_GET(self) -> None:
        match = re.fullmatch(r"/(\d+\.wav)\?X-Amz-Expires=60&X-Amz-Signature=(\d)", self.path)
        assert match
        name, signature = match.groups()
        is_valid = signature != "1" or len(self.server.delivered) < BEFORE_EXPIRY
        body = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
        if is_valid:
            self.server.delivered.append((name, signature))
            file = io.BytesIO()
            noise = np.random.default_rng(int(name[:-4])).normal(0, 0.05, 16_000)
            soundfile.write(file, noise, 16_000, format="WAV")
            body = file.getvalue()
        self.send_response(200 if is_valid else 403)
        self.send_header("ETag", f'"{name}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def manifest(folder: Path, url: str, signature: int) -> str:
    """Write the list of the recordings, signed with this signature."""
    rows = [
        {"audio_filepath": f"{url}/{i}.wav?X-Amz-Expires=60&X-Amz-Signature={signature}", "duration": 1.0}
        for i in range(ITEMS)
    ]
    (folder / f"{signature}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return f"{signature}.jsonl"


@pytest.mark.parametrize("options", [(), ("--update",)])
def test_signatures_that_expire_in_a_run(tmp_path: Path, voxbatch: Voxbatch, options: tuple[str, ...]) -> None:
    """Recordings that were delivered before the signatures expired are not fetched again with new ones, the refused
    ones are, and a third list fetches nothing."""
    with web_server.served(Server()) as server:
        first = voxbatch("run", manifest(tmp_path, server.url, 1), "-o", "out", *RUN)
        assert first.returncode == 3, first.stderr
        failures = [json.loads(line) for line in (tmp_path / "out/failures.jsonl").read_text().splitlines()]
        assert len(failures) == ITEMS - BEFORE_EXPIRY
        assert all("if the address was signed, get a new one" in failure["message"] for failure in failures)
        done = {name for name, _ in server.delivered}
        server.delivered.clear()
        second = voxbatch("run", manifest(tmp_path, server.url, 2), "-o", "out", *RUN, *options)
        assert second.returncode == 0, second.stderr
        assert {name for name, _ in server.delivered} == {f"{i}.wav" for i in range(ITEMS)} - done
        assert len((tmp_path / "out/transcripts.jsonl").read_text().splitlines()) == ITEMS
        server.delivered.clear()
        third = voxbatch("run", manifest(tmp_path, server.url, 3), "-o", "out", *RUN, *options)
        assert third.returncode == 0, third.stderr
        assert server.delivered == []


def test_other_lines_are_another_list(tmp_path: Path, voxbatch: Voxbatch) -> None:
    """A line that differs in more than its signature still needs --update."""
    with web_server.served(Server()) as server:
        voxbatch("run", manifest(tmp_path, server.url, 2), "-o", "out", *RUN)
        path = tmp_path / manifest(tmp_path, server.url, 3)
        path.write_text(path.read_text().replace('"duration": 1.0', '"duration": 0.5', 1))
        assert "add --update" in voxbatch("run", path.name, "-o", "out", *RUN).stderr
