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
        assert all(
            "the signature of the address was refused: get a new one" in failure["message"] for failure in failures
        )
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


PRIVATE = b"private-key: 1234\n"
"""A file that is no recording."""
PLANTED = "0123456789abcdef-planted-signature"
FORMATS = ("--formats", "srt,vtt,ttml,ass,txt,tsv,ctm,rttm,textgrid,json,whisperx-json,openai-json")
SIGNED = f"X-Amz-Expires=60&X-Amz-Credential={PLANTED}&X-Amz-Signature={PLANTED}"


class _SignedHandler(web_server.Handler):
    """Delivers what is asked for with the planted signature: the manifest, a recording, and a file that is none."""

    def do_GET(self) -> None:
        name, _, query = self.path.partition("?")
        body = {"/m.jsonl": self._manifest, "/a.wav": self._recording}.get(name, lambda: PRIVATE)()
        self.send_response(200 if query == SIGNED else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _manifest(self) -> bytes:
        host = f"http://{self.headers['Host']}"
        rows = [
            {
                "id": name,
                "audio_filepath": f"{host}/{name}?{SIGNED}",
                "text": f"see {host}/{name}?{SIGNED}",
                "page": f"{host}/a page?{SIGNED}#t=1",
                "more": {
                    "all": [f"{host}/{name}?{SIGNED}"],
                    "note": f"(from {host}/x?{SIGNED}, and {host}/y?{SIGNED})",
                },
            }
            for name in ("a.wav", "text.wav", "absent/b.wav")
        ]
        return "".join(f"{json.dumps(row)}\n" for row in rows).encode()

    def _recording(self) -> bytes:
        file = io.BytesIO()
        soundfile.write(file, np.random.default_rng(1).normal(0, 0.05, 16_000), 16_000, format="WAV")
        return file.getvalue()


def test_no_byte_of_out_has_a_signature(tmp_path: Path, voxbatch: Voxbatch) -> None:
    """The run fetches with signatures, and no file of OUT, no message and no log has one, wherever a row names it;
    none quotes a file that is no recording."""
    with web_server.served(web_server.WebServer(_SignedHandler)) as server:
        arguments = ["-o", "out", *RUN[:-1], "--log-format", "json", *FORMATS]
        result = voxbatch("run", f"{server.url}/m.jsonl?{SIGNED}", *arguments)
        assert result.returncode == 3, result.stderr
        again = voxbatch("run", f"{server.url}/m.jsonl?{SIGNED}", *arguments, "--retry-failed")
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    transcripts = (tmp_path / "out/transcripts.jsonl").read_text()
    assert json.loads(transcripts)["audio_filepath"] == f"{server.url}/a.wav"
    assert json.loads(transcripts)["page"] == f"{server.url}/a page#t=1"
    assert json.loads(transcripts)["more"]["note"] == f"(from {server.url}/x, and {server.url}/y)"
    assert len((tmp_path / "out/failures.jsonl").read_text().splitlines()) == 2
    assert [path.name for path in written if PLANTED.encode() in path.read_bytes()] == []
    assert "looks like text" in (tmp_path / "out/failures.jsonl").read_text()
    assert [path.name for path in written if PRIVATE[:11] in path.read_bytes()] == []
    assert PLANTED not in result.stdout + result.stderr + again.stdout + again.stderr
