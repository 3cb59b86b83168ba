"""What the plugin's encoder makes of chunks (npz): rows (npz), of all at once, of each alone, and by fused kernels.

    python encode.py MODEL_DIR CHUNKS.npz OUT.npz

The chunks are padded already. OUT holds, for each name, NAME.together, NAME.alone and NAME.fused, [tokens, width]. The
last is the way taken on a GPU, attention and our own kernel apart: vLLM's kernels have twins of the same name for CPUs.
It encodes the silence that chunks begin with each time, as the others do not: `known` is how many frames they spare.
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
        by_kernels = fused(made)(audio)
    found = {"known": np.array(made._encoder._silence.frames)}
    for way, each in (("together", together), ("alone", alone), ("fused", by_kernels)):
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


if __name__ == "__main__":
    main(*sys.argv[1:])
