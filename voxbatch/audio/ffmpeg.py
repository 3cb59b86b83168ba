"""Find the ffmpeg to run, and its version. `ffmpeg_stream` decodes with it."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from voxbatch.errors import AudioError, ConfigError, ItemError
from voxbatch.failure_kinds import FailureKind
from voxbatch.process.child import for_program

FFMPEG_VARIABLE = "VOXBATCH_FFMPEG"
"""Environment variable that names another ffmpeg."""
VERSION_TIMEOUT_S = 60
"""Seconds that ffmpeg may take to print its version."""


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
        done = subprocess.run(
            [program, "-version"],
            capture_output=True,
            check=True,
            timeout=VERSION_TIMEOUT_S,
            env=for_program(os.environ),
        )
    except (OSError, subprocess.SubprocessError) as e:
        raise ConfigError(f"{program} does not run as ffmpeg: {e}; set {FFMPEG_VARIABLE} to another one") from e
    number = re.match(r"ffmpeg version (\S+)", done.stdout.decode("utf-8", "replace"))
    if os.environ.get(FFMPEG_VARIABLE):
        origin = FFMPEG_VARIABLE
    elif "imageio_ffmpeg" in Path(program).parts:
        origin = f"imageio-ffmpeg {metadata.version('imageio-ffmpeg')}"
    else:
        origin = "system"
    return f"{number[1] if number else 'unknown'} ({origin})"
