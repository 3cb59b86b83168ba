"""Measure the plugin with and without single parts of it, on one GPU.

    python benchmarks/gpu/bench_parts.py MODEL_DIR --without PART … [--gpu N] [--l4-memory] [--turns 2] [--repeats 1]
                                         [--rounds 3] [--lengths 20-35] [--option NAME=VALUE …] [--out FILE]

MODEL_DIR is a Voxtral Realtime without weights from full_size.py. The plugin has no switches for its parts. So the
package and these scripts are copied to a temporary folder, a part's edits are applied to the copy (PARTS), and
`bench_plugin.py --speed` runs there. The copy has the same path each time, so that all runs share vLLM's caches.

Each turn makes one run with every copy that is needed, so that two turns give A B A B. A run starts an engine and
measures --repeats times. A part's line has the medians over all turns so far: RTFx with and without the part, the
ratio, clocks, watts, and the seconds until the engine was ready. A line is printed as soon as both runs of a turn are
done.

Some parts work only with others: without them, both runs lack those too (`beside`), or both have the same options. The
variants give the same tokens, as tests/engine_vllm/test_parts_tokens.py shows on a CPU in float32, where the parts of
GPU_ONLY have no effect. --gpu sets CUDA_VISIBLE_DEVICES, so that two lists of parts can run at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = Path("voxbatch") / "vllm_plugin"


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement in a file of the plugin. The old text occurs exactly once."""

    file: str
    """Path below voxbatch/vllm_plugin."""
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Part:
    """The edits that remove a part."""

    edits: tuple[Edit, ...]
    beside: tuple[str, ...] = ()
    """Parts that work only with this one. They are removed from both sides."""
    options: dict[str, str] = field(default_factory=dict)
    """Options of the engine without which the part has no effect."""


def _unpatched(*methods: str) -> tuple[Edit, ...]:
    """Return edits that leave these methods of vLLM's runner as they are."""
    return tuple(Edit("patches/__init__.py", f'    "{method}": {method[1:]}.wrap,\n', "") for method in methods)


PARTS = {
    "encoder_graphs": Part((Edit("encoder.py", "self._graphs = self._make_graphs()", "self._graphs = None"),)),
    # the graphs are for chunks that begin with silence; vLLM's method sends the samples to the GPU first
    "silence": Part(
        (
            Edit("encoder.py", "samples, settled = extent(left_pad, config)", "samples, settled = 0, 0"),
            *_unpatched("_execute_mm_encoder"),
        ),
        beside=("encoder_graphs",),
    ),
    # the graphs are for this kernel; FlashAttention takes its place
    "window_kernel": Part(
        (Edit("encoder.py", "Windowed(window, scale) if has_kernel else", "Windowed(window, scale) if False else"),),
        beside=("encoder_graphs",),
    ),
    # PyTorch's functions take its place, with a copy of the silence that does not wait for the GPU
    "rotary_kernel": Part(
        (
            Edit(
                "encoder.py", "return ops, rotary_kernel.rotate_and_lay_out, by_kernel",
                "return ops, rotate_and_lay_out, by_kernel",
            ),
            Edit(
                "rotary.py",
                "    for begin in layout.key_starts[:-1].tolist() if layout.known else []:\n"
                "        kv[:, begin : begin + layout.known] = pads\n",
                "    if layout.known:\n"
                "        rows = layout.key_starts[:-1, None] + torch.arange(layout.known, device=kv.device)\n"
                "        kv[:, rows.flatten()] = pads.repeat(1, len(rows), 1)\n",
            ),
        )
    ),
    "quantise_kernel": Part(
        (Edit("encoder.py", "EightBitOps(dtype) if EightBitOps.fits(layers) else FusedOps()", "FusedOps()"),),
        options={"fp8": "decoder,encoder,kv"},
    ),
    # the pool stays: without it, encoded audio is counted nowhere
    "gather": Part(_unpatched("_gather_mm_embeddings")),
    "encoder_cache": Part(
        (
            Edit(
                "scheduler/encoder_cache.py",
                "max(cache.cache_size, scheduler.max_num_running_reqs * scheduler.max_model_len)", "cache.cache_size",
            ),
        )
    ),
    "bursts": Part(
        (Edit("scheduler/admission.py", "return max(1, min(MAX_BURST, max_requests // BURSTS))", "return 1"),)
    ),
    "shared_prefix": Part(
        (
            Edit(
                "scheduler/batch_scheduler.py", "_shares_prefix: ClassVar[bool] = True",
                "_shares_prefix: ClassVar[bool] = False",
            ),
        )
    ),
    "fast_path": Part(
        (
            Edit(
                "scheduler/fast_path.py", "_uses_fast_path: ClassVar[bool] = True",
                "_uses_fast_path: ClassVar[bool] = False",
            ),
        )
    ),
    "bookkeeping": Part(_unpatched("_update_states", "_bookkeeping_sync")),
    "prepare_input_ids": Part(_unpatched("_prepare_input_ids")),
    "sample": Part(_unpatched("_sample")),
}  # fmt: skip
"""Parts by name."""
GPU_ONLY = ("encoder_graphs", "window_kernel", "quantise_kernel", "fast_path", "prepare_input_ids")
"""Parts that a CPU never runs: CUDA kernels and graphs, and the work for asynchronous scheduling. `bookkeeping` is
half of this kind (_bookkeeping_sync), and of `rotary_kernel` a CPU runs the functions that take its place."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the plugin that is measured."""

    removed: tuple[str, ...] = ()
    """Names of the parts that it lacks."""
    options: tuple[tuple[str, str], ...] = ()


def sides(name: str) -> tuple[Copy, Copy]:
    """Return the copies with and without a part."""
    part = PARTS[name]
    options = tuple(part.options.items())
    return Copy(part.beside, options), Copy((*part.beside, name), options)


def make(folder: Path, removed: Sequence[str], parts: dict[str, Part] = PARTS) -> None:
    """Replace `folder` by a copy of the package and of these scripts without some parts.

    Raises:
        ValueError: a text to replace does not occur exactly once.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for tree in (Path("voxbatch"), Path("benchmarks") / "gpu"):
        shutil.copytree(ROOT / tree, folder / tree, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in (edit for name in removed for edit in parts[name].edits):
        path = folder / PLUGIN / edit.file
        text = path.read_text()
        if (count := text.count(edit.old)) != 1:
            raise ValueError(
                f"{PLUGIN / edit.file} has {edit.old!r} {count} times, and an edit needs it once: change PARTS in "
                "benchmarks/gpu/bench_parts.py"
            )
        path.write_text(text.replace(edit.old, edit.new))


def runs(folder: Path, copy: Copy, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine with a copy, and yield the lines of bench_plugin.py."""
    make(folder, copy.removed)
    configuration = "plugin, L4 memory" if given.l4_memory else "plugin"
    command = [sys.executable, str(folder / "benchmarks" / "gpu" / "bench_plugin.py"), given.model, "--speed"]
    command += ["--only", configuration, "--lengths", given.lengths, "--rounds", str(given.rounds)]
    command += ["--repeats", str(given.repeats)]
    for option in (*(f"{name}={value}" for name, value in copy.options), *given.option):
        command += ["--option", option]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    if given.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(given.gpu)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout
    for line in process.stdout:
        yield json.loads(line)
    if status := process.wait():
        yield {"failed": f"bench_plugin.py ended with status {status}"}


def row(name: str, found: dict[Copy, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the line of a part.

    Args:
        found: the medians of each run, by its copy.
    """
    both = [found[side] for side in sides(name)]
    each = [[repeat["rtfx"] for run in side for repeat in run["runs"]] for side in both]
    with_it, without_it = map(median, each)
    line: dict[str, Any] = {
        "part": name, "beside": list(PARTS[name].beside), "options": PARTS[name].options, "with": round(with_it, 1),
        "without": round(without_it, 1), "ratio": round(with_it / without_it, 4), "each": each,
    }  # fmt: skip
    for figure in ("mhz", "watts", "peak_gb", "ready_s", "requests"):
        if all(figure in run for side in both for run in side):
            line[figure] = [median(run[figure] for run in side) for side in both]
    return line


def measure(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a line for each run, and one for each part as soon as both of its runs of a turn are done."""
    wanted = list(dict.fromkeys(copy for name in given.without for copy in sides(name)))
    last = {name: max(sides(name), key=wanted.index) for name in given.without}
    found = defaultdict[Copy, list[dict[str, Any]]](list)
    for turn in range(1, given.turns + 1):
        for copy in wanted:
            began = time.monotonic()
            for line in runs(folder, copy, given):
                if "runs" in line:
                    found[copy].append(line)
                if "runs" in line or "failed" in line:
                    after_s = round(time.monotonic() - began)
                    yield {**line, "without": list(copy.removed), "turn": turn, "after_s": after_s}
            for name, ended_by in last.items():
                if ended_by == copy and all(found[side] for side in sides(name)):
                    yield row(name, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=lambda folder: str(Path(folder).resolve()))
    parser.add_argument("--without", nargs="+", choices=PARTS, required=True, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--gpu", type=int, help="number of the GPU, as nvidia-smi shows it")
    parser.add_argument("--l4-memory", action="store_true", help="within the memory of an L4")
    parser.add_argument("--turns", type=int, default=2, help="engine starts of each copy")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each engine")
    parser.add_argument("--rounds", type=float, default=3.0, help="chunks of a run, by requests at a time")
    parser.add_argument("--lengths", default="20-35", help="seconds of a chunk, a name of bench_plugin.LENGTHS")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the engine, for all")
    parser.add_argument("--out", type=Path, help="append the lines there too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for line in measure(given, Path(folder) / "copy"):
            print(json.dumps(line), flush=True)
            if given.out:
                with given.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
