"""Run over a faulty store, in real time: all input and output of the runs pass a proxy that spoils requests.

There are four runs over the same recordings, each with the waits, limits and timeouts of a real run:

1. undisturbed;
2. with a tenth of all requests answered by 503, answered by 429 with Retry-After, reset before or after the server has
   received them, cut off in the middle, or not answered for 30 s;
3. with every write failing for 20 s;
4. with every request failing from some moment on. This must stop the run, and a second start must finish it.

The merged outputs must be the undisturbed run's, byte for byte, with no item in two parts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
from common import VOXBATCH, Bars, machine
from stores import KINDS, Place, committed, outputs, place, servers, through

from voxbatch.output.run_file import CHECK_INTERVAL_S
from voxbatch.storage.retry import STORE_REQUEST

STALL_S = 30.0
"""Seconds without an answer."""
OUTAGE_S = 20.0
"""Seconds in which all writes fail."""
SHARE = 0.1
"""Share of the requests that are spoiled."""


def fill(where: Place, items: int) -> None:
    """Write a manifest of `items` recordings, each half a second of noise."""
    with tempfile.TemporaryDirectory(prefix="voxbatch-faults-") as folder:
        path = Path(folder) / "noise.wav"
        soundfile.write(path, np.random.default_rng(0).normal(0, 0.05, 8_000), 16_000)
        names = [f"audio/{n:05d}.wav" for n in range(items)]
        where.put((name, path.read_bytes()) for name in names)
    rows = [{"audio_filepath": name, "duration": 0.5, "text": "one two"} for name in names]
    where.put(iter([("m.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())]))


def run(where: Place, out: str) -> tuple[int, float, str]:
    """Run voxbatch, and return (exit code, seconds, stderr)."""
    command = [
        *VOXBATCH, "run", where / "m.jsonl", "-o", where / out, "--engine", "scripted", "--part-items", "20",
        "--engine-option", "delay_s=0.05", "--formats", "srt", "--log-format", "json",
    ]  # fmt: skip
    began = time.monotonic()
    ran = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return ran.returncode, time.monotonic() - began, ran.stderr


def outage(begins: Callable[[servers.Asked], bool], seconds: float) -> Callable[[servers.Asked], servers.Fault]:
    """Return a fault that begins with the first matching request and then, for some seconds, fails all matching
    requests.

    Args:
        begins: matches requests.
        seconds: length of the outage; infinity fails all requests, not only the matching ones.
    """
    since: list[float] = []
    lock = threading.Lock()

    def spoil(request: servers.Asked) -> servers.Fault:
        with lock:
            if not since and begins(request):
                since.append(time.monotonic())
        failing = since and time.monotonic() - since[0] < seconds and (begins(request) or seconds == float("inf"))
        return "503" if failing else ""

    return spoil


def judge(
    where: Place, proxy: servers.Proxy, name: str, out: str, seconds: float, wanted: dict[str, bytes | None], bars: Bars
) -> None:
    """Compare a run of some seconds with the undisturbed run, and check its items and its number of requests.

    A run looks at its owner again and again, at run.json and at the lists, so these two are counted by time. It also
    does so before each commit.
    """
    bars.holds(f"{where.kind}, {name}: outputs equal to the undisturbed run's", outputs(where.store(out)) == wanted)
    bars.at_most(
        f"{where.kind}, {name}: items in two parts", sum(n > 1 for n in committed(where.store(out)).values()), 0
    )
    counts = proxy.counts()
    looks = [counts.pop(asked) for asked in list(counts) if asked[0] == "list" or asked[1].endswith("/run.json")]
    worst, commits = max(counts.values()), sum("/part-" in asked[1] and asked[0] == "put" for asked in counts)
    bars.at_most(
        f"{where.kind}, {name}: requests for one object, reading, writing or looking", worst, 2 * STORE_REQUEST.attempts
    )
    bars.at_most(f"{where.kind}, {name}: looks at the owner", max(looks), round(seconds / CHECK_INTERVAL_S) + commits)


def bad_days(kind: str, items: int, seed: int, bars: Bars) -> None:
    """Perform the four runs with one kind of store."""
    with place(kind) as where:
        fill(where, items)
        code, seconds, output = run(where, "calm")
        wanted = outputs(where.store("calm"))
        print(f"{kind}: {items} recordings, undisturbed: exit {code} after {seconds:.1f} s")
        with through(where) as proxy:
            proxy.stall_s = STALL_S
            proxy.spoil = servers.share(SHARE, servers.WEATHER, seed)
            code, seconds, output = run(where, "weather")
            proxy.spoil = lambda request: ""
            spoilt, asked = proxy.spoilt, len(proxy.log)
            print(f"{kind}, weather: exit {code} after {seconds:.1f} s; {spoilt} of {asked} requests were spoilt")
            judge(where, proxy, "weather", "weather", seconds, wanted, bars)

            proxy.forget()
            proxy.spoil = outage(lambda request: request.verb == "put" and "/parts/" in request.key, OUTAGE_S)
            code, seconds, output = run(where, "outage")
            proxy.spoil = lambda request: ""
            print(f"{kind}, no writes for {OUTAGE_S:g} s: exit {code} after {seconds:.1f} s")
            judge(where, proxy, "outage", "outage", seconds, wanted, bars)

            proxy.forget()
            proxy.spoil = outage(lambda request: request.key.endswith("part-00002.jsonl"), float("inf"))
            code, down_s, output = run(where, "down")
            print(
                f"{kind}, down for good after two parts: exit {code} after {down_s:.1f} s:\n  {output.splitlines()[-1]}"
            )
            bars.holds(f"{kind}, down: stops with exit 1", code == 1)
            proxy.spoil = lambda request: ""
            code, seconds, output = run(where, "down")
            print(f"{kind}, started again: exit {code} after {seconds:.1f} s")
            judge(where, proxy, "started again", "down", down_s + seconds, wanted, bars)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", nargs="+", choices=KINDS[1:], default=["gcs", "seaweedfs"])
    parser.add_argument("--items", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    bars = Bars()
    print(machine())
    for kind in given.stores:
        bad_days(kind, given.items, given.seed, bars)
    bars.leave()


if __name__ == "__main__":
    main()
