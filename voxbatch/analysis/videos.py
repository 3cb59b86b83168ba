"""Write copies of the videos of a run with its subtitles: as a track of the file, or in the picture.

    talk.mp4  →  talk.subtitled.mp4        talk.webm  →  talk.subtitled.mkv        translated: talk.en.subtitled.mp4

A copy is beside its video, and appears whole. One that voxbatch has made is made again if its subtitles have changed,
or if the other kind is wanted. No other file is ever replaced. All streams of the video are copied as they are, except
for a picture that gets subtitles, which is encoded again.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from voxbatch.audio.ffmpeg import check_disk, executable
from voxbatch.audio.ffmpeg_log import FFmpegLog
from voxbatch.audio.ffmpeg_stream import FORMATS
from voxbatch.errors import VoxbatchError
from voxbatch.formats import WRITERS
from voxbatch.formats.document import Document
from voxbatch.frame_rate import AUTO
from voxbatch.languages import three_letter_code
from voxbatch.log import Log
from voxbatch.manifest.encoding import TextDecoder
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.manifest.recording_path import SUBTITLED
from voxbatch.output import run_file
from voxbatch.output.entries import Entries
from voxbatch.output.item_files import ItemFiles, latest_config
from voxbatch.output.item_names import TRANSLATED
from voxbatch.output.item_writer import names_of_files
from voxbatch.output.layout import item_file
from voxbatch.output.lines import SPOKEN_LANGUAGE, parse_line
from voxbatch.output.outcomes import read_transcript
from voxbatch.output.own_files import OwnFiles, sha256
from voxbatch.process.child import for_program
from voxbatch.storage import DEFAULT_STORES, Store, is_remote
from voxbatch.storage.temporary_files import temporary_folder

BLOCK_BYTES = 1 << 20
KEPT_FORMATS = (("srt", "vtt"), ("ass", "srt", "vtt"))
"""Formats of subtitles with cues of a person that a copy may get, as a track and in the picture, which shows styles."""
_SUBTITLE_CODECS = {".mp4": "mov_text", ".m4v": "mov_text", ".mov": "mov_text"}
"""Codec of a subtitle track by the extension of the video. All others become .mkv, with SubRip."""


_WRITTEN, _CURRENT, _FOREIGN = "written", "there before, and left as they are", "there before, and not replaced"
_SILENT = "not made, because nobody speaks in them"
"""The states of a copy, for messages. There is no track without subtitles."""


class VideoError(VoxbatchError):
    """A copy of a video that cannot be made."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy of a video with subtitles."""

    video: str
    place: str
    state: str
    """_WRITTEN, _CURRENT, _FOREIGN or _SILENT."""
    frame_rate: float | None = None
    """Frames per second of the video, with three decimals."""
    cue_rate: float = 0.0
    """Frames per second at which its subtitles begin, with three decimals."""
    is_known: bool = True
    """True if OUT has the frame rate. Earlier versions did not keep it."""


def write_videos(store: Store, in_picture: bool | None, log: Log) -> None:
    """Write a copy with subtitles of each local video of the finished run in OUT, and log what was written.

    Args:
        in_picture: draw the subtitles into the picture. Otherwise they are a track, which a player can switch off. None
            makes only the copies again that voxbatch has made from other subtitles, each as it was.
        log: gets the numbers, and the reason for each video without a copy.

    Raises:
        ConfigError: the run has no transcripts, and copies are wanted.
    """
    run = run_file.read_existing(store)
    if in_picture is None and run.refusal("videos"):
        return
    run.check_reader("videos", store.place)
    settings = ItemFiles.of(latest_config(store, run))
    files = replace(settings, formats=settings.formats or ("srt",), beside=True)
    entries, own = Entries(store, run), OwnFiles(store)
    ids, recordings = names_of_files(store, run, entries, files)
    assert ids is not None
    assert recordings is not None
    copies = list[_Copy]()
    for entry in entries:
        line = parse_line(store, entry, run.products)
        place = recordings.place_beside(line) if entry.kind == "transcript" else None
        if place is None or is_remote(place):
            continue
        try:
            transcript = read_transcript(line)
            text = Document(line["id"], transcript, limits=files.limits).written("srt")
            subtitles = [
                _kept_subtitles(store, ids.name(line["id"]), place, own, forms)
                or text.encode("utf-8", "surrogateescape")
                for forms in KEPT_FORMATS
            ]
            if not any(map(bytes.strip, subtitles)):
                copies += [_Copy(line[AUDIO_KEY], line[AUDIO_KEY], _SILENT)] if in_picture is not None else []
                continue
            copy_place = _place_of_copy(line[AUDIO_KEY], TRANSLATED if SPOKEN_LANGUAGE in line else "")
            copy = _write_copy(line[AUDIO_KEY], copy_place, subtitles, transcript.language, in_picture, own)
            if copy is not None:
                rate = transcript.frame_rate
                cue_rate = round(files.limits.frames_per_second(rate), 3)
                copies.append(replace(copy, cue_rate=cue_rate, is_known=rate is not None))
        except VoxbatchError as e:
            log.warning("video", text=f"no copy with subtitles of {line[AUDIO_KEY]}: {e}")
    for text in _messages(copies, store.place, in_picture):
        log.info("video", text=text)


def _messages(copies: Sequence[_Copy], place: str, in_picture: bool | None) -> Iterator[str]:
    """Yield how many copies have each state, and which videos have another frame rate than their subtitles.

    Args:
        place: OUT.
    """
    command, kind = f"voxbatch merge {shlex.quote(place)}", "--burn" if in_picture else "--mux"
    for state, count in Counter(copy.state for copy in copies).items():
        first = next(copy.place for copy in copies if copy.state == state)
        text = f"videos with subtitles {state}: {count:,}, the first is {first}"
        if state == _FOREIGN:
            text += f"; this run did not write it, or somebody has changed it: move it away, then {command} {kind}"
        yield text
    others = [copy for copy in copies if copy.frame_rate not in (None, copy.cue_rate) and in_picture is not None]
    for (rate, cue_rate, is_known), count in Counter((c.frame_rate, c.cue_rate, c.is_known) for c in others).items():
        first = next(copy.video for copy in others if (copy.frame_rate, copy.cue_rate) == (rate, cue_rate))
        remedy = AUTO if is_known else f"{rate:g}"
        yield (
            f"videos with {rate:g} frames a second: {count:,}, the first is {first}; the subtitles begin with "
            f"frames of {cue_rate:g} a second, unless: {command} --frame-rate {remedy} {kind}"
        )


def _kept_subtitles(store: Store, name: str, place: str, own: OwnFiles, forms: Sequence[str]) -> bytes | None:
    """Return the subtitles with cues of a person, in OUT or else beside the video, as UTF-8; None if there are none.
    See OwnFiles.keep.

    Args:
        name, place: name of the item's files in OUT, and place beside the video, both without an extension.
        forms: the formats that the copy may get, the best one first.
    """
    folder, base = os.path.split(place)
    for form in forms:
        in_out, extension = item_file(name, form), WRITERS[form].beside
        for files, file in ((store, in_out), (DEFAULT_STORES.out(folder), f"{base}.{extension}")):
            content = files.read(file)
            if content is not None and own.has_mark(in_out, sha256(content)):
                return TextDecoder().decode(content, file).encode("utf-8", "surrogateescape")
    return None


def _write_copy(
    video: str, place: str, by_kind: Sequence[bytes], language: str | None, in_picture: bool | None, own: OwnFiles
) -> _Copy | None:
    """Return the copy of a video, which is written if need be. Return None if the recording has no picture, or no copy
    that is to be made again.

    Args:
        place: the path of the copy.
        by_kind: the subtitles of a copy, as a track and in the picture.
        language: tag of the language of the subtitles, which the track names.
        own: knows the copies that voxbatch has made, and from which subtitles.

    Raises:
        VideoError: ffmpeg cannot make the copy.
        StorageError: the copy cannot be written.
    """
    (folder, name), suffix = os.path.split(place), os.path.splitext(place)[1]
    codec = _SUBTITLE_CODECS.get(suffix.lower(), "srt")
    is_current, outdated = _present_copy(place, by_kind, in_picture, own)
    if in_picture is None and not outdated:
        return None
    source = ["-format_whitelist", FORMATS, "-i", f"file:{os.path.abspath(video)}"]
    log = FFmpegLog()
    log.feed(_ffmpeg(["-loglevel", "level+info", *source], check=False))
    if not log.has_video:
        return None
    rate = log.frame_rate
    if not outdated and os.path.lexists(place):
        return _Copy(video, place, _CURRENT if is_current else _FOREIGN, rate)
    if in_picture is None:
        in_picture = own.has_mark(place, _burnt(outdated))
    subtitles = by_kind[in_picture]
    with temporary_folder(place) as temporary:
        is_ass = b"[Script Info]" in subtitles[:BLOCK_BYTES]
        cues = "cues.vtt" if subtitles.startswith(b"WEBVTT") else "cues.ass" if is_ass else "cues.srt"
        Path(temporary, cues).write_bytes(subtitles)
        if in_picture:
            options = [*source, "-map", "0", "-c", "copy", "-c:v:0", "libx264", "-filter:v:0", f"subtitles={cues}"]
        else:
            track = f"s:{log.num_subtitles}"
            options = [*source, "-i", cues, "-map", "0", "-map", "1", "-c", "copy", f"-c:{track}", codec]
            options += [f"-metadata:s:{track}", f"language={three_letter_code(language or '')}"]
            options += [f"-time_base:{track}", "1/1000"]  # with ffmpeg's 1/1000000, mov_text loses breaks of 2^31 µs
        _ffmpeg([*options, "-copy_unknown", f"copy{suffix}"], folder=temporary)
        copy = os.path.join(temporary, f"copy{suffix}")
        digest, store = _digest(copy), DEFAULT_STORES.out(folder)
        burnt = [(place, _burnt(digest))] if in_picture else []
        own.mark([(place, digest), (place, _made_of(digest, subtitles, in_picture)), *burnt])
        with open(copy, "rb") as file:
            blocks = iter(lambda: file.read(BLOCK_BYTES), b"")
            if outdated:
                store.write(name, blocks)
            elif not store.create(name, blocks):
                return _Copy(video, place, _FOREIGN, rate)
    own.mark([(place, _made_of(_state(place), subtitles, in_picture))])
    return _Copy(video, place, _WRITTEN, rate)


def _place_of_copy(video: str, ending: str) -> str:
    """Return the path of the copy of a video; of a translation, with the ending TRANSLATED."""
    stem, suffix = os.path.splitext(video)
    return f"{stem}{ending}{SUBTITLED}{suffix if suffix.lower() in _SUBTITLE_CODECS else '.mkv'}"


def own_copies(video: str, own: OwnFiles) -> list[str]:
    """Return the paths of the copies of a video that voxbatch has made and nobody has changed."""
    places = [_place_of_copy(video, ending) for ending in ("", TRANSLATED)]
    return [place for place in places if os.path.isfile(place) and own.has_mark(place, _digest(place))]


def _present_copy(place: str, by_kind: Sequence[bytes], in_picture: bool | None, own: OwnFiles) -> tuple[bool, str]:
    """Return whether the copy that is there is the wanted one; and its SHA-256 if voxbatch has made it from other
    subtitles or of the other kind, else "". The copy is read if it was touched since.

    Args:
        by_kind: see `_write_copy`.
        in_picture: the wanted kind. None for any.
    """
    if not os.path.isfile(place):
        return False, ""
    kinds = (False, True) if in_picture is None else (in_picture,)

    def is_wanted(copy: str) -> bool:
        return any(own.has_mark(place, _made_of(copy, by_kind[kind], kind)) for kind in kinds)

    if is_wanted(_state(place)) or is_wanted(digest := _digest(place)):
        return True, ""
    return False, digest if own.has_mark(place, digest) else ""


def _made_of(copy: str, subtitles: bytes, in_picture: bool) -> str:
    """Return what is recorded for a copy, of which the digest or the state is given."""
    made = f"{copy} with {sha256(subtitles)}"
    return _burnt(made) if in_picture else made


def _burnt(copy: str) -> str:
    """Return what is recorded for a copy with subtitles in its picture."""
    return f"{copy} in the picture"


def _state(path: str) -> str:
    """Return the size and the time of a file."""
    state = os.stat(path)
    return f"{state.st_size} {state.st_mtime_ns}"


def _digest(path: str) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ffmpeg(options: list[str], folder: str | None = None, check: bool = True) -> bytes:
    """Run ffmpeg in a folder, and return what it says.

    Raises:
        OSError: the disk is full.
        VideoError: it fails.
    """
    command = [executable(), "-nostdin", "-hide_banner", "-protocol_whitelist", "file,pipe", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, env=for_program(os.environ))
    if check and done.returncode:
        check_disk(done.stderr)
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise VideoError(f"ffmpeg fails: {' '.join(lines[-2:])}")
    return done.stderr
