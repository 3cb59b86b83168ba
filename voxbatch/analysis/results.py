"""Read the results of a run from its parts, also while the run is in progress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from voxbatch.errors import UsageError
from voxbatch.output import run_file
from voxbatch.output.corrections import combined
from voxbatch.output.entries import Entries
from voxbatch.output.layout import CORRECTED, part_names
from voxbatch.output.lines import parse_line
from voxbatch.output.lists import ItemList
from voxbatch.output.outcomes import outcome_of
from voxbatch.output.ownership import takeover_explained
from voxbatch.output.parts import PartEntry
from voxbatch.output.products import SecondPassFiles
from voxbatch.output.run_file import Run
from voxbatch.records import Failure, Outcome, Transcript
from voxbatch.storage import Store


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one item of a run."""

    id: str
    outcome: Outcome
    """Transcript, or the Failure that says why there is none."""
    line: Mapping[str, Any]
    """The line of transcripts.jsonl or failures.jsonl: the manifest's line, with its unknown keys, and the outcome."""

    @property
    def transcript(self) -> Transcript | None:
        """The transcript. None if the item failed."""
        return self.outcome if isinstance(self.outcome, Transcript) else None

    @property
    def failure(self) -> Failure | None:
        """The reason why there is no transcript. None if there is one."""
        return self.outcome if isinstance(self.outcome, Failure) else None

    def __repr__(self) -> str:
        """Return the id and the outcome on one line, without `line`."""
        return f"Result({self.id!r}, {self.outcome!r})"


class ResultReader:
    """Reads the committed items of a run in the order of the parts, each part once."""

    def __init__(self, store: Store, run: Run):
        self._store, self._run, self._list = store, run, ItemList(store, run)
        self._read: set[str] = set()
        """Names of the parts that were read."""

    def new_results(self) -> Iterator[Result]:
        """Yield the results in the parts that were committed since the last call. One entry is in memory at a time.

        Raises:
            TakenOverError: OUT belongs to another run or to a later list now.
            CheckpointError: a part is damaged or belongs to another run.
            StorageError: OUT cannot be read.
        """
        with takeover_explained(self._store, self._run):
            if second_pass := self._run.second_pass:
                yield from self._results_of_both_passes(second_pass)
                return
            corrections = Entries(self._store, replace(self._run, pass_name=CORRECTED)).of_pass()
            corrected = {entry.index: entry for entry in corrections}
            for name in part_names(self._store, self._run.generation):
                if name in self._read:
                    continue
                for entry in self._list.read_part(name):
                    correction = corrected.get(entry.index) if entry.kind == "transcript" else None
                    yield self._result(combined(self._store, entry, correction) if correction else entry)
                self._read.add(name)

    def _results_of_both_passes(self, second_pass: SecondPassFiles) -> Iterator[Result]:
        """Yield all results once, when the second pass is complete: until then it may replace any text."""
        if not self._read and second_pass.missing(self._store, self._run) == 0:
            for entry in (entries := Entries(self._store, self._run)):
                yield self._result(entry)
            self._read.update(part.name for part in entries.parts)

    def _result(self, entry: PartEntry) -> Result:
        line = parse_line(self._store, entry, self._run.products)
        return Result(line["id"], outcome_of(entry.kind, line, self._run.products.text_key), line)


def read_results(store: Store) -> Iterator[Result]:
    """Return an iterator over the results of the run in OUT that are committed so far.

    Raises:
        UsageError: there is no run in OUT. This is told at once.
        CheckpointError: run.json or a part is damaged.
        StorageError: OUT cannot be read.
    """
    run = run_file.read(store)
    if run is None:
        raise UsageError(f"{store.place}: there is no run here; give the folder of the outputs of a run")
    return ResultReader(store, run).new_results()
