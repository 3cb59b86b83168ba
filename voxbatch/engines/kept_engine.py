"""Name an engine that stays after its run, so that only a run with the same engine takes it."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import voxbatch
from voxbatch.engines.interface import Engine
from voxbatch.errors import ConfigError
from voxbatch.process.child import for_voxbatch
from voxbatch.process.kept import place
from voxbatch.process.vacancy import Stay
from voxbatch.storage import Stores

_VARIABLES = re.compile(
    r"(CT2|CUDA|HUGGING|LD|MKL|NCCL|NVIDIA|OPENBLAS|ORT|PYTORCH|TORCH|TRANSFORMERS|TRITON|VLLM)\w*|XDG_CACHE_HOME"
)
"""Names of the variables that the libraries of an engine read, besides those of `for_voxbatch`."""


def stay_of(engine: Engine, model: str | None, options: Mapping[str, str], stores: Stores, seconds: float) -> Stay:
    """Return the message that lets an engine stay for some seconds, with the end of the program that started this one.

    The name of its socket is a digest of the code, the engine, its model, files and options, and the variables. Among
    them are the credentials: what one run may read, another one must not get from it.

    Raises:
        ConfigError: the engine cannot be sent to another process; or another user can enter the folder of the sockets.
    """
    spec = engine.spec
    try:
        pickle.dumps(engine)
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        raise ConfigError(
            f"--keep-engine: engine {spec.name} cannot run in a process of its own ({e}); leave --keep-engine out"
        ) from e
    code = Path(voxbatch.__file__).parent, voxbatch.__version__, sys.executable, sys.version
    asked = spec.name, spec.model, model, sorted(options.items()), stores, spec.concurrency
    known = spec.origin, spec.decoding, spec.versions
    of_libraries = {name: value for name, value in os.environ.items() if _VARIABLES.fullmatch(name)}
    variables = for_voxbatch(os.environ, keeps_stores=True) | of_libraries
    digest = hashlib.sha256(repr((code, asked, known, sorted(variables.items()))).encode()).hexdigest()[:16]
    leader = os.getsid(0)  # the shell of a terminal or of a job; a parent may be `time` or `timeout`, and end at once
    starter = leader if leader != os.getpid() else os.getppid()
    return Stay(place(f"{spec.name}-{digest}".replace("/", "-")), seconds, starter or None)
