"""Tests for the report: its page in a real browser, hostile texts, the items it shows, and how a merge writes it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import servers
import soundfile
from browser import CHROMIUM, Browser, browser
from conftest import Voxbatch, environment
from hypothesis import given
from hypothesis import strategies as st
from outputs import RUN, owned, problems
from web_server import served_folder

from voxbatch.analysis.report import write_report
from voxbatch.audio.ffmpeg import executable
from voxbatch.cli import cli
from voxbatch.cli.options import parsed_run_options
from voxbatch.cli.run_command import run
from voxbatch.config import Config
from voxbatch.formats import DEFAULT_LIMITS
from voxbatch.log import Log
from voxbatch.output import merge
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.merge_again import merge_again
from voxbatch.output.parts import PartEntry
from voxbatch.output.report import RunReport
from voxbatch.output.stored_json import json_bytes
from voxbatch.report import charts
from voxbatch.report.cells import align_written, encode
from voxbatch.report.errors import ConfusionRow, Confusions
from voxbatch.report.page import MAX_BYTES, command_of
from voxbatch.report.selection import MAX_ITEMS
from voxbatch.scoring.counts import count_errors
from voxbatch.storage import Store, Stores

AXE = "axe-core@4.14.1"
"""Checker of accessibility, from npm."""
SECONDS = 3.0
REFERENCES = {"good": "w0 w1 w2 w3 w4 w5", "bad": "w0 x1 w2 gone w3 w4", "none": None}
"""References of the recordings. The scripted engine writes w0 to w5 for each of them, one word each half second."""


def write_manifest(folder: Path) -> None:
    """Write recordings of SECONDS with names that an address must encode, and a manifest with one that is missing."""
    rows: list[dict[str, Any]] = []
    for name, text in REFERENCES.items():
        time = np.arange(round(16_000 * SECONDS)) / 16_000
        noise = np.random.default_rng(0).standard_normal(len(time)) * 0.1 * (1 + np.sin(25 * time)) ** 2  # like speech
        soundfile.write(folder / f"{name} #1.wav", noise, 16_000)
        rows.append({"id": name, "audio_filepath": f"{name} #1.wav", "lang": "fr", "speaker": "Ada"})
        if text:
            rows[-1]["text"] = text
    rows.append({"id": "lost", "audio_filepath": "lost.wav", "lang": "de", "speaker": "Bob", "text": "eins zwei"})
    (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the OUT of a real run, with the report that the run wrote."""
    folder = tmp_path_factory.mktemp("report")
    write_manifest(folder)
    command = [sys.executable, "-m", "voxbatch", "run", "m.jsonl", "-o", "out", "--engine", "scripted", "--exit-zero"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert f"report       {Path('out', 'report.html')}" in done.stdout
    return folder / "out"


@pytest.fixture(scope="module")
def shown() -> Iterator[Browser]:
    """Yield a browser for all tests of the module."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with browser() as started:
        yield started


def opened(shown: Browser, path: Path | str, **settings: Any) -> Browser:
    """Open a report and wait for its table."""
    shown.complaints.clear()
    shown.requests.clear()
    shown.open(path, **settings)
    shown.wait("!!document.querySelector('.rows tbody')")
    return shown


def open_item(shown: Browser, item: str) -> None:
    """Open the row of an item by its button."""
    shown.evaluate(f"[...document.querySelectorAll('.open')].find((b) => b.textContent === {json.dumps(item)}).focus()")
    shown.press("Enter")
    shown.wait("!!document.activeElement.closest('tr').nextSibling.querySelector('.player, .facts')")


def ids(shown: Browser) -> list[str]:
    found: list[str] = shown.evaluate("[...document.querySelectorAll('.rows .open')].map((each) => each.textContent)")
    return found


# ── in a browser ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_report_of_a_run_opens_without_errors_and_loads_nothing(shown: Browser, out: Path) -> None:
    """The page shows the figures of the run; the console stays empty, and the only request is that of the page."""
    opened(shown, out / "report.html")
    text = shown.evaluate("document.body.innerText")
    # 3 errors in 12 words of French, and the 2 words of the recording that is missing
    assert "35.71%" in text
    assert "5 errors in 14 words:" in text
    assert "not found" in text
    assert ids(shown)[0] in ("bad", "lost")
    assert shown.complaints == []
    assert [each for each in shown.requests if not each.startswith("data:")] == [(out / "report.html").as_uri()]


@pytest.mark.slow
def test_the_table_is_sorted_filtered_and_searched(shown: Browser, out: Path) -> None:
    """Columns sort in both directions, also by keyboard; the filter and the search leave the items that match."""
    opened(shown, out / "report.html")
    shown.click(".rows thead button")
    assert ids(shown) == ["bad", "good", "lost", "none"]
    shown.press("Enter")  # the focus stays on the column
    assert ids(shown) == ["none", "lost", "good", "bad"]
    assert shown.evaluate("document.querySelector('.rows th').getAttribute('aria-sort')") == "descending"
    shown.evaluate("document.getElementById('search').focus()")
    shown.type("GONE")  # a word of a reference
    assert ids(shown) == ["bad"]
    assert shown.evaluate("document.getElementById('count').textContent") == "1 item"
    shown.evaluate("const s = document.getElementById('search'); s.value = ''; s.dispatchEvent(new Event('input'))")
    shown.evaluate(
        "const f = document.getElementById('filter'); f.value = 'failed'; f.dispatchEvent(new Event('change'))"
    )
    assert ids(shown) == ["lost"]


@pytest.mark.slow
def test_an_item_shows_its_errors_by_marks_and_not_by_colour_alone(shown: Browser, out: Path) -> None:
    """The opened item has the substituted, the deleted and the inserted word, each with its letter."""
    opened(shown, out / "report.html")
    open_item(shown, "bad")
    cells = shown.evaluate("[...document.querySelectorAll('.text .cell')].map((cell) => cell.innerText.split(/\\s+/))")
    assert cells == [["x1", "w1", "S"], ["gone", "D"], ["w5", "I"]]
    beside = shown.evaluate("document.querySelector('.part:not(.head) .reference').textContent")
    assert beside == "w0 x1 w2 gone w3 w4"
    assert shown.evaluate("document.querySelector('.part .time').textContent") == "0:00"
    lines = "getComputedStyle(document.querySelector('.text .cell.{} {}')).textDecorationLine"
    assert [shown.evaluate(lines.format(*each)) for each in (("s", "ins .w"), ("d", "del"), ("i", "ins .w"))] == [
        "underline", "line-through", "underline",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_word_plays_from_its_start(shown: Browser, out: Path) -> None:
    """A click on a word, and Enter on a word that the arrow keys have reached, play the recording from there."""
    opened(shown, out / "report.html")
    open_item(shown, "good")
    shown.click(".text .w:nth-of-type(3)")
    shown.wait("document.querySelector('audio').readyState > 1")
    assert 1.0 <= shown.evaluate("document.querySelector('audio').currentTime") <= SECONDS
    assert shown.evaluate("document.querySelector('audio').duration") == pytest.approx(SECONDS, abs=0.01)
    shown.evaluate("document.querySelector('audio').pause()")
    shown.press("ArrowRight")
    shown.press("ArrowRight")
    assert shown.evaluate("document.activeElement.textContent") == "w4"
    shown.press("Home")
    shown.press("ArrowRight")
    shown.evaluate("window.at = []")
    shown.evaluate("document.querySelector('audio').addEventListener('seeked', (e) => at.push(e.target.currentTime))")
    shown.press("Enter")
    assert shown.wait("window.at.length && window.at[0]") == pytest.approx(0.5, abs=0.2)
    assert shown.complaints == []


@pytest.mark.slow
def test_a_report_that_moved_with_its_recordings_still_plays(shown: Browser, out: Path, tmp_path: Path) -> None:
    """If the recording is no longer at its absolute path, it is found at the same place relative to the page."""
    moved = tmp_path / "moved"
    (moved / "out").mkdir(parents=True)
    (moved / "out" / "report.html").write_bytes((out / "report.html").read_bytes())
    hidden = out.parent / "good #1.wav"
    (moved / "good #1.wav").write_bytes(hidden.read_bytes())
    hidden.rename(tmp_path / "away.wav")
    try:
        opened(shown, moved / "out" / "report.html")
        open_item(shown, "good")
        shown.click(".text .w")
        shown.wait("document.querySelector('audio').duration > 2")
    finally:
        (tmp_path / "away.wav").rename(hidden)


@pytest.fixture
def waves(tmp_path: Path) -> Path:
    """Return a folder with the report of one recording, of which only the middle one of three words is loud."""
    (tmp_path / "calls").mkdir()
    samples = np.full(3 * 16_000, 0.01)
    samples[17_000:31_000] = 0.5
    soundfile.write(tmp_path / "calls" / "a.wav", samples, 16_000)
    line = json.loads(hostile(0, "word").line)
    timed = [{"word": word, "start": at, "end": at + 0.9} for at, word in enumerate(("low", "loud", "end"))]
    place = str(tmp_path / "calls" / "a.wav")
    line |= {"id": "a", "audio_filepath": place, "pred_text": "low loud end", "words": timed, "audio_duration": 3.0}
    store = store_with(tmp_path / "out", [PartEntry(0, "transcript", json_bytes(line))])
    write_report(store, str(tmp_path / "out" / "report.html"))
    return tmp_path


WAVE_HEIGHTS = "[...document.querySelectorAll('.text .w .wave path')].map((wave) => wave.getBBox().height)"


@pytest.mark.slow
def test_a_report_on_a_server_shows_the_waveform_over_the_words(shown: Browser, waves: Path) -> None:
    """Each word stands below its own sound. Only the opened recording is fetched."""
    with served_folder(waves) as (url, _):
        opened(shown, f"{url}/out/report.html")
        open_item(shown, "a")
        shown.wait("!!document.querySelector('.text.drawn')")
    low, loud, end = shown.evaluate(WAVE_HEIGHTS)
    assert low == end == pytest.approx(0.06, abs=0.02)
    assert loud == pytest.approx(2.0, abs=0.02)
    assert shown.evaluate("document.querySelector('input[type=file]')") is None
    assert shown.complaints == []


@pytest.mark.slow
def test_a_report_in_a_file_shows_the_waveform_of_a_chosen_folder(shown: Browser, waves: Path) -> None:
    """No browser lets a file read other files, so the reader chooses the folder of the recordings, once."""
    opened(shown, waves / "out" / "report.html")
    open_item(shown, "a")
    shown.choose("input[type=file]", waves / "calls")
    shown.wait("!!document.querySelector('.text.drawn')")
    assert shown.evaluate(WAVE_HEIGHTS)[1] == pytest.approx(2.0, abs=0.02)
    assert shown.complaints == []


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the script of axe-core."""
    folder = tmp_path_factory.mktemp("axe")
    command = ["npm", "pack", "--silent", "--ignore-scripts", AXE]
    try:
        packed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=True)
    except (OSError, subprocess.SubprocessError) as e:
        pytest.skip(f"npm does not fetch {AXE}: {e}")
    with tarfile.open(folder / packed.stdout.split()[-1]) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script
        return script.read().decode()


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_accessibility(shown: Browser, out: Path, axe: str, dark: bool, width: int) -> None:
    """axe-core finds no serious and no critical fault, with opened items and the legend, in light and dark."""
    opened(shown, out / "report.html", dark=dark, width=width)
    open_item(shown, "bad")
    open_item(shown, "lost")
    shown.evaluate("document.querySelector('.legend').open = true")
    shown.evaluate(axe)
    found = shown.evaluate(
        "axe.run().then((found) => found.violations.map((each) => [each.impact, each.id, each.nodes[0].html]))"
    )
    assert [each for each in found if each[0] in ("serious", "critical")] == []
    assert shown.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "left_out"), [(360, ["Language", "Duration", "Errors"]), (800, ["Language", "Duration"]), (1400, [])]
)
def test_the_names_of_items_have_room(shown: Browser, out: Path, width: int, left_out: list[str]) -> None:
    """On a small screen, the table leaves columns out, so that the names have a quarter of it. The page is not wider
    than the screen."""
    opened(shown, out / "report.html", width=width)
    columns = "[...document.querySelectorAll('.rows thead th')].filter((e) => !e.offsetWidth).map((e) => e.textContent)"
    assert shown.evaluate(columns) == left_out
    name = "document.querySelector('.rows tbody th')"
    assert shown.evaluate(f"{name}.offsetWidth / {name}.closest('table').offsetWidth") >= 0.25
    assert shown.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_the_report_prints_and_is_readable_without_javascript(shown: Browser, out: Path) -> None:
    """The page can be printed. Without JavaScript, the figures, the groups and the charts are there."""
    opened(shown, out / "report.html")
    assert shown.pdf().startswith(b"%PDF-")
    shown.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        shown.open(out / "report.html")
        text = shown.evaluate("document.body.innerText")
    finally:
        shown.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "35.71%" in text
    assert "needs JavaScript" in text
    assert "WER by duration" in text


# ── hostile texts ─────────────────────────────────────────────────────────────────────────────────────────────────────

MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(1)>'\"`${alert(1)}{{7*7}}<!--]]>"
ODD = "\u202egnp.exe\u2066 \x00 \x1b[2J \ud800 \u2028 \u2029"


def hostile(index: int, text: str) -> PartEntry:
    """Return a transcript whose every field holds a text."""
    line: dict[str, Any] = {
        "id": f"{index} {text}", "audio_filepath": f"/{text}", "text": f"{text} a", "lang": "en", "speaker": text,
        "pred_text": f"{text} b",
        "words": [{"word": text, "start": 0.0, "end": 0.5, "confidence": 0.4, "speaker": text}],
        "segments": [], "audio_duration": 1.5, "confidence": 0.4, "warnings": [text],
        "flags": [{"kind": text, "reason": text, "start": 0.5, "end": None}], "substitutions": 1, "insertions": 0,
        "deletions": 0, "reference_length": 2,
    }  # fmt: skip
    return PartEntry(index, "transcript", json_bytes(line))


def failed(index: int, text: str) -> PartEntry:
    line = {"id": f"{index} {text}", "audio_filepath": text, "lang": "en", "line": 1, "text": text, "error": text}
    return PartEntry(index, "failure", json_bytes({**line, "error_kind": text, "message": text, "retryable": False}))


def store_with(folder: Path, entries: list[PartEntry]) -> Store:
    """Return an OUT with these entries in one part."""
    store = Stores().out(str(folder))
    Checkpoint(store, owned(store, items=len(entries))).commit(entries, 2.0)
    return store


@pytest.mark.slow
def test_a_hostile_manifest_stays_text(shown: Browser, tmp_path: Path) -> None:
    """Markup, scripts, control characters and a text of 1 MB in every field are shown as text: nothing runs, no element
    appears, and no request leaves the page."""
    entries = [hostile(0, MARKUP), hostile(1, ODD), hostile(2, MARKUP * 10_000), failed(3, MARKUP), failed(4, ODD)]
    store = store_with(tmp_path / "<img src=x onerror=alert(1)>", entries)
    place = tmp_path / "report.html"
    write_report(store, str(place), ("speaker", MARKUP))
    assert place.stat().st_size < 400_000
    opened(shown, place)
    assert len(ids(shown)) == 5
    for button in range(5):
        shown.evaluate(f"document.querySelectorAll('.open')[{button}].click()")
    assert shown.evaluate("document.querySelectorAll('img, iframe, object, embed, link, base, form').length") == 0
    assert shown.evaluate("document.querySelectorAll('script').length") == 2
    shown.evaluate("document.getElementById('search').focus()")
    shown.type("onerror=alert(1)")
    assert len(ids(shown)) == 3
    assert [each for each in shown.complaints if "ERR_FILE_NOT_FOUND" not in each] == []
    assert {each for each in shown.requests if not each.startswith(("data:", "file:"))} == set()


@pytest.mark.slow
@pytest.mark.parametrize("audio", ["gs://calls/a.wav", "https://host/a.wav?X-Amz-Signature=secret", "s3://calls/a.wav"])
def test_recordings_that_no_browser_may_reach(shown: Browser, tmp_path: Path, audio: str) -> None:
    """A recording in a bucket, or at an address with a signature, has no player but a reason; no secret is in it."""
    entry = hostile(0, "word")
    line = {**json.loads(entry.line), "audio_filepath": audio, "id": "r"}
    store = store_with(tmp_path / "out", [PartEntry(0, "transcript", json_bytes(line))])
    write_report(store, str(tmp_path / "report.html"))
    opened(shown, tmp_path / "report.html")
    open_item(shown, "r")
    player = shown.evaluate("document.querySelector('.player').innerText")
    assert "cannot" in player
    assert "secret" not in shown.evaluate("document.documentElement.outerHTML") + player


@pytest.mark.slow
def test_a_video_shows_its_picture(shown: Browser, tmp_path: Path) -> None:
    """The player of a video shows the video itself, so that the page holds no picture."""
    picture = ["-f", "lavfi", "-i", "testsrc=s=64x48:r=5:d=2", "-f", "lavfi", "-i", "sine=d=2"]
    subprocess.run([executable(), "-v", "error", *picture, tmp_path / "talk.webm"], check=True)
    line = json.loads(hostile(0, "word").line) | {"id": "a", "audio_filepath": str(tmp_path / "talk.webm")}
    write_report(store_with(tmp_path / "out", [PartEntry(0, "transcript", json_bytes(line))]), str(tmp_path / "r.html"))
    opened(shown, tmp_path / "r.html")
    open_item(shown, "a")
    shown.wait("!!document.querySelector('video.picture')")
    assert shown.evaluate("document.querySelector('video').videoWidth") == 64
    assert shown.evaluate("document.querySelector('video').clientHeight") > 100
    assert shown.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_a_long_text_has_parts_with_times_and_its_reference_beside_them(
    shown: Browser, tmp_path: Path, width: int
) -> None:
    """A part ends with a sentence. Its reference is beside it on a phone, too."""
    texts = [*["so"] * 9, "long.", "The", "U.S.", "is", "here."]
    timed = [{"word": word, "start": 2.0 * at, "end": 2.0 * at + 1} for at, word in enumerate(texts)]
    reference = f"{'so ' * 9}long. The U.S. is there."
    text = f"{'so ' * 9}long. The U.S. is here."
    line = json.loads(hostile(0, "word").line) | {"id": "a", "words": timed, "text": reference, "pred_text": text}
    line |= {"substitutions": 1, "reference_length": 14, "lang": "en"}
    write_report(store_with(tmp_path / "out", [PartEntry(0, "transcript", json_bytes(line))]), str(tmp_path / "r.html"))
    opened(shown, tmp_path / "r.html", width=width)
    open_item(shown, "a")
    parts = "[...document.querySelectorAll('.part:not(.head)')].map((part) => [...part.children].map((e) => {})).at(-1)"
    time, found, beside = shown.evaluate(parts.format("e.textContent"))
    assert (time, beside) == ("0:20", "The U.S. is there.")
    assert "U.S. is" in found
    boxes = shown.evaluate(parts.format("e.getBoundingClientRect().toJSON()"))
    assert boxes[1]["right"] <= boxes[2]["left"] < boxes[2]["right"] <= width


@pytest.mark.slow
@pytest.mark.parametrize(("words", "text"), [(("U", ".S.", "is"), "U.S. is"), (("他", "说", "hello"), "他说 hello")])
def test_a_text_is_joined_as_it_was_written(shown: Browser, tmp_path: Path, words: tuple[str, ...], text: str) -> None:
    """The text says where spaces are, also in an OUT whose words are divided."""
    timed = [{"word": word, "start": at, "end": at + 1} for at, word in enumerate(words)]
    line = {**json.loads(hostile(0, "word").line), "id": "a", "words": timed, "text": None, "pred_text": text}
    write_report(store_with(tmp_path / "out", [PartEntry(0, "transcript", json_bytes(line))]), str(tmp_path / "r.html"))
    opened(shown, tmp_path / "r.html")
    open_item(shown, "a")
    assert shown.evaluate("document.querySelector('.found').textContent") == text


@pytest.mark.slow
def test_each_speaker_has_a_colour_and_a_shape(shown: Browser, tmp_path: Path) -> None:
    """The label of a speaker stands before each turn, also before a word that is marked as wrong."""
    line = json.loads(hostile(0, "word").line)
    words = [("hi", "Ann"), ("you", "Ann"), ("b", "Bo"), ("c", "Ann")]
    timed = [{"word": word, "start": at, "end": at + 1, "speaker": name} for at, (word, name) in enumerate(words)]
    line |= {"id": "a", "text": "hi you a c", "pred_text": "hi you b c", "words": timed, "reference_length": 4}
    write_report(store_with(tmp_path / "out", [PartEntry(0, "transcript", json_bytes(line))]), str(tmp_path / "r.html"))
    opened(shown, tmp_path / "r.html")
    open_item(shown, "a")
    shown_parts = "[...document.querySelectorAll('.part:not(.head) .found')].map((part) => part.innerText).join(' ')"
    assert shown.evaluate(shown_parts).split() == ["●", "Ann", "hi", "you", "▲", "Bo", "a", "b", "S", "●", "Ann", "c"]
    colours = "[...document.querySelectorAll('.speaker')].map((label) => getComputedStyle(label).color)"
    first, second, third = shown.evaluate(colours)
    assert first == third != second


# ── figures, selection and cells ──────────────────────────────────────────────────────────────────────────────────────


def plain(index: int, *, words: int = 20, errors: int = 0, flags: int = 0) -> PartEntry:
    """Return a transcript of words that compress as badly as speech."""
    numbers = np.random.default_rng(index).integers(0, 3000, words)
    text = [f"{'bcdfglmnprst'[n % 12]}{'aeiou'[n % 5]}{n:x}" for n in numbers]
    line: dict[str, Any] = {
        "id": f"call-{index:07}", "audio_filepath": f"/data/calls/call-{index:07}.wav", "lang": "de",
        "text": " ".join([*(["wrong"] * errors), *text[errors:]]), "pred_text": " ".join(text),
        "words": [
            {"word": word, "start": round(0.31 * at + n / 9e4, 2), "end": round(0.31 * at + 0.2 + n / 5e4, 2),
             "confidence": round(1 - n / 9000, 3)}
            for at, (word, n) in enumerate(zip(text, numbers.tolist(), strict=True))
        ],
        "segments": [], "audio_duration": 0.31 * words, "confidence": 0.9, "warnings": [], "substitutions": errors,
        "flags": [{"kind": "repetition", "reason": "again", "start": None, "end": None}] * flags, "insertions": 0,
        "deletions": 0, "reference_length": words,
    }  # fmt: skip
    return PartEntry(index, "transcript", json_bytes(line))


@pytest.mark.slow
def test_ten_thousand_items_fit_into_two_megabytes(tmp_path: Path) -> None:
    """A page with MAX_ITEMS items of 20 words has all of them with their texts, and at most MAX_BYTES."""
    entries = [plain(index, errors=index % 3) for index in range(MAX_ITEMS)]
    write_report(store_with(tmp_path / "out", entries), str(tmp_path / "report.html"))
    content = (tmp_path / "report.html").read_bytes()
    assert len(content) <= MAX_BYTES
    assert b"All 10,000 items." in content


def test_of_more_items_the_failed_the_flagged_and_the_worst_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If not all items fit, the page says so, and items that need attention come before the sample."""
    for name, most in (("MAX_ITEMS", 40), ("MAX_FAILED", 5), ("MAX_FLAGGED", 10), ("MAX_WORST", 10)):
        monkeypatch.setattr(f"voxbatch.report.selection.{name}", most)
    entries = [plain(i, errors=5 * (i % 20 == 3), flags=i % 20 == 7) for i in range(100)] + [failed(100, "lost")]
    write_report(store_with(tmp_path / "out", entries), str(tmp_path / "report.html"))
    content = (tmp_path / "report.html").read_text()
    assert "40 of 101 items: failed and flagged items" in content


words = st.lists(st.sampled_from(["a", "b", "uh", "Mr.", "don't", "twenty", "one", "21", "…", "C,"]), max_size=12)


@given(words, words)
def test_cells_cover_both_texts(reference: list[str], transcript: list[str]) -> None:
    """The cells cover all written words of both sides, and there are errors exactly if some were counted."""
    cells = align_written(reference, transcript, "en", equal=False)
    assert sum(wanted for _, wanted, _ in cells) == len(reference)
    assert sum(found for _, _, found in cells) == len(transcript)
    errors = count_errors(" ".join(reference), " ".join(transcript), "en").errors
    assert any(kind in "SDI" for kind, *_ in cells) == bool(errors)


@pytest.mark.parametrize(
    ("reference", "transcript", "lang", "expected"),
    [
        ("Mr. Smith would go", "mister Smith will", "en", "2=SD"),
        ("the cat", "the the cat", "en", "=I="),
        ("don't stop", "do not stop", "en", "=1:2;="),
        ("it is seven four two nine. Your", "it is 749. Your", "en", "2=S4:1;="),
        ("twenty one men", "21 men", "en", "=2:1;="),
        ("我 是 猫", "我是狗", "zh", "2=S"),
        ("a – b", "a b", "de", "=.1:0;="),
    ],
)
def test_cells_by_hand(reference: str, transcript: str, lang: str, expected: str) -> None:
    """Hand-worked cases: normalised words decide, and the written ones are shown."""
    from voxbatch.report.items import written_words

    cells = align_written(written_words(reference, lang), written_words(transcript, lang), lang, equal=False)
    assert encode(cells) == expected


@pytest.mark.slow
def test_a_chart_is_the_same_where_lxml_is_installed() -> None:
    """Pygal takes lxml where it is installed, and its elements cannot be changed in the same way."""
    pytest.importorskip("lxml", reason="lxml is not installed")
    script = "from voxbatch.report import charts; print(charts.bars(['1', '2'], [0.1, 0.2], ['a', 'b'], '%'))"
    drawn = [
        subprocess.run([sys.executable, "-c", script], env=environment(**env), capture_output=True, text=True)
        for env in ({}, {"NO_LXML": "1"})
    ]
    assert drawn[0].returncode == 0, drawn[0].stderr
    assert drawn[0].stdout == drawn[1].stdout


def test_a_chart_is_only_shapes_and_texts() -> None:
    """A chart has no script, style sheet, date or address, escapes its texts, and is the same each time."""
    drawn = [charts.bars(["<b>", "2"], [0.1, 0.2], ["<i>", "b"], "%") for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert "&lt;b&gt;" in drawn[0]
    assert not any(each in drawn[0] for each in ("<script", "<style", "style=", "http", "<!--", "href"))


@given(st.floats(0, 1e9), st.sampled_from(("", "%", "min")))
def test_the_numbers_of_an_axis_differ(largest: float, unit: str) -> None:
    """An axis reaches from 0 to the largest value in a few steps, and no two of its numbers are the same."""
    found = charts.ticks(largest, unit)
    labels, values = [tick["label"] for tick in found], [tick["value"] for tick in found]
    assert len({*labels}) == len(labels)
    assert 2 <= len(labels) <= charts.MOST_STEPS + 2
    assert values[0] == 0
    assert values[-1] >= largest * (1 - 1e-6)


def test_axes_by_hand() -> None:
    """Counts have whole numbers; small rates have as many digits as they need."""
    axes = (1, ""), (7, ""), (0.004, "%"), (0.07, "%"), (5.2, "min"), (0.0, "")
    assert [[tick["label"] for tick in charts.ticks(*axis)] for axis in axes] == [
        ["0", "1"],
        ["0", "2", "4", "6", "8"],
        ["0.0%", "0.1%", "0.2%", "0.3%", "0.4%"],
        ["0%", "2%", "4%", "6%", "8%"],
        ["0 min", "2 min", "4 min", "6 min"],
        ["0", "1"],
    ]


# ── how the page is written ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_without_references_leads_with_flags(tmp_path: Path) -> None:
    """A page without references has no error rates; the number of flagged items comes first."""
    lines = [json.loads(plain(index, flags=index % 2).line) for index in range(4)]
    unscored = [{key: value for key, value in line.items() if key != "text"} for line in lines]
    entries = [PartEntry(index, "transcript", json_bytes(line)) for index, line in enumerate(unscored)]
    write_report(store_with(tmp_path / "out", entries), str(tmp_path / "report.html"))
    content = (tmp_path / "report.html").read_text()
    headline = content[content.index('class="headline"') :]
    assert headline.index("Flagged") < headline.index("Mean confidence") < headline.index("Items")
    assert "Error rates by group" not in content


@pytest.mark.parametrize(
    "arguments",
    [
        "m.jsonl -o out",
        "'my calls' b.wav -o gs://b/out --formats srt,vtt --beside --overwrite --language de --max-http-gb 2.5",
        "m.jsonl -o out --engine-option words=false --engine-option noise=1 --include '*.wav' --include '*.mp3'",
        "m.jsonl -o out --anonymous --s3-endpoint-url http://h:1 --channels split --channel-names me,you --min-gap 3",
    ],
)
def test_the_head_has_the_command_of_the_run(arguments: str) -> None:
    """The command in the head has the same settings as the command that was given."""

    def config(words: Sequence[str]) -> dict[str, Any]:
        with cli.make_context("voxbatch", ["run"]) as program, run.make_context("run", [*words], parent=program) as ctx:
            made = Config.of(parsed_run_options(ctx), ctx.params["source"], ctx.params["out"])
        return dict(json.loads(json_bytes(made.to_dict())))

    given = shlex.split(arguments)
    shown = shlex.split(command_of(config(given)))
    assert shown[:2] == ["voxbatch", "run"]
    assert sorted(shown[2:]) == sorted(given)
    assert config(shown[2:]) == config(given)


def test_the_head_leaves_out_what_a_run_took_without_being_told() -> None:
    """The limits of subtitles that a first run takes by itself are no options of its command."""
    config = {"source": ["a.wav"], "out": "out", **asdict(DEFAULT_LIMITS), "beside": False}
    assert command_of(config) == "voxbatch run a.wav -o out"
    assert command_of({**config, "max_line": 32, "beside": True}) == "voxbatch run a.wav -o out --beside --max-line 32"


def test_one_item_has_no_charts_of_one_bar(tmp_path: Path) -> None:
    """A chart that would repeat a headline figure is left out, and one item is not called items."""
    write_report(store_with(tmp_path / "out", [plain(0, errors=2)]), str(tmp_path / "report.html"))
    content = (tmp_path / "report.html").read_text()
    assert "<h3>WER by duration" not in content
    assert "<h3>Error rates of items" not in content
    assert "All 1 item." in content


def test_confusions_by_hand() -> None:
    """Errors are counted by pairs of normalised words; a word that is often wrong is in the references three times."""
    confusions = Confusions()
    for _ in range(3):
        confusions.add("I can not go to Rome.", "I can go to to Roam", "de")
    assert list(confusions.tables()) == [
        ("Confused", [ConfusionRow("rome", "roam", 3)]),
        ("Left out", [ConfusionRow("not", "", 3)]),
        ("Added", [ConfusionRow("", "to", 3)]),
        ("Most often wrong", [ConfusionRow("not", "", 3, 3), ConfusionRow("rome", "", 3, 3)]),
    ]


def test_groups_are_sorted_by_rate_and_few_items_have_no_interval(tmp_path: Path) -> None:
    """The worst group comes first; a group of two items has no interval; a folder of all ids stands once."""
    lines = [json.loads(plain(index, errors=9 if index < 2 else 1 + index % 3).line) for index in range(12)]
    for index, line in enumerate(lines):
        line |= {"id": f"calls/2026/{index}.wav", "speaker": "Ada" if index < 2 else "Bob"}
    entries = [PartEntry(index, "transcript", json_bytes(line)) for index, line in enumerate(lines)]
    write_report(store_with(tmp_path / "out", entries), str(tmp_path / "report.html"), keys=("speaker",))
    content = (tmp_path / "report.html").read_text()
    table = content[content.index("By <bdi>speaker") :]
    ada, bob = table.split("</tr>")[1:3]
    assert ("Ada" in ada, ada.count("<path"), "Bob" in bob, bob.count("<path")) == (True, 0, True, 1)
    assert "All ids begin with <bdi>calls/2026/</bdi>" in content


def test_an_unfinished_run_is_reported_as_such(tmp_path: Path, voxbatch: Voxbatch) -> None:
    """The page of a run in progress has the committed items, and says how many are missing."""
    store = Stores().out(str(tmp_path / "out"))
    Checkpoint(store, owned(store, items=3)).commit([plain(0), plain(2)], 2.0)
    done = voxbatch("report", "out")
    assert (done.returncode, done.stdout) == (0, f"{Path('out', 'report.html')}\n"), done.stderr
    content = (tmp_path / "out" / "report.html").read_text()
    assert "Unfinished run." in content
    assert "2 of 3 items are committed so far" in content


def test_the_report_of_files_has_their_score(tmp_path: Path, voxbatch: Voxbatch) -> None:
    """The page of files of other programs has the error rate of `score`, a group for each speaker, and the text that is
    missing."""
    rows = [
        {"id": "a", "audio_filepath": "a.wav", "text": "red green blue", "speaker": "Ada", "duration": 2.0},
        {"id": "b", "text": "black", "speaker": "Bob"},
    ]
    (tmp_path / "r.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "h.trn").write_text("red grin blue (a)\n")
    done = voxbatch("report", "h.trn", "--ref", "r.jsonl", "--by", "speaker", "--language", "en")
    assert (done.returncode, done.stdout, done.stderr) == (0, "h.trn.html\n", "")
    content = (tmp_path / "h.trn.html").read_text()
    table = content[content.index("By <bdi>speaker") :].split("</tr>")
    assert '<p class="value">50.00%</p>' in content
    assert [("Bob" in row, "100.00%" in row, "Ada" in row, "33.33%" in row) for row in table[1:3]] == [
        (True, True, False, False),
        (False, False, True, True),
    ]
    assert ("<strong>1 failed</strong>" in content, '<p class="value">2.0 s</p>' in content) == (True, True)


@pytest.mark.slow
def test_every_process_merges_the_same_report(tmp_path: Path) -> None:
    """The same parts give the same page, whoever merges, and a second merge changes nothing."""
    store = store_with(tmp_path / "out", [plain(0, errors=1), plain(1)])
    run = replace(RUN, items=2)
    merge.merge(store, run, ItemFiles(report=True))
    first = store.read("report.html")
    assert first
    store.delete("report.html")
    merge.merge(store, run, ItemFiles(report=True))
    assert store.read("report.html") == first
    store.write("report.html", [first[:-20]])  # cut off
    assert [problem.file for problem in problems(store)] == ["report.html"]
    merge.merge(store, run, ItemFiles(report=True))
    assert store.read("report.html") == first
    assert problems(store) == []


def test_a_report_that_cannot_be_drawn_does_not_fail_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends with its summary, and a warning names the command that tries the report again."""

    def broken(*_: object) -> bytes:
        raise KeyError("drawing")

    monkeypatch.setattr(RunReport, "render", broken)
    store, said = store_with(tmp_path / "out", [plain(0)]), list[str]()
    merge.merge(store, replace(RUN, items=1), ItemFiles(report=True), Log(write=said.append))
    assert store.exists("summary.json")
    assert not store.exists("report.html")
    assert f"to try again: voxbatch report {store.place}" in "".join(said)


@pytest.mark.slow
def test_no_report_and_overwrite(tmp_path: Path, voxbatch: Voxbatch) -> None:
    """--overwrite erases the report of the run before; --no-report writes none, and a merge with --report one."""
    write_manifest(tmp_path)
    command = ("run", "m.jsonl", "-o", "out", "--engine", "scripted", "--exit-zero", "-q")
    assert voxbatch(*command).returncode == 0
    assert (tmp_path / "out" / "report.html").exists()
    assert voxbatch(*command, "--overwrite", "--no-report").returncode == 0
    assert not (tmp_path / "out" / "report.html").exists()
    voxbatch("merge", "out", "--report")
    assert (tmp_path / "out" / "report.html").exists()


def test_a_table_of_the_items(tmp_path: Path, voxbatch: Voxbatch) -> None:
    """`voxbatch report OUT --export FILE` writes a row for each item."""
    store_with(tmp_path / "out", [plain(0), plain(1), failed(2, "lost")])
    done = voxbatch("report", "out", "--export", "items.csv")
    assert (done.returncode, done.stdout) == (0, "items.csv\n"), done.stderr
    assert len((tmp_path / "items.csv").read_text().splitlines()) == 4


@pytest.mark.slow
def test_the_report_of_a_run_in_a_bucket(amazon: servers.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of an OUT in a bucket is written there, with the type by which a browser shows it, and a merge writes
    it only if asked."""
    with servers.placed(amazon, monkeypatch) as place:
        store = place.store()
        Checkpoint(store, owned(store, items=2)).commit([plain(0), plain(1, errors=1)], 2.0)
        write_report(store, f"{place.uri}/report.html", ("lang",))
        assert place.look("report.html").endswith(b"</html>\n")
        store.delete("report.html")
        merge_again(store)
        assert not store.exists("report.html")
        merge_again(store, {"report": True})
        assert b"All 2 items." in place.look("report.html")
