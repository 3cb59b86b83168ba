"""Tests for local storage: a file appears whole or not at all and only once, and opening audio never hangs."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from voxbatch.errors import AudioError, StorageError
from voxbatch.storage import Stores, remove_command
from voxbatch.storage.local import LocalStore


def script(code: str, *args: object) -> subprocess.Popen[str]:
    """Start Python code in another process, with LocalStore imported."""
    head = "import os, signal, sys\nfrom voxbatch.storage.local import LocalStore\n"
    command = [sys.executable, "-c", head + textwrap.dedent(code), *map(str, args)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def test_round_trip(tmp_path: Path) -> None:
    """Written data is read back, whole or by lines; an absent object is None, and deleting it does nothing."""
    store = Stores().out(str(tmp_path / "a" / "b"))
    store.prepare()
    assert store.names("") == []
    assert store.create("parts/x/1.jsonl", [b"one\n", b"two\n"])
    assert store.read("parts/x/1.jsonl") == b"one\ntwo\n"
    assert list(store.lines("parts/x/1.jsonl")) == [b"one\n", b"two\n"]
    assert store.read("parts/x/2.jsonl") is None
    assert store.read("parts/x/1.jsonl/3") is None
    store.delete("parts/x/1.jsonl")
    store.delete("parts/x/1.jsonl")
    assert store.read("parts/x/1.jsonl") is None


@pytest.mark.slow
def test_one_of_racing_processes_creates(tmp_path: Path) -> None:
    """If 16 processes create the same object at the same time, exactly one wins, and its bytes are stored whole."""
    racer = """
        name = sys.argv[2].encode()
        print("ready", flush=True)
        sys.stdin.readline()
        print(LocalStore(sys.argv[1]).create("parts/1", (name * 1000 for _ in range(300))))
    """
    racers = [script(racer, tmp_path, f"<{i}>") for i in range(16)]
    for process in racers:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in racers:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [process.communicate()[0].strip() for process in racers]
    assert sorted(set(ends)) == ["False", "True"]
    assert ends.count("True") == 1
    assert (tmp_path / "parts/1").read_bytes() == f"<{ends.index('True')}>".encode() * 300_000
    assert os.listdir(tmp_path / "parts") == ["1"]


@pytest.mark.parametrize("method", ["create", "write"])
def test_killed_writer_leaves_nothing(tmp_path: Path, method: str) -> None:
    """A process killed during a write leaves no object and nothing in listings; the next write succeeds."""
    (tmp_path / "old").write_bytes(b"old")
    name = "old" if method == "write" else "new"
    killed = script(
        f"""
        def pieces():
            yield b"half" * 100_000
            os.kill(os.getpid(), signal.SIGKILL)
        LocalStore(sys.argv[1]).{method}("{name}", pieces())
        """,
        tmp_path,
    )
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    store = Stores().out(str(tmp_path))
    assert store.names("") == ["old"]
    assert store.read("old") == b"old"
    assert store.read("new") is None
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".tmp-")] == ["old"]
    assert store.create("new", [b"whole"])
    assert store.read("new") == b"whole"


@pytest.mark.slow
def test_a_file_that_a_killed_writer_leaves_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """A file is replaced by a second name of the new one. A kill between the two steps leaves this name until the next
    write of the file."""
    store = LocalStore(str(tmp_path))
    store.write("old", [b"old"])
    for _ in range(3):
        killed = script(
            """
            os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
            LocalStore(sys.argv[1]).write("old", [b"new"])
            """,
            tmp_path,
        )
        killed.communicate()
        assert killed.returncode == -signal.SIGKILL
        assert len(os.listdir(tmp_path)) == 2
        assert (store.names(""), store.read("old")) == (["old"], b"old")
    store.write("old", [b"new"])
    assert os.listdir(tmp_path) == ["old"]
    assert store.read("old") == b"new"


@pytest.mark.slow
def test_a_suspended_writer_holds_up_no_other(tmp_path: Path) -> None:
    """A process that is suspended between the two steps of a replacement keeps its temporary name, and others replace
    the file. When it goes on, it replaces the file, too, and nothing is left."""
    store = LocalStore(str(tmp_path))
    store.write("a", [b"old"])
    suspended = script(
        """
        replace = os.replace
        def stop_and_replace(*arguments, **options):
            os.kill(os.getpid(), signal.SIGSTOP)
            replace(*arguments, **options)
        os.replace = stop_and_replace
        LocalStore(sys.argv[1]).write("a", [b"late"])
        """,
        tmp_path,
    )
    os.waitid(os.P_PID, suspended.pid, os.WSTOPPED)
    for content in (b"one", b"two"):
        store.write("a", [content])
        assert store.read("a") == content
    suspended.send_signal(signal.SIGCONT)
    suspended.communicate()
    assert suspended.returncode == 0
    assert store.read("a") == b"late"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.slow
def test_writers_of_one_file_at_a_time_lose_no_write(tmp_path: Path) -> None:
    """Processes that replace one file at a time end without an error, and the file has the bytes of one of them. The
    last write of all stays."""
    writer = """
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(200):
            LocalStore(sys.argv[1]).write("a", [f"{sys.argv[2]} {number}".encode()], durable=False)
    """
    writers = [script(writer, tmp_path, str(i)) for i in range(4)]
    for process in writers:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in writers:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in writers:
        process.communicate()
        assert process.returncode == 0
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() in {f"{i} 199" for i in range(4)}


@pytest.mark.parametrize("method", ["read", "lines"])
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, method: str) -> None:
    """A named pipe, a socket or a device in the place of an object is an error. A read of it might wait for ever."""
    store = LocalStore(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    for name in ("pipe", "zero", "socket"):
        with pytest.raises(StorageError, match=f"cannot read .*/{name}: it is no regular file: move it away"):
            [*getattr(store, method)(name)]


@pytest.mark.parametrize("method", ["create", "write"])
def test_named_temporary_file_is_removed(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without unnamed files, a named temporary file is used and removed."""
    open_any = os.open

    def open_named(path: str, flags: int, *rest: Any, **settings: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return open_any(path, flags, *rest, **settings)

    monkeypatch.setattr(os, "open", open_named)
    store = LocalStore(str(tmp_path))
    assert getattr(store, method)("a/b", [b"one", b"two"]) in (True, None)
    assert store.create("a/b", [b"three"]) is False
    assert store.read("a/b") == b"onetwo"
    assert os.listdir(tmp_path / "a") == ["b"]


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    """If producing the bytes fails, no file is left, not even a hidden one, and an old object stays unchanged."""

    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("no more")

    store = Stores().out(str(tmp_path))
    store.write("a", [b"old"])
    for method in (store.create, store.write):
        with pytest.raises(RuntimeError, match="no more"):
            method("b" if method == store.create else "a", pieces())
    assert os.listdir(tmp_path) == ["a"]
    assert store.read("a") == b"old"


def test_names_are_sorted_and_relative(tmp_path: Path) -> None:
    """Names below a folder are sorted and relative to OUT, without temporary files; a missing folder has no names."""
    store = Stores().out(str(tmp_path))
    for name in ("parts/b", "parts/a/2", "parts/a/1", "other", "parts/.hidden"):
        store.create(name, [b""])
    (tmp_path / "parts" / ".tmp-abc").write_bytes(b"half")
    assert store.names("parts") == ["parts/.hidden", "parts/a/1", "parts/a/2", "parts/b"]
    assert store.names("missing") == []
    assert store.names("other/below") == []


def test_folder_exists_if_an_object_is_below_it(tmp_path: Path) -> None:
    """A name that ends in / exists if an object is below it; empty folders and temporary files do not count."""
    store = Stores().out(str(tmp_path))
    (tmp_path / "srt" / "empty").mkdir(parents=True)
    (tmp_path / "srt" / ".tmp-abc").write_bytes(b"half")
    assert not store.exists("srt/")
    assert not store.exists("missing/")
    store.create("srt/a/b.srt", [b""])
    assert store.exists("srt/")
    assert store.exists("srt/a/b.srt")
    assert not store.exists("srt/a/b.srt/")


def test_unlistable_folder_is_an_error(tmp_path: Path) -> None:
    """A folder that cannot be listed is an error and not an empty folder, which would restart the run from nothing."""
    (tmp_path / "loop").symlink_to("loop")
    for prefix in ("loop", "x" * 300):
        with pytest.raises(StorageError, match="cannot list"):
            Stores().out(str(tmp_path)).names(prefix)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o007, 0o660), (0o077, 0o600)])
def test_file_modes_follow_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    """Outputs are readable as the umask permits, and the umask is not changed."""
    store = Stores().out(str(tmp_path))
    before = os.umask(mask)
    try:
        store.create("a", [b"x"])
        store.write("b", [b"x"])
    finally:
        assert os.umask(before) == mask
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"} == {mode}


def test_full_disk_leaves_no_partial_file(small_disk: Path) -> None:
    """A full disk gives an error of one line; stored objects stay, no partial file is left, and writing works again
    with free space.
    """
    store = Stores().out(str(small_disk))
    store.prepare()
    store.create("a", [b"kept"])
    with pytest.raises(StorageError) as told:
        store.create("b", (b"x" * 100_000 for _ in range(20)))
    assert str(told.value) == f"cannot write {small_disk}/b: the disk is full: free some space"
    assert os.listdir(small_disk) == ["a"]
    assert store.create("b", [b"small"])


def test_exhausted_inodes_are_named(small_disk: Path) -> None:
    """A file system that can hold no further file, although it has space, is not called full."""
    subprocess.run(["mount", "-o", "remount,nr_inodes=20", small_disk], check=True)
    with suppress(OSError):
        for number in range(20):
            (small_disk / str(number)).touch()
    expected = f"cannot write {small_disk}/srt/a: the file system has no free inodes, of which each file takes one: "
    with pytest.raises(StorageError, match=f"^{expected}delete files there$"):
        Stores().out(str(small_disk)).create("srt/a", [b""])


@pytest.mark.parametrize("link", ["srt", "srt/calls"])
def test_links_inside_are_not_followed(tmp_path: Path, link: str) -> None:
    """The folder of a store may be a link. A link inside it to another folder is refused, and nothing is written or
    deleted there. A link in place of a file is replaced, and its target stays as it is."""
    (tmp_path / "real" / "srt").mkdir(parents=True)
    (tmp_path / "out").symlink_to("real")
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "a.srt").write_bytes(b"theirs")
    store = Stores().out(str(tmp_path / "out"))
    store.write("srt/calls/a.srt", [b"one"])
    assert (tmp_path / "real" / "srt" / "calls" / "a.srt").read_bytes() == b"one"
    store.delete("srt/calls/a.srt")
    shutil.rmtree(tmp_path / "real" / link)
    (tmp_path / "real" / link).symlink_to(tmp_path / "else")
    (tmp_path / "else" / "calls").mkdir()
    expected = f"{tmp_path}/out/{link} is a symbolic link, which is not followed: put a folder in its place"
    for change in (
        lambda: store.create("srt/calls/new.srt", [b"ours"]),
        lambda: store.write("srt/calls/a.srt", [b"ours"]),
        lambda: store.delete("srt/calls/a.srt"),
    ):
        with pytest.raises(StorageError, match=re.escape(expected)):
            change()
    (tmp_path / "out" / "summary.json").symlink_to(tmp_path / "else" / "a.srt")
    store.write("summary.json", [b"ours"])
    assert (store.read("summary.json"), (tmp_path / "else" / "a.srt").read_bytes()) == (b"ours", b"theirs")
    assert sorted(os.listdir(tmp_path / "else")) == ["a.srt", "calls"]
    assert not os.listdir(tmp_path / "else" / "calls")


def test_file_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    """A file in place of a folder, and a name that is too long, give plain error messages."""
    store = Stores().out(str(tmp_path))
    store.create("a", [b""])
    store.create("folder/b", [b""])
    calls: tuple[Callable[[], object], ...]
    calls = (lambda: store.read("folder"), lambda: store.write("folder", [b""]), lambda: store.delete("folder"))
    for call in calls:
        with pytest.raises(StorageError, match="/folder: a folder stands where a file is needed: move it away, or "):
            call()
    store.delete("folder/b")
    os.rmdir(tmp_path / "folder")
    with pytest.raises(StorageError, match="a file stands where a folder is needed: choose another OUT with -o"):
        store.create("a/b", [b""])
    with pytest.raises(StorageError, match="the name is too long for this file system"):
        store.create("x" * 256, [b""])
    with pytest.raises(StorageError, match=f"cannot read {tmp_path}/missing"):
        list(store.lines("missing"))
    assert os.listdir(tmp_path) == ["a"]


def test_regular_files_open_at_their_start(tmp_path: Path) -> None:
    """A file, a link and a name that is not UTF-8 are opened at position 0, closed on exit, and not inherited by child
    processes.
    """
    good = tmp_path / "good.wav"
    good.write_bytes(b"RIFF")
    (tmp_path / "link.wav").symlink_to("good.wav")
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/b\xff\xfe.wav")
    os.link(good, odd)
    for path in (str(good), str(tmp_path / "link.wav"), odd):
        with closing(Stores().recording(path)) as recording:
            fd = recording.fileno()
            assert os.read(fd, 10) == recording.pread(10, 0) == b"RIFF"
            assert not os.get_inheritable(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_only_regular_files_open(tmp_path: Path) -> None:
    """Anything but a regular file is refused at once with its kind; opening a FIFO does not wait for a writer."""
    os.mkfifo(tmp_path / "fifo.wav")
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "loop.wav").symlink_to("loop.wav")
    (tmp_path / "dead.wav").symlink_to("nowhere.wav")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.wav"))
        refused = {
            tmp_path / "fifo.wav": "it is a FIFO",
            tmp_path / "folder.wav": "it is a folder",
            Path("/dev/zero"): "it is a device",
            tmp_path / "socket.wav": "cannot open",
            tmp_path / "loop.wav": "Too many levels of symbolic links",
            tmp_path / "dead.wav": "No such file",
            tmp_path / "a\0b.wav": "null",
            tmp_path / "lone\ud800.wav": "surrogates not allowed",
        }
        for path, why in refused.items():
            with pytest.raises(AudioError, match=why):
                Stores().recording(str(path))


@pytest.mark.parametrize(
    ("place", "name", "command"),
    [
        ("/my out", "parts/a.jsonl", "rm '/my out/parts/a.jsonl'"),
        ("/my out", "parts/a-*", "rm '/my out/parts'/a-*"),
        ("gs://b/out", "parts/a-*", "gcloud storage rm 'gs://b/out/parts/a-*'"),
        ("s3://b/out", "parts/a.jsonl", "aws s3 rm s3://b/out/parts/a.jsonl"),
        ("s3://b/out", "parts/a-*", "aws s3 rm s3://b/out/parts/ --recursive --exclude '*' --include 'a-*'"),
    ],
)
def test_one_command_removes_files_of_a_pattern(place: str, name: str, command: str) -> None:
    """The shell expands a pattern of local names; the programs of the stores expand their own."""
    assert remove_command(place, name) == command
