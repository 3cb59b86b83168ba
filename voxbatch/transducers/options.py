"""The engine options of transducers."""

from __future__ import annotations

from dataclasses import dataclass

from voxbatch.settings import setting

MAX_ROWS = 64
"""Rows of a batch. 64 rows of 30 s are 30 minutes, which keep an H200 busy for 75 ms."""
COMPILE_AFTER_S = 20.0
"""Seconds of work after which the encoder is compiled. Compiling takes about as long, so a short job does without."""
DTYPES = ("auto", "bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class TransducerOptions:
    """The engine options of transducers."""

    dtype: str = setting(
        "auto", choices=DTYPES, help="number format of the weights; `auto`: bfloat16 on a GPU that has it"
    )
    rows: int = setting(MAX_ROWS, minimum=1, maximum=256, help="rows of up to 35 s that the GPU works on at a time")
    kernel_cache: str = setting("", help="set by --kernel-cache")
    compile_after_s: float = setting(
        COMPILE_AFTER_S, minimum=0, help="seconds of work after which a GPU's encoder is compiled, which takes as long"
    )
