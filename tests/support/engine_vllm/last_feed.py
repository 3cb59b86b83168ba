"""Stream the only feed of voxbatch's vLLM engine, and find which of its processes are left before it is closed.

    python last_feed.py MODEL_DIR CHUNKS.npz OUT.json [NAME=VALUE …]

The JSON holds "texts" (the number of results) and "left" (the command lines of the engine's processes that still run 20
s after the last result).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import psutil
import stream

from voxbatch.engines import Feed, create
from voxbatch.records import Hypothesis


def main(model: str, npz: str, out: str, *options: str) -> None:
    """Stream the chunks of `npz` with the model in the folder `model`, and write what is found to `out`."""
    os.environ.update(stream.ENVIRONMENT)
    with np.load(npz) as archive:
        waveforms = [archive[name] for name in archive.files]
    engine = create("vllm", model, dict(option.split("=", 1) for option in options))
    feed = Feed(100 * engine.spec.max_chunk_samples, is_last=True)
    stream._fill(feed, waveforms)
    texts = sum(isinstance(result, Hypothesis) for result in engine.stream(feed))
    _, alive = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=20)
    left = [" ".join(each.cmdline()) for each in alive if "resource_tracker" not in " ".join(each.cmdline())]
    engine.close()
    Path(out).write_text(json.dumps({"texts": texts, "left": left}))


if __name__ == "__main__":
    main(*sys.argv[1:])
