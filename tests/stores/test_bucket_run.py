"""Tests for whole runs with the manifest, recordings and outputs in a bucket: the results equal those with files, also
under faults.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import servers
import soundfile
from conftest import Recorder, Voxbatch, environment
from fork_server import ForkedProcess, ForkServer
from outputs import committed
from web_server import served_folder

from voxbatch.storage import Store, Stores

pytestmark = pytest.mark.slow

ITEMS = 24
ENGINE = ("--engine", "scripted", "--part-items", "3", "--formats", "srt")
OUTPUTS = ("transcripts.jsonl", "failures.jsonl")


def write_recordings(folder: Path) -> None:
    """Write recordings and m.jsonl, a manifest of them and of one that is missing."""
    rows = [{"audio_filepath": f"audio/{i:02d}.wav", "text": "one two", "lang": "en"} for i in range(ITEMS)]
    (folder / "audio").mkdir()
    for i, row in enumerate(rows[:-1]):
        noise = np.random.default_rng(i).normal(0, 0.05, 8_000 + 100 * i)
        soundfile.write(folder / row["audio_filepath"], noise, 16_000)
    (folder / "m.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


class Job:
    """Recordings and a manifest, in files and in a bucket behind a proxy; one recording is missing."""

    def __init__(self, server: servers.Server, proxy: servers.Proxy, folder: Path, fork_server: ForkServer):
        self.server, self.proxy, self.folder, self._server = server, proxy, folder, fork_server
        self.bucket = f"job-{uuid.uuid4().hex[:8]}"
        self.root = f"{server.scheme}://{self.bucket}"
        server.make(self.bucket)
        write_recordings(folder)
        for path in sorted((folder / "audio").iterdir()):
            self.put(f"audio/{path.name}", path.read_bytes())
        self.put("m.jsonl", (folder / "m.jsonl").read_bytes())

    def put(self, key: str, data: bytes) -> None:
        self.server.put(self.bucket, key, data)

    def start(self, *command: str, **variables: str) -> ForkedProcess:
        """Start a command of voxbatch."""
        settings = environment(VOXBATCH_NO_WAIT="1", **variables)
        return self._server.start(
            command, settings, self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, forks_children=True
        )

    def start_run(self, source: str, out: str, *options: str, **variables: str) -> ForkedProcess:
        return self.start("run", source, "-o", out, *ENGINE, *options, **variables)

    def run(self, source: str, out: str, *options: str, **variables: str) -> tuple[int, str]:
        """Run to the end and return the exit code and all output."""
        process = self.start_run(source, out, *options, **variables)
        said = "".join(process.communicate())
        return process.returncode, said

    def printed(self, *command: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command, check its exit code, and return what it prints."""
        process = self.start(*command)
        stdout, stderr = process.communicate()
        assert process.returncode in codes, stderr
        return stdout


def outputs(store: Store) -> dict[str, bytes]:
    """Return the merged outputs and subtitles, without the places of the recordings, which messages have, too."""
    found = {name: store.read(name) or b"" for name in (*OUTPUTS, *store.names("srt"))}
    for name in OUTPUTS:
        rows = [json.loads(line) for line in found[name].splitlines()]
        found[name] = json.dumps([{**row, "audio_filepath": "…", "message": "…"} for row in rows]).encode()
    return found


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> dict[str, bytes]:
    """Return the outputs of a run with files."""
    folder = tmp_path_factory.mktemp("local")
    write_recordings(folder)
    done = fork_server.run(["run", "m.jsonl", "-o", "out", *ENGINE], environment(), cwd=folder, timeout=240)
    assert done.returncode == 3, done.stderr
    return outputs(Stores().out(str(folder / "out")))


@pytest.fixture(params=servers.mainly("google", "seaweed"))
def job(
    request: pytest.FixtureRequest, tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Job]:
    server: servers.Server = request.getfixturevalue(request.param)
    with servers.led_through(server, monkeypatch) as proxy:
        yield Job(server, proxy, tmp_path, fork_server)


def test_bucket_run_writes_the_bytes_of_a_local_run(job: Job, local: dict[str, bytes]) -> None:
    """A run in a bucket gives the bytes of a run with files and writes summary.json last; a second run does nothing."""
    out = f"{job.root}/out"
    code, said = job.run(f"{job.root}/m.jsonl", out)
    assert code == 3, said
    assert f"transcripts  {out}/transcripts.jsonl" in said
    assert outputs(Stores().out(out)) == local
    writes = [request.key for request in job.proxy.log if request.verb == "put"]
    assert writes[-1] == "out/summary.json"
    assert job.server.look(job.bucket, "out/srt/audio/00.srt")[1].startswith("application/x-subrip")
    job.proxy.forget()
    assert job.run(f"{job.root}/m.jsonl", out)[0] == 3
    assert not [request for request in job.proxy.log if request.verb == "get" and request.key.startswith("audio/")]


def test_a_model_in_a_bucket_is_fetched_with_a_line_in_the_log(job: Job) -> None:
    """A run says how much of a model it fetches, and to which folder; the next run has it already. A dry run says how
    much the run will fetch, and fetches nothing."""
    for name in ("config.json", "model.bin", "tokenizer.json"):
        job.put(f"models/small/{name}", b"{}")
    model = f"{job.root}/models/small"

    def log(option: str) -> str:
        run = ("run", "m.jsonl", "-o", "out", "--engine", "faster-whisper", "--model", model, option)
        variables, command = environment(XDG_CACHE_HOME=str(job.folder / "a")), [sys.executable, "-m", "voxbatch"]
        done = subprocess.run([*command, *run], cwd=job.folder, env=variables, capture_output=True, text=True)
        return done.stdout + done.stderr

    assert f"fetch    {model}: 0 MB\n" in log("--dry-run")
    assert not list((job.folder / "a").rglob("config.json"))
    fetching = f"fetching 3 of 3 files, 0.0 MB, from {model}/ to {job.folder}/a/voxbatch/models/"
    assert fetching in log("--limit=1")
    assert fetching not in log("--limit=1")
    assert "fetch " not in log("--dry-run")


def test_other_commands_accept_addresses(job: Job, local: dict[str, bytes]) -> None:
    """status, merge, score, --dry-run and sharded runs accept addresses; a run with other settings is refused."""
    out = f"{job.root}/out"
    assert job.run(f"{job.root}/m.jsonl", out, "--shard", "0/2")[0] == 0
    found = json.loads(job.printed("status", out, "--json"))
    assert (found["items"], found["finished"], len(found["shards"])) == (ITEMS, False, 1)
    assert job.run(f"{job.root}/m.jsonl", out, "--shard", "1/2")[0] == 3
    assert outputs(Stores().out(out)) == local
    for command in (["merge", out, "--formats", "vtt"], ["score", f"{out}/transcripts.jsonl"]):
        job.printed(*command, codes=(0, 3))
    own = json.loads(Stores().out(out).read("summary.json") or b"")["score"]
    for address in (out, f"{out}/"):
        assert json.loads(job.printed("score", address, "--json")) == own
    assert len(Stores().out(out).names("vtt")) == ITEMS - 1
    code, said = job.run(f"{job.root}/m.jsonl", out, "--language", "de")
    assert (code, "holds another run" in said) == (2, True)
    code, said = job.run(f"{job.root}/audio/", f"{job.root}/other", "--dry-run")
    assert code == 0
    assert f"{ITEMS - 1}" in said


def test_a_dry_run_estimates_from_the_reachable_recordings(job: Job) -> None:
    """If a place refuses every second recording, --dry-run estimates from the others. If it is down, it gives the
    reason instead of a plan for no audio, unless --fail-unreachable is given.
    """
    job.proxy.spoil = lambda request: "403" if request.key.endswith(("0.wav", "2.wav", "4.wav", "6.wav")) else ""
    code, said = job.run(f"{job.root}/m.jsonl", f"{job.root}/out", "--dry-run")
    assert (code, f"{ITEMS}" in said) == (0, True)
    job.proxy.spoil = lambda request: "503" if request.key.startswith("audio/") else ""
    code, said = job.run(f"{job.root}/m.jsonl", f"{job.root}/out", "--dry-run")
    assert (code, "the server is busy or failing" in said) == (1, True)
    code, said = job.run(f"{job.root}/m.jsonl", f"{job.root}/out", "--dry-run", "--fail-unreachable")
    assert (code, f"{ITEMS}" in said) == (0, True)


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
    process = job.start_run(f"{job.root}/m.jsonl" if name == "m.jsonl" else f"{job.root}/audio/", f"{job.root}/out")
    assert job.proxy.held.wait(60)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=45)  # before `over` is set, and before the client times out
    over.set()
    assert process.returncode == 130
    assert "no item was started" in said


def test_outputs_are_the_same_despite_faults(job: Job, local: dict[str, bytes]) -> None:
    """With a tenth of all requests failing in every known way, the outputs are the same and no item is in two parts."""
    job.proxy.stall_s = 0.5
    job.proxy.spoil = servers.share(0.1, servers.WEATHER, seed=3)
    code, said = job.run(f"{job.root}/m.jsonl", f"{job.root}/out")
    job.proxy.spoil = lambda request: ""
    assert code == 3, said
    assert job.proxy.spoilt > 10
    store = Stores().out(f"{job.root}/out")
    assert committed(store) == dict.fromkeys(range(ITEMS), 1)
    assert outputs(store) == local


def test_lasting_outage_of_the_store_stops_the_run(job: Job, local: dict[str, bytes]) -> None:
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
    assert outputs(Stores().out(out)) == local


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


@pytest.mark.parametrize("job", ["google", "seaweed"], indirect=True)
def test_no_secret_is_shown_or_written(job: Job) -> None:
    """Neither the output nor the written files contain the secret key."""
    _, said = job.run(f"{job.root}/m.jsonl", f"{job.root}/out", "--s3-endpoint-url", "http://me:hush@127.0.0.1:9")
    secrets = [value for name, value in job.server.settings("").items() if "SECRET" in name] + ["hush"]
    store = Stores().out(f"{job.root}/out") if job.server.scheme == "gs" else None
    written = b"".join(store.read(name) or b"" for name in store.names("")) if store else b""
    for secret in filter(None, secrets):
        assert secret not in said
        assert secret.encode() not in written


def test_recordings_on_a_web_server_are_transcribed(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A manifest can name recordings by address; addresses in a private network fail unless they are allowed.
    Signatures are shown and written only in the rows themselves.
    """
    soundfile.write(tmp_path / "a.wav", np.random.default_rng(0).normal(0, 0.05, 8_000), 16_000)
    with served_folder(tmp_path) as (url, _):
        rows = [{"audio_filepath": f"{url}/{name}?sig=hush", "id": name} for name in ("a.wav", "none.wav")]
        (tmp_path / "web.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        for out, options in (("refused", []), ("allowed", ["--allow-private-addresses"])):
            ran = voxbatch("run", "web.jsonl", "--engine", "scripted", "-o", out, *options)
            assert ran.returncode == 3, ran.stderr
            assert "hush" not in ran.stdout + ran.stderr
    refused, allowed = Stores().out(str(tmp_path / "refused")), Stores().out(str(tmp_path / "allowed"))
    reasons = [json.loads(line)["message"] for line in refused.lines("failures.jsonl")]
    assert len(reasons) == 2
    assert all("--allow-private-addresses" in reason and "hush" not in reason for reason in reasons)
    assert [json.loads(line)["id"] for line in allowed.lines("transcripts.jsonl")] == ["a.wav"]
    assert "there is no such" in json.loads(next(allowed.lines("failures.jsonl")))["message"]
    assert b"hush" not in (allowed.read("summary.json") or b"") + (allowed.read("run.json") or b"")


def test_subtitles_beside_recordings_in_a_bucket_are_corrected(
    voxbatch: Voxbatch, recording: Recorder, place: servers.Place, tmp_path: Path
) -> None:
    """A person edits an .srt file that `--beside` wrote into a bucket: `correct OUT` takes it in, as of a folder."""
    for number in range(6):
        place.put(f"videos/{number}.wav", recording("a.wav", 2.0).read_bytes())
    run = ("run", f"{place.uri}/videos/", "-o", "out", "--beside", "--engine", "scripted")
    assert voxbatch(*run).returncode == 0
    subtitles = place.look("videos/3.srt")
    place.put("videos/3.srt", subtitles.replace(b"w1", b"one"))
    done = voxbatch("correct", "out", "--engine", "none")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "1 item corrected"), done.stderr
    assert "w0 one w2" in (tmp_path / "out" / "srt" / "3.srt").read_text().replace("\n", " ")
