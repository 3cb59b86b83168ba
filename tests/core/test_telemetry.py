"""Tests that a run sends nothing to places that its command does not name: the claim of docs/quickstart.md."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT, environment

pytestmark = pytest.mark.slow

SPEECH = ROOT / "examples" / "recordings" / "weather.flac"
ADDRESS = re.compile(r'sin6?_port=htons\((\d+)\).*?(?:inet_addr\(|AF_INET6, )"([^"]+)"')
"""Port and address of an internet socket in a system call that strace prints."""


def test_a_run_connects_only_to_the_places_that_its_command_names(tmp_path: Path) -> None:
    """A whole run with a real model, from the list to the report, sends to the server of its recordings alone: no DNS,
    no hub, no telemetry.
    """
    if (strace := shutil.which("strace")) is None:
        pytest.skip("there is no strace on PATH: apt-get install strace")
    traced = [strace, "-f", "-qq", "-o", str(tmp_path / "trace"), "-e", "trace=connect,sendto,sendmsg,sendmmsg"]
    if subprocess.run([*traced, "true"], capture_output=True).returncode:
        pytest.skip("strace may not trace processes here")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=SPEECH.parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/{SPEECH.name}"
        rows = [{"audio_filepath": str(SPEECH)}, {"audio_filepath": address, "id": "web"}]
        (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        run = [sys.executable, "-m", "voxbatch", "run", str(tmp_path / "m.jsonl"), "-o", str(tmp_path / "out")]
        run += ["--formats", "srt,json", "--allow-private-addresses", "--exit-zero"]
        done = subprocess.run(
            [*traced, *run], env=environment(HF_HUB_OFFLINE=""), capture_output=True, text=True, timeout=500
        )
        server.shutdown()
    assert (done.returncode, (tmp_path / "out" / "report.html").exists()) == (0, True), done.stderr
    assert len((tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()) == 2
    sent = [line for line in (tmp_path / "trace").read_text().splitlines() if "AF_INET" in line]
    assert {ADDRESS.findall(line)[0] for line in sent} == {(str(server.server_port), "127.0.0.1")}
