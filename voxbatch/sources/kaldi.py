"""Convert a Kaldi data directory to the rows of JSON lines: wav.scp, and beside it `segments`, `text` and `utt2lang`.

    wav.scp    call1 /data/call1.wav         {"audio_filepath": "/data/call1.wav", "id": "call1-a", "offset": 1.5,
    segments   call1-a call1 1.50 4.25   →    "duration": 2.75, "text": "good morning"}
    text       call1-a good morning

The files are joined in a temporary database on disk, in any order. Commands (`sox … |`) are
refused and never run; of those that only decode a file (`flac -c -d -s a.flac |`), the file is taken.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterator

from voxbatch.manifest.json_line import LongLine, quote
from voxbatch.manifest.source import Source, manifest_error
from voxbatch.sources.columns import Rows
from voxbatch.sources.manifest_file import file_beside
from voxbatch.sources.references import canonical
from voxbatch.storage import is_remote
from voxbatch.storage.temporary_files import TemporaryFileError

WAV_SCP = "wav.scp"
_ARCHIVE = re.compile(r"\.ark:\d+$")
_PLAIN_COMMAND = re.compile(r"(?:cat|flac(?: -[cds]+)+|sph2pipe(?: -f wav| -p)*) ([^\s|;&<>$`'\"*]+) *\|")
"""Commands that only decode a file, which voxbatch reads itself."""


def scp_manifest(wav_scp: Source, _: str | None) -> tuple[Rows, str]:
    """Return the rows of a data directory; see manifest_file.manifest_rows."""
    return _rows(wav_scp), _recordings_folder(wav_scp)


def _rows(wav_scp: Source) -> Rows:
    """Yield the rows of a data directory. The number of a row is its line in `segments`, or else in wav.scp.

    Raises:
        ManifestError, StorageError: a file cannot be read.
        TemporaryFileError: the database cannot be written.
    """
    database = sqlite3.connect("")  # a temporary file, which vanishes with the connection
    try:
        database.execute("PRAGMA journal_mode=OFF")
        tables = {}
        for name in ("text", "utt2lang"):
            with file_beside(wav_scp, name) or contextlib.nullcontext() as beside:
                tables[name] = _load(database, name, beside)

        def value(table: str, key: str) -> str | None:
            if not tables[table]:
                return None
            record = database.execute(f"SELECT value FROM {table} WHERE id = ?", (canonical(key),)).fetchone()  # noqa: S608 -- ours
            return str(record[0]) if record else None

        with file_beside(wav_scp, "segments") or contextlib.nullcontext() as segments:
            if segments is not None:
                tables["wav"] = _load(database, "wav", wav_scp)
            for number, key, entry in _pairs(segments or wav_scp):
                row = _segment(entry, value) if segments else {"audio_filepath": entry}
                if isinstance(row, dict):
                    reason = _unusable(str(row["audio_filepath"]))
                    fields = {"id": key, "text": value("text", key), "lang": value("utt2lang", key)}
                    row = reason or {**row, **{name: field for name, field in fields.items() if field is not None}}
                yield number, row
    except sqlite3.Error as error:
        raise TemporaryFileError(wav_scp.name, OSError(str(error))) from error
    finally:
        database.close()


def _recordings_folder(wav_scp: Source) -> str:
    """Return the folder that relative paths resolve against: that of wav.scp, or as in Kaldi's own scripts the current
    one, if the first recording lies only there."""
    for _, _, path in _pairs(wav_scp):
        if is_remote(wav_scp.base) or os.path.isabs(path) or os.path.exists(os.path.join(wav_scp.base, path)):
            break
        return os.getcwd() if os.path.exists(path) else wav_scp.base
    return wav_scp.base


def _pairs(source: Source) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, first word, rest) of each line."""
    for number, line in source.lines():
        if isinstance(line, LongLine):
            raise manifest_error(source.name, f"line {number} has {line.num_bytes:,} bytes; write one entry a line")
        key, _, rest = source.text(line).replace("\t", " ").strip().partition(" ")
        yield number, key, _PLAIN_COMMAND.sub(r"\1", rest.strip())


def _load(database: sqlite3.Connection, table: str, source: Source | None) -> bool:
    if source is None:
        return False
    database.execute(f"CREATE TABLE {table} (id TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")
    rows = ((canonical(key), rest) for _, key, rest in _pairs(source))
    database.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", rows)  # noqa: S608 -- a name of ours
    return True


def _segment(rest: str, value: Callable[[str, str], str | None]) -> dict[str, object] | str:
    """Return the row for a line of `segments` without its first word, or the reason why there is none."""
    recording, *times = rest.split()
    audio = value("wav", recording)
    if audio is None:
        return f"the recording {quote(recording)} is not in {WAV_SCP}"
    try:
        start, end = float(times[0]), float(times[1])
        channel = {"channel": int(times[2])} if len(times) > 2 else {}
    except (ValueError, IndexError):
        return f"is {quote(rest)}; write the recording, its start and its end in seconds"
    duration = {} if end < 0 else {"duration": round(end - start, 6)}  # Kaldi: -1 is the end of the recording
    return {"audio_filepath": audio, "offset": start, **duration, **channel}


def _unusable(path: str) -> str | None:
    if path.endswith("|"):
        return f"is the command {quote(path)}, and a manifest's commands are never run; write its output to a file"
    if _ARCHIVE.search(path):
        return f"names {quote(path)}, a part of an archive; extract the recordings as files (wav-copy)"
    return None
