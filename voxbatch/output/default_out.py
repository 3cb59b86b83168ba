"""Choose the OUT of a source for which none is given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from voxbatch.manifest.recording_path import LIST_MARK
from voxbatch.output import run_file
from voxbatch.output.item_names import distinct_name
from voxbatch.sources.kinds import names_recordings, without_suffix
from voxbatch.sources.named import common_folder, is_list, is_pattern
from voxbatch.storage import Stores, is_remote, redacted
from voxbatch.storage.address import is_bucket_address, is_folder, name_of, scheme_of


def default_out(source: str | Sequence[str]) -> str:
    """Return the default OUT of a source: a folder beside the source, or in the common folder of several.

        "jobs/calls.jsonl.gz" → "jobs/calls.voxbatch"        "gs://b/day/" → "gs://b/day.voxbatch"
        "calls/talk.mp3" → "calls/talk.voxbatch"             "calls/*.mp3" → "calls/calls.voxbatch"

    OUT is in the current directory if nothing can be written beside the source: "-" → "stdin.voxbatch", "gs://b/" →
    "b.voxbatch", and for web servers and the Hugging Face hub.
    """
    names = [source] if isinstance(source, str) else list(source)
    if len(names) > 1 or is_pattern(names[0]):
        folder = common_folder(names)
        return _inside(folder, f"{os.path.basename(folder.rstrip('/')) or 'root'}.voxbatch")
    name = names[0].removeprefix(LIST_MARK) if is_list(names[0]) else names[0]
    if name == "-":
        return "stdin.voxbatch"
    if is_remote(name):
        *above, last = name_of(name).rstrip("/").split("/")
        out = f"{(last if is_folder(name) else without_suffix(last)) or 'root'}.voxbatch"
        return "/".join([f"{scheme_of(name)}:/", *above, out]) if above and _is_writable(name) else out
    path = Path(os.path.abspath(name))
    stem = path.name if path.is_dir() else without_suffix(path.name)
    return str(path.with_name(f"{stem or 'root'}.voxbatch"))


def own_out(source: str | Sequence[str], stores: Stores) -> str:
    """Return the default OUT of a source. If it holds the run of another recording of this name, return that with the
    recording's extension, or else with a digest of its address.

        talk.mp4, talk.wav                        → talk.voxbatch, talk.wav.voxbatch
        https://a/talk.mp3, https://b/talk.mp3    → talk.voxbatch, talk.mp3.voxbatch

    Raises:
        CheckpointError, StorageError: see run_file.read.
    """
    out = default_out(source)
    if not isinstance(source, str) or not names_recordings(source) or is_pattern(source):
        return out
    names = [os.path.basename(redacted(source, "")), distinct_name(redacted(source, "")).rpartition("/")[2]]
    outs = [out, *(os.path.join(os.path.dirname(out), f"{name}.voxbatch") for name in names)]
    return next((place for place in outs if _is_own(place, source, stores)), outs[-1])


def _is_own(out: str, source: str, stores: Stores) -> bool:
    """Return whether an OUT has no run yet, or one of this recording."""
    if not is_remote(out) and not os.path.isdir(out):
        return True
    if (run := run_file.read(stores.out(out))) is None:
        return True
    earlier = run.facts.config.get("source")
    if not isinstance(earlier, str) or is_remote(earlier) or is_remote(source):
        return earlier == redacted(source)
    return os.path.basename(earlier) == os.path.basename(source)  # OUT is beside the recording


def _inside(folder: str, name: str) -> str:
    """Return a path in a folder, or in the current directory if nothing can be written in the folder."""
    return os.path.join(folder, name) if folder != "/" and _is_writable(folder) else name


def _is_writable(place: str) -> bool:
    return not is_remote(place) or (is_bucket_address(place) and scheme_of(place) != "hf")
