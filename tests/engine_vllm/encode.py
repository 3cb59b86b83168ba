"""What the plugin's encoder makes of chunks (npz): rows (npz), of all at once, of each alone, and by ways of a GPU.

    python encode.py MODEL_DIR CHUNKS.npz OUT.npz

The chunks are padded already. OUT holds, for each name, [tokens, width] as NAME.together, NAME.alone, NAME.fused and
NAME.products. NAME.fused is by the kernels that a GPU takes, attention and our own kernel apart: vLLM's have twins of
the same name for CPUs. NAME.products is with the convolutions as matrix products, as on a GPU. These two encode the
silence that chunks begin with each time, as the others do not: `known` is how many frames they spare.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import generate
import numpy as np

from voxbatch.vllm_plugin import SWITCH


def main(model: str, chunks: str, out: str) -> None:
    os.environ.update({**generate.ENVIRONMENT, SWITCH: "1"})
    with np.load(chunks) as archive:
        waveforms = {name: archive[name] for name in archive.files}
    np.savez(out, **rows(model, waveforms))


def rows(model: str, waveforms: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import torch

    llm = generate._engine(model, 512)  # ends its worker when it is forgotten
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    made = worker.model_runner.get_model()
    audio = [torch.from_numpy(each) for each in waveforms.values()]
    with torch.inference_mode():
        together = made.embed_multimodal(audio_arrays=audio)
        alone = [made.embed_multimodal(audio_arrays=[each])[0] for each in audio]
        by_kernels, by_products = fused(made)(audio), products(made)(audio)
    found = {"known": np.array(made._encoder._silence.frames)}
    ways = {"together": together, "alone": alone, "fused": by_kernels, "products": by_products}
    for way, each in ways.items():
        found |= {f"{name}.{way}": rows.numpy() for name, rows in zip(waveforms, each, strict=True)}
    return found


def fused(model: Any) -> Any:
    import torch

    from voxbatch.vllm_plugin.encoder import Encoder, _Fused

    encoder = Encoder(model.whisper_encoder, model.audio_language_adapter)
    encoder._ops = _Fused()
    for layer in model.whisper_encoder.whisper_encoder.layers:
        layer.mlp.act_fn.op = torch.ops._C.silu_and_mul  # which the CPU build has, and does not use
    return encoder


def products(model: Any) -> Any:
    from voxbatch.vllm_plugin.convolution import Causal
    from voxbatch.vllm_plugin.encoder import Encoder

    encoder = Encoder(model.whisper_encoder, model.audio_language_adapter)
    layers = model.whisper_encoder.whisper_encoder
    encoder._conv1, encoder._conv2 = Causal(layers.conv1), Causal(layers.conv2)
    return encoder


if __name__ == "__main__":
    main(*sys.argv[1:])
