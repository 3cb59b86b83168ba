"""Tests for the clock of a file's audio: gaps in the timestamps are found, and joins and changed rates are none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from voxbatch.audio.timeline import Timeline

RATE = 48_000
FRAME = 1024


def gaps(timestamps: Sequence[int], *, has_timestamps: bool = True, length: int = FRAME) -> list[int]:
    """Return the silence before each packet of one length."""
    timeline = Timeline(RATE, has_timestamps)
    pairs = zip(timestamps, [*timestamps[1:], None], strict=True)
    return [timeline.add(timestamp, length, later) for timestamp, later in pairs]


@pytest.mark.parametrize(
    ("timestamps", "wanted"),
    [
        pytest.param([0, 1024, 2048], [0, 0, 0], id="no gap"),
        pytest.param([96_000, 97_024], [96_000, 0], id="audio starts 2 s after the video"),
        pytest.param([-512, 512], [-512, 0], id="audio starts before the video"),
        pytest.param([0, 49_024, 50_048], [0, 48_000, 0], id="a gap of one second"),
        pytest.param([0, 1024 + 4_000], [0, 0], id="a rounded timestamp"),
        pytest.param([0, 3_024, 5_048, 8_572], [0, 0, 0, 5_500], id="many small gaps add up"),
        pytest.param([*range(0, 8 * 512, 512), 8 * 1024], [0] * 9, id="counted with packets of half their length"),
        pytest.param([*range(0, 100 * 2048, 2048)], [0] * 100, id="counted with packets of twice their length"),
        pytest.param([480_000, 0, 1024, 2048], [480_000, 0, 0, 0], id="a joined file begins at 0 again"),
        pytest.param(
            [0, 200_000, 200_001, 200_002, 3_072], [0] * 5, id="one wrong timestamp, and ffmpeg's corrections"
        ),
        pytest.param([0, 1024 + 3_601 * RATE, 2048 + 3_601 * RATE], [0, 0, 0], id="a jump of more than an hour"),
    ],
)
def test_gaps_become_silence_and_joins_do_not(timestamps: list[int], wanted: list[int]) -> None:
    """Gaps of 0.1 s to an hour become silence. Timestamps that go backwards, or jump further, do not."""
    assert gaps(timestamps) == wanted


def test_estimated_timestamps_of_another_rate_are_no_gaps() -> None:
    """After a change from 8 to 48 kHz, ffmpeg counts frames of 21 ms as 128 ms. No silence comes between them; lost
    frames of 0.5 s are silence."""
    counted = round(RATE * 1024 / 8_000)
    assert not any(gaps([number * counted for number in range(100)], has_timestamps=False))
    assert gaps([0, 1024, 26_048, 27_072], has_timestamps=False) == [0, 0, 24_000, 0]
