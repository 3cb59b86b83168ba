"""What several test modules share: recordings made on the spot, the program as a user starts it, servers of stores."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pubsub
import pytest
import servers
import soundfile
from hypothesis import HealthCheck, settings

from voxbatch.audio.ffmpeg import executable, version
from voxbatch.cli import cli
from voxbatch.storage import connect

# Machines are shared: how long an example takes says nothing.
settings.register_profile("voxbatch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("voxbatch")

# A shell starts what runs in its background deaf to Ctrl-C, and so would be all that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]

LONGEST_FIRST = (
    "test_containers", "test_engine", "test_listen", "test_whisper", "test_bucket_run", "test_plugin", "test_whole_run",
    "test_odd", "test_jobs", "test_benchmarks", "test_run", "test_audio",
)  # fmt: skip
"""Modules that take minutes: begun last, one would run alone in the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which modules are begun; that of the tests within one stays."""

    def place(item: pytest.Item) -> int:
        return LONGEST_FIRST.index(item.path.stem) if item.path.stem in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=place)


Voxbatch = Callable[..., "subprocess.CompletedProcess[str]"]
Starter = Callable[..., "subprocess.Popen[str]"]
Recorder = Callable[..., Path]
ManifestWriter = Callable[..., Path]


def environment(**extra: str) -> dict[str, str]:
    """This checkout first, none of the caller's own VOXBATCH_* settings, and no task engine that runs the tests."""
    own = ("VOXBATCH_", "CLOUD_RUN_", "SAGEMAKER_", "AWS_BATCH_", "JOB_COMPLETION", "SLURM_", "RANK")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **extra}


def understood(name: str, *arguments: str) -> None:
    """Have a command's own parser read `arguments`, below the program's context as in use; raises click's errors.

    A command keeps the help option of the first context it is in: one without a parent would leave `-h` out for good.
    """
    with cli.make_context("voxbatch", [name]) as program:
        cli.commands[name].make_context(name, list(arguments), parent=program)


@pytest.fixture
def voxbatch(tmp_path: Path) -> Voxbatch:
    """voxbatch("run", path, env={…}) → the ended process, its output as text."""

    def run(*args: object, env: dict[str, str] | None = None, **settings: Any) -> subprocess.CompletedProcess[str]:
        settings = {"cwd": tmp_path, "timeout": 240, "capture_output": True, "text": True, **settings}
        command = [sys.executable, "-m", "voxbatch", *map(str, args)]
        return subprocess.run(command, env=environment(**(env or {})), **settings)

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """start("run", path) → the running process; killed when the test is over."""
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
    """The ffmpeg that recordings are read by: the wheel's, then the system's. Gives the variables that select it."""
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
    """recording("a.wav", 2.5) → a WAV file of noise that swells and fades as syllables do."""

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
    """manifest(1.0, 2.5, None) → m.jsonl of recordings r0.wav, r1.wav, …; None is a recording that is missing."""

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
    """A file system of 1 MB."""
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
    """The folder of real recordings (speech/) and odd ones (odd/), which is no part of the project."""
    folder = Path(os.environ.get("VOXBATCH_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "speech" / "manifest.jsonl").is_file():
        pytest.skip(f"no recordings in {folder}: set VOXBATCH_TEST_DATA to a folder that has them")
    return folder


# Each server starts when the first test asks for it and serves the whole suite; each test makes buckets of its own.


@pytest.fixture(autouse=True)
def new_clients() -> Iterator[None]:
    """A client keeps the environment that it was made in; the next test has another."""
    yield
    connect.bucket.cache_clear()
    connect._web.cache_clear()


@pytest.fixture(scope="session")
def google() -> Iterator[servers.Server]:
    with servers.google_server() as server:
        yield server


@pytest.fixture(scope="session")
def letters() -> Iterator[Callable[..., pubsub.Post]]:
    """letters() → a Pub/Sub project of the test's own."""
    with pubsub.emulator() as host, pubsub.posts(host) as make:
        yield make


@pytest.fixture(scope="session")
def amazon() -> Iterator[servers.Server]:
    with servers.amazon_server() as server:
        yield server


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    with servers.seaweed_server(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(params=["google", "amazon", "seaweed"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[servers.Place]:
    with servers.placed(request.getfixturevalue(request.param), monkeypatch) as found:
        yield found
