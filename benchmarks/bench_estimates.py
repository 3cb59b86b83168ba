"""Compare the end that a run promises after a twentieth of its work with its real end, for six kinds of runs.

Bar: at most 20 % off. Take a machine that does nothing else.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import soundfile
import stores
from common import Bars, english_rows, is_long, machine, parser, write_manifest

import voxbatch
from voxbatch.runner.progress import Progress

BAR = 0.2
PART = 0.05
"""Part of the work after which the promise is taken."""


def promised(source: Path, out: str, stop_at: float = 2.0) -> tuple[float, float]:
    """Run. Return the seconds that were promised after PART of the work, and the real ones.

    Args:
        stop_at: the part of the items after which the run is stopped.
    """
    first: Progress | None = None
    expected_s = float("nan")
    with voxbatch.start(source, out=out, report=False) as run:
        for progress in run.progress_changes():
            first = first or progress
            done = (progress.fraction - first.fraction) / (1 - first.fraction)
            if expected_s != expected_s and done >= PART and progress.remaining_s is not None:
                expected_s = progress.wall_s + progress.remaining_s
            if progress.fraction >= stop_at:
                return expected_s, progress.wall_s
        return expected_s, progress.wall_s


def clips(folder: Path, times: int = 1) -> list[dict[str, Any]]:
    """Return the short English recordings, several times."""
    rows = [row for row in english_rows() if not is_long(row)]
    return [{**row, "id": f"{number}-{row['id']}"} for number in range(times) for row in rows]


def talks(folder: Path) -> list[dict[str, Any]]:
    """Return the long English recordings, twice."""
    rows = [row for row in english_rows() if is_long(row)]
    return [{**row, "id": f"{number}-{row['id']}"} for number in range(2) for row in rows]


def videos(folder: Path) -> list[dict[str, Any]]:
    """Write videos whose headers have no duration, one for each six short recordings."""
    paths = [row["audio_filepath"] for row in clips(folder)]
    rows = []
    for begin in range(0, len(paths), 6):
        inputs = [part for path in paths[begin : begin + 6] for part in ("-i", path)]
        num_inputs = len(inputs) // 2
        joined = "".join(f"[{index}:a]aresample=16000[a{index}];" for index in range(num_inputs))
        joined += "".join(f"[a{index}]" for index in range(num_inputs)) + f"concat=n={num_inputs}:v=0:a=1[a]"
        picture = ("-f", "lavfi", "-i", "color=s=64x64:r=5")
        maps = ("-map", "[a]", "-map", f"{num_inputs}:v", "-shortest", "-c:v", "mpeg4", "-c:a", "aac", "-f", "matroska")
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", *inputs, *picture]
        path = folder / f"{begin}.mkv"
        with open(path, "wb") as file:  # ffmpeg cannot go back in a pipe to write the duration
            writer = subprocess.Popen([*command, "-filter_complex", joined, *maps, "-"], stdout=subprocess.PIPE)
            file.write(writer.communicate()[0])
        rows.append({"id": path.stem, "audio_filepath": str(path)})
    return rows


def silence(folder: Path) -> list[dict[str, Any]]:
    """Write recordings of silence, of 30 to 600 seconds."""
    rows = []
    for number, seconds in enumerate(np.random.default_rng(1).integers(30, 600, 400)):
        path = folder / f"{number}.flac"
        soundfile.write(path, np.zeros(seconds * 16_000, np.int16), 16_000)
        rows.append({"id": path.stem, "audio_filepath": str(path), "duration": int(seconds)})
    return rows


MIXES: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "short clips": clips,
    "long talks": talks,
    "videos without a duration": videos,
    "silence": silence,
    "a bucket": clips,
    "a resumed run": lambda folder: clips(folder, 2),
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", nargs="+", choices=MIXES, default=list(MIXES))
    given = options.parse_args()
    print(machine())
    bars = Bars()
    for name in given.only:
        with stores.place("gcs" if name == "a bucket" else "local") as place, tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            rows = MIXES[name](folder)
            if name == "a bucket":
                place.put((Path(row["audio_filepath"]).name, Path(row["audio_filepath"]).read_bytes()) for row in rows)
                rows = [{**row, "audio_filepath": place / Path(row["audio_filepath"]).name} for row in rows]
            manifest = write_manifest(folder / "m.jsonl", rows)
            if name == "a resumed run":
                promised(manifest, place / "out", stop_at=0.4)
            expected_s, real_s = promised(manifest, place / "out")
        print(f"{name}: {len(rows):,} items, promised {expected_s:.0f} s, took {real_s:.0f} s")
        bars.at_most(f"{name}, off", abs(expected_s / real_s - 1), BAR)
    bars.leave()


if __name__ == "__main__":
    main()
