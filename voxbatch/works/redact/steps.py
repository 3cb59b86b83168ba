"""The steps of a run that redacts.

The source is the log of another OUT, with its corrections; each of its transcripts becomes a row. The decode thread
keeps the samples of a recording until its end, and the main thread makes the copies: text and sound.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from voxbatch.config import Config
from voxbatch.decoding import Decoded, Message, Undecodable
from voxbatch.engines import EngineSpec, Feed
from voxbatch.engines.choice import EngineChoice, choose
from voxbatch.errors import ConfigError
from voxbatch.failure_kinds import KIND_KEY
from voxbatch.formats.json_formats import transcript_dict
from voxbatch.languages import DETECTED_LANGUAGE, primary_subtag
from voxbatch.manifest import PathPolicy, Source
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output import run_file
from voxbatch.output.entries import Entries
from voxbatch.output.layout import VERSION, item_file
from voxbatch.output.lines import line_bytes, parse_line
from voxbatch.output.lists import is_forgotten
from voxbatch.output.outcomes import read_transcript
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import Run
from voxbatch.output.stored_json import json_bytes
from voxbatch.records import SAMPLING_RATE, Chunk, Failure, Flag, Hypothesis, Item, Outcome, Transcript
from voxbatch.runner.shared import EventQueue, InProgress, PendingItem
from voxbatch.runner.steps import Decode, Outcomes, Started, Steps, Transcripts
from voxbatch.safe_text import counted
from voxbatch.sources.columns import Rows
from voxbatch.sources.manifest_file import converted
from voxbatch.speech.sound import flac
from voxbatch.storage import COPIED_OUT, Store
from voxbatch.storage.circuit_breaker import Reachable
from voxbatch.storage.temporary_files import temporary_file
from voxbatch.works.redact.answers import RULE, SecretAnswers
from voxbatch.works.redact.detector import find_secrets
from voxbatch.works.redact.engine import ENGINES, NAME
from voxbatch.works.redact.key import copied_id, keyed_hash, own_key
from voxbatch.works.redact.options import NONE, RedactionOptions
from voxbatch.works.redact.rules import PatternRule, RedactionRules, language_rules, load, own_name
from voxbatch.works.redact.sound import Pcm, cut_words, silenced, silent_spans
from voxbatch.works.redact.transcript import at_copy, labelled, pieces_of, redacted, without_speaker_names

if TYPE_CHECKING:
    from voxbatch.scoring.counts import ErrorCounts

_ROW_KEYS = (
    AUDIO_KEY, "offset", "duration", "channel", "lang", DETECTED_LANGUAGE, "pred_text", "words", "segments",
    "audio_duration", "confidence", "flags",
)  # fmt: skip
"""The keys of a transcript that a copy is made of. All others stay behind, because any may hold a secret."""


@dataclass(frozen=True, slots=True)
class RedactedItem(Transcript):
    """The copy of an item. Its times count from the beginning of the copy."""

    line: Mapping[str, Any] = field(default_factory=dict)
    """Its line in transcripts.jsonl. It has no value of the original line but those that cannot hold a secret."""
    flac: bytes = b""


def rows_of(store: Store, run: Run, options: RedactionOptions, key: bytes, answers: SecretAnswers | None) -> Rows:
    """Yield a row for each transcript of a run, with its position in the list. The key makes the hash of the row one
    that nobody can compute: see the module `key`."""
    for entry in Entries(store, run):
        if entry.kind != "transcript":
            continue
        line = parse_line(store, entry, run.products)
        row = {name: line[name] for name in _ROW_KEYS if line.get(name) is not None}
        if "words" in row and "segments" in row:
            item_id = copied_id(line["id"], key) if options.redacts("file_name") else line["id"]
            listed = {"answers": answers.of(line["id"], line["pred_text"])} if answers else {}
            yield entry.index + 1, {**row, **listed, "id": item_id, "key": key.hex()}


class Redact(Steps):
    """Redact the transcripts and recordings of a run."""

    engines = ENGINES
    skips_silence = False
    carries_over = False
    has_known_speed = False
    max_queued_events = 16

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.reads_recordings = self._own.sound != NONE
        self._pcm: dict[int, list[Pcm]] = {}
        """The samples of the items in progress. The decode thread adds an item, and the main thread removes it after
        its last message; each operation on a dict is atomic."""

    @property
    def _own(self) -> RedactionOptions:
        assert isinstance(self.options.own, RedactionOptions)
        return self.options.own

    def open(self, config: Config) -> Source:
        """See Steps. The source is the transcripts of an OUT as a manifest.

        Raises:
            ConfigError: there is no run, or a run of another kind.
        """
        if not isinstance(config.source, str):
            raise ConfigError(f"{len(config.source)} sources: voxbatch redact takes one OUT")
        options, store = self._own, config.stores.out(config.source, COPIED_OUT)
        run = run_file.read_existing(store)
        run.check_reader("redact", store.place)
        answers = SecretAnswers(options.answers, config.stores) if options.answers else None
        with Source(store.place, "/", temporary_file(store.place, ())) as nothing:
            source = converted(nothing, rows_of(store, run, options, own_key(store), answers), "/")
        source.id_root = ""  # the folder of the recordings stays out of the copies
        num_rows, notes = sum(1 for _ in source.lines()), [*(answers.notes() if answers else ())]
        num_missing = run.items - num_rows
        if num_missing:  # no later run has a transcript of what `voxbatch forget` has erased
            num_missing -= sum(is_forgotten(store, entry) for entry in Entries(store, run))
        if num_missing > 0:
            missing = counted(num_missing, "item")
            notes.append(f"{missing} of {store.place} without a transcript: left out; --update takes them later")
        source.note = "; ".join(notes)
        return source

    def path_policy(self) -> PathPolicy:
        """See Steps."""
        return PathPolicy(allow_outside=True)

    def choose_engine(self) -> EngineChoice:
        """See Steps."""
        return replace(choose(NAME, self.engines), reason="redaction by rules")

    def engine_options(self, engine: str) -> Mapping[str, str]:
        """See Steps: the digest of the rules decides the copies."""
        assert isinstance(self.options, Config)
        assert isinstance(self.options.source, str)
        key, stores = own_key(self.options.stores.out(self.options.source, COPIED_OUT)), self.options.stores
        return {"rules": keyed_hash(load(self._own.rules, stores).digest, key)}

    def messages(self, started: Started, decode: Decode, spec: EngineSpec, shared: InProgress) -> Iterator[Message]:
        """See Steps. Keep the samples of the chunks, which follow each other without an overlap."""
        if not self.reads_recordings:
            for item, _ in filter(None, started):
                yield Decoded(item.index, (), (), 0.0, Reachable("", 0.0))
            return
        for message in super().messages(started, decode, spec, shared):
            if isinstance(message, Undecodable):
                self._pcm.pop(message.item, None)
            if isinstance(message, Chunk):
                scaled = np.clip(np.rint(message.samples * 32768.0), -32768, 32767)
                self._pcm.setdefault(message.item, []).append(scaled.astype(np.int16))
            yield message

    def outcomes(self, spec: EngineSpec, feed: Feed, shared: InProgress, events: EventQueue) -> Outcomes:
        """See Steps."""
        return _Copies(self._own, load(self._own.rules, self.options.stores), self._pcm)

    def entry(
        self,
        item: Item,
        outcome: Any,
        spec: EngineSpec,
        lang: str | None,
        folder: str | None,
        counts: ErrorCounts | None,
    ) -> PartEntry:
        """See Steps."""
        return PartEntry(item.index, "transcript", line_bytes(outcome.line), flac=outcome.flac)

    def failure_entry(self, item: Item, failure: Failure, lang: str | None, folder: str | None) -> PartEntry:
        """See Steps. The message stays behind, because it may name the recording."""
        line = {
            AUDIO_KEY: item_file(item.id, "flac"), "lang": lang, "id": item.id, "line": item.line,
            "error": failure.error, KIND_KEY: failure.kind, "message": failure.kind.facts.words,
            "retryable": failure.retryable, "version": VERSION,
        }  # fmt: skip
        return PartEntry(item.index, "failure", json_bytes(line))


class _Copies(Transcripts):
    """The copies of items."""

    def __init__(self, options: RedactionOptions, rules: RedactionRules, pcm: dict[int, list[Pcm]]) -> None:
        super().__init__(())
        self._options, self._rules, self._pcm = options, rules, pcm

    def outcome(self, pending: PendingItem, decoded: Decoded) -> Outcome | None:
        """See Transcripts."""
        parts = self._pcm.pop(pending.item.index, [])
        if isinstance(hypotheses := pending.of_chunks(decoded, Hypothesis), Failure):
            return hypotheses
        samples = np.concatenate([np.zeros(0, np.int16), *parts])
        return redacted_item(pending.item, samples, decoded.seconds, self._rules, self._options)


def redacted_item(
    item: Item, samples: Pcm, seconds: float, rules: RedactionRules, options: RedactionOptions
) -> RedactedItem:
    """Return the copy of an item.

    Args:
        samples: its recording, mono at 16 kHz from its offset on. Empty without sound.
        seconds: length of the recording.
    """
    row = json.loads(item.row)
    original = read_transcript({"warnings": [], "flags": [], **row})
    if options.redacts("speaker_name"):
        original = without_speaker_names(original)
    pieces, lang = pieces_of(original), primary_subtag(item.lang or row.get("lang") or "") or None
    answers = [PatternRule(kind, RULE, own_name(text)) for kind, text in row.get("answers", ())]
    secrets = find_secrets(
        [piece.text for piece in pieces],
        [piece.speaker for piece in pieces],
        lang,
        replace(rules, patterns=[*rules.patterns, *answers]),
        [piece.confidence for piece in pieces],
    )
    secrets = [secret for secret in secrets if options.redacts(secret.kind)]
    hidden = [at for secret in secrets for at in secret.pieces]
    spans, words = silent_spans(pieces, hidden, options.margin), labelled(pieces, secrets)
    sound = flac(silenced(samples, spans, item.offset, options.sound), SAMPLING_RATE) if len(samples) else b""
    copy = redacted(original, words, item.offset)
    flags, fields = tuple(_moved(flag, item.offset) for flag in copy.flags), transcript_dict(copy)
    line = {
        AUDIO_KEY: item_file(item.id, "flac"), "lang": row.get("lang"), DETECTED_LANGUAGE: row.get(DETECTED_LANGUAGE),
        "id": item.id, "duration": round(seconds, 4) or None,
        "sha256": hashlib.sha256(sound).hexdigest() if sound else None,
        "pred_text": fields["text"], "words": fields["words"], "segments": fields["segments"],
        "audio_duration": fields["audio_duration"], "engine": NAME, "model": "voxbatch",
        "confidence": row.get("confidence"),
        "flags": [asdict(flag) for flag in flags], "warnings": list(copy.warnings),
        "redactions": [
            {
                "kind": word.secret.kind, "start": at_copy(word.start, item.offset),
                "end": at_copy(word.end, item.offset), "words": word.num_words, "rule": word.secret.rule,
                "is_checked": word.secret.is_checked,
            }
            for word in words if word.secret
        ],
        "cut_words": cut_words(pieces, hidden, spans), "has_names": bool(language_rules(lang).first_names),
        "version": VERSION,
    }  # fmt: skip
    facts = copy.audio_duration, (), copy.language, flags
    return RedactedItem(copy.text, copy.words, copy.segments, *facts, line=line, flac=sound)


def _moved(flag: Flag, offset: float) -> Flag:
    """Return a flag at its times in the copy, without its reason, which may quote the text."""
    start, end = (seconds if seconds is None else round(seconds - offset, 3) for seconds in (flag.start, flag.end))
    return Flag(flag.kind, flag.kind, start, end)
