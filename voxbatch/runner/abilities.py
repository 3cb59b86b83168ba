"""Check before a model is loaded that an engine can do what the options of a run ask for."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from voxbatch.config import Config, RunOptions
from voxbatch.decoding.messages import Diarization
from voxbatch.engines import EngineSpec, is_non_commercial
from voxbatch.errors import AudioError, ConfigError, StorageError
from voxbatch.manifest import PathPolicy, Source, items
from voxbatch.records import ALIGN, SPLIT, TRANSLATE
from voxbatch.safe_text import counted
from voxbatch.storage import is_remote

MAX_PROBED = 1000
"""Number of recordings whose headers are read: a second or two."""


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
    if options.speech and options.speech.voice not in (None, *spec.voices):
        known = ", ".join(spec.voices)
        raise ConfigError(f"--voice {options.speech.voice}: the engine {spec.name} knows {known}")
    if options.speech and is_non_commercial(spec.license) and not options.speech.accept_licence:
        raise ConfigError(
            f"{spec.model} is licensed under {spec.license}, which forbids commercial use, also of the recordings: if "
            "you accept that, give --accept-licence, or set VOXBATCH_ACCEPT_LICENCE=true for all runs; or take "
            "--engine hibari"
        )
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


def check_recordings(config: Config, source: Source, policy: PathPolicy, spec: EngineSpec) -> None:
    """Check that an engine can do what the options ask for with the recordings of a manifest.

    Raises:
        UsageError: questions are too long, no recording has two channels for --channels split, or a text cannot be
            aligned.
    """
    if config.questions and not config.questions.map_reduce:
        from voxbatch.runner.asking import check_lengths

        check_lengths(source, policy, config.limit, spec, config.store_options)
    if config.channels == SPLIT:
        _check_channels(config, source, policy)
    if config.task == ALIGN:
        from voxbatch.runner.aligning import check_texts

        check_texts(config, source, policy, spec)


def _check_channels(config: Config, source: Source, policy: PathPolicy) -> None:
    """Check that --channels split has something to split: that not all recordings are mono by the headers of WAV, FLAC
    and similar files on this machine.

    Raises:
        ConfigError: all recordings are mono.
    """
    number = 0
    for number, item in enumerate(items(source, policy, config.limit), 1):
        if number > MAX_PROBED or item.channel is not None or is_remote(item.audio) or not _is_mono(item.audio):
            return
    raise ConfigError(
        f"--channels split needs two channels or more, and SOURCE has {counted(number, 'recording')} with one; leave "
        "it out, or give --speakers, which tells the voices of one channel apart"
    )


def _is_mono(path: str) -> bool:
    """Return whether the header of a recording certainly tells one channel."""
    import soundfile

    from voxbatch.audio.libsndfile import SoundFileStream
    from voxbatch.audio.waveforms import is_mpeg_audio
    from voxbatch.storage.recording import open_recording

    try:
        with closing(open_recording(path)) as recording:
            return not is_mpeg_audio(recording) and SoundFileStream(recording).channels == 1
    except (AudioError, StorageError, soundfile.LibsndfileError):  # the item fails when it is decoded
        return False
