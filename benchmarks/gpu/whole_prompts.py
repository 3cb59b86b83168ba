"""voxbatch's scheduler, but each chunk's whole prompt goes through the decoder: to compare with (bench_plugin.py)."""

from __future__ import annotations

import torch

from voxbatch.engines.vllm.scheduler import Lifted, LiftedAsync


class WholePrompts(LiftedAsync if torch.cuda.is_available() else Lifted):  # type: ignore[misc]
    _shares = False
