"""List the matrices of a model that are in 8 bits if some parts are asked for, and encode a chunk.

    python quantised.py MODEL_DIR CHUNK.npy OUT.npz [PART …]

OUT holds `rows`, [tokens, width], and `methods`, JSON: module → vLLM's class that multiplies by its matrix. The model
runs in bfloat16, with the encoder once for each chunk.
"""

from __future__ import annotations

import json
import os
import sys

import generate
import numpy as np

from voxbatch.engines.vllm import fp8
from voxbatch.vllm_plugin import SWITCH


def main(model: str, chunk: str, out: str, *parts: str) -> None:
    """Load the model with `parts` in 8 bits, and write its methods and the rows of the chunk to `out`."""
    os.environ.update({**generate.ENVIRONMENT, SWITCH: "1"})
    import torch

    llm = generate._engine(model, 512, dtype="bfloat16", **fp8.arguments(frozenset(parts)))
    made = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.get_model()
    with torch.inference_mode():
        (rows,) = made.embed_multimodal(audio_arrays=[torch.from_numpy(np.load(chunk))])
    methods = {
        name: type(module.quant_method).__name__
        for name, module in made.named_modules()
        if hasattr(module, "quant_method") and hasattr(module, "weight")
    }
    np.savez(out, rows=rows.float().numpy(), methods=json.dumps(methods))


if __name__ == "__main__":
    main(*sys.argv[1:])
