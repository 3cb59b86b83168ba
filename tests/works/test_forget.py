"""Tests for `voxbatch forget`: nothing of an item is left in OUT, whenever it is killed, and no run brings it back."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import killed_at
import pytest
import servers
from conftest import ManifestWriter, Recorder, Starter, Voxbatch
from holds import Hold
from waits import until

from voxbatch.analysis.find.index import index_path
from voxbatch.output.beside import BESIDE
from voxbatch.output.own_files import OwnFiles
from voxbatch.output.verify import verify
from voxbatch.process.hang_detector import is_stopped
from voxbatch.storage import Store, Stores

ENGINE = ("--engine", "scripted", "--log-format", "text", "-q")
FORMATS = "srt,vtt,vtt-words,ass,ttml,txt,json,textgrid,ctm"
SECRETS = (b"anna", b"Anna", b"ANNA")
"""Texts that only the recording of one person has: her name in the names of files, in references, speakers and
corrections."""


def run_of_talks(voxbatch: Voxbatch, *options: str) -> str:
    """Run the recordings of the fixture `out` once more, and return the messages."""
    done = voxbatch("run", "talks", "-o", "out", "--formats", FORMATS, "--beside", *ENGINE, *options)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture
def out(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> Path:
    """Return the OUT of a finished run of three talks with references, one of which is Anna's, and has a correction by
    hand."""
    for name, seconds in {"calls/anna": 3.2, "b": 2.1, "c": 1.2}.items():
        recording(f"talks/{name}.wav", seconds)
        (tmp_path / "talks" / f"{name}.txt").write_text("anna" if "anna" in name else "w0 w1 w2")
    run_of_talks(voxbatch, "--part-items", "2")
    text = tmp_path / "out" / "srt" / "calls" / "anna.srt"
    text.write_text(text.read_text().replace("w3", "Anna"))
    assert voxbatch("correct", "out", "--engine", "none").returncode == 0
    return tmp_path / "out"


def leaks(place: Store | Path) -> list[str]:
    """Return the files whose names or bytes have one of the secrets."""
    if isinstance(place, Path):
        place = Stores().out(str(place))
    return [
        name
        for name in place.names("")
        if any(secret in name.encode() or secret in (place.read(name) or b"") for secret in SECRETS)
    ]


def read_lines(path: Path) -> dict[str, dict[str, Any]]:
    """Return the lines of a merged output by their ids."""
    return {line["id"]: line for line in map(json.loads, path.read_text().splitlines())}


def test_no_byte_of_an_item_is_left(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Texts, corrections, references and names are gone from all files of OUT, from those beside the recordings and
    from the index; the other items keep their bytes, and every command tells of the item once."""
    assert voxbatch("find", "out", "Anna").stdout.count("anna") > 0
    index = index_path(Stores().out(str(out)))
    assert index.exists()
    others = {path: path.read_bytes() for path in out.rglob("[bc].*") if path.is_file()}
    assert len(leaks(out)) > 11
    shown = voxbatch("forget", "out", "calls/anna.wav", "--dry-run")
    assert shown.stdout.startswith("1 item to forget\n  write again: parts/"), shown.stderr
    assert "\n  delete: srt/calls/anna.srt\n" in shown.stdout
    assert f"\n  delete: {tmp_path}/talks/calls/anna.srt\n" in shown.stdout
    assert len(leaks(out)) > 11
    done = voxbatch("forget", "out", "calls/anna.wav")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "1 item forgotten"), done.stderr
    assert "2 done + 1 failed = 3 items (1 forgotten)" in done.stdout
    assert leaks(out) == []
    assert not (out / "srt" / "calls").exists()
    assert [path.name for path in (tmp_path / "talks" / "calls").glob("*[!t]")] == ["anna.wav"]
    assert not index.exists()
    assert {path: path.read_bytes() for path in others} == others
    assert verify(Stores().out(str(out))) == []
    (line,) = read_lines(out / "failures.jsonl").values()
    assert (line["error_kind"], line["id"]) == ("forgotten", line["audio_filepath"])
    assert "2 done + 1 failed (1 forgotten)" in voxbatch("status", "out").stdout
    assert "deletions" not in voxbatch("score", "out").stderr
    assert [text.splitlines()[-1] for text in (shown.stdout, done.stdout)] == [
        "not erased: recordings, lines of manifests, other OUTs, exports, logs, backups"
    ] * 2
    again = voxbatch("forget", "out", "calls/anna.wav")
    before = "1 item forgotten before; nothing of it was left in the parts"
    assert (again.returncode, again.stdout) == (0, done.stdout.replace("1 item forgotten", before, 1))


def test_a_translation_beside_is_forgotten(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A translation has its language in its name beside the recording, and goes with its item."""
    calls = tmp_path / "talks" / "calls"
    shutil.copy(calls / "anna.srt", calls / "anna.en.srt")
    OwnFiles(Stores().out(str(out))).mark([(f"{calls}/anna.en.srt", BESIDE)])
    shutil.copy(calls / "anna.srt", calls / "anna.de.srt")
    assert f"\n  delete: {calls}/anna.en.srt\n" in voxbatch("forget", "out", "calls/anna.wav", "--dry-run").stdout
    assert voxbatch("forget", "out", "calls/anna.wav").returncode == 0
    assert sorted(path.name for path in calls.glob("*.srt")) == ["anna.de.srt"]


@pytest.fixture
def place_of_copies(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], str]]:
    """Return a function from a name to a place: a folder, or a prefix in a bucket."""
    if request.param == "local":
        yield lambda name: str(tmp_path / name)
        return
    with servers.placed(request.getfixturevalue(request.param), monkeypatch) as place:
        yield lambda name: f"{place.server.scheme}://{place.bucket}/{name}"


@pytest.mark.parametrize(
    ("place_of_copies", "stride"),
    [
        ("local", 3),
        ("google", 9),
        ("amazon", 9),
        *(pytest.param(name, 1, marks=pytest.mark.long) for name in ("local", "google", "amazon", "seaweed")),
    ],
    indirect=["place_of_copies"],
)
def test_killed_at_every_step(
    out: Path, voxbatch: Voxbatch, place_of_copies: Callable[[str], str], stride: int
) -> None:
    """Whenever `forget` is killed, OUT has the item or nothing of it, and the same command, also after another run,
    ends in the bytes of an undisturbed one."""

    def copied(name: str) -> Store:
        store = Stores().out(place_of_copies(f"{name}/out"))
        for path in out.rglob("*"):
            if path.is_file():
                store.create(str(path.relative_to(out)), [path.read_bytes()])
        return store

    def contents(store: Store) -> dict[str, bytes | None]:
        left_out = ("digests/", "report.html", "summary.json")
        return {name: store.read(name) for name in store.names("") if not name.startswith(left_out)}

    undisturbed = copied("undisturbed")
    assert voxbatch("forget", undisturbed.place, "calls/anna.wav").returncode == 0
    wanted, number, code = contents(undisturbed), 0, -signal.SIGKILL
    assert leaks(undisturbed) == []
    while code == -signal.SIGKILL:
        store = copied(f"killed{number}")
        command = ("forget", store.place, "calls/anna.wav")
        code = voxbatch(*command, env={killed_at.VARIABLE: str(number)}).returncode
        if number % 2:
            again = voxbatch("run", "talks", "-o", store.place, "--formats", FORMATS, *ENGINE)
            assert again.returncode == 0, (number, again.stderr)
            num_lines = len((store.read("transcripts.jsonl") or b"").splitlines())
            kinds = json.loads(store.read("summary.json") or b"")["failures_by_kind"]
            assert (num_lines, kinds) in ((3, {}), (2, {"forgotten": 1}))
        done = voxbatch(*command)
        assert done.returncode == 0, (number, done.stderr)
        assert leaks(store) == [], number
        assert contents(store) == wanted, number
        assert verify(store) == [], number
        number += stride
    assert code == 0
    assert number > 20


@pytest.fixture
def stopped(start: Starter) -> Callable[..., Any]:
    """Return a function that starts a command, and waits until it is stopped after it has written a file of OUT."""

    def stop(file: str, *command: str) -> Any:
        process = start(*command, env={killed_at.STOPPED_AT: file})
        until(lambda: is_stopped(process.pid), process=process)
        return process

    return stop


@pytest.mark.parametrize(
    ("place_of_copies", "command"),
    [
        ("local", ("merge", "--max-line", "20")),
        ("local", ("correct", "--drop")),
        ("google", ("correct", "--engine", "none")),
        pytest.param("amazon", ("merge", "--max-line", "20"), marks=pytest.mark.long),
    ],
    indirect=["place_of_copies"],
)
def test_no_command_writes_an_item_back(
    out: Path,
    voxbatch: Voxbatch,
    stopped: Callable[..., Any],
    place_of_copies: Callable[[str], str],
    command: tuple[str, ...],
) -> None:
    """While a merge has read the items and not written all of them, `forget` is refused, and says what holds OUT and
    how to go on. After its end nothing of the item is left."""
    text = out / "srt" / "b.srt"
    text.write_text(text.read_text().replace("w1", "other"))
    store = Stores().out(place_of_copies("copied/out"))
    for path in out.rglob("*"):
        if path.is_file():
            store.create(str(path.relative_to(out)), [path.read_bytes()])
    name, *options = command
    process = stopped("vtt/b.vtt", name, store.place, *options)
    refused = voxbatch("forget", store.place, "calls/anna.wav")
    process.send_signal(signal.SIGCONT)
    messages = process.communicate(timeout=200)
    assert process.returncode == 0, messages
    assert refused.returncode == 1, refused.stdout
    assert f": `voxbatch {name}` works on this run, pid {process.pid} on " in refused.stderr
    assert f"Wait for its end, or stop it with `kill {process.pid}`, and run again" in refused.stderr
    assert voxbatch("correct", store.place, "--drop").returncode == 0
    assert voxbatch("forget", store.place, "calls/anna.wav").returncode == 0
    assert leaks(store) == []
    assert verify(store) == []


def test_nothing_is_written_while_an_item_is_forgotten(
    out: Path, voxbatch: Voxbatch, stopped: Callable[..., Any]
) -> None:
    """Beside `forget`, the commands that write into OUT are refused, and so is a task of a run that shares OUT."""
    (part,) = (name for name in leaks(out) if "/part-" in name)
    process = stopped(part, "forget", "out", "calls/anna.wav")
    task = ("run", "talks", "-o", "out", *ENGINE, "--shard")
    for command in (("merge", "out"), ("correct", "out"), (*task, "0/1"), (*task, "0/2"), (*task, "1/2")):
        refused = voxbatch(*command)
        assert refused.returncode == 1, (command, refused.stdout)
        assert f"`voxbatch forget` works on this run, pid {process.pid} on " in refused.stderr
    assert voxbatch("correct", "out", "--dry-run").returncode == 0
    assert voxbatch("status", "out").returncode == 0
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=200) == 0
    assert leaks(out) == []
    assert verify(Stores().out(str(out))) == []


def test_a_page_of_before_is_not_written(out: Path, voxbatch: Voxbatch, stopped: Callable[..., Any]) -> None:
    """A page that was made before an item was forgotten is refused, and the next one does not have it."""
    number = max(int(path.stem) for path in (out / "digests").iterdir())
    process = stopped(f"digests/{number + 1:05d}.bin", "report", "out", "--by", "lang")
    assert voxbatch("forget", "out", "calls/anna.wav").returncode == 0
    process.send_signal(signal.SIGCONT)
    _, messages = process.communicate(timeout=200)
    assert (process.returncode, "an item was forgotten while the page was made" in messages) == (1, True), messages
    assert leaks(out) == []
    assert voxbatch("report", "out", "--by", "lang").returncode == 0
    assert leaks(out) == []


def test_no_further_run_brings_an_item_back(out: Path, voxbatch: Voxbatch, recording: Recorder) -> None:
    """Neither the same command, nor --retry-failed all, nor a recording that has changed, is new or comes back has the
    forgotten item transcribed again; the exit code is that of a run without failures."""
    assert voxbatch("forget", "out", "calls/anna.wav").returncode == 0
    wanted = (out / "transcripts.jsonl").read_bytes()
    talk = out.parent / "talks" / "calls" / "anna.wav"
    told = voxbatch("run", "talks", "-o", "out", "--formats", FORMATS, "--beside", *ENGINE[:-1]).stderr
    assert "nothing to do: 2 items done and 1 forgotten before (" in told
    planned = voxbatch("run", "talks", "-o", "out", "--retry-failed", "all", "--dry-run", *ENGINE[:-1]).stdout
    assert "0 new; 2 done before, kept as they are; 1 forgotten\n" in planned
    for options in ((), ("--retry-failed", "all"), ("--retry-failed",)):
        assert "Anna" not in run_of_talks(voxbatch, *options)
        assert (out / "transcripts.jsonl").read_bytes() == wanted
    same = voxbatch("run", "talks", "-o", "out", "--formats", FORMATS, "--beside", *ENGINE[:2])
    assert "nothing to do: 2 items done and 1 forgotten before" in same.stderr
    recording("talks/calls/anna.wav", 4.2)
    (out.parent / "talks" / "calls" / "anna.txt").write_text("anna again")
    run_of_talks(voxbatch)
    recording("talks/d.wav", 1.2)
    run_of_talks(voxbatch, "--update")
    shutil.move(talk, out.parent / "away.wav")
    recording("talks/e.wav", 1.2)
    run_of_talks(voxbatch, "--update")
    shutil.move(out.parent / "away.wav", talk)
    run_of_talks(voxbatch, "--update")
    assert leaks(out) == []
    assert sorted(read_lines(out / "transcripts.jsonl")) == ["b.wav", "c.wav", "d.wav", "e.wav"]
    assert json.loads((out / "summary.json").read_text())["failures_by_kind"] == {"forgotten": 1}
    assert verify(Stores().out(str(out))) == []


def test_overwrite_warns_of_forgotten_items(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """A run that begins anew knows of no forgotten item, and says so once; also in an OUT with a damaged part."""
    for name in ("anna", "b"):
        recording(f"talks/{name}.wav", 1.2)
    run = ("run", "talks", "-o", "out", *ENGINE)
    assert voxbatch(*run).returncode == 0
    assert voxbatch(*run, "--overwrite").stderr == ""
    assert voxbatch("forget", "out", "anna.wav").returncode == 0
    done = voxbatch(*run, "--overwrite")
    warning = "--overwrite drops the list of 1 forgotten item of "
    assert (done.returncode, done.stderr.count(warning)) == (0, 1), done.stderr
    (place, _) = shlex.split(done.stderr.rpartition("voxbatch forget ")[2])
    assert voxbatch("forget", place, "anna.wav").returncode == 0
    assert sorted(read_lines(tmp_path / "out" / "transcripts.jsonl")) == ["b.wav"]
    (part,) = (tmp_path / "out" / "parts").rglob("part-*.jsonl")
    part.write_bytes(b"{}\n")
    assert voxbatch(*run, "--overwrite").returncode == 0


def test_an_earlier_text_of_an_item_is_forgotten(out: Path, voxbatch: Voxbatch, recording: Recorder) -> None:
    """A recording that was replaced has two transcripts in the parts, and a correction that does not count any more."""
    (out.parent / "talks" / "calls" / "anna.txt").write_text("w0 anna w2")
    recording("talks/calls/anna.wav", 4.2)
    run_of_talks(voxbatch, "--update")
    parts = [name for name in leaks(out) if name.startswith("parts/")]
    assert len(parts) == 3
    assert voxbatch("forget", "out", str(out.parent / "talks" / "calls" / "anna.wav")).returncode == 0
    assert leaks(out) == []
    assert verify(Stores().out(str(out))) == []


def test_the_files_of_other_items_get_their_names(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """The files of talk.wav are named talk without talk.flac. Its file that somebody has changed is not lost."""
    for name in ("talk.wav", "talk.flac"):
        recording(f"talks/{name}", 1.2)
    run_of_talks(voxbatch)
    out = tmp_path / "out"
    assert sorted(path.name for path in (out / "srt").iterdir()) == ["talk.flac.srt", "talk.wav.srt"]
    text = (out / "srt" / "talk.wav.srt").read_bytes()
    assert voxbatch("forget", "out", "talk.flac").returncode == 0
    assert {path.name: path.read_bytes() for path in (out / "srt").iterdir()} == {"talk.srt": text}
    assert sorted(path.name for path in (tmp_path / "talks").glob("*.srt")) == ["talk.srt"]
    assert verify(Stores().out(str(out))) == []


def test_an_out_that_is_not_finished(
    manifest: ManifestWriter, start: Starter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """While a process works on OUT, `forget` is refused. After its end, items with and without a transcript are
    forgotten, and the run finishes without them, also as two tasks that share OUT."""
    command = ("run", manifest(1, 1.5, 2, 2.5), "-o", "out", *ENGINE, "--decoders", "1", "--part-items", "1")
    hold, out = Hold(tmp_path / "hold", after=1), tmp_path / "out"
    first = start(*command, *hold.options)
    hold.reached(process=first)
    refused = voxbatch("forget", "out", "r0.wav")
    assert (refused.returncode, "another process works on this run" in refused.stderr) == (1, True)
    first.kill()
    first.wait()
    done = voxbatch("forget", "out", "r0.wav", "r3.wav")
    assert (done.returncode, done.stdout.partition("\n")[0]) == (0, "2 items forgotten"), done.stderr
    assert "the run is not finished" in done.stdout
    for shard in ("0/2", "1/2"):
        assert voxbatch(*command, "--shard", shard).returncode == 0
    assert [*read_lines(out / "transcripts.jsonl")] == ["r1.wav", "r2.wav"]
    assert {line["error_kind"] for line in read_lines(out / "failures.jsonl").values()} == {"forgotten"}
    assert verify(Stores().out(str(out))) == []


def test_an_earlier_list_is_not_left_in_the_outputs(out: Path, voxbatch: Voxbatch, recording: Recorder) -> None:
    """If OUT has grown and the new recordings are not done, the merged outputs of the list before are deleted."""
    recording("talks/d.wav", 1.2)
    number = 0
    while len(list((out / "lists").iterdir())) < 2:
        number += 1
        options = ("--formats", FORMATS, *ENGINE)
        voxbatch("run", "talks", "-o", "out", *options, env={killed_at.VARIABLE: str(number)})
    done = voxbatch("forget", "out", "calls/anna.wav")
    assert (done.returncode, "the run is not finished" in done.stdout) == (0, True), done.stderr
    assert leaks(out) == []
    run_of_talks(voxbatch)
    assert sorted(read_lines(out / "transcripts.jsonl")) == ["b.wav", "c.wav", "d.wav"]
    assert leaks(out) == []
    assert verify(Stores().out(str(out))) == []


def test_what_cannot_be_forgotten_is_refused(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """An unknown id, a list that is missing, an OUT without a run or of a later version, and a file that somebody has
    changed are refused before anything is changed."""
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (tmp_path / "ids.txt").write_text("calls/anna.wav\nunknown.wav\n")
    for arguments, message in {
        (
            "out",
            "@ids.txt",
        ): "has no item unknown.wav; nothing was changed. Give the `id` of a line of",
        ("out", "anna"): "or its `audio_filepath`; did you mean calls/anna.wav?",
        ("out", "anna.wav"): "or its `audio_filepath`; did you mean calls/anna.wav?",
        ("out", "@none.txt"): "@none.txt: the list of IDs cannot be read: No such file or directory; give @FILE",
        ("talks", "b.wav"): "no run was started there",
    }.items():
        refused = voxbatch("forget", *arguments)
        assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    newer = Path(shutil.copytree(out, tmp_path / "newer"))
    part = next((newer / "parts").rglob("part-*"))
    part.write_bytes(part.read_bytes().replace(b'"version": 1', b'"version": 9', 1))
    refused = voxbatch("forget", "newer", "b.wav")
    assert (refused.returncode, "another version of voxbatch wrote it" in refused.stderr) == (1, True), refused.stderr
    with (out / "transcripts.jsonl").open("a") as file:
        file.write("anna\n")
    refused = voxbatch("forget", "out", "calls/anna.wav")
    message = "that somebody has changed may hold what is to be forgotten: transcripts.jsonl; nothing was changed. Take"
    assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr


def test_recordings_that_are_named(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> None:
    """The settings of a run that was started with names of recordings lose the name; an OUT of one recording alone is
    to be deleted, because its own name tells of it."""
    for name in ("anna.wav", "b.wav"):
        recording(name, 1.2)
    assert voxbatch("run", "anna.wav", "b.wav", "-o", "out", *ENGINE).returncode == 0
    assert voxbatch("forget", "out", "anna.wav").returncode == 0
    assert leaks(tmp_path / "out") == []
    assert voxbatch("run", "anna.wav", "b.wav", "-o", "out", *ENGINE).returncode == 0
    assert [*read_lines(tmp_path / "out" / "transcripts.jsonl")] == ["b.wav"]
    assert voxbatch("run", "anna.wav", *ENGINE).returncode == 0
    refused = voxbatch("forget", "anna.voxbatch", "anna.wav")
    assert (refused.returncode, f"delete all of it: rm -r {tmp_path}/anna.voxbatch" in refused.stderr) == (2, True)


@pytest.fixture
def talks(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that runs three talks with some options, and returns OUT."""

    def run(*options: str) -> Path:
        for name, seconds in {"anna": 3.2, "b": 2.1, "c": 1.2}.items():
            recording(f"talks/{name}.wav", seconds)
        assert voxbatch("run", "talks", "-o", "out", *ENGINE, *options).returncode == 0
        return tmp_path / "out"

    return run


def test_both_passes_of_a_cascade_are_erased(talks: Callable[..., Path], voxbatch: Voxbatch) -> None:
    """The second pass of a cascade forgets the item, too, and stays complete."""
    out = talks("--cascade", "little,big:0.9", "--engine-option", "confidence=true")
    assert [name for name in leaks(out) if "/second-" in name]
    assert voxbatch("forget", "out", "anna.wav").returncode == 0
    assert leaks(out) == []
    assert verify(Stores().out(str(out))) == []


def test_the_sound_of_a_redaction_is_erased(talks: Callable[..., Path], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The silenced recording of an item is in no archive and in no file any more; those of other items are."""
    talks()
    assert voxbatch("redact", "out", "-o", "shared", "-q").returncode == 0
    out = tmp_path / "shared"
    first, *others = read_lines(out / "transcripts.jsonl")
    sounds = {item: (out / "flac" / f"{item}.flac").read_bytes() for item in (first, *others)}
    assert voxbatch("forget", "shared", first).returncode == 0
    contents = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
    assert {item: sum(sound in content for content in contents) for item, sound in sounds.items()} == {
        first: 0, **dict.fromkeys(others, 2),
    }  # fmt: skip
    assert not [content for content in contents if first.encode() in content]
    assert verify(Stores().out(str(out))) == []


def test_an_item_is_found_in_the_redacted_copy(talks: Callable[..., Path], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The ids in a copy are hashes, so the command that erases the items there is printed, also afterwards. The run
    that redacts again does not promise to take a forgotten item later."""
    out = talks()
    assert "voxbatch forget COPY" not in voxbatch("forget", "out", "anna.wav", "--dry-run").stdout
    assert voxbatch("redact", "out", "-o", "shared", "-q").returncode == 0
    ids, copies = (list(read_lines(place / "transcripts.jsonl")) for place in (out, tmp_path / "shared"))
    copy = copies[ids.index("anna.wav")]
    for options in (["--dry-run"], [], []):
        done = voxbatch("forget", "out", "anna.wav", *options)
        assert done.stdout.splitlines()[-1] == f"in copies of voxbatch redact: voxbatch forget COPY {copy}", done.stderr
    again = voxbatch("redact", "out", "-o", "shared", "--update")
    assert again.returncode == 0
    assert "without a transcript" not in again.stderr
    assert voxbatch("forget", "shared", copy).returncode == 0
    assert copy not in read_lines(tmp_path / "shared" / "transcripts.jsonl")


def test_the_index_of_another_user_is_made_again(
    talks: Callable[..., Path], voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """An index that `forget` did not see loses the item at the next search."""
    out = talks()
    index = index_path(Stores().out(str(out)))
    assert "anna" in voxbatch("find", "out", "w5").stdout
    shutil.copy(index, tmp_path / "index")
    assert voxbatch("forget", "out", "anna.wav").returncode == 0
    shutil.copy(tmp_path / "index", index)
    assert "anna" not in voxbatch("find", "out", "w5").stdout
    assert b"anna" not in index.read_bytes()
