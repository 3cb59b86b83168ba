"""The commands of a source: `validate` checks a manifest and its recordings, and prints one line for each kind of
problem; `manifest` prints a manifest of a folder's recordings."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from voxbatch.cli.options import (
    PathOrAddress,
    include_option,
    limiting_variables,
    manifest_options,
    source_argument,
    store_options,
)
from voxbatch.errors import ManifestError, UsageError
from voxbatch.safe_text import counted, escape_controls
from voxbatch.storage import Stores, is_remote
from voxbatch.storage.address import HTTP_SCHEMES, scheme_of

if TYPE_CHECKING:
    from voxbatch.manifest import Source
    from voxbatch.runner.validation import Kinds

EXIT_SOME_UNUSABLE = 3
"""Exit code if recordings cannot be read: a run would end with the same code."""
SHOWN_KINDS = 20
FEED_SUFFIXES = (".xml", ".rss", ".atom")
"""Extensions of feeds in buckets. At a web address and on this machine, whatever is no folder is a feed."""


@click.command(short_help="Check a manifest and its recordings.")
@source_argument
@click.option(
    "--check-audio",
    is_flag=True,
    help="Read the header of each recording, also of those at addresses, and add up the hours.",
)
@click.option("--all", "list_all", is_flag=True, help="Print every problem, not one line for each kind.")
@manifest_options
@store_options
@click.pass_context
def validate(
    ctx: click.Context,
    /,
    source: str | tuple[str, ...],
    check_audio: bool,
    list_all: bool,
    limit: int | None,
    include: tuple[str, ...],
    allow_outside: bool,
    only_under: tuple[str, ...],
    stores: Stores,
) -> None:
    """Check every line of SOURCE, and that the local recordings exist.

    The exit code is 2 if lines are bad, and 3 if recordings are missing or cannot be read. Nothing is transcribed.
    """
    from voxbatch.cli.live_progress import counter
    from voxbatch.manifest import PathPolicy, survey
    from voxbatch.runner.validation import Kinds, check_recordings
    from voxbatch.sources.opening import open_source

    for text in limiting_variables(ctx):
        click.echo(f"Warning: {text}", err=True)
    policy = PathPolicy(allow_outside, only_under)
    kinds, notes, problems, unchecked, known, known_s, unknown = Kinds(), Kinds(), 0, 0, 0, 0.0, 0
    with open_source(source, stores=stores, include=include) as opened:
        try:
            surveyed = survey(opened, policy, limit)
        except ManifestError as e:
            raise UsageError(_bad_lines(e, list_all)) from e
        with contextlib.ExitStack() as stack:
            show = stack.enter_context(counter(surveyed.items, "recordings checked"))
            for number, check in enumerate(check_recordings(opened, policy, limit, stores, check_audio), 1):
                show(number)
                unchecked += not check.was_checked
                known, known_s = known + (check.seconds is not None), known_s + (check.seconds or 0)
                unknown += check.seconds is None and (check.problem or check.note) is None
                if reason := check.problem or check.note:
                    problems += check.problem is not None
                    example = check.audio if opened.grows else f"{opened.place(check.line)}: {check.audio}"
                    (kinds if check.problem else notes).add(reason, example)
                    if list_all:
                        click.echo(escape_controls(f"{example}: {reason}"))
    told = () if list_all else (*_lines(kinds), *_lines(notes))
    lines = [*_outcome(opened, surveyed.items, problems, unchecked), *told]
    click.echo("\n".join(map(escape_controls, lines)))
    if unchecked:
        were = "1 recording at an address was" if unchecked == 1 else f"{unchecked:,} recordings at addresses were"
        click.echo(f"{were} not looked at; --check-audio reads the headers")
    hours = _by_headers(known, known_s, unknown) if check_audio else _by_items(surveyed.known_s)
    click.echo(f"{hours}; {surveyed.with_text:,} with a reference")
    if languages := ", ".join(f"{lang} {count:,}" for lang, count in surveyed.languages.most_common(10)):
        click.echo(escape_controls(f"languages: {languages}"))
    sys.exit(EXIT_SOME_UNUSABLE if problems else 0)


def _by_headers(known: int, known_s: float, unknown: int) -> str:
    """Return the amount of audio by the headers of `known` recordings, beside `unknown` whose headers do not tell."""
    if not known:
        return "unknown duration: no header tells it"
    rest = f", and {unknown:,} of unknown duration" if unknown else ""
    return f"{_amount(known_s)} by the headers of {counted(known, 'recording')}{rest}"


def _by_items(known_s: float) -> str:
    """Return the amount of audio by the lines of a manifest."""
    if not known_s:
        return "unknown duration: no item gives it, and --check-audio reads the headers"
    return f"{_amount(known_s)} in the items that give a duration"


def _amount(seconds: float) -> str:
    """Return an amount of audio in hours, or less than 0.01 hours as a duration."""
    from voxbatch.display import format_duration

    return f"{seconds / 3600:,.2f} hours" if seconds >= 36 else format_duration(seconds)


def _outcome(source: Source, num_items: int, problems: int, unchecked: int) -> Iterable[str]:
    state = "no problem found" if unchecked else "all valid"
    state = f"{problems:,} of them cannot be transcribed" if problems else state
    yield f"{source.name}: {counted(num_items, 'item')}, {state}"
    if source.note:
        yield source.note


def _bad_lines(error: ManifestError, list_all: bool) -> str:
    """Return the message for bad lines: all of them, or one line for each kind."""
    from voxbatch.runner.validation import Kinds

    others = error.total - len(error.bad_lines)
    more = [f"{error.source}: … and {others:,} more bad lines"] if others else []
    if list_all or error.total <= ManifestError.EXAMPLES:
        return "\n".join([*(f"{error.source}: {bad_line}" for bad_line in error.bad_lines), *more])
    kinds = Kinds()
    for bad in error.bad_lines:
        kinds.add(bad.reason, bad.place)
    return "\n".join([f"{error.source}: {error.total:,} bad lines", *_lines(kinds), *more])


def _lines(kinds: Kinds) -> Iterable[str]:
    """Yield one line for each kind of problem: the number, the reason and examples."""
    every = kinds.by_count()
    for kind in every[:SHOWN_KINDS]:
        examples = [example for example in kind.examples if example]
        more = ", …" if kind.count > len(examples) else ""
        shown = f" ({', '.join(examples)}{more})" if examples else ""
        yield f"  {kind.count:,} × {kind.reason}{shown}"
    if len(every) > SHOWN_KINDS:
        yield f"  … and {len(every) - SHOWN_KINDS:,} more kinds; --all lists every problem"


@click.command(short_help="Print a manifest of a folder's recordings.")
@click.argument("source", metavar="FOLDER", type=PathOrAddress(exists=True))
@include_option
@store_options
def manifest(source: str, include: tuple[str, ...], stores: Stores) -> None:
    """Print a manifest of FOLDER's recordings. The reference of a recording is the file NAME.txt next to it.

    Paths are relative to FOLDER, so save the manifest there. FOLDER may be gs://bucket/folder/ or s3://bucket/folder/.
    For these no recording is opened, and no line has a `duration`.

    FOLDER may also be the feed of a podcast, RSS or Atom, in a file or at an address: the references are then the
    transcripts that it names.
    """
    is_feed = scheme_of(source) in HTTP_SCHEMES if is_remote(source) else os.path.isfile(source)
    lines = _feed_lines if is_feed or source.lower().endswith(FEED_SUFFIXES) else _folder_lines
    for line in lines(source, include, stores):
        click.echo(line)


def _feed_lines(feed: str, include: tuple[str, ...], stores: Stores) -> Iterator[str]:
    from voxbatch.sources.feed_references import lines_with_references

    if include:
        raise UsageError("--include chooses the recordings of a folder, not the episodes of a feed")
    return lines_with_references(feed, stores, _print_note)


def _folder_lines(folder: str, include: tuple[str, ...], stores: Stores) -> Iterator[str]:
    from voxbatch.sources.folder import folder_manifest, others_note
    from voxbatch.sources.prefix import prefix_manifest
    from voxbatch.sources.references import References

    others, references = Counter[str](), References()
    if is_remote(folder):
        yield from prefix_manifest(folder, stores, include, others=others, references=references)
    else:
        from voxbatch.decoding.header_reader import HeaderReader
        from voxbatch.runner.workload import certain_seconds

        with HeaderReader() as headers:
            yield from folder_manifest(
                folder, lambda path: certain_seconds(path, stores, headers), include, others, references
            )
    for note in (references.notes(), "" if include else others_note(others), _misplaced(folder)):
        _print_note(note)


def _misplaced(folder: str) -> str:
    """Return a note if a shell writes the manifest of a local folder to a file elsewhere; else ""."""
    try:
        number = sys.stdout.fileno()
        written = os.readlink(f"/proc/self/fd/{number}")
        is_file = stat.S_ISREG(os.fstat(number).st_mode) and os.path.exists(written)
    except (OSError, ValueError):  # ValueError: standard output is an object of a test
        return ""
    if is_remote(folder) or not is_file or os.path.dirname(written) == os.path.realpath(folder):
        return ""
    command = f"mv {shlex.quote(os.path.relpath(written))} {shlex.quote(os.path.join(folder, ''))}"
    return f"its paths are relative to {folder}: to use this manifest, {command}"


def _print_note(note: str) -> None:
    if note:
        click.echo(escape_controls(note), err=True)
