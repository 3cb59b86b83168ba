"""The tiny checkpoints load in stock vLLM, and their output varies enough to show a wrong input."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from engine_runs import Spoken

pytest_plugins = ["engine_runs"]
pytestmark = pytest.mark.timeout(600)


def test_a_checkpoint_is_the_same_each_time(tmp_path: Path) -> None:
    """A checkpoint that is written twice is equal byte for byte, and two delays differ in tekken.json alone."""
    from checkpoints import write_realtime

    for name, delay_ms in {"first": 480, "again": 480, "later": 2_400}.items():
        write_realtime(tmp_path / name, delay_ms=delay_ms)
    first, again, later = (_contents(tmp_path / name) for name in ("first", "again", "later"))
    assert first == again
    assert {name for name in first if first[name] != later[name]} == {"tekken.json"}


@pytest.mark.slow
def test_realtime_is_varied(realtime_spoken: Spoken) -> None:
    """The tiny Realtime often gives pads, word marks and many kinds of text, and continues to the end of a chunk."""
    counts = Counter(token for tokens in realtime_spoken.tokens.values() for token in tokens)
    said = counts.total()
    text = {token: count for token, count in counts.items() if token >= 1_000}
    assert set(counts) == {32, 33, *text}
    assert min(counts[32], counts[33], sum(text.values())) > 0.05 * said
    assert len(text) > 100
    for name, waveform in realtime_spoken.waveforms.items():
        positions = -(-len(waveform) // 1_280) + 32 + 6 + 11
        assert len(realtime_spoken.tokens[name]) == positions - 39 - 1


@pytest.mark.slow
def test_voxtral_is_varied(voxtral_spoken: Spoken) -> None:
    """The tiny instruct model gives many kinds of text, a different text for each chunk, and usually ends by itself."""
    spoken = list(voxtral_spoken.tokens.values())
    assert len({token for tokens in spoken for token in tokens if token >= 1_000}) > 100
    assert len({tuple(tokens) for tokens in spoken}) == len(spoken)
    assert sum(tokens[-1] == 2 for tokens in spoken) > len(spoken) / 2


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
