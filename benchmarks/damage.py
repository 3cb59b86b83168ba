"""Recordings in many formats, and the ways to damage them, for bench_damage.py.

The audio is a sequence of tones that change at irregular times. Any 0.4 s of it are unlike all others, also after a
codec for telephones, so that the benchmark can tell where a decoded piece belongs.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import soundfile
from numpy.typing import NDArray

SECONDS = 36.0
"""Length of the recordings. One percent of it, 0.36 s, is longer than the 0.1 s that codecs pad."""
RATE = 16_000
GARBAGE_BYTES = 64 << 10
RUNS, RUN_BYTES = 32, 64
"""Number and length of the runs of bytes that `corrupted` overwrites."""

Damage = Callable[[bytes], bytes | None]
"""A function from a file's bytes to the damaged bytes; None where the damage makes no sense."""


# ── recordings ────────────────────────────────────────────────────────────────────────────────────────────────────────


def tones(seed: int, seconds: float = SECONDS, rate: int = RATE) -> NDArray[np.float32]:
    """Return tones of random pitch between 300 and 3,200 Hz, each 0.06 to 0.2 s long, with noise 40 dB below them."""
    random = np.random.default_rng(seed)
    total = round(seconds * rate)
    steps = random.uniform(0.06, 0.2, round(seconds / 0.06) + 1)
    pitches = 300 * (3_200 / 300) ** random.random(len(steps))
    hertz = np.repeat(pitches, np.round(steps * rate).astype(int))[:total]
    sound = 0.3 * np.sin(2 * np.pi * np.cumsum(hertz) / rate) + 0.003 * random.standard_normal(total)
    return sound.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write a recording."""

    name: str
    file: str
    """Name of the file. Its extension selects ffmpeg's container."""
    options: str = ""
    """Options of ffmpeg, separated by spaces. Empty: libsndfile writes the file, with `subtype`."""
    subtype: str = ""
    recording: Path | None = None
    """A recording that is copied and not written. None: the other fields say how the file is written."""
    edit: Callable[[bytes], bytes] | None = None
    """Changes the written bytes, for headers that these programs do not write."""
    any_bytes: bool = False
    """True if all bytes are valid samples, so that no decoder can notice a damage inside the data."""
    no_checksum: bool = False
    """True if wrong bytes in a frame are valid parameters of the codec."""
    no_length: bool = False
    """True if no header says how long the recording is, so that a shorter file is a valid recording."""


def _pcm(name: str, file: str, subtype: str) -> Format:
    return Format(name, file, subtype=subtype, any_bytes=True)


def _streamed_wav(size: int) -> Callable[[bytes], bytes]:
    """Return an edit that gives a WAV the sizes of a program that writes into a pipe."""

    def edit(data: bytes) -> bytes:
        at = _riff_chunk(data, b"data")
        return _put(_put(data, 4, "<I", size), at + 4, "<I", size)

    return edit


FORMATS = (
    _pcm("wav", "a.wav", "PCM_16"),
    _pcm("wav-float", "a.wav", "FLOAT"),
    _pcm("wav-mulaw", "a.wav", "ULAW"),
    _pcm("wav-ima", "a.wav", "IMA_ADPCM"),
    _pcm("wav-gsm", "a.wav", "GSM610"),
    Format("wav-ffffffff", "a.wav", subtype="PCM_16", edit=_streamed_wav(0xFFFFFFFF), any_bytes=True, no_length=True),
    Format("wav-0", "a.wav", subtype="PCM_16", edit=_streamed_wav(0), any_bytes=True, no_length=True),
    Format("wav-adpcm-ms", "a.wav", "-c:a adpcm_ms", any_bytes=True),
    _pcm("rf64", "a.rf64", "PCM_16"),
    _pcm("w64", "a.w64", "PCM_16"),
    _pcm("aiff", "a.aiff", "PCM_16"),
    _pcm("au", "a.au", "PCM_16"),
    _pcm("caf", "a.caf", "PCM_16"),
    Format("caf-alac", "a.caf", "-c:a alac"),
    Format("voc", "a.voc", "-c:a pcm_s16le", any_bytes=True),
    Format("flac", "a.flac", "-c:a flac"),
    Format("ogg-vorbis", "a.ogg", "-c:a libvorbis"),
    Format("ogg-opus", "a.opus", "-c:a libopus"),
    Format("ogg-flac", "flac.ogg", "-c:a flac"),
    Format("ogg-speex", "speex.ogg", "-c:a libspeex"),
    Format("mp3-cbr", "a.mp3", "-c:a libmp3lame -b:a 64k"),
    Format("mp3-vbr", "a.mp3", "-c:a libmp3lame -q:a 4"),
    Format("mp3-bare", "a.mp3", "-c:a libmp3lame -b:a 64k -write_xing 0 -id3v2_version 0", no_length=True),
    Format("mp2", "a.mp2", "-c:a mp2", no_length=True),
    Format("m4a", "a.m4a", "-c:a aac"),
    Format("m4a-faststart", "a.m4a", "-c:a aac -movflags +faststart"),
    Format("mp4-fragments", "a.mp4", "-c:a aac -movflags +empty_moov+default_base_moof -frag_duration 1000000"),
    Format("m4a-alac", "a.m4a", "-c:a alac"),
    Format("mov-pcm", "a.mov", "-c:a pcm_s16le", any_bytes=True),
    Format("3gp-amr", "a.3gp", "-c:a libopencore_amrnb -ar 8000 -b:a 12.2k", no_checksum=True),
    Format("aac", "a.aac", "-c:a aac", no_length=True),
    Format("ac3", "a.ac3", "-c:a ac3", no_length=True),
    Format("eac3", "a.eac3", "-c:a eac3", no_length=True),
    Format("dts", "a.dts", "-c:a dca -strict -2 -ar 48000", no_length=True),
    Format("amr", "a.amr", "-c:a libopencore_amrnb -ar 8000 -b:a 12.2k", no_length=True, no_checksum=True),
    Format("mka-opus", "a.mka", "-c:a libopus"),
    Format("webm-opus", "a.webm", "-c:a libopus"),
    Format("mka-pcm", "a.mka", "-c:a pcm_s16le"),
    Format("mka-aac", "a.mka", "-c:a aac"),
    Format("mka-flac", "a.mka", "-c:a flac"),
    Format("mpegts", "a.ts", "-c:a aac", no_length=True),
    Format("mpeg", "a.mpg", "-c:a mp2 -f mpeg", no_length=True),
    Format("avi-mp3", "a.avi", "-c:a libmp3lame"),
    Format("avi-pcm", "a.avi", "-c:a pcm_s16le"),
    Format("flv", "a.flv", "-c:a aac"),
    Format("wma", "a.wma", "-c:a wmav2"),
    Format("rm", "a.rm", "-c:a real_144 -ar 8000", no_checksum=True),
    Format("wv", "a.wv", "-c:a wavpack"),
    Format("tta", "a.tta", "-c:a tta"),
    Format("g722", "a.g722", "-c:a g722", any_bytes=True, no_length=True),
    Format("gsm", "a.gsm", "-c:a libgsm -ar 8000", no_length=True),
)  # fmt: skip


LONGEST_S = 60.0
"""Seconds of the longest recording of speech that is damaged."""


def speech_formats(folder: Path) -> list[Format]:
    """Return the longest recording up to LONGEST_S of each extension in a folder with a manifest."""
    with open(folder / "manifest.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    longest: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: (row["duration"], row["audio_filepath"])):
        if row["duration"] <= LONGEST_S:
            longest[Path(row["audio_filepath"]).suffix] = row["audio_filepath"]
    alike = {Path(form.file).suffix: form for form in reversed(FORMATS)}
    return [
        replace(alike[extension], name=f"speech{extension}", recording=folder / name)
        for extension, name in sorted(longest.items())
    ]


SOURCE, SECOND, SILENCE = "source.wav", "second.wav", "silence.wav"
"""Files that `write_sources` writes: the recording, another one, and silence of the same length."""
LATE_S = 3.5
"""Seconds from the begin of the video to the begin of the audio."""
GAP_S = (10.0, 15.0)
"""Begin and end of the gap in the timestamps."""
CONTAINERS = {
    ".m4a": "mpeg4", ".mp4": "mpeg4", ".mov": "mpeg4", ".3gp": "mpeg4", ".mka": "mpeg4", ".avi": "mpeg4",
    ".webm": "libvpx", ".ts": "mpeg2video", ".mpg": "mpeg1video", ".flv": "flv", ".wma": "wmv2",
}  # fmt: skip
"""Extensions of the containers that hold video, too, and an encoder for it."""
_WITHOUT_TIMES, _NO_GAPS = (".avi",), (".avi", ".mov")
"""Containers that give the audio no times; and those in which ffmpeg closes a gap while it writes the file."""
_GAP_ONLY = {".ogg": "-page_duration 1", ".opus": "-page_duration 1"}
"""Other containers with times, and options. An Ogg page has only the time of its end, so that it must not hold packets
from both sides of the gap."""
_ONE_AUDIO_STREAM = (".flv",)


def write_sources(folder: Path) -> None:
    """Write SOURCE, SECOND and SILENCE."""
    for name, sound in ((SOURCE, tones(1)), (SECOND, tones(2)), (SILENCE, np.zeros(round(SECONDS * RATE), np.float32))):
        soundfile.write(folder / name, sound, RATE, subtype="PCM_16")


def variants(form: Format, sources: Path) -> dict[str, list[str]]:
    """Return options of ffmpeg that write other contents in a format, by the name of the content.

    * "silent 1st": two audio streams, of which the first is silent;
    * "two": two audio streams with sound;
    * "late": video, and audio that begins LATE_S later;
    * "gap": the packets of GAP_S are missing.
    """
    if form.recording:
        return {}
    extension = Path(form.file).suffix
    source, second, silence = (f"-i {sources / name}" for name in (SOURCE, SECOND, SILENCE))
    video = f"-f lavfi -i color=black:size=176x144:rate=25:duration={SECONDS}"
    found = {}
    if extension in CONTAINERS and extension not in _ONE_AUDIO_STREAM:
        found["silent 1st"] = f"{silence} {source} -map 0 -map 1"
        found["two"] = f"{source} {second} -map 0 -map 1"
    if extension in CONTAINERS and extension not in _WITHOUT_TIMES:
        found["late"] = f"{video} -itsoffset {LATE_S} {source} -map 0 -map 1 -c:v {CONTAINERS[extension]}"
    if extension in {*CONTAINERS, *_GAP_ONLY} - {*_NO_GAPS}:
        found["gap"] = (
            rf"{source} {_GAP_ONLY.get(extension, '')} -bsf:a noise=drop=between(pts*tb\,{GAP_S[0]}\,{GAP_S[1]})"
        )
    return {name: f"{options} {form.options}".split() for name, options in found.items()}


def write_variant(options: list[str], target: Path) -> bool:
    """Write one of the `variants`. Return False if no ffmpeg can."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return any(_ffmpeg(program, options, target) for program in encoders())


def encode(form: Format, source: Path, target: Path) -> bool:
    """Write the source in a format. Return False if neither ffmpeg has the encoder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if form.recording:
        shutil.copy(form.recording, target)
    elif form.subtype:
        sound, rate = soundfile.read(source, dtype="float32")
        kind = {".rf64": "RF64", ".w64": "W64"}.get(target.suffix, target.suffix[1:].upper())
        soundfile.write(target, sound, rate, subtype=form.subtype, format=kind)
    elif not write_variant(["-i", str(source), *form.options.split()], target):
        return False
    if form.edit:
        target.write_bytes(form.edit(target.read_bytes()))
    return True


def encoders() -> list[str]:
    """Return the ffmpeg of the wheel and, if there is one, the system's."""
    return [imageio_ffmpeg.get_ffmpeg_exe(), *filter(None, [shutil.which("ffmpeg")])]


def _ffmpeg(program: str, options: list[str], target: Path) -> bool:
    command = [program, "-y", "-nostdin", "-loglevel", "error", *options, "-bitexact", target]
    done = subprocess.run(command, check=False, capture_output=True)
    if done.returncode != 0:
        target.unlink(missing_ok=True)
    return done.returncode == 0


# ── damages ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def truncated(data: bytes) -> bytes:
    """Return the first half."""
    return data[: len(data) // 2]


def zeroed(data: bytes) -> bytes:
    """Return the file with its middle third zeroed, as after a crash of the file system."""
    third = len(data) // 3
    return data[:third] + bytes(third) + data[2 * third :]


def corrupted(data: bytes) -> bytes:
    """Return the file with RUNS runs of random bytes in the middle 80%."""
    random = np.random.default_rng(17)
    changed = bytearray(data)
    for at in random.integers(len(data) // 10, len(data) * 9 // 10 - RUN_BYTES, RUNS):
        changed[at : at + RUN_BYTES] = random.bytes(RUN_BYTES)
    return bytes(changed)


def garbage(data: bytes) -> bytes:
    """Return the file with random bytes appended."""
    return data + np.random.default_rng(18).bytes(GARBAGE_BYTES)


def tail(other: bytes) -> Damage:
    """Return a damage that appends the second half of another recording in the same format."""
    return lambda data: data + other[len(other) // 2 :]


def stale(factor: float) -> Damage:
    """Return a damage that multiplies the length in the header, and leaves the audio alone."""

    def damage(data: bytes) -> bytes | None:
        for magic, at, change in _HEADERS:
            if data[at : at + len(magic)] == magic:
                return change(data, factor)
        return None

    return damage


def _put(data: bytes, at: int, kind: str, *values: float) -> bytes:
    packed = struct.pack(kind, *values)
    return data[:at] + packed + data[at + len(packed) :]


def _scale(data: bytes, at: int, kind: str, factor: float) -> bytes:
    (value,) = struct.unpack_from(kind, data, at)
    scaled = value * factor
    return _put(data, at, kind, scaled if kind[-1] in "df" else int(scaled))


def _riff_chunk(data: bytes, name: bytes, at: int = 12, order: str = "<") -> int:
    """Return the position of a chunk; -1 if there is none."""
    while at + 8 <= len(data):
        if data[at : at + 4] == name:
            return at
        (size,) = struct.unpack_from(f"{order}I", data, at + 4)
        at += 8 + size + size % 2
    return -1


def _wav(data: bytes, factor: float) -> bytes | None:
    at = _riff_chunk(data, b"data")
    if struct.unpack_from("<I", data, at + 4)[0] in (0, 0xFFFFFFFF):
        return None
    data = _scale(_scale(data, 4, "<I", factor), at + 4, "<I", factor)
    fact = _riff_chunk(data, b"fact")
    return data if fact < 0 else _scale(data, fact + 8, "<I", factor)


def _avi(data: bytes, factor: float) -> bytes:
    data = _scale(data, data.index(b"avih") + 8 + 16, "<I", factor)
    return _scale(data, data.index(b"strh") + 8 + 32, "<I", factor)


def _riff(data: bytes, factor: float) -> bytes | None:
    return _avi(data, factor) if data[8:12] == b"AVI " else _wav(data, factor)


def _rf64(data: bytes, factor: float) -> bytes:
    at = data.index(b"ds64") + 8
    for field in range(3):  # sizes of the file and of the data, and the number of samples
        data = _scale(data, at + 8 * field, "<Q", factor)
    return data


def _w64(data: bytes, factor: float) -> bytes:
    return _scale(_scale(data, 16, "<Q", factor), data.index(b"data\xf3\xac\xd3\x11") + 16, "<Q", factor)


def _aiff(data: bytes, factor: float) -> bytes:
    data = _scale(data, _riff_chunk(data, b"COMM", order=">") + 10, ">I", factor)
    return _scale(_scale(data, data.index(b"SSND") + 4, ">I", factor), 4, ">I", factor)


def _caf(data: bytes, factor: float) -> bytes:
    at = 8
    while at + 12 <= len(data):
        name, (size,) = data[at : at + 4], struct.unpack_from(">q", data, at + 4)
        if name == b"data":
            data = _scale(data, at + 4, ">q", factor)
        elif name == b"pakt":  # numbers of packets and of frames
            data = _scale(_scale(data, at + 12, ">q", factor), at + 20, ">q", factor)
        at += 12 + size
    return data


def _voc(data: bytes, factor: float) -> bytes:
    (size,) = struct.unpack("<I", data[27:30] + b"\0")
    return data[:27] + struct.pack("<I", int(size * factor))[:3] + data[30:]


def _flac(data: bytes, factor: float) -> bytes:
    (fields,) = struct.unpack_from(">Q", data, 18)  # the number of samples is in the last 36 bits
    total = fields & (1 << 36) - 1
    return _put(data, 18, ">Q", (fields - total) | int(total * factor))


def _mp3(data: bytes, factor: float) -> bytes | None:
    for name in (b"Xing", b"Info"):
        if (at := data.find(name, 0, 4096)) >= 0:
            return _scale(_scale(data, at + 8, ">I", factor), at + 12, ">I", factor)
    return None


def _mp4(data: bytes, factor: float) -> bytes | None:
    if b"moof" in data:
        return None  # the length of a fragmented file is the sum of its fragments
    for name, field in ((b"mvhd", 20), (b"tkhd", 24), (b"mdhd", 20)):
        data = _scale(data, data.index(name) + field, ">I", factor)
    return data


def _matroska(data: bytes, factor: float) -> bytes:
    return _scale(data, data.index(b"\x44\x89\x88") + 3, ">d", factor)


def _flv(data: bytes, factor: float) -> bytes:
    return _scale(data, data.index(b"duration\0") + 9, ">d", factor)


def _asf(data: bytes, factor: float) -> bytes:
    at = data.index(bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")) + 24 + 16 + 8 + 8
    for field in range(3):  # number of packets, play duration, send duration
        data = _scale(data, at + 8 * field, "<Q", factor)
    return data


def _rm(data: bytes, factor: float) -> bytes:
    at = data.index(b"PROP") + 10 + 16  # number of packets, duration
    return _scale(_scale(data, at, ">I", factor), at + 4, ">I", factor)


def _tta(data: bytes, factor: float) -> bytes:
    data = _scale(data, 14, "<I", factor)
    return _put(data, 18, "<I", zlib.crc32(data[:18]))


_HEADERS: tuple[tuple[bytes, int, Callable[[bytes, float], bytes | None]], ...] = (
    (b"RIFF", 0, _riff),
    (b"RF64", 0, _rf64),
    (b"riff", 0, _w64),
    (b"FORM", 0, _aiff),
    (b".snd", 0, lambda data, factor: _scale(data, 8, ">I", factor)),
    (b"caff", 0, _caf),
    (b"Creative Voice File", 0, _voc),
    (b"fLaC", 0, _flac),
    (b"ID3", 0, _mp3),
    (b"ftyp", 4, _mp4),
    (b"\x1a\x45\xdf\xa3", 0, _matroska),
    (b"FLV", 0, _flv),
    (b"\x30\x26\xb2\x75", 0, _asf),
    (b".RMF", 0, _rm),
    (b"wvpk", 0, lambda data, factor: _scale(data, 12, "<I", factor)),
    (b"TTA1", 0, _tta),
)
"""Magic bytes, their position, and the function that changes the length."""
