"""Measure the whole `voxbatch run` over FLAC or WAV files on this GPU against the engine alone: does decoding keep up?

    python benchmarks/gpu/bench_run.py MODEL_DIR [--hours H] [--workers N …] [--engine-option NAME=VALUE …] [--out FILE]
        [--engine transducers] [--format wav] [--compare]

The benchmark writes recordings of swelling noise, 16 kHz mono, and runs voxbatch over them as a user does. Then it
gives the same chunks, decoded and cut before the clock starts, to the same engine alone. Only a few recordings are
encoded, one file for each length. The others are hard links to these under their own names, which voxbatch reads and
decodes like any file.

Both times count from the engine's first chunk to its last result; the seconds until the engine was ready are printed
separately. Busy cores, by process, are counted from the engine's readiness to the end of the run. With several numbers
of workers, each worker has H hours to do, and the run of the first number is compared with the engine alone. With
--compare all runs do the same H hours with weights that make the tokens vary (bench_plugin.py), and their transcripts
are compared byte for byte. Watchdogs are off and weights are random: texts do not matter otherwise. If the plugin is
used, voxbatch must be installed as a package.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from shared import RATE, ROOT, environment, fed, measured_lines, print_results, swelling_noise, tell

from voxbatch.storage import Stores

MINUTES = (4.0, 7.0, 11.0, 18.0)
"""Lengths of the recordings, in turn."""
BAR = 0.92
"""Share of the engine's own rate that the whole run must reach."""
BAR_A_GPU = 0.985
"""Share of n times one worker's rate that n workers must reach: 1.97 times for two workers."""
MAX_FEEDING = 0.5
"""Most cores that a process that feeds an engine may use."""
DUMMY = {"load_format": "dummy", "watch": "false", "ignore_eos": "true"}
LOOK_S = 0.25
"""Seconds between two samples of CPU time."""


# -- recordings --------------------------------------------------------------------------------------------------------


def recordings(folder: Path, hours: float, kind: str = "flac") -> Path:
    """Write recordings of at least `hours` hours, and return their manifest."""
    encoded = [_encoded(folder / f"of{index}.{kind}", minutes) for index, minutes in enumerate(MINUTES)]
    rows: list[dict[str, Any]] = []
    while sum(row["duration"] for row in rows) < hours * 3600:
        source = len(rows) % len(encoded)
        name = f"r{len(rows):05d}.{kind}"
        (folder / name).hardlink_to(encoded[source])
        rows.append({"audio_filepath": name, "duration": round(MINUTES[source] * 60, 3), "of": encoded[source].name})
    manifest = folder / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manifest


def _encoded(path: Path, minutes: float) -> Path:
    minute = swelling_noise(60 * RATE, int(minutes * 60), 2.1).astype(np.float32)
    samples = np.tile(minute, int(minutes) + 1)[: int(minutes * 60 * RATE)]
    soundfile.write(path, samples, RATE, subtype="PCM_16")
    return path


# -- the whole run -----------------------------------------------------------------------------------------------------


def whole(
    manifest: Path,
    model: str,
    options: dict[str, str],
    workers: int,
    out: Path | None = None,
    *flags: str,
    verb: str = "run",
    engine: str = "vllm",
    varied: bool = False,
) -> dict[str, Any]:
    """Run voxbatch into `out` (default: beside the manifest) and return the figures of the run, or its error.

    Args:
        varied: give the engine weights that make the tokens vary (bench_plugin.py).
    """
    variables = environment()
    if varied:
        (manifest.parent / "sitecustomize.py").write_text(VARIED.format(folder=str(Path(__file__).parent)))
        variables["PYTHONPATH"] = os.pathsep.join([str(manifest.parent), variables["PYTHONPATH"]])
    command = [sys.executable, "-m", "voxbatch", verb, str(manifest), "-o", str(out or manifest.parent / "out"),
               "--overwrite", "--engine", engine, "--model", model, "--log-format", "json", *flags]  # fmt: skip
    command += [part for name, value in options.items() for part in ("--engine-option", f"{name}={value}")]
    command += ["--workers", str(workers)] if workers else []
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    cores = Cores(process.pid)
    events, other = [], []
    assert process.stderr is not None
    for line in process.stderr:
        if not line.startswith("{"):
            other.append(line)
            continue
        events.append((time.monotonic(), json.loads(line)))
    wall = time.monotonic() - began
    finished = [event for _, event in events if event["message"] == "run_finished"]
    if process.wait() or not finished:
        return {"error": "".join([*other, *(json.dumps(event) + "\n" for _, event in events)])[-3000:]}
    ready = [(when, event["text"]) for when, event in events if "ready in" in event.get("text", "")]
    busy = cores.busy(ready[0][0] if ready else began, events[-1][0])
    return {"whole_wall_s": round(wall, 1), **_rates(finished[-1], ready, events[-1][0]), "cores": busy,
            "feeding": round(busy.get("workers" if len(ready) > 1 else "main", 0.0) / max(1, len(ready)), 2),
            **contents(out or manifest.parent / "out"), "ready": [text for _, text in ready]}  # fmt: skip


def contents(out: Path) -> dict[str, Any]:
    """Return the checksum of the transcripts of a run and the number of their different words, if it has any."""
    if not (transcripts := out / "transcripts.jsonl").exists():
        return {}
    content = transcripts.read_bytes().replace(os.fsencode(out.parent), b"")
    words = {word for line in content.splitlines() for word in json.loads(line).get("pred_text", "").split()}
    return {"transcripts": hashlib.sha256(content).hexdigest()[:16], "different_words": len(words)}


VARIED = """
import importlib.util, sys
from importlib.abc import MetaPathFinder

NAME = "vllm.model_executor.model_loader.dummy_loader"

class Weights(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            sys.path.append({folder!r})
            import bench_plugin
            bench_plugin.weigh_dummies()
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Weights())
"""
"""Module that each Python imports at its start. It gives the engine's process, too, the weights of bench_plugin.py."""


def _rates(finished: dict[str, Any], ready: list[tuple[float, str]], end: float) -> dict[str, Any]:
    kept = ("audio_s", "wall_s", "engine_s", "starved_s", "short_s", "decode_cpu_s", "done", "failed")
    engines = max(1, len(ready))  # the times of all engines are summed
    found = {**{key: finished[key] for key in kept}, "engines": engines}
    found["rtfx"] = round(finished["audio_s"] / finished["engine_s"] * engines, 1)
    if ready:
        found["rtfx_from_ready_to_end"] = round(finished["audio_s"] / (end - ready[0][0]), 1)
    return found


class Cores:
    """CPU seconds of a process and of all its descendants, by purpose, sampled several times a second."""

    def __init__(self, pid: int):
        import psutil

        self._root = psutil.Process(pid)
        self._seen: list[tuple[float, dict[str, float]]] = []
        self._spent: dict[tuple[int, float], tuple[str, float]] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def busy(self, begin: float, end: float) -> dict[str, float]:
        """Return the average number of busy cores between two times of time.monotonic(), by kind of process."""
        within = [each for each in self._seen if begin <= each[0] <= end]
        if len(within) < 2:
            return {}
        (first, before), (last, after) = within[0], within[-1]
        return {kind: round((spent - before.get(kind, 0.0)) / (last - first), 2) for kind, spent in after.items()}

    def _watch(self) -> None:
        import psutil

        while True:
            try:
                self._look()
            except psutil.NoSuchProcess:
                return
            time.sleep(LOOK_S)

    def _look(self) -> None:
        import psutil

        for each in (self._root, *self._root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                times = each.cpu_times()
                key = each.pid, each.create_time()
                kind = self._spent[key][0] if key in self._spent else self._kind(each)
                self._spent[key] = kind, times.user + times.system
        by_kind: dict[str, float] = defaultdict(float)
        for kind, spent in self._spent.values():
            by_kind[kind] += spent
        self._seen.append((time.monotonic(), dict(by_kind)))

    def _kind(self, process: Any) -> str:
        said = " ".join([process.name(), *process.cmdline()])
        if process.pid == self._root.pid:
            return "main"
        if process.name() == "prompts":  # a fork of the engine's process, with its command line
            return "prompts"
        parts = {"voxbatch.decoding": "decoders", "voxbatch.runner.workers": "workers", "resource_tracker": "other"}
        parts |= {"engine_program": "engine", "VLLM": "engine", "multiprocessing.spawn": "engine"}
        return next((kind for part, kind in parts.items() if part in said), "other")


# -- the engine alone --------------------------------------------------------------------------------------------------


def chunks(manifest: Path, limit: int, overlap: int) -> Iterator[Any]:
    """Yield the chunks that a run gives to its engine, in order; recordings of the same file share their samples."""
    from voxbatch.audio.waveforms import decode
    from voxbatch.records import Chunk
    from voxbatch.text.chunking import cut_into_chunks

    made: dict[str, list[Any]] = {}
    for item, line in enumerate(manifest.read_text().splitlines()):
        source = json.loads(line)["of"]
        path = str(manifest.parent / source)
        if source not in made:
            with contextlib.closing(Stores().recording(path)) as recording:
                made[source] = list(cut_into_chunks(decode(recording, path), limit, overlap))
        for index, (samples, span) in enumerate(made[source]):
            yield Chunk(item, index, samples, span)


def alone(manifest: Path, name: str, model: str, options: dict[str, str]) -> dict[str, Any]:
    """Measure the engine alone, from its readiness on."""
    from voxbatch.engines import EngineMessage, create
    from voxbatch.records import OVERLAP

    engine = create(name, model, options)
    made = list(chunks(manifest, engine.spec.max_chunk_samples, OVERLAP if engine.spec.word_times else 0))
    times, ready = list[float](), ""
    for when, result in fed(engine, made):
        times.append(when)
        ready = result.text if isinstance(result, EngineMessage) else ready
    wall = times[-1] - times[len(times) - len(made) - 1]
    audio = sum(chunk.span.core_end - chunk.span.core_start for chunk in made) / RATE
    return {"engine_s": round(wall, 2), "audio_s": round(audio, 1), "chunks": len(made),
            "rtfx": round(audio / wall, 1), "ready": ready}  # fmt: skip


# -- all of it ---------------------------------------------------------------------------------------------------------


def main() -> None:
    given = parsed()
    options = {**(DUMMY if given.engine == "vllm" else {}), **dict(each.split("=", 1) for each in given.engine_option)}
    if given.one:
        print_results([alone(Path(given.one), given.engine, given.model, options)])
    ran = []
    for turn, workers in enumerate(given.workers):
        with tempfile.TemporaryDirectory() as folder:
            manifest = recordings(Path(folder), given.hours * (1 if given.compare else max(1, workers)), given.format)
            run = whole(manifest, given.model, options, workers, engine=given.engine, varied=given.compare)
            ran.append((workers, run))
            tell({"name": "voxbatch run", "workers": workers, **run}, given.out)
            if "feeding" in run:
                feeding, bar = run["feeding"], MAX_FEEDING
                tell({"name": "feeding", "cores": feeding, "bar": bar, "met": feeding <= bar}, given.out)
            if not turn and not given.skip_alone:
                for line in measured_lines(__file__, str(manifest)):
                    beside(run, line, given.out)
    if len(ran) > 1 and not any("error" in run for _, run in ran):
        (same if given.compare else scaling)(ran, given.out)


def beside(ran: dict[str, Any], by_itself: dict[str, Any], out: Path | None) -> None:
    """Print the engine alone, and the run's share of its rate."""
    tell({"name": "engine alone", **by_itself}, out)
    if ran.get("engines") == 1 and "failed" not in by_itself:
        ratio = ran["rtfx"] / by_itself["rtfx"]
        tell({"name": "run over engine alone", "ratio": round(ratio, 3), "bar": BAR, "met": ratio >= BAR}, out)


def same(ran: list[tuple[int, dict[str, Any]]], out: Path | None) -> None:
    """Compare the transcripts of all runs over the same recordings."""
    checksums = [run.get("transcripts") for _, run in ran]
    tell({"name": "equal transcripts", "workers": [workers for workers, _ in ran], "transcripts": checksums,
          "met": all(checksums) and len(set(checksums)) == 1}, out)  # fmt: skip


def scaling(ran: list[tuple[int, dict[str, Any]]], out: Path | None) -> None:
    """Compare each number of workers with the first."""
    (first, one), *others = ran
    for workers, each in others:
        ratio, bar = each["rtfx"] / one["rtfx"], BAR_A_GPU * workers / max(1, first)
        tell({"name": f"{workers} workers over {first}", "ratio": round(ratio, 3), "bar": round(bar, 3),
              "met": ratio >= bar}, out)  # fmt: skip


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=lambda folder: str(Path(folder).resolve()))
    parser.add_argument("--hours", type=float, default=12.0, help="of audio, for each worker")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--format", choices=("flac", "wav"), default="flac")
    parser.add_argument("--engine-option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--workers", type=int, nargs="+", default=[0], help="one or more numbers; 0: voxbatch's choice")
    parser.add_argument("--skip-alone", action="store_true")
    parser.add_argument("--compare", action="store_true", help="do the same hours in each run, and compare the bytes")
    parser.add_argument("--out", type=Path, help="append the lines there too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
