"""Find the ffmpeg to run, its version, and the limits under which it runs. `ffmpeg_stream` decodes with it."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from voxbatch.errors import AudioError, ConfigError, ItemError
from voxbatch.failure_kinds import FailureKind
from voxbatch.process.child import for_program
from voxbatch.process.confinement import (
    EXECUTE,
    ON,
    READ_DIR,
    READ_FILE,
    SWITCH,
    WRITE_FILE,
    Limits,
    confined,
    decoder_limits,
    is_switched_off,
)

FFMPEG_VARIABLE = "VOXBATCH_FFMPEG"
"""Environment variable that names another ffmpeg."""
VERSION_TIMEOUT_S = 60
"""Seconds that ffmpeg may take to print its version."""
_LOADER = re.compile(rb"(/[!-~]*/ld[!-~]*\.so[!-~]*)\0")
"""Name of the program that loads libraries, in the header of a program that needs some."""
_HEADER_BYTES = 4096
_LIBRARIES = ("/usr", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/ld.so.preload")
"""Places of the libraries of the system."""

_Result = TypeVar("_Result")


class FFmpegKilledError(ItemError):
    """ffmpeg was killed by this machine or by a stop. The recording is not to blame, and a retry may succeed."""

    kind = FailureKind.DECODER
    retryable = True


@functools.cache
def executable() -> str:
    """Return the path of the ffmpeg to run.

    VOXBATCH_FFMPEG comes first, then the binary inside the wheel of imageio-ffmpeg, then the system's ffmpeg. The wheel
    comes before the system, because the lock files pin its version: every machine and worker then decodes to the same
    samples and fails with the same messages.

    Raises:
        ConfigError: VOXBATCH_FFMPEG names no program.
        AudioError: there is no ffmpeg.
    """
    if chosen := os.environ.get(FFMPEG_VARIABLE):
        program = shutil.which(chosen)
        if program is None:
            raise ConfigError(f"{FFMPEG_VARIABLE}={chosen}: no such program; give the path of an ffmpeg, or unset it")
        return program
    try:
        import imageio_ffmpeg

        program = shutil.which(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):  # the package, or a binary for this platform, is missing
        program = shutil.which("ffmpeg")
    if program is None:
        text = "this format needs ffmpeg, which is not installed: pip install imageio-ffmpeg"
        raise AudioError(text, FailureKind.NO_FFMPEG)
    return program


@functools.cache
def version() -> str:
    """Return the version of `executable` and its origin.

    Examples are "7.0.2-static (imageio-ffmpeg 0.6.0)", "5.1.9-0+deb12u1 (system)" and "… (VOXBATCH_FFMPEG)".

    Raises:
        ConfigError: the program does not run, or VOXBATCH_FFMPEG names no program.
        AudioError: there is no ffmpeg.
    """
    program = executable()
    try:
        printed, _ = _printed_version(program)
    except (OSError, subprocess.SubprocessError) as e:
        raise ConfigError(f"{program} does not run as ffmpeg: {e}; set {FFMPEG_VARIABLE} to another one") from e
    number = re.match(r"ffmpeg version (\S+)", printed)
    if os.environ.get(FFMPEG_VARIABLE):
        origin = FFMPEG_VARIABLE
    elif "imageio_ffmpeg" in Path(program).parts:
        origin = f"imageio-ffmpeg {metadata.version('imageio-ffmpeg')}"
    else:
        origin = "system"
    return f"{number[1] if number else 'unknown'} ({origin})"


def start(run: Callable[[], _Result], recording_fd: int) -> _Result:
    """Return what a function returns that starts ffmpeg, which may then read the file behind a descriptor and its own
    libraries: no other file, no network, no other process. Some kernels grant less: see process.confinement."""
    return confined(run, _limits(executable(), recording_fd)) if runs_confined() else run()


def check_disk(messages: bytes) -> None:
    """Check the messages of an ffmpeg that failed to write a file.

    Raises:
        OSError: the disk is full.
    """
    full = os.strerror(errno.ENOSPC)
    if full.encode() in messages:
        raise OSError(errno.ENOSPC, full)


def runs_confined() -> bool:
    """Return whether the ffmpeg to run does so under its limits. A script does not: it may start any program.

    Raises:
        AudioError, ConfigError: see `executable`.
    """
    return is_confinable() and not _is_script(executable())


def is_confinable() -> bool:
    """Return whether a decoder can be confined: its ffmpeg still runs then. One that needs more rights, such as a snap
    of Ubuntu, does not.

    Raises:
        AudioError, ConfigError: see `executable`.
    """
    if os.environ.get(SWITCH) == ON or is_switched_off():
        return not is_switched_off()
    try:
        return _printed_version(executable())[1]
    except (OSError, subprocess.SubprocessError):
        return False


@functools.cache
def _printed_version(program: str) -> tuple[str, bool]:
    """Return what ffmpeg prints as its version, and whether it does so under its limits.

    Raises:
        OSError, subprocess.SubprocessError: it does not run.
    """

    def run() -> str:
        done = subprocess.run(
            [program, "-version"],
            capture_output=True,
            check=True,
            timeout=VERSION_TIMEOUT_S,
            env=for_program(os.environ),
        )
        return done.stdout.decode("utf-8", "replace")

    if not is_switched_off():
        own = () if _is_script(program) else (_limits(program),)
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return confined(run, decoder_limits(), *own), True
    return run(), False


@functools.cache
def _is_script(program: str) -> bool:
    with contextlib.suppress(OSError), open(program, "rb") as file:
        return file.read(2) == b"#!"
    return False


def _limits(program: str, *recordings: int) -> Limits:
    """Return the limits of a program that reads open files."""
    return Limits((*_program_rules(program), *((fd, READ_FILE) for fd in recordings)))


@functools.cache
def _program_rules(program: str) -> tuple[tuple[str, int], ...]:
    """Return what a program must read and execute to start, and what Python needs to start it."""
    rules = [(program, EXECUTE | READ_FILE), ("/dev/null", READ_FILE | WRITE_FILE), ("/proc", READ_DIR)]
    with open(program, "rb") as file:
        loader = _LOADER.search(file.read(_HEADER_BYTES))
    if loader:
        own = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(program))), "lib")  # of conda, for example
        chosen = re.split("[: ]", ":".join(os.environ.get(name, "") for name in ("LD_LIBRARY_PATH", "LD_PRELOAD")))
        rules.append((os.fsdecode(loader[1]), EXECUTE | READ_FILE))
        rules += [(place, READ_FILE | READ_DIR) for place in (*_LIBRARIES, own, *filter(None, chosen))]
    return tuple(rules)
