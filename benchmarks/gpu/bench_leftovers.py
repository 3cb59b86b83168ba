"""Kill a run while its model loads and while it runs, and report the processes and GPU memory left 15 s later.

    python benchmarks/gpu/bench_leftovers.py MODEL_DIR [--signals TERM KILL] [--phases loading running]
                                             [--engine-option NAME=VALUE …] [--out FILE]

The benchmark starts `voxbatch run` over recordings of noise and sends the signal to its main process alone. It waits
until that process has ended, and for 15 s more. All processes of a run inherit an environment variable that marks the
run; the benchmark finds them in /proc by this mark, even if their parents have ended. It exits with 1 if anything is
left. It also runs on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from bench_run import DUMMY, ROOT, recordings

MARKER = "VOXBATCH_BENCH_RUN"
"""Environment variable that marks the processes of a run."""
ALLOWED_S = 15.0
"""Seconds after the main process has ended, or was killed, within which all its processes must end."""
READY_S = 400.0
"""Seconds that a model may take to load."""


def measure(given: argparse.Namespace, manifest: Path, name: str, phase: str) -> dict[str, Any]:
    """Start a run, send a signal to it, and count its processes 15 s later."""
    mark = uuid.uuid4().hex
    path = os.pathsep.join(each for each in (str(ROOT), os.environ.get("PYTHONPATH", "")) if each)
    options = {**DUMMY, **dict(each.split("=", 1) for each in given.engine_option)}
    command = [sys.executable, "-m", "voxbatch", "run", str(manifest), "-o", str(manifest.parent / f"out-{mark}"),
               "--engine", "vllm", "--model", given.model, "--log-format", "json"]  # fmt: skip
    command += [part for option, value in options.items() for part in ("--engine-option", f"{option}={value}")]
    before = gpu_bytes()
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path, MARKER: mark},
                                   stdout=subprocess.DEVNULL, stderr=said)  # fmt: skip
        try:
            await_phase(process, said, phase, given.loading_s)
            count, held = len(alive(mark)), gpu_bytes() - before
            sent = time.monotonic()
            process.send_signal(getattr(signal, f"SIG{name}"))
            code = process.wait(timeout=60)
            ended = time.monotonic()
            time.sleep(ALLOWED_S)
        finally:
            process.kill()
        left = alive(mark)
        said.seek(0)
        last = said.read()[-600:]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return {
        "signal": name, "phase": phase, "after_s": round(sent - began, 1), "processes": count, "exit_code": code,
        "took_s": round(ended - sent, 1), "left": sorted(left.values()), "gpu_gb_at_signal": round(held / 1e9, 1),
        "gpu_gb_left": round((gpu_bytes() - before) / 1e9, 1), "last": last if left or given.verbose else "",
    }  # fmt: skip


def await_phase(process: subprocess.Popen[bytes], said: Any, phase: str, loading_s: float) -> None:
    """Wait until the run is in the phase: `loading_s` seconds into loading, or 3 s after the engine is ready."""
    deadline = time.monotonic() + (loading_s if phase == "loading" else READY_S)
    while time.monotonic() < deadline:
        said.seek(0)
        text = said.read()
        if process.poll() is not None:
            raise SystemExit(f"the run ended by itself with {process.returncode}: {text[-2000:]}")
        if phase == "running" and "vLLM ready" in text:
            time.sleep(3.0)
            return
        time.sleep(0.2)
    if phase == "running":
        raise SystemExit(f"not ready after {READY_S:.0f} s: {text[-2000:]}")


def alive(mark: str) -> dict[int, str]:
    """Return the command line of each process, by id, whose environment has the mark; zombies do not count."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
        except OSError:
            continue
    return found


def gpu_bytes() -> int:
    """Return the bytes in use on all GPUs together; 0 if there is no GPU."""
    from voxbatch.engines.vllm import gpu

    return sum(card.total_bytes - card.free_bytes for card in gpu.visible_gpus())


def main() -> None:
    given = parsed()
    sys.path.insert(0, str(ROOT))
    is_clean = True
    with tempfile.TemporaryDirectory() as folder:
        manifest = recordings(Path(folder), given.hours, [4.0], "flac")
        for phase in given.phases:
            for name in given.signals:
                line = {"measure": "leftovers", **measure(given, manifest, name, phase)}
                is_clean = is_clean and not line["left"] and line["gpu_gb_left"] < 0.5
                print(json.dumps(line), flush=True)
                if given.out:
                    with given.out.open("a") as file:
                        file.write(json.dumps(line) + "\n")
    sys.exit(0 if is_clean else 1)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=lambda folder: str(Path(folder).resolve()))
    parser.add_argument("--signals", nargs="+", default=["TERM", "KILL"], help="of signal, without SIG")
    parser.add_argument("--phases", nargs="+", choices=("loading", "running"), default=["loading", "running"])
    parser.add_argument("--loading-s", type=float, default=20.0, help="seconds into the load at which to send it")
    parser.add_argument("--hours", type=float, default=100.0, help="of audio: more than is transcribed until then")
    parser.add_argument("--engine-option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--verbose", action="store_true", help="print what the run said last")
    parser.add_argument("--out", type=Path, help="append the lines there too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
