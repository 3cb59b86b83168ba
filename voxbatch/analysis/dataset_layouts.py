"""The layouts of a data set: the files of a shard as WebDataset, NeMo, Lhotse and Hugging Face's datasets read them."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from voxbatch.analysis.cuts import Cut
from voxbatch.output.stored_json import json_bytes
from voxbatch.records import SAMPLING_RATE


@dataclass(frozen=True, slots=True)
class SplitShard:
    """Consecutive cuts of a split."""

    split: str
    number: int
    cuts: Sequence[Cut]


Utterance = tuple[Cut, bytes]
"""A cut with its duration as decoded, and its FLAC file."""


def _facts(cut: Cut, *without: str) -> dict[str, Any]:
    """Return a cut as values for JSON. `offset` is that in the recording, and the file of a cut begins with the cut."""
    facts = asdict(cut)
    facts |= {"recording_offset": facts.pop("offset"), "words": list(facts["words"])}
    return {name: value for name, value in facts.items() if name not in (*_NO_FACTS, *without)}


_NO_FACTS = ("split", "heard_to", "heard_all")


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
LAYOUT_FILES: Mapping[str, tuple[Write, tuple[str, ...]]] = {
    "webdataset": (_webdataset, ("{split}/{split}-{number:06}.tar",)),
    "nemo-tarred": (_nemo, ("{split}/audio_{number}.tar", "{split}/manifest_{number}.json")),
    "shar": (_shar, ("{split}/recording.{number:06}.tar", "{split}/cuts.{number:06}.jsonl.gz")),
    "hf": (_parquet, ("data/{split}-{number:05}-of-{count:05}.parquet",)),
}
"""The layouts by their names: the function that gives the files of a shard, and the names of the files, in order."""
