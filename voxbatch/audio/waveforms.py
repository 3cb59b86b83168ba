"""Decode a recording to mono float32 at 16 kHz, block by block, so that an hour of audio never needs an hour of memory.

libsndfile reads the formats that it knows. ffmpeg, confined to the given bytes, reads all others, and takes over where
libsndfile gives up in the middle of a file. One stateful resampler runs over the whole recording, so that the joins of
blocks are not audible.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from voxbatch.audio.dropouts import Dropouts
from voxbatch.audio.frame_estimate import estimated_seconds
from voxbatch.audio.joined import FilePart, file_starts
from voxbatch.audio.libsndfile import HeaderShortError, NativeBlock, SoundFileStream
from voxbatch.audio.mixdown import Mixdown
from voxbatch.audio.structure import AudioBytes, audio_bytes, has_extensible_numbers, ogg_pages
from voxbatch.audio.vorbis import samples_before_zero
from voxbatch.errors import AudioError
from voxbatch.failure_kinds import FailureKind
from voxbatch.records import SAMPLING_RATE, Samples, Waveform
from voxbatch.storage.recording import Recording

if TYPE_CHECKING:
    from voxbatch.audio.ffmpeg_stream import FFmpegStream
    from voxbatch.audio.mixed_streams import MixedStreams
    from voxbatch.audio.voice_mix import VoiceMix

MIN_RATE, MAX_RATE = 4_000, 768_000
"""Lowest and highest sampling rate in Hz. Below telephone quality there is no speech to recognise, and a header that
claims 1 Hz asks for 16,000 samples a byte. 768 kHz is the highest rate in use (studio PCM)."""
MAX_CHANNELS = 64
"""Largest number of channels: seventh-order ambisonics. Headers that claim more are broken."""

Warn = Callable[[str], None]
Native: TypeAlias = "SoundFileStream | FFmpegStream | MixedStreams"
"""An open recording at its own rate."""
OPUS_RATE = 48_000
"""Rate in Hz at which Opus is decoded, as RFC 7845 recommends (section 5.1). libsndfile decodes at the rate that the
recording had before it was encoded. On 14 minutes of speech that was at 16 kHz, Whisper tiny.en makes 231 errors in
1,908 words with libsndfile's samples, and 211 with samples decoded at 48 kHz and resampled by soxr."""
_DURATION_SLACK_S = 0.25
"""Tolerance in seconds when a duration is compared. Codecs pad: the decoded length of an MP3 differs by up to 0.1 s
from the length that other programs report."""


def decode(
    recording: Recording,
    name: str,
    *,
    offset: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
    audio_stream: int | str | None = None,
    channels: str | None = None,
    language: str | None = None,
    warn: Warn = lambda message: None,
    tell_picture: Callable[[float | None, float | None], None] = lambda frame_rate, aspect_ratio: None,
) -> Iterator[Waveform]:
    """Decode a recording to float32 at 16 kHz: mono, unless its channels are separate.

    Args:
        recording: an open recording, see storage.Stores.recording. It is not closed here.
        name: the recording's name, for messages and for the raw formats that only an extension identifies (.g722,
            .gsm).
        offset: seconds to skip.
        duration: seconds to take; None takes all.
        channel: 0-based channel to take; None mixes down (see Mixdown).
        audio_stream: 0-based audio stream to take; several, such as "1,2", which are mixed; "all"; or the code of the
            language that the streams to take are tagged with. None takes the first one with voice, or the streams of a
            conversation that is divided over them.
        channels: without a `channel`, keep the channels separate: see sides.separate_channels. None mixes down, and so
            does a recording that is several files.
        language: code of the language that is spoken, which a film's audio streams may be tagged with.
        warn: called with one line for each repair, for each sign of lost audio, and for each recording that ends early.
        tell_picture: called with the frames per second and the aspect ratio of the picture, as far as they are known.

    Yields:
        Waveforms that join without gaps or overlap. The first one starts at `offset` on the recording's clock.

    Raises:
        AudioError: nothing could be decoded, or the header or the arguments make no sense.
        FFmpegKilledError: ffmpeg was killed; a retry may succeed.
        StorageError: the place that the recording is fetched from fails.
    """
    part = _Part(recording, name, offset, duration, channel, audio_stream, channels, language, warn, tell_picture)
    starts = file_starts(recording, None if duration is None else offset + duration)
    if len(starts) > 1:
        if any(recording.pread(4, start) != b"OggS" for start in starts):  # chained Ogg is usual
            warn(f"the recording is {len(starts)} files, one after the other, which were read in this order")
        blocks = _limited(_decode_files(part, starts), part, SAMPLING_RATE)
    else:
        blocks = _decode_file(part)
    start, out = round(offset * SAMPLING_RATE), 0
    for samples in blocks:
        yield Waveform(samples, start + out)
        out += len(samples)
    if out == 0:
        if offset:
            raise AudioError(f"no audio after {offset:g} s", FailureKind.NO_SUCH_PART)
        raise AudioError("no audio: the file holds a header but no samples", FailureKind.EMPTY)
    if duration is not None and out < (duration - _DURATION_SLACK_S) * SAMPLING_RATE:
        warn(f"the recording ended {duration - out / SAMPLING_RATE:.2f} s before the manifest's {duration:g} s")


@dataclass(frozen=True, slots=True)
class _Part:
    """A recording, and the part of it that is decoded. The fields are the arguments of `decode`."""

    recording: Recording
    name: str
    offset: float
    duration: float | None
    channel: int | None
    audio_stream: int | str | None
    channels: str | None
    language: str | None
    warn: Warn
    tell_picture: Callable[[float | None, float | None], None]


def _decode_files(part: _Part, starts: list[int]) -> Generator[Samples]:
    """Decode the files in a recording to 16 kHz, one after the other, and yield the samples from the offset on."""
    skipped, errors = round(part.offset * SAMPLING_RATE), list[AudioError]()
    for number, (start, end) in enumerate(pairwise([*starts, part.recording.size]), 1):
        place = f"file {number} of {len(starts)}"
        with closing(FilePart(part.recording, start, end)) as file:
            try:
                for block in decode(
                    file,
                    part.name,
                    channel=part.channel,
                    audio_stream=part.audio_stream,
                    language=part.language,
                    warn=lambda message, place=place: part.warn(f"{place}: {message}"),  # type: ignore[misc]
                ):
                    if len(block.samples) > skipped:
                        yield block.samples[skipped:]
                    skipped = max(0, skipped - len(block.samples))
            except AudioError as e:
                errors.append(e)
                part.warn(f"{place} was left out: {e}")
    if len(errors) == len(starts):
        raise errors[0]


def _decode_file(part: _Part) -> Iterator[Samples]:
    """Decode one file to 16 kHz."""
    native, channel = _open(part), part.channel
    if not MIN_RATE <= native.rate <= MAX_RATE:
        raise AudioError(
            f"the header claims {native.rate} Hz; {MIN_RATE} to {MAX_RATE} Hz are allowed; convert the recording"
        )
    if not 1 <= native.channels <= MAX_CHANNELS:
        raise AudioError(
            f"the header claims {native.channels} channels; 1 to {MAX_CHANNELS} are allowed; convert the recording"
        )
    if channel is not None and channel >= native.channels:
        present = "channel 0 alone" if native.channels == 1 else f"channels 0 to {native.channels - 1}"
        text = f"channel {channel} was asked for; the recording has {present}; correct `channel`"
        raise AudioError(text, FailureKind.NO_SUCH_PART)
    repaired = _SampleRepair(part.warn)
    limited = _limited(_checked_blocks(native, part), part, native.rate)
    yield from _at_16_khz((repaired(block) for block in limited), native, part)
    repaired.finish()


def _open(part: _Part) -> Native:
    """Open a recording with libsndfile if it can read all of it, otherwise with ffmpeg."""
    recording = part.recording
    highest = _highest_number(part.audio_stream)
    header_audio: AudioBytes | None = None
    seek = True
    # The checksums of a file cost more than one of many parts of it.
    if not part.offset and (reason := _ogg_problem(recording, part.warn)):
        seek = False
    elif (header_audio := audio_bytes(recording)) and header_audio.is_stale and not highest:
        reason = "a stale header"
    else:
        if header_audio and highest:
            raise _no_such_stream(highest)
        try:
            native = SoundFileStream(recording, part.offset, header_audio)
        except soundfile.LibsndfileError as unreadable:
            reason = str(unreadable.error_string)
        except HeaderShortError as short:
            reason, seek = str(short), False
        else:
            if misread := _misread(native, recording):
                reason = misread
            elif highest:
                raise _no_such_stream(highest)
            else:
                return native
    return _opened_by_ffmpeg(part, reason, seek, header_audio)


def _opened_by_ffmpeg(part: _Part, reason: str, seek: bool, audio: AudioBytes | None) -> FFmpegStream | MixedStreams:
    """Open a recording with ffmpeg, and tell the frame rate and the shape of its picture.

    Args:
        reason, seek, audio: see FFmpegStream.
    """
    from voxbatch.audio.stream_choice import open_stream

    stream = open_stream(
        part.recording, part.name, part.offset, part.audio_stream, reason, part.warn, seek=seek, audio_bytes=audio,
        language=part.language,
    )  # fmt: skip
    part.tell_picture(stream.frame_rate, stream.aspect_ratio)
    if average := stream.average_frame_rate:
        part.warn(f"the video has a variable frame rate, {average:g} on average: subtitles may begin between frames")
    return stream


def _misread(native: SoundFileStream, recording: Recording) -> str | None:
    """Return the reason why libsndfile would give wrong samples of a file that it opens; None if it would not."""
    if native.format == "VOC":  # libsndfile reads on after the end of the audio
        return "a VOC file"
    if native.subtype == "OPUS" and native.rate < OPUS_RATE:
        return f"Opus that libsndfile decodes at {native.rate} Hz"
    if native.subtype == "VORBIS" and samples_before_zero(recording):
        return "Vorbis that begins before its time zero"
    return "Wave64 whose numbers libsndfile takes for integers" if has_extensible_numbers(recording) else None


def _no_such_stream(number: int) -> AudioError:
    text = f"audio stream {number} was asked for; the recording has audio stream 0 only"
    return AudioError(text, FailureKind.NO_SUCH_PART)


def _highest_number(audio_stream: int | str | None) -> int:
    """Return the highest number of an audio stream that is asked for; 0 if none is asked for by its number."""
    return max((int(number) for number in str(audio_stream).split(",") if number.isdecimal()), default=0)


def _ogg_problem(recording: Recording, warn: Warn) -> str | None:
    """Return the reason why libsndfile would not read all of an Ogg file; None if it would, or if it is no Ogg file."""
    if (pages := ogg_pages(recording)) is None:
        return None
    if pages.is_cut:
        warn("the file was cut off: it ends within a page")
    is_plain = not (pages.is_damaged or pages.has_several_streams or pages.may_have_gap)
    return None if is_plain else "an Ogg file that is damaged, or that has several streams or gaps"


def _checked_blocks(native: Native, part: _Part) -> Generator[NativeBlock]:
    """Yield the blocks of a recording, then warn of all signs of lost audio.

    If libsndfile gives up in the middle of the file, ffmpeg decodes the rest, because it resynchronises.
    """
    frames, is_complete = 0, False
    dropouts = Dropouts(native.rate) if native.is_uncompressed else None
    try:
        for block in _blocks_with_fallback(native, part):
            frames += len(block)
            if dropouts:
                dropouts.add(block)
            yield block
        is_complete = True
    finally:  # the reader may need only a part
        for message in native.losses(frames if is_complete and not part.offset else None):
            part.warn(message)
        for start, end in dropouts.stretches if dropouts else ():
            place = f"from {part.offset + start:.2f} to {part.offset + end:.2f} s"
            part.warn(f"every sample {place} is the same: audio may be lost there")


def _blocks_with_fallback(native: Native, part: _Part) -> Iterator[NativeBlock]:
    frames = 0
    try:
        for block in native.blocks():
            frames += len(block)
            yield block
        return
    except (soundfile.LibsndfileError, AudioError) as broken:
        if frames == 0 and not isinstance(native, SoundFileStream):
            raise
        unread = str(broken) if isinstance(broken, HeaderShortError) else None
        note = f"damaged: {str(broken).strip(' .:')} after {part.offset + frames / native.rate:.2f} s"
    if not isinstance(native, SoundFileStream):
        part.warn(f"{note}; nothing after this position could be read")
        return
    for block in _remaining_blocks(native, part, frames):
        if len(block) and note:
            if not unread:
                part.warn(f"{note}; ffmpeg decodes the rest")
            note = ""
        yield block
    if note and native.format == "FLAC" and unread:  # the frames of an MP3 are counted
        part.warn(unread)
    elif note and not unread:
        part.warn(f"{note}; nothing after this position could be read")


def _remaining_blocks(native: SoundFileStream, part: _Part, done: int) -> Iterator[NativeBlock]:
    """Yield the blocks that ffmpeg reads after the first `done` frames. ffmpeg decodes these frames again, because its
    seeking trusts damaged headers."""
    from voxbatch.audio.ffmpeg_stream import FFmpegStream

    try:
        stream = FFmpegStream(part.recording, part.name, part.offset, reason="damaged", seek=False)
        blocks: Iterator[NativeBlock] = stream.blocks()
        if (stream.rate, stream.channels) != (native.rate, native.channels):  # the parameters change within the file
            mono = _mix_blocks(blocks, Mixdown(stream.rate, stream.channels))
            resampled = _resample(mono, stream.rate, new_rate=native.rate)
            blocks = (np.repeat(block[:, None], native.channels, axis=1) for block in resampled)
        for block in blocks:
            yield block[done:]
            done = max(0, done - len(block))
        for message in stream.silence():
            part.warn(message)
    except AudioError:  # ffmpeg finds no more audio; the caller's warning says where the good audio ends
        return


def _limited(blocks: Generator[NativeBlock], part: _Part, rate: int) -> Iterator[NativeBlock]:
    """Yield the frames of a recording up to the duration that is asked for.

    A recording that continues after a bare `duration` causes a warning. The duration was often measured wrong, and the
    remaining speech would be lost silently.
    """
    if part.duration is None:
        yield from blocks
        return
    remaining = limit = round(part.duration * rate)
    with closing(blocks):  # its last warnings come before the caller's
        for block in blocks:
            if remaining > 0:
                yield block[:remaining]
            remaining -= len(block)
            if remaining < 0:
                if not part.offset and -remaining > _DURATION_SLACK_S * rate:
                    part.warn(f"the recording continues after the manifest's duration of {limit / rate:g} s")
                return


def _mix_blocks(blocks: Iterator[NativeBlock], mono: Mixdown | VoiceMix) -> Iterator[Samples]:
    for block in blocks:
        yield mono(block)
    yield mono.finish()


def _at_16_khz(blocks: Iterator[NativeBlock], native: Native, part: _Part) -> Iterator[Samples]:
    """Yield the samples of one channel, or of channels that stay separate, at 16 kHz. See `decode`."""
    channel = part.channel
    if part.channels is not None and channel is None:
        from voxbatch.audio.sides import separate_channels

        is_split, note, blocks = separate_channels(blocks, native.rate, native.channels, part.channels)
        if note:
            part.warn(note)
        if is_split:
            yield from _resample(blocks, native.rate, native.channels)
            return
    if channel is None and native.channels > 2:
        from voxbatch.audio.voice_mix import VoiceMix

        mix = VoiceMix(native.channels, native.layout)
        yield from _mix_blocks(_resample(blocks, native.rate, native.channels), mix)
        part.warn(mix.choice())
    else:
        mono = Mixdown(native.rate, native.channels, channel)
        yield from _resample(_mix_blocks(blocks, mono), native.rate)


def _resample(
    blocks: Iterator[Samples], rate: int, channels: int = 1, new_rate: int = SAMPLING_RATE
) -> Iterator[Samples]:
    """Resample with soxr HQ, as librosa.resample(res_type="soxr_hq") does, and keep the resampler's state from block to
    block. Blocks of several channels have the shape (frames, channels)."""
    if rate == new_rate:
        yield from (block for block in blocks if len(block))
        return
    stream = soxr.ResampleStream(rate, new_rate, channels, dtype="float32", quality="HQ")
    for block in blocks:
        out = stream.resample_chunk(np.ascontiguousarray(block))
        if len(out):
            yield out
    tail = stream.resample_chunk(np.zeros(0 if channels == 1 else (0, channels), np.float32), last=True)
    if len(tail):
        yield tail


class _SampleRepair:
    """Makes samples finite and scales them to a sane level, and reports each kind of repair once."""

    FULL_SCALE = 2.0
    """Largest peak that is not scaled down. Lossy decoders exceed ±1 a little; a float file beyond ±2 was never
    normalised."""
    BROKEN_FACTOR = 100.0
    """Factor above the 99th percentile of the levels, or above full scale if that is higher, from which a sample is a
    broken number and not sound. Peaks of speech reach a factor of 10. If broken samples set the scale, all other
    samples would become silent."""

    def __init__(self, warn: Warn):
        self.warn, self.total, self.broken, self.peak, self.usual_level = warn, 0, 0, 1.0, 1.0

    def __call__(self, block: NativeBlock) -> NativeBlock:
        self.total += block.size
        with np.errstate(all="ignore"):
            suspect = not np.isfinite(np.dot(block.ravel(), block.ravel()))
        if suspect:
            block = self._silence_broken(block, ~np.isfinite(block))
        peak = float(np.abs(block).max(initial=0.0))
        if peak > self.BROKEN_FACTOR:
            level = np.abs(block)
            self.usual_level = max(self.usual_level, float(np.percentile(level, 99)))
            block = self._silence_broken(block, level > np.float64(self.BROKEN_FACTOR * self.usual_level))
            peak = float(np.abs(block).max(initial=0.0))
        self.peak = max(self.peak, peak)
        return block if self.peak <= self.FULL_SCALE else (block / np.float32(self.peak)).astype(np.float32)

    def _silence_broken(self, block: NativeBlock, broken: NDArray[np.bool_]) -> NativeBlock:
        self.broken += int(broken.sum())
        return np.where(broken, np.float32(0), block)

    def finish(self) -> None:
        if self.broken > self.total / 2:
            raise AudioError(f"{self.broken:,} of {self.total:,} samples are NaN, infinite or absurdly large")
        if self.broken:
            self.warn(f"{self.broken:,} samples were NaN, infinite or absurdly large and became silence")
        if self.peak > self.FULL_SCALE:
            self.warn(f"samples reach {self.peak:.3g} where full scale is 1; scaled down")


def probe(recording: Recording, certain: bool = False, by_ffmpeg: bool = True) -> float | None:
    """Return the duration in seconds that a recording's header claims, without decoding.

    Args:
        certain: return None also for files whose header is known to report too little, or that have none. MP3 files and
            Ogg streams are sometimes appended to each other, and MP4 files count the padding of their codecs.
        by_ffmpeg: ask ffmpeg about formats that libsndfile does not know. False starts no program.

    Returns:
        The duration; None if libsndfile and ffmpeg do not know the format, or if the header gives no plausible length.
    """
    native = None
    if not is_mpeg_audio(recording):
        with suppress(soundfile.LibsndfileError):
            native = SoundFileStream(recording)
    if native is not None:
        return None if certain and len(file_starts(recording, 0.0)) > 1 else native.claimed_seconds()
    if certain:
        return None
    from voxbatch.audio.mp4_header import mp4_seconds

    seconds = mp4_seconds(recording) or estimated_seconds(recording)
    if seconds or not by_ffmpeg:
        return seconds
    from voxbatch.audio.ffmpeg_header import header_seconds

    return header_seconds(recording)


def is_mpeg_audio(recording: Recording) -> bool:
    """Return whether a recording begins like MP3. libsndfile would give it to libmpg123, which reads the whole file for
    its length and prints its doubts on the standard error of this process."""
    head = recording.pread(3, 0)
    return head == b"ID3" or (head[:1] == b"\xff" and head[1:2] >= b"\xe0")
