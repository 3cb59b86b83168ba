"""Encode chunks (npz) with the plugin's encoder into rows (npz): all at once, each alone, and with the code paths of a
GPU.

    python encode.py MODEL_DIR CHUNKS.npz OUT.npz

The chunks are padded already. OUT holds, for each name, [tokens, width] as NAME.together, NAME.alone and NAME.fused.
NAME.fused uses the kernels that a GPU uses, except attention and our own kernel: vLLM's kernels have CPU versions of
the same name. Unlike the other two, it encodes the silence at the beginning of each chunk every time. `known` is the
number of frames that the others save.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import generate
import numpy as np
import sounds

from voxbatch.vllm_plugin import SWITCH


def main(model: str, chunks: str, out: str) -> None:
    """Encode the chunks of the npz `chunks` with the model in the folder `model`, and write the rows to `out`."""
    os.environ.update({**generate.ENVIRONMENT, SWITCH: "1"})
    with np.load(chunks) as archive:
        waveforms = {name: archive[name] for name in archive.files}
    sounds.save(out, rows(model, waveforms))


def rows(model: str, waveforms: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the rows of each chunk, [tokens, width], by NAME.WAY."""
    import torch

    llm = generate._engine(model, 512)  # its worker ends when it is garbage collected
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    made = worker.model_runner.get_model()
    audio = [torch.from_numpy(each) for each in waveforms.values()]
    with torch.inference_mode():
        together = made.embed_multimodal(audio_arrays=audio)
        alone = [made.embed_multimodal(audio_arrays=[each])[0] for each in audio]
        by_kernels = fused(made)(audio)
    found = {"known": np.array(made._encoder._silence.frames)}
    ways = {"together": together, "alone": alone, "fused": by_kernels}
    for way, each in ways.items():
        found |= {f"{name}.{way}": rows.numpy() for name, rows in zip(waveforms, each, strict=True)}
    return found


def fused(model: Any) -> Any:
    """Return an encoder with vLLM's fused kernels, in their CPU versions."""
    import torch

    from voxbatch.vllm_plugin.encoder import Encoder
    from voxbatch.vllm_plugin.encoder_ops import FusedOps

    encoder = Encoder(model.whisper_encoder, model.audio_language_adapter)
    encoder._ops = FusedOps()
    for layer in model.whisper_encoder.whisper_encoder.layers:
        layer.mlp.act_fn.op = torch.ops._C.silu_and_mul  # the CPU build has this kernel, but does not use it
    return encoder


if __name__ == "__main__":
    main(*sys.argv[1:])
