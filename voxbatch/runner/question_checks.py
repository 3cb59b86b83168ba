"""Check the lengths of the recordings of a run of questions before a model is loaded."""

from __future__ import annotations

import contextlib
import itertools

from voxbatch.audio import probe
from voxbatch.engines import EngineSpec
from voxbatch.errors import AudioError, ManifestError, StorageError
from voxbatch.manifest import PathPolicy, Source, items
from voxbatch.manifest.bad_lines import BadLines
from voxbatch.manifest.questions import AUDIOS_KEY
from voxbatch.records import Item
from voxbatch.storage import StoreOptions, is_remote, open_recording

MAX_PROBED = 1000
"""Number of local recordings without a duration in the manifest whose headers are read: a second or two. The item of a
further one that is too long fails when it is decoded."""


def check_lengths(
    source: Source, policy: PathPolicy, limit: int | None, spec: EngineSpec, store_options: StoreOptions
) -> None:
    """Check that the engine takes the recordings of each question.

    The lengths are those of the manifest, or else of the headers of local files. An unreadable header is no error here:
    the item fails when it is decoded.

    Args:
        source: a surveyed manifest.
        policy: the rules for its lines.
        limit: number of lines to read; None reads all.
        spec: the engine, which answers questions.
        store_options: access to the recordings.

    Raises:
        ManifestError: recordings are too long, or too many for the engine.
    """
    bad, probed = BadLines(), itertools.count()
    longest_s, total_s = (each / spec.sampling_rate for each in (spec.max_chunk_samples, spec.max_question_samples))
    for item in items(source, policy, limit):
        places = (item.audio, *item.further)
        if len(places) > spec.max_recordings:
            number = f"`{AUDIOS_KEY}` names {len(places)} recordings"
            bad.add(item.line, f"{number}, and model {spec.model} takes at most {spec.max_recordings} in one question")
            continue
        if item.duration is not None:
            lengths = [item.duration]
        else:
            local = [each for each in places if not is_remote(each) and next(probed) < MAX_PROBED]
            lengths = [_header_s(each, item, store_options) for each in local]
        if max(lengths, default=0) > longest_s:
            seen = f"a recording has {max(lengths) / 60:.1f} minutes, and one question takes {longest_s / 60:.3g}"
            bad.add(item.line, f"{seen}; ask about its parts with --map-reduce, or give `offset` and `duration`")
        elif sum(lengths) > total_s:
            seen = f"the recordings have {sum(lengths) / 60:.1f} minutes, and the context of {spec.model}"
            bad.add(item.line, f"{seen} has room for {total_s / 60:.3g}; ask about fewer of them in one line")
    if bad.total:
        raise ManifestError(source.name, [source.placed(each) for each in bad.first], bad.total)


def _header_s(place: str, item: Item, store_options: StoreOptions) -> float:
    """Return the seconds of a recording after the item's offset, by its header; 0 if it does not tell."""
    try:
        with contextlib.closing(open_recording(place, store_options)) as recording:
            return max(0.0, (probe(recording) or 0.0) - item.offset)
    except (AudioError, StorageError):
        return 0.0
