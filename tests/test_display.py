"""Tests for the display: correct progress figures, and an outcome with the first texts, the quality and the places of
the outputs.
"""

from __future__ import annotations

import io
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch import display
from voxbatch.cli.session import retry_command
from voxbatch.latency import LatencyPercentiles, Percentiles
from voxbatch.log import Log
from voxbatch.output.failure_reasons import FailureReasons, read_reasons
from voxbatch.output.run_file import EngineFacts, RunFacts
from voxbatch.output.summary import Summary
from voxbatch.runner import Progress
from voxbatch.scoring import CorpusScore, ErrorCounts
from voxbatch.storage import open_store

SUMMARY = Summary(
    items=1234,
    done=1200,
    failed=34,
    completion_rate=1200 / 1234,
    failures_by_error={"AudioError": 30, "LanguageError": 4},
    with_warnings=2,
    audio_s=7200.0,
    wall_s=75.4,
    process_s=75.4,
    rtfx=95.49,
    latency=None,
    peak_gpu_bytes=None,
    usd=None,
    score=None,
    facts=RunFacts(EngineFacts("e", "m", "MIT", "o", {}, {}), "0.1.0", "3.11.2", {}, "Linux", 1, {}),
)


def progress(**fields: Any) -> Progress:
    """Return a Progress that started ten seconds ago."""
    made = Progress(fields.pop("items", 10), started_at=time.monotonic() - 10)
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


def test_remaining_time_by_audio() -> None:
    """With all durations known, the remaining time goes by audio: 100 of 400 s took 10 s, so 30 s are left."""
    shown = display.progress_line(progress(done=1, failed=1, resumed=3, audio_s=100.0, known_audio_s=400.0))
    assert shown == "1:40 / 6:40 audio · 5 / 10 items (1 failed) · RTFx 10.0 · 30.0 s left"


def test_total_is_estimated_from_headers_and_finished_items() -> None:
    """Items without a duration count with the mean of the headers of others, or else of the finished items."""
    p = progress(done=2, resumed=3, audio_s=100.0, unknown=7, measured=2, measured_s=100.0)
    assert p.total_audio_s == 100.0 + 5 * 50.0
    p.sample = {5: 30.0, 8: 50.0}
    assert p.total_audio_s == 100.0 + 5 * 40.0
    assert display.progress_line(p) == "1:40 / about 5:00 audio · 5 / 10 items · RTFx 10.0 · 20.0 s left"
    p.done, p.measured, p.audio_s, p.measured_s = 7, 7, 250.0, 250.0
    assert display.progress_line(p).startswith("4:10 / 4:10 audio · 10 / 10 items"), "the total is measured at the end"


def test_nothing_is_estimated_from_nothing() -> None:
    """There is no total and no remaining time before a header was read or an item finished."""
    shown = display.progress_line(progress(resumed=3, unknown=7))
    assert shown == "0.0 s audio · 3 / 10 items · RTFx 0.0"


def test_time_of_loading_does_not_count_for_the_remaining_time() -> None:
    """An engine that took its first chunk 2 s ago and has done 100 of 400 s needs 6 s more."""
    p = progress(done=1, audio_s=100.0, known_audio_s=400.0, engine_started_at=time.monotonic() - 2)
    assert display.progress_line(p).endswith("RTFx 10.0 · 6.0 s left")


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


def test_remaining_time_is_never_negative() -> None:
    """The remaining time is never negative, even if the durations are wrong."""
    assert progress(done=1, audio_s=500.0, known_audio_s=400.0).remaining_s == 0.0


def test_progress_events_are_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first event comes soon, and further events at most once in EVENT_S, not for each chunk."""
    lines: list[str] = []
    monkeypatch.setattr(display, "EVENT_S", 0.05)
    with display.progress_events(Log(as_json=True, write=lines.append)) as observe:
        until = time.monotonic() + 0.18
        while time.monotonic() < until:
            observe(progress(done=2, failed=1, resumed=3, audio_s=100.0))
    assert 1 <= len(lines) <= 3
    event = json.loads(lines[0])
    assert (event["message"], event["items"], event["done"], event["failed"]) == ("progress", 10, 5, 1)


def test_live_progress_shows_escaped_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, the sequences of the progress line itself work, and those in the values of a log line do not."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    log = Log()
    with display.live_progress(log) as observe:
        log.info("part_committed", part="evil\x1b[2J\n")
        time.sleep(display.REFRESH_S)
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
    lines = list(display.outcome_lines(SUMMARY, heads, [("transcripts", "out/t"), ("srt", "out/srt/")]))
    assert lines == [
        "a: " + "x" * 99 + "…",
        "b: (no speech)",
        "… and 1,198 more",
        "",
        "1,200 done + 34 failed = 1,234 items (30 AudioError, 4 LanguageError), 2 with warnings",
        "2:00:00 of audio in 1:15, RTFx 95.5",
        "engine e, model m (MIT; o)",
        "transcripts  out/t",
        "srt          out/srt/",
    ]


def test_outcome_shows_latency_and_memory() -> None:
    """Percentiles are shown if chunks were measured, and the peak memory if there was a GPU, on one line."""
    chunk = Percentiles(count=500, p50_s=2.641, p90_s=6.26, p95_s=7.73)
    measured = replace(SUMMARY, latency=LatencyPercentiles(chunk, chunk), peak_gpu_bytes=14_500_000_000)
    latency, memory = "latency of a chunk: P50 2.64 s, P90 6.26 s, P95 7.73 s", "peak GPU memory 14.5 GB"
    places = [("transcripts", "out/t")]
    assert f"{latency}; {memory}" in list(display.outcome_lines(measured, [], places))
    assert latency in list(display.outcome_lines(replace(measured, peak_gpu_bytes=None), [], places))
    nothing = Percentiles(count=0, p50_s=None, p90_s=None, p95_s=None)
    not_measured = replace(measured, latency=LatencyPercentiles(nothing, nothing))
    assert memory in list(display.outcome_lines(not_measured, [], places))


def test_outcome_shows_error_rates_by_unit() -> None:
    """WER and CER are shown with their counts, and items without a transcript are counted."""
    score = CorpusScore()
    score.add("en", ErrorCounts(1, 2, 3, 1000))
    score.add_missing("ja", "あいう")
    lines = list(display.outcome_lines(replace(SUMMARY, score=score), [], []))
    assert "WER 0.60% (1 substitutions, 2 insertions, 3 deletions over 1,000 words)" in lines
    assert "CER 100.00% (0 substitutions, 0 insertions, 3 deletions over 3 characters; 1 without a transcript)" in lines
    assert lines[-1] == "engine e, model m (MIT; o)", "no place is shown if none can be read"


def test_the_reasons_of_failures(tmp_path: Path) -> None:
    """The last line of a run with failures counts the reasons, at most three, and gives the command that retries."""
    messages = [
        ("AudioError", "cannot open /404/a.wav: No such file or directory", False),
        ("AudioError", "cannot open /404/b.wav: No such file or directory", False),
        ("AudioError", "cannot decode /not found/c.wav: Error opening file: Format not recognised.", False),
        ("AudioError", "cannot open d.wav: Permission denied", False),
        ("TranscriptionError", "0.00 to 3.00 s: scripted to fail", True),
    ]
    rows = [{"error": error, "message": text, "retryable": retry} for error, text, retry in messages]
    (tmp_path / "failures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    reasons = read_reasons(open_store(str(tmp_path)))
    some = replace(SUMMARY, failed=5)
    assert list(display.outcome_lines(some, [], [], reasons, "voxbatch run day"))[-1] == (
        "5 failed: 2 no such file, 1 damaged or not audio, 1 access denied, 1 for other reasons; retry with: "
        "voxbatch run day --retry-failed"
    )
    certain = FailureReasons(reasons.counts[:1], 0)
    assert list(display.outcome_lines(replace(SUMMARY, failed=2), [], [], certain, "voxbatch run day"))[-1] == (
        "2 failed: 2 no such file; mend them, and retry with: voxbatch run day --retry-failed all"
    )
    assert list(display.outcome_lines(replace(SUMMARY, failed=2), [], [], certain))[-1] == "2 failed: 2 no such file"
    assert not any("retry" in line for line in display.outcome_lines(replace(SUMMARY, failed=0), [], [], certain, "x"))


def test_the_command_that_retries() -> None:
    """The command is that of the run, quoted for a shell, without the options that exclude a retry."""
    assert retry_command(["x", "run", "my talks", "--overwrite", "-q"]) == "voxbatch run 'my talks' -q"
    assert retry_command(["x", "run", "--retry-failed", "all", "all"]) == "voxbatch run all"
    assert retry_command(["x", "run", "--retry-failed", "day"]) == "voxbatch run day"
    assert retry_command(["x", "run", "day", "--retry-failed=all"]) == "voxbatch run day"
    assert retry_command(["x", "merge", "out"]) == ""
    for secret in ("https://host/m.jsonl?sig=ab12", "http://me:hush@host/", "--s3-endpoint-url=http://me:hush@host"):
        assert retry_command(["x", "run", "m.jsonl", secret]) == "voxbatch run …"
