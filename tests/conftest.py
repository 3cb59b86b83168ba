"""Shared fixtures: generated recordings, the program as a user starts it, and storage servers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pubsub
import pytest
import servers
import soundfile
import whisper_base
from hypothesis import HealthCheck, settings

from voxbatch.audio.ffmpeg import executable, version
from voxbatch.cli import cli
from voxbatch.storage import connect

# Machines are shared, so the duration of an example means nothing.
settings.register_profile("voxbatch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("voxbatch")

# A shell makes its background processes ignore Ctrl-C, and the processes started here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]

LONGEST_FIRST = (
    "test_containers", "test_engine", "test_listen", "test_whisper", "test_bucket_run", "test_plugin", "test_whole_run",
    "test_odd", "test_jobs", "test_benchmarks", "test_run", "test_audio",
)  # fmt: skip
"""Modules that take minutes. They start first, because otherwise one would run alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the modules by LONGEST_FIRST; the order of tests within a module stays."""

    def place(item: pytest.Item) -> int:
        return LONGEST_FIRST.index(item.path.stem) if item.path.stem in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=place)


Voxbatch = Callable[..., "subprocess.CompletedProcess[str]"]
Starter = Callable[..., "subprocess.Popen[str]"]
Recorder = Callable[..., Path]
ManifestWriter = Callable[..., Path]


def gone(processes: list[Any], seconds: float) -> bool:
    """Return whether all processes (psutil.Process) end within so many seconds. A zombie has ended."""
    limit = time.monotonic() + seconds
    while any(each.is_running() and each.status() != "zombie" for each in processes):
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def environment(**extra: str) -> dict[str, str]:
    """Return an environment with this checkout first on PYTHONPATH, without the caller's VOXBATCH_* settings and the
    variables of a platform that runs the tests.
    """
    own = (
        "VOXBATCH_", "CLOUD_RUN_", "CLOUD_ML_", "K_SERVICE", "BATCH_TASK", "SAGEMAKER_", "AWS_BATCH_", "KUBERNETES_",
        "JOB_COMPLETION", "SLURM_", "RANK",
    )  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **extra}


def understood(name: str, *arguments: str) -> None:
    """Parse `arguments` with a command's own parser, below the context of the program as in use.

    A command keeps the help option of its first context: a context without a parent would remove `-h` permanently.

    Raises:
        click.ClickException: the parser refuses the arguments.
    """
    with cli.make_context("voxbatch", [name]) as program:
        cli.commands[name].make_context(name, list(arguments), parent=program)


@pytest.fixture
def voxbatch(tmp_path: Path) -> Voxbatch:
    """Return a function: voxbatch("run", path, env={…}) gives the ended process with its output as text."""

    def run(*args: object, env: dict[str, str] | None = None, **settings: Any) -> subprocess.CompletedProcess[str]:
        settings = {"cwd": tmp_path, "timeout": 240, "capture_output": True, "text": True, **settings}
        command = [sys.executable, "-m", "voxbatch", *map(str, args)]
        return subprocess.run(command, env=environment(**(env or {})), **settings)

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Return a function: start("run", path) gives a running process, which is killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*args: object, env: dict[str, str] | None = None, **settings: Any) -> subprocess.Popen[str]:
        settings = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **settings}
        command = [sys.executable, "-m", "voxbatch", *map(str, args)]
        started.append(subprocess.Popen(command, env=environment(**(env or {})), **settings))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(params=["wheel", "system"])
def ffmpeg(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Select the ffmpeg that reads recordings: that of the wheel, then the system's. Yield the variables that select
    it.
    """
    chosen = "" if request.param == "wheel" else shutil.which("ffmpeg")
    if chosen is None:
        pytest.skip("there is no system ffmpeg on PATH: apt-get install ffmpeg")
    monkeypatch.setenv("VOXBATCH_FFMPEG", chosen)
    executable.cache_clear()
    version.cache_clear()
    yield {"VOXBATCH_FFMPEG": chosen}
    executable.cache_clear()
    version.cache_clear()


@pytest.fixture
def recording(tmp_path: Path) -> Recorder:
    """Return a function: recording("a.wav", 2.5) writes a WAV file of noise whose loudness varies like syllables."""

    def record(name: str, seconds: float, folder: Path = tmp_path, rate: int = 16_000) -> Path:
        count = round(seconds * rate)
        loudness = 0.1 * (1 + np.sin(np.arange(10 * rate) / rate * 25)) ** 2
        noise = np.random.default_rng(count).standard_normal(10 * rate) * loudness
        samples = np.resize(noise, count)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, np.clip(samples, -1, 1), rate, subtype="PCM_16")
        return path

    return record


@pytest.fixture
def manifest(tmp_path: Path, recording: Recorder) -> ManifestWriter:
    """Return a function: manifest(1.0, 2.5, None) writes m.jsonl with recordings r0.wav, r1.wav, …; None is a missing
    recording.
    """

    def write(*seconds: float | None, name: str = "m.jsonl", **row: Any) -> Path:
        rows = []
        for i, length in enumerate(seconds):
            if length is not None:
                recording(f"r{i}.wav", length)
            rows.append({"audio_filepath": f"r{i}.wav", **row})
        path = tmp_path / name
        path.write_text("".join(json.dumps(each) + "\n" for each in rows))
        return path

    return write


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a small disk takes root and the right to mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Return the folder of real recordings (speech/) and odd ones (odd/), which are not part of the project."""
    folder = Path(os.environ.get("VOXBATCH_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "speech" / "manifest.jsonl").is_file():
        pytest.skip(f"no recordings in {folder}: set VOXBATCH_TEST_DATA to a folder that has them")
    return folder


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder of the real multilingual Whisper base for faster-whisper."""
    folder = tmp_path_factory.mktemp("whisper-base")
    whisper_base.assemble(folder)
    yield folder
    shutil.rmtree(folder)


# Each server starts at its first use and serves the whole suite; each test makes its own buckets.


@pytest.fixture(autouse=True)
def new_clients() -> Iterator[None]:
    """Clear the cached clients after each test, because a client keeps the environment in which it was made."""
    yield
    connect.bucket.cache_clear()
    connect.web_server.cache_clear()


@pytest.fixture(scope="session")
def google() -> Iterator[servers.Server]:
    """Yield the fake Cloud Storage of the session."""
    with servers.google_server() as server:
        yield server


@pytest.fixture(scope="session")
def pubsub_projects() -> Iterator[Callable[..., pubsub.PubsubProject]]:
    """Return a function that makes a Pub/Sub project for one test."""
    with pubsub.emulator() as host, pubsub.pubsub_projects(host) as make:
        yield make


@pytest.fixture(scope="session")
def amazon() -> Iterator[servers.Server]:
    """Yield the moto S3 server of the session."""
    with servers.amazon_server() as server:
        yield server


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """Yield the SeaweedFS server of the session, which checks signatures."""
    with servers.seaweed_server(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(params=["google", "amazon", "seaweed"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[servers.Place]:
    """Yield an OUT in a new bucket on each of the three servers."""
    with servers.placed(request.getfixturevalue(request.param), monkeypatch) as found:
        yield found
