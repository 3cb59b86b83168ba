"""voxbatch's scheduler without the shared prefix: the decoder computes each whole prompt. For bench_plugin.py."""

from __future__ import annotations

import torch

from voxbatch.engines.vllm.scheduler import Lifted, LiftedAsync


class WholePrompts(LiftedAsync if torch.cuda.is_available() else Lifted):  # type: ignore[misc]
    """The scheduler with the shared prefix switched off."""

    _shares = False
