"""Measure seconds of audio per second of models that take windows of 30 s: all but Voxtral Realtime.

    python benchmarks/gpu/bench_instruct.py MODEL_DIR [--only NAME …] [--text-tokens 100] [--repeats 3] [--rounds 2]
                                            [--option NAME=VALUE …] [--out FILE]

MODEL_DIR comes from `full_size.py --shape`, with any shape but Realtime's, or is a real model. Every
window holds 30 s of noise and gets exactly --text-tokens tokens of text: read speech has about 100. Each configuration
runs in its own process, through the driver of voxbatch's engine, and prints JSON lines: one for each repeat with mean
clocks and watts of the first GPU, and one with the medians. Small 24B needs `--option tensor_parallel_size=2`.

voxbatch          as a run does it, with the plugin where there is one for the model.
without plugin    voxbatch's scheduler and settings, without the plugin.
stock             vLLM's own scheduler, with the largest step and number of requests that vLLM chooses for this GPU. The
                  driver calls add_request and step, as LLM.generate does; `--option max_num_seqs=N` tries another N.
… L4 memory       the same within the memory that a run may fill on an L4, 22.94 GB. This is not the speed of an L4.

`--option confidence=true` gives what the confidences of Whisper cost. voxbatch must be installed as a package. On a
machine without a GPU everything runs as a rehearsal, with a tiny model.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import bench_plugin
from shared import measured_lines, tell, watched

WITHOUT = {"prefill_encoder": "false"}
STOCK = {**WITHOUT, "lift_encoder_cache": "false"}
CONFIGURATIONS: dict[str, dict[str, str]] = {
    "voxbatch": {"prefill_encoder": "true"},
    "without plugin": WITHOUT,
    "stock": {**STOCK, "max_num_seqs": "1024", "max_num_batched_tokens": "16384"},
    "voxbatch, L4 memory": {"prefill_encoder": "true", **bench_plugin.SMALL},
    "without plugin, L4 memory": {**WITHOUT, **bench_plugin.SMALL},
    "stock, L4 memory": {**STOCK, **bench_plugin.SMALL, "max_num_seqs": "256", "max_num_batched_tokens": "8192"},
}
"""Options by configuration. vLLM's own values of max_num_seqs and max_num_batched_tokens are those of its LLM class
(engine/arg_utils.py): 1,024 requests and 16,384 positions for an H200, 256 and 8,192 for an L4."""
VOXTRAL_ONLY = ("prefill_encoder", "lift_encoder_cache")


class FixedText:
    """A family whose requests all get the same number of text tokens.

    Args:
        family: the family of the model.
        tokens: number of text tokens.
        lang: language of all pieces; None leaves them as they are.
    """

    def __init__(self, family: Any, tokens: int, lang: str | None):
        self._family, self._tokens, self._lang = family, tokens, lang

    def __getattr__(self, name: str) -> Any:
        return getattr(self._family, name)

    def request(self, piece: Any) -> Any:
        """Return the family's request with the fixed number of tokens."""
        return replace(self._family.request(self._in_language(piece)), max_tokens=self._tokens, ignore_eos=True)

    def read(self, piece: Any, *said: Any) -> Any:
        """Return the family's text."""
        return self._family.read(self._in_language(piece), *said)

    def _in_language(self, piece: Any) -> Any:
        return replace(piece, lang=self._lang) if self._lang else piece


def measured(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a line for each repeat, and one with the medians."""
    options = {**CONFIGURATIONS[given.one], **dict(pair.split("=", 1) for pair in given.option)}
    profile = "mini-3b"
    if not (Path(given.model) / "params.json").exists():
        is_whisper = json.loads((Path(given.model) / "config.json").read_text())["model_type"] == "whisper"
        profile = "whisper" if is_whisper else "transcription"
        options = {name: value for name, value in options.items() if name not in VOXTRAL_ONLY}
    bench_plugin.DUMMY.pop("delay_ms", None)
    bench = bench_plugin.Bench(given.model, options, profile)
    bench.made._family = FixedText(bench.made._family, given.text_tokens, None if profile == "mini-3b" else "en")
    yield {"ready_s": bench.ready_s, "requests": bench.requests, "described": bench.core.describe()}
    bench.feed(bench_plugin.sounds(max(8, bench.requests // 4), "30", bench.longest))  # the first run compiles
    samples = bench_plugin.sounds(max(8, int(bench.requests * given.rounds)), "30", bench.longest)
    runs = list[dict[str, float]]()
    for _ in range(given.repeats):
        with watched() as gpu:
            run = bench.feed(samples)
        runs.append({**run, **gpu})
        yield {"repeat": len(runs), **runs[-1]}
    yield {
        **{name: median(run[name] for run in runs) for name in runs[0]},
        "rtfx_by_repeat": [run["rtfx"] for run in runs], "windows": len(samples),
        "text_tokens": given.text_tokens, "requests": bench.requests,
    }  # fmt: skip
    bench.core.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=lambda folder: str(Path(folder).resolve()))
    parser.add_argument("--only", nargs="+", choices=CONFIGURATIONS, default=["voxbatch", "stock"])
    parser.add_argument("--text-tokens", type=int, default=100, help="of each window")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=float, default=2.0, help="windows of a run, by requests at a time")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the engine, for all")
    parser.add_argument("--out", type=Path, help="append the lines there too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        for line in measured(given):
            print("RESULT " + json.dumps(line), flush=True)
        os._exit(0)  # an engine in this process would end slowly
    for name in given.only:
        for line in measured_lines(__file__, name):
            tell({"name": name, "model": Path(given.model).name, **line}, given.out)


if __name__ == "__main__":
    main()
