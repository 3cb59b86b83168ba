"""The environment variables of vLLM's processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from voxbatch.vllm.engine import compat
from voxbatch.vllm.plugin import BATCH_INVARIANT, LOADER_SWITCH, ON, REPRODUCIBLE_SWITCH, SWITCH

ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",  # nothing is sent anywhere
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # forking a process that has threads deadlocks
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",  # the engine lives in a process of its own
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it would be compiled at the first step; greedy decoding needs no sampler
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",  # it wants multicast memory, see arguments.UNFUSED
    "TQDM_DISABLE": "1",  # bars would tear the progress line
}
"""Variables that are set for vLLM, unless the user has set them."""
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The two names of the variable that configures PyTorch's allocator. The second is the older one, and it wins."""
THREADS = "OMP_NUM_THREADS"


@contextlib.contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables within this context. None of them was set before; processes that start within it keep them."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


def allocator(num_gpus: int) -> dict[str, str]:
    """Return the variable with which PyTorch's allocator on a GPU extends its segments, so that the next burst can use
    the memory that a burst leaves.

    Nothing is returned if the user has set the variable, or for several GPUs: their exchange within CUDA graphs cannot
    use such memory (vLLM's issue 42609)."""
    chosen = any(name in os.environ for name in ALLOCATOR)
    return {} if chosen or num_gpus > 1 else {ALLOCATOR[0]: "expandable_segments:True"}


def threads(on_gpu: bool) -> dict[str, str]:
    """Return the variable with which an engine on a GPU does its small work on the host in one thread.

    PyTorch would divide each copy of a chunk's samples among all cores, which then wait for each other. With 32 cores
    the GPU lost a quarter of its speed (benchmarks/history/2026-11-22.md). Nothing is returned if the user has set it.
    """
    return {THREADS: "1"} if on_gpu and THREADS not in os.environ else {}


def set_environment(plugin: bool, loader: bool = False, reproducible: bool = False) -> None:
    """Set the environment with which vLLM's processes start.

    Args:
        plugin: the encoder runs once per chunk.
        loader: the weights are in Hugging Face's format, and the plugin translates them.
        reproducible: the result of a request must not depend on the other requests.
    """
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    os.environ.pop(SWITCH, None)
    os.environ.pop(LOADER_SWITCH, None)
    os.environ.update({LOADER_SWITCH: ON} if loader else {})
    os.environ.update({SWITCH: ON} if plugin else {})
    if os.environ.pop(REPRODUCIBLE_SWITCH, None):  # of an earlier engine
        os.environ.pop(BATCH_INVARIANT, None)
    if reproducible:
        os.environ[REPRODUCIBLE_SWITCH] = ON
        if (compat.find() or ("",))[0] != compat.CPU_BUILD:  # which has no such mode, and runs for tests only
            os.environ[BATCH_INVARIANT] = ON
    os.environ.update(compat.runner_environment(os.environ))
    if find_spec("vllm_omni"):  # its plugin replaces parts of vLLM in every process
        os.environ.setdefault("VLLM_PLUGINS", "voxbatch")
