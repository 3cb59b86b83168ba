#!/usr/bin/env bash
# Good guess: ffmpeg writes the cues of an SRT file into the text track of an MP4 at the times that they have.
# What happens: the track counts in microseconds. A break between two cues of more than 2^31 of them, 35 min 47 s, has no
#   length: the next cue begins where the one before ends, and all later ones are early by the break, with exit code 0.
#   Matroska keeps the times, and so does MP4 with "-time_base:s:0 1/1000".
# Date: 2026-11-30. Source: found by running imageio-ffmpeg==0.6.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile imageio-ffmpeg==0.6.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import re
import subprocess
import sys

import imageio_ffmpeg

program = imageio_ffmpeg.get_ffmpeg_exe()
print("version:", subprocess.check_output([program, "-version"], text=True).splitlines()[0])
ffmpeg = [program, "-nostdin", "-loglevel", "error", "-y"]


def clock(seconds):
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02},000"


def last_cue(break_minutes, name, *options):
    """Return the start of a cue after a break in a file, and that in the subtitles that it was made from, in seconds."""
    minutes = 1 + break_minutes
    times = [(30, 60), (minutes * 60, minutes * 60 + 2)]
    with open("a.srt", "w") as file:
        for number, (start, end) in enumerate(times, 1):
            file.write(f"{number}\n{clock(start)} --> {clock(end)}\nCue {number}.\n\n")
    subprocess.run([*ffmpeg, "-i", "a.srt", *options, name], check=True)
    text = subprocess.check_output([*ffmpeg, "-i", name, "-f", "srt", "-"], text=True)
    hours, mins, secs = map(int, re.findall(r"(\d+):(\d+):(\d+),\d+ -->", text)[-1])
    return hours * 3600 + mins * 60 + secs, minutes * 60


same = True
for break_minutes, has_overflow in ((30, False), (35, False), (36, True), (60, True)):
    for name, options, may_overflow in (
        ("a.mp4", ("-c:s", "mov_text"), True),
        ("b.mp4", ("-c:s", "mov_text", "-time_base:s:0", "1/1000"), False),
        ("a.mkv", ("-c:s", "srt"), False),
    ):
        got, wanted = last_cue(break_minutes, name, *options)
        print(f"break of {break_minutes} min, {' '.join(options[1:])}: the cue at {wanted} s is at {got} s")
        same &= got == (60 if has_overflow and may_overflow else wanted)

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
