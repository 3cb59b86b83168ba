"""A recording's bytes → mono float32 at 16 kHz, block by block, so that an hour of audio never needs an hour of memory.

libsndfile reads what it can; ffmpeg, confined to the given bytes, reads the rest and takes over where libsndfile
gives up in mid-file. One stateful resampler runs over the whole recording, so blocks leave no seams. Does not cut,
and does not look for speech.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from voxbatch.audio import ffmpeg
from voxbatch.audio.ffmpeg import FFmpegStream
from voxbatch.audio.mixdown import Mixdown
from voxbatch.audio.native import BLOCK_SECONDS, HeaderShortError, NativeBlock, SoundFileStream, is_chained_ogg
from voxbatch.errors import AudioError
from voxbatch.records import SAMPLING_RATE, Samples, Waveform
from voxbatch.storage import Recording

MIN_RATE, MAX_RATE = 4_000, 768_000
"""Hz. Below telephone quality there is no speech to recognise, and a header that claims 1 Hz asks for 16,000 samples a
byte; 768 kHz is the highest rate in use (studio PCM)."""
MAX_CHANNELS = 64
"""Seventh-order ambisonics; headers that claim more are broken."""

Warn = Callable[[str], None]
_DURATION_SLACK_S = 0.25
"""Codecs pad: an MP3 decodes up to 0.1 s shorter or longer than other programs say it is."""

__all__ = ["BLOCK_SECONDS", "MAX_CHANNELS", "MAX_RATE", "MIN_RATE", "decode", "libraries", "probe"]


def decode(
    recording: Recording,
    name: str,
    *,
    offset: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
    warn: Warn = lambda message: None,
) -> Iterator[Waveform]:
    """Decode a recording to mono float32 at 16 kHz.

    Args:
        recording: see storage.open_recording. Not closed here.
        name: its name, for messages and for the raw formats that only an extension tells (.g722, .gsm).
        offset: seconds to skip.
        duration: seconds to take; None takes all.
        channel: 0-based channel to take; None mixes down (see Mixdown).
        warn: told, in one line each, what was repaired or cut short.

    Yields:
        Waveforms that join without gaps or overlap; the first starts at `offset` on the recording's clock.

    Raises:
        AudioError: nothing could be decoded, or the header or the arguments make no sense.
        StorageError: where the recording is fetched from fails.
    """
    native = _open(recording, name, offset)
    _check_header(native, channel, offset)
    limit = None if duration is None else round(duration * native.rate)
    mono = Mixdown(native.rate, native.channels, channel)
    start, out = round(offset * SAMPLING_RATE), 0
    repaired = _Repair(warn)
    blocks = _take(_resilient(native, recording, name, offset, warn), limit, offset > 0, warn, native.rate)
    for samples in _resampled(_mixed((repaired(block) for block in blocks), mono), native.rate):
        yield Waveform(samples, start + out)
        out += len(samples)
    repaired.finish()
    if out == 0:
        raise AudioError(
            f"no audio after {offset:g} s" if offset else "no audio: the file holds a header but no samples"
        )
    if duration is not None and out < (duration - _DURATION_SLACK_S) * SAMPLING_RATE:
        warn(f"the recording ended {duration - out / SAMPLING_RATE:.2f} s before the manifest's {duration:g} s")


def _open(recording: Recording, name: str, offset: float) -> SoundFileStream | FFmpegStream:
    if is_chained_ogg(recording):
        return FFmpegStream(recording.fileno(), name, offset, because="a chained Ogg file", seek=False)
    try:
        return SoundFileStream(recording, offset)
    except soundfile.LibsndfileError as unreadable:
        return FFmpegStream(recording.fileno(), name, offset, because=str(unreadable.error_string))
    except HeaderShortError as short:
        return FFmpegStream(recording.fileno(), name, offset, because=str(short), seek=False)


def _check_header(native: SoundFileStream | FFmpegStream, channel: int | None, offset: float) -> None:
    if not MIN_RATE <= native.rate <= MAX_RATE:
        raise AudioError(f"the header claims {native.rate} Hz; {MIN_RATE} to {MAX_RATE} Hz are allowed")
    if not 1 <= native.channels <= MAX_CHANNELS:
        raise AudioError(f"the header claims {native.channels} channels; 1 to {MAX_CHANNELS} are allowed")
    if channel is not None and channel >= native.channels:
        raise AudioError(f"channel {channel} was asked for; the recording has channels 0 to {native.channels - 1}")


def _resilient(
    native: SoundFileStream | FFmpegStream, recording: Recording, name: str, offset: float, warn: Warn
) -> Iterator[NativeBlock]:
    """The stream's blocks; where libsndfile gives up in mid-file, ffmpeg's from that frame on: it resynchronises."""
    frames = 0
    try:
        for block in native.blocks():
            frames += len(block)
            yield block
        return
    except (soundfile.LibsndfileError, AudioError) as broken:
        if frames == 0 and isinstance(native, FFmpegStream):
            raise
        short = isinstance(broken, HeaderShortError)
        note = f"{'' if short else 'damaged: '}{str(broken).strip(' .:')} after {offset + frames / native.rate:.2f} s"
    if isinstance(native, FFmpegStream):
        warn(f"{note}; nothing behind it could be read")
        return
    for block in _rest(native, recording, name, offset, frames):
        if len(block) and note:
            warn(f"{note}; ffmpeg reads on")
            note = ""
        yield block
    if note and not short:
        warn(f"{note}; nothing behind it could be read")


def _rest(native: SoundFileStream, recording: Recording, name: str, offset: float, done: int) -> Iterator[NativeBlock]:
    """What ffmpeg reads behind the first `done` frames. It decodes them again: its seeking trusts damaged headers."""
    try:
        rest = FFmpegStream(recording.fileno(), name, offset, because="damaged", seek=False)
        if (rest.rate, rest.channels) != (native.rate, native.channels):
            rest.close()
            return
        for block in rest.blocks():
            yield block[done:]
            done = max(0, done - len(block))
    except AudioError:  # no more to be had; the warning tells where the good audio ends
        return


def _take(
    blocks: Iterator[NativeBlock], limit: int | None, is_part: bool, warn: Warn, rate: int
) -> Iterator[NativeBlock]:
    """At most `limit` frames. A recording that goes on after a bare `duration` is worth a warning: it is often a
    duration that was measured wrong, and the rest of the speech would be missed without a word."""
    if limit is None:
        yield from blocks
        return
    left = limit
    for block in blocks:
        if left > 0:
            yield block[:left]
        left -= len(block)
        if left < 0:
            if not is_part and -left > _DURATION_SLACK_S * rate:
                warn(f"the recording goes on after the manifest's duration of {limit / rate:g} s")
            return


def _mixed(blocks: Iterator[NativeBlock], mono: Mixdown) -> Iterator[Samples]:
    for block in blocks:
        yield mono(block)
    yield mono.finish()


def _resampled(blocks: Iterator[Samples], rate: int) -> Iterator[Samples]:
    """soxr HQ, as librosa.resample(res_type="soxr_hq") calls it, with its state kept from block to block."""
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


class _Repair:
    """Makes samples finite and of sane scale, and says once what it did."""

    FULL_SCALE = 2.0
    """Lossy decoders overshoot ±1 a little; a float file beyond ±2 was never normalised."""
    GLITCH = 100.0
    """A sample this many times above what 99 of 100 stay below (and above full scale) is a broken number, no sound:
    speech's peaks reach 10 times. Scaling down to it would silence all the rest."""

    def __init__(self, warn: Warn):
        self.warn, self.total, self.broken, self.peak, self.usual = warn, 0, 0, 1.0, 1.0

    def __call__(self, block: NativeBlock) -> NativeBlock:
        self.total += block.size
        with np.errstate(all="ignore"):
            suspect = not np.isfinite(np.dot(block.ravel(), block.ravel()))
        if suspect:
            block = self._silenced(block, ~np.isfinite(block))
        peak = float(np.abs(block).max(initial=0.0))
        if peak > self.GLITCH:
            level = np.abs(block)
            self.usual = max(self.usual, float(np.percentile(level, 99)))
            block = self._silenced(block, level > np.float64(self.GLITCH * self.usual))
            peak = float(np.abs(block).max(initial=0.0))
        self.peak = max(self.peak, peak)
        return block if self.peak <= self.FULL_SCALE else (block / np.float32(self.peak)).astype(np.float32)

    def _silenced(self, block: NativeBlock, broken: NDArray[np.bool_]) -> NativeBlock:
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
    """Seconds of a recording as its header claims, without decoding; None where libsndfile does not know it.

    With `certain`, None too where headers are known to tell of less than there is: MP3 files and Ogg streams are
    appended to each other.
    """
    try:
        native = SoundFileStream(recording)
    except soundfile.LibsndfileError:
        return None
    if certain and (native.format == "MP3" or is_chained_ogg(recording)):
        return None
    return native.claimed_seconds()


def libraries() -> dict[str, str]:
    """Return the versions of the libraries that decide what samples a recording gives: {"ffmpeg": "7.0.2-static
    (imageio-ffmpeg 0.6.0)", "libsndfile": "1.2.2"}.

    Raises:
        ConfigError: VOXBATCH_FFMPEG names no ffmpeg.
    """
    try:
        found = ffmpeg.version()
    except AudioError:
        found = "not installed"
    return {"ffmpeg": found, "libsndfile": soundfile.__libsndfile_version__}
