"""The families of Voxtral: params.json has their shape, and voxbatch's scheduler and plugin are made for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voxbatch.vllm import plugin as vllm_plugin
from voxbatch.vllm.engine import memory
from voxbatch.vllm.engine.families import Family
from voxbatch.vllm.engine.model import Model
from voxbatch.vllm.engine.settings import VllmSettings


class Voxtral(Family):
    """The part of the interface that all families of Voxtral share: see `Family` for its methods."""

    why_no_plugin = ""
    has_plugin_attention = True
    takes_fp8 = True
    form = "mistral"
    fills_memory = True
    memory_type = memory.Footprint
    """The class that computes the memory of the model."""

    @classmethod
    def footprint(cls, params: Mapping[str, Any], settings: VllmSettings, prefilled: bool) -> memory.Footprint:
        """Return the memory footprint of a model by its params.json."""
        return cls.memory_type(
            dict(params),
            max_model_len=settings.max_model_len,
            prefilled=prefilled,
            fp8=settings.fp8_parts,
            block_size=settings.block_size or memory.BLOCK,
        )

    @classmethod
    def formats(cls, settings: VllmSettings, is_translated: bool) -> dict[str, str]:
        """Return Mistral's format for a translated model, too; see `Family.formats`.

        linked_folder adds its params.json, and the plugin translates the weights.
        """
        if not is_translated:
            return super().formats(settings, is_translated)
        load_format = "dummy" if settings.load_format == "dummy" else vllm_plugin.LOAD_FORMAT
        return {"config_format": cls.form, "load_format": load_format, "tokenizer_mode": cls.form}

    @classmethod
    def scheduler(cls, settings: VllmSettings, on_cpu: bool, kind: str = "Batch") -> str | None:
        """Return the scheduler with the encoder cache for all running requests; see `Family.scheduler`."""
        return scheduler_class(kind, on_cpu) if settings.lift_encoder_cache else None

    @classmethod
    def requests(cls, model: Model, settings: VllmSettings, prefilled: bool, room: float, request_bytes: int) -> int:
        """Return the requests by the shape of the model; see `Family.requests`."""
        return cls.footprint(model.shape(), settings, prefilled).admitted(room)

    @classmethod
    def unplanned_bytes(
        cls, model: Model, settings: VllmSettings, prefilled: bool, planned: float, requests: int
    ) -> float:
        """Return the encoded audio of all running requests, which stock vLLM does not count; see Family."""
        if prefilled or not settings.lift_encoder_cache:
            return 0
        stock = cls.footprint(model.shape(), settings, prefilled)
        running = min(requests, stock.fitting(planned * settings.tensor_parallel_size))
        return running * stock.encoded_bytes  # on each of its GPUs

    @classmethod
    def small_kv_bytes(
        cls, model: Model, settings: VllmSettings, prefilled: bool, room: float, rows: int
    ) -> int | None:
        """Return the K/V cache of a small job with the plugin; see `Family.small_kv_bytes`.

        With a given K/V cache, vLLM captures no CUDA graphs for a trial to measure them, and the driver has less memory
        to free at the end. The cache is given if it takes at most half of the room that the plan leaves: the plan
        counts no more than most of vLLM's buffers.
        """
        if not prefilled:
            return None
        voxtral = cls.footprint(model.shape(), settings, prefilled)
        if 2 * rows > voxtral.fitting(room):
            return None
        return (rows + 1) * voxtral.decoder_kv_bytes // settings.tensor_parallel_size  # vLLM keeps one block for itself


def scheduler_class(kind: str, on_cpu: bool) -> str:
    """Return module.Class of voxbatch's scheduler of a kind. The CPU build never schedules asynchronously."""
    module = f"voxbatch.vllm.plugin.scheduler.{kind.lower()}_scheduler"
    return f"{module}.{'' if on_cpu else 'Async'}{kind}Scheduler"
