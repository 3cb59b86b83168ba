"""Choose among the audio streams of a recording: languages, commentaries, a microphone each, or the mix of these.

The option names the streams. Without it, the voice in each stream decides, and the times at which each has sound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
import soxr
from numpy.typing import NDArray

from voxbatch.audio.ffmpeg_stream import FFmpegStream, UndecodableStreamError
from voxbatch.audio.mixed_streams import MixedStreams, active_frames, share_alone, speak_in_turn
from voxbatch.audio.structure import AudioBytes
from voxbatch.errors import AudioError
from voxbatch.failure_kinds import FailureKind
from voxbatch.languages import primary_subtag
from voxbatch.records import ALL_STREAMS, SAMPLING_RATE
from voxbatch.storage.recording import Recording
from voxbatch.voice import loudness, voice_seconds

SILENCE_LEVEL = 1e-3
"""Largest level of a silent audio stream: −60 dB of full scale. Noise of a sound card is below it."""
VOICE_SEARCH_S = 300.0
"""Seconds of each of several audio streams in which the voice is measured."""
MIN_VOICE_S = 1.0
"""Seconds of voice from which an audio stream may be a side of a conversation."""
LEAST_VOICE_SHARE = 0.5
"""Share of the voice in another stream that a stream must have to be preferred because it is earlier in the file. Dubs
and commentaries have about as much as the first stream."""
MOST_ALONE = 0.35
"""Share of the sound of a stream that may come while the stream that is taken has none. From here on, its speakers may
be missing from the stream that is taken. Two voices that read the same film have sound 70 % of the time or more."""
COVERED_ALONE = 0.1
"""Share of the sound of a stream that comes at most while the mix of all streams has none."""

Warn = Callable[[str], None]


def open_stream(
    recording: Recording,
    name: str,
    offset: float,
    audio_stream: int | str | None,
    reason: str,
    warn: Warn,
    *,
    seek: bool,
    audio_bytes: AudioBytes | None,
    language: str | None = None,
) -> FFmpegStream | MixedStreams:
    """Open the audio of a recording: the streams that are asked for; or the first one with voice, or the streams of a
    conversation that is divided over them. Several streams are mixed. See FFmpegStream for the other arguments.

    Args:
        audio_stream: see `decode`. None takes the first stream with at least LEAST_VOICE_SHARE of the voice of any
            other one; without voice, the first one with sound.
        warn: called with a line that names the stream, if there are several.
        language: code of the language that is spoken. If streams are tagged with it, only they are considered.
    """

    def opened(number: int) -> FFmpegStream:
        return FFmpegStream(recording, name, offset, reason, seek=seek, audio_stream=number, audio_bytes=audio_bytes)

    if isinstance(audio_stream, int):
        return opened(audio_stream)
    try:
        stream = opened(0)
        streams = stream.audio_streams
    except UndecodableStreamError as undecodable:
        streams = undecodable.audio_streams
        if len(streams) < 2:
            raise
    else:
        if audio_stream is None and len(streams) < 2:
            return stream
        stream.close()
    numbers = range(len(streams)) if audio_stream is None else _asked_for(audio_stream, streams)
    if audio_stream is None or (len(numbers) > 1 and _is_language(audio_stream)):
        language = audio_stream or language
        numbers = _choice(streams, _sounds(recording, name, offset, streams, numbers, language), language, warn)
    return _mixed(numbers, opened, warn if audio_stream == ALL_STREAMS else None)


def _sounds(
    recording: Recording, name: str, offset: float, streams: Sequence[str], numbers: Sequence[int], language: str | None
) -> dict[int, _Sound]:
    """Return the sound of the streams that are tagged with the language; of all, if these have no sound."""

    def survey(numbers: Iterable[int]) -> dict[int, _Sound]:
        return {number: _Sound.of(recording, name, offset, number) for number in numbers}

    tagged = [number for number in numbers if _is_tagged(streams[number], language)]
    sounds = survey(tagged)
    if not any(sound.is_audible for sound in sounds.values()):
        sounds |= survey(set(numbers) - set(tagged))
    return sounds


def _asked_for(audio_stream: str, streams: Sequence[str]) -> Sequence[int]:
    """Return the numbers of the streams that an option asks for, by the descriptions of all.

    Raises:
        AudioError: no stream is tagged with the language.
    """
    if audio_stream == ALL_STREAMS:
        return range(len(streams))
    if not _is_language(audio_stream):
        return [int(number) for number in audio_stream.split(",")]
    if tagged := [number for number, stream in enumerate(streams) if _is_tagged(stream, audio_stream)]:
        return tagged
    if list(map(_tag, streams)) == [None]:  # the only stream, of an unknown language
        return [0]
    text = f"an audio stream in the language {audio_stream} was asked for; the recording has {_listed(streams)}"
    raise AudioError(text, FailureKind.NO_SUCH_PART)


def _mixed(
    numbers: Iterable[int], opened: Callable[[int], FFmpegStream], warn: Warn | None
) -> FFmpegStream | MixedStreams:
    """Open streams.

    Args:
        warn: called for a stream that cannot be decoded, and is left out. None means that all are needed.
    """
    errors = list[UndecodableStreamError]()
    with ExitStack() as stack:
        taken = list[FFmpegStream]()
        for number in numbers:
            try:
                taken.append(stack.enter_context(closing(opened(number))))
            except UndecodableStreamError as error:
                if warn is None:
                    raise
                warn(f"audio stream {number} cannot be decoded: {error}")
                errors.append(error)
        if not taken:
            raise errors[0]
        stack.pop_all()
    return taken[0] if len(taken) == 1 else MixedStreams(taken)


def _choice(streams: Sequence[str], sounds: Mapping[int, _Sound], language: str | None, warn: Warn) -> Sequence[int]:
    """Return the numbers of the streams to take, of those whose sound is known.

    Args:
        warn: called with the streams that are taken, those that may be missing, and those that cannot be decoded.
    """
    listed = _listed(streams)
    most = max(sound.voice_s for sound in sounds.values())
    if most:
        chosen = next(number for number in sorted(sounds) if sounds[number].voice_s >= LEAST_VOICE_SHARE * most)
    else:
        chosen = next((number for number in sorted(sounds) if sounds[number].is_audible), min(sounds))
    with_voice = [number for number in sorted(sounds) if sounds[number].voice_s >= MIN_VOICE_S]
    active = {number: active_frames(np.array(sounds[number].levels)) for number in with_voice}
    is_one_language = len({_tag(streams[number]) for number in with_voice}) == 1
    if is_one_language and speak_in_turn(list(active.values())):
        taken = ", ".join(map(str, with_voice))
        warn(f"audio streams {taken} were mixed, because they speak in turn ({listed}); see --audio-stream")
        return with_voice
    taken_with = f"the first with {'voice' if most else 'sound'}"
    if left_out := _left_out(chosen, active) if is_one_language else {}:
        covering = [number for number in active if not _left_out(number, active, COVERED_ALONE)]
        if covering:
            chosen, left_out, taken_with = covering[0], {}, "which has the sound of all streams with voice,"
    in_language = f" in the language {language}" if all(_is_tagged(streams[n], language) for n in sounds) else ""
    warn(f"audio stream {chosen} was taken, {taken_with}{in_language} of {len(streams)} ({listed}); see --audio-stream")
    if left_out:
        together = ",".join(map(str, sorted({chosen, *left_out})))
        shares = " and ".join(f"{share:.0%} of stream {number}" for number, share in left_out.items())
        warn(
            f"audio streams {together} may be one conversation: {shares} comes while stream {chosen} has no sound, and "
            f"was left out; --audio-stream {together} mixes them"
        )
    for number, sound in sorted(sounds.items()):
        if sound.error:
            warn(f"audio stream {number} cannot be decoded: {sound.error}")
    return [chosen]


def _left_out(taken: int, active: Mapping[int, NDArray[np.bool_]], most_alone: float = MOST_ALONE) -> dict[int, float]:
    """Return the share of the sound of other streams that comes while a stream has none, where it is larger than
    `most_alone`, by the numbers of the streams."""
    shares = {number: share_alone(frames, active[taken]) for number, frames in active.items() if taken in active}
    return {number: share for number, share in shares.items() if share > most_alone}


def _is_language(audio_stream: str) -> bool:
    return audio_stream != ALL_STREAMS and not audio_stream[0].isdecimal()


def _listed(streams: Sequence[str]) -> str:
    return "; ".join(f"{number}: {description}" for number, description in enumerate(streams))


def _is_tagged(description: str, language: str | None) -> bool:
    return language is not None and _tag(description) == primary_subtag(language)


def _tag(description: str) -> str | None:
    """Return the language that an audio stream is tagged with: "ger, aac, 48000 Hz, mono" → "de"."""
    tag, _, rest = description.partition(", ")
    return primary_subtag(tag) if rest.count(", ") >= 2 else None


@dataclass(frozen=True, slots=True)
class _Sound:
    """The sound in an audio stream."""

    voice_s: float = 0.0
    """Seconds of voice in the first minutes; if there is none, in the rest up to the first voice."""
    is_audible: bool = False
    levels: tuple[float, ...] = ()
    """Level of each frame of 10 ms of the first minutes, in dB."""
    error: str = ""
    """The reason why the stream cannot be decoded."""

    @classmethod
    def of(cls, recording: Recording, name: str, offset: float, audio_stream: int) -> _Sound:
        """Decode the first VOICE_SEARCH_S of a stream, and more if there is no voice."""
        voice_s, heard_s, is_audible, levels = 0.0, 0.0, False, list[float]()
        try:
            with closing(FFmpegStream(recording, name, offset, reason="", audio_stream=audio_stream)) as stream:
                for block in stream.blocks():
                    if heard_s >= VOICE_SEARCH_S and voice_s:
                        break
                    heard_s += len(block) / stream.rate
                    mono = soxr.resample(block.mean(axis=1), stream.rate, SAMPLING_RATE, quality="QQ")
                    levels += loudness(mono).tolist()
                    if np.abs(block).max(initial=0.0) > SILENCE_LEVEL:
                        is_audible = True
                        voice_s += voice_seconds(mono)
        except AudioError as e:
            return cls(voice_s, is_audible, tuple(levels), "" if heard_s else str(e))
        return cls(voice_s, is_audible, tuple(levels))
