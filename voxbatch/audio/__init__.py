"""Decode a recording to mono float32 at 16 kHz, block by block, so that an hour of audio never needs an hour of memory.

libsndfile reads the formats that it knows. ffmpeg, confined to the given bytes, reads all others, and takes over where
libsndfile gives up in the middle of a file. One stateful resampler runs over the whole recording, so that the joins of
blocks are not audible. This package does not cut recordings and does not look for speech.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from voxbatch.audio import ffmpeg
from voxbatch.audio.dropouts import Dropouts
from voxbatch.audio.ffmpeg import FFmpegStream
from voxbatch.audio.libsndfile import BLOCK_SECONDS, HeaderShortError, NativeBlock, SoundFileStream
from voxbatch.audio.mixdown import Mixdown
from voxbatch.audio.mp4_header import mp4_seconds
from voxbatch.audio.structure import audio_bytes, is_chained_ogg, ogg_pages
from voxbatch.errors import AudioError
from voxbatch.records import SAMPLING_RATE, Samples, Waveform
from voxbatch.storage import Recording

MIN_RATE, MAX_RATE = 4_000, 768_000
"""Lowest and highest sampling rate in Hz. Below telephone quality there is no speech to recognise, and a header that
claims 1 Hz asks for 16,000 samples a byte. 768 kHz is the highest rate in use (studio PCM)."""
MAX_CHANNELS = 64
"""Largest number of channels: seventh-order ambisonics. Headers that claim more are broken."""

Warn = Callable[[str], None]
OPUS_RATE = 48_000
"""Rate in Hz at which Opus is decoded, as RFC 7845 recommends (section 5.1). libsndfile decodes at the rate that the
recording had before it was encoded. On 14 minutes of speech that was at 16 kHz, Whisper tiny.en makes 231 errors in
1,908 words with libsndfile's samples, and 211 with samples decoded at 48 kHz and resampled by soxr."""
SILENCE_LEVEL = 1e-3
"""Largest level of a silent audio stream: −60 dB of full scale. Noise of a sound card is below it."""
_DURATION_SLACK_S = 0.25
"""Tolerance in seconds when a duration is compared. Codecs pad: the decoded length of an MP3 differs by up to 0.1 s
from the length that other programs report."""

__all__ = ["BLOCK_SECONDS", "MAX_CHANNELS", "MAX_RATE", "MIN_RATE", "decode", "libraries", "probe"]


def decode(
    recording: Recording,
    name: str,
    *,
    offset: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
    audio_stream: int | None = None,
    warn: Warn = lambda message: None,
) -> Iterator[Waveform]:
    """Decode a recording to mono float32 at 16 kHz.

    Args:
        recording: an open recording, see storage.open_recording. It is not closed here.
        name: the recording's name, for messages and for the raw formats that only an extension identifies (.g722,
            .gsm).
        offset: seconds to skip.
        duration: seconds to take; None takes all.
        channel: 0-based channel to take; None mixes down (see Mixdown).
        audio_stream: 0-based audio stream to take; None takes the first one with sound.
        warn: called with one line for each repair, for each sign of lost audio, and for each recording that ends early.

    Yields:
        Waveforms that join without gaps or overlap. The first one starts at `offset` on the recording's clock.

    Raises:
        AudioError: nothing could be decoded, or the header or the arguments make no sense.
        FFmpegKilledError: ffmpeg was killed; a retry may succeed.
        StorageError: the place that the recording is fetched from fails.
    """
    native = _open(recording, name, offset, audio_stream, warn)
    if not MIN_RATE <= native.rate <= MAX_RATE:
        raise AudioError(
            f"the header claims {native.rate} Hz; {MIN_RATE} to {MAX_RATE} Hz are allowed; convert the recording"
        )
    if not 1 <= native.channels <= MAX_CHANNELS:
        raise AudioError(
            f"the header claims {native.channels} channels; 1 to {MAX_CHANNELS} are allowed; convert the recording"
        )
    if channel is not None and channel >= native.channels:
        channels = f"the recording has channels 0 to {native.channels - 1}"
        raise AudioError(f"channel {channel} was asked for; {channels}; correct `channel` in the manifest")
    limit = None if duration is None else round(duration * native.rate)
    mono = Mixdown(native.rate, native.channels, channel)
    start, out = round(offset * SAMPLING_RATE), 0
    repaired = _SampleRepair(warn)
    blocks = _limited(_checked_blocks(native, recording, name, offset, warn), limit, offset > 0, warn, native.rate)
    for samples in _resample(_mix_blocks((repaired(block) for block in blocks), mono), native.rate):
        yield Waveform(samples, start + out)
        out += len(samples)
    repaired.finish()
    if out == 0:
        raise AudioError(
            f"no audio after {offset:g} s" if offset else "no audio: the file holds a header but no samples"
        )
    if duration is not None and out < (duration - _DURATION_SLACK_S) * SAMPLING_RATE:
        warn(f"the recording ended {duration - out / SAMPLING_RATE:.2f} s before the manifest's {duration:g} s")


def _open(
    recording: Recording, name: str, offset: float, audio_stream: int | None, warn: Warn
) -> SoundFileStream | FFmpegStream:
    """Open a recording with libsndfile if it can read all of it, otherwise with ffmpeg."""
    if reason := _ogg_problem(recording, offset, warn):
        return _open_ffmpeg(recording, name, offset, audio_stream, reason, warn, seek=False)
    found = audio_bytes(recording)
    if found and audio_stream:
        raise _no_such_stream(audio_stream)
    if found and found.is_stale:
        return FFmpegStream(recording, name, offset, reason="a stale header", audio_bytes=found)
    try:
        native = SoundFileStream(recording, offset, found)
    except soundfile.LibsndfileError as unreadable:
        if found:
            return FFmpegStream(recording, name, offset, str(unreadable.error_string), audio_bytes=found)
        return _open_ffmpeg(recording, name, offset, audio_stream, str(unreadable.error_string), warn)
    except HeaderShortError as short:
        return _open_ffmpeg(recording, name, offset, audio_stream, str(short), warn, seek=False)
    if native.format == "VOC":  # libsndfile reads on after the end of the audio
        return _open_ffmpeg(recording, name, offset, audio_stream, "a VOC file", warn)
    if native.subtype == "OPUS" and native.rate < OPUS_RATE:
        return _open_ffmpeg(
            recording, name, offset, audio_stream, f"Opus that libsndfile decodes at {native.rate} Hz", warn
        )
    if audio_stream:
        raise _no_such_stream(audio_stream)
    return native


def _no_such_stream(audio_stream: int) -> AudioError:
    return AudioError(f"audio stream {audio_stream} was asked for; the recording has audio stream 0 only")


def _ogg_problem(recording: Recording, offset: float, warn: Warn) -> str | None:
    """Return the reason why libsndfile would not read all of an Ogg file; None if it would, or if it is no Ogg file."""
    if offset:  # one of many parts: the checksums of the whole file would cost more than the part
        return "a chained Ogg file" if is_chained_ogg(recording) else None
    if (pages := ogg_pages(recording)) is None:
        return None
    if pages.is_cut:
        warn("the file was cut off: it ends within a page")
    is_plain = not (pages.is_damaged or pages.has_several_streams or pages.may_have_gap)
    return None if is_plain else "an Ogg file that is damaged, or that has several streams or gaps"


def _open_ffmpeg(
    recording: Recording,
    name: str,
    offset: float,
    audio_stream: int | None,
    reason: str,
    warn: Warn,
    seek: bool = True,
) -> FFmpegStream:
    """Open an audio stream of a recording with ffmpeg: the one that was asked for, or the first one with sound."""
    opened = FFmpegStream(recording, name, offset, reason, seek=seek, audio_stream=audio_stream or 0)
    streams = opened.audio_streams
    if audio_stream is not None or len(streams) < 2:
        return opened
    opened.close()
    chosen = next((number for number in range(len(streams)) if _has_sound(recording, name, offset, number)), 0)
    listed = "; ".join(f"{number}: {description}" for number, description in enumerate(streams))
    warn(f"audio stream {chosen} was taken, the first with sound of {len(streams)} ({listed}); see --audio-stream")
    return FFmpegStream(recording, name, offset, reason, seek=seek, audio_stream=chosen)


def _has_sound(recording: Recording, name: str, offset: float, audio_stream: int) -> bool:
    """Return whether an audio stream has sound. It is decoded up to the first sound."""
    try:
        with closing(FFmpegStream(recording, name, offset, reason="", audio_stream=audio_stream)) as stream:
            return any(np.abs(block).max(initial=0.0) > SILENCE_LEVEL for block in stream.blocks())
    except AudioError:
        return False


def _checked_blocks(
    native: SoundFileStream | FFmpegStream, recording: Recording, name: str, offset: float, warn: Warn
) -> Generator[NativeBlock]:
    """Yield the blocks of a recording, then warn of all signs of lost audio.

    If libsndfile gives up in the middle of the file, ffmpeg decodes the rest, because it resynchronises.
    """
    frames, is_complete = 0, False
    dropouts = Dropouts(native.rate) if native.is_uncompressed else None
    try:
        for block in _blocks_with_fallback(native, recording, name, offset, warn):
            frames += len(block)
            if dropouts:
                dropouts.add(block)
            yield block
        is_complete = True
    finally:  # the reader may need only a part
        for message in native.losses(frames if is_complete and not offset else None):
            warn(message)
        for start, end in dropouts.found if dropouts else ():
            warn(f"every sample from {offset + start:.2f} to {offset + end:.2f} s is the same: audio may be lost there")


def _blocks_with_fallback(
    native: SoundFileStream | FFmpegStream, recording: Recording, name: str, offset: float, warn: Warn
) -> Iterator[NativeBlock]:
    frames = 0
    try:
        for block in native.blocks():
            frames += len(block)
            yield block
        return
    except (soundfile.LibsndfileError, AudioError) as broken:
        if frames == 0 and isinstance(native, FFmpegStream):
            raise
        is_short = isinstance(broken, HeaderShortError)
        note = f"damaged: {str(broken).strip(' .:')} after {offset + frames / native.rate:.2f} s"
    if isinstance(native, FFmpegStream):
        warn(f"{note}; nothing after this position could be read")
        return
    for block in _remaining_blocks(native, recording, name, offset, frames, warn):
        if len(block) and note and not is_short:
            warn(f"{note}; ffmpeg decodes the rest")
            note = ""
        yield block
    if note and not is_short:
        warn(f"{note}; nothing after this position could be read")


def _remaining_blocks(
    native: SoundFileStream, recording: Recording, name: str, offset: float, done: int, warn: Warn
) -> Iterator[NativeBlock]:
    """Yield the blocks that ffmpeg reads after the first `done` frames. ffmpeg decodes these frames again, because its
    seeking trusts damaged headers."""
    try:
        rest = FFmpegStream(recording, name, offset, reason="damaged", seek=False)
        if (rest.rate, rest.channels) != (native.rate, native.channels):
            rest.close()
            return
        for block in rest.blocks():
            yield block[done:]
            done = max(0, done - len(block))
        for message in rest.silence():
            warn(message)
    except AudioError:  # ffmpeg finds no more audio; the caller's warning says where the good audio ends
        return


def _limited(
    blocks: Generator[NativeBlock], limit: int | None, is_part: bool, warn: Warn, rate: int
) -> Iterator[NativeBlock]:
    """Yield at most `limit` frames; None yields all.

    A recording that continues after a bare `duration` causes a warning. The duration was often measured wrong, and the
    remaining speech would be lost silently.
    """
    if limit is None:
        yield from blocks
        return
    left = limit
    with closing(blocks):  # its last warnings come before the caller's
        for block in blocks:
            if left > 0:
                yield block[:left]
            left -= len(block)
            if left < 0:
                if not is_part and -left > _DURATION_SLACK_S * rate:
                    warn(f"the recording continues after the manifest's duration of {limit / rate:g} s")
                return


def _mix_blocks(blocks: Iterator[NativeBlock], mono: Mixdown) -> Iterator[Samples]:
    for block in blocks:
        yield mono(block)
    yield mono.finish()


def _resample(blocks: Iterator[Samples], rate: int) -> Iterator[Samples]:
    """Resample with soxr HQ, as librosa.resample(res_type="soxr_hq") does, and keep the resampler's state from block to
    block."""
    if rate == SAMPLING_RATE:
        yield from (block for block in blocks if len(block))
        return
    stream = soxr.ResampleStream(rate, SAMPLING_RATE, 1, dtype="float32", quality="HQ")
    for block in blocks:
        out = stream.resample_chunk(np.ascontiguousarray(block))
        if len(out):
            yield out
    tail = stream.resample_chunk(np.zeros(0, np.float32), last=True)
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


def probe(recording: Recording, certain: bool = False) -> float | None:
    """Return the duration in seconds that a recording's header claims, without decoding.

    Args:
        recording: an open recording. It is not closed here.
        certain: return None also for files whose header is known to report too little. MP3 files and Ogg streams are
            sometimes appended to each other, and MP4 files count the padding of their codecs.

    Returns:
        The duration; None if the format is neither MP4 nor one that libsndfile knows, or if the header gives no
        plausible length.
    """
    try:
        native = SoundFileStream(recording)
    except soundfile.LibsndfileError:
        return None if certain else mp4_seconds(recording)
    if certain and (native.format == "MP3" or is_chained_ogg(recording)):
        return None
    return native.claimed_seconds()


def libraries() -> dict[str, str]:
    """Return the versions of the libraries that decide which samples a recording gives.

        {"ffmpeg": "7.0.2-static (imageio-ffmpeg 0.6.0)", "libsndfile": "1.2.2"}

    Raises:
        ConfigError: VOXBATCH_FFMPEG names no ffmpeg.
    """
    try:
        found = ffmpeg.version()
    except AudioError:
        found = "not installed"
    return {"ffmpeg": found, "libsndfile": soundfile.__libsndfile_version__}
