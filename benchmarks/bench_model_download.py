"""Measure the download of a model from a bucket whose connections are limited, as those of real stores are.

A file of `--mb` megabytes is fetched from a real server (fake-gcs-server, SeaweedFS) through a relay that gives each
connection `--mb-per-s`, and answers after `--latency-ms`. `--before DIR` also measures the code of another checkout.
The relay is a process of its own. The figures are seconds, MB/s and the peak memory of the process that downloads.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from common import ROOT, Bars, machine
from stores import KINDS, Place, place
from stores import _environment as environment

BAR = 3.0
"""Times the speed of one connection that voxbatch must reach."""
PEAK_MB = 450
"""16 stretches of 8 MiB, twice in memory, and the program itself."""
DOWNLOAD = """
import re, sys, time
from pathlib import Path
from voxbatch.storage.model_download import download_model
began = time.perf_counter()
download_model(sys.argv[1], Path(sys.argv[2]))
seconds = time.perf_counter() - began
print(seconds, int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e3)
"""


# ── the relay ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def relay(upstream: int, mb_per_s: float, latency_s: float, port: multiprocessing.Queue[int]) -> None:
    """Relay connections to a local port, with a limit for each one."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_reply: bool) -> None:
        due = 0.0
        with contextlib.suppress(OSError):
            while data := await reader.read(256 << 10):
                if is_reply:
                    due = max(due, time.monotonic()) + len(data) / (mb_per_s * 1e6)
                    await asyncio.sleep(due - time.monotonic())
                else:
                    await asyncio.sleep(latency_s)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", upstream)
            await asyncio.gather(copy(reader, up_writer, False), copy(up_reader, writer, True))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port.put(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def run_relay(upstream: int, mb_per_s: float, latency_s: float, port: multiprocessing.Queue[int]) -> None:
    """Run the relay in this process."""
    asyncio.run(relay(upstream, mb_per_s, latency_s, port))


# ── the downloads ─────────────────────────────────────────────────────────────────────────────────────────────────────


def download(where: Place, code: Path) -> tuple[float, float]:
    """Fetch the model with the code of a checkout; return seconds and the peak memory in MB."""
    with tempfile.TemporaryDirectory(prefix="voxbatch-bench-") as cache:
        done = subprocess.run(
            [sys.executable, "-P", "-c", DOWNLOAD, where.root, cache],
            env={**os.environ, "PYTHONPATH": str(code)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    seconds, peak = map(float, done.stdout.split())
    return seconds, peak


def compare(kind: str, given: argparse.Namespace, bars: Bars) -> None:
    """Print the figures for one kind of store."""
    with place(kind) as where:
        where.put(iter([("config.json", b"{}"), ("consolidated.safetensors", os.urandom(given.mb * 1_000_000))]))
        assert where._server is not None
        port: multiprocessing.Queue[int] = multiprocessing.Queue()
        process = multiprocessing.Process(
            target=run_relay, args=(where._server.port, given.mb_per_s, given.latency_ms / 1000, port)
        )
        process.start()
        try:
            with environment(where._server.settings(f"http://127.0.0.1:{port.get()}")):
                for name, code in {"before": given.before, "now": ROOT}.items():
                    if code is None:
                        continue
                    seconds, peak = min(download(where, code) for _ in range(given.rounds))
                    speed = given.mb / seconds
                    print(f"{kind}, {name}: {seconds:.1f} s, {speed:.0f} MB/s, peak {peak:.0f} MB")
            bars.at_least(f"{kind}: times the speed of one connection", speed / given.mb_per_s, BAR)
            bars.at_most(f"{kind}: peak memory", peak, PEAK_MB, "MB")
        finally:
            process.kill()
            process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", nargs="+", choices=KINDS[1:], default=["gcs", "seaweedfs"])
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--mb-per-s", type=float, default=10, help="of each connection")
    parser.add_argument("--latency-ms", type=float, default=20, help="of each request")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--before", type=Path, help="a checkout of older code")
    given = parser.parse_args()
    bars = Bars()
    print(f"{machine()}, load {psutil.getloadavg()[0]:.1f}")
    for kind in given.stores:
        compare(kind, given, bars)
    bars.leave()


if __name__ == "__main__":
    main()
