"""Tell the speakers of recordings apart: the steps of a run with `speakers` that differ."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from voxbatch.config import RunOptions
from voxbatch.decoding.messages import Diarization
from voxbatch.engines import EngineMessage, EngineSpec
from voxbatch.errors import ConfigError
from voxbatch.speakers import Diarizer, find_weights
from voxbatch.speakers.network_process import beside_engine
from voxbatch.works.speakers.options import speaker_count


def diarization_of(options: RunOptions, spec: EngineSpec, loads_networks: bool) -> Diarization:
    """Return the way in which the decoders tell speakers apart.

    Args:
        loads_networks: load the networks once, on the CPU.

    Raises:
        ConfigError: the engine gives no word times, the networks are not there or damaged, or a sample of a known voice
            is unfit.
        StorageError: the place of the networks, or of a sample, is unreachable.
    """
    assert options.speakers is not None
    if not spec.word_times:
        raise ConfigError(
            f"--speakers needs the times of words, and {spec.model} of the engine {spec.name} gives none; take another "
            "model, or leave out --speakers"
        )
    diarization = Diarization(find_weights(options.speaker_model, options.stores), speaker_count(str(options.speakers)))
    if options.speaker_names is not None:
        from voxbatch.speakers.enrolment import enrol

        voices = enrol(options.speaker_names, diarization.weights, options.stores)
        diarization = replace(diarization, voices=voices)
    if loads_networks:
        Diarizer(diarization.weights, diarization.count)
    return diarization


def beside(
    diarization: Diarization,
    device: str,
    resources: ExitStack,
    on_engine_message: Callable[[EngineMessage], None],
) -> Diarization:
    """Return the way to tell speakers apart with a process that runs the networks beside the engine until `resources`
    end. Other networks than the default ones run in the decoders.

    Raises:
        ConfigError: a network cannot be loaded at all.
    """
    try:
        return replace(diarization, weights=resources.enter_context(beside_engine(diarization.weights, device)))
    except ConfigError as e:
        Diarizer(diarization.weights, diarization.count)
        on_engine_message(EngineMessage(f"{e}; the CPU tells the speakers apart", is_warning=True))
        return diarization
