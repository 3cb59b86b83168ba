"""Program of a decoder process: receive tasks, prefetch their recordings, send chunks.

A failure to fetch a recording is sent with a report about the recording's place, which the parent process judges: see
circuit_breaker.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from multiprocessing.connection import Connection

from voxbatch.audio.ffmpeg import FFmpegKilledError
from voxbatch.decoding.excerpts import excerpts_of
from voxbatch.decoding.messages import Decoded, DecoderRefused, DecoderSettings, DecodeTask, Message, Undecodable
from voxbatch.decoding.voices import VoiceListener, cut_channels, without_echo
from voxbatch.errors import AudioError, EngineError, ItemError, StorageError
from voxbatch.failure_kinds import FailureKind
from voxbatch.process import confinement
from voxbatch.process.child import handle_stop_signals
from voxbatch.process.limits import find_limit
from voxbatch.records import SAMPLING_RATE, Chunk, Failure, Samples, Span, Waveform
from voxbatch.shared_samples import SharedSamples
from voxbatch.storage import LocalReadError, Stores, redacted
from voxbatch.storage.circuit_breaker import Unreachable, UnusableRecording, report_error, report_success
from voxbatch.storage.errors import UnusableObject
from voxbatch.storage.prefetch import Prefetch, Prefetcher
from voxbatch.storage.recording import Recording, RecordingChangedError
from voxbatch.storage.waits import longest_wait

MEMORY_LIMIT = 2 << 30
"""Bytes of private memory that a decoder may use. Blocks need a hundredth of it; a wrong header may demand more."""
MAX_SAMPLES_AHEAD = 1 << 20
"""Samples that wait for the parent at most, unless one chunk has more: a minute, or 4 MB."""
EXIT_TIMEOUT_S = 0.5
"""Seconds after the parent's end in which a decoder ends in order."""
MIN_BYTES_PER_S = 1000
"""Bytes of a second of audio in a file whose header is certain to tell its length. Lossless speech takes ten times as
many; a header that claims more seconds than that may be wrong, and its file is decoded."""
_Received = tuple[DecodeTask, Prefetch] | Exception | None
"""A task and its recording, the error that keeps the threads from fetching it, or None: the parent is gone."""


def main(connection: Connection) -> None:
    """Decode the tasks that arrive, in order, until the parent process ends.

    A stop signal to all processes of a run ends no decoder: its parent commits the finished items and then kills it.
    """
    handle_stop_signals(lambda *_: None)  # unlike SIG_IGN, ffmpeg does not inherit a handler
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    import voxbatch.audio.waveforms  # noqa: F401 an import error stops the decoder here, once, and not in each task

    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone
        try:
            settings: DecoderSettings = connection.recv()
            _confine()
            _decode_tasks(connection, settings.stores, Allowance(settings.received_fd))
        except (OSError, RuntimeError, MemoryError, AudioError) as e:
            if (limit := find_limit(e)) is None:
                raise
            connection.send(DecoderRefused(limit))
        except EngineError as e:
            connection.send(DecoderRefused(str(e)))


def _confine() -> None:
    """Let this process, which parses the files of strangers, change files only where its libraries must, and reach no
    other process. Landlock keeps its ffmpeg and other decoders from its memory, and lets its parent see its work in
    /proc, which the parent needs to tell a hang."""
    if not confinement.confine(confinement.decoder_limits()).landlock:
        confinement.hide_memory()


class Allowance:
    """The samples that this process may send before the parent receives them, which bounds memory.

    Args:
        received_fd: eventfd to which the parent adds the samples that it receives.
    """

    def __init__(self, received_fd: int) -> None:
        self._received_fd, self._num_samples = received_fd, 0
        """Number of samples that were sent and not received."""

    def take(self, num_samples: int) -> None:
        """Wait until so many samples may be sent. A chunk that is longer than the allowance is sent alone."""
        while self._num_samples and self._num_samples + num_samples > MAX_SAMPLES_AHEAD:
            self._num_samples -= os.eventfd_read(self._received_fd)
        self._num_samples += num_samples


def _decode_tasks(connection: Connection, stores: Stores, allowance: Allowance) -> None:
    received: queue.SimpleQueue[_Received] = queue.SimpleQueue()
    prefetcher = Prefetcher(stores.recording)
    threading.Thread(
        target=_receive_tasks, args=(connection, prefetcher, received), daemon=True, name="receive"
    ).start()
    connection.send(None)

    def heartbeat() -> None:
        """Say that this process waits for a store, and for which one if that is being retried."""
        connection.send(longest_wait())

    while (next_task := received.get()) is not None:
        if isinstance(next_task, Exception):
            raise next_task
        task, prefetch = next_task
        for message in _messages(task, prefetcher.opened(prefetch, heartbeat)):
            if isinstance(message, Chunk):
                allowance.take(len(message.samples))
                shared = SharedSamples.of(message.samples)
                connection.send(replace(message, audio=shared))
                shared.send(connection)
            else:
                connection.send(message)


def _receive_tasks(
    connection: Connection,
    prefetcher: Prefetcher,
    received: queue.SimpleQueue[_Received],
) -> None:
    """Receive tasks as they arrive, and begin to fetch their recordings. When the parent is gone, end this process."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            task: DecodeTask = connection.recv()
            try:
                received.put((task, prefetcher.start(task.audio)))
            except RuntimeError as e:  # the threads that fetch cannot start
                received.put(e)
    received.put(None)
    time.sleep(EXIT_TIMEOUT_S)  # the main thread fails to send its next message, and returns
    os.killpg(0, signal.SIGKILL)  # it waits for a store or is in native code; ffmpeg must end, too


def _messages(task: DecodeTask, opened: AbstractContextManager[Recording]) -> Iterator[Message]:
    """Yield the chunks of a task and its final message, which is the task's failure for any error."""
    spans: list[Span] = []
    warnings: list[str] = []
    listener = VoiceListener(task.diarization)
    recording: Recording | None = None
    try:
        with opened as recording:
            began = time.process_time()
            excerpts = _Excerpts(task, recording)
            for samples, span in excerpts.chunks(warnings, listener):
                index = len(spans)
                if index >= len(task.received):
                    yield Chunk(task.item, task.recording + index, samples, span, task.lang)
                elif span != task.received[index]:
                    raise RecordingChangedError(f"cannot decode {redacted(task.audio)}: it was replaced meanwhile")
                spans.append(span)
            if len(spans) < len(task.received):
                raise RecordingChangedError(f"cannot decode {redacted(task.audio)}: it was replaced meanwhile")
            turns = listener.turns()
            cpu_s = time.process_time() - began
            report = report_success(task.audio, recording.last_arrival)
            notes = tuple(dict.fromkeys([*recording.warnings, *warnings]))
            levels, claimed_s = listener.levels, excerpts.claimed_s
            yield Decoded(
                task.item, tuple(spans), notes, cpu_s, report, task.recording, levels, turns, claimed_s,
                listener.frame_rate, listener.aspect_ratio,
            )  # fmt: skip
    except (EOFError, BrokenPipeError, ConnectionResetError, EngineError):
        raise  # the parent or the process of the networks is gone
    except Exception as e:  # a bug in a decoder fails only this item, with the error in its message
        if find_limit(e) is not None:
            raise
        yield _failed(task, e, tuple(spans), recording)


def _is_changed(error: ItemError, spans: tuple[Span, ...]) -> bool:
    """Return whether another attempt would join two contents: chunks of the first one were sent."""
    return isinstance(error, RecordingChangedError) or (error.kind is FailureKind.CHANGED and bool(spans))


def _failed(task: DecodeTask, error: Exception, spans: tuple[Span, ...], recording: Recording | None) -> Undecodable:
    report = report_error(task.item, task.audio, error)
    match error:
        case ItemError():
            failure = Failure(error.kind, str(error), error.retryable)
        case StorageError():
            failure = Failure(error.kind, str(error), retryable=True)
        case MemoryError():
            failure = Failure(FailureKind.DECODER, f"{redacted(task.audio)} needs too much memory")
        case _:
            text = f"cannot decode {redacted(task.audio)}: {type(error).__name__}: {error}"
            failure = Failure(FailureKind.DECODER, text, retryable=True)
    retry = None
    if isinstance(report, Unreachable) and len(spans) <= len(task.received):  # no chunk was sent
        retry = task
    elif isinstance(error, ItemError) and error.retryable and not _is_changed(error, spans):
        retry = None if task.is_retry else replace(task, is_retry=True, received=spans)
    if report is None and retry is None and recording is not None:  # a damaged recording proves that its place answers
        report = report_success(task.audio, recording.last_arrival)
    return Undecodable(task.item, failure, report, retry, task.recording)


def chunks(
    task: DecodeTask, recording: Recording, warnings: list[str], listener: VoiceListener
) -> Iterator[tuple[Samples, Span]]:
    """Yield the chunks of one recording, decoded in this process.

    Raises:
        AudioError, FFmpegKilledError: see audio.decode.
        RecordingChangedError: the recording was changed while it was decoded.
        StorageError: the place that the recording is fetched from fails.
    """
    from voxbatch.audio.waveforms import decode

    try:
        _check_claimed_length(task, recording)
        waveforms = decode(
            recording,
            task.audio,
            offset=task.offset,
            duration=task.duration,
            channel=task.channel,
            audio_stream=task.audio_stream,
            channels=task.channels,
            language=task.lang,
            warn=warnings.append,
            tell_picture=listener.see,
        )
        try:
            blocks = without_echo(_limited(waveforms, task))
            yield from cut_channels(listener.heard(blocks), task.limit, task.overlap)
        except AudioError:
            recording.verify_unchanged()  # a file that is still being written may look damaged
            raise
        recording.verify_unchanged()
    except UnusableObject as e:
        raise UnusableRecording(str(e), e.kind, retryable=e.retryable) from e
    except LocalReadError as e:
        raise LocalReadError(f"cannot read {redacted(task.audio)}: {e}") from e
    except UnusableRecording:
        raise
    except (AudioError, FFmpegKilledError) as e:
        raise type(e)(f"cannot decode {redacted(task.audio)}: {e}", e.kind) from e


class _Excerpts:
    """Decodes the excerpts of a recording that a task asks for, or all of it."""

    def __init__(self, task: DecodeTask, recording: Recording):
        self._task, self._recording = task, recording
        self.claimed_s: float | None = None
        """See Decoded. It is known after the last chunk."""

    def chunks(self, warnings: list[str], listener: VoiceListener) -> Iterator[tuple[Samples, Span]]:
        """Yield the chunks; see the function `chunks`.

        A recording whose header does not tell the length, or is wrong about it, has one excerpt, at its beginning.
        """
        task, num_samples = self._task, 0
        claimed_s = 0.0 if task.excerpts is None else _claimed_length(task, self._recording)
        for excerpt in excerpts_of(task, claimed_s):
            try:
                for samples, span in chunks(excerpt, self._recording, warnings, listener):
                    num_samples += len(samples)
                    yield samples, span
            except AudioError as e:
                if e.kind is not FailureKind.NO_SUCH_PART:
                    raise
        if num_samples:
            self.claimed_s = claimed_s
            return
        for samples, span in chunks(task, self._recording, warnings, listener):
            if task.excerpts is not None and num_samples >= task.excerpts * task.limit:
                self.claimed_s = 0.0
                return
            num_samples += len(samples)
            yield samples, span


def _claimed_length(task: DecodeTask, recording: Recording) -> float:
    """Return the seconds of a task's audio by the header of its recording; 0 if the header does not tell."""
    from voxbatch.audio.waveforms import probe

    claimed_s = probe(recording) or 0.0
    return max(0.0, min(claimed_s - task.offset, math.inf if task.duration is None else task.duration))


def _check_claimed_length(task: DecodeTask, recording: Recording) -> None:
    """Refuse a recording that is certainly too long before any chunk of it is sent.

    Raises:
        AudioError: the header claims more than the limit, and the file is large enough for that.
    """
    max_s = task.max_samples / SAMPLING_RATE
    if recording.size < max_s * MIN_BYTES_PER_S or (task.duration is not None and task.duration <= max_s):
        return
    from voxbatch.audio.waveforms import probe

    claimed_s = probe(recording, certain=True)
    if claimed_s is None or recording.size < claimed_s * MIN_BYTES_PER_S:
        return
    wanted_s = min(claimed_s - task.offset, math.inf if task.duration is None else task.duration)
    if wanted_s > max_s:
        raise _too_long(f"{wanted_s / 3600:,.2f}", task)


def _limited(waveforms: Iterator[Waveform], task: DecodeTask) -> Iterator[Waveform]:
    """Yield the waveforms as long as they are not more than the task's `max_samples`.

    Raises:
        AudioError: there is more audio.
    """
    num_samples = 0
    for waveform in waveforms:
        num_samples += len(waveform.samples)
        if num_samples > task.max_samples:
            raise _too_long(f"more than {task.max_samples / SAMPLING_RATE / 3600:,.10g}", task)
        yield waveform


def _too_long(hours: str, task: DecodeTask) -> AudioError:
    most = f"{task.max_samples / SAMPLING_RATE / 3600:,.10g}"
    text = f"it has {hours} hours of audio, and at most {most} are allowed; {task.advice}"
    return AudioError(text, FailureKind.TOO_LONG)
