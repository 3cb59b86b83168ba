#!/usr/bin/env bash
# Good guess: if one read of a WAV file's header fails, as on a network file system, soundfile raises an error.
# What happens: libsndfile goes on with zeros. After a failed read of the field that gives the bits of a sample, a file of
#   16 bits opens as one of 8 bits with twice as many frames, which are noise; sf_error() says 0. The same happens with a
#   file descriptor whose read() fails once (tried with strace). A failed read of another field is an error.
# Date: 2026-11-30. Source: found by running soundfile==0.14.0 (libsndfile 1.2.2).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile soundfile==0.14.0 numpy==2.3.5
cd "$folder"
"$folder/venv/bin/python" - 2>stderr.txt <<'PYTHON' || { tail -n 3 stderr.txt; exit 1; }
import errno
import io
import sys

import numpy as np
import soundfile

print("version: soundfile", soundfile.__version__, soundfile.__libsndfile_version__)
FRAMES = 48_000
tone = np.sin(np.arange(FRAMES) / 20) / 2
soundfile.write("a.wav", tone, 48_000, "PCM_16")


class FailsOnce(io.FileIO):
    """A file of which one read fails."""

    def __init__(self, number):
        super().__init__("a.wav")
        self.left = number

    def readinto(self, buffer):
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.EIO, "Input/output error")
        return super().readinto(buffer)


outcomes = {}
for number in range(1, 16):
    try:
        with soundfile.SoundFile(FailsOnce(number)) as file:
            code = soundfile._snd.sf_error(file._file)
            outcomes[number] = f"{file.subtype}, {file.frames} frames, sf_error {code}"
            if file.subtype == "PCM_U8":
                heard = file.read(FRAMES)
                outcomes[number] += f", correlation with the tone {abs(np.corrcoef(heard, tone)[0, 1]):.2f}"
    except soundfile.LibsndfileError as error:
        outcomes[number] = f"error: {error.error_string}"
for number, outcome in outcomes.items():
    print(f"read {number} fails: {outcome}")
wrong = [text for text in outcomes.values() if text.startswith(f"PCM_U8, {2 * FRAMES} frames, sf_error 0")]
errors = [text for text in outcomes.values() if text.startswith("error")]
same = bool(wrong) and bool(errors)
print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
