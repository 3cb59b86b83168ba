"""vLLM's own checks of the arguments that the engine makes, without a model: each costs seconds where a start costs
minutes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voxbatch.engines import create
from voxbatch.errors import ConfigError
from voxbatch.vllm.engine.arguments import llm_arguments


def refusals(model: Path, variants: Sequence[dict[str, str]], options: dict[str, str]) -> list[tuple[str, str]]:
    """Return voxbatch's error and vLLM's for the options with each of the variants: empty where there is none.

    vLLM is asked for its configuration, and for the room that audio has in a step, as when an engine starts.
    """
    return [_refusal(model, {**options, **variant}) for variant in variants]


def _refusal(model: Path, options: dict[str, str]) -> tuple[str, str]:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    try:
        engine: Any = create("vllm", str(model), options)
    except ConfigError as e:
        return str(e), ""
    folder = engine._family.serving_folder(engine._model, engine._settings)
    arguments = llm_arguments(engine._model, engine._settings, engine._prefilled, folder, engine.spec.concurrency)
    try:
        config = EngineArgs(**arguments).create_engine_config()
        if config.model_config.is_multimodal_model:
            MultiModalBudget(config, MULTIMODAL_REGISTRY)
    except ValueError as e:
        return "", str(e)
    finally:
        engine.close()
    return "", ""
