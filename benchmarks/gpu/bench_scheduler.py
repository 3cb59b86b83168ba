"""Measure the cost of vLLM's scheduler per step: vLLM's own, with shortcuts, and with the fast path.

    python benchmarks/gpu/bench_scheduler.py [--requests N]

Measured are schedule and update_from_output. The script needs no GPU and no model: the answers are generated. All
schedulers run in this process, in turn, step by step, with the same requests of Voxtral Realtime's shape (a prompt of
39 tokens, up to 450 tokens of output). New requests arrive as others end.

steady   the median of the steps that admit no request; in most of them one or another request ends
all      the mean of all steps, including those that admit a burst

The times are CPU times of the thread, so other work of the machine does not count.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support" / "engine_vllm")]
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import modelless  # noqa: E402 the path is set above

PROMPT, LONGEST, WAITING = 39, 450, 64
WARM_UP, STEPS = 500, 300


@dataclass
class Side:
    """One of the schedulers, and its times."""

    scheduler: Any
    model: modelless.Model = field(default_factory=lambda: modelless.Model(lambda name, number: 100))
    under_way: list[tuple[Any, Any]] = field(default_factory=list)
    asked: int = 0
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"schedule": [], "update": []})
    is_steady: list[bool] = field(default_factory=list)

    def step(self) -> None:
        """Do one step as vLLM's engine does: schedule the next step before the answer of the current one."""
        while len(self.scheduler.waiting) < WAITING:
            tokens = LONGEST - self.asked * 7919 % (LONGEST // 2)
            self.scheduler.add_request(modelless.request(str(self.asked), PROMPT, tokens, ignore_eos=True))
            self.asked += 1
        began = time.thread_time()
        step = self.scheduler.schedule()
        self.seconds["schedule"].append(time.thread_time() - began)
        self.under_way.append((step, self.model.answer(step)))
        if len(self.under_way) > 1:
            waited = self.under_way.pop(0)
            began = time.thread_time()
            self.scheduler.update_from_output(*waited)
            self.seconds["update"].append(time.thread_time() - began)
            self.is_steady.append(not step.scheduled_new_reqs)
        else:
            self.seconds["schedule"].pop()

    def figures(self) -> dict[str, float]:
        """Return the figures, in milliseconds per step."""
        taken = list(zip(*self.seconds.values(), self.is_steady, strict=True))[WARM_UP:]
        steady = [(schedule, update) for schedule, update, is_steady in taken if is_steady]
        found = {
            "schedule": median(schedule for schedule, _ in steady),
            "update": median(update for _, update in steady),
            "steady": median(map(sum, steady)),
            "all": mean(schedule + update for schedule, update, _ in taken),
        }
        return {name: round(1e3 * each, 3) for name, each in found.items()} | {"steady_steps": len(steady)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=512)
    requests = parser.parse_args().requests
    from voxbatch.vllm_plugin.scheduler.batch_scheduler import AsyncBatchScheduler

    class Before(AsyncBatchScheduler):  # type: ignore[misc]
        _uses_fast_path = False

    kinds = {
        "vLLM's own": modelless.stock(),
        "with shortcuts": Before,
        "with the fast path": AsyncBatchScheduler,
    }
    blocks = (requests + 1) * modelless.CONTEXT // modelless.BLOCK
    sides = {name: Side(modelless.scheduler(kind, requests, blocks)) for name, kind in kinds.items()}
    gc.freeze()  # vLLM's engine does the same after its start
    for step in range(WARM_UP + STEPS):
        for side in sorted(sides.values(), key=id, reverse=bool(step % 2)):
            side.step()
    print(json.dumps({**modelless.machine(), "requests": requests, "unit": "ms a step"}))
    for name, side in sides.items():
        print(json.dumps({"way": name, **side.figures()}))


if __name__ == "__main__":
    main()
