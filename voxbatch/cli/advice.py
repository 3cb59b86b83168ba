"""Say what to do about failed recordings and about an OUT that is refused, with full commands: the command of this run
with other options.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import chain

from voxbatch.config import RETRY_CHOICES
from voxbatch.engines import multilingual_model
from voxbatch.engines.known_models import BUNDLED, ENGLISH, find
from voxbatch.errors import ConfigError, RunMismatchError, StorageError, VoxbatchError
from voxbatch.failure_kinds import OTHER_MODEL, FailureKind
from voxbatch.output.layout import FAILURES
from voxbatch.output.summary import CORRECTIONS, Summary
from voxbatch.records import OTHER_LANGUAGE
from voxbatch.safe_text import counted, redact_secrets
from voxbatch.storage import is_remote, redacted
from voxbatch.storage.address import is_bucket_address

SHOWN_KINDS = 4
"""Number of kinds of failures for which the next command is shown."""
_ALIASES = {"-o": ("-o", "--out"), "--quality": ("--quality", "--model")}
_EXCLUSIVE = ("--overwrite", "--retry-failed", "--update")


def command_with(argv: Sequence[str], *options: str) -> str:
    """Return the command of a run with further options, in place of the options that they replace or exclude. Return ""
    for another program. An argument with a secret is not repeated.

        ["voxbatch", "run", "a.mp3", "-o", "x"], "-o", "y"    →    "voxbatch run a.mp3 -o y"
    """
    if len(argv) < 2 or argv[1] != "run":
        return ""
    names = [option for option in options if option.startswith("-")]
    replaced = {alias for name in names for alias in _ALIASES.get(name, (name,))} | {*_EXCLUSIVE}
    words, rest = list[str](), iter(argv[2:])
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in replaced:
            words.append(word)
        elif name == "--retry-failed" and not equals:
            following = next(rest, "")
            words += [following] if following not in ("", *RETRY_CHOICES) else []
        elif name not in _EXCLUSIVE and not equals:
            next(rest, "")
    if any(redact_secrets(word) != word or (is_remote(word) and redacted(word) != word) for word in words):
        words = ["…"]
    return f"voxbatch run {' '.join(word if word == '…' else shlex.quote(word) for word in (*words, *options))}"


def other_out(out: str) -> str:
    """Return the name of another OUT: "calls.voxbatch" → "calls-other.voxbatch", "out/2026-11-20" →
    "out/2026-11-20-other". A number alone would be the name of the run of another day, shard or folder."""
    out = short_path(out.rstrip("/"))
    match = re.fullmatch(r"(.*?)(?:-other(?:-(\d{1,3}))?)?(\.voxbatch)?", out, re.DOTALL)
    assert match is not None
    stem, suffix = f"{match[1]}-other", match[3] or ""
    names = chain([f"{stem}{suffix}"], (f"{stem}-{n}{suffix}" for n in itertools.count(2)))
    return next(name for name in names if name != out and (is_remote(name) or not os.path.lexists(name)))


def failure_lines(
    summary: Summary, failures: Sequence[tuple[str, str]], argv: Sequence[str], out: str
) -> Iterator[str]:
    """Yield the lines about the failures of a run: the first failed recordings, the advice about each kind, and the
    command that does such items again.

    Args:
        failures: (path, reason) of the first failures.
        argv: the arguments of this program. Empty if no command is to be shown.
    """
    if failures:
        yield f"{summary.failed_in_work:,} failed:"
    for path, reason in failures:
        yield from _wrapped(f"{short_path(path)}: {reason}")
    if 0 < len(failures) < summary.failed_in_work:
        yield f"  … and {summary.failed_in_work - len(failures):,} more in {os.path.join(out, FAILURES)}"
    to_mend = {*FailureKind} - {FailureKind.FORGOTTEN}
    known = [FailureKind(name) for name in summary.failures_by_kind if name in to_mend]
    kinds_of = dict[str, list[FailureKind]]()
    for kind in known[:SHOWN_KINDS]:
        kinds_of.setdefault(_command(kind, summary, argv, out), []).append(kind)
    for command, kinds in kinds_of.items():
        yield from (f"{summary.failures_by_kind[kind]:,} {kind.facts.words}: {kind.facts.advice}" for kind in kinds)
        if command:
            yield f"  then: {command}"


def language_line(summary: Summary, argv: Sequence[str], out: str) -> str:
    """Return the line about a model that knows English only, after a run in which it probably heard another language;
    or about the smallest model, after a run with flagged texts. Return "" for any other run, and if no command is
    known."""
    engine = summary.facts.engine
    model = find(engine.model, engine.name)
    is_english = model is not None and model.languages == ENGLISH
    foreign = summary.flags.by_kind.get(OTHER_LANGUAGE, 0)
    if not (foreign and is_english) or summary.facts.config.get("language"):
        better = _with_best_model(summary, argv, out) if summary.flags.items else ""
        if not better or engine.model != BUNDLED:
            return ""
        return f"better than {engine.model}: {better}"
    command = _with_best_model(summary, argv, out)
    heard = f"{foreign:,} of {counted(summary.items, 'item')} {'are' if foreign > 1 else 'is'} probably not in English"
    return f"{heard}, and model {engine.model} knows nothing else: {command}" if command else ""


def _with_best_model(summary: Summary, argv: Sequence[str], out: str) -> str:
    """Return the command of a run with the best model, into another OUT. A run that writes beside the recordings is
    overwritten, because no run replaces the files of another one there; but not if OUT has corrections, with which
    `--overwrite` is refused, or forgotten items, which it would transcribe again."""
    is_beside = not {"--beside", "--mux", "--burn"}.isdisjoint(argv)
    is_kept = CORRECTIONS in summary.of_kind or FailureKind.FORGOTTEN in summary.failures_by_kind
    where = ("--overwrite",) if is_beside and not is_kept else ("-o", other_out(out))
    return command_with(argv, "--quality", "best", *where)


def _command(kind: FailureKind, summary: Summary, argv: Sequence[str], out: str) -> str:
    """Return the command that does items of this kind again. Empty if there is none."""
    options = kind.facts.options.split()
    if kind.facts.options == OTHER_MODEL:
        other = ["--quality", "best", "-o", other_out(out)]
        options = other if multilingual_model(summary.facts.engine.name) else []
    return command_with(argv, *options) if options else ""


def short_path(path: str) -> str:
    """Return a path below the current folder as a relative one, and an address without what may be secret in it."""
    below = os.path.join(os.getcwd(), "")
    return redacted(path) if is_remote(path) else path.removeprefix(below)


def _wrapped(text: str) -> list[str]:
    """Return the lines of a text with an indent: one line, except on a terminal."""
    if not sys.stdout.isatty():
        return [f"  {text}"]
    width = shutil.get_terminal_size().columns
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def refused_address(error: VoxbatchError, source: str | Sequence[str]) -> VoxbatchError:
    """Return the refusal of a bucket that does not exist: the same command would fail again. Return any other error as
    it is: the credentials of a pod, for example, may come later."""
    is_bucket = isinstance(source, str) and is_bucket_address(source)
    if not (is_bucket and isinstance(error, StorageError) and error.kind is FailureKind.NOT_FOUND):
        return error
    return ConfigError("\n".join(filter(None, [str(error), folder_line(source)])))


def folder_line(source: str | Sequence[str]) -> str:
    """Return the line about an address that may be meant as that of a folder, "s3://calls/day"; "" for another one."""
    if (
        not isinstance(source, str)
        or not is_bucket_address(source)
        or source.endswith("/")
        or os.path.splitext(source)[1]
    ):
        return ""
    return f"if {source} is a folder, it ends in /: {source}/"


def with_commands(error: VoxbatchError, argv: Sequence[str], out: str) -> VoxbatchError:
    """Return the error with the commands that do what its message says: of an OUT that is refused, and of an option
    that another one makes right. Return any other error as it is."""
    if isinstance(error, ConfigError):
        command = command_with(argv, *error.options) if error.options else ""
        return ConfigError(f"{error}\n  {command}") if command else error
    if not isinstance(error, RunMismatchError):
        return error
    updated = command_with(argv, "--update") if error.may_update else ""
    commands = {
        "to continue it": updated,
        "to keep both": command_with(argv, "-o", other_out(out)),
    }
    lines = [f"  {purpose}: {command}" for purpose, command in commands.items() if command]
    return RunMismatchError("\n".join([str(error), *lines]), error.may_update)
