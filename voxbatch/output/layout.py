"""Names of the files and folders that runs write into OUT.

run.json                                       the run that OUT belongs to: written first
lists/00002.bin                                a list of recordings of the run; see the module `run_file`
parts/shard-00003-of-00016/part-00007.jsonl    the checkpoint; see the module `checkpoint`
parts/shard-00003-of-00016/complete.json       all items of the shard are done; of a later list, complete-00002.json
parts/shard-00000-of-00001/second-00007.jsonl  the same of the second pass of a cascade, and second-complete.json
parts/shard-00000-of-00001/corrected-00007.jsonl  texts that a person has corrected; see the module `corrections`
parts/shard-00003-of-00016/attempt-00007.json  a process works on the shard, or was killed; see the module `attempts`
lists/generation-0123456789ab/…                the same of a run that took OUT over with `--overwrite`
parts/generation-0123456789ab/…
parts/shard-00003-of-00016/audio-….tar         recordings of a part, in a run that speaks; see audio_archive
transcripts.jsonl, failures.jsonl              the merged outputs; a kind of work may have others: see Work.outputs
srt/, vtt/, json/, flac/, …                    one folder for each format, with one file for each item
report.html                                    the report; see the module `report`
summary.json                                   written last
parts/lease-00003-of-00016.json                a process works on the shard: see the module `lease`
digests/00007.bin                              digests of the files above and of those of items; see own_files
starts/start-00001.json                        the executions that a dispatcher started; see clouds.listen.starts
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain

from voxbatch import work
from voxbatch.formats import WRITERS
from voxbatch.storage import Store, parallel_map

VERSION = 1
"""Version of all written files."""
RUN_FILE, SUMMARY = "run.json", "summary.json"
TRANSCRIPTS, FAILURES = work.TRANSCRIPTS, "failures.jsonl"
AUDIO_FORMATS = ("flac", "wav", "mp3", "opus", "m4b")
"""Formats of the recordings of a run that speaks."""
REPORT = "report.html"
LEASE = "claim.json"
"""Lease of a listener that works on the run. It is there only during the work; see output.lease."""
STARTS = "starts"
"""Folder of the starts of executions elsewhere."""
PARTS, LISTS = "parts", "lists"
"""Folders of the shards' folders, and of the lists of recordings."""
DIGESTS = "digests"
"""Folder of the digests of the files that voxbatch has written."""

FIRST, SECOND, CORRECTED = "part", "second", "corrected"
"""Beginnings of the names of parts: of the only or first pass over the items, of the second pass of a cascade, and of
corrections."""

GENERATION = "[0-9a-f]{12}"
"""Pattern of the id of a generation."""
_IN_GENERATION = rf"(/generation-{GENERATION})?"
_SHARD = r"/shard-\d{5}-of-\d{5}"
_PART_FILE = rf"/({FIRST}|{SECOND}|{CORRECTED})-\d{{5,9}}\.jsonl"
_COMPLETE_FILE, _LIST_FILE = rf"/({SECOND}-)?complete(-\d{{5,9}})?\.json", r"/\d{5,9}\.bin"
_LEASE_FILE = r"/lease-\d{5}-of-\d{5}\.json"
_ATTEMPT_FILE = r"/attempt-\d{5,9}\.json"
_AUDIO_FILE = r"/audio-[0-9a-f]{32}\.tar"
_IN_PARTS = re.compile(f"{PARTS}{_IN_GENERATION}{_SHARD}({_PART_FILE}|{_COMPLETE_FILE}|{_ATTEMPT_FILE}|{_AUDIO_FILE})")
_IN_LISTS = re.compile(f"{LISTS}{_IN_GENERATION}{_LIST_FILE}")


def generation_folder(folder: str, generation: str) -> str:
    """Return the folder of the files of a generation: ("parts", "") → "parts", ("parts", "0123456789ab") →
    "parts/generation-0123456789ab".

    So a run that takes OUT over never takes a name that another process of an earlier run may still write.
    """
    return f"{folder}/generation-{generation}" if generation else folder


def shard_folder(shard: int, shards: int, generation: str = "") -> str:
    """Return the folder of a shard: (3, 16) → "parts/shard-00003-of-00016"."""
    return f"{generation_folder(PARTS, generation)}/shard-{shard:05d}-of-{shards:05d}"


def complete_name(folder: str, list_number: int, pass_name: str = FIRST) -> str:
    """Return the name of the file in a shard's folder that says that each item of a list is in a part of a pass."""
    stem = "complete" if pass_name == FIRST else f"{pass_name}-complete"
    return f"{folder}/{stem}.json" if list_number == 1 else f"{folder}/{stem}-{list_number:05d}.json"


def attempt_name(folder: str, number: int) -> str:
    """Return the name of a record in a shard's folder: 7 → "parts/shard-00003-of-00016/attempt-00007.json"."""
    return f"{folder}/attempt-{number:05d}.json"


def lease_name(shard: int, shards: int) -> str:
    """Return the name of the lease on a shard: (3, 16) → "parts/lease-00003-of-00016.json"."""
    return f"{PARTS}/lease-{shard:05d}-of-{shards:05d}.json"


def lease_names(store: Store) -> list[str]:
    """Return the names of the leases on all shards, sorted."""
    return _matching(store, PARTS, _LEASE_FILE)


def shard_of_lease(name: str) -> str:
    """Return the shard of a lease: "parts/lease-00003-of-00016.json" → "3/16"."""
    shard, shards = name.removeprefix(f"{PARTS}/lease-").removesuffix(".json").split("-of-")
    return f"{int(shard)}/{int(shards)}"


def list_name(number: int, generation: str = "") -> str:
    """Return the name of a list of recordings: 2 → "lists/00002.bin"."""
    return f"{generation_folder(LISTS, generation)}/{number:05d}.bin"


def list_names(store: Store, generation: str = "") -> list[str]:
    """Return the names of all lists of a generation, the latest last. The latest ones are asked for by their names,
    because the listing of a store may lack what was written last."""
    names = sorted(_matching(store, generation_folder(LISTS, generation), _LIST_FILE), key=number_of_list)
    number = number_of_list(names[-1]) if names else 0
    while store.exists(following := list_name(number + 1, generation)):
        names.append(following)
        number += 1
    return names


def number_of_list(name: str) -> int:
    """Return the number of a list or a log of digests: "lists/00002.bin" → 2."""
    return int(name.rpartition("/")[2].partition(".")[0])


def digest_name(number: int) -> str:
    """Return the name of a log of digests: 7 → "digests/00007.bin"."""
    return f"{DIGESTS}/{number:05d}.bin"


def digest_names(store: Store) -> list[str]:
    """Return the names of all logs of digests. Those that the listing lacks are asked for by their names."""
    listed = _matching(store, DIGESTS, _LIST_FILE)
    return [*listed, *_unlisted(store, map(number_of_list, listed), digest_name)]


def part_name(folder: str, number: int, pass_name: str = FIRST) -> str:
    """Return the name of a part in a shard's folder: 7 → "parts/shard-00003-of-00016/part-00007.jsonl"."""
    return f"{folder}/{pass_name}-{number:05d}.jsonl"


def number_of_part(name: str) -> int:
    """Return the number of a part: "parts/shard-00003-of-00016/part-00007.jsonl" → 7."""
    return int(name.rpartition("-")[2].partition(".")[0])


def listed_parts(store: Store, generation: str = "", pass_name: str = FIRST) -> list[str]:
    """Return the names of the parts of a pass of a generation, of all shards, that the store lists, sorted. The listing
    may lack what was written last; see `part_names`.

    No other file below the folder of the parts is a part, for example the files of another OUT that lies there.
    """
    return [
        name
        for name in _matching(store, generation_folder(PARTS, generation), f"{_SHARD}{_PART_FILE}")
        if name.rpartition("/")[2].startswith(f"{pass_name}-")
    ]


def part_names(store: Store, generation: str = "", pass_name: str = FIRST, shards: int = 1) -> list[str]:
    """Return the names of all parts of a pass of a generation, of all shards, sorted. Those that the listing lacks are
    asked for by their names.

    Args:
        shards: number of shards of this run. The listing shows those of other runs.
    """
    listed = listed_parts(store, generation, pass_name)
    by_folder = dict[str, list[str]]()
    for name in listed:
        by_folder.setdefault(name.rpartition("/")[0], []).append(name)
    shardings = {shards, *(int(folder.rpartition("-")[2]) for folder in by_folder)}
    folders = (shard_folder(shard, count, generation) for count in shardings for shard in range(count))

    def unlisted(folder: str) -> list[str]:
        return unlisted_parts(store, folder, by_folder.get(folder, ()), pass_name)

    return sorted([*listed, *chain.from_iterable(parallel_map(store.concurrency, unlisted, folders))])


def unlisted_parts(store: Store, folder: str, listed: Iterable[str], pass_name: str) -> list[str]:
    """Return the names of the parts in a shard's folder that are not among the listed ones of this folder."""
    return _unlisted(store, map(number_of_part, listed), partial(part_name, folder, pass_name=pass_name))


def _unlisted(store: Store, listed: Iterable[int], name: Callable[[int], str]) -> list[str]:
    """Return the names of the files that a listing lacks: their numbers are missing or follow. A person may have
    deleted a file, so that its number is missing and not there.

    Args:
        listed: numbers of the listed files, which begin with 0.
        name: the name of a number.
    """
    numbers = set(listed)
    last = max(numbers, default=-1)
    names = [gap for number in range(last) if number not in numbers and store.exists(gap := name(number))]
    while store.exists(following := name(last + 1)):
        names.append(following)
        last += 1
    return names


def correction_names(store: Store, generation: str = "") -> list[str]:
    """Return the names of all parts of corrections of a generation, in the order of their commits. They are in one
    folder, whatever the shards of the run are."""
    folder = shard_folder(0, 1, generation)
    listed = [name for name in _matching(store, folder, _PART_FILE) if f"/{CORRECTED}-" in name]
    return sorted([*listed, *unlisted_parts(store, folder, listed, CORRECTED)], key=number_of_part)


def complete_names(store: Store, generation: str = "") -> list[str]:
    """Return the names of the files that say that a shard is complete, of a generation, sorted."""
    return _matching(store, generation_folder(PARTS, generation), f"{_SHARD}{_COMPLETE_FILE}")


def attempt_numbers(store: Store, folder: str) -> list[int]:
    """Return the numbers of the records in a shard's folder, in ascending order."""
    return sorted(int(name.rpartition("-")[2].partition(".")[0]) for name in _matching(store, folder, _ATTEMPT_FILE))


def audio_name(folder: str, digest: str) -> str:
    """Return the name of an archive of recordings in a shard's folder, from 32 digits of the hash of its content."""
    return f"{folder}/audio-{digest}.tar"


def audio_names(store: Store, generation: str = "") -> list[str]:
    """Return the names of all archives of recordings of a generation, sorted."""
    return _matching(store, generation_folder(PARTS, generation), f"{_SHARD}{_AUDIO_FILE}")


def _matching(store: Store, folder: str, files: str) -> list[str]:
    pattern = re.compile(f"{folder}{files}")
    return [name for name in store.names(folder) if pattern.fullmatch(name)]


def checkpoint_names(store: Store) -> list[str]:
    """Return the names of all parts, lists and other files of the checkpoint, of any generation, sorted."""
    in_lists = [name for name in store.names(LISTS) if _IN_LISTS.fullmatch(name)]
    return [*in_lists, *(name for name in store.names(PARTS) if _IN_PARTS.fullmatch(name))]


def item_file(name: str, form: str) -> str:
    """Return the file of one item, whose name ItemNames gives: ("day1/talk", "srt") → "srt/day1/talk.srt"."""
    from voxbatch.formats.names import output_name

    return f"{form}/{output_name(name, WRITERS[form].extension if form in WRITERS else form)}"


def layout_names_in(place: str) -> Iterator[tuple[str, str]]:
    """Yield (folder, name) for each part of a path, or of an address, that has the name of a file or folder in an OUT.

        "gs://b/day/parts/x" → ("gs://b/day", "parts")

    If the folder is an OUT, the path leads into its files.
    """
    files = {RUN_FILE, SUMMARY, *(kind.merged for kind in work.kinds()), FAILURES, REPORT, LEASE}
    names = {*files, STARTS, PARTS, LISTS, DIGESTS, *WRITERS, *AUDIO_FORMATS}
    steps = place.split("/")
    for i, step in enumerate(steps):
        if i and step in names:
            yield "/".join(steps[:i]) or "/", step


def foreign_outputs(store: Store) -> list[str]:
    """Return the names of merged outputs in an OUT without run.json. A merge would take these files for its own."""
    if store.exists(RUN_FILE):
        return []
    merged = dict.fromkeys(kind.merged for kind in work.kinds())
    return [name for name in (*merged, FAILURES, REPORT, SUMMARY) if store.exists(name)]


def existing_outputs(store: Store) -> list[tuple[str, str]]:
    """Return (label, name) of each merged output and each folder of a format that exists, in the order of display."""
    merged = dict.fromkeys(kind.outputs[0] for kind in work.kinds())
    others = (file for kind in work.kinds() for file in kind.outputs[1:])
    names = [*merged, ("failures", FAILURES), ("summary", SUMMARY), ("report", REPORT), *others]
    names += ((form, f"{form}/") for form in (*WRITERS, *AUDIO_FORMATS))
    return [(label, name) for label, name in names if label and store.exists(name)]
