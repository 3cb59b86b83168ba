"""The file report.html: read the parts of a run, and write what the package `report` makes of them.

The entries are read in one pass that keeps a bounded number of items. The merge makes it for all outputs together.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from voxbatch.failure_kinds import FailureKind
from voxbatch.log import Log
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.entries import Entries, Part
from voxbatch.output.layout import REPORT
from voxbatch.output.lines import parse_line
from voxbatch.output.own_files import OwnFiles
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import Run
from voxbatch.output.summary import Summary, summarise
from voxbatch.output.totals import Totals
from voxbatch.report import Report, RunTitle
from voxbatch.report.figures import PartSpeed
from voxbatch.storage import Store, is_remote

_END = b"</html>\n"
_SEAL = re.compile(rb"<!-- sha256 ([0-9a-f]{64}) -->" + re.escape(_END) + rb"\Z")


def is_report_of(store: Store, run: Run) -> bool:
    """Return whether OUT has a whole report of a run that was finished, with any groups."""
    page = store.read(REPORT) or b""
    is_whole = page.endswith(_END)
    if match := _SEAL.search(page):
        is_whole = is_whole and hashlib.sha256(page[: match.start()]).hexdigest().encode() == match[1]
    return is_whole and f'<meta name="voxbatch-run" content="{run}, finished">'.encode() in page


def may_replace(own: OwnFiles, present: bytes | None, page: bytes) -> bool:
    """Return whether the report in OUT may be replaced: it or its end is missing, or voxbatch has written it."""
    return present is None or not present.endswith(_END) or own.may_replace(REPORT, present, page)


def _sealed(page: bytes) -> bytes:
    """Return a page with the checksum of its content before its last tag."""
    content = page.removesuffix(_END)
    return b"%b<!-- sha256 %b -->%b" % (content, hashlib.sha256(content).hexdigest().encode(), _END)


class RunReport:
    """The report of a run, while its entries come."""

    def __init__(
        self, store: Store, run: Run, is_finished: bool, keys: Sequence[str] = (), page_place: str | None = None
    ):
        """Begin without entries.

        Args:
            keys: keys of the manifest's lines by which errors are grouped, besides the language.
            page_place: folder or prefix that the page will be in. None means OUT.
        """
        page_place = page_place or store.place
        folder = None if is_remote(page_place) else os.path.abspath(page_place)
        name = os.path.basename(store.place.rstrip("/")) or store.place
        self._report = Report(RunTitle(name, folder, str(run), run.items, run.language, is_finished), keys)
        self._recordings = run.products.recordings_place(store.place)
        """Place from which the lines name recordings."""
        self._audio_s = Counter[str]()
        """Seconds of audio of each part."""

    def add(self, entry: PartEntry, line: Mapping[str, Any]) -> None:
        """Add an entry, whose line is also given as its JSON object."""
        if self._recordings:
            line = {**line, AUDIO_KEY: f"{self._recordings}{line[AUDIO_KEY]}"}
        if entry.kind == "transcript":
            self._audio_s[entry.part] += line["audio_duration"]
            self._report.add_transcript(entry.index, line, entry.line)
        else:
            self._report.add_failure(entry.index, line, FailureKind.of_line(line))

    def render(self, summary: Summary, parts: Iterable[Part]) -> bytes:
        """Return the page of a run with these parts."""
        speeds = []
        for part in parts:
            shard, _, shards = part.shard.partition("/")
            process, audio_s = f"{shard}/{part.worker}", self._audio_s[part.name]
            speeds.append(PartSpeed(shards, process, part.wall_s, audio_s, part.committed_at))
        return _sealed(self._report.render(summary.to_dict(), speeds))


def render_report(
    store: Store, run: Run, summary: Summary | None, keys: Sequence[str] = (), page_place: str | None = None
) -> bytes:
    """Return the report of a run.

    Args:
        summary: its summary. None if the run is not finished; then the figures are added up from the parts.
        keys, page_place: see RunReport.

    Raises:
        ConfigError: the run spoke texts, and no engine listened.
        CheckpointError: a part is damaged.
        StorageError: OUT cannot be read.
    """
    run.products.check_report(store.place, run.identity)
    report, totals = RunReport(store, run, summary is not None, keys, page_place), Totals.of(run)
    entries = Entries(store, run)
    for entry in entries:
        line = parse_line(store, entry, run.products)
        report.add(entry, line)
        if summary is None:
            totals.add(entry, line)
    return report.render(summary or summarise(totals, run, entries.measurements), entries.parts)


class ReportSink:
    """The report of a merge, unless nothing has changed since it was written. A run whose report cannot be drawn is
    finished all the same."""

    def __init__(self, store: Store, run: Run, recorded: Summary | None, log: Log):
        """Begin without entries.

        Args:
            recorded: the summary of this run and list, if the run has finished before.
            log: gets the reason why the report is not written.
        """
        self._store, self._run, self._recorded, self._log = store, run, recorded, log
        self._report: RunReport | None = None
        self._is_there = recorded is not None and is_report_of(store, run)
        if not self._is_there:
            with self._warning():
                self._report = RunReport(store, run, is_finished=True)

    def add(self, entry: PartEntry, line: Mapping[str, Any]) -> None:
        """Add an entry, whose line is also given as its JSON object."""
        if self._report is not None:
            with self._warning():
                self._report.add(entry, line)

    def page(self, summary: Summary, entries: Entries) -> bytes | None:
        """Return the page, or None if it is there already, or cannot be drawn."""
        with self._warning():
            if self._is_there and self._recorded is not None and self._recorded.outputs != summary.outputs:
                return render_report(self._store, self._run, summary)  # parts were removed since
            if self._report is not None:
                return self._report.render(summary, entries.parts)
        return None

    @contextlib.contextmanager
    def _warning(self) -> Iterator[None]:
        try:
            yield
        except (ArithmeticError, AttributeError, ImportError, LookupError, RecursionError, TypeError, ValueError) as e:
            self._report = None
            command = f"voxbatch report {shlex.quote(self._store.place)}"
            text = f"{REPORT} is not written: {type(e).__name__}: {e}; to try again: {command}"
            self._log.warning("report", text=text)
