"""Decide whether a Voxtral runs with voxbatch's plugin, which encodes each chunk once, or as in stock vLLM.

Stock vLLM runs Realtime's encoder in every step, and that of the instruct models once per window. So the plugin gains
most for Realtime, and `auto` takes it for no other model.

The decision depends on the version (`vllm_version`) and on the settings. It imports nothing of vLLM. Another version
runs without the plugin and its schedulers, with a warning before anything is loaded.

In float32 both give the same text, token for token. In bfloat16 near ties may turn out differently, as they also do
when other chunks run beside a chunk. So the decision is not part of a run's identity, and neither is the number of
requests at a time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from voxbatch.errors import ConfigError, EngineError
from voxbatch.vllm import plugin as vllm_plugin
from voxbatch.vllm.engine import compat
from voxbatch.vllm.engine.families.choice import family_of
from voxbatch.vllm.engine.settings import AUTO, FALSE, TRUE, VllmSettings
from voxbatch.vllm.plugin import vllm_version


@dataclass(frozen=True, slots=True)
class Decision:
    """The value of `prefill_encoder` on this machine."""

    on: bool
    """The plugin runs the model: the encoder runs once per chunk."""
    reason: str = ""
    """The reason why `auto` takes stock vLLM for a family that runs the plugin by default. Empty in all other cases."""

    @property
    def warning(self) -> str:
        """Return a warning with the reason and its cost, or an empty string if there is no reason."""
        if not self.reason:
            return ""
        return (
            "the plugin that runs the encoder once a chunk is off, and stock vLLM is about 5 times slower on a GPU: "
            f"{self.reason}. To run stock vLLM without this warning, give --no-prefill-encoder"
        )


def with_proven_scheduler(settings: VllmSettings) -> VllmSettings:
    """Return the settings, with vLLM's own scheduler unless voxbatch's are made for the installed vLLM."""
    _, version = compat.installed()
    return settings if vllm_version.is_proven(version) else replace(settings, lift_encoder_cache=False)


def decide(family: str, settings: VllmSettings) -> Decision:
    """Resolve `prefill_encoder` for the installed vLLM.

    Raises:
        ConfigError: the setting is true, and the model has no such encoder.
        EngineError: the setting is true, and this vLLM or this installation cannot run the plugin; or the setting is
            not false, and vLLM is not installed.
    """
    kind, wanted = family_of(family, settings.task), settings.prefill_encoder
    if wanted == TRUE and kind.why_no_plugin:
        raise ConfigError(f"engine option prefill_encoder=true: {kind.why_no_plugin}; leave the option out")
    unfit = _unfit(*compat.installed())
    if model := kind.runs_in_plugin_alone:
        if unfit:
            raise EngineError(f"{model} runs in voxbatch's plugin alone: {unfit}")
        return Decision(on=True)
    if wanted == TRUE:
        if unfit:
            raise EngineError(f"engine option prefill_encoder=true: {unfit}. To run stock vLLM, leave the option out")
        return Decision(on=True)
    if wanted == FALSE or not kind.plugin_by_default:
        return Decision(on=False)
    reason = _unproven_setting(settings) or unfit
    return Decision(not reason, reason)


def _unfit(distribution: str, version: str) -> str:
    """Return why the installed vLLM cannot run the plugin, as text for people, or an empty string."""
    if not vllm_version.is_proven(version):
        return (
            f"{distribution} {version} is installed, and the plugin is proven with {vllm_version.VERSION} "
            "(pip install 'voxbatch[vllm]' installs it)"
        )
    if chosen := compat.second_runner(os.environ):
        return f"{chosen} is set, and the plugin runs in vLLM's first model runner only: unset the variable"
    if not vllm_plugin.is_installed():
        return "vLLM does not find it, because voxbatch is not installed as a package or VLLM_PLUGINS does not name it"
    return ""


def _unproven_setting(settings: VllmSettings) -> str:
    """Return the setting that `auto` does not combine with the plugin, or an empty string.

    The parts of `fp8` are no such setting: they were measured with the plugin (benchmarks/RESULTS.md).
    """
    if settings.tensor_parallel_size > 1:
        return f"tensor_parallel_size={settings.tensor_parallel_size} is set, and the plugin is proven on one GPU only"
    if settings.quantization:
        return f"quantization={settings.quantization} is set, and the plugin is proven with a model's own weights only"
    return ""


def is_expected(settings: VllmSettings) -> bool:
    """Return whether the plugin is expected to run Voxtral Realtime on the GPUs of another machine, which is assumed
    to have the vLLM of the extra."""
    return settings.prefill_encoder == TRUE or (settings.prefill_encoder == AUTO and is_plain(settings))


def brings_attention(settings: VllmSettings) -> bool:
    """Return whether the plugin's own attention is used if the plugin is on, as far as the settings decide this.

    It is used if the settings name no other backend and the model computes in 16 bits. The K/V cache may have 8 bits.
    """
    return not settings.attention_backend and settings.dtype != "float32"


def is_plain(settings: VllmSettings) -> bool:
    """Return whether no setting keeps `auto` from the plugin."""
    return not _unproven_setting(settings)
