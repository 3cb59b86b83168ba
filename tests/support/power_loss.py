"""A model of a disk that loses its power. The system calls of a program, traced by strace, give each state that the
disk may be left in.

A file system may write anything back at any time, and need not before it is told to. After each call, two extreme disks
are modelled: one has nothing but what was synced; the other has all names, but only the synced bytes, as XFS leaves a
file that was renamed before its bytes were written. Where the name of a folder is lost, everything in it is lost.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

CALLS = "openat,write,linkat,rename,renameat,mkdir,mkdirat,unlink,unlinkat,fsync,syncfs"
_CALL = re.compile(r"\d+ +(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>\d+)(?:<(?P<opened>.*)>.*)?")
_UNFINISHED, _RESUMED = re.compile(r"(\d+) +(.*) <unfinished \.\.\.>"), re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")
_TEXT = re.compile(r"<([^<>]*)>|\"([^\"]*)\"")
_FOLDER = "a folder"

State = Mapping[str, bytes]
"""The files of a disk: path → bytes."""


def states(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> tuple[int, list[State]]:
    """Run a command that changes a folder.

    Returns:
        Its exit code, and the different states that a loss of power may leave the folder in, in the order of time. At
        the start, everything is synced.
    """
    strace = shutil.which("strace")
    if strace is None or subprocess.run([strace, "-o", "/dev/null", "true"], capture_output=True).returncode:
        pytest.skip("this takes strace (apt-get install strace), and leave to trace processes")
    disk = _Disk(folder)
    trace = folder.with_name(f"{folder.name}.trace")
    traced = [strace, "-f", "-y", "-qq", "-xx", "-s", str(1 << 20), "-o", str(trace), "-e", f"trace={CALLS}", *command]
    done = subprocess.run(traced, env=variables, capture_output=True, text=True)
    found = {}
    for name, texts, result, opened in _calls(trace.read_text()):
        disk.apply(name, texts, result, opened)
        for state in disk.states():
            found[tuple(sorted(state.items()))] = state
    return done.returncode, list(found.values())


def restore(state: State, folder: Path) -> None:
    """Make a folder hold the files of a state, and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, content in state.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)


def _calls(trace: str) -> Iterator[tuple[str, list[str], int, str]]:
    """Yield the name, the paths and data, the result and the opened path of each call that succeeded, in the order of
    their ends."""
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        if match := _UNFINISHED.fullmatch(line):
            begun[match[1]] = match[2]
            continue
        if match := _RESUMED.fullmatch(line):
            line = f"{match[1]} {begun.pop(match[1])}{match[2]}"
        if match := _CALL.fullmatch(line):
            texts = [_unescaped(path or quoted) for path, quoted in _TEXT.findall(match["arguments"])]
            if match["name"] == "openat" and "O_TMPFILE" not in match["arguments"]:
                continue
            yield match["name"], texts, int(match["result"]), _unescaped(match["opened"] or "")


def _unescaped(text: str) -> str:
    r"""Return text of strace (\x2f\x74) with one character for each byte."""
    return bytes.fromhex(text.replace("\\x", "")).decode("latin-1")


class _Disk:
    def __init__(self, folder: Path):
        self._root = str(folder)
        self._names = {self._root: _FOLDER}
        """Path → number of the file, or _FOLDER."""
        self._bytes: dict[str, bytes] = {}
        """Number of a file → its bytes."""
        self._open: dict[str, str] = {}
        """Path of an open file without a name → number of the file."""
        self._descriptors: dict[str, str] = {}
        """Path of a descriptor → number of the file."""
        for path in folder.rglob("*"):
            self._names[str(path)] = str(path) if path.is_file() else _FOLDER
            if path.is_file():
                self._bytes[str(path)] = path.read_bytes()
        self._sync_all()

    def apply(self, name: str, texts: Sequence[str], result: int, opened: str) -> None:  # noqa: C901 one case a call
        """Apply a call, if it is about the folder."""
        at = texts[2] if name == "linkat" else opened or texts[0]
        if not f"{at}/".startswith(f"{self._root}/"):
            return
        match name:
            case "openat":
                number = f"file {len(self._bytes)}"
                self._bytes[number] = b""
                self._open[opened] = self._descriptors[f"/proc/self/fd/{result}"] = number
            case "write":
                self._bytes[self._number(at)] += texts[1].encode("latin-1")
            case "linkat":
                self._names[f"{at}/{texts[3]}"] = self._descriptors[texts[1]]
            case "rename" | "renameat":
                old, new = texts if name == "rename" else (f"{at}/{texts[1]}", f"{texts[2]}/{texts[3]}")
                self._names[new] = self._names.pop(old)
            case "mkdir" | "mkdirat":
                self._names[at if name == "mkdir" else f"{at}/{texts[1]}"] = _FOLDER
            case "unlink" | "unlinkat":
                del self._names[at if name == "unlink" else f"{at}/{texts[1]}"]
            case "fsync" if self._names.get(at) == _FOLDER:
                self._sync_names(at)
            case "fsync":
                number = self._number(at)
                self._synced_bytes[number] = self._bytes[number]
            case "syncfs":
                self._sync_all()

    def _number(self, path: str) -> str:
        return self._names.get(path) or self._open[path]

    def _sync_all(self) -> None:
        self._synced_names, self._synced_bytes = dict(self._names), dict(self._bytes)

    def _sync_names(self, folder: str) -> None:
        inside = [path for path in {**self._names, **self._synced_names} if path.rpartition("/")[0] == folder]
        for path in inside:
            self._synced_names.pop(path, None)
            if path in self._names:
                self._synced_names[path] = self._names[path]

    def states(self) -> Iterator[State]:
        """Yield the states that the disk may be left in."""
        for names in (self._synced_names, self._names):
            yield {
                path: self._synced_bytes.get(number, b"")
                for path, number in names.items()
                if number != _FOLDER and all(above in names for above in self._folders_of(path))
            }

    def _folders_of(self, path: str) -> Iterator[str]:
        while path != self._root:
            path = path.rpartition("/")[0]
            yield path
