"""Tests for `voxbatch find`: the places of a text with their times, by an index that follows OUT and survives kills."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import servers
from conftest import Recorder, Voxbatch, environment
from outputs import RUN, keys, owned

from voxbatch.analysis.find.index import index_path, open_index, update
from voxbatch.analysis.find.search import FoundPlace, Query, find_places
from voxbatch.errors import ConfigError, StorageError
from voxbatch.log import Log
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.lines import transcript_line
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import create_list
from voxbatch.output.stored_json import json_bytes
from voxbatch.records import Item, Transcript
from voxbatch.storage import Store, Stores
from voxbatch.word import Word

Searcher = Callable[..., list[FoundPlace]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the indexes of a test into a folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entry(index: int, text: str, row: Mapping[str, Any] = {}, speakers: Iterable[str] = ()) -> PartEntry:
    """Return the transcript of an item whose words take a second each; words are what spaces separate."""
    names = [*speakers]
    words = tuple(
        Word(word, float(at), at + 0.9, 0.5 + 0.01 * at, names[at] if names else None)
        for at, word in enumerate(text.split())
    )
    line = json.dumps({"audio_filepath": f"/calls/{index}.wav", **row}).encode()
    item = Item(index, index + 1, f"call-{index}", f"/calls/{index}.wav", row=line)
    transcript = Transcript(text, words=words, audio_duration=60.0)
    return PartEntry(index, "transcript", json_bytes(transcript_line(item, transcript, "e", "m", "en", None)))


def search(store: Store, *phrases: str, **settings: Any) -> list[FoundPlace]:
    """Return the places of a query in an OUT."""
    from voxbatch.output import run_file

    run, path = run_file.read_existing(store), index_path(store)
    with open_index(path) as database:
        update(database, path, store, run, Log(quiet=True))
        return list(find_places(database, Query(phrases=phrases, **settings)).places)


def found(places: Iterable[FoundPlace]) -> list[tuple[str, float | None, str]]:
    """Return what tells places apart."""
    return [(place.id, place.start, place.match) for place in places]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an OUT with four calls in two parts."""
    store = Stores().out(str(tmp_path / "out"))
    run = owned(store, items=4)
    checkpoint = Checkpoint(store, run)
    first = entry(0, "Hello, our refund policy is simple. A refund policy, I said!", {"topic": "money"})
    second = entry(1, "The policy has no refund.", {"topic": "rules", "lang": "en"})
    checkpoint.commit([first, second], 1.0)
    third = entry(2, "I refunded it; café Müller wants refunds", {"topic": "money"}, "AABBBAA")
    checkpoint.commit([third, entry(3, "Nothing of interest.")], 1.0)
    return store


def test_each_place_of_a_phrase_has_its_time_and_context(store: Store) -> None:
    """A phrase is words that follow each other, whatever their case and punctuation."""
    places = search(store, "REFUND policy")
    assert found(places) == [("call-0", 2.0, "refund policy"), ("call-0", 7.0, "refund policy")]
    assert places[0].before == "Hello, our "
    assert places[1].end == 8.9
    assert places[1].confidence == pytest.approx(0.575)
    assert places[1].after == ", I said!"


@pytest.mark.parametrize(
    ("phrases", "settings", "ids"),
    [
        (["refund", "policy"], {}, {"call-0", "call-1"}),
        (["refund", "café"], {"is_any": True}, {"call-0", "call-1", "call-2"}),
        (["refund*"], {}, {"call-0", "call-1", "call-2"}),
        (["cafe muller"], {}, {"call-2"}),
        (["policy", "refund"], {"near": 2}, {"call-0", "call-1"}),
        (["policy", "refund"], {"near": 1}, {"call-0"}),
        (["refund"], {"without": ("no refund",)}, {"call-0"}),
        (["refund*"], {"members": {"topic": "money"}}, {"call-0", "call-2"}),
        (["refund*"], {"members": {"topic": "money", "lang": "de"}}, set()),
        (["refund*"], {"speaker": "A"}, {"call-2"}),
        (["refund*"], {"start": 6.0}, {"call-0", "call-2"}),
        (["refund*"], {"end": 1.5}, {"call-2"}),
        (["refund*"], {"max_confidence": 0.53}, {"call-0", "call-2"}),
        (["refund*"], {"min_confidence": 0.99}, set()),
        (['said "I"'], {}, set()),
        (["refund OR policy"], {}, set()),
    ],
)
def test_what_may_be_asked(store: Store, phrases: list[str], settings: dict[str, Any], ids: set[str]) -> None:
    """Texts are texts, and no language of queries."""
    assert {place.id for place in search(store, *phrases, **settings)} == ids


def test_a_text_without_letters_is_refused(store: Store) -> None:
    """It would be in all items or in none."""
    with pytest.raises(ConfigError, match=r"'\?!' has no letters or digits to look for"):
        search(store, "?!")


@pytest.mark.parametrize(
    ("text", "phrase", "match", "start"),
    [
        ("我想 了解退款政策 谢谢", "退款", "退款", 1.0),
        ("全額返金 ポリシーについて", "ポリシー", "ポリシー", 1.0),
        ("ขอ นโยบายการคืนเงิน ครับ", "คืนเงิน", "คืนเงิน", 1.0),
        ("यह हिन्दी में है", "हिन्दी", "हिन्दी", 1.0),
        ("यह हिन्दी में है", "हिन्*", "हिन्दी", 1.0),
        ("그 환불 정책은 무엇", "정책*", "정책은", 2.0),
        ("سياسة الاسترداد هنا", "الاسترداد", "الاسترداد", 1.0),
        ("I don't know", "don't", "don't", 1.0),
        ("It was 1,000 euros", "1,000", "1,000", 2.0),
    ],
)
def test_words_of_many_scripts(tmp_path: Path, text: str, phrase: str, match: str, start: float) -> None:
    """A part of a sentence is found in scripts without spaces, and a word with vowel signs is one word."""
    store = Stores().out(str(tmp_path / "out"))
    Checkpoint(store, owned(store, items=1)).commit([entry(0, text)], 1.0)
    assert found(search(store, phrase)) == [("call-0", start, match)]


def test_only_items_of_new_parts_are_read(store: Store) -> None:
    """The second search reads nothing; after a further part, its items alone."""
    run = replace(RUN, items=6)
    path = index_path(store)
    with open_index(path) as database:
        assert update(database, path, store, replace(RUN, items=4), Log(quiet=True)) == 4
        assert update(database, path, store, replace(RUN, items=4), Log(quiet=True)) == 0
    create_list(store, replace(run, list_number=2), keys(6))
    Checkpoint(store, replace(run, list_number=2)).commit([entry(4, "A new refund"), entry(5, "Old")], 1.0)
    with open_index(path) as database:
        assert update(database, path, store, replace(run, list_number=2), Log(quiet=True)) == 2
        places = find_places(database, Query(phrases=("refund",))).places
        assert [place.id for place in places] == ["call-0", "call-0", "call-1", "call-4"]


def test_a_list_in_another_order_moves_the_items(store: Store) -> None:
    """Places come in the order of the latest list; items that it lacks are gone, and what returns counts again."""
    search(store, "refund")
    for number, order in ((2, [3, 2, 1]), (3, [1, 0, 2])):
        create_list(store, replace(RUN, items=3, list_number=number), keys(4)[order])
        ids = [place.id for place in search(store, "refund*")]
        assert list(dict.fromkeys(ids)) == [f"call-{index}" for index in order if index != 3]


def test_another_run_and_a_damaged_index_are_indexed_anew(store: Store, tmp_path: Path) -> None:
    """An index is no truth: whatever is in the file, the answer is that of OUT."""
    expected = search(store, "refund")
    path = index_path(store)
    for content in (b"", b"not a database" * 1000, path.read_bytes()[:8192]):
        path.write_bytes(content)
        done = _find(tmp_path, "out", "refund", "--json")
        if done.returncode:
            assert "the index was removed, and the same command makes it again" in done.stderr
            done = _find(tmp_path, "out", "refund", "--json")
        assert [json.loads(line)["start"] for line in done.stdout.splitlines()] == [place.start for place in expected]
    other = Stores().out(str(tmp_path / "other"))
    Checkpoint(other, owned(other, "new", 1)).commit([entry(0, "refund")], 1.0)
    index_path(other).write_bytes(path.read_bytes())
    assert len(search(other, "refund")) == 1


def _find(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "voxbatch", "find", *arguments]
    env = environment(XDG_CACHE_HOME=str(folder / "cache"))
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_right_index(tmp_path: Path) -> None:
    """Killed (SIGKILL) again and again while it reads, the next search has each place once."""
    store = Stores().out(str(tmp_path / "out"))
    checkpoint = Checkpoint(store, owned(store, items=3000))
    rng, vocabulary = random.Random(0), [f"word{number}" for number in range(500)]
    texts = [" ".join(rng.choices(vocabulary, k=300)) for _ in range(3000)]
    for begin in range(0, 3000, 200):
        checkpoint.commit([entry(index, texts[index]) for index in range(begin, begin + 200)], 1.0)
    command = [sys.executable, "-m", "voxbatch", "find", "out", "word7", "--json"]
    env, kills = environment(XDG_CACHE_HOME=str(tmp_path / "cache")), 0
    for seconds in (0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0):
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    assert kills
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    wanted = [(f"call-{n}", float(at)) for n, text in enumerate(texts) for at, word in enumerate(text.split())
              if word == "word7"]  # fmt: skip
    assert [(row["id"], row["start"]) for row in map(json.loads, done.stdout.splitlines())] == wanted
    with sqlite3.connect(index_path(store)) as database:
        database.execute("INSERT INTO texts (texts) VALUES ('integrity-check')")


@pytest.mark.parametrize("free_kb", range(4, 260, 32))
def test_an_index_on_a_full_disk_is_completed_later(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, free_kb: int
) -> None:
    """An index without room is an error that names the file and says what to do. With room, the search is complete."""
    store = Stores().out(str(tmp_path / "out"))
    entries = [entry(index, f"refund {index} " + "word " * 300) for index in range(50)]
    Checkpoint(store, owned(store, items=50)).commit(entries, 1.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    filler = small_disk / "filler"
    filler.write_bytes(bytes((1 << 20) - (free_kb << 10)))
    error = rf"{small_disk}\S+: (the index cannot|database or disk is full|unable to open|disk I/O).* XDG_CACHE_HOME"
    with pytest.raises(StorageError, match=error):
        search(store, "refund")
    filler.unlink()
    assert len(search(store, "refund")) == 50


def test_an_index_without_its_lock_is_an_error(store: Store) -> None:
    """A lock that cannot be created is an error that says what to do."""
    Path(f"{index_path(store)}.lock").mkdir(parents=True)
    with pytest.raises(StorageError, match="the index cannot be written: Is a directory; set XDG_CACHE_HOME"):
        search(store, "refund")


def test_an_out_that_was_made_again_is_indexed_anew(store: Store, tmp_path: Path) -> None:
    """The parts of a run that was deleted and started again have the names of the earlier ones, and other texts."""
    assert len(search(store, "refund*")) == 5
    shutil.rmtree(tmp_path / "out")
    checkpoint = Checkpoint(store, owned(store, items=4))
    for index in (0, 2):
        checkpoint.commit([entry(index, "a refund"), entry(index + 1, "nothing")], 1.0)
    assert found(search(store, "refund*")) == [("call-0", 1.0, "refund"), ("call-2", 1.0, "refund")]


def test_a_correction_that_was_made_again_counts(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A part of corrections that a person has removed may come again with another text."""
    recording("talks/a.wav", 3.2)
    options = ("--engine", "scripted", "--log-format", "text", "--formats", "srt")
    assert voxbatch("run", "talks", "-o", "out", "-q", *options).returncode == 0
    original = (tmp_path / "out" / "srt" / "a.srt").read_text()
    for word in ("refund", "return"):
        (tmp_path / "out" / "srt" / "a.srt").write_text(original.replace("w3", word))
        assert voxbatch("correct", "out", "--engine", "none").returncode == 0
        assert "1 item found" in voxbatch("find", "out", word).stdout
        next((tmp_path / "out" / "parts").rglob("corrected-*")).unlink()


def test_a_correction_counts(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A corrected word is found, and the one that the engine heard there is not."""
    recording("talks/a.wav", 3.2)
    options = ("--engine", "scripted", "--log-format", "text", "--formats", "srt")
    assert voxbatch("run", "talks", "-o", "out", "-q", *options).returncode == 0
    assert "1 item found" in voxbatch("find", "out", "w3").stdout
    subtitle = tmp_path / "out" / "srt" / "a.srt"
    subtitle.write_text(subtitle.read_text().replace("w3", "refund"))
    assert voxbatch("correct", "out").returncode == 0
    assert voxbatch("find", "out", "w3").stdout == "not found; a * at the end of a text stands for the rest of a word\n"
    assert re.search(r"\na\.wav\n +0:01\.\d  w0 w1 w2 refund w4", voxbatch("find", "out", "Refund").stdout)


def test_a_page_plays_local_recordings(store: Store, tmp_path: Path) -> None:
    """Texts and names are escaped, and the recording is reached from the folder of the page."""
    page = tmp_path / "pages" / "found.html"
    page.parent.mkdir()
    assert _find(tmp_path, "out", "refund policy", "--html", str(page)).stdout == f"page  {page}\n"
    content = page.read_text()
    up = "../" * (len(page.parent.parts) - 1)
    assert f'src="{up}calls/0.wav"' in content
    assert 'data-second="7.0">0:07.0</button>' in content
    assert "<mark>refund policy</mark>, I said!" in content


def test_bad_requests(store: Store, tmp_path: Path) -> None:
    """A request that cannot be meant is refused, with what to do."""
    assert "--near takes two texts or more" in _find(tmp_path, "out", "refund", "--near", "3").stderr
    (tmp_path / "empty").mkdir()
    assert "no run was started there" in _find(tmp_path, "empty", "refund").stderr


def test_an_out_in_a_bucket(place: servers.Place) -> None:
    """The index lies in the cache folder, and the recordings are not read."""
    store = place.store()
    Checkpoint(store, owned(store, items=1)).commit([entry(0, "our refund policy")], 1.0)
    assert found(search(store, "refund policy")) == [("call-0", 1.0, "refund policy")]
