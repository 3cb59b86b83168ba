"""Read the lines of a run or of a file with transcripts that is compared."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from voxbatch.analysis.readers import Role, open_texts
from voxbatch.analysis.score import is_run, require_place
from voxbatch.analysis.text_kinds import TEXT_KINDS
from voxbatch.errors import BadLine, ConfigError, ManifestError
from voxbatch.languages import DETECTED_LANGUAGE
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output import run_file
from voxbatch.output.file_digest import RunningDigest
from voxbatch.output.layout import FAILURES, TRANSCRIPTS
from voxbatch.output.lines import parse_merged_line, recogniser_keys
from voxbatch.output.summary import Summary, read_summary
from voxbatch.scoring.corpus import group_of, line_language
from voxbatch.scoring.counts import ErrorCounts
from voxbatch.scoring.normalize import Rules, normalizer_name
from voxbatch.scoring.units import scored_language
from voxbatch.storage import Store, Stores, redacted


@dataclass(frozen=True, slots=True)
class ComparedLine:
    """One line of a run or a file."""

    id: str
    path: str | None
    reference: str | None
    text: str | None
    """None if there is no transcript."""
    lang: str | None
    is_given: bool
    """True if somebody gave the language, and the engine did not detect it."""
    counts: ErrorCounts | None
    """Counts in the line, if the rules of the comparison made them."""
    cluster: str | None
    groups: tuple[str, ...]
    """The values of the keys by which the items are grouped."""


class ComparedSource:
    """A run or a file, whose lines can be read several times."""

    def __init__(
        self,
        place: str,
        language: str | None,
        cluster: str | None,
        rules: Rules,
        stores: Stores,
        by: tuple[str, ...] = (),
        role: Role | None = None,
    ):
        """Open a run or a file.

        Args:
            role: the texts that are wanted of a file. None: hypotheses, and references beside them.

        Raises:
            ConfigError: there is no such place, its run is not finished, or it is a run and references are wanted.
        """
        require_place(place)
        self.place = redacted(place)
        self._place, self._language, self._stores = place, language, stores
        self._cluster_by, self._by, self._rules = cluster, by, rules
        self._store: Store | None = None
        self.summary: Summary | None = None
        self._recorded_rules: dict[str, str] = {}
        """Names of the rules that made the counts in the lines, by language."""
        self.is_as_written = False
        """True if all lines were read and are those of the run: nobody has changed a text, so that the counts in a line
        are those of its text."""
        self._role = role
        if role is Role.REFERENCE and is_run(place):
            raise ConfigError(f"{self.place} is the OUT of a run; give a file or a folder with references")
        if is_run(place):
            self._store = stores.out(place)
            run = run_file.read_existing(self._store)
            run.check_reader("compare", self.place)
            self._language = language or run.language
            self.summary = read_summary(self._store)
            if self.summary is None or not self._store.exists(TRANSCRIPTS):
                raise ConfigError(f"{self.place}: the run is not finished; run the same command again, then compare")
            self._recorded_rules = self.summary.score.normalizers if self.summary.score else {}

    def entries(self, wanted: Container[int] | None = None) -> Iterator[tuple[int, ComparedLine]]:
        """Yield (number, line) of the items, of a run first those with a transcript.

        Args:
            wanted: numbers of the lines that are needed. The others of a run are not parsed. None: all lines.

        Raises:
            ManifestError: a line of a file cannot be used.
            CheckpointError: a merged output of a run was changed.
        """
        if self._store is None:
            yield from ((k, entry) for k, entry in enumerate(self._file_entries()) if wanted is None or k in wanted)
            return
        digest, number = RunningDigest(), -1
        for name in (TRANSCRIPTS, FAILURES):
            for line_number, text in enumerate(self._store.lines(name) if self._store.exists(name) else (), 1):
                number += 1
                if wanted is None and name == TRANSCRIPTS:
                    digest.add(text)
                if wanted is None or number in wanted:
                    line = parse_merged_line(self._store, name, line_number, text)
                    yield number, self._run_entry(line, name == TRANSCRIPTS)
        if wanted is None and self.summary is not None:
            self.is_as_written = self.summary.outputs.get(TRANSCRIPTS) == digest.digest()

    def _file_entries(self) -> Iterator[ComparedLine]:
        with open_texts(self._place, None, self._stores) as texts:
            role = Role.BOTH if texts.kind in TEXT_KINDS and TEXT_KINDS[texts.kind].has_references else Role.HYPOTHESIS
            for entry in texts.entries(self._role or role):
                if entry.id == f"line {entry.line}" and entry.row.get("id") is None:
                    reason = f"has neither `id` nor `{AUDIO_KEY}`, by which the items match; add one of them"
                    raise ManifestError(texts.name, [BadLine(entry.line, reason)])
                line = {"lang": entry.lang, DETECTED_LANGUAGE: entry.row.get(DETECTED_LANGUAGE)}
                yield ComparedLine(
                    id=entry.id,
                    path=entry.path,
                    reference=entry.reference,
                    text=entry.text,
                    lang=line_language(line, self._language),
                    is_given=self._language is not None or not line[DETECTED_LANGUAGE],
                    counts=None,
                    cluster=self._cluster(entry.row),
                    groups=self._groups(entry.row),
                )

    def _run_entry(self, line: dict[str, Any], is_done: bool) -> ComparedLine:
        lang, counts = line_language(line, self._language), None
        tag = scored_language(lang)
        is_corrected = is_done and recogniser_keys(line) is not None
        has_counts = is_done and line.get("text") is not None
        has_these_rules = self._recorded_rules.get(tag) == normalizer_name(tag, self._rules)
        if has_counts and scored_language(line.get("lang")) == tag and has_these_rules:
            counts = ErrorCounts.of_line(line)
        return ComparedLine(
            id=line["id"],
            path=line[AUDIO_KEY],
            # A person has corrected the text of an item, which is then as good as a reference.
            reference=line["pred_text"] if is_corrected and line.get("text") is None else line.get("text"),
            text=line["pred_text"] if is_done else None,
            lang=lang,
            is_given=self._language is not None or not line.get(DETECTED_LANGUAGE),
            counts=counts,
            cluster=self._cluster(line),
            groups=self._groups(line),
        )

    def _cluster(self, row: Mapping[str, Any]) -> str | None:
        return None if self._cluster_by is None else group_of(row, self._cluster_by)

    def _groups(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(sys.intern(group_of(row, key)) for key in self._by)

    def facts(self) -> dict[str, Any]:
        """Return the fields of a Compared that a run has; {} for a file."""
        if (summary := self.summary) is None:
            return {}
        engine = summary.facts.engine
        return {
            "engine": engine.name, "model": engine.model,
            "rtfx": summary.rtfx, "wall_s": summary.wall_s, "usd": summary.usd,
        }  # fmt: skip
