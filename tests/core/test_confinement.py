"""Tests for the confinement of decoders and ffmpeg: what it keeps from them, and that nothing fails without it."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import IMPORT_PATH, Recorder
from decoded_samples import decoded

from voxbatch.audio import ffmpeg
from voxbatch.process import confinement
from voxbatch.process.confinement import READ_FILE, Confinement, Limits, confined, decoder_limits

needs_landlock = pytest.mark.skipif(not confinement.landlock_version(), reason="this kernel has no Landlock")
needs_seccomp = pytest.mark.skipif(not confinement.granted().seccomp, reason="this kernel has no seccomp")
NOBODY = 65534


def refused(action: Callable[[], object]) -> int:
    """Return the number of the error with which the kernel refuses an action; 0 if it does not."""
    try:
        action()
    except OSError as e:
        return e.errno or 0
    return 0


def read(path: Path | str) -> None:
    with open(path, "rb"):
        pass


def overwrite(path: Path | str) -> None:
    with open(path, "wb"):
        pass


@needs_landlock
def test_only_files_of_the_list_are_read(tmp_path: Path) -> None:
    """A thread with a rule for one open file reads that file, by any name, and no other; the process is as before."""
    (named := tmp_path / "a").write_text("a")
    (other := tmp_path / "b").write_text("b")
    with named.open() as file:
        limits = Limits(((file.fileno(), READ_FILE),))

        def attempts() -> list[int]:
            name = f"/proc/self/fd/{file.fileno()}"
            paths = (name, named, other, tmp_path / "c", f"/proc/{os.getppid()}/environ")
            return [refused(partial(read, path)) for path in paths]

        assert confined(attempts, limits) == [0, 0, errno.EACCES, errno.ENOENT, errno.EACCES]
    assert other.read_text() == "b"


@needs_landlock
def test_decoders_change_no_files_but_temporary_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the limits of a decoder, files are read anywhere, and written only in TMPDIR."""
    (temporary := tmp_path / "tmp").mkdir()
    (kept := tmp_path / "out.jsonl").write_text("{}")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def attempts() -> list[int]:
        changes = (partial(overwrite, kept), kept.unlink, (tmp_path / "new").mkdir)
        others = (partial(overwrite, temporary / "x"), partial(read, kept), partial(overwrite, "/dev/null"))
        return [refused(action) for action in (*changes, *others, lambda: socket.socket().close())]

    assert confined(attempts, decoder_limits()) == [*[errno.EACCES] * 3, *[0] * 4]
    assert kept.read_text() == "{}"


@needs_seccomp
def test_system_calls_of_no_decoder_are_refused() -> None:
    """A confined program opens no socket, and looks into no other process; it goes on after the refusal."""
    libc = ctypes.CDLL(None, use_errno=True)

    def peeked() -> None:
        ctypes.set_errno(0)
        libc.process_vm_readv(os.getppid(), None, 0, None, 0, 0)
        raise OSError(ctypes.get_errno(), "")

    assert confined(lambda: [refused(socket.socket), refused(peeked)], Limits(())) == [errno.EPERM] * 2
    assert confined(lambda: refused(peeked), decoder_limits()) == errno.EPERM


def test_exceptions_come_back() -> None:
    """An exception of the confined function is raised by its caller."""
    with pytest.raises(ZeroDivisionError):
        confined(lambda: 1 // 0, Limits(()))


HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    """The numbers of system calls are those of the headers, for both kinds of machines."""
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip("the headers of Linux are not installed")
    numbers = dict(re.findall(r"#define __NR_(\w+)\s+(\d+)", header.read_text()))
    column = list(HEADERS).index(machine)
    for name, calls in confinement._CALLS.items():
        assert str(calls[column]) == numbers[name], name
    assert str(confinement._SECCOMP[machine]) == numbers["seccomp"]
    for name, number in (("create_ruleset", 444), ("add_rule", 445), ("restrict_self", 446)):
        assert numbers.get(f"landlock_{name}", str(number)) == str(number)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield a folder that every user can write."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("hides", [False, True])
def test_a_child_reads_no_secrets_of_its_parent(hides: bool, open_folder: Path) -> None:
    """Another process of the user reads the variables of a process, unless it hides its memory."""
    program = "import os, subprocess\nfrom voxbatch.process.confinement import hide_memory\n"
    program += "hide_memory()\n" * hides + "subprocess.run(['cat', f'/proc/{os.getpid()}/environ'])"
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH, "PLANTED": "secret"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment, cwd=open_folder, check=True,
        user=None if os.geteuid() else NOBODY,
    )  # fmt: skip
    assert (b"PLANTED=secret" in done.stdout) is not hides
    assert (b"Permission denied" in done.stderr) is hides


@pytest.mark.parametrize(("switch", "is_hidden"), [("on", True), ("off", False)])
def test_a_command_hides_its_memory(switch: str, is_hidden: bool, open_folder: Path) -> None:
    """The files in /proc of a command that hides its memory belong to root. VOXBATCH_CONFINEMENT=off leaves it out."""
    (program := open_folder / "ffmpeg").write_text(
        "#!/bin/sh\necho ffmpeg version $(stat -c owner=%u /proc/$PPID/environ)\n"
    )
    program.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": IMPORT_PATH, "HOME": str(open_folder)}
    done = subprocess.run(
        [sys.executable, "-m", "voxbatch", "doctor"], capture_output=True, text=True, cwd=open_folder, check=False,
        env={**environment, "VOXBATCH_FFMPEG": str(program), confinement.SWITCH: switch},
        user=None if os.geteuid() else NOBODY,
    )  # fmt: skip
    owner = 0 if is_hidden else os.geteuid() or NOBODY
    assert f"owner={owner} (VOXBATCH_FFMPEG)" in done.stdout
    finding = next(line for line in done.stdout.splitlines() if "confinement" in line)
    assert ("this ffmpeg is a script" if is_hidden else "VOXBATCH_CONFINEMENT=off") in finding


def kinds_of_ffmpeg() -> list[str]:
    """Return the ffmpegs of this machine: that of the wheel, which is static, and the system's."""
    return [program for program in (ffmpeg.executable(), shutil.which("ffmpeg")) if program]


@pytest.fixture(params=kinds_of_ffmpeg())
def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Choose an ffmpeg."""
    monkeypatch.setenv(ffmpeg.FFMPEG_VARIABLE, request.param)
    ffmpeg.executable.cache_clear()
    yield request.param
    monkeypatch.undo()
    ffmpeg.executable.cache_clear()


@needs_landlock
def test_ffmpeg_reads_its_recording_and_nothing_else(chosen: str, recording: Recorder, tmp_path: Path) -> None:
    """A confined ffmpeg converts the file behind its descriptor. It reads no other file by name, and writes none."""
    own, other = recording("a.wav", 1), recording("b.wav", 1)

    def converted(source: str, target: str, fd: int) -> subprocess.CompletedProcess[bytes]:
        command = [chosen, "-v", "error", "-y", "-i", source, "-f", "wav", target]
        return ffmpeg.start(
            lambda: subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL, pass_fds=(fd,)),
            fd,
        )

    with open(own, "rb") as file:
        fd = file.fileno()
        assert ffmpeg.runs_confined()
        assert len(converted(f"/dev/fd/{fd}", "pipe:1", fd).stdout) > 32_000
        assert b"Permission denied" in converted(str(other), "pipe:1", fd).stderr
        assert b"Permission denied" in converted(f"/dev/fd/{fd}", str(tmp_path / "new.wav"), fd).stderr
        assert b"denied" in converted(f"/proc/{os.getpid()}/environ", "pipe:1", fd).stderr
        assert b"not permitted" in converted("tcp://127.0.0.1:9", "pipe:1", fd).stderr


def test_a_recording_in_memory_is_read(chosen: str, recording: Recorder, tmp_path: Path) -> None:
    """A file without a name in memory needs no rule: a part of a recording is decoded from one."""
    subprocess.run([chosen, "-v", "error", "-i", recording("a.wav", 1), "-c", "copy", tmp_path / "a.mka"], check=True)
    fd = os.memfd_create("recording")
    with open(fd, "wb") as file:
        file.write((tmp_path / "a.mka").read_bytes())
        file.flush()
        command = [chosen, "-v", "error", "-i", f"/dev/fd/{fd}", "-f", "s16le", "pipe:1"]
        done = ffmpeg.start(lambda: subprocess.run(command, capture_output=True, check=True, pass_fds=(fd,)), fd)
    assert len(done.stdout) == 32_000


@pytest.mark.parametrize("missing", ["landlock", "seccomp", "both"])
def test_nothing_fails_where_the_kernel_grants_less(
    missing: str, recording: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The samples are the same, whatever the kernel grants: an old one, gVisor, a container that forbids the calls."""
    subprocess.run([ffmpeg.executable(), "-v", "error", "-i", recording("a.wav", 1), tmp_path / "a.mka"], check=True)
    expected, _ = decoded(tmp_path / "a.mka")
    call, forbidden = confinement._call, {"landlock": {444, 445, 446}, "seccomp": {317, 277}, "both": set(range(500))}

    def refusing(number: int, *arguments: int | bytes) -> int:
        if number in forbidden[missing]:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return call(number, *arguments)

    confinement.landlock_version.cache_clear()
    monkeypatch.setattr(confinement, "_call", refusing)
    grant = confinement.granted()
    assert (bool(grant.landlock), grant.seccomp) == (missing == "seccomp", missing == "landlock")
    assert np.array_equal(decoded(tmp_path / "a.mka")[0], expected)
    confinement.landlock_version.cache_clear()


def test_the_confinement_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With VOXBATCH_CONFINEMENT=off, nothing is confined."""
    monkeypatch.setenv(confinement.SWITCH, "off")
    assert confinement.granted() == Confinement()
    assert not ffmpeg.runs_confined()
    assert confined(lambda: refused(lambda: read("/etc/passwd")), Limits(())) == 0
