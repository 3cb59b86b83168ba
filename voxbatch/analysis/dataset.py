"""Write the recordings and the transcripts of a run as a data set for training, in the layout of its readers.

    export_dataset(store, "gs://sets/calls", DatasetOptions())   →   train/train-000000.tar, …, dataset.json

The shards follow from the committed transcripts alone: each has up to SHARD_S seconds of cuts, in the order of the
list. Its files are created if they are absent, and their bytes follow from its cuts. So an export that was killed
continues, and writes the same files. `dataset.json` comes first, and its digest is that of all cuts: an export of other
cuts to the same place is refused.

Recordings are decoded here, and not in the confined processes of a run, which has decoded all of them before.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import chain, groupby
from typing import Any

import numpy as np

from voxbatch.analysis.cuts import SPLITS, Cut, cuts_of
from voxbatch.analysis.dataset_options import DatasetOptions
from voxbatch.audio.waveforms import decode
from voxbatch.errors import AudioError, ConfigError
from voxbatch.manifest import PathPolicy
from voxbatch.output import run_file
from voxbatch.output.entries import Entries
from voxbatch.output.lines import parse_line
from voxbatch.output.run_file import Run
from voxbatch.output.stored_json import json_bytes
from voxbatch.records import SAMPLING_RATE, Samples, Waveform
from voxbatch.speech.sound import flac
from voxbatch.storage import Store, Stores, parallel_map

SHARD_S = 3600.0
"""Seconds of audio in a shard: 60 to 100 MB of FLAC at 16 kHz, which is held in memory."""
MAX_THREADS = 4
"""Number of shards that are made at a time, at most."""
DESCRIPTION = "dataset.json"
_VERSION = 1
_ANYWHERE = PathPolicy(allow_outside=True)
"""The paths of a run were checked when its manifest was read."""


@dataclass(frozen=True, slots=True)
class SplitShard:
    """Consecutive cuts of a split."""

    split: str
    number: int
    cuts: Sequence[Cut]


@dataclass(slots=True)
class Exported:
    """The numbers of a data set."""

    shards: Counter[str] = field(default_factory=Counter)
    cuts: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    """By the split."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of cuts by the reason, in words that follow "cuts"."""


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
    run.products.check_data_set(store.place)
    exported, digest = Exported(), hashlib.sha256(repr((_VERSION, shard_s)).encode())
    entries = Entries(store, run)  # listed once: the run may go on
    for shard in _shards(store, run, entries, options, shard_s, exported.left_out):
        exported.shards[shard.split] += 1
        exported.cuts[shard.split] += len(shard.cuts)
        exported.seconds[shard.split] += sum(cut.duration for cut in shard.cuts)  # type: ignore[assignment]
        digest.update(repr(shard).encode("utf-8", "surrogatepass"))
    if not exported.cuts:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in exported.left_out.most_common())
        raise ConfigError(f"{store.place}: no cut is left for a data set ({reasons or 'no transcript has words'})")
    target = stores.out(place)
    target.prepare()
    _reserve(target, options.to, exported, digest.hexdigest())
    unreadable = parallel_map(
        min(MAX_THREADS, len(os.sched_getaffinity(0))),
        partial(_write, target, options.to, exported.shards, run, stores),
        _shards(store, run, entries, options, shard_s, Counter()),
    )
    if num_unreadable := sum(unreadable):
        exported.left_out["whose recording cannot be read any more"] = num_unreadable
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


def _reserve(target: Store, layout: str, exported: Exported, digest: str) -> None:
    """Create the description of a data set, or compare it with the one that is there.

    Raises:
        ConfigError: the place has another data set.
    """
    splits = {
        split: {"shards": shards, "cuts": exported.cuts[split], "seconds": round(exported.seconds[split], 3)}
        for split, shards in sorted(exported.shards.items())
    }
    description = {"version": _VERSION, "layout": layout, "sampling_rate": SAMPLING_RATE, "splits": splits}
    content = json_bytes({**description, "digest": digest}, indent=2) + b"\n"
    if not target.create(DESCRIPTION, [content]) and target.read(DESCRIPTION) != content:
        advice = "the run has other transcripts now, or other options are given; choose another place with -o"
        raise ConfigError(f"{target.place} has another data set, whose shards stay as they are: {advice}")


def _write(target: Store, layout: str, shards: Counter[str], run: Run, stores: Stores, shard: SplitShard) -> int:
    """Create the files of a shard, unless they are there. Return the number of cuts that cannot be read."""
    write, names = _FILES[layout]
    paths = [name.format(split=shard.split, number=shard.number, count=shards[shard.split]) for name in names]
    if all(map(target.exists, paths)):
        return 0
    utterances = list[Utterance]()
    for (place, channel), cuts in groupby(shard.cuts, lambda cut: (cut.recording, cut.channel)):
        utterances += _decoded(place, channel, sorted(cuts, key=lambda cut: cut.offset), run, stores)
    for path, content in zip(paths, write(shard, utterances), strict=True):
        target.create(path, [content])
    return len(shard.cuts) - len(utterances)


Utterance = tuple[Cut, bytes]
"""A cut with its duration as decoded, and its FLAC file."""


def _decoded(place: str, channel: int | None, cuts: Sequence[Cut], run: Run, stores: Stores) -> Iterator[Utterance]:
    """Yield the cuts of a recording, if it can be read. It is read once, from its first cut to its last."""
    audio = _ANYWHERE.resolve(place, os.getcwd())
    begin, end = cuts[0].offset, max(cut.offset + cut.duration for cut in cuts)
    try:
        with closing(stores.recording(audio)) as recording:
            blocks = decode(
                recording,
                audio,
                offset=begin,
                duration=end - begin,
                channel=channel,
                audio_stream=run.identity.get("audio_stream"),
                language=cuts[0].lang,
            )
            spans = [(round(cut.offset * SAMPLING_RATE), round(cut.duration * SAMPLING_RATE)) for cut in cuts]
            for cut, samples in zip(cuts, _slices(blocks, round(begin * SAMPLING_RATE), spans), strict=True):
                if len(samples):
                    yield replace(cut, duration=len(samples) / SAMPLING_RATE), flac(samples, SAMPLING_RATE)
    except AudioError as error:
        if error.retryable:
            raise


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


def _facts(cut: Cut, *without: str) -> dict[str, Any]:
    """Return a cut as values for JSON. `offset` is that in the recording, and the file of a cut begins with the cut."""
    facts = asdict(cut)
    facts |= {"recording_offset": facts.pop("offset"), "words": list(facts["words"])}
    return {name: value for name, value in facts.items() if name not in ("split", *without)}


def _tar(members: Iterable[tuple[str, bytes]]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)  # without a time or an owner
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def _json_lines(rows: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json_bytes(row) + b"\n" for row in rows)


def _webdataset(shard: SplitShard, utterances: Sequence[Utterance]) -> Iterator[bytes]:
    """Yield a tar with NAME.flac and NAME.json for each cut."""
    members = (((f"{cut.id}.flac", audio), (f"{cut.id}.json", json_bytes(_facts(cut)))) for cut, audio in utterances)
    yield _tar(chain.from_iterable(members))


def _nemo(shard: SplitShard, utterances: Sequence[Utterance]) -> Iterator[bytes]:
    """Yield a tar of recordings and the lines of its manifest, as NeMo reads them with `shard_manifests`."""
    yield _tar((f"{cut.id}.flac", audio) for cut, audio in utterances)
    yield _json_lines(
        {"audio_filepath": f"{cut.id}.flac", **_facts(cut, "id"), "shard_id": shard.number} for cut, _ in utterances
    )


def _shar(shard: SplitShard, utterances: Sequence[Utterance]) -> Iterator[bytes]:
    """Yield a tar with the recording of each cut and its description, and the cuts, as Lhotse Shar has them."""
    recordings = [_lhotse_recording(cut) for cut, _ in utterances]
    members = (
        ((f"{cut.id}.flac", audio), (f"{cut.id}.json", json_bytes(recording)))
        for (cut, audio), recording in zip(utterances, recordings, strict=True)
    )
    yield _tar(chain.from_iterable(members))
    rows = (_lhotse_cut(cut, recording) for (cut, _), recording in zip(utterances, recordings, strict=True))
    yield gzip.compress(_json_lines(rows), mtime=0)


def _lhotse_recording(cut: Cut) -> dict[str, Any]:
    return {
        "id": cut.id, "sources": [{"type": "shar", "channels": [0], "source": ""}], "sampling_rate": SAMPLING_RATE,
        "num_samples": round(cut.duration * SAMPLING_RATE), "duration": cut.duration, "channel_ids": [0],
    }  # fmt: skip


def _lhotse_cut(cut: Cut, recording: dict[str, Any]) -> dict[str, Any]:
    place = {"id": cut.id, "start": 0.0, "duration": cut.duration, "channel": 0}
    words = [
        [word["word"], word["start"], round(word["end"] - word["start"], 3), word["confidence"]] for word in cut.words
    ]
    supervision = {
        **place, "recording_id": cut.id, "text": cut.text, "language": cut.lang, "speaker": cut.speaker,
        **({"alignment": {"word": words}} if words else {}),
        "custom": _facts(cut, "id", "duration", "text", "lang", "speaker", "words", "channel"),
    }  # fmt: skip
    return {**place, "supervisions": [supervision], "recording": recording, "type": "MonoCut"}


def _parquet(shard: SplitShard, utterances: Sequence[Utterance]) -> Iterator[bytes]:
    """Yield a table with the recordings in it, as Hugging Face's datasets write them."""
    import pyarrow as pa
    from pyarrow import parquet

    word = pa.struct(
        [("word", pa.string()), ("start", pa.float64()), ("end", pa.float64()), ("confidence", pa.float64())]
    )
    audio = {"_type": "Audio", "sampling_rate": SAMPLING_RATE}
    schema = pa.schema(
        [
            ("id", pa.string()), ("audio", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            ("duration", pa.float64()), ("text", pa.string()), ("lang", pa.string()), ("speaker", pa.string()),
            ("confidence", pa.float64()), ("agree", pa.bool_()), ("words", pa.list_(word)),
            ("recording", pa.string()), ("channel", pa.int64()), ("recording_offset", pa.float64()),
        ],
        {"huggingface": json.dumps({"info": {"features": {"audio": audio}}})},
    )  # fmt: skip
    rows = [{**_facts(cut), "audio": {"bytes": file, "path": f"{cut.id}.flac"}} for cut, file in utterances]
    sink = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows, schema), sink, row_group_size=_ROWS_OF_GROUP, compression="zstd")
    yield sink.getvalue()


_ROWS_OF_GROUP = 100
"""Rows of a row group, as Hugging Face's datasets write them with audio: a reader holds one group."""


Write = Callable[[SplitShard, Sequence[Utterance]], Iterator[bytes]]
_FILES: Mapping[str, tuple[Write, tuple[str, ...]]] = {
    "webdataset": (_webdataset, ("{split}/{split}-{number:06}.tar",)),
    "nemo-tarred": (_nemo, ("{split}/audio_{number}.tar", "{split}/manifest_{number}.json")),
    "shar": (_shar, ("{split}/recording.{number:06}.tar", "{split}/cuts.{number:06}.jsonl.gz")),
    "hf": (_parquet, ("data/{split}-{number:05}-of-{count:05}.parquet",)),
}
"""The layouts by their names: the function that gives the files of a shard, and the names of the files, in order."""
