"""Choose the engine of a run: by its name, or by the model and the machine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

from voxbatch import engines
from voxbatch.engines import ENGINES, Registration
from voxbatch.engines.known_models import KNOWN_MODELS, engines_of, find
from voxbatch.engines.model_files import outline
from voxbatch.errors import ConfigError
from voxbatch.storage import DEFAULT_STORES, Stores
from voxbatch.storage.address import is_bucket_address

AUTO = "auto"
_NO_GPU = "this machine shows no NVIDIA GPU: check nvidia-smi, or give the container its GPU"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine that `choose` selected."""

    name: str
    reason: str
    """One line for people that names the engine and the reason for it."""


def choose(
    name: str, table: Mapping[str, Registration] = ENGINES, model: str | None = None, stores: Stores = DEFAULT_STORES
) -> EngineChoice:
    """Return the engine to use.

    "auto" takes the first engine that is installed, that runs the model, and that this machine can run. A model that no
    engine knows by its name or its files is left to the default engines, which will refuse it with their reasons.

    Args:
        name: the name of an engine, or "auto".
        model: the value of --model.
        stores: the stores of a model in a bucket, whose weights are not fetched.

    Raises:
        ConfigError: the engine is unknown or not installed; or "auto" finds no engine.
        EngineError: the engine is of another package, whose registration is broken.
        StorageError: the bucket cannot be read.
    """
    if name != AUTO:
        if engines.registered(name, table) is None:
            from voxbatch.engines.entry_points import names

            others = names() if table is ENGINES else []
            raise ConfigError(f"engine {name!r} is unknown; known are auto, {', '.join(sorted({*table, *others}))}")
        if install := engines.install_command(name, table):
            if table is ENGINES and engines.uses_gpu(name) and not engines.has_gpu():
                raise ConfigError(f"engine {name} is for NVIDIA GPUs, and {_NO_GPU}; on a machine with one: {install}")
            raise ConfigError(f"engine {name} is not installed: {install}")
        return EngineChoice(name, f"{name}: asked for")
    fitting = _engines_for(model, table, stores) if model else ()
    if model and not fitting and table is ENGINES and not engines.has_gpu():
        _refuse_model_for_gpus(model)
    candidates = {key: table[key] for key in fitting} or {key: entry for key, entry in table.items() if entry.use}
    why = f"it runs {model}" if fitting else "the best one that is installed here"
    installed = [key for key in candidates if engines.install_command(key, table) is None]
    for key in installed:
        if engines.has_gpu() or not candidates[key].uses_gpu:
            where = " on this machine's GPU" if fitting and candidates[key].uses_gpu else ""
            return EngineChoice(key, f"{key}: {why}{where}")
    others = [entry.install for entry in candidates.values() if engines.has_gpu() or not entry.uses_gpu]
    if installed or not others:
        remedy = f"without one: {' or '.join(others)}" if others else "`voxbatch models` lists models for the CPU"
        what = f"is what runs {model}" if fitting and not installed else "is installed"
        raise ConfigError(f"the engine {(installed or [*candidates])[0]} {what}, and {_NO_GPU}; {remedy}")
    what = f"no engine for {model} is installed" if fitting else "no engine is installed"
    raise ConfigError(f"{what}: {' or '.join(others)}")


def _refuse_model_for_gpus(model: str) -> None:
    """Refuse a model of the hub that the table has not, if all models of its owner in the table are for GPUs. The hub
    is not asked.

    Raises:
        ConfigError: the model is for GPUs, and this machine has none.
    """
    owner, _, name = model.partition("/")
    of_owner = [known for known in KNOWN_MODELS if name and known.hub.startswith(f"{owner}/")]
    if Path(model).exists() or not of_owner or not all(engines.uses_gpu(known.engine) for known in of_owner):
        return
    on_cpu = find(name.removeprefix("whisper-"), "faster-whisper")
    remedy = f"on a CPU: --model {on_cpu.name}" if on_cpu else "`voxbatch models --cpu` lists models for the CPU"
    raise ConfigError(f"--model {model}: models of {owner} are for NVIDIA GPUs, and {_NO_GPU}; {remedy}")


def _engines_for(model: str, table: Mapping[str, Registration], stores: Stores) -> list[str]:
    """Return the engines of a table that run a model, by its name in the table of models or by its files."""
    if named := [key for key in table if key in engines_of(model)]:
        return named
    with tempfile.TemporaryDirectory(prefix="voxbatch-model-") as folder:
        path = Path(model)
        if is_bucket_address(model):
            outline(model, path := Path(folder), stores)
        if not path.exists():
            return []
        return [key for key, entry in table.items() if entry.recognises and resolve_name(entry.recognises)(path)]
