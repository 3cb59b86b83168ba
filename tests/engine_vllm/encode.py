"""What the plugin's encoder makes of chunks (npz): rows (npz), of all at once and of each alone.

    python encode.py MODEL_DIR CHUNKS.npz OUT.npz

The chunks are padded already. OUT holds, for each name, NAME.together and NAME.alone, [tokens, width].
"""

from __future__ import annotations

import os
import sys

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
    embed = worker.model_runner.get_model().embed_multimodal
    audio = [torch.from_numpy(each) for each in waveforms.values()]
    with torch.inference_mode():
        together = embed(audio_arrays=audio)
        alone = [embed(audio_arrays=[each])[0] for each in audio]
    found = {}
    for name, one, other in zip(waveforms, together, alone, strict=True):
        found |= {f"{name}.together": one.numpy(), f"{name}.alone": other.numpy()}
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
