"""Load format for vLLM: Voxtral Realtime's weights in Hugging Face's format, translated while they load.

vLLM's own loader reads the files, tensor by tensor. `weights` translates the names and the layout. vLLM finds
params.json and tekken.json in the model's folder, because voxbatch links them there
(`voxbatch.vllm.engine.linked_folder`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from voxbatch.vllm.plugin import LOAD_FORMAT
from voxbatch.vllm.plugin.weights import translated


@register_model_loader(LOAD_FORMAT)
class TranslatingLoader(DefaultModelLoader):  # type: ignore[misc]
    """vLLM's safetensors loader with each tensor translated to Mistral's names and layout."""

    def __init__(self, load_config: Any):
        super().__init__(replace(load_config, load_format="safetensors"))

    def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        """Yield (name, tensor) for each tensor of the files, by Mistral's names."""
        params = json.loads((Path(model_config.model) / "params.json").read_text())
        return translated(super().get_all_weights(model_config, model), params)
