"""Check before a model is loaded that an engine can do what the options of a run ask for."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace

from voxbatch.config import Config, RunOptions, speaker_count
from voxbatch.decoding.messages import Diarization
from voxbatch.engines import EngineSpec, is_non_commercial, require_language
from voxbatch.errors import AudioError, ConfigError, ManifestError, StorageError
from voxbatch.manifest import PathPolicy, Source, items
from voxbatch.manifest.source import BadLines
from voxbatch.records import ALIGN, SPLIT, TRANSLATE
from voxbatch.safe_text import counted
from voxbatch.storage import is_remote

MAX_PROBED = 1000
"""Number of recordings whose headers are read: a second or two."""


def _diarization_of(options: RunOptions, spec: EngineSpec) -> Diarization | None:
    """Return the way in which the decoders tell speakers apart; None if they do not.

    Raises:
        ConfigError: the engine gives no word times, the networks are not there, or a sample of a known voice is unfit.
        StorageError: the place of the networks, or of a sample, is unreachable.
    """
    if options.speakers is None or options.questions is not None:
        return None
    if not spec.word_times:
        raise ConfigError(
            f"--speakers needs the times of words, and {spec.model} of the engine {spec.name} gives none; take another "
            "model, or leave out --speakers"
        )
    from voxbatch.speakers import find_weights  # a run that does not tell speakers apart does not import the package

    diarization = Diarization(find_weights(options.speaker_model), speaker_count(options.speakers))
    if options.speaker_names is None:
        return diarization
    from voxbatch.speakers.enrolment import enrol

    return replace(diarization, voices=enrol(options.speaker_names, diarization.weights, options.store_options))


def check_abilities(
    options: RunOptions, spec: EngineSpec, row_hints: Iterable[str] = (), loads_networks: bool = True
) -> Diarization | None:
    """Check that an engine can do what the options ask for, and return the way in which the decoders tell speakers
    apart, if they do.

    Args:
        row_hints: names of the keys of the manifest that give hints.
        loads_networks: load the networks that tell speakers apart once, on the CPU.

    Raises:
        ConfigError, StorageError: the engine cannot; see `_diarization_of`; or a network is damaged.
    """
    if options.language:
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
    if (diarization := _diarization_of(options, spec)) is not None and loads_networks:
        from voxbatch.speakers import Diarizer

        Diarizer(diarization.weights, diarization.count)
    return diarization


def check_texts(config: Config, source: Source, policy: PathPolicy, spec: EngineSpec) -> None:
    """Check that an engine that aligns can spell each text.

    Raises:
        ConfigError: the channels are to be aligned alone, and the text is that of all of them.
        ManifestError: a text has mostly letters that the model does not know.
    """
    if config.task != ALIGN:
        return
    from voxbatch.speech.pieces import unreadable

    if config.channels is not None:
        raise ConfigError("--channels: a text is aligned with all channels; leave it out, or give rows with `channel`")
    bad = BadLines()
    for item in items(source, policy, config.limit):
        if reason := unreadable(item.text or "", spec.scripts):
            bad.add(item.line, f"`text` cannot be aligned by {spec.model}: {reason}")
    if bad.total:
        raise ManifestError(source.name, [source.placed(line) for line in bad.first], bad.total)


def check_channels(config: Config, source: Source, policy: PathPolicy) -> None:
    """Check that --channels split has something to split: that not all recordings are mono by the headers of WAV, FLAC
    and similar files on this machine.

    Raises:
        ConfigError: all recordings are mono.
    """
    if config.channels != SPLIT:
        return
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
