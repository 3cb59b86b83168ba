"""`voxbatch validate`: check a manifest and its recordings, and print one line for each kind of problem."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from voxbatch.cli.options import limiting_variables, manifest_options, source_argument, store_options
from voxbatch.errors import ManifestError, UsageError
from voxbatch.safe_text import counted, escape_controls
from voxbatch.storage.options import StoreOptions

if TYPE_CHECKING:
    from voxbatch.manifest import Source
    from voxbatch.runner.validation import Kinds

EXIT_SOME_UNUSABLE = 3
"""Exit code if recordings cannot be read: a run would end with the same code."""
SHOWN_KINDS = 20
"""Number of kinds of problems that are printed."""


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
    store_options: StoreOptions,
) -> None:
    """Check every line of SOURCE, and that the local recordings exist.

    The exit code is 2 if lines are bad, and 3 if recordings are missing or cannot be read. Nothing is transcribed.
    """
    from voxbatch.display import counter
    from voxbatch.manifest import PathPolicy, open_source, survey
    from voxbatch.runner.validation import Kinds, check_recordings

    for text in limiting_variables(ctx):
        click.echo(f"Warning: {text}", err=True)
    policy = PathPolicy.from_options(allow_outside, only_under)
    kinds, problems, unchecked, known_s, unknown = Kinds(), 0, 0, 0.0, 0
    with open_source(source, store_options=store_options, include=include) as opened:
        try:
            found = survey(opened, policy, limit)
        except ManifestError as e:
            raise UsageError(_bad_lines(e, list_all)) from e
        with contextlib.ExitStack() as stack:
            show = stack.enter_context(counter(found.items, "recordings checked"))
            for number, each in enumerate(check_recordings(opened, policy, limit, store_options, check_audio), 1):
                show(number)
                unchecked += not each.was_checked
                known_s, unknown = known_s + (each.seconds or 0), unknown + (each.seconds is None)
                if each.problem is not None:
                    problems += 1
                    example = each.audio if opened.grows else f"{opened.place(each.line)}: {each.audio}"
                    kinds.add(each.problem, example)
                    if list_all:
                        click.echo(escape_controls(f"{example}: {each.problem}"))
    click.echo("\n".join(map(escape_controls, _outcome(opened, found.items, problems, unchecked))))
    if not list_all:
        _print_kinds(kinds)
    if unchecked:
        were = "1 recording at an address was" if unchecked == 1 else f"{unchecked:,} recordings at addresses were"
        click.echo(f"{were} not looked at; --check-audio reads the headers")
    if check_audio:
        hours = f"{known_s / 3600:,.2f} hours by the headers of {found.items - unknown:,} recordings"
    else:
        hours = f"{found.known_hours:,.2f} hours in the items that give a duration"
    click.echo(f"{hours}; {found.with_text:,} with a reference")
    if languages := ", ".join(f"{lang} {count:,}" for lang, count in found.languages.most_common(10)):
        click.echo(escape_controls(f"languages: {languages}"))
    sys.exit(EXIT_SOME_UNUSABLE if problems else 0)


def _outcome(source: Source, num_items: int, problems: int, unchecked: int) -> Iterable[str]:
    if source.note:
        yield source.note
    state = "no problem found" if unchecked else "all valid"
    state = f"{problems:,} of them cannot be transcribed" if problems else state
    yield f"{source.name}: {counted(num_items, 'item')}, {state}"


def _bad_lines(error: ManifestError, list_all: bool) -> str:
    """Return the message for bad lines: all of them, or one line for each kind."""
    from voxbatch.runner.validation import Kinds

    others = error.total - len(error.bad_lines)
    more = [f"{error.source}: … and {others:,} more bad lines"] if others else []
    if list_all or error.total <= ManifestError.EXAMPLES:
        return "\n".join([*(f"{error.source}: {each}" for each in error.bad_lines), *more])
    kinds = Kinds()
    for bad in error.bad_lines:
        kinds.add(bad.reason, bad.place)
    return "\n".join([f"{error.source}: {error.total:,} bad lines", *_lines(kinds), *more])


def _print_kinds(kinds: Kinds) -> None:
    for line in _lines(kinds):
        click.echo(escape_controls(line))


def _lines(kinds: Kinds) -> Iterable[str]:
    """Yield one line for each kind of problem: the number, the reason and examples."""
    every = kinds.by_count()
    for kind in every[:SHOWN_KINDS]:
        examples = [each for each in kind.examples if each]
        more = ", …" if kind.count > len(examples) else ""
        shown = f" ({', '.join(examples)}{more})" if examples else ""
        yield f"  {kind.count:,} × {kind.reason}{shown}"
    if len(every) > SHOWN_KINDS:
        yield f"  … and {len(every) - SHOWN_KINDS:,} more kinds; --all lists every problem"
