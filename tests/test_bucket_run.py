"""Tests for whole runs with the manifest, recordings and outputs in a bucket: the results equal those with files, also
under faults.
"""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import servers
import soundfile
from conftest import environment

from voxbatch.output.checkpoint import part_names, read_part
from voxbatch.storage import Store, open_store

pytestmark = pytest.mark.slow

ITEMS = 24
OUTPUTS = ("transcripts.jsonl", "failures.jsonl")


class Job:
    """Recordings and a manifest, in files and in a bucket behind a proxy; one recording is missing."""

    def __init__(self, server: servers.Server, proxy: servers.Proxy, folder: Path):
        self.server, self.proxy, self.folder = server, proxy, folder
        self.bucket = f"job-{uuid.uuid4().hex[:8]}"
        self.root = f"{server.scheme}://{self.bucket}"
        server.make(self.bucket)
        rows = [{"audio_filepath": f"audio/{i:02d}.wav", "text": "one two", "lang": "en"} for i in range(ITEMS)]
        (folder / "audio").mkdir()
        for i, row in enumerate(rows[:-1]):
            noise = np.random.default_rng(i).normal(0, 0.05, 8_000 + 100 * i)
            soundfile.write(folder / row["audio_filepath"], noise, 16_000)
            self.put(row["audio_filepath"], (folder / row["audio_filepath"]).read_bytes())
        manifest = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        (folder / "m.jsonl").write_bytes(manifest)
        self.put("day/m.jsonl", manifest.replace(b"audio/", b"../audio/"))
        self.put("m.jsonl", manifest)

    def put(self, key: str, data: bytes) -> None:
        self.server.put(self.bucket, key, data)

    def start(self, source: str, out: str, *options: str, **variables: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "voxbatch",
            "run",
            source,
            "-o",
            out,
            "--engine",
            "scripted",
            "--part-items",
            "3",
        ]
        command += ["--formats", "srt", *options]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=environment(VOXBATCH_NO_WAIT="1", **variables), stdout=pipe, stderr=pipe, text=True
        )

    def run(self, source: str, out: str, *options: str, **variables: str) -> tuple[int, str]:
        """Run to the end and return the exit code and all output."""
        process = self.start(source, out, *options, **variables)
        said = "".join(process.communicate())
        return process.returncode, said

    def local(self) -> dict[str, bytes]:
        """Return the outputs of a run with files."""
        out = self.folder / "out"
        if not out.exists():
            assert self.run(str(self.folder / "m.jsonl"), str(out))[0] == 3
        return outputs(open_store(str(out)))


def outputs(store: Store) -> dict[str, bytes]:
    """Return the merged outputs and subtitles, without the places of the recordings, which error messages contain,
    too.
    """
    found = {name: store.read(name) or b"" for name in (*OUTPUTS, *store.names("srt"))}
    for name in OUTPUTS:
        rows = [json.loads(line) for line in found[name].splitlines()]
        found[name] = json.dumps([{**row, "audio_filepath": "…", "message": "…"} for row in rows]).encode()
    return found


def committed(store: Store) -> Counter[int]:
    """Return the number of parts that contain each item."""
    return Counter(entry.index for name in part_names(store) for entry in read_part(store, name))


@pytest.fixture(params=["google", "seaweed"])
def job(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    server: servers.Server = request.getfixturevalue(request.param)
    with servers.led_through(server, monkeypatch) as proxy:
        yield Job(server, proxy, tmp_path)


def test_bucket_run_writes_the_bytes_of_a_local_run(job: Job) -> None:
    """A run in a bucket produces the bytes of a run with files and writes summary.json last; a
    second run does nothing.
    """
    out = f"{job.root}/out"
    code, said = job.run(f"{job.root}/m.jsonl", out)
    assert code == 3, said
    assert f"transcripts  {out}/transcripts.jsonl" in said
    assert outputs(open_store(out)) == job.local()
    writes = [request.key for request in job.proxy.log if request.verb == "put"]
    assert writes[-1] == "out/summary.json"
    assert job.server.look(job.bucket, "out/srt/audio/00.srt")[1].startswith("application/x-subrip")
    job.proxy.forget()
    assert job.run(f"{job.root}/m.jsonl", out)[0] == 3
    assert not [request for request in job.proxy.log if request.verb == "get" and request.key.startswith("audio/")]


def test_other_commands_accept_addresses(job: Job) -> None:
    """status, merge, score, --dry-run and sharded runs accept addresses; a second run with other
    settings is refused.
    """
    out = f"{job.root}/out"
    assert job.run(f"{job.root}/m.jsonl", out, "--shard", "0/2")[0] == 0
    status = [sys.executable, "-m", "voxbatch", "status", out, "--json"]
    found = json.loads(subprocess.run(status, env=environment(), capture_output=True, check=True).stdout)
    assert (found["items"], found["finished"], len(found["shards"])) == (ITEMS, False, 1)
    assert job.run(f"{job.root}/m.jsonl", out, "--shard", "1/2")[0] == 3
    assert outputs(open_store(out)) == job.local()
    for command in (["merge", out, "--formats", "vtt"], ["score", f"{out}/transcripts.jsonl"]):
        ran = subprocess.run([sys.executable, "-m", "voxbatch", *command], env=environment(), capture_output=True)
        assert ran.returncode in (0, 3), ran.stderr
    own = json.loads(open_store(out).read("summary.json") or b"")["score"]
    for address in (out, f"{out}/"):
        scored = [sys.executable, "-m", "voxbatch", "score", address]
        assert json.loads(subprocess.run(scored, env=environment(), capture_output=True, check=True).stdout) == own
    assert len(open_store(out).names("vtt")) == ITEMS - 1
    code, said = job.run(f"{job.root}/m.jsonl", out, "--language", "de")
    assert (code, "holds another run" in said) == (2, True)
    code, said = job.run(f"{job.root}/audio/", f"{job.root}/other", "--dry-run")
    assert code == 0
    assert f"{ITEMS - 1}" in said


def test_a_dry_run_stops_if_the_store_is_silent(job: Job) -> None:
    """If --dry-run cannot read the durations of recordings, it gives the reason instead of a plan for no audio."""
    job.proxy.spoil = lambda request: "503" if request.key.startswith("audio/") else ""
    code, said = job.run(f"{job.root}/m.jsonl", f"{job.root}/out", "--dry-run")
    assert (code, "the server is busy or failing" in said) == (1, True)


def test_a_dry_run_estimates_from_the_reachable_recordings(job: Job) -> None:
    """If a place refuses every second recording, --dry-run estimates from the others; with --fail-unreachable, also if
    it is down.
    """
    job.proxy.spoil = lambda request: "403" if request.key.endswith(("0.wav", "2.wav", "4.wav", "6.wav")) else ""
    code, said = job.run(f"{job.root}/m.jsonl", f"{job.root}/out", "--dry-run")
    assert (code, f"{ITEMS}" in said) == (0, True)
    job.proxy.spoil = lambda request: "503" if request.key.startswith("audio/") else ""
    code, said = job.run(f"{job.root}/m.jsonl", f"{job.root}/out", "--dry-run", "--fail-unreachable")
    assert (code, f"{ITEMS}" in said) == (0, True)


def test_overwrite_erases_only_files_of_a_run(job: Job) -> None:
    """--overwrite erases only files that a run wrote."""
    out = f"{job.root}/out"
    job.put("out/notes.txt", b"mine")
    assert job.run(f"{job.root}/m.jsonl", out)[0] == 3
    assert job.run(f"{job.root}/m.jsonl", out, "--overwrite", "--formats", "txt")[0] == 3
    store = open_store(out)
    assert store.read("notes.txt") == b"mine"
    assert not store.names("srt")
    assert len(store.names("txt")) == ITEMS - 1


def test_killed_run_resumes_to_the_same_files(job: Job) -> None:
    """A run that is killed and restarted produces the same files, and no item twice."""
    out = f"{job.root}/out"
    slow = ("--engine-option", "delay_s=0.2")
    process = job.start(f"{job.root}/m.jsonl", out, *slow)
    store = open_store(out)
    while len(part_names(store)) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert job.run(f"{job.root}/m.jsonl", out, *slow)[0] == 3
    assert committed(store) == dict.fromkeys(range(ITEMS), 1)
    assert outputs(store).keys() == job.local().keys()


@pytest.mark.parametrize("name", ["m.jsonl", "00.txt"])
def test_ctrl_c_ends_a_run_that_waits_for_the_store(job: Job, name: str) -> None:
    """A first Ctrl-C ends a run that waits for the store in its own or in other threads. It does not wait for the
    threads, and the signal is not mistaken for a failed connection.
    """
    over = threading.Event()
    job.put("audio/00.txt", b"one two")

    def spoil(request: servers.Asked) -> servers.Fault:
        if request.name == name:
            job.proxy.held.set()
            over.wait(60)
            return "503"
        return ""

    job.proxy.spoil = spoil
    process = job.start(f"{job.root}/m.jsonl" if name == "m.jsonl" else f"{job.root}/audio/", f"{job.root}/out")
    assert job.proxy.held.wait(60)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=15)  # before `over` is set, and before the client times out
    over.set()
    assert process.returncode == 130
    assert "no item was started" in said


def test_ctrl_c_ends_a_listing(job: Job) -> None:
    """A Ctrl-C also ends `voxbatch manifest` without waiting for its threads."""
    over = threading.Event()
    job.put("audio/00.txt", b"one two")

    def spoil(request: servers.Asked) -> servers.Fault:
        if request.name == "00.txt":
            job.proxy.held.set()
            over.wait(60)
        return ""

    job.proxy.spoil = spoil
    command = [sys.executable, "-m", "voxbatch", "manifest", f"{job.root}/audio/"]
    with subprocess.Popen(command, env=environment(VOXBATCH_NO_WAIT="1"), stdout=subprocess.DEVNULL) as process:
        assert job.proxy.held.wait(60)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=15) == 130
        over.set()


def test_outputs_are_the_same_despite_faults(job: Job) -> None:
    """With a tenth of all requests failing in every known way, the outputs are the same and no item is in two parts."""
    job.proxy.stall_s = 0.5
    job.proxy.spoil = servers.share(0.1, servers.WEATHER, seed=3)
    code, said = job.run(f"{job.root}/m.jsonl", f"{job.root}/out")
    job.proxy.spoil = lambda request: ""
    assert code == 3, said
    assert job.proxy.spoilt > 10
    store = open_store(f"{job.root}/out")
    assert committed(store) == dict.fromkeys(range(ITEMS), 1)
    assert outputs(store) == job.local()


def test_commits_are_retried(job: Job) -> None:
    """Commits are retried while the store rejects writes for some attempts."""
    left = 8
    lock = threading.Lock()

    def spoil(request: servers.Asked) -> servers.Fault:
        nonlocal left
        with lock:
            left -= request.verb == "put" and "/parts/" in request.key
            return "503" if request.verb == "put" and "/parts/" in request.key and left >= 0 else ""

    job.proxy.spoil = spoil
    assert job.run(f"{job.root}/m.jsonl", f"{job.root}/out")[0] == 3
    assert outputs(open_store(f"{job.root}/out")) == job.local()


def test_lasting_outage_of_the_store_stops_the_run(job: Job) -> None:
    """A store that fails permanently during a run stops it with the object, the reason and the number of safe items. A
    restart resumes.
    """
    out = f"{job.root}/out"
    job.proxy.spoil = lambda request: "503" if request.key.endswith("part-00002.jsonl") else ""
    code, said = job.run(f"{job.root}/m.jsonl", out)
    assert code == 1
    assert f"cannot write {out}/parts/shard-00000-of-00001/part-00002.jsonl: the server is busy or failing" in said
    assert f"6 of {ITEMS} items are safe in {out}; run the same command again to continue" in said
    job.proxy.spoil = lambda request: ""
    assert job.run(f"{job.root}/m.jsonl", out)[0] == 3
    assert outputs(open_store(out)) == job.local()


def test_a_silent_store_stops_the_run_unless_told_otherwise(job: Job) -> None:
    """If no recording can be fetched, the run stops without failed items, unless --fail-unreachable is given."""
    out = f"{job.root}/out"
    job.proxy.spoil = lambda request: "503" if request.key.startswith("audio/") else ""
    code, said = job.run(f"{job.root}/m.jsonl", out)
    assert code == 1
    assert "--fail-unreachable" in said
    assert not part_names(open_store(out))
    assert job.run(f"{job.root}/m.jsonl", out, "--fail-unreachable")[0] == 3
    assert (open_store(out).read("failures.jsonl") or b"").count(b'"retryable": true') == ITEMS


@pytest.mark.parametrize("job", ["google"], indirect=True)
def test_run_warns_of_a_store_that_ignores_create_if_absent(job: Job) -> None:
    """A run warns at the start if the store ignores create-if-absent, because two writers would be unsafe there.

    SeaweedFS is left out: the proxy takes the condition out of the request, which would break the signature.
    """

    def ignored(request: servers.Asked) -> servers.Asked:
        headers = {name: value for name, value in request.headers.items() if name != "if-none-match"}
        return replace(request, path=request.path.replace("ifGenerationMatch=0", ""), headers=headers)

    job.proxy.rewrite = ignored
    code, said = job.run(f"{job.root}/m.jsonl", f"{job.root}/out")
    assert code == 3, said
    assert "this store overwrites objects despite create-if-absent" in said


def test_no_secret_is_shown_or_written(job: Job) -> None:
    """Neither the output nor the written files contain the secret key."""
    _, said = job.run(f"{job.root}/m.jsonl", f"{job.root}/out", "--s3-endpoint-url", "http://me:hush@127.0.0.1:9")
    secrets = [value for name, value in job.server.settings("").items() if "SECRET" in name] + ["hush"]
    store = open_store(f"{job.root}/out") if job.server.scheme == "gs" else None
    written = b"".join(store.read(name) or b"" for name in store.names("")) if store else b""
    for secret in filter(None, secrets):
        assert secret not in said
        assert secret.encode() not in written


def test_recordings_on_a_web_server_are_transcribed(tmp_path: Path) -> None:
    """A manifest can name recordings by address; addresses in a private network fail unless they are allowed.
    Signatures are shown and written only in the rows themselves.
    """
    soundfile.write(tmp_path / "a.wav", np.random.default_rng(0).normal(0, 0.05, 8_000), 16_000)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    rows = [{"audio_filepath": f"{url}/{name}?sig=hush", "id": name} for name in ("a.wav", "none.wav")]
    (tmp_path / "web.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = [sys.executable, "-m", "voxbatch", "run", "web.jsonl", "--engine", "scripted", "-o"]
    for out, options in (("refused", []), ("allowed", ["--allow-private-addresses"])):
        ran = subprocess.run([*command, out, *options], env=environment(), cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 3, ran.stderr
        assert "hush" not in ran.stdout + ran.stderr
    server.shutdown()
    server.server_close()
    refused, allowed = open_store(str(tmp_path / "refused")), open_store(str(tmp_path / "allowed"))
    reasons = [json.loads(line)["message"] for line in refused.lines("failures.jsonl")]
    assert len(reasons) == 2
    assert all("--allow-private-addresses" in reason and "hush" not in reason for reason in reasons)
    assert [json.loads(line)["id"] for line in allowed.lines("transcripts.jsonl")] == ["a.wav"]
    assert "there is no such" in json.loads(next(allowed.lines("failures.jsonl")))["message"]
    assert b"hush" not in (allowed.read("summary.json") or b"") + (allowed.read("run.json") or b"")
