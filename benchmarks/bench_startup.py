"""Measure the time of `voxbatch --help`, and list the heavy libraries that importing voxbatch loads."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from common import VOXBATCH, Bars, machine

HELP_S = 0.3
"""Maximum seconds of `voxbatch --help`."""
HEAVY = ("torch", "vllm", "google.cloud", "boto3", "botocore", "librosa", "faster_whisper", "ctranslate2")
"""Engines, cloud SDKs, and libraries that only one package may import, while it runs."""


def help_seconds() -> float:
    """Return the seconds of one `voxbatch --help`."""
    began = time.perf_counter()
    subprocess.run([*VOXBATCH, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def imported(statement: str) -> list[str]:
    """Return the modules of HEAVY that are in sys.modules after a statement in a fresh interpreter."""
    program = f"{statement}; import sys; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    times = parser.parse_args().times
    bars = Bars()
    print(machine())
    seconds = [help_seconds() for _ in range(times)]
    print(f"voxbatch --help, {times} times: {min(seconds):.3f} to {max(seconds):.3f} s")
    bars.at_most("median", statistics.median(seconds), HELP_S, "s")
    for statement in ("import voxbatch", "import voxbatch.cli", "import voxbatch.runner"):
        found = imported(statement)
        bars.holds(f"`{statement}` imports no engine, cloud SDK or librosa", not found, ", ".join(found))
    bars.leave()


if __name__ == "__main__":
    main()
