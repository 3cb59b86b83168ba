"""Run texts to speak in place of recordings to transcribe: the steps that differ.

`check_speech` checks the voice and the licence. `pieces` makes the chunks of the decode thread: pieces of a text.
`Recordings` makes the outcomes of the main thread, and `recording_line` their output lines.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import Any

import numpy as np

from voxbatch import engines
from voxbatch.config import Config
from voxbatch.decoding import Decoded, Message, Undecodable
from voxbatch.engines import Engine, EngineSpec, Feed
from voxbatch.engines.choice import EngineChoice, choose
from voxbatch.errors import ConfigError
from voxbatch.failure_kinds import FailureKind
from voxbatch.manifest import PathPolicy, Source
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.layout import VERSION, item_file
from voxbatch.output.lines import manifest_keys, score_keys
from voxbatch.output.parts import PartEntry
from voxbatch.output.stored_json import json_bytes
from voxbatch.records import (
    MISHEARD,
    SAMPLING_RATE,
    Chunk,
    Failure,
    Flag,
    Item,
    Span,
    Speech,
    SpokenRecording,
    TextPiece,
)
from voxbatch.runner.shared import Encoded, EventQueue, InProgress, PendingItem, ThreadFailed
from voxbatch.runner.steps import Decode, Outcomes, Started, Steps
from voxbatch.speech.pieces import CHARACTERS_PER_SECOND, plain, split, unreadable
from voxbatch.storage.circuit_breaker import Reachable
from voxbatch.works.speak.listening import ListeningEngine, errors_heard, listener_of, piece_wer
from voxbatch.works.speak.options import SpeechOptions
from voxbatch.works.speak.texts import CUE_END, CUE_START, VOICE_KEY, TextPolicy, open_texts

MAX_CHARACTERS = 100_000
"""Characters of the longest text: two hours of speech, which are joined in memory."""
ENCODERS = 2
"""Threads that measure loudness and write FLAC: 20 ms of a core for 15 s of speech, mostly in native code that lets
other threads run. An H200 speaks 50 such pieces a second."""
MAX_ENCODING = 600 * 24_000
"""Samples of the recordings that are being encoded at a time; one recording may have more."""
WAIT_S = 0.05
"""Seconds between two looks whether rows in progress have left the memory."""
_EMPTY = np.zeros(0, np.float32)


def check_speech(options: SpeechOptions, spec: EngineSpec) -> None:
    """Check that the engine knows the voice, and that the licence of its model is accepted.

    Raises:
        ConfigError: it does not, or is not.
    """
    if options.voice not in (None, *spec.voices):
        known = ", ".join(spec.voices)
        raise ConfigError(f"--voice {options.voice}: the engine {spec.name} knows {known}")
    if is_non_commercial(spec.license) and not options.accept_licence:
        raise ConfigError(
            f"{spec.model} is licensed under {spec.license}, which forbids commercial use, also of the recordings: if "
            "you accept that, give --accept-licence, or set VOXBATCH_ACCEPT_LICENCE=true for all runs; or take "
            "--engine hibari"
        )


def is_non_commercial(license_: str) -> bool:
    """Return whether the name of a licence says that it forbids commercial use: "cc-by-nc-4.0" → True."""
    return "nc" in license_.lower().replace("-", " ").split()


def pieces(
    started: Iterable[tuple[Item, str | None] | None], options: SpeechOptions, max_hours: float, spec: EngineSpec
) -> Iterator[Message]:
    """Yield the pieces of each text as chunks, and then the final message of its item.

    Args:
        started: items with their languages; None for a pause.
    """
    for pair in started:
        if pair is None:
            time.sleep(WAIT_S)
            continue
        item, lang = pair
        text, row = item.text or "", json.loads(item.row)
        if failure := _failure(text, row, max_hours, spec):
            yield Undecodable(item.index, failure)
            continue
        longest_s = _cue_s(row)
        parts = split(text, lang or "en") if longest_s is None else [(text, 0.0)]
        spans = []
        for number, (part, pause_s) in enumerate(parts):
            length = round(len(part) / CHARACTERS_PER_SECOND * SAMPLING_RATE)
            spans.append(Span(0, length, 0, length))
            piece = TextPiece(part, _voice(row, options, spec), seed_of(options, item, number), pause_s, longest_s)
            yield Chunk(item.index, number, _EMPTY, spans[-1], lang, piece=piece)
        yield Decoded(item.index, tuple(spans), (), 0.0, Reachable("", 0.0))


def seed_of(options: SpeechOptions, item: Item, piece: int) -> int:
    """Return the seed of a piece, which no other piece and no order of the work changes."""
    digest = hashlib.blake2b(f"{options.seed} {piece} {item.id}".encode("utf-8", "surrogatepass"), digest_size=6)
    return int.from_bytes(digest.digest(), "little")


def _failure(text: str, row: dict[str, Any], max_hours: float, spec: EngineSpec) -> Failure | None:
    """Return why a text cannot be spoken, or None."""
    voice, hours = row.get(VOICE_KEY), len(text) / CHARACTERS_PER_SECOND / 3600
    if voice is not None and voice not in spec.voices:
        return Failure(FailureKind.VOICE, f"voice {voice!r} is unknown; known are {', '.join(spec.voices)}")
    if reason := unreadable(text, spec.scripts):
        return Failure(FailureKind.TEXT, f"{reason}; correct the text, or leave it out")
    if len(text) > MAX_CHARACTERS or hours > max_hours:
        size = f"the text has {len(text):,} characters, about {hours:.2g} hours"
        return Failure(FailureKind.TOO_LONG, f"{size}; divide it into texts of at most {MAX_CHARACTERS:,} characters")
    return None


def _voice(row: dict[str, Any], options: SpeechOptions, spec: EngineSpec) -> str:
    voice: str = row.get(VOICE_KEY) or options.voice or spec.voices[0]
    return voice


def _cue_s(row: dict[str, Any]) -> float | None:
    """Return the seconds of the cue that a text is spoken for; None without one."""
    start, end = row.get(CUE_START), row.get(CUE_END)
    return None if start is None or end is None else max(0.0, end - start)


def recording_line(item: Item, recording: SpokenRecording, engine: str, model: str, lang: str | None) -> dict[str, Any]:
    """Return the line of an item whose text was spoken: a line of a manifest that a run transcribes and scores.

    The line has `pred_text` and the errors of the text that was heard, if an engine listened.

    Args:
        lang: the language that was spoken.
    """
    heard: dict[str, Any] = {}
    if recording.heard is not None:
        counts = errors_heard(item.text or "", recording.heard, lang)
        heard = {"pred_text": recording.heard, **score_keys(counts)}
    return {
        **manifest_keys(item, None), "text": plain(item.text or ""), AUDIO_KEY: item_file(item.id, "flac"),
        "lang": lang, "id": item.id,
        "duration": recording.duration, "voice": recording.voice, "loudness": recording.loudness,
        "sha256": hashlib.sha256(recording.flac).hexdigest(), **heard,
        "segments": [{"text": part.text, "start": part.start, "end": part.end} for part in recording.segments],
        "audio_duration": recording.duration, "engine": engine, "model": model,
        "flags": [asdict(flag) for flag in recording.flags],
        "warnings": list(recording.warnings), "version": VERSION,
    }  # fmt: skip


class Recordings:
    """The outcomes of items whose texts are spoken. The main thread alone uses it. Threads encode the recordings, and
    each result is an event."""

    needs_sound = True

    def __init__(self, options: SpeechOptions, spec: EngineSpec, in_progress: InProgress, events: EventQueue) -> None:
        self._options, self._spec, self._encoders = options, spec, ThreadPoolExecutor(ENCODERS, "encoder")
        self._in_progress, self._events = in_progress, events

    def outcome(self, pending: PendingItem, decoded: Decoded) -> SpokenRecording | Failure | None:
        """Return the outcome of an item all of whose pieces have results, or None if a thread encodes the recording.

        If the threads have enough to do, this thread encodes the recording itself. So the memory stays bounded, and the
        engine waits.
        """
        speeches = pending.of_chunks(decoded, Speech)
        if isinstance(speeches, Failure):
            return speeches
        encoding, num_samples = self._in_progress.encoding, sum(len(speech.samples) for speech in speeches)
        if encoding and sum(encoding.values()) + num_samples > MAX_ENCODING:
            return self._recording(pending.item, speeches)
        encoding[pending.item.index] = num_samples
        self._encoders.submit(self._encode, pending.item, speeches)
        return None

    def _encode(self, item: Item, speeches: Sequence[Speech]) -> None:
        try:
            self._events.send(Encoded(item.index, self._recording(item, speeches)))
        except BaseException as e:  # noqa: BLE001 the main thread raises it again
            self._events.send(ThreadFailed(e))

    def _recording(self, item: Item, speeches: Sequence[Speech]) -> SpokenRecording:
        from voxbatch.speech import sound

        lang = item.lang or self._spec.only_language
        row, rate = json.loads(item.row), self._spec.sampling_rate
        samples, segments = sound.joined(speeches, rate, _cue_s(row))
        samples, loudness = sound.normalized(samples, rate, self._options.loudness)
        return SpokenRecording(
            flac=sound.flac(samples, rate),
            voice=_voice(row, self._options, self._spec),
            duration=round(len(samples) / rate, 4),
            loudness=loudness,
            segments=segments,
            warnings=tuple(warning for speech in speeches for warning in speech.warnings),
            heard=" ".join(speech.heard or "" for speech in speeches) if self._options.verify else None,
            flags=tuple(
                Flag(MISHEARD, f"WER {wer:.0%}: heard {speech.heard!r}", segment.start, segment.end)
                for speech, segment in zip(speeches, segments, strict=True)
                if (wer := piece_wer(speech, lang)) > self._options.max_wer
            ),
        )

    def end_questions(self, pending_items: Iterable[PendingItem]) -> None:
        """Do nothing: there are no questions."""

    def close(self) -> None:
        """End the threads."""
        self._encoders.shutdown(wait=False, cancel_futures=True)


class Speak(Steps):
    """Speak texts."""

    engines = engines.SPEECH_ENGINES
    reads_recordings = False
    carries_over = False
    has_known_speed = False
    max_queued_events = 16
    """The results have the samples: 20 MB."""

    @property
    def _speech(self) -> SpeechOptions:
        assert isinstance(self.options.own, SpeechOptions)
        return self.options.own

    def open(self, config: Config) -> Source:
        """See Steps."""
        if not isinstance(config.source, str):
            raise ConfigError(f"{len(config.source)} sources: voxbatch speak takes one; write one list of all texts")
        return open_texts(config.source, sys.stdin.buffer, config.stores)

    def path_policy(self) -> PathPolicy:
        """See Steps."""
        return TextPolicy()

    def choose_engine(self) -> EngineChoice:
        """See Steps."""
        return choose(self.options.engine, self.engines)

    def engine_options(self, engine: str) -> Mapping[str, str]:
        """See Steps."""
        options = self.options.engine_options
        return {**options, "task": "speak"} if engine == "vllm" else super().engine_options(engine)

    def check_engine(self, spec: EngineSpec) -> None:
        """See Steps."""
        check_speech(self._speech, spec)

    def size(self, audio_s: float, chunks: int) -> tuple[str, str]:
        """See Steps."""
        return "text", f"about {audio_s * CHARACTERS_PER_SECOND:,.0f} characters"

    def messages(self, started: Started, decode: Decode, spec: EngineSpec, shared: InProgress) -> Iterator[Message]:
        """See Steps."""
        return pieces(started, self._speech, self.options.max_hours, spec)

    def engine(self, engine: Engine, resources: ExitStack) -> Engine:
        """Return the engine; with --verify, one that hears what it has spoken."""
        if not self._speech.verify:
            return engine
        return ListeningEngine(engine, resources.enter_context(closing(listener_of(self.options))), self._speech)

    def outcomes(self, spec: EngineSpec, feed: Feed, shared: InProgress, events: EventQueue) -> Outcomes:
        """See Steps."""
        return Recordings(self._speech, spec, shared, events)

    def entry(
        self, item: Item, outcome: Any, spec: EngineSpec, lang: str | None, folder: str | None, counts: object
    ) -> PartEntry:
        """See Steps."""
        line = recording_line(item, outcome, spec.name, spec.model, lang)
        return PartEntry(item.index, "transcript", json_bytes(line), flac=outcome.flac)
