"""`voxbatch correct`: take in what a person has corrected in the outputs of a run, or drop it."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from voxbatch.cli.columns import clock
from voxbatch.cli.options import FolderOrAddress, option, store_options
from voxbatch.errors import ConfigError
from voxbatch.formats import WRITERS
from voxbatch.log import Log
from voxbatch.manifest.recording_path import is_recording
from voxbatch.output.layout import RUN_FILE
from voxbatch.safe_text import counted, escape_controls
from voxbatch.storage import COPIED_OUT, Stores

if TYPE_CHECKING:
    from voxbatch.works.correct.passages import Passage
    from voxbatch.works.correct.taking import TextChanges


_SUFFIXES = frozenset(f".{writer.beside.rpartition('.')[2]}" for writer in WRITERS.values())
"""Extensions of the files that a run writes for an item."""


class _Out(FolderOrAddress):
    """An OUT, or a local file that a person has corrected, whose OUT is found."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Take a file whose run is near, and say of others how their OUT is given."""
        if isinstance(value, str) and os.path.splitext(value)[1] in _SUFFIXES and not os.path.lexists(value):
            self.fail(
                f"there is no file {value}; give a file that you have corrected, or the OUT of its run", param, ctx
            )
        if not isinstance(value, str) or not os.path.isfile(value) or is_recording(value):
            return super().convert(value, param, ctx)
        if not _out_of(value):
            command = f"voxbatch correct OUT {shlex.quote(value)}"
            self.fail(f"{value} is a file, and no run is near it; give the OUT of its run first: {command}", param, ctx)
        return value


def _out_of(file: str) -> str:
    """Return the OUT of the run that a file belongs to: a folder above it, or the one of its folder or recording, such
    as talks.voxbatch of talks/day/a.srt. Return "" if there is none."""
    path = os.path.abspath(file)
    stems, folders = [path], list[str]()
    while (parent := os.path.dirname(path)) != path:
        folders, path = [*folders, parent], parent
    while (shorter := os.path.splitext(stems[-1])[0]) != stems[-1]:  # talk.en.transcript.txt
        stems.append(shorter)
    places = (
        *(f"{stem}.voxbatch" for stem in stems[1:]),
        *(place for folder in folders for place in (folder, f"{folder}.voxbatch")),
    )
    return next((os.path.relpath(place) for place in places if os.path.isfile(os.path.join(place, RUN_FILE))), "")


SHOWN = 10
"""Number of corrected items, and of places in an item, that are shown."""
SHOWN_CHARACTERS = 30
"""Most characters of a cue that are shown."""


@click.command(short_help="Take in what a person has corrected in OUT.")
@click.argument("out", type=_Out())
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--dry-run", is_flag=True, help="Show what would be taken in, and change nothing.")
@option(
    "--engine", default="auto", metavar="NAME", help="Engine that finds the times of new words, as for align; none."
)
@option("--model", metavar="MODEL", help="Its model: a folder, gs:// or s3:// with a CTC network. English needs none.")
@click.option("--drop", is_flag=True, help="Drop the changes of FILE, or of all files: write them again as they were.")
@store_options
def correct(
    out: str, files: tuple[str, ...], dry_run: bool, engine: str, model: str | None, drop: bool, stores: Stores
) -> None:
    """Take in corrected subtitles, texts or lines of transcripts.jsonl of the run in OUT.

    \b
    Examples:
      voxbatch correct out                  all that was changed in the outputs
      voxbatch correct talks/talk.srt       one file beside its recording
      voxbatch correct out fixed/talk.srt   a copy: .srt, .vtt, .ass, .ttml, .txt
      voxbatch correct out texts.jsonl      lines with `id` and `text`

    Words keep their times where the text is the same. New words get theirs from the audio, as by voxbatch align, or
    else between their neighbours. All formats, the report, the scores and videos with subtitles follow, and further
    runs keep the correction.
    """
    from voxbatch.analysis.videos import write_videos
    from voxbatch.cli.outcome import print_outcome
    from voxbatch.output.ownership import existing_run
    from voxbatch.works.correct.dropping import drop as drop_changes
    from voxbatch.works.correct.taking import find_changes, take_in
    from voxbatch.works.correct.times import Aligner

    if drop and dry_run:
        raise ConfigError("--drop with --dry-run: --dry-run alone shows what was changed; --drop alone drops it")
    if out_of_file := os.path.isfile(out) and _out_of(out):
        out, files = out_of_file, (out, *files)
    store, log = stores.out(out, COPIED_OUT), Log()
    with existing_run(store, "" if dry_run else "correct", log) as run:
        if drop:
            print_outcome(drop_changes(store, run, stores, files, log), out, stores)
            return
        run.check_reader("correct", store.place)
        changes = find_changes(store, run, stores, files)
        for line in _lines(changes, dry_run):
            click.echo(escape_controls(line))
        if not dry_run:
            aligner = Aligner(engine, model, run.identity.get("audio_stream"), stores)
            summary = take_in(store, run, changes, aligner, log)
            write_videos(store, None, log)
            print_outcome(summary, out, stores, is_unchanged=not changes.taken)


def _cue(cue: Passage) -> str:
    """Return the times and the begin of a cue for people."""
    text = textwrap.shorten(" ".join(cue.lines), SHOWN_CHARACTERS, placeholder=" …")
    return f"{clock(cue.start or 0.0)} to {clock(cue.end or 0.0)} “{text}”"


def _lines(changes: TextChanges, is_dry: bool) -> Iterator[str]:
    """Yield the lines about the changes for people; those before they are taken in have the changed words."""
    yield f"{counted(len(changes.taken), 'item')} {'to correct' if is_dry else 'corrected'}"
    if not (changes.taken or changes.untaken):
        yield "no file has a change that is new; edit a subtitle or a text of OUT, save it, and run again"
    for taken in changes.taken[:SHOWN]:
        num_changes, excerpts = taken.draft.num_changes, [*taken.draft.excerpts()] if is_dry else []
        facts = [counted(num_changes, "change")] if num_changes else []
        facts += ["its speakers"] if taken.draft.has_other_speaker else []
        facts += ["its cues"] if taken.edit.has_other_cues else []
        yield f"  {taken.item.line['id']}, in {taken.edit.file}: {' and '.join(facts or ['its spaces'])}"
        overlaps = [f"{_cue(first)} overlaps {_cue(second)}" for first, second in taken.edit.overlaps]
        for places in (excerpts, overlaps):
            yield from (f"    {place}" for place in places[:SHOWN])
            if len(places) > SHOWN:
                yield f"    … and {len(places) - SHOWN:,} more"
    if len(changes.taken) > SHOWN:
        yield f"  … and {len(changes.taken) - SHOWN:,} more"
    if changes.note:
        yield changes.note
    for names, text in (
        (changes.retimed, "subtitles with cues of your own, which stay as they are"),
        (changes.behind, "subtitles with cues of your own that lack a correction; make it there, too"),
        (changes.rewritten, "changed files that say the same, which are written as before"),
        (changes.untaken, "not taken in, because only readable texts are"),
    ):
        if names:
            more = ", …" if len(names) > SHOWN else ""
            yield f"{text}: {', '.join(names[:SHOWN])}{more}"
