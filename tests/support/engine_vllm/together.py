"""Generate tokens (json) for audio (npz) that is padded already or has an unusual beginning.

    python together.py MODEL_DIR AUDIO.npz OUT.json SCHEDULER [NAME=VALUE …]

SCHEDULER is one of this module's classes, which runs all requests at once and the encoder once for each chunk; or
"stock", which runs one request at a time. The other arguments go to vLLM's LLM. The JSON holds "tokens" and "told" by
name, "copies", the number of copied K/V blocks, "fast_steps", the number of steps on the fast path, and "runner", the
module of vLLM's model runner. "told" is what the scheduler tells the runner: for each time that a request is admitted,
the number of its positions that are computed already.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import generate
import numpy as np

from voxbatch.vllm_plugin import SWITCH

STOCK = "stock"
THROWS_OUT = 30
"""Step before which Watched preempts the last request that came."""


def main(model: str, audio: str, out: str, scheduler: str, *options: str) -> None:
    """Generate the tokens for the npz `audio` with the model in the folder `model`, and write them to `out`."""
    os.environ.update({**generate.ENVIRONMENT, **({} if scheduler == STOCK else {SWITCH: "1"})})
    with np.load(audio) as archive:
        heard = {name: archive[name] for name in archive.files}
    given = {name: int(value) for name, value in (option.split("=") for option in options)}
    Path(out).write_text(json.dumps(said(model, heard, scheduler, given)))


def said(model: str, heard: dict[str, np.ndarray], scheduler: str, given: dict[str, int]) -> dict[str, Any]:
    """Return the tokens of each audio, and the scheduler's records."""
    named = {} if scheduler == STOCK else {"scheduler_cls": f"{Path(__file__).stem}.{scheduler}"}
    if scheduler == "Ahead":
        schedule_ahead()
    llm = generate._engine(model, 512, **named, **given)
    prompt = generate.encode(generate.tokenizer(model), np.zeros(16_000, np.float32)).tokens
    batches = [[name] for name in heard] if scheduler == STOCK else [list(heard)]
    found: dict[str, Any] = {"tokens": {}, "told": {}, "copies": 0, "fast_steps": 0, "runner": runner(llm)}
    for names in batches:
        asked = [_request(prompt, heard[name]) for name in names]
        results = llm.generate(*map(list, zip(*asked, strict=True)), use_tqdm=False)
        found["tokens"] |= {name: list(each.outputs[0].token_ids) for name, each in zip(names, results, strict=True)}
    if scheduler != STOCK:
        watched = llm.llm_engine.engine_core.engine_core.scheduler
        # vLLM appends text to its request numbers
        found["told"] = {name: watched.told[str(number)] for number, name in enumerate(heard)}
        found["copies"], found["fast_steps"] = watched.copies, watched.fast_steps
    return found


def runner(llm: Any) -> str:
    """Return the module of the model runner of an engine in this process."""
    [found] = llm.collective_rpc(lambda worker: type(worker.model_runner).__module__)
    return str(found)


def schedule_ahead() -> None:
    """Let vLLM's CPU build schedule asynchronously, as on a GPU. Its second model runner can do so."""
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config

    def check_and_update_config(config: Any) -> None:
        original(config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = staticmethod(check_and_update_config)


def _request(prompt: list[int], samples: np.ndarray) -> tuple[dict[str, Any], Any]:
    from vllm import SamplingParams

    most = len(samples) // generate.SAMPLES_PER_TOKEN - len(prompt) - 1
    asked = {"prompt_token_ids": prompt, "multi_modal_data": {"audio": (samples, generate.SAMPLING_RATE)}}
    return asked, SamplingParams(temperature=0, max_tokens=most, ignore_eos=True, detokenize=False)


if SWITCH in os.environ:  # the engine of this process uses the plugin
    from voxbatch.vllm_plugin.scheduler.batch_scheduler import AsyncBatchScheduler, BatchScheduler

    class Watching:
        """Mixin that notes what it tells, and throws a request out once."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.told, self.copies, self.fast_steps = defaultdict[str, list[int]](list), 0, 0

        def _empty_step(self) -> Any:
            self.fast_steps += 1
            return super()._empty_step()  # type: ignore[misc]

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            scheduler: Any = self
            if scheduler.current_step == THROWS_OUT and len(scheduler.running) > 1:
                scheduler._preempt_request(scheduler.running.pop(), time.monotonic())
            step = super().schedule(*args, **kwargs)  # type: ignore[misc]
            for new in step.scheduled_new_reqs:
                self._tell(new.req_id, new.num_computed_tokens)
            again = step.scheduled_cached_reqs
            for name, computed in zip(again.req_ids, again.num_computed_tokens, strict=True):
                if name in again.resumed_req_ids:
                    self._tell(name, computed)
            self.copies += len(step.kv_cache_block_copies or ())
            return step

        def _tell(self, name: str, computed: int) -> None:
            self.told[name.partition("-")[0]].append(computed)

    class Watched(Watching, BatchScheduler):
        """The scheduler of vLLM's CPU build."""

    class Ahead(Watching, AsyncBatchScheduler):
        """The scheduler of vLLM's GPU build, whose steps run ahead."""

    class Forgetful(Watched):
        """Its copies are never made."""

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            step = super().schedule(*args, **kwargs)
            step.kv_cache_block_copies = None
            return step


if __name__ == "__main__":
    main(*sys.argv[1:])
