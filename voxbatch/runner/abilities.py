"""Check before a model is loaded that an engine can do what the options of a run ask for."""

from __future__ import annotations

from collections.abc import Iterable

from voxbatch.config import RunOptions
from voxbatch.decoding.messages import Diarization
from voxbatch.engines import EngineSpec
from voxbatch.errors import ConfigError
from voxbatch.records import TRANSLATE
from voxbatch.runner.steps import steps_of


def check_abilities(
    options: RunOptions, spec: EngineSpec, row_hints: Iterable[str] = (), loads_networks: bool = True
) -> Diarization | None:
    """Check that an engine can do what the options ask for, and return the way in which the decoders tell speakers
    apart, if they do.

    Args:
        row_hints: names of the keys of the manifest that give hints.
        loads_networks: load the networks that tell speakers apart once, on the CPU.

    Raises:
        ConfigError, StorageError: the engine cannot; see `Steps.diarization`.
    """
    if options.language:
        from voxbatch.engines.refusals import require_language

        require_language(spec, options.language)
    steps = steps_of(options)
    steps.check(spec)
    if (hints := ", ".join([*options.hints_given, *row_hints])) and not spec.takes_hints:
        raise ConfigError(
            f"{hints}: the engine {spec.name} cannot tell {spec.model} which words to expect; take a Whisper model, or "
            "leave it out"
        )
    if options.task == TRANSLATE and not spec.translates:
        raise ConfigError(
            f"--task translate: {spec.model} of the engine {spec.name} was not trained to translate; take a "
            "multilingual Whisper model, such as --model large-v3 of faster-whisper or openai/whisper-large-v3 of vllm"
        )
    return steps.diarization(spec, loads_networks)
