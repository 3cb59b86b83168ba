"""Write the recordings of a run that speaks: a file of each item in each format, and the files of all items together.

`m4b/book.m4b` is an audiobook with a chapter for each row that has a title. `track.flac` has the cues of subtitles
at their times. Both are made at the merge, in the order of the list.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
import soundfile
from numpy.typing import NDArray

from voxbatch.audio import ffmpeg
from voxbatch.errors import RunError
from voxbatch.output.audio_archive import AudioReader, erase_orphans, place_of
from voxbatch.output.entries import Entries
from voxbatch.output.file_digest import digest_of
from voxbatch.output.layout import item_file
from voxbatch.output.own_files import OwnFiles
from voxbatch.output.ownership import Ownership
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import Run
from voxbatch.process.child import for_program
from voxbatch.storage import Store
from voxbatch.storage.temporary_files import temporary_errors, temporary_folder
from voxbatch.works.speak import BOOK, TRACK
from voxbatch.works.speak.books import TITLE_KEY
from voxbatch.works.speak.texts import CUE_END, CUE_START

CHAPTER_PAUSE_S = 1.0
"""Seconds of silence after each row of an audiobook."""
_BLOCK_BYTES = 1 << 20
_BIT_EXACT = ("-fflags", "+bitexact", "-flags:a", "+bitexact")
"""Arguments of ffmpeg that leave out its version and the time, so that the same recording gives the same file."""
_CODECS: dict[str, tuple[str, ...]] = {
    "mp3": ("-c:a", "libmp3lame", "-q:a", "3", "-f", "mp3"),
    "opus": ("-c:a", "libopus", "-b:a", "32k", "-f", "opus"),
    "m4b": ("-c:a", "aac", "-b:a", "64k", "-f", "ipod"),
}
"""Arguments of ffmpeg for each format that libsndfile does not write here."""

Pcm = NDArray[np.int16]
"""Samples of a recording, shape (num_samples,)."""


class RecordingEncoder:
    """Makes the files of single items from their recordings."""

    def __init__(self, store: Store, formats: Iterable[str]) -> None:
        self._formats = tuple(formats)
        self._reader = AudioReader(store)

    def files(self, entry: PartEntry, item_id: str) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the content of each file of an item.

        Raises:
            CheckpointError: the recording is missing or damaged.
            RunError: ffmpeg fails.
        """
        if not entry.audio:
            return
        flac = self._reader.flac(entry)
        for form in self._formats:
            if form == "flac":
                yield item_file(item_id, form), flac
            elif form == "wav":
                yield item_file(item_id, form), _wav(flac)
            elif form != "m4b":
                name = item_file(item_id, form)
                with temporary_errors(name), tempfile.NamedTemporaryFile() as file:
                    arguments = ("-i", "pipe:0", "-map_metadata", "-1", *_BIT_EXACT, *_CODECS[form])
                    _ffmpeg(arguments, file.name, lambda pipe: pipe.write(flac))
                    encoded = file.read()
                yield name, encoded


def _wav(flac: bytes) -> bytes:
    samples, rate = soundfile.read(io.BytesIO(flac), dtype="int16")
    file = io.BytesIO()
    soundfile.write(file, samples, rate, "PCM_16", format="WAV")
    return file.getvalue()


def finish(store: Store, run: Run, entries: Entries, formats: Iterable[str], owner: Ownership, own: OwnFiles) -> None:
    """Write the files of all items together, unless somebody changed them, and delete the archives that no part names.

    Raises:
        CheckpointError: a recording is missing or damaged.
        RunError: ffmpeg fails.
    """
    reader = AudioReader(store)
    chapters, cues, archives, rate = list[_AudiobookChapter](), list[_TrackCue](), set[str](), 0
    at = 0.0
    for entry in entries:
        if entry.audio:
            line = json.loads(entry.line)
            archives.add(place_of(entry).archive)
            rate = rate or soundfile.info(io.BytesIO(reader.flac(entry))).samplerate
            if line.get(TITLE_KEY) or not chapters:
                chapters.append(_AudiobookChapter(str(line.get(TITLE_KEY) or line["id"]), at))
            at += line["duration"] + CHAPTER_PAUSE_S
            if line.get(CUE_END) is not None:
                cues.append(_TrackCue(line[CUE_START], line["duration"]))
    if "m4b" in formats and chapters:
        _put(store, owner, own, BOOK, lambda path: _write_book(path, _decoded(reader, entries), rate, chapters, at))
    if cues:
        spoken = _decoded(reader, entries, only_cues=True)
        _put(store, owner, own, TRACK, lambda path: _write_track(path, spoken, rate, cues))
    erase_orphans(store, run, owner, archives)


@dataclass(frozen=True, slots=True)
class _AudiobookChapter:
    """A chapter of an audiobook."""

    title: str
    start: float
    """Seconds from the beginning of the book."""


@dataclass(frozen=True, slots=True)
class _TrackCue:
    """A recording that has its time in a track."""

    start: float
    duration: float


def _decoded(reader: AudioReader, entries: Entries, only_cues: bool = False) -> Iterator[Pcm]:
    """Yield the samples of all recordings, or of those of cues, in the order of the list."""
    for entry in entries:
        if entry.audio and not (only_cues and json.loads(entry.line).get(CUE_END) is None):
            samples: Pcm = soundfile.read(io.BytesIO(reader.flac(entry)), dtype="int16")[0]
            yield samples


def _put(store: Store, owner: Ownership, own: OwnFiles, name: str, write: Callable[[str], None]) -> None:
    """Write or replace a file of OUT that a function writes to a local path, unless somebody has changed it."""
    with temporary_folder(name) as folder:
        path = os.path.join(folder, os.path.basename(name))
        write(path)
        with open(path, "rb") as file:
            wanted, present = hashlib.file_digest(file, "sha256").hexdigest(), digest_of(store, name)
            if present.sha256 == wanted:
                return
            if present.bytes and not own.has(name, present.sha256):
                own.leave(name)
                return
            own.record([(name, wanted)])
            file.seek(0)
            store.write(name, owner.checked(iter(lambda: file.read(_BLOCK_BYTES), b"")), durable=False)


def _write_book(path: str, recordings: Iterable[Pcm], rate: int, chapters: list[_AudiobookChapter], end: float) -> None:
    """Write an audiobook: AAC in MP4 with chapters."""
    ends = [*(chapter.start for chapter in chapters[1:]), end]
    lines = [";FFMETADATA1"]
    for chapter, chapter_end in zip(chapters, ends, strict=True):
        title = "".join(f"\\{character}" if character in "=;#\\" else character for character in chapter.title)
        times = f"START={round(1000 * chapter.start)}\nEND={round(1000 * chapter_end)}"
        lines.append(f"[CHAPTER]\nTIMEBASE=1/1000\n{times}\ntitle={' '.join(title.split())}")
    metadata = f"{path}.txt"
    with open(metadata, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    pause = np.zeros(round(CHAPTER_PAUSE_S * rate), np.int16)

    def feed(pipe: IO[bytes]) -> None:
        for samples in recordings:
            pipe.write(samples.tobytes())
            pipe.write(pause.tobytes())

    source = ("-f", "s16le", "-ar", str(rate), "-ac", "1", "-i", "pipe:0", "-i", metadata)
    chaptered = ("-map", "0:a", "-map_metadata", "1", "-map_chapters", "1")
    _ffmpeg((*source, *chaptered, *_BIT_EXACT, *_CODECS["m4b"]), path, feed)


def _write_track(path: str, recordings: Iterable[Pcm], rate: int, cues: list[_TrackCue]) -> None:
    """Write the recordings of cues at their times. Where one overlaps the one before, both are heard."""
    length = max(round((cue.start + cue.duration) * rate) for cue in cues) + 1
    with open(f"{path}.pcm", "wb") as file:  # without room on the disk, a write to mapped memory ends the process
        os.posix_fallocate(file.fileno(), 0, length * np.dtype(np.int16).itemsize)
    track = np.memmap(file.name, np.int16, "r+")  # may be larger than the memory
    for cue, samples in zip(cues, recordings, strict=True):
        start = round(cue.start * rate)
        part = track[start : start + len(samples)]
        part[:] = np.clip(part.astype(np.int32) + samples[: len(part)], -(1 << 15), (1 << 15) - 1)
    try:
        soundfile.write(path, track, rate, "PCM_16", format="FLAC")
    except soundfile.LibsndfileError as e:  # it does not say which error of the disk this is
        raise OSError(str(e)) from e


def _ffmpeg(arguments: Iterable[str], path: str, feed: Callable[[IO[bytes]], object]) -> None:
    """Run ffmpeg.

    Args:
        arguments: its arguments, without the file that it writes.
        path: that file. It is no pipe, because the lengths in its header are written last.
        feed: writes its input.

    Raises:
        OSError: the disk is full.
        RunError: it fails.
    """
    command = [ffmpeg.executable(), "-nostdin", "-v", "error", "-y", *arguments, path]
    with open(os.memfd_create("errors"), "w+b") as errors:  # the disk of temporary files may be full
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors, env=for_program(os.environ))
        assert process.stdin is not None
        with process, contextlib.suppress(BrokenPipeError):  # ffmpeg has ended, and its message says why
            feed(process.stdin)
            process.stdin.close()
        errors.seek(0)
        if process.returncode:
            ffmpeg.check_disk(messages := errors.read())
            raise RunError(f"ffmpeg cannot encode a recording: {messages.decode(errors='replace').strip()[-500:]}")
