"""voxbatch's vLLM engine gives the same output as stock vLLM, and a fault costs only the chunk that causes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from engine_runs import Spoken

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def found(realtime: Path, realtime_spoken: Spoken, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the result of a run with stock's model and without scores: 32 chunks of mixed lengths, streamed with many
    at a time, beside the longest chunk that fits into the context, and one that has one sample more."""
    from engine_runs import FLOAT32, streamed

    longest = np.resize(realtime_spoken.waveforms["chunk000"], 592_640)
    waveforms = {**realtime_spoken.waveforms, "longest": longest, "overlong": np.append(longest, np.float32(0))}
    options = ("ignore_eos=false", "max_num_seqs=12", "prefill_encoder=false", "confidence=false")
    return streamed(realtime, waveforms, tmp_path_factory.mktemp("stock") / "run", *FLOAT32, *options)


def test_realtime_is_equal_to_one_request_at_a_time(found: dict[str, Any], realtime_spoken: Spoken) -> None:
    """The chunks have the tokens that stock vLLM gives for each alone. Without scores, no word has a confidence.

    The model is stock's too. test_plugin.py tests our model. After the only feed of an engine its process ends at once,
    so that its memory is free when the run has written its results.
    """
    assert {name: found["tokens"][name] for name in realtime_spoken.tokens} == {
        name: [tokens] for name, tokens in realtime_spoken.tokens.items()
    }
    assert not found["logprobs"]
    assert {confidence for words in found["words"].values() for _, confidence in words} == {None}
    assert "is loading" in found["notices"][0]
    assert "up to 12 requests at a time" in found["notices"][1]
    assert found["left"] == []


def test_an_overlong_chunk_fails_alone(found: dict[str, Any], realtime_spoken: Spoken) -> None:
    """A chunk that does not fit the context is refused with both lengths, and is never cut or given to vLLM."""
    assert set(found["failures"]) == {"overlong"}
    assert "37.04 s of audio; 37.04 s fit into a context of 512" in found["failures"]["overlong"]
    assert set(found["texts"]) == {*realtime_spoken.waveforms, "longest"}
    assert len(found["tokens"]["longest"][0]) == 512 - 39 - 1


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("prefill_encoder=true", "max_num_seqs=6"),
        ("prefill_encoder=true", "max_num_seqs=6", "max_num_batched_tokens=500", "scheduler_cls=together.Watched"),
    ],
    ids=["stock", "bursts", "prompts in two steps"],
)
def test_voxtral_is_equal_to_one_request_at_a_time(
    options: tuple[str, ...], voxtral: Path, voxtral_spoken: Spoken, tmp_path: Path
) -> None:
    """Chunks of the instruct model give the same tokens too, and so with the plugin, in bursts of windows.

    This also holds if a step cannot take two prompts, so that a prompt is computed in two steps, and if a request is
    preempted and its window is encoded again. The engine cuts its texts at 448 tokens.
    """
    from engine_runs import FLOAT32, TEXT_TOKENS, streamed

    found = streamed(voxtral, voxtral_spoken.waveforms, tmp_path, *FLOAT32, "max_model_len=1024", *options)
    assert found["failures"] == {}
    assert found["tokens"] == {name: [tokens[:TEXT_TOKENS]] for name, tokens in voxtral_spoken.tokens.items()}
    assert ("encoder once a chunk" in found["notices"][1]) == bool(options)


def test_delay_through_a_linked_folder(realtime: Path, realtime_spoken: Spoken, tmp_path: Path) -> None:
    """Another delay is served from a folder of links, and the model's own folder stays unchanged.

    The same audio gives other tokens, but still one for each 80 ms.
    """
    from engine_runs import FLOAT32, streamed

    before = (realtime / "tekken.json").read_bytes()
    some = {name: each for name, each in realtime_spoken.waveforms.items() if 4 <= len(each) / 16_000 < 20}
    found = streamed(realtime, some, tmp_path, *FLOAT32, "delay_ms=2400", "ignore_eos=true")
    assert found["failures"] == {}
    for name, waveform in some.items():
        (tokens,) = found["tokens"][name]
        assert len(tokens) == -(-len(waveform) // 1_280) + 9  # positions minus the prompt minus one
        assert tokens != realtime_spoken.tokens[name]
    assert (realtime / "tekken.json").read_bytes() == before


# ── faults ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def some(realtime_spoken: Spoken) -> dict[str, np.ndarray]:
    """Return a dozen chunks of 1 to 15 s."""
    by_length = sorted(realtime_spoken.waveforms.items(), key=lambda pair: len(pair[1]))
    return dict(by_length[8:31:2])


def faulty(model: Path, waveforms: dict[str, np.ndarray], folder: Path, scheduler: str) -> tuple[dict[str, Any], int]:
    """Return the result of a run with one of faulty.py's schedulers, and the number of the engine's deaths."""
    from engine_runs import FLOAT32, streamed

    mark = folder / "deaths"
    options = (*FLOAT32, "ignore_eos=false", "max_num_seqs=8", f"scheduler_cls=faulty.{scheduler}")
    found = streamed(model, waveforms, folder, *options, environment={"VOXBATCH_TEST_MARK": str(mark)})
    return found, len(mark.read_text().splitlines())


def test_a_death_costs_nothing(
    realtime: Path, realtime_spoken: Spoken, some: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """The engine restarts after it dies, says why, and every chunk has the right text.

    After a lack of memory the next engine runs half as many requests at a time, and says so. A process that is killed
    writes no reason.
    """
    found, deaths = faulty(realtime, some, tmp_path, "Unlucky")
    assert deaths == 3
    assert found["failures"] == {}
    assert {name: tokens[-1] for name, tokens in found["tokens"].items()} == {
        name: realtime_spoken.tokens[name] for name in some
    }
    exception, memory, killed = (notice for notice in found["notices"] if "vLLM died" in notice)
    assert "scripted to fail" in exception
    assert "starting it again" in exception
    assert "out of memory" in memory
    assert "4 requests at a time" in memory
    assert "its process was killed by signal 9" in killed
    assert "up to 4 requests at a time" in found["notices"][-1]


def test_a_signal_to_the_engine_costs_nothing(
    realtime: Path, realtime_spoken: Spoken, some: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """SIGTERM to vLLM's process alone ends its requests with "abort". They are transcribed by the next engine."""
    found, deaths = faulty(realtime, some, tmp_path, "Terminated")
    assert deaths == 1
    assert found["failures"] == {}
    assert {name: tokens[-1] for name, tokens in found["tokens"].items()} == {
        name: realtime_spoken.tokens[name] for name in some
    }
    assert any("vLLM died" in notice for notice in found["notices"])


def test_a_chunk_that_kills_the_engine_fails_alone(realtime: Path, some: dict[str, np.ndarray], tmp_path: Path) -> None:
    """A chunk that kills the engine each time is found and fails, and all others have their texts."""
    some["poison"] = np.resize(next(iter(some.values())), 5 * 16_000)
    found, deaths = faulty(realtime, some, tmp_path, "Poisoned")
    assert set(found["failures"]) == {"poison"}
    assert "poisoned" in found["failures"]["poison"]
    assert set(found["texts"]) == set(some) - {"poison"}
    assert 2 <= deaths <= 4
