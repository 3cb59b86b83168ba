"""Tests for the display: correct progress figures, and an outcome with the first texts, the quality and the places of
the outputs.
"""

from __future__ import annotations

import io
import json
import math
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import voxbatch.runner.progress
from voxbatch import display
from voxbatch.cli import columns, live_progress, outcome
from voxbatch.cli.advice import failure_lines, language_line
from voxbatch.log import Log
from voxbatch.output.latency import Histogram, LatencyPercentiles, Percentiles
from voxbatch.output.run_file import EngineFacts, RunFacts
from voxbatch.output.summary import Summary
from voxbatch.output.totals import FlagCounts
from voxbatch.records import Windows
from voxbatch.runner import Progress
from voxbatch.scoring.corpus import CorpusScore
from voxbatch.scoring.counts import ErrorCounts

SUMMARY = Summary(
    items=1234,
    done=1200,
    failed=34,
    completion_rate=1200 / 1234,
    failures_by_error={"AudioError": 30, "LanguageError": 4},
    failures_by_kind={"not_found": 30, "language": 4},
    with_warnings=2,
    flags=FlagCounts(),
    audio_s=7200.0,
    wall_s=75.4,
    process_s=75.4,
    rtfx=95.49,
    latency=LatencyPercentiles(Histogram().percentiles(), Histogram().percentiles()),
    peak_gpu_bytes=None,
    usd=None,
    score=None,
    facts=RunFacts(EngineFacts("e", "m", "MIT", "o", {}, {}), "0.1.0", "3.11.2", "Linux", 1, {}, {}),
    run="0123456789abcdef",
    generation="",
    list=1,
)


NOW = 1000.0


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of the progress, so that a busy machine changes no figure that is shown."""
    monkeypatch.setattr(voxbatch.runner.progress, "time", SimpleNamespace(monotonic=lambda: NOW))


def progress(**fields: Any) -> Progress:
    """Return a Progress that started ten seconds ago."""
    made = Progress(fields.pop("items", 10), started_at=NOW - 10)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0.0 s"), (59.96, "1:00"), (75.4, "1:15"), (3675, "1:01:15")])
def test_format_duration(seconds: float, shown: str) -> None:
    """Durations are shown in the usual forms."""
    assert display.format_duration(seconds) == shown


@given(st.floats(60, 1e7))
def test_format_duration_is_correct_to_the_second(seconds: float) -> None:
    """The shown duration is correct to the nearest second."""
    total = 0
    for part in display.format_duration(seconds).split(":"):
        total = total * 60 + int(part)
    assert abs(total - seconds) <= 0.5


def test_a_command_in_a_column_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, a text is wrapped beside its label, but no command, which would not work in two lines."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    text = "for the engine that a run takes where there is a GPU: pip install 'voxbatch[vllm]' --upgrade-strategy eager"
    assert columns.aligned("missing  vllm  ", text).splitlines() == [
        "missing  vllm  for the engine that a run takes where there",
        "               is a GPU:",
        "               pip install 'voxbatch[vllm]' --upgrade-strategy eager",
    ]


def test_remaining_time_by_audio() -> None:
    """With all durations known, the remaining time goes by audio: 100 of 400 s took 10 s, so 30 s are left."""
    shown = display.progress_line(progress(done=1, failed=1, resumed=3, audio_s=100.0, known_audio_s=400.0))
    assert shown == "1:40 / 6:40 audio · 5 / 10 items (1 failed) · RTFx 10.0 · 30.0 s left"


def test_total_is_estimated_from_headers_and_finished_items() -> None:
    """Items without a duration count with the mean of the headers of others, or else of the finished items."""
    p = progress(done=2, resumed=3, audio_s=100.0, unknown=7, measured=2, measured_s=100.0)
    assert p.total_audio_s == 100.0 + 5 * 50.0
    p.sample = {5: 30.0, 8: 50.0, 9: None}
    assert p.total_audio_s == 100.0 + 80.0 + 3 * (80.0 + 100.0) / 4, "the mean is that of all that are known"
    assert display.progress_line(p) == "1:40 / about 5:15 audio · 5 / 10 items · RTFx 10.0 · 21.5 s left"
    p.sizes, p.sized_s, p.sized_bytes = {9: 4_000}, 100.0, 10_000
    assert p.total_audio_s == 100.0 + 80.0 + 40.0 + 2 * (120.0 + 100.0) / 5, "one by its bytes"
    p.sizes = {}
    p.done, p.measured, p.audio_s, p.measured_s = 7, 7, 250.0, 250.0
    assert display.progress_line(p).startswith("4:10 / 4:10 audio · 10 / 10 items"), "the total is measured at the end"


def test_nothing_is_estimated_from_nothing() -> None:
    """There is no total and no remaining time before a header was read or an item finished."""
    shown = display.progress_line(progress(resumed=3, unknown=7))
    assert shown == "0.0 s audio · 3 / 10 items · RTFx 0.0"


def test_time_of_loading_does_not_count_for_the_remaining_time() -> None:
    """An engine that took its first chunk 2 s ago and has done 100 of 400 s needs 6 s more."""
    p = progress(done=1, audio_s=100.0, known_audio_s=400.0, engine_started_at=NOW - 2)
    assert display.progress_line(p).endswith("RTFx 10.0 · 6.0 s left")


@pytest.mark.parametrize("threads", [1, 2])
def test_the_wait_for_the_next_result_is_no_slowness(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread gives a result of 100 s each 10 s, the first one after 30 s, and all of them together. The speed of a
    thread is 10 from the second result on, also between two results, until the next one is late."""
    now = 0.0
    monkeypatch.setattr(voxbatch.runner.progress, "time", SimpleNamespace(monotonic=lambda: now))
    p, left = Progress(100, started_at=0.0, known_audio_s=10_000.0 * threads), dict[float, float | None]()
    for now in (30.0, 40.0, 50.0, 59.0, 80.0):
        for _ in range(threads if now in (30.0, 40.0, 50.0) else 0):
            p.audio_s += 100.0
            p.add_point()
        left[now] = p.remaining_s
    assert left == {30.0: None, 40.0: 980.0, 50.0: 970.0, 59.0: 970.0, 80.0: 9_700.0 / (200.0 / 40.0)}


RANDOM = random.Random(1)
MIXES = {
    # seconds of each recording in the order of the list, and whether the list gives them
    "short clips": ([RANDOM.uniform(0.3, 1.5) for _ in range(4000)], False),
    "long talks": ([RANDOM.uniform(1200, 5400) for _ in range(40)], True),
    "videos": ([RANDOM.lognormvariate(5, 1) for _ in range(400)], False),
    "videos without headers": ([RANDOM.lognormvariate(5, 1) for _ in range(200)], False),
    "clips, then talks": ([*(1.0 for _ in range(3000)), *(1800.0 for _ in range(20))], True),
    "talks, then clips": ([*(1800.0 for _ in range(20)), *(1.0 for _ in range(3000))], True),
    "damaged ones": ([RANDOM.uniform(5, 60) for _ in range(2000)], True),
}


@pytest.mark.parametrize("resumed", [0, 500])
@pytest.mark.parametrize("mix", MIXES)
def test_after_a_twentieth_of_a_run_the_end_is_known_to_a_fifth(
    mix: str, resumed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each window of 30 s takes as long as 10 s of audio besides its own audio, the first result comes late, and a
    tenth of the damaged ones fails at once: from 5 % of the time on, the remaining time is right to 20 %."""
    seconds, is_known = MIXES[mix]
    now = 100.0
    monkeypatch.setattr(voxbatch.runner.progress, "time", SimpleNamespace(monotonic=lambda: now))
    p = Progress(len(seconds) + resumed, resumed=resumed, started_at=80.0, engine_started_at=100.0)
    p.windows = Windows(30.0, 30.0, 10.0)
    if is_known:
        p.known_audio_s, p.known_fixed_s = sum(seconds), sum(map(p.fixed_of, seconds))
    else:
        p.unknown = len(seconds)
        p.sample = {i: seconds[i] for i in range(0, len(seconds), -(-len(seconds) // 200))}
    if mix == "videos without headers":
        bit_rates = random.Random(1)
        p.sizes = {i: round(seconds[i] * bit_rates.uniform(1e5, 3e5)) for i in p.sample}
        p.sample = dict.fromkeys(p.sample)
    shown = []
    now += 3.0
    for i, duration in enumerate(seconds):
        fails = mix == "damaged ones" and i % 10 == 0
        if not is_known:
            p.expect(i, duration)
        for at in () if fails else range(0, math.ceil(duration), 30):
            part = min(30.0, duration - at)
            now += (part + 10) / 25
            p.audio_s, p.fixed_s = p.audio_s + part, p.fixed_s + p.fixed_of(part)
            p.add_point()
            shown.append((now, p.remaining_s))
        p.done += not fails
        p.failed += fails
        if not is_known:
            p.measure(i, duration)
        elif fails:
            p.failed_s += duration + p.fixed_of(duration)
    length_s = now - 80.0
    for shown_at, remaining_s in shown:
        if 0.05 * length_s <= shown_at - 80.0 < length_s:
            assert remaining_s is not None
            assert abs(shown_at + remaining_s - now) <= 0.2 * length_s, (mix, shown_at, remaining_s)
    assert len(p.points) <= 80


@pytest.mark.parametrize("at_a_time", [2, 8])
@pytest.mark.parametrize("seed", range(5))
def test_few_results_at_the_beginning_promise_the_end_to_a_fifth(
    at_a_time: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recordings of the same length, some of which take twice as long as others, are done side by side, and the first
    ones a second later: after 5 % of them the promised end is right to 20 %."""
    now, chance = 0.0, random.Random(seed)
    monkeypatch.setattr(voxbatch.runner.progress, "time", SimpleNamespace(monotonic=lambda: now))
    items = 40 * at_a_time
    p = Progress(items, started_at=0.0, engine_started_at=0.0, concurrency=at_a_time, known_audio_s=30.0 * items)
    free_at, ends = [1.0] * at_a_time, list[float]()
    for _ in range(items):
        worker = free_at.index(min(free_at))
        free_at[worker] += chance.uniform(2.0, 4.0)
        ends.append(free_at[worker])
    for now in sorted(ends):
        p.audio_s, p.done = p.audio_s + 30.0, p.done + 1
        p.add_point()
        if p.fraction >= 0.05:
            assert p.remaining_s is not None
            assert abs(now + p.remaining_s - max(ends)) <= 0.2 * max(ends), (p.done, p.remaining_s)


def test_bar_of_a_resumed_run_begins_with_the_items_that_are_done() -> None:
    """The bar shows the whole run: 900 of 1,000 items done before, and half of the audio that is left."""
    assert progress(items=1000, resumed=900, audio_s=50.0, known_audio_s=100.0).fraction == 0.95
    assert progress(items=1000, resumed=1000).fraction == 1.0


def test_cost_is_shown_if_the_price_is_known() -> None:
    """With a price, the cost so far and the expected cost are shown: 10 s of 40 s at 360 dollars an hour."""
    p = progress(done=1, audio_s=100.0, known_audio_s=400.0)
    assert display.progress_line(p, 360.0).endswith("30.0 s left · $1.00 of about $4.00")
    assert "$" not in display.progress_line(p)


def test_progress_says_what_it_waits_for() -> None:
    """A run that does not proceed says what it waits for."""
    shown = display.progress_line(progress(waiting="the model is loading"))
    assert shown == "0.0 s audio · 0 / 10 items · RTFx 0.0 · waiting: the model is loading"


def test_no_time_is_left_only_at_the_end() -> None:
    """With more done than the durations told, no time is shown as long as items are open, and none is left after."""
    assert progress(done=1, audio_s=500.0, known_audio_s=400.0).remaining_s is None
    assert progress(done=10, audio_s=500.0, known_audio_s=400.0).remaining_s == 0.0


@pytest.mark.parametrize(("concurrency", "remaining_s"), [(1, 2_376.0), (4, 594.0), (1000, 23.76)])
def test_the_first_result_gives_an_estimate(
    concurrency: int, remaining_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first 100 of 10,000 s, the chunks beside it are as far; there are no more of them than audio. A fifth
    of the time until then was the engine's alone."""
    monkeypatch.setattr(voxbatch.runner.progress, "time", SimpleNamespace(monotonic=lambda: 30.0))
    p = Progress(100, started_at=0.0, engine_started_at=0.0, known_audio_s=10_000.0, concurrency=concurrency)
    p.audio_s = 100.0
    p.add_point()
    assert p.remaining_s == pytest.approx(remaining_s)


def test_progress_events_are_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first event comes soon, and further events at most once in EVENT_S, not for each chunk."""
    lines: list[str] = []
    now = 0.0
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: now))
    with display.progress_events(Log(as_json=True, write=lines.append)) as observe:
        for _ in range(35):  # for 3.5 EVENT_S
            now += display.EVENT_S / 10
            observe(progress(done=2, failed=1, resumed=3, audio_s=100.0))
    assert len(lines) == 3
    event = json.loads(lines[0])
    assert (event["message"], event["items"], event["done"], event["failed"]) == ("progress", 10, 5, 1)


def test_live_progress_shows_escaped_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, the sequences of the progress line itself work, and those in the values of a log line do not."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    log = Log()
    with live_progress.live_progress(log) as observe:
        log.info("part_committed", part="evil\x1b[2J\n")
        time.sleep(live_progress.REFRESH_S)
        observe(progress(done=2))
    shown = terminal.getvalue()
    assert r"part committed: part=evil\x1b[2J\n" in shown
    assert "\x1b[2K" in shown
    assert "\x1b[2J" not in shown


def test_outcome_shows_texts_counts_speed_and_places() -> None:
    """The outcome shows shortened first texts, counts by cause that add up, audio, speed, model with licence, and
    aligned places.
    """
    heads = [("a", "x" * 200), ("b", "")]
    lines = list(outcome.outcome_lines(SUMMARY, heads, [("transcripts", "out/t"), ("srt", "out/srt/")]))
    assert lines == [
        "a: " + "x" * 99 + "…",
        "b: (no speech)",
        "… and 1,198 more",
        "",
        "1,200 done + 34 failed = 1,234 items (30 not found, 4 wrong language), 2 with warnings",
        "2:00:00 of audio in 1:15, RTFx 95.5",
        "engine e, model m (MIT)",
        "transcripts  out/t",
        "srt          out/srt/",
    ]


def test_outcome_shows_latency_and_memory() -> None:
    """With --verbose, percentiles are shown if chunks were measured, the peak memory if there was a GPU, and the origin
    of the model.
    """
    chunk = Percentiles(count=500, p50_s=2.641, p90_s=6.26, p95_s=7.73)
    measured = replace(SUMMARY, latency=LatencyPercentiles(chunk, chunk), peak_gpu_bytes=14_500_000_000)
    latency, memory = "latency of a chunk: P50 2.64 s, P90 6.26 s, P95 7.73 s", "peak GPU memory 14.5 GB"
    places = [("transcripts", "out/t")]
    assert f"{latency}; {memory}" in list(outcome.outcome_lines(measured, [], places, verbose=True))
    assert latency in list(outcome.outcome_lines(replace(measured, peak_gpu_bytes=None), [], places, verbose=True))
    nothing = Percentiles(count=0, p50_s=None, p90_s=None, p95_s=None)
    not_measured = replace(measured, latency=LatencyPercentiles(nothing, nothing))
    assert "engine e, model m (MIT; o)" in list(outcome.outcome_lines(SUMMARY, [], places, verbose=True))
    assert memory in list(outcome.outcome_lines(not_measured, [], places, verbose=True))


def test_outcome_shows_error_rates_by_unit() -> None:
    """WER and CER are shown with their counts, and items without a transcript are counted."""
    score = CorpusScore()
    score.add("en", ErrorCounts(1, 2, 3, 1000))
    score.add_missing("ja", "あいう")
    lines = list(outcome.outcome_lines(replace(SUMMARY, score=score), [], []))
    assert "WER 0.60% (1 substitutions, 2 insertions, 3 deletions over 1,000 words)" in lines
    assert "CER 100.00% (0 substitutions, 0 insertions, 3 deletions over 3 characters; 1 without a transcript)" in lines
    assert lines[-1] == "engine e, model m (MIT)", "no place is shown if none can be read"


def test_flagged_texts_of_the_smallest_model_need_a_better_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After flagged texts, tiny.en is named once, with the command that takes the best model of this machine."""
    monkeypatch.chdir(tmp_path)
    engine = replace(SUMMARY.facts.engine, name="faster-whisper", model="tiny.en")
    facts = replace(SUMMARY.facts, engine=engine, config={**SUMMARY.facts.config, "language": "en"})
    flagged = replace(SUMMARY, facts=facts, flags=replace(SUMMARY.flags, items=2))
    line = language_line(flagged, ["x", "run", "talk.mp3", "--model", "tiny.en"], "talk.voxbatch")
    assert line.startswith("better than tiny.en: ")
    assert line.endswith("voxbatch run talk.mp3 --quality best -o talk-other.voxbatch")
    for option in ("--beside", "--mux", "--burn"):  # another OUT would not replace the files beside the recordings
        line = language_line(flagged, ["x", "run", "v/", "-o", "out", option], "out")
        assert line.endswith(f"voxbatch run v/ -o out {option} --quality best --overwrite")
        # --overwrite is refused after a correction, and transcribes forgotten items again
        corrected = replace(flagged, of_kind={"corrections": {"items": 1}})
        forgotten = replace(flagged, failures_by_kind={"forgotten": 1})
        for summary in (corrected, forgotten):
            line = language_line(summary, ["x", "run", "v/", "-o", "out", option], "out")
            assert line.endswith(f"voxbatch run v/ {option} --quality best -o out-other")
    assert language_line(replace(flagged, flags=SUMMARY.flags), ["x", "run", "talk.mp3"], "talk.voxbatch") == ""


def test_a_wrong_language_needs_another_model() -> None:
    """Language failures advise another model with another OUT, because a retry would fail again."""
    facts = RunFacts(EngineFacts("faster-whisper", "tiny.en", "", "", {}, {}), "", "", "", 1, {}, {})
    summary = replace(SUMMARY, failed=2, failures_by_kind={"language": 2}, facts=facts)
    lines = list(failure_lines(summary, [], ["x", "run", "calls.jsonl", "-o", "out"], "out"))
    assert lines == [
        "2 wrong language: take a model that knows the language",
        "  then: voxbatch run calls.jsonl --quality best -o out-other",
    ]


def test_doubtful_texts_of_an_english_model_name_another_one() -> None:
    """The line says how many items, why, and a full command with another OUT, because this one holds the present texts.
    A run in English, or with other flags, has no such line.
    """
    facts = RunFacts(EngineFacts("faster-whisper", "tiny.en", "", "", {}, {}), "", "", "", 1, {}, {})
    doubtful = replace(SUMMARY, items=8, flags=FlagCounts(5, {"other_language": 4, "low_confidence": 1}), facts=facts)
    argv = ["x", "run", "lucas.wav"]
    command = "voxbatch run lucas.wav --quality best -o lucas-other.voxbatch"
    line = f"4 of 8 items are probably not in English, and model tiny.en knows nothing else: {command}"
    assert language_line(doubtful, argv, "lucas.voxbatch") == line
    english = replace(doubtful, facts=replace(facts, config={"language": "en"}))
    unsure = replace(doubtful, flags=FlagCounts(1, {"low_confidence": 1}))
    assert not any("English" in language_line(run, argv, "out") for run in (english, unsure))
