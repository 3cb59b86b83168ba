"""Write the recordings and the transcripts of a run as a data set for training, in the layout of its readers.

    export_dataset(store, "gs://sets/calls", DatasetOptions())   →   train/train-000000.tar, …, dataset.json

The shards follow from the committed transcripts alone: each has up to SHARD_S seconds of cuts, in the order of the
list. Its files are created if they are absent, and their bytes follow from its cuts. So an export that was killed
continues, and writes the same files. `dataset.json` comes first, and its digest is that of all cuts: an export of other
cuts to the same place is refused. At the end, it gets the numbers of cuts that are there.

    _digests/train-000000.digest  the checksums of the files of a shard, and its numbers: written after these files

A shard whose files have these checksums is finished. The files of any other are made again, and replaced if they
differ. A recording that is gone, or that has another length than it had, gives no cut.

Recordings are decoded here, and not in the confined processes of a run, which has decoded all of them before.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from itertools import groupby

import numpy as np

from voxbatch.analysis.cuts import SPLITS, Cut, cuts_of
from voxbatch.analysis.dataset_layouts import LAYOUT_FILES, SplitShard, Utterance
from voxbatch.analysis.dataset_options import BY_SPEAKER, DatasetOptions
from voxbatch.audio.waveforms import decode
from voxbatch.errors import AudioError, ConfigError
from voxbatch.manifest import PathPolicy
from voxbatch.output import run_file
from voxbatch.output.entries import Entries
from voxbatch.output.lines import parse_line
from voxbatch.output.run_file import Run
from voxbatch.output.stored_json import Count, Number, json_bytes, read_json
from voxbatch.records import SAMPLING_RATE, Samples, Waveform
from voxbatch.speech.sound import flac
from voxbatch.storage import Store, Stores, parallel_map

SHARD_S = 3600.0
"""Seconds of audio in a shard: 60 to 100 MB of FLAC at 16 kHz, which is held in memory."""
MAX_THREADS = 4
"""Number of shards that are made at a time, at most."""
LENGTH_TOLERANCE_S = 0.1
"""Seconds by which the length of a recording may differ: a decoder that seeks to a cut may be off by a frame or two."""
DESCRIPTION, DIGESTS = "dataset.json", "_digests"
_VERSION = 1
_ANYWHERE = PathPolicy(allow_outside=True)
"""The paths of a run were checked when its manifest was read."""


@dataclass(slots=True)
class Exported:
    """The numbers of a data set."""

    shards: Counter[str] = field(default_factory=Counter)
    cuts: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    """By the split."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of cuts by the reason, in words that follow "cuts"."""
    unnamed: int = 0
    """Number of cuts without a speaker, of those that are divided by speaker."""
    damaged: list[str] = field(default_factory=list)
    """Files that were not as an earlier export wrote them, and are written again."""

    def add(self, split: str, cuts: int, seconds: float) -> None:
        """Add a shard."""
        self.shards[split] += 1
        self.cuts[split] += cuts
        self.seconds[split] += seconds  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """The record of a shard that is written."""

    files: Mapping[str, str]
    """SHA-256 of each file in hexadecimal digits, by its name."""
    cuts: Count
    seconds: Number
    left_out: Mapping[str, Count]
    """See Exported."""
    damaged: Sequence[str] = ()
    """See Exported. Not stored."""

    def to_bytes(self) -> bytes:
        """Return the content of its file."""
        return json_bytes({name: value for name, value in asdict(self).items() if name != "damaged"}) + b"\n"


def export_dataset(
    store: Store, place: str, options: DatasetOptions, stores: Stores, shard_s: float = SHARD_S
) -> Exported:
    """Write the data set of what the run in OUT has committed.

    Raises:
        ConfigError: OUT has no run with transcripts, pyarrow is missing, no cut is left, or `place` has another data
            set.
        CheckpointError: a part is damaged.
        StorageError: OUT or a recording cannot be read, or `place` cannot be written.
    """
    if options.to == "hf" and find_spec("pyarrow") is None:
        raise ConfigError("--to hf writes Parquet, and pyarrow is missing; pip install 'voxbatch[parquet]'")
    run = run_file.read_existing(store)
    run.check_reader("export", store.place)
    planned, digest = Exported(), hashlib.sha256(repr((_VERSION, shard_s)).encode())
    entries = Entries(store, run)  # listed once: the run may go on
    for shard in _shards(store, run, entries, options, shard_s, planned.left_out):
        planned.add(shard.split, len(shard.cuts), sum(cut.duration for cut in shard.cuts))
        digest.update(repr(shard).encode("utf-8", "surrogatepass"))
        if options.split_by == BY_SPEAKER:
            planned.unnamed += sum(cut.speaker is None for cut in shard.cuts)
    if not planned.cuts:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in planned.left_out.most_common())
        raise ConfigError(f"{store.place}: no cut is left for a data set ({reasons or 'no transcript has words'})")
    target = stores.out(place)
    target.prepare()
    _reserve(target, options.to, planned, digest.hexdigest())
    exported = Exported(left_out=planned.left_out, unnamed=planned.unnamed)

    def written(shard: SplitShard) -> tuple[str, ShardRecord]:
        return shard.split, _write(target, options.to, planned.shards, run, stores, shard)

    shards = _shards(store, run, entries, options, shard_s, Counter())
    for split, record in parallel_map(min(MAX_THREADS, len(os.sched_getaffinity(0))), written, shards):
        exported.add(split, record.cuts, record.seconds)
        exported.left_out.update(record.left_out)
        exported.damaged += record.damaged
    if target.read(DESCRIPTION) != (content := _description(options.to, exported, digest.hexdigest())):
        target.write(DESCRIPTION, [content])
    return exported


def _shards(
    store: Store, run: Run, entries: Entries, options: DatasetOptions, shard_s: float, left_out: Counter[str]
) -> Iterator[SplitShard]:
    """Yield the shards of all splits, each when it is full, and then the last one of each split."""
    numbers, waiting = Counter[str](), {split: list[Cut]() for split in SPLITS}
    waiting_s = dict.fromkeys(SPLITS, 0.0)
    for entry in entries:
        if entry.kind != "transcript":
            continue
        for cut in cuts_of(parse_line(store, entry), run, options, left_out):
            cuts = waiting[cut.split]
            if cuts and waiting_s[cut.split] + cut.duration > shard_s:
                yield SplitShard(cut.split, numbers[cut.split], tuple(cuts))
                numbers[cut.split] += 1
                cuts.clear()
                waiting_s[cut.split] = 0.0
            cuts.append(cut)
            waiting_s[cut.split] += cut.duration
    yield from (SplitShard(split, numbers[split], tuple(cuts)) for split, cuts in waiting.items() if cuts)


def _description(layout: str, exported: Exported, digest: str) -> bytes:
    """Return the content of the description of a data set."""
    splits = {
        split: {"shards": shards, "cuts": exported.cuts[split], "seconds": round(exported.seconds[split], 3)}
        for split, shards in sorted(exported.shards.items())
    }
    description = {"version": _VERSION, "layout": layout, "sampling_rate": SAMPLING_RATE, "splits": splits}
    return json_bytes({**description, "digest": digest}, indent=2) + b"\n"


@dataclass(frozen=True, slots=True)
class _Description:
    """The part of a description that does not depend on the recordings."""

    version: int
    layout: str
    digest: str


def _reserve(target: Store, layout: str, planned: Exported, digest: str) -> None:
    """Create the description of a data set, or compare it with the one that is there.

    Raises:
        ConfigError: the place has another data set.
    """
    if target.create(DESCRIPTION, [_description(layout, planned, digest)]):
        return
    try:
        present = read_json(target.read(DESCRIPTION) or b"", _Description)
    except ValueError:
        present = None
    if present != _Description(_VERSION, layout, digest):
        advice = "the run has other transcripts now, or other options are given; choose another place with -o"
        raise ConfigError(f"{target.place} has another data set, whose shards stay as they are: {advice}")


def _write(
    target: Store, layout: str, shards: Counter[str], run: Run, stores: Stores, shard: SplitShard
) -> ShardRecord:
    """Write the files of a shard, unless they are there as its record says."""
    write, names = LAYOUT_FILES[layout]
    paths = [name.format(split=shard.split, number=shard.number, count=shards[shard.split]) for name in names]
    record_name = f"{DIGESTS}/{shard.split}-{shard.number:06}.digest"
    damaged = list[str]()
    with suppress(ValueError):
        record = read_json(target.read(record_name) or b"", ShardRecord)
        contents = {path: target.read(path) for path in paths}
        present = {path: content for path, content in contents.items() if content is not None}
        damaged = [path for path, content in present.items() if _sha256(content) != record.files.get(path)]
        if not damaged and len(present) == len(paths):
            return record
        del contents, present
    utterances, left_out = list[Utterance](), Counter[str]()
    for (place, channel), cuts in groupby(shard.cuts, lambda cut: (cut.recording, cut.channel)):
        chosen = sorted(cuts, key=lambda cut: cut.offset)
        try:
            utterances += _decoded(place, channel, chosen, run, stores)
        except _Unusable as error:
            left_out[str(error)] += len(chosen)
    files = dict(zip(paths, write(shard, utterances), strict=True))
    for path, content in files.items():
        if not target.create(path, [content]) and target.read(path) != content:
            target.write(path, [content])
    seconds = sum(cut.duration for cut, _ in utterances)
    digests = {path: _sha256(content) for path, content in files.items()}
    record = ShardRecord(files=digests, cuts=len(utterances), seconds=seconds, left_out=dict(left_out))
    if not target.create(record_name, [record.to_bytes()]):
        target.write(record_name, [record.to_bytes()])
    return replace(record, damaged=damaged)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Unusable(Exception):
    """A recording that is not as it was. The message follows "cuts"."""


def _decoded(place: str, channel: int | None, cuts: Sequence[Cut], run: Run, stores: Stores) -> list[Utterance]:
    """Return the cuts of a recording. It is read once, from its first cut to the end of what was transcribed.

    Raises:
        _Unusable: it cannot be read any more, or it is not as long as it was: the texts are perhaps not those of its
            audio.
    """
    audio = _ANYWHERE.resolve(place, os.getcwd())
    begin, end = cuts[0].offset, max(cut.heard_to for cut in cuts)
    heard_all, num_samples = any(cut.heard_all for cut in cuts), 0

    def counted(blocks: Iterator[Waveform]) -> Iterator[Waveform]:
        nonlocal num_samples
        for block in blocks:
            num_samples += len(block.samples)
            yield block

    try:
        with closing(stores.recording(audio)) as recording:
            blocks = counted(
                decode(
                    recording,
                    audio,
                    offset=begin,
                    duration=None if heard_all else end - begin,
                    channel=channel,
                    audio_stream=run.identity.get("audio_stream"),
                    language=cuts[0].lang,
                )
            )
            spans = [(round(cut.offset * SAMPLING_RATE), round(cut.duration * SAMPLING_RATE)) for cut in cuts]
            utterances = [
                (replace(cut, duration=len(samples) / SAMPLING_RATE), flac(samples, SAMPLING_RATE))
                for cut, samples in zip(cuts, _slices(blocks, round(begin * SAMPLING_RATE), spans), strict=True)
            ]
            deque(blocks, maxlen=0)
    except AudioError as error:
        if error.retryable:
            raise
        raise _Unusable("whose recording cannot be read any more") from error
    if abs(begin + num_samples / SAMPLING_RATE - end) > LENGTH_TOLERANCE_S:
        raise _Unusable("whose recording has another length than it had")
    return utterances


def _slices(blocks: Iterator[Waveform], at: int, spans: Iterable[tuple[int, int]]) -> Iterator[Samples]:
    """Yield the samples of each (start, number of samples), in the order of their starts. `at` is the position of the
    first block. A span that ends after the last block is shorter."""
    samples = np.zeros(0, np.float32)
    for start, count in spans:
        while at + len(samples) < start + count and (block := next(blocks, None)) is not None:
            samples = np.concatenate([samples, block.samples])
            passed = min(max(start - at, 0), len(samples))
            samples, at = samples[passed:], at + passed
        yield samples[max(start - at, 0) : max(start + count - at, 0)]
