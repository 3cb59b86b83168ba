"""Measure what the confinement of decoders costs, and prove that it changes no sample.

Each pass is a process that decodes all files of a folder. It is confined as a decoder is, or not at all, and so is
its ffmpeg. The passes come in the order off, on, on, off, so that a drift of the machine falls on both. The CPU time is
that of the process and of its ffmpeg, and begins before the process confines itself. Both kinds of pass must give the
same samples and warnings for each recording, and the same error for each file that is none. All of it is done with the
ffmpeg of imageio-ffmpeg, and again with the system's if there is one.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from common import Bars, corpus, machine, parser

ORDER = ("off", "on", "on", "off")


def cpu_s() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def digest(path: Path) -> str:
    """Return a digest of the samples and the warnings of a recording, or the error of a file that is none."""
    from voxbatch.audio.waveforms import decode
    from voxbatch.errors import VoxbatchError
    from voxbatch.storage import Stores

    content, warnings = hashlib.sha256(), list[str]()
    try:
        with closing(Stores().recording(str(path))) as recording:
            for block in decode(recording, str(path), warn=warnings.append):
                content.update(block.samples.tobytes())
    except VoxbatchError as e:
        return f"{type(e).__name__}: {e}"
    return f"{content.hexdigest()} {warnings}"


def decode_all(folder: Path) -> None:
    """Decode the files of a folder, in this process, and print the CPU seconds and the digests."""
    import voxbatch.audio.waveforms  # noqa: F401 its import is no part of the measurement
    from voxbatch.process import confinement

    began = cpu_s()
    confinement.confine(confinement.decoder_limits())
    digests = {str(path): digest(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    json.dump({"cpu_s": cpu_s() - began, "digests": digests}, sys.stdout)


def measured(folder: Path, switch: str, ffmpeg: str) -> tuple[float, dict[str, str]]:
    """Return the CPU seconds and the digests of a pass."""
    environment = {**os.environ, "VOXBATCH_CONFINEMENT": switch, "VOXBATCH_FFMPEG": ffmpeg}
    command = [sys.executable, __file__, "--folder", str(folder), "--decode"]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    result = json.loads(done.stdout)
    return result["cpu_s"], result["digests"]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--folder", type=Path, help="default: the test recordings")
    options.add_argument("--rounds", type=int, default=3, help="of four passes with each ffmpeg")
    options.add_argument("--decode", action="store_true", help="one pass, in this process")
    given = options.parse_args()
    folder = given.folder or corpus()
    if given.decode:
        decode_all(folder)
        return
    import imageio_ffmpeg

    from voxbatch.process import confinement

    bars = Bars()
    print(machine(), confinement.granted())
    programs = {"imageio's": imageio_ffmpeg.get_ffmpeg_exe(), "the system's": shutil.which("ffmpeg")}
    for title, ffmpeg in programs.items():
        if ffmpeg is None:
            continue
        seconds: dict[str, list[float]] = {"off": [], "on": []}
        results: dict[str, dict[str, str]] = {}
        for _ in range(given.rounds):
            for switch in ORDER:
                cpu, results[switch] = measured(folder, switch, ffmpeg)
                seconds[switch].append(cpu)
        off, on = statistics.median(seconds["off"]), statistics.median(seconds["on"])
        listed = {switch: " ".join(f"{cpu:.2f}" for cpu in passes) for switch, passes in seconds.items()}
        print(f"{title} ffmpeg: {len(results['on'])} files; CPU s off {listed['off']}; on {listed['on']}")
        print(f"  medians {off:.2f} off, {on:.2f} on")
        differing = [path for path, value in results["off"].items() if results["on"][path] != value]
        for path in differing:
            print(f"  {path}", results["off"][path], results["on"][path], sep="\n    ")
        bars.at_most(f"files that differ, {title} ffmpeg", len(differing), 0, "")
        bars.at_most(f"CPU time of the confinement, {title} ffmpeg", 100 * (on / off - 1), 2, "%")
    bars.leave()


if __name__ == "__main__":
    main()
