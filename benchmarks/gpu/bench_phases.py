"""Measure the phases of `voxbatch run` over one recording, from its process's start to its end.

    python benchmarks/gpu/bench_phases.py MODEL_DIR
    python benchmarks/gpu/bench_phases.py MODEL_DIR --runs cold warm warm warm --engine-option load_format=dummy
    python benchmarks/gpu/bench_phases.py MODEL_DIR --engine transducers --runs cold warm warm warm

The times are those of the lines that voxbatch and vLLM log, and of the file that the first commit writes. A cold run
has empty folders for what vLLM, PyTorch and Triton compile; the files of the libraries may be in the memory of the
machine. A small job is not compiled; an explicit cudagraph_mode compiles it. The first `kept` run leaves its engine to
those after it (--keep-engine). Each run is a line of JSON in --out, too. The last table has the median of each kind of
run, and its range. A run that fails, or takes longer than --limit-s, ends the benchmark with the ends of its logs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import soundfile
from shared import environment, tell

VLLM_PHASES = {
    "a CUDA context is there": r"tried to create a CUDA context",
    "vLLM is imported in the engine's process": r"vLLM is imported in the engine's process",
    "its tokenizer is loaded": r"the tokenizer is loaded in the engine's process",
    "vLLM is imported in the parent": r"vLLM is imported in the parent",
    "the engine's process has its arguments": r"the engine's process has its arguments",
    "the engine has its configuration": r"Initializing a V1 LLM engine",
    "weights are loaded": r"Model loading took",
    "compiled": r"torch\.compile (and|took|takes)|Directly load",
    "graphs are captured for a trial": r"Estimated CUDA graph memory",
    "memory is measured": r"Available KV cache memory|reserved .* for KV Cache",
    "graphs are captured": r"Graph capturing finished",
    "vLLM is warm": r"init engine \(profile",
}
"""Phases → a pattern of the line that vLLM, or voxbatch within it, logs at their end."""
OWN_PHASES = {
    "voxbatch has begun": r"vLLM is loading",
    "an earlier engine is used": r"engine .*: process \d+ of an earlier run is used again",
    "ready": r"vLLM ready|.*: ready in ",
}
"""Phases → a pattern of the line that voxbatch logs at their end."""
SECONDS = 30
KEPT = "kept"
"""Kind of the runs whose engine stays for KEPT_S."""
KEPT_S = 60


def recording(folder: Path) -> Path:
    """Write a manifest of one recording of noise, and return it. Its loudness changes four times a second, because
    steady noise is silence, which no engine gets."""
    samples = 0.1 * np.random.default_rng(0).standard_normal(SECONDS * 16_000)
    samples *= np.sin(4 * np.pi * np.arange(len(samples)) / 16_000) ** 4
    soundfile.write(folder / "one.wav", samples.astype(np.float32), 16_000, subtype="PCM_16")
    manifest = folder / "one.jsonl"
    manifest.write_text(json.dumps({"audio_filepath": "one.wav"}) + "\n")
    return manifest


def phases(command: list[str], folder: Path, out: Path, caches: Path, limit_s: float) -> dict[str, float]:
    """Run a command, and return the seconds from its start to the end of each phase that was seen.

    Args:
        command: the command of the run.
        folder: folder for its logs.
        out: its OUT.
        caches: folder for what it compiles.
        limit_s: seconds after which it is told to end.

    Raises:
        SystemExit: the run failed or was told to end. The message has the ends of its logs.
    """
    log, kept, committed = folder / "run.log", folder / "engine.log", 0.0
    temporary = folder.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    earlier = set(temporary.iterdir())  # the log of an engine that stays
    variables = {
        **environment(),
        # a run takes only an engine that was started with its own variables, and all look for it in the same folder
        "TMPDIR": str(temporary),
        "XDG_RUNTIME_DIR": str(folder.parent),
        "XDG_CACHE_HOME": str(caches),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }
    began = time.time()
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=variables)
        while process.poll() is None:
            for engine in set(temporary.glob("voxbatch-vllm-*")) - earlier:  # voxbatch removes it at the end
                with contextlib.suppress(OSError):
                    os.link(engine / "engine.log", kept)
            if not committed and (parts := list(out.glob("parts/*/part-*.jsonl"))):
                committed = parts[0].stat().st_mtime
            if time.time() - began > limit_s:
                process.terminate()
                process.wait()
            time.sleep(0.02)
    ended = time.time()
    if process.returncode:
        ends = (f"{each.name}:\n{each.read_text(errors='replace')[-6000:]}" for each in (log, kept) if each.exists())
        sys.exit("\n".join([f"exit code {process.returncode} after {ended - began:.0f} s", *ends]))
    found = {"first commit": committed or ended, "end": ended}
    for line in log.read_text().splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            at = datetime.fromisoformat(event["time"]).timestamp()
            found |= {phase: at for phase, line in OWN_PHASES.items() if re.match(line, str(event.get("text", "")))}
    for line in kept.read_text(errors="replace").splitlines() if kept.exists() else ():
        for phase, pattern in VLLM_PHASES.items():
            if re.search(pattern, line) and (stamp := re.match(r"[\d-]+ [\d:]+,\d+", line)):
                found[phase] = datetime.strptime(stamp[0], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
    return {phase: at - began for phase, at in sorted(found.items(), key=lambda each: each[1])}


def summary(runs: list[tuple[str, dict[str, float]]]) -> str:
    """Return a table of the phases: for each kind of run the median, and the least and the most if there are several.

    Args:
        runs: for each run its kind, and the seconds until the end of each phase.
    """
    kinds = list(dict.fromkeys(kind for kind, _ in runs))
    heads = [f"{kind}, {sum(each == kind for each, _ in runs)} runs" for kind in kinds]
    lines = [f"| median s | {' | '.join(heads)} |", "|---" * (1 + len(kinds)) + "|"]
    longest = max((seen for _, seen in runs), key=len)
    for phase in sorted({phase for _, seen in runs for phase in seen}, key=lambda each: longest.get(each, 0.0)):
        cells = []
        for kind in kinds:
            times = [seen[phase] for each, seen in runs if each == kind and phase in seen]
            spread = f" ({min(times):.1f} to {max(times):.1f})" if len(times) > 1 else ""
            cells.append(f"{statistics.median(times):.1f}{spread}" if times else "")
        lines.append(f"| {phase} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--runs", nargs="+", default=["cold", "warm"], choices=["cold", "warm", KEPT])
    parser.add_argument("--engine-option", action="append", default=[])
    parser.add_argument("--limit-s", type=float, default=150.0, help="seconds after which a run is told to end")
    parser.add_argument("--keep", type=Path, help="copy the logs of each run into this folder")
    parser.add_argument("--out", type=Path, help="append a line for each run there")
    given = parser.parse_args()
    options = [word for option in given.engine_option for word in ("--engine-option", option)]
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        manifest, runs = recording(home), list[tuple[str, dict[str, float]]]()
        for number, kind in enumerate(given.runs):
            folder, out = home / f"run-{number}", home / f"out-{number}"
            folder.mkdir()
            if kind == "cold":
                shutil.rmtree(home / "caches", ignore_errors=True)
            command = [sys.executable, "-m", "voxbatch", "run", str(manifest), "-o", str(out)]
            command += ["--engine", given.engine, "--model", given.model, "--log-format", "json", *options]
            command += ["--keep-engine", f"{KEPT_S}s"] if kind == KEPT else []
            seen = phases(command, folder, out, home / "caches", given.limit_s)
            runs.append((kind, seen))
            tell({"run": number, "kind": kind, **{phase: round(at, 2) for phase, at in seen.items()}}, given.out)
            print(f"\n| {kind}, {' '.join(given.engine_option)} | s | after the phase before |\n|---|---|---|")
            before = 0.0
            for phase, at in seen.items():
                print(f"| {phase} | {at:.1f} | {at - before:.1f} |", flush=True)
                before = at
            if given.keep:
                for log in folder.glob("*.log"):
                    shutil.copy(log, given.keep / f"phases-{number}-{kind}-{log.name}")
        print(f"\n{summary(runs)}")


if __name__ == "__main__":
    main()
