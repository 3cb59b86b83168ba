"""Shared parts of the vLLM engine's tests: tiny checkpoints, and stock vLLM's output for them.

A test module of tests/engine_vllm uses the fixtures with `pytest_plugins = ["engine_runs"]`. This module is no
conftest.py, because tests/*.py import from their own conftest by that name, and would find this one when both folders
are named on one command line.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from waits import kill_all
from warm_python import call, python, start

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


FLOAT32 = ("dtype=float32", "enforce_eager=true", "max_num_batched_tokens=2048", "delay_ms=0", "watch=false")
"""Options with which two ways of running a model give the same tokens."""


PATIENCE_S = 560
"""Timeout of a process that loads vLLM once, or an engine several times: ten times the duration on an idle machine."""
TEXT_TOKENS = 448
"""Maximum number of tokens that the engine asks of an instruct model."""
LEFT_PAD = 32 * 1_280
"""Samples of silence that the chunks of a Realtime begin with."""
TOLERANCE = 1e-4
"""Difference of log-probabilities and entropies in float32, between batches of other sizes and other formulas."""


class Spoken(NamedTuple):
    """Waveforms, and the tokens that stock vLLM generates from them, by the chunk's name."""

    waveforms: dict[str, np.ndarray]
    tokens: dict[str, list[int]]


class Scored(NamedTuple):
    """Waveforms, and stock vLLM's output for them with scores: see generate.transcribe."""

    waveforms: dict[str, np.ndarray]
    output: dict[str, Any]

    def check(self, found: dict[str, Any]) -> None:
        """Check that tokens, log-probabilities and entropies of an engine equal those of stock vLLM."""
        assert found["failures"] == {}
        assert found["tokens"] == {name: [tokens] for name, tokens in self.output["tokens"].items()}
        for name in self.waveforms:
            for scores in ("logprobs", "entropies"):
                np.testing.assert_allclose(found[scores][name][0], self.output[scores][name], atol=TOLERANCE, rtol=0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of the modules that use this plugin if vLLM is not installed, and say so."""
    if find_spec("vllm"):
        return
    for item in items:
        if "engine_runs" in getattr(getattr(item, "module", None), "pytest_plugins", ()):
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed"))


@pytest.fixture(scope="session")
def realtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Voxtral Realtime (delay 480 ms), in Mistral's format and in transformers'."""
    from checkpoints import write_realtime

    return once(tmp_path_factory, "realtime", lambda folder: write_realtime(folder, hf=True))


@pytest.fixture(scope="session")
def voxtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Voxtral of the instruct kind, in Mistral's format."""
    from checkpoints import write_voxtral

    return once(tmp_path_factory, "voxtral", write_voxtral)


@pytest.fixture(scope="session")
def realtime_spoken(realtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    """Return 31 chunks of 0.3 to 15 s and one of 36 s, with the output of the tiny Realtime in stock vLLM, one at a
    time: pads, marks of words and many kinds of text, to the end of each chunk."""
    from sounds import babble, chunks

    waveforms = {**chunks(31, 0.3, 15.0), "long": babble(36.0, 31)}
    spoken = _spoken(tmp_path_factory, realtime, _on_16_bits(waveforms))
    counts = Counter(token for tokens in spoken.tokens.values() for token in tokens)
    text = {token: count for token, count in counts.items() if token >= 1_000}
    assert set(counts) == {32, 33, *text}
    assert min(counts[32], counts[33], sum(text.values())) > 0.05 * counts.total()
    assert len(text) > 100
    for name, waveform in spoken.waveforms.items():
        assert len(spoken.tokens[name]) == -(-len(waveform) // 1_280) + 32 + 6 + 11 - 39 - 1
    return spoken


@pytest.fixture(scope="session")
def voxtral_spoken(voxtral: Path, tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    """Return ten chunks, each within one window of 30 s, with the output of the tiny instruct model in stock vLLM: many
    kinds of text, and mostly an end."""
    from sounds import chunks

    spoken = _spoken(tmp_path_factory, voxtral, _on_16_bits(chunks(10, shortest=1.0, longest=30.0)))
    texts = list(spoken.tokens.values())
    assert len({token for tokens in texts for token in tokens if token >= 1_000}) > 100
    assert len({tuple(tokens) for tokens in texts}) == len(texts)
    assert sum(tokens[-1] == 2 for tokens in texts) > len(texts) / 2
    return spoken


@pytest.fixture(scope="session")
def realtime_scored(realtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Scored:
    """Return four chunks of 0.5 to 4 s, with the scored output of the tiny Realtime."""
    from sounds import chunks

    return _scored(tmp_path_factory, realtime, _on_16_bits(chunks(4, 0.5, 4.0)))


@pytest.fixture(scope="session")
def voxtral_scored(voxtral: Path, voxtral_spoken: Spoken, tmp_path_factory: pytest.TempPathFactory) -> Scored:
    """Return two chunks with the scored output of the tiny instruct model."""
    return _scored(tmp_path_factory, voxtral, dict([*voxtral_spoken.waveforms.items()][:2]))


def _scored(factory: pytest.TempPathFactory, model: Path, waveforms: dict[str, np.ndarray]) -> Scored:
    return Scored(waveforms, _reference(factory, f"{model.name}_scored", "generate.transcribe", model, waveforms, True))


@pytest.fixture(scope="session")
def beginnings(realtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    """Return padded audio of 0.4 to 12 s: most with the usual silence, some with broken silence or none; and stock
    vLLM's tokens for it, one request at a time."""
    import generate
    from sounds import babble

    pad = generate.tokenizer(realtime).audio_encoder.pad
    seconds = (3.0, 0.4, 12.0, 5.5, 1.0, 8.0, 2.0, 4.0, 7.1, 2.5, 3.3, 6.0)
    audio = {f"{name}": pad(babble(length, name), 16_000) for name, length in enumerate(seconds)}
    for name in ("0", "4", "9"):
        audio[f"noise {name}"] = audio[name].copy()
        audio[f"noise {name}"][:LEFT_PAD] = babble(LEFT_PAD / 16_000, 99)[:LEFT_PAD]
    for name, place in (("2", 0), ("6", LEFT_PAD - 1)):
        audio[f"click {name}"] = audio[name].copy()
        audio[f"click {name}"][place] = 0.9
    return Spoken(audio, _reference(tmp_path_factory, "beginnings", "generate.generate", realtime, audio))


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` filled. It is filled once for all test processes, by the first one that asks for
    it."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, finished = base / name, base / f"{name}.finished"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder


def _spoken(factory: pytest.TempPathFactory, model: Path, waveforms: dict[str, np.ndarray]) -> Spoken:
    found = _reference(factory, f"{model.name}_spoken", "generate.transcribe", model, waveforms)
    return Spoken(waveforms, found["tokens"])


def _reference(factory: pytest.TempPathFactory, name: str, function: str, *arguments: object) -> Any:
    """Return what a function of stock vLLM returns. It is called once for all test processes."""

    def save(folder: Path) -> None:
        (folder / "result").write_bytes(pickle.dumps(with_stock(folder, function, *arguments)))

    return pickle.loads((once(factory, name, save) / "result").read_bytes())


def _on_16_bits(waveforms: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Round the samples to 16 bits, as the official way to a prompt does. Ours does not round, so both get the same
    samples."""
    return {name: (np.rint(each * 32_767) / 32_768).astype(np.float32) for name, each in waveforms.items()}


def with_stock(folder: Path, function: str, *arguments: object) -> Any:
    """Return what a function of this folder returns, in a process that does not find voxbatch and its plugin."""
    from generate import ENVIRONMENT

    return call(function, *arguments, folder=folder, environment={**ENVIRONMENT, "PYTHONPATH": str(HERE)})


def in_process(folder: Path, function: str, *arguments: object) -> Any:
    """Return what a function of this folder returns, with vLLM's engine and the plugin in its own process."""
    from generate import ENVIRONMENT

    from voxbatch.vllm.plugin import SWITCH

    return call(function, *arguments, folder=folder, environment={**ENVIRONMENT, **with_plugin(folder), SWITCH: "1"})


def command(folder: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command voxbatch in a folder, with further environment variables, and return it when it has ended."""
    from conftest import environment
    from stream import ENVIRONMENT

    return python("-m", "voxbatch", *arguments, folder=folder, environment=environment(**{**ENVIRONMENT, **variables}))


@pytest.fixture
def start_fork(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function: start_fork("run", path) gives the command voxbatch in a fork, as `command` runs it to its end.
    It is killed at the end of the test."""
    from conftest import environment
    from stream import ENVIRONMENT

    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: object) -> subprocess.Popen[str]:
        started.append(start("-m", "voxbatch", *arguments, folder=tmp_path, environment=environment(**ENVIRONMENT)))
        return started[-1]

    yield begin
    kill_all(started)


def with_plugin(folder: Path) -> dict[str, str]:
    """Return the environment of a process that finds this folder's modules, voxbatch and its plugin."""
    return {"PYTHONPATH": f"{ROOT}:{HERE}:{installed(folder)}", **caches(folder)}


def caches(folder: Path) -> dict[str, str]:
    """Return environment variables that put voxbatch's cache into the folder, and leave vLLM's cache in its usual
    place.

    vLLM keeps facts about a model's class there, which it otherwise finds by a process of its own.
    """
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {"XDG_CACHE_HOME": str(folder), "VLLM_CACHE_ROOT": str(usual / "vllm")}


def installed(folder: Path) -> Path:
    """Return a folder for the path in which voxbatch's entry points are installed, as pyproject.toml defines them.

    The tests' environment holds vLLM but not voxbatch, which is imported from the checkout.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / "site" / f"{project['name']}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    groups = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items())
              for group, points in project["entry-points"].items()]  # fmt: skip
    (info / "entry_points.txt").write_text("\n".join(groups))
    return info.parent


def with_engine(
    folder: Path, function: str, *arguments: Any, options: Sequence[str], environment: Mapping[str, str] | None = None
) -> Any:
    """Return what a function of this folder returns for an engine of voxbatch with options, NAME=VALUE each."""
    from stream import ENVIRONMENT

    given = dict(option.split("=", 1) for option in options)
    variables = {**ENVIRONMENT, **with_plugin(folder), **(environment or {})}
    return call(function, *arguments, given, folder=folder, environment=variables)


def streamed(
    model: Path,
    waveforms: dict[str, np.ndarray],
    folder: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the result of stream.py: voxbatch's engine with all chunks at once."""
    found: dict[str, Any] = with_engine(
        folder, "stream.transcribe", model, waveforms, options=options, environment=environment
    )
    return found
