"""The merged outputs of a run: what a merge creates, replaces, or leaves because somebody has changed it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from types import TracebackType

from voxbatch.errors import CheckpointError
from voxbatch.log import Log
from voxbatch.output.entries import Entries
from voxbatch.output.file_digest import FileDigest, digest_of
from voxbatch.output.layout import FAILURES, REPORT
from voxbatch.output.merged_file import Change, MergedFile
from voxbatch.output.own_files import OwnFiles, sha256
from voxbatch.output.ownership import Ownership
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import Run
from voxbatch.output.summary import Summary
from voxbatch.storage import Store


class MergedOutputs:
    """The merged outputs of a run, which take the entries of one pass. Use it as a context: without `finish`, nothing
    is written."""

    def __init__(self, store: Store, run: Run, owner: Ownership, own: OwnFiles, latest: Summary | None):
        """Begin without entries.

        Args:
            latest: the summary of this run and of any list, if there is one. A file in a bucket that is marked as the
                one that it names is not read.
        """
        self._store, self._run, self._owner, self._own, self._latest = store, run, owner, own, latest
        self._kinds = {run.transcripts: "transcript", FAILURES: "failure"}
        """Kind of the entries of each output."""
        self._files = dict[str, MergedFile]()
        self._contexts = contextlib.ExitStack()

    def __enter__(self) -> MergedOutputs:
        self._files = {name: self._contexts.enter_context(self._file(name, self._change(name))) for name in self._kinds}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._contexts.__exit__(kind, error, at)

    def add(self, entry: PartEntry, _: object = None) -> None:
        """Add the line of an entry to the output of its kind.

        Raises:
            StorageError: the file cannot be written.
        """
        for file in self._files.values():
            file.add(entry)

    def finish(self, wanted: Mapping[str, FileDigest], entries: Entries, log: Log) -> list[CheckpointError]:
        """Write the outputs.

        Args:
            wanted: the digest of each output.
            entries: all entries, for an output that exists and has to be written again.

        Returns:
            An error for each output that somebody has changed, and which stays as it is.

        Raises:
            StorageError: an output cannot be read or written.
            TakenOverError: OUT belongs to another run now.
        """
        self._own.record((name, digest.sha256) for name, digest in wanted.items())
        present = [name for name, file in self._files.items() if not file.finish()]
        ended = [self._write_again(name, wanted[name], entries, log) for name in present]
        errors = [error for error in ended if error is not None]
        if not errors:
            self._own.mark((name, mark) for name, digest in wanted.items() if (mark := self._mark(name, digest)))
        return errors

    def _file(self, name: str, change: Change) -> MergedFile:
        return MergedFile(self._store, name, self._kinds[name], self._owner, change)

    def _change(self, name: str) -> Change:
        """Return how this merge writes an output. If the run has finished before with this list, the file probably has
        the lines of this merge already."""
        if not self._store.exists(name):
            return Change.CREATE
        if self._latest is not None and self._latest.is_of(self._run):
            return Change.KEEP
        named = self._latest.outputs.get(name) if self._latest else None
        is_marked = named is not None and self._own.has_mark(name, self._mark(name, named))
        is_own = is_marked or self._own.has(name, digest_of(self._store, name).sha256)
        return Change.REPLACE if is_own else Change.KEEP

    def _write_again(self, name: str, wanted: FileDigest, entries: Entries, log: Log) -> CheckpointError | None:
        """Write an output that existed, unless it has the wanted content. If somebody has changed it, leave it, and
        return the error with which the merge ends."""
        if self._own.has_mark(name, self._mark(name, wanted)):
            return None
        present = digest_of(self._store, name)
        if present == wanted:
            return None
        place = f"{self._store.place}/{name}"
        if not present.bytes:
            log.warning("output", text=f"{place} is empty; it is written again from the parts")
        elif not self._own.has(name, present.sha256):
            return CheckpointError(
                f"{place} was changed or damaged: it has {present.bytes:,} bytes, and the run's file has "
                f"{wanted.bytes:,} and another checksum. It stays as it is{correction_advice(self._store, self._run)}. "
                "If it is moved away, the next run writes it again from the parts"
            )
        # An earlier list wrote it, or parts were removed since and their items were transcribed again.
        with self._file(name, Change.REPLACE) as file:
            for entry in entries:
                file.add(entry)
            file.finish()
        return None

    def _mark(self, name: str, digest: FileDigest) -> str:
        """Return the mark of an output that has a digest: the checksum that the store keeps of it. By the mark, a later
        merge knows the file without reading it. A local file has none, and is read."""
        checksum = self._store.checksum(name)
        return f"{digest.sha256} is {checksum}" if checksum else ""


def put_report(store: Store, page: bytes, owner: Ownership, own: OwnFiles) -> None:
    """Write the report, unless somebody has changed the one that is there.

    Raises:
        StorageError: it cannot be read or written.
        TakenOverError: OUT belongs to another run now.
    """
    owner.check_again()
    own.record([(REPORT, sha256(page))])
    if store.create(REPORT, [page], durable=False):
        return
    from voxbatch.output.report import may_replace

    if may_replace(own, store.read(REPORT), page):
        store.write(REPORT, owner.checked([page]), durable=False)
    else:
        own.leave(REPORT)


def correction_advice(store: Store, run: Run) -> str:
    """Return what takes in the changes of files, for the end of a message; "" if nothing does."""
    return f"; to take the changes in: {correction_command(store)}" if run.takes_corrections else ""


def correction_command(store: Store) -> str:
    """Return the command that takes in what people have changed in OUT."""
    return f"voxbatch correct {shlex.quote(store.place)}"
