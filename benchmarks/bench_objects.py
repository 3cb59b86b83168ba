"""Measure voxbatch's reading of many small objects, and of a long manifest, in buckets.

The figures are recordings per second from voxbatch's storage, compared with the store's own client with as many
threads; the whole run over these objects; and peak memory.

Both sides read the same objects from the same server, one side after the other, in several rounds. The medians and
their ratio count, because the server shares the machine.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from common import Bars, machine, run
from stores import KINDS, Place, place

from voxbatch.decoding.pool import MAX_TASKS
from voxbatch.storage import open_recording
from voxbatch.storage.prefetch import Prefetcher
from voxbatch.storage.request_pool import FETCH_THREADS

BAR = 0.8
"""Share of the client's rate that voxbatch must reach."""
PEAK_MB = 300
SECONDS = 1.0
LINE = '{"id": "call-%07d", "audio_filepath": "%s", "duration": 0.1, "lang": "en"}\n'


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def recording(seconds: float) -> bytes:
    """Return a WAV file of noise."""
    data = io.BytesIO()
    noise = np.random.default_rng(0).normal(0, 0.05, round(16_000 * seconds))
    soundfile.write(data, noise, 16_000, format="WAV")
    return data.getvalue()


def with_the_client(where: Place, names: list[str]) -> int:
    """Read all objects with the store's own client and FETCH_THREADS threads; return the number of bytes."""
    bucket, _, prefix = where.root.partition("://")[2].partition("/")
    if where.kind == "gcs":
        from google.cloud import storage

        found = storage.Client().bucket(bucket)
        read: Callable[[str], bytes] = lambda name: found.blob(f"{prefix}/{name}").download_as_bytes()  # noqa: E731
    else:
        import boto3

        client = boto3.Session().client("s3")
        read = lambda name: client.get_object(Bucket=bucket, Key=f"{prefix}/{name}")["Body"].read()  # noqa: E731
    with ThreadPoolExecutor(FETCH_THREADS) as pool:
        return sum(len(data) for data in pool.map(read, names))


def with_voxbatch(where: Place, names: list[str]) -> int:
    """Read all objects through prefetch, as one decoder process does; return the number of bytes."""
    prefetcher, total = Prefetcher(open_recording), 0
    waiting = [prefetcher.start(where / name) for name in names[:MAX_TASKS]]
    for name in [*names[MAX_TASKS:], *[""] * MAX_TASKS]:
        with prefetcher.opened(waiting.pop(0), lambda: None) as found:
            total += found.size
        if name:
            waiting.append(prefetcher.start(where / name))
    return total


def reading(where: Place, names: list[str], rounds: int, bars: Bars) -> None:
    """Compare the two sides."""
    rates: dict[str, list[float]] = {"client": [], "voxbatch": []}
    for _ in range(rounds):
        for side, read in (("client", with_the_client), ("voxbatch", with_voxbatch)):
            began = time.perf_counter()
            total = read(where, names)
            rates[side].append(len(names) / (time.perf_counter() - began))
            assert total == len(names) * len(recording(SECONDS))
    client, ours = (statistics.median(rates[side]) for side in ("client", "voxbatch"))
    shown = {side: ", ".join(f"{rate:.0f}" for rate in found) for side, found in rates.items()}
    print(
        f"{where.kind}: {FETCH_THREADS} threads of the client {shown['client']}; voxbatch {shown['voxbatch']} objects/s"
    )
    bars.at_least(f"{where.kind}: objects a second, beside the client's {client:.0f}", ours / client, BAR)


# ── whole runs ────────────────────────────────────────────────────────────────────────────────────────────────────────


def whole_run(where: Place, names: list[str], out: str) -> tuple[float, float]:
    """Run voxbatch, and return (objects per second from the engine's first chunk to its last, peak MB of all
    processes).
    """
    lines = "".join(f"{json.dumps({'audio_filepath': name, 'duration': SECONDS})}\n" for name in names)
    where.put(iter([(f"{out}.jsonl", lines.encode())]))
    ran = run(["run", where / f"{out}.jsonl", "-o", where / out, "--engine", "scripted", "--log-format", "json"])
    return len(names) / ran.event("run_finished")["engine_s"], ran.tree_mb


def runs(where: Place, names: list[str], bars: Bars) -> None:
    """Run over a tenth of the objects and over all of them, and compare the memory."""
    few = names[: len(names) // 10]
    _, few_mb = whole_run(where, few, "few")
    rate, many_mb = whole_run(where, names, "many")
    print(f"{where.kind}: a whole run with a stand-in engine, in- and outputs in the bucket: {rate:.0f} objects/s")
    bars.at_most(
        f"{where.kind}: MB of all processes, {len(names):,} objects ({len(few):,}: {few_mb:.0f})", many_mb, 1.2 * few_mb
    )


def long_manifest(where: Place, lines: int, full: bool, bars: Bars) -> None:
    """Measure a long manifest in a bucket. Its recording is a local file, because the benchmark measures lines."""
    with tempfile.TemporaryDirectory(prefix="voxbatch-objects-") as folder:
        short = Path(folder) / "short.wav"
        short.write_bytes(recording(0.1))
        where.put(iter([("long.jsonl", b"".join((LINE % (n, short)).encode() for n in range(lines)))]))
        source, anywhere = where / "long.jsonl", "--allow-outside"
        commands: dict[str, list[Any]] = {
            "validate": ["validate", source, anywhere],
            "--dry-run": ["run", source, "-o", where / "long", anywhere, "--engine", "scripted", "--dry-run"],
        }
        if full:
            commands["run"] = ["run", source, "-o", where / "long", anywhere, "--engine", "scripted", "-q"]
        for what, command in commands.items():
            ran = run(command, traced=True)
            name = f"{where.kind}: MB of the main process, {what} of {lines:,} lines"
            bars.at_most(f"{name} ({ran.wall_s:.0f} s)", ran.usage["peak_mb"], PEAK_MB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", nargs="+", choices=KINDS[1:], default=["gcs", "seaweedfs"])
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--full", action="store_true", help="run the long manifest too (10 minutes)")
    given = parser.parse_args()
    bars = Bars()
    print(machine())
    names = [f"audio/{n:05d}.wav" for n in range(given.objects)]
    for kind in given.stores:
        with place(kind) as where:
            where.put((name, recording(SECONDS)) for name in names)
            reading(where, names, given.rounds, bars)
            runs(where, names, bars)
            if kind == "gcs":
                long_manifest(where, given.lines, given.full, bars)
    bars.leave()


if __name__ == "__main__":
    main()
