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

TEXT_TOKENS = 448
"""Maximum number of tokens that the engine asks of an instruct model."""


def test_realtime_is_equal_to_one_request_at_a_time(realtime: Path, realtime_spoken: Spoken, tmp_path: Path) -> None:
    """40 chunks of mixed lengths, streamed with many at a time, give the tokens that stock vLLM gives for each alone.

    The model is stock's too. test_plugin.py tests our model.
    """
    from engine_runs import FLOAT32, streamed

    assert len(realtime_spoken.waveforms) >= 40
    assert len({token for tokens in realtime_spoken.tokens.values() for token in tokens}) >= 50
    options = ("ignore_eos=false", "max_num_seqs=12", "prefill_encoder=false")
    found = streamed(realtime, realtime_spoken.waveforms, tmp_path, *FLOAT32, *options)
    assert found["failures"] == {}
    assert found["tokens"] == {name: [tokens] for name, tokens in realtime_spoken.tokens.items()}
    assert set(found["texts"]) == set(realtime_spoken.waveforms)
    assert "is loading" in found["notices"][0]
    assert "up to 12 requests at a time" in found["notices"][1]


def test_voxtral_is_equal_to_one_request_at_a_time(voxtral: Path, voxtral_spoken: Spoken, tmp_path: Path) -> None:
    """Chunks of the instruct model give the same tokens too. The engine cuts its texts at 448 tokens."""
    from engine_runs import FLOAT32, streamed

    found = streamed(voxtral, voxtral_spoken.waveforms, tmp_path, *FLOAT32, "max_model_len=1024")
    assert found["failures"] == {}
    expected = {name: [tokens[:TEXT_TOKENS]] for name, tokens in voxtral_spoken.tokens.items()}
    assert found["tokens"] == expected


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


def test_the_engine_ends_with_its_last_feed(realtime: Path, realtime_spoken: Spoken, tmp_path: Path) -> None:
    """After the only feed of an engine its process ends at once, so that its memory is free when the run has written
    its results."""
    from engine_runs import FLOAT32, streamed

    name, waveform = min(realtime_spoken.waveforms.items(), key=lambda pair: len(pair[1]))
    found = streamed(realtime, {name: waveform}, tmp_path, *FLOAT32, "max_num_seqs=4", program="last_feed.py")
    assert found == {"texts": 1, "left": []}


# ── faults ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def some(realtime_spoken: Spoken) -> dict[str, np.ndarray]:
    """Return a dozen chunks of 1 to 15 s."""
    by_length = sorted(realtime_spoken.waveforms.items(), key=lambda pair: len(pair[1]))
    return dict(by_length[10:34:2])


def faulty(model: Path, waveforms: dict[str, np.ndarray], folder: Path, scheduler: str) -> tuple[dict[str, Any], int]:
    """Return the result of a run with one of faulty.py's schedulers, and the number of the engine's deaths."""
    from engine_runs import FLOAT32, streamed

    mark = folder / "deaths"
    options = (*FLOAT32, "ignore_eos=false", "max_num_seqs=8", f"scheduler_cls=faulty.{scheduler}")
    found = streamed(model, waveforms, folder, *options, VOXBATCH_TEST_MARK=str(mark))
    return found, len(mark.read_text().splitlines())


def test_a_death_costs_nothing(
    realtime: Path, realtime_spoken: Spoken, some: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """The engine restarts after it dies, says why, and every chunk has the right text.

    After a lack of memory the next engine runs half as many requests at a time, and says so.
    """
    found, deaths = faulty(realtime, some, tmp_path, "Unlucky")
    assert deaths == 2
    assert found["failures"] == {}
    assert {name: tokens[-1] for name, tokens in found["tokens"].items()} == {
        name: realtime_spoken.tokens[name] for name in some
    }
    exception, memory = (notice for notice in found["notices"] if "died" in notice or "out of memory" in notice)
    assert "scripted to fail" in exception
    assert "starting it again" in exception
    assert "out of memory" in memory
    assert "4 requests at a time" in memory
    assert "up to 4 requests at a time" in found["notices"][-1]


def test_a_chunk_that_kills_the_engine_fails_alone(realtime: Path, some: dict[str, np.ndarray], tmp_path: Path) -> None:
    """A chunk that kills the engine each time is found and fails, and all others have their texts."""
    some["poison"] = np.resize(next(iter(some.values())), 5 * 16_000)
    found, deaths = faulty(realtime, some, tmp_path, "Poisoned")
    assert set(found["failures"]) == {"poison"}
    assert "poisoned" in found["failures"]["poison"]
    assert set(found["texts"]) == set(some) - {"poison"}
    assert 2 <= deaths <= 4


def test_an_overlong_chunk_fails_alone(realtime: Path, some: dict[str, np.ndarray], tmp_path: Path) -> None:
    """A chunk that does not fit the context is refused with both lengths, and is never cut or given to vLLM."""
    from engine_runs import FLOAT32, streamed

    limit = 592_640
    some |= {"longest": np.resize(some["chunk000"] if "chunk000" in some else next(iter(some.values())), limit)}
    some |= {"overlong": np.append(some["longest"], np.float32(0))}
    found = streamed(realtime, some, tmp_path, *FLOAT32, "ignore_eos=true")
    assert set(found["failures"]) == {"overlong"}
    assert "37.04 s of audio; 37.04 s fit into a context of 512" in found["failures"]["overlong"]
    assert set(found["texts"]) == set(some) - {"overlong"}
    assert len(found["tokens"]["longest"][0]) == 512 - 39 - 1
