"""Shared fixtures: generated recordings, the program as a user starts it, and storage servers."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pubsub
import pytest
import servers
import skips
import soundfile
import whisper_base
from fork_server import READ_AT_START, ForkServer, read_at_start
from hypothesis import HealthCheck, settings
from waits import kill_all

from voxbatch.audio.ffmpeg import executable, version
from voxbatch.cli import cli
from voxbatch.decoding import warm_pool
from voxbatch.storage import connect

# Machines are shared, so the duration of an example means nothing.
settings.register_profile("voxbatch", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("voxbatch")

# A shell makes its background processes ignore Ctrl-C, and the processes started here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
IMPORT_PATH = f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support' / 'engines'}"
"""PYTHONPATH of a process that finds this checkout and the scripted engine, which a package of its own registers."""

DURATIONS = ROOT / "tests" / "durations.json"
"""Seconds of each test file, by its path below this folder."""
WRITE_DURATIONS = "--write-durations"
APPEND_SKIPS = "--append-skips"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option that measures, and one with which `make test` ends in one line about both of its halves."""
    parser.addoption(WRITE_DURATIONS, action="store_true", help=f"write the seconds of each file to {DURATIONS.name}")
    parser.addoption(APPEND_SKIPS, metavar="FILE", type=Path, help="append the reasons of skipped tests to a file")


SLOW_FIXTURES = {
    "fork_server", "warm_decoders", "google", "amazon", "seaweed", "place", "pubsub_projects", "base_model",
}  # fmt: skip
"""Fixtures that start a command, a server or a model."""


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests slow that start a command, a server or a model. Order the files by their durations, the longest
    and those without a figure first, because otherwise a long file would run alone at the end. The order of tests
    within a file stays.
    """
    for item in items:
        if isinstance(item, pytest.Function) and not SLOW_FIXTURES.isdisjoint(item.fixturenames):
            item.add_marker("slow")
    durations = json.loads(DURATIONS.read_text())
    items.sort(key=lambda item: -durations.get(_test_file(item.nodeid), math.inf))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the seconds of each file that is not skipped, as each half of the tests skips files of the other one."""
    if report.when != "teardown" and not report.skipped:
        _measured[_test_file(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the seconds of the files that ran, if asked, beside those of the files that did not."""
    if session.config.getoption(WRITE_DURATIONS) and not hasattr(session.config, "workerinput"):
        durations = {**json.loads(DURATIONS.read_text()), **_measured}
        longest = sorted((-round(seconds, 1), name) for name, seconds in durations.items())
        kept = {name: -seconds for seconds, name in longest if (DURATIONS.parent / name).exists()}
        DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Append the reasons of the skipped tests to a file, if asked."""
    path: Path | None = config.getoption(APPEND_SKIPS)
    if path is not None and not hasattr(config, "workerinput"):
        reports = terminalreporter.stats.get("skipped", [])
        with path.open("a") as file:
            file.write(skips.in_words(report.longrepr[2] for report in reports))


_measured: defaultdict[str, float] = defaultdict(float)


def _test_file(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")


Voxbatch = Callable[..., "subprocess.CompletedProcess[str]"]
Starter = Callable[..., "subprocess.Popen[str]"]
Recorder = Callable[..., Path]
ManifestWriter = Callable[..., Path]


def gone(processes: list[Any], seconds: float) -> bool:
    """Return whether all processes (psutil.Process) end within so many seconds. A zombie has ended."""
    limit = time.monotonic() + seconds
    while not all(map(_has_ended, processes)):
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it has just ended
        return True


_READ_AT_START = read_at_start(os.environ)


def environment(**extra: str) -> dict[str, str]:
    """Return an environment with this checkout and the scripted engine on PYTHONPATH, without the caller's VOXBATCH_*
    settings, the variables of a platform that runs the tests, and what tests and their libraries change of the
    variables that Python reads when it starts: otherwise, each later command would be a process instead of a fork.
    """
    own = (
        "VOXBATCH_", "CLOUD_RUN_", "CLOUD_ML_", "K_SERVICE", "BATCH_TASK", "SAGEMAKER_", "AWS_BATCH_", "KUBERNETES_",
        "JOB_COMPLETION", "SLURM_", "RANK",
    )  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if not name.startswith((*own, *READ_AT_START))}
    return {**kept, **_READ_AT_START, "PYTHONPATH": IMPORT_PATH, "COLUMNS": "200", **extra}


def understood(name: str, *arguments: str) -> None:
    """Parse `arguments` with a command's own parser, below the context of the program as in use.

    A command keeps the help option of its first context: a context without a parent would remove `-h` permanently.

    Raises:
        click.ClickException: the parser refuses the arguments.
    """
    with cli.make_context("voxbatch", [name]) as program:
        cli.commands[name].make_context(name, list(arguments), parent=program)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Yield the process that has imported the command and runs it in forks."""
    server = ForkServer(environment())
    yield server
    server.close()


@pytest.fixture
def voxbatch(tmp_path: Path, fork_server: ForkServer) -> Voxbatch:
    """Return a function: voxbatch("run", path, env={…}) gives the ended process with its output as text.

    The process is a fork of the session's server, unless the test sets more of it than its variables, its folder and
    its time limit, or a variable that Python reads when it starts.
    """

    def run(*args: object, env: dict[str, str] | None = None, **settings: Any) -> subprocess.CompletedProcess[str]:
        settings = {"cwd": tmp_path, "timeout": 240, **settings}
        variables = environment(**(env or {}))
        if settings.keys() == {"cwd", "timeout"} and fork_server.can_run(variables):
            return fork_server.run(list(map(str, args)), variables, **settings)
        command = [sys.executable, "-m", "voxbatch", *map(str, args)]
        return subprocess.run(command, env=variables, **{"capture_output": True, "text": True, **settings})

    return run


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path, fork_server: ForkServer) -> Iterator[Starter]:
    """Return a function: start("run", path) gives a running process, which is killed at the end of the test. It is a
    fork as with `voxbatch`, unless the test sets more of it than its variables. Its own child processes are forks if
    the test is marked so; others may look for these processes.
    """
    started: list[subprocess.Popen[str]] = []
    forks_children = request.node.get_closest_marker("forks_children") is not None

    def begin(*args: object, env: dict[str, str] | None = None, **settings: Any) -> subprocess.Popen[str]:
        variables, arguments, pipe = environment(**(env or {})), list(map(str, args)), subprocess.PIPE
        if not settings and fork_server.can_run(variables):
            started.append(fork_server.start(arguments, variables, tmp_path, pipe, pipe, forks_children))
        else:
            settings = {"cwd": tmp_path, "stdout": pipe, "stderr": pipe, "text": True, **settings}
            started.append(subprocess.Popen([sys.executable, "-m", "voxbatch", *arguments], env=variables, **settings))
        return started[-1]

    yield begin
    kill_all(started)


@pytest.fixture(scope="module")
def warm_decoders() -> Iterator[None]:
    """Keep the decoders of runs in this process until the end of the module: each takes half a CPU second to start."""
    warm_pool.open()
    yield
    warm_pool.close()


@pytest.fixture(params=["wheel", pytest.param("system", marks=pytest.mark.long)])
def ffmpeg(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Select the ffmpeg that reads recordings: that of the wheel, and with the long tests the system's, too. Yield the
    variables that select it.
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
def speaker_networks() -> Path:
    """Return the folder of the networks that tell speakers apart; `make speakers` writes it."""
    folder = Path(os.environ.get("VOXBATCH_SPEAKER_MODEL", ROOT / "build" / "speakers"))
    if not (folder / "embedding.onnx").is_file():
        pytest.skip(f"no networks in {folder}: `make speakers` writes them; they need PyTorch and PyPI")
    return folder


@pytest.fixture(scope="session")
def amazon() -> Iterator[servers.Server]:
    """Yield the moto S3 server of the session."""
    with servers.amazon_server() as server:
        yield server


@pytest.fixture(scope="session")
def deployment_server() -> Iterator[servers.AmazonServer]:
    """Yield a second moto server, so that that of the stores keeps no resources of a deployment."""
    with servers.amazon_server() as server:
        yield server


@pytest.fixture
def moto(deployment_server: servers.AmazonServer) -> str:
    """Return the address of a moto server without resources."""
    address = f"http://127.0.0.1:{deployment_server.port}"
    with urllib.request.urlopen(urllib.request.Request(f"{address}/moto-api/reset", method="POST")):
        return address


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """Yield the SeaweedFS server of the session, which checks signatures."""
    with servers.seaweed_server(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(params=servers.mainly("google", "amazon", "seaweed"))
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[servers.Place]:
    """Yield an OUT in a new bucket."""
    with servers.placed(request.getfixturevalue(request.param), monkeypatch) as found:
        yield found
