"""Tests that the service of docs/service.md runs: upload, events, formats, cancel and refusals."""

from __future__ import annotations

import http.client
import importlib.util
import io
import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import soundfile
from conftest import ROOT, environment
from waits import until

import voxbatch as vb

pytestmark = pytest.mark.slow
EXAMPLES = ROOT / "examples"
RECORDINGS = EXAMPLES / "recordings"
BOUNDARY = "part"
REASON = '{"detail":"the recording is cancelled: the transcription was stopped"}'


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """Yield the address of the service, in a process of its own."""
    for module in ("fastapi", "uvicorn", "python_multipart"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module}, which the service needs: pip install fastapi uvicorn python-multipart")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "service:app", "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=EXAMPLES, env=environment())
    try:
        until(lambda: is_open(port), process=process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.wait(60) in (0, -signal.SIGTERM)


def is_open(port: int) -> bool:
    """Return whether a server answers at a port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def call(method: str, address: str, body: bytes | None = None, **further: str) -> tuple[int, str]:
    """Return the status and the text of an answer. `further` are headers, with `_` for `-`."""
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"} if body else {}
    headers |= {name.replace("_", "-"): value for name, value in further.items()}
    request = urllib.request.Request(address, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def form(data: bytes) -> bytes:
    """Return the body of an upload."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    return head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()


def upload(service: str, data: bytes) -> str:
    """Upload a recording, and return the address of its job."""
    status, text = call("POST", f"{service}/recordings", form(data))
    assert status == 202, text
    return f"{service}/recordings/{json.loads(text)['id']}"


def events(job: str, after: int = -1) -> list[tuple[str, Any]]:
    """Return the events of a job to its end."""
    status, text = call("GET", f"{job}/events?last_event_id={after}")
    assert status == 200
    parts = [dict(line.split(": ", 1) for line in part.splitlines()) for part in text.strip().split("\n\n")]
    assert [int(part["id"]) for part in parts] == list(range(after + 1, after + 1 + len(parts)))
    return [(part["event"], json.loads(part["data"])) for part in parts]


@pytest.mark.timeout(300)
def test_an_upload_gives_segments_and_texts(service: str) -> None:
    """The events are the segments of the transcript, also from the middle on; each format is that of a run."""
    data = (RECORDINGS / "weather.flac").read_bytes()
    job = upload(service, data)
    seen = events(job)
    expected = vb.transcribe(data)
    assert [name for name, _ in seen] == ["segment"] * len(expected.segments) + ["done"]
    assert [content["text"] for _, content in seen[:-1]] == [segment.text for segment in expected.segments]
    assert events(job, after=0) == seen[1:]
    last = len(seen) - 1
    resumed = call("GET", f"{job}/events", Last_Event_ID=str(last - 1))
    assert resumed[1].startswith(f"id: {last}\nevent: done")
    assert call("GET", f"{job}/events", Last_Event_ID=str(last))[0] == 204
    assert call("GET", f"{job}/events?last_event_id={last + 3}")[0] == 204
    assert call("GET", f"{job}/events?last_event_id=-2")[0] == 422
    state = json.loads(call("GET", job)[1])
    ends = expected.segments[-1].end, expected.audio_duration
    assert (state["state"], state["transcribed"], state["duration"]) == ("done", *ends)
    assert call("GET", f"{job}/text?form=srt") == (200, expected.to_srt())
    assert call("GET", f"{job}/text?form=docx")[0] == 400
    assert call("GET", f"{service}/recordings/none/text")[0] == 404


@pytest.mark.timeout(300)
def test_a_cancelled_upload_frees_the_model(service: str) -> None:
    """A recording that is cancelled ends with an event, and the next one is transcribed; a bad one says why."""
    long = upload(service, (RECORDINGS / "street-garden.ogg").read_bytes())
    assert call("DELETE", long)[0] == 204
    assert events(long)[-1] == ("cancelled", {"error": "Cancelled", "message": "the transcription was stopped"})
    assert call("GET", f"{long}/text") == (409, REASON)
    bad = upload(service, b"no audio")
    assert events(bad)[-1][1]["error"] == "AudioError"
    assert "the recording is failed: cannot decode" in call("GET", f"{bad}/text")[1]
    assert events(upload(service, (RECORDINGS / "museum.wav").read_bytes()))[-1][0] == "done"


@pytest.mark.timeout(300)
def test_uploads_that_come_together_do_not_exceed_the_limit(service: str) -> None:
    """Beside one in progress, seven of thirty uploads are taken, and the others told to come later."""
    data = io.BytesIO()
    soundfile.write(data, np.zeros(90 * 16_000, np.int16), 16_000, format="WAV")  # above the megabyte kept in memory
    long = (RECORDINGS / "street-garden.ogg").read_bytes()
    jobs, body = [upload(service, long)], form(data.getvalue())
    clients = [http.client.HTTPConnection(urlsplit(service).netloc, timeout=120) for _ in range(30)]
    for client in clients:
        client.putrequest("POST", "/recordings")
        client.putheader("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")
        client.putheader("Content-Length", str(len(body)))
        client.endheaders(body[:-1])
    for client in clients:
        client.send(body[-1:])
    answers = [client.getresponse() for client in clients]
    jobs += [f"{service}/recordings/{json.load(answer)['id']}" for answer in answers if answer.status == 202]
    assert Counter(answer.status for answer in answers) == {202: 7, 429: 23}
    for job in jobs:
        assert call("DELETE", job)[0] == 204
    for client in clients:
        client.close()
