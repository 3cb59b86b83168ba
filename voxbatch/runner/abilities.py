"""Check before a model is loaded that an engine can do what the options of a run ask for."""

from __future__ import annotations

from collections.abc import Iterable

from voxbatch.config import Config, RunOptions
from voxbatch.decoding.messages import Diarization
from voxbatch.engines import EngineSpec
from voxbatch.errors import ConfigError
from voxbatch.manifest import PathPolicy, Source
from voxbatch.records import SPLIT, TRANSLATE
from voxbatch.runner.work import Work, work_of


def check_abilities(
    options: RunOptions, spec: EngineSpec, row_hints: Iterable[str] = (), loads_networks: bool = True
) -> Diarization | None:
    """Check that an engine can do what the options ask for, and return the way in which the decoders tell speakers
    apart, if they do.

    Args:
        row_hints: names of the keys of the manifest that give hints.
        loads_networks: load the networks that tell speakers apart once, on the CPU.

    Raises:
        ConfigError, StorageError: the engine cannot; see `diarizing.diarization_of`.
    """
    if options.language:
        from voxbatch.engines.refusals import require_language

        require_language(spec, options.language)
    work_of(options).check(spec)
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
    if options.speakers is None or options.questions is not None:
        return None
    from voxbatch.runner.diarizing import diarization_of

    return diarization_of(options, spec, loads_networks)


def check_recordings(kind: Work, config: Config, source: Source, policy: PathPolicy, spec: EngineSpec) -> None:
    """Check that an engine can do what the options ask for with the recordings of a manifest.

    Raises:
        UsageError: questions are too long, no recording has two channels for --channels split, or a text cannot be
            aligned.
    """
    kind.check_recordings(config, source, policy, spec)
    if config.channels == SPLIT:
        from voxbatch.runner.split_channels import check_channels

        check_channels(config, source, policy)
