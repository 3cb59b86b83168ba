"""Lines of the other scripts of this folder (--out FILE) → the Markdown tables of RESULTS.md, on standard output.

    python benchmarks/gpu/tables.py FILE.jsonl …

A configuration is compared with the stock one that has the same memory, if the files contain one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Line = dict[str, Any]


def speed(given: Sequence[Line]) -> Iterator[str]:
    """Yield the table of --speed."""
    lines = [each for each in given if "runs" in each]
    yield from _head("configuration", "seconds a chunk", "chunks", "RTFx", "each repeat", "steady", "beside stock",
                     "MHz", "W", "requests", "peak GB", "ready in")  # fmt: skip
    rates = {(each["name"], each["lengths"]): each["rtfx"] for each in lines}
    for each in lines:
        runs = each["runs"]
        stock = rates.get(("stock" + "".join(each["name"].partition(",")[1:]), each["lengths"]))
        yield _row(f"`{each['name']}`", each["lengths"], each["chunks"], f"**{each['rtfx']:,.0f}**",
                   _list(run["rtfx"] for run in runs), _list(run["steady"] for run in runs),
                   f"{each['rtfx'] / stock:.2f}" if stock else "", each.get("mhz", ""), each.get("watts", ""),
                   each["requests"], each.get("peak_gb", ""), f"{each['ready_s']:.0f} s")  # fmt: skip


def soak(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the table of --soak."""
    yield from _head("twentieth", "RTFx", "this process, MB", "the engine's, MB", "GPU, MB")
    held = ("this_rss", "engine_rss", "gpu_used")
    for each in lines:
        if "stretch" in each:
            yield _row(each["stretch"], f"{each['rtfx']:,.0f}", *(f"{each[name] / 1e6:,.1f}" for name in held))
    for each in lines:
        if each.get("what") == "drift":
            grown = ", ".join(f"{name} {size / 1e6:+,.1f} MB" for name, size in each["growth_last_half"].items())
            yield f"\nLast quarter beside the second: {each['ratio']:.3f}. Grown over the last half: {grown}."


def profile(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the tables of --profile."""
    yield from _head("what", "context", "wall ms", "GPU busy ms", "matrix products", "attention", "other kinds")
    for each in lines:
        if each["what"] == "encoder":
            kinds = each["gpu_ms_per_chunk"]
            yield _row(f"the encoder, a chunk of 30 s, {each['chunks']} together", "", each["wall_ms_per_chunk"],
                       round(sum(kinds.values()), 2), *_kinds(kinds))  # fmt: skip
        elif each["what"] in ("decode step", "mixture"):
            seen = each["profiled"]
            name = f"{each['what']}, {each['requests']}" if "requests" in each else each["what"]
            yield _row(name, each.get("context", ""), each["wall_ms"], seen["busy_ms"], *_kinds(seen["kinds"]))
    yield from _shares(lines)


def _shares(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the shares of a step of the mixture.

    The encoder's share follows from the chunks. The decoder has the rest of the GPU's time. The rest of the wall time
    is idle.
    """
    mixtures = [each for each in lines if each["what"] == "mixture" and "chunks_a_step" in each]
    encoders = [sum(each["gpu_ms_per_chunk"].values()) for each in lines if each["what"] == "encoder"]
    if not mixtures or not encoders:
        return
    yield ""
    yield from _head("a step of the mixture, profiled", "encoder, GPU ms", "decoder, GPU ms", "GPU idle, ms",
                     "chunks admitted", "not profiled")  # fmt: skip
    for each in mixtures:
        encoder = each["chunks_a_step"][1] * min(encoders)
        busy, wall = each["profiled"]["busy_ms"], each["profiled"]["wall_ms"]
        apart, within = each["chunks_a_step"]
        yield _row(f"{wall} ms", round(encoder, 1), round(busy - encoder, 1), round(wall - busy, 1), within,
                   f"{each['wall_ms']} ms, {apart} chunks")  # fmt: skip
    for each in (line for line in lines if line["what"] == "host"):
        dearest = sorted(each["ms_a_step"].items(), key=lambda pair: -pair[1][0])[:8]
        yield "\nOn the host, ms a step (cProfile's own cost in them): "
        yield "; ".join(f"{where} {own}" for where, (own, _) in dearest) + "."


def idle(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the table of --idle."""
    yield from _head("configuration", "seconds a chunk", "looked into, ms", "GPU idle", "times, and ms of them",
                     "most, before")  # fmt: skip
    for each in lines:
        gaps = "; ".join(f"{name}: {times}, {ms}" for name, (times, ms) in each["gaps"].items())
        most = "; ".join(f"{name[:40]} {ms}" for name, ms in list(each["idle_before"].items())[:4])
        yield _row(f"`{each['name']}`", each["lengths"], each["wall_ms"], f"{each['idle_share']:.1%}", gaps, most)


def _kinds(kinds: dict[str, float]) -> tuple[object, ...]:
    named = {"matrix products", "attention"}
    others = ", ".join(f"{kind} {ms:.2f}" for kind, ms in kinds.items() if kind not in named and ms >= 0.1)
    return *(round(kinds.get(kind, 0.0), 2) for kind in ("matrix products", "attention")), others


def tokens(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the tables of --tokens."""
    yield from _head("configuration", "how", "positions", "distinct tokens", "as the one before")
    for each in lines:
        if "positions" in each and "how" in each:
            yield _row(each["name"], each["how"], f"{each['positions']:,}", each["distinct_tokens"], each["said_again"])
    yield ""
    yield from _head("one", "other", "chunks", "positions", "equal", "by third", "until the first difference")
    for each in lines:
        if "of" in each:
            share, until = each["equal_share"], each["until_first_difference"]
            thirds = "; ".join(map(str, each.get("by_third", ())))
            yield _row(*each["of"], each["chunks"], f"{each['positions']:,}", share, thirds, until)


def run(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the table of bench_run.py."""
    yield from _head("", "first chunk to last result, s", "RTFx", "engine waited, s", "decoding, CPU s", "cores busy")
    for each in lines:
        if "rtfx" in each:
            name = f"{each['name']}, {each['workers'] or 1} workers" if "workers" in each else each["name"]
            cores = ", ".join(f"{kind} {busy}" for kind, busy in each.get("cores", {}).items())
            yield _row(name, round(each["engine_s"] / each.get("engines", 1), 1), f"{each['rtfx']:,.0f}",
                       each.get("starved_s", ""), each.get("decode_cpu_s", ""), cores)  # fmt: skip
    for each in lines:
        if "ratio" in each:
            yield f"\n{each['name']}: {each['ratio']} (bar {each['bar']}, {'met' if each['met'] else 'missed'})"


def latency(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the table of latencies, next to the published figures, which come from other recordings."""
    yield from _head("profile", "clips", "completed", "requests", "WER", "P50 s", "P90 s", "P95 s", "peak GB", "RTFx")
    yield _row("`ctx512`, published", 500, "100.0%", "", "1.80%", "2.64", "6.26", "7.73", "9.8 to 14.5", "")
    for each in lines:
        wer = "—" if each["wer"] is None else f"{each['wer']:.2%}"
        percentiles = (f"{each[name]:.2f}" for name in ("p50_s", "p90_s", "p95_s"))
        peak = "—" if each["peak_gb"] is None else each["peak_gb"]
        yield _row(f"`{each['name']}`", each["clips"], f"{each['completion_rate']:.1%}", each["requests"], wer,
                   *percentiles, peak, f"{each['rtfx']:,.1f}")  # fmt: skip


def serve(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the table of bench_serve.py."""
    yield from _head("profile", "mode", "asked by", "clients", "requests", "P50 s", "P90 s", "P95 s", "first token s",
                     "RTF", "RTFx", "requests/s", "failed", "MHz", "W", "peak GB")  # fmt: skip
    names = ("first_s", "rtf", "rtfx", "requests_per_s", "failed", "mhz", "watts", "peak_gb")
    for each in lines:
        if each.get("requests"):
            yield _row(f"`{each['name']}`", each["mode"], f"{each['way']}, {each['clip_s']:g} s", each["concurrency"],
                       each["requests"], *(f"{each[name]:.2f}" for name in ("p50_s", "p90_s", "p95_s")),
                       *(_figure(each.get(name)) for name in names))  # fmt: skip
    for each in lines:
        if "ready_s" in each:
            yield f"\n`{each['name']}`, {each['mode']}: ready in {each['ready_s']:.0f} s. `{each['command']}`"


TABLES = {
    "serve": serve,
    "latency": latency,
    "speed": speed,
    "soak": soak,
    "profile": profile,
    "idle": idle,
    "tokens": tokens,
    "run": run,
}


def _head(*names: str) -> Iterator[str]:
    yield _row(*names)
    yield "|" + "---|" * len(names)


def _row(*cells: object) -> str:
    return "| " + " | ".join(f"{each:,}" if isinstance(each, int) else str(each) for each in cells) + " |"


def _figure(value: float | None) -> str:
    return "—" if value is None else f"{value:,}"


def _list(rates: Iterable[float]) -> str:
    found = list(rates)
    return "; ".join(f"{rate:,.0f}" for rate in found) + (f" (median {median(found):,.0f})" if len(found) > 2 else "")


def main(*files: str) -> None:
    """Print the tables of all files."""
    lines = [json.loads(line) for file in files for line in Path(file).read_text().splitlines() if line.strip()]
    for name, table in TABLES.items():
        mine = [line for line in lines if line.get("measure") == name]
        for line in (line for line in mine if "failed" in line or "error" in line):
            if (
                said := line.get("error")
                or line.get("first_error")
                or (line["failed"] if isinstance(line["failed"], str) else "")
            ):
                print(f"\n{line['name']} failed: {said[-300:]}")
        if whole := [line for line in mine if "error" not in line and not isinstance(line.get("failed"), str)]:
            print(f"\n### {name}\n")
            print("\n".join(table(whole)))


if __name__ == "__main__":
    main(*sys.argv[1:])
