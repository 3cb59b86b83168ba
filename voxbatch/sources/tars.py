"""List the recordings in a tar archive, as WebDataset, NeMo and Lhotse Shar write them.

    clips-000.tar    a.flac, a.json      {"audio_filepath": "clips-000.tar#bytes=512+48044,a.flac",
                                      →   "id": "clips-000/a", "text": "good morning"}

The files of a sample have one name up to its first dot and follow each other. A .json file of a sample gives keys of
the row, and a .txt file gives the text. So do NeMo's manifest of a shard and the cuts of Lhotse Shar, which lie beside
the archive. NeMo's manifest of all archives is a source of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import tarfile
from itertools import groupby
from typing import Any

from voxbatch.manifest.json_line import AUDIO_KEY, MAX_LINE_BYTES, LineError, parse_json_line, quote
from voxbatch.manifest.recording_path import RECORDING_SUFFIXES
from voxbatch.manifest.source import Source, manifest_error
from voxbatch.sources.columns import Row, Rows, facts_of, of_supervisions
from voxbatch.sources.kinds import is_text
from voxbatch.sources.manifest_file import file_beside
from voxbatch.storage.tar_members import TarMember

_NUMBERED = re.compile(r"(?P<kind>audio|recording)_?\.?(?P<number>[0-9]+)\.tar")
_BESIDE = {
    "audio": ("manifest_{}.json", "sharded_manifests/manifest_{}.json"),
    "recording": ("cuts.{}.jsonl.gz", "cuts.{}.jsonl"),
}
"""Names of the file with the texts of an archive, NeMo's or that of Lhotse Shar."""
SHARD_KEY = "shard_id"
"""Key of the number of an archive in NeMo's manifests."""
_FILE_BESIDE = re.compile(r"(manifest_[0-9]+|tarred_audio_manifest|dataset)\.json|cuts\.[0-9]+\.jsonl(\.gz)?")


def is_beside(name: str) -> bool:
    """Return whether a file among archives has their texts, or describes all of them, and is no shard itself."""
    return bool(_FILE_BESIDE.fullmatch(os.path.basename(name)))


def tar_manifest(source: Source, _: str | None) -> tuple[Rows, str]:
    """Return the rows of an archive; see manifest_file.manifest_rows."""
    return _rows(source, _texts(source)), source.base


def _texts(source: Source) -> dict[str, Row]:
    """Return the rows of the file beside an archive, by the names of the recordings; {} if there is none.

    Raises:
        ManifestError: a row cannot be used.
    """
    folder, archive_name = os.path.split(source.name_below())
    match = _NUMBERED.fullmatch(archive_name)
    names = [name.format(match["number"]) for name in _BESIDE[match["kind"]]] if match else []
    rows: dict[str, Row] = {}
    for name in names:
        if (beside := file_beside(source, os.path.join(folder, name))) is None:
            continue
        with beside:
            for number, line in beside.lines():
                try:
                    row = parse_json_line(line)
                except LineError as e:
                    raise manifest_error(beside.name, f"line {number} {e}") from e
                key = _stem(str(row.pop(AUDIO_KEY, None) or row.pop("id", "")))
                rows[key] = {**facts_of(row), **of_supervisions(row)}
    return rows


def tarred_rows(source: Source) -> Rows | None:
    """Return the rows of NeMo's manifest of all archives beside it; None if these are not there.

    {"audio_filepath": "a.flac", "shard_id": 3}   →   the row of a.flac in audio_3.tar, with the keys of the line
    """
    with contextlib.suppress(LineError):  # the survey refuses the line
        shard = parse_json_line(next(source.lines())[1]).get(SHARD_KEY)
        members = _members(source, shard)
        return None if members is None else _tarred_rows(source, shard, members)
    return None


def _tarred_rows(source: Source, shard: Any, members: dict[str, Row]) -> Rows:
    """Yield the rows, with the number of the line. An archive is listed once if its lines follow each other.

    Args:
        shard: number of the archive of the first line.
        members: rows of its recordings; see `_members`.
    """
    for number, line in source.lines():
        try:
            row = parse_json_line(line)
        except LineError as e:
            yield number, str(e)
            continue
        if shard != row.get(SHARD_KEY):
            shard = row.get(SHARD_KEY)
            if (listed := _members(source, shard)) is None:
                raise manifest_error(source.name, f"line {number}: there is no audio_{shard}.tar beside it")
            members = listed
        name = str(row.pop(AUDIO_KEY, ""))
        member = members.get(_stem(name))
        yield number, {**facts_of(row), **member} if member else f"audio_{shard}.tar has no recording {quote(name)}"


def _members(source: Source, shard: Any) -> dict[str, Row] | None:
    """Return the rows of the recordings in a numbered archive beside a manifest, by their names without the extension;
    None if there is none."""
    archive = file_beside(source, f"audio_{shard}.tar") if isinstance(shard, int) else None
    if archive is None:
        return None
    with archive:
        return {os.path.basename(row["id"]): row for _, row in _rows(archive, {}) if isinstance(row, dict)}


def _stem(name: str) -> str:
    """Return the name of a recording without its extension. An id of Lhotse has none."""
    stem, suffix = os.path.splitext(os.path.basename(name))
    return stem if suffix.lower() in RECORDING_SUFFIXES else os.path.basename(name)


def _rows(source: Source, texts: dict[str, Row]) -> Rows:
    """Yield the rows of an archive, with the number of the recording.

    Raises:
        ManifestError: it is no tar archive, or breaks off, or holds no recording.
    """
    archive_name, number = source.name_below(), 0
    stem = os.path.splitext(archive_name)[0]
    source.file.seek(0)
    try:
        with tarfile.open(fileobj=source.file, mode="r:") as archive:
            for _, members in groupby(filter(tarfile.TarInfo.isreg, archive), _sample):
                sample = [*members]
                facts: Row | str = _facts(archive, sample)
                for member in filter(_is_recording, sample):
                    number += 1
                    address = str(TarMember(archive_name, member.offset_data, member.size, member.name))
                    name = os.path.splitext(member.name.removeprefix("./"))[0]
                    row = {AUDIO_KEY: address, "id": f"{stem}/{name}"}
                    beside = texts.get(_stem(member.name), {})
                    yield number, {**beside, **facts, **row} if isinstance(facts, dict) else facts
    except (tarfile.TarError, EOFError) as e:
        raise manifest_error(source.name, f"is no whole, uncompressed tar archive: {e}; write it again") from e
    if not number:
        raise manifest_error(source.name, "holds no recordings")


def _sample(member: tarfile.TarInfo) -> str:
    """Return the part of a name that the files of a sample share."""
    folder, name = os.path.split(member.name)
    return os.path.join(folder, name.split(".", 1)[0])


def _is_recording(member: tarfile.TarInfo) -> bool:
    name = os.path.basename(member.name)
    return os.path.splitext(name)[1].lower() in RECORDING_SUFFIXES and not name.startswith(".")


def _facts(archive: tarfile.TarFile, sample: list[tarfile.TarInfo]) -> dict[str, Any] | str:
    """Return the keys that the texts of a sample give, or the reason why they cannot be used."""
    facts: dict[str, Any] = {}
    for member in (member for member in sample if is_text(member.name)):
        content = archive.extractfile(member)
        assert content is not None
        data = content.read(MAX_LINE_BYTES + 1)
        try:
            if len(data) > MAX_LINE_BYTES:
                raise LineError(f"is longer than {MAX_LINE_BYTES:,} bytes")
            if member.name.lower().endswith(".txt"):
                facts.setdefault("text", data.decode("utf-8-sig").strip())
            else:
                facts |= facts_of(parse_json_line(data.strip()))
        except UnicodeDecodeError:
            return f"{quote(member.name)} is not UTF-8; save the file again as UTF-8"
        except LineError as e:
            return f"{quote(member.name)}: {e}"
    return {key: value for key, value in facts.items() if key != AUDIO_KEY}
