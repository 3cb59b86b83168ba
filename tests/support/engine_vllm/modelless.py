"""vLLM's scheduler without an engine: requests like those of Voxtral Realtime, and a made-up model."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np
import pytest

from voxbatch.vllm.engine.compat import RUNNER
from voxbatch.vllm.plugin import ON, SWITCH

PLUGIN_ON = {SWITCH: ON, RUNNER: "0"}
"""Environment in which a scheduler is made."""
CONTEXT, BLOCK, EOS = 512, 16, 2

Say = Callable[[str, int], int]
"""Made-up model: a request's name and the number of its tokens so far → the next token."""


def scheduler(
    kind: type[Any],
    requests: int,
    blocks: int,
    crowded: bool = False,
    step_tokens: int = 16_384,
) -> Any:
    """Return a scheduler that runs `requests` requests at a time.

    Args:
        kind: class of the scheduler, which derives from our BatchScheduler.
        blocks: number of K/V cache blocks, of BLOCK tokens each.
        crowded: run so many requests even if the blocks do not suffice for all of them to their ends.
        step_tokens: maximum number of tokens in a step.
    """
    with patch.dict(os.environ, PLUGIN_ON):
        made = kind(**_arguments(requests, blocks, step_tokens))
    assert not made.use_v2_model_runner
    if crowded:
        made._reservations.total = requests * CONTEXT
        cache = made.encoder_cache_manager
        cache.cache_size = cache.num_free_slots = cache.num_freeable_slots = requests * CONTEXT
        made.max_num_encoder_input_tokens = cache.cache_size
    return made


def ours() -> type[Any]:
    """Return our scheduler's class."""
    from voxbatch.vllm.plugin.scheduler.batch_scheduler import AsyncBatchScheduler

    return AsyncBatchScheduler


@cache
def stock() -> type[Any]:
    """Return a scheduler class that admits as ours does and otherwise works as vLLM's own."""
    from vllm.v1.core.sched.scheduler import Scheduler

    from voxbatch.vllm.plugin.patches import allocate_slots
    from voxbatch.vllm.plugin.scheduler.batch_scheduler import AsyncBatchScheduler

    class Stock(AsyncBatchScheduler):
        _uses_fast_path = False
        _try_schedule_encoder_inputs = Scheduler._try_schedule_encoder_inputs

        def __init__(self, **arguments: Any):
            super().__init__(**arguments)
            manager = self.kv_cache_manager
            manager.__dict__.pop("allocate_slots", None)
            manager.allocate_slots = allocate_slots.reserve_all_blocks(manager.allocate_slots, self._reservations)

    return Stock


@cache
def _arguments(requests: int, blocks: int, step_tokens: int) -> dict[str, Any]:
    import torch
    from vllm import config
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    kv_cache = config.CacheConfig(block_size=BLOCK, enable_prefix_caching=False)
    steps = config.SchedulerConfig(
        max_num_seqs=requests,
        max_num_batched_tokens=step_tokens,
        max_model_len=CONTEXT,
        is_encoder_decoder=False,
        async_scheduling=True,
    )
    with _model_folder() as folder:
        made = config.VllmConfig(
            model_config=config.ModelConfig(folder, skip_tokenizer_init=True, dtype="float32", max_model_len=CONTEXT),
            cache_config=kv_cache,
            scheduler_config=steps,
            device_config=config.DeviceConfig("cpu"),
        )
    kv_cache.block_size, kv_cache.num_gpu_blocks = BLOCK, blocks
    attention = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.float32)
    return {
        "vllm_config": made,
        "kv_cache_config": KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], attention)]),
        "structured_output_manager": StructuredOutputManager(made),
        "block_size": BLOCK,
    }


@contextlib.contextmanager
def _model_folder() -> Iterator[str]:
    """Yield a folder with the configuration of a small model. Its weights are never read."""
    shape = {"hidden_size": 64, "ffn_dim": 64, "num_attention_heads": 1, "num_hidden_layers": 1, "vocab_size": 1_000}
    named = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "max_position_embeddings": CONTEXT}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**named, **shape}))
        yield folder


def request(name: str, prompt: int, max_tokens: int, **sampling: Any) -> Any:
    """Return a request with `prompt` prompt tokens, and with audio to the end of the text.

    Like our requests, it stops at EOS and wants its text only when the text is complete.
    """
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.request import Request

    wanted = {"output_kind": RequestOutputKind.FINAL_ONLY, "detokenize": False, **sampling}
    asked = SamplingParams(temperature=0.0, max_tokens=max_tokens, **wanted)
    if not asked.ignore_eos:
        asked.update_from_generation_config({}, EOS)
    place = PlaceholderRange(offset=0, length=prompt + max_tokens + 1)
    feature = MultiModalFeatureSpec(data=None, modality="audio", identifier=f"audio-{name}", mm_position=place)
    return Request(
        request_id=name,
        prompt_token_ids=[1] * prompt,
        sampling_params=asked,
        pooling_params=None,
        mm_features=[feature],
        arrival_time=0.0,
    )


class Model:
    """Stand-in for the model runner. It answers each step with a token for each request whose prompt is complete."""

    def __init__(self, say: Say):
        self._say, self._known = say, dict[str, list[int]]()
        """Numbers of prompt tokens, computed tokens and generated tokens of each request."""

    def answer(self, step: Any) -> Any:
        """Return the runner's output for a step."""
        from vllm.v1.outputs import ModelRunnerOutput

        for new in step.scheduled_new_reqs:
            prompt = len(new.prompt_token_ids)
            said = len(new.prefill_token_ids or new.prompt_token_ids) - prompt  # of a request that comes anew
            self._known[new.req_id] = [prompt, new.num_computed_tokens, said]
        again = step.scheduled_cached_reqs
        for name, computed, said in zip(again.req_ids, again.num_computed_tokens, again.num_output_tokens, strict=True):
            self._known[name][1:] = computed, said
        names = list(step.num_scheduled_tokens)
        tokens = [self._token(name, step.num_scheduled_tokens[name]) for name in names]
        return ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=tokens
        )

    def _token(self, name: str, scheduled: int) -> list[int]:
        prompt, computed, said = self._known[name]
        return [self._say(name, said)] if computed + scheduled >= prompt + said else []


class Side:
    """Scheduler and its model. Steps run ahead of the model's answers, as in vLLM's engine."""

    def __init__(self, kind: type[Any], say: Any, **limits: Any):
        self.scheduler = scheduler(kind, **limits)
        self.model, self._under_way = Model(say), deque[tuple[Any, Any]]()
        self.texts, self.ends = defaultdict[str, list[int]](list), dict[str, Any]()
        self.scores = dict[str, Any]()
        """The kv_transfer_params of each finished request."""
        self.messages = self.preempted = 0

    def schedule(self) -> Any:
        """Schedule a step, and queue it with the model's answer."""
        step = self.scheduler.schedule()
        self.preempted += len(step.preempted_req_ids or ())
        self._under_way.append((step, self.model.answer(step)))
        return step

    def update(self) -> bool:
        """Give the oldest queued answer to the scheduler, and return whether there was one."""
        if not self._under_way:
            return False
        for message in self.scheduler.update_from_output(*self._under_way.popleft()).values():
            self.messages += 1
            for each in message.outputs:
                assert each.request_id not in self.ends
                self.texts[each.request_id] += each.new_token_ids
                if each.finished:
                    self.ends[each.request_id] = each.finish_reason, each.stop_reason
                    self.scores[each.request_id] = each.kv_transfer_params
        return True

    def abort(self, names: list[str]) -> None:
        """Abort the requests of these names."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    @property
    def under_way(self) -> int:
        """Number of steps that are queued."""
        return len(self._under_way)


def drawn_words(seed: int, share_of_ends: float) -> Say:
    """Return a model whose next token depends on nothing but the seed, the request and the number of the token."""

    def say(name: str, number: int) -> int:
        dice = crc32(f"{seed} {name} {number}".encode())
        return EOS if dice < share_of_ends * 2**32 else 3 + dice % 900

    return say


def arrivals(rng: np.random.Generator, step: int, first: int) -> int:
    """Return the number of requests that come before this step. If `first` is not 0, all `first` come before step 0."""
    if first:
        return 0 if step else first
    return int(rng.integers(0, 12)) if rng.random() < 0.15 or not step else 0


def seeds(count: int) -> list[Any]:
    """Return the seeds of random walks, as parameters of a test: five for each run of the tests, and the others for
    `make test-long`."""
    return [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, count))]


def some_of(rng: np.random.Generator, names: list[str]) -> list[str]:
    """Return one to three names, for requests to abort."""
    return [names[i] for i in rng.integers(0, len(names), rng.integers(1, 4))]


def drawn_request(name: str, prompt: int, max_tokens: int, number: int) -> Any:
    """Return a request whose kind depends on its number."""
    kinds: list[dict[str, Any]] = [{}, {"ignore_eos": True}, {"stop_token_ids": [5, 500]}]
    return request(name, prompt, max_tokens, **kinds[number % 3])
