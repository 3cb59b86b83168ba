"""The full-text index of the transcripts of an OUT: a SQLite file in the user's cache folder.

The log of OUT is the source, so the index may be lost at any time. An index that is damaged, or of another run, is made
again, and so is that of an OUT that was deleted and made again. A part is never changed: of an OUT that has grown, only
the items of its new parts are read. The items are written in batches, each with the number of its update. A kill leaves
the batches that were written, and the next command does the rest of the update.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxbatch.analysis.find.spans import Spans, indexed_text
from voxbatch.engines.model_files import cache_folder
from voxbatch.errors import ConfigError, StorageError
from voxbatch.failure_kinds import FailureKind
from voxbatch.log import Log
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.entries import Entries
from voxbatch.output.layout import FIRST, SECOND, correction_names, part_names
from voxbatch.output.lines import RESULT_KEYS, parse_line
from voxbatch.output.lists import ItemList
from voxbatch.output.parts import read_headers
from voxbatch.output.run_file import Run
from voxbatch.output.summary import read_whole_summary
from voxbatch.storage import Store

FORMAT = "3"
"""Version of the tables. An index of another version is made again."""
BATCH_CHARACTERS = 4_000_000
"""Characters of text that are written at a time."""
MANY_ITEMS = 1_000
MAX_MEMBER = 1_000
"""Most characters of a value of the manifest by which items can be chosen."""
# By default unicode61 ends a word at each vowel sign of Hindi: M* are the marks.
_TABLES = """
CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE parts (name TEXT PRIMARY KEY);
CREATE TABLE items (row INTEGER PRIMARY KEY, key BLOB UNIQUE, position INTEGER, number INTEGER);
CREATE TABLE details (row INTEGER PRIMARY KEY, id TEXT, audio TEXT, start REAL, members TEXT, turns TEXT, spans BLOB);
CREATE VIRTUAL TABLE texts USING fts5(
    text, tokenize = "unicode61 remove_diacritics 2 categories 'L* N* M* Co'", prefix = "3 4"
);
"""
_SET_ITEM = """
INSERT INTO items (key, position, number) VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET position = excluded.position, number = excluded.number RETURNING row
"""
_NUM_BACK = "SELECT count(*) FROM (SELECT position < lag(position) OVER (ORDER BY row) AS back FROM items) WHERE back"


def index_path(store: Store) -> Path:
    """Return the path of the index of an OUT."""
    place = store.place if "://" in store.place else os.path.realpath(store.place)
    return cache_folder() / "find" / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:32]}.sqlite"


def delete_index(store: Store) -> bool:
    """Delete the index of an OUT with all its files. Return whether there was one."""
    path = index_path(store)
    files = [*path.parent.glob(f"{path.name}*")]
    for file in files:
        file.unlink(missing_ok=True)
    return path in files


@contextlib.contextmanager
def open_index(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an index, and create the file if there is none. Only its owner may read it: it holds the texts.

    Raises:
        ConfigError: SQLite has no full-text search here.
        StorageError: the file cannot be written.
        sqlite3.DatabaseError: the file is damaged.
    """
    with _path_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=600, isolation_level=None)) as database:
            yield database
    except sqlite3.OperationalError as e:
        if "fts5" in str(e):
            raise ConfigError("the SQLite of this Python has no full-text search (FTS5); use another Python") from e
        raise StorageError(f"{path}: {e}; free space there, or set XDG_CACHE_HOME") from e


def update(database: sqlite3.Connection, path: Path, store: Store, run: Run, log: Log) -> int:
    """Read the items of the parts that came since the last update.

    Args:
        log: gets a message before many items are read.

    Returns:
        Number of transcripts that were read.

    Raises:
        CheckpointError: a part is damaged.
        StorageError: OUT cannot be read.
        sqlite3.DatabaseError: the index cannot be written, or is damaged.
    """
    passes = (part_names(store, run.generation, pass_name) for pass_name in (FIRST, SECOND))
    corrections = {*correction_names(store, run.generation)}
    names = sorted(corrections.union(*passes))
    stamps = _stamps(store, run, {*corrections, *names[:1], *names[-1:]})
    content = hashlib.sha256(json.dumps([FORMAT, str(run.key), run.list_number, *names, stamps]).encode()).hexdigest()
    if _state(database).get("content") == content:
        return 0
    with _locked(path):
        return _Update(database, store, run, names, log).run(content, stamps)


def _stamps(store: Store, run: Run, names: Iterable[str]) -> dict[str, str]:
    """Return the times and digests of some parts, by name, and the number of forgotten items. They differ if OUT was
    deleted and made again, or a correction was, or if an item of any part was forgotten.

    Raises:
        CheckpointError: a part is damaged.
    """
    chosen, summary = sorted({*names} - {FailureKind.FORGOTTEN}), read_whole_summary(store)
    headers = read_headers(store, chosen, run.key)
    stamps = {name: f"{header.committed_at} {header.sha256}" for name, header in zip(chosen, headers, strict=True)}
    forgotten = summary.failures_by_kind.get(FailureKind.FORGOTTEN, 0) if summary else 0
    return {**stamps, FailureKind.FORGOTTEN.value: str(forgotten)}


def is_in_order(database: sqlite3.Connection) -> bool:
    """Return whether the rows of an index have the order of the list: recordings were added behind the others alone."""
    return _state(database).get("num_back") == "0"


class _Update:
    """One update of an index. No other process changes the index meanwhile."""

    def __init__(self, database: sqlite3.Connection, store: Store, run: Run, names: list[str], log: Log):
        self._database, self._store, self._run, self._names = database, store, run, names
        self._items, self._log = ItemList(store, run), log

    def run(self, content: str, stamps: Mapping[str, str]) -> int:
        """Bring the index to a content, with its stamps. Return the number of transcripts that were read."""
        state = _state(self._database)
        known = {name for (name,) in self._database.execute("SELECT name FROM parts")} if state else set[str]()
        is_same = (state.get("format"), state.get("run")) == (FORMAT, str(self._run.key)) and known <= {*self._names}
        before = json.loads(state.get("stamps", "{}")) if is_same else {}
        if not is_same or _stamps(self._store, self._run, before) != before:
            self._clear()
            state, known = {}, set()
        if state.get("content") == content:  # another process has done it
            return 0
        number = int(state.get("number", 0)) + (state.get("update") != content)
        wanted = self._items_of([name for name in self._names if name not in known])
        with _transaction(self._database):
            if state.get("list") != str(self._run.list_number):
                wanted |= self._moved_rows()
            self._set(format=FORMAT, run=str(self._run.key), update=content, number=number)
        done = self._database.execute("SELECT position FROM items WHERE number = ?", (number,)).fetchall()
        wanted[[position for (position,) in done]] = False
        if (num_items := int(np.count_nonzero(wanted))) > MANY_ITEMS:
            self._log.info("index", text=f"reading {num_items:,} items; the next search reads only what is new")
        num_read = sum(self._write(batch, number) for batch in self._batches(np.flatnonzero(wanted)))
        with _transaction(self._database):
            self._database.executemany("INSERT OR IGNORE INTO parts VALUES (?)", [(name,) for name in self._names])
            ((num_back,),) = self._database.execute(_NUM_BACK)
            self._set(content=content, stamps=json.dumps(stamps), list=self._run.list_number, num_back=num_back)
        return num_read

    def _items_of(self, names: list[str]) -> NDArray[np.bool_]:
        """Return which items of the list are in some parts."""
        wanted = np.zeros(self._run.items, np.bool_)
        for header in read_headers(self._store, names, self._run.key):
            where, _, is_same = self._items.index.find(header.item_keys)
            wanted[where[is_same]] = True
        return wanted

    def _moved_rows(self) -> NDArray[np.bool_]:
        """Give all rows their positions in the latest list, and delete those of items that it does not have. Return
        which of its items have no row: parts that were read before may have them."""
        rows = self._database.execute("SELECT row, key FROM items").fetchall()
        keys = np.frombuffer(b"".join(key for _, key in rows), "<u8").reshape(-1, 2)
        where, _, is_same = self._items.index.find(keys)
        moves = [(position, row) for (row, _), position in zip(rows, where.tolist(), strict=True)]
        self._database.executemany("UPDATE items SET position = ? WHERE row = ?", moves)
        gone = [rows[at][:1] for at in np.flatnonzero(~is_same).tolist()]
        for table in ("texts", "details", "items"):
            self._database.executemany(f"DELETE FROM {table} WHERE rowid = ?", gone)  # noqa: S608 -- ours
        missing = np.ones(self._run.items, np.bool_)
        missing[where[is_same]] = False
        return missing

    def _batches(self, wanted: NDArray[np.intp]) -> Iterator[list[tuple[int, dict[str, Any]]]]:
        """Yield the positions and the lines of transcripts, in batches."""
        batch, characters = list[tuple[int, dict[str, Any]]](), 0
        for entry in Entries(self._store, self._run, only=wanted) if len(wanted) else ():
            if entry.kind == "transcript":
                batch.append((entry.index, parse_line(self._store, entry, self._run.products)))
                characters += len(entry.line)
            if characters >= BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
        yield batch

    def _write(self, batch: list[tuple[int, dict[str, Any]]], number: int) -> int:
        """Write transcripts in one transaction, in place of those that the items had. Return their number."""
        database, products = self._database, self._run.products
        place = products.recordings_place(self._store.place)
        with _transaction(database):
            for position, line in batch:
                item = self._items.index.keys[position].tobytes(), position, number
                ((row,),) = database.execute(_SET_ITEM, item)  # the row that it had, or a new one at the end
                text = str(line.get(products.text_key) or "")
                audio, start = f"{place}{line[AUDIO_KEY]}", line.get("offset") or 0.0
                details = row, line["id"], audio, start, _members(line), *Spans.of(text, line).stored()
                database.execute("INSERT OR REPLACE INTO details VALUES (?, ?, ?, ?, ?, ?, ?)", details)
                database.execute("INSERT OR REPLACE INTO texts (rowid, text) VALUES (?, ?)", (row, indexed_text(text)))
        return len(batch)

    def _clear(self) -> None:
        with _transaction(self._database):
            for name in ("state", "parts", "items", "details", "texts"):
                self._database.execute(f"DROP TABLE IF EXISTS {name}")
            for statement in _TABLES.strip().split(";\n"):
                self._database.execute(statement)

    def _set(self, **values: object) -> None:
        pairs = [(name, str(value)) for name, value in values.items()]
        self._database.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", pairs)


def _members(line: Mapping[str, Any]) -> str:
    """Return the values of a line by which items can be chosen, as JSON: those of the manifest, the language and the
    model."""
    left_out = RESULT_KEYS - {"model", "engine"} | {"text", "id", AUDIO_KEY}
    values = {key: value for key, value in line.items() if key not in left_out and isinstance(value, str | int | float)}
    return json.dumps({key: value for key, value in values.items() if len(str(value)) <= MAX_MEMBER})


def _state(database: sqlite3.Connection) -> dict[str, str]:
    """Return the state of an index; {} of an empty file."""
    if not database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'state'").fetchone():
        return {}
    return dict(database.execute("SELECT name, value FROM state").fetchall())


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    with database:
        database.execute("BEGIN IMMEDIATE")
        yield


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of the updates of an index. SQLite has locks on the index itself."""
    with contextlib.ExitStack() as stack:
        with _path_errors(path):
            file = stack.enter_context(open(f"{path}.lock", "wb"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _path_errors(path: Path) -> Iterator[None]:
    """Raise StorageError if a file of an index cannot be created."""
    try:
        yield
    except OSError as e:
        raise StorageError(f"{path}: the index cannot be written: {e.strerror}; set XDG_CACHE_HOME") from e
