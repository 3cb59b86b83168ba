"""Write the report of a run to any place, also while the run is in progress; or that of files with texts. The merge
writes report.html in OUT."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from voxbatch import __version__
from voxbatch.analysis import open_target
from voxbatch.analysis.pairs import Pair, read_pairs
from voxbatch.analysis.score import NO_REFERENCE
from voxbatch.errors import BadLine, ConfigError, InUseError, ManifestError
from voxbatch.failure_kinds import FailureKind
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output import run_file
from voxbatch.output.layout import REPORT
from voxbatch.output.lists import count_forgotten
from voxbatch.output.own_files import OwnFiles, sha256
from voxbatch.output.report import may_replace, render_report
from voxbatch.output.run_file import Run
from voxbatch.output.stored_json import json_bytes
from voxbatch.output.summary import read_summary
from voxbatch.report import Report, RunTitle
from voxbatch.scoring.corpus import CorpusScore
from voxbatch.storage import DEFAULT_STORES, Store, Stores, is_remote, redacted


def write_report(store: Store, place: str, keys: Sequence[str] = (), stores: Stores = DEFAULT_STORES) -> None:
    """Write the report of the run in OUT, of the items that are committed so far if the run is not finished.

    Args:
        keys: keys of the manifest's lines by which errors are grouped, besides the language.

    Raises:
        ConfigError: no run was started there, or somebody has changed the page of OUT.
        CheckpointError: run.json or a part is damaged.
        InUseError: an item was forgotten meanwhile.
        StorageError: OUT cannot be read, or the page cannot be written.
    """
    target, name = open_target(place, stores, alternative="choose another file with -o")
    run = run_file.read_existing(store)
    summary = read_summary(store)
    if summary is not None and not summary.is_of(run):
        summary = None  # an earlier run or list wrote it
    num_forgotten = count_forgotten(store, run.key)
    page = render_report(store, run, summary, keys, target.place)
    if (target.place, name) == (store.place, REPORT):
        own = OwnFiles(store, summary.digests if summary else 0)
        if not may_replace(own, store.read(REPORT), page):
            raise ConfigError(f"{redacted(place)} was changed by somebody, and stays as it is: give -o FILE")
        own.record([(REPORT, sha256(page))])
    target.write(name, _unless_forgotten(store, run, page, num_forgotten))


def _unless_forgotten(store: Store, run: Run, page: bytes, num_forgotten: int) -> Iterator[bytes]:
    """Yield a page. No lease keeps `voxbatch forget` out meanwhile, because a page is also written during a run. A page
    that is written before `forget` has written the parts is deleted by it afterwards."""
    yield page
    if count_forgotten(store, run.key) != num_forgotten:
        raise InUseError(f"{store.place}: an item was forgotten while the page was made, which still has it: run again")


def write_file_report(
    hypotheses: str,
    references: str | None,
    place: str,
    keys: Sequence[str] = (),
    language: str | None = None,
    stores: Stores = DEFAULT_STORES,
) -> None:
    """Write the report of a file with both texts, or of two files, as `score` takes them.

    Args:
        hypotheses, references: see read_pairs.
        place, keys, stores: see write_report.
        language: language of texts that do not name one.

    Raises:
        ManifestError: a file cannot be read, nothing matches, or there is no reference.
        StorageError: the page cannot be written.
    """
    target, name = open_target(place, stores, alternative="choose another file with -o")
    kept = (*keys, "offset", *_DURATION_KEYS)
    pairs, _ = read_pairs(hypotheses, references, language, None, kept, stores)
    paths_from = os.path.dirname(references or hypotheses)
    folder = None if is_remote(target.place) else os.path.abspath(target.place)
    title = RunTitle(os.path.basename(redacted(hypotheses).rstrip("/")), folder, "", 0, language, is_finished=True)
    report, score, audio_s = Report(title, keys), CorpusScore(), 0.0
    for index, pair in enumerate(pairs):
        line = {key: value for key, value in pair.row.items() if key in kept} | _line(pair, paths_from)
        if pair.hypothesis is None:
            score.add_missing(pair.lang, pair.reference)
            line |= {"error": "no transcript", "message": "no hypothesis has this id"}
            report.add_failure(index, line, FailureKind.NOT_FOUND)
        else:
            line |= asdict(score.add_pair(pair.lang, pair.reference, pair.hypothesis))
            audio_s += line["audio_duration"]
            report.add_transcript(index, line, json_bytes(line))
    if not score.by_language:
        raise ManifestError(redacted(hypotheses), [BadLine(0, NO_REFERENCE)])
    values, references_name = score.to_dict(), redacted(references or hypotheses)
    summary = {
        "score": values, "done": values["items"], "failed": values["missing"], "with_warnings": 0, "audio_s": audio_s,
        "wall_s": None, "rtfx": None, "usd": None, "config": {}, "voxbatch": __version__,
        "engine": {"model": redacted(hypotheses), "name": f"references of {references_name}", "versions": {}},
        "python": platform.python_version(), "machine": platform.system(),
    }  # fmt: skip
    target.write(name, [report.render(summary, [])])


_DURATION_KEYS = ("audio_duration", "duration")


def _line(pair: Pair, paths_from: str) -> dict[str, Any]:
    """Return the output line of a pair, as far as its files tell it. Relative paths are in the folder `paths_from`."""
    hypothesis = pair.hypothesis_entry
    path = pair.reference_entry.path or (hypothesis and hypothesis.path) or pair.id
    if not is_remote(path) and not is_remote(paths_from):
        path = os.path.abspath(os.path.join(paths_from, path))
    words = hypothesis.words if hypothesis else ()
    seconds = [word.end for word in words]
    seconds += [value for key in _DURATION_KEYS if isinstance(value := pair.row.get(key), int | float)]
    return {
        "id": pair.id, AUDIO_KEY: path, "lang": pair.lang, "text": pair.reference,
        "pred_text": pair.hypothesis or "", "audio_duration": max(seconds, default=0.0), "warnings": [], "flags": [],
        "words": [{"word": word.text, "start": word.start, "end": word.end} for word in words],
    }  # fmt: skip
