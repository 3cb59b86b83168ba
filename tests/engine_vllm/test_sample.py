"""Greedy sampling from the logits as they are gives the tokens of vLLM's own sampler."""

from __future__ import annotations

from pathlib import Path

import pytest
from warm_python import run_code

pytest.importorskip("vllm", reason="vLLM is not installed")

CASES = """
import torch
from types import SimpleNamespace
from vllm.v1.sample.logits_processor import (
    BatchUpdate, LogitBiasLogitsProcessor, LogitsProcessors, MinTokensLogitsProcessor)
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from voxbatch.vllm_plugin.patches.sample import only_argmax, wrap

ROWS, WORDS = 6, 1000
def asked(params=None, **other):
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=ROWS))
    made = [kind(config, torch.device("cpu"), False) for kind in (MinTokensLogitsProcessor, LogitBiasLogitsProcessor)]
    if params:
        for each in made:
            each.update_state(BatchUpdate(ROWS, [], [(0, params, [1], [])], []))
    nothing = torch.zeros(ROWS)
    return SamplingMetadata(**{**dict(
        temperature=None, all_greedy=True, all_random=False, top_p=None, top_k=None, generators={},
        max_num_logprobs=None, no_penalties=True, prompt_token_ids=None, frequency_penalties=nothing,
        presence_penalties=nothing, repetition_penalties=nothing + 1, output_token_ids=[[] for _ in range(ROWS)],
        allowed_token_ids_mask=None, bad_words_token_ids={}, logitsprocs=LogitsProcessors(made)), **other})

sampler, whole = Sampler(), []
def theirs(runner, logits, drafts):
    whole.append(drafts)
    return sampler(logits=logits.clone(), sampling_metadata=runner.input_batch.sampling_metadata)
def said(how, metadata, logits, drafts=None):
    runner = SimpleNamespace(input_batch=SimpleNamespace(sampling_metadata=metadata))
    return how(runner, logits, drafts)

ours = wrap(theirs)
torch.manual_seed(0)
for round in range(20):
    logits = torch.randn(ROWS, WORDS).bfloat16()  # of 1,000 numbers, several are the largest
    logits[0] = 0
    one, other = said(ours, asked(), logits), said(theirs, asked(), logits)
    assert len(whole) == round + 1, "the whole way was gone for nothing"
    assert torch.equal(one.sampled_token_ids, other.sampled_token_ids)
    assert one.sampled_token_ids.dtype == other.sampled_token_ids.dtype == torch.int32
    assert one.logprobs_tensors is None

best = int(logits[1].argmax())
mask = torch.zeros(ROWS, WORDS, dtype=torch.bool)
mask[1, best] = True
own = LogitsProcessors([SimpleNamespace(is_argmax_invariant=lambda: False)])
for more in (
    asked(SamplingParams(temperature=0.0, logit_bias={3: 50.0})),
    asked(SamplingParams(temperature=0.0, min_tokens=4, stop_token_ids=[7])),
    asked(allowed_token_ids_mask=mask), asked(max_num_logprobs=0), asked(bad_words_token_ids={0: [[1]]}),
    asked(no_penalties=False), asked(all_greedy=False), asked(logprob_token_ids={0: [1]}), asked(logitsprocs=own),
    asked(thinking_budget_state_holder=object()),
):
    assert not only_argmax(more)
whole.clear()
biased = asked(SamplingParams(temperature=0.0, logit_bias={3: 50.0}))
assert said(ours, biased, logits).sampled_token_ids[0, 0] == 3
assert said(ours, asked(allowed_token_ids_mask=mask), logits).sampled_token_ids[1, 0] != best
said(ours, asked(), logits, drafts="drafts")
assert whole == [None, None, "drafts"]
"""


@pytest.mark.slow
def test_equals_vllms_sampler(tmp_path: Path) -> None:
    """Greedy sampling equals vLLM's sampler, also if several logits are the largest.

    Biases, masks, log probabilities, drafts and the user's own processors are left to vLLM's sampler.
    """
    run_code(CASES, tmp_path)
