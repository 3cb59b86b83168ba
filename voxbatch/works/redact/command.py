"""`voxbatch redact`: copy the transcripts and recordings of an OUT without secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from voxbatch.cli.options import (
    FILE,
    Command,
    FolderOrAddress,
    RunCommand,
    comma,
    option,
    setting_option,
    store_options,
    work_options,
)
from voxbatch.cli.run_command import start
from voxbatch.settings import settings_of
from voxbatch.storage import Stores
from voxbatch.works.redact import SETTINGS
from voxbatch.works.redact.options import RedactionOptions

_OWN = settings_of(RedactionOptions)


def _list(name: str) -> Callable[[Command], Command]:
    """Return the option of a setting that is a list with commas."""
    declared = _OWN[name]
    return option(declared.flag, group=declared.group, callback=comma, metavar=declared.metavar, help=declared.help)


@click.command(
    cls=RunCommand,
    short_help="Copy OUT without card numbers, names and other secrets.",
    epilog="Each option can also be given as an environment variable: VOXBATCH_KEEP, VOXBATCH_SOUND, …",
)
@click.argument("source", metavar="OUT", type=FolderOrAddress())
@_list("keep")
@_list("only")
@option("--rules", group=_OWN["rules"].group, metavar=_OWN["rules"].metavar, help=_OWN["rules"].help, **FILE)
@setting_option(_OWN["sound"])
@setting_option(_OWN["margin"])
@work_options(SETTINGS)
@store_options
@click.pass_context
def redact(ctx: click.Context, /, source: str, out: str | None, stores: Stores, **settings: Any) -> None:
    """Copy the transcripts and recordings of the run in OUT, with [CARD], [PERSON], … and silence in the place of
    secrets.

    \b
    Examples:
      voxbatch redact out -o shared
      voxbatch redact out -o shared --only card,iban,account --sound tone
      voxbatch redact out -o shared --rules names.yaml --formats srt,txt

    The copies have no file names, columns or metadata of the originals, which stay as they are. No detector finds
    everything: look through review.csv, and listen to a sample.
    """
    from voxbatch.output import run_file

    run = run_file.read_existing(stores.out(source))
    own = RedactionOptions(**{name: settings.pop(name) for name in _OWN})
    start(
        ctx,
        source=source,
        out=out or f"{source.rstrip('/')}.redacted",
        own=own,
        audio_stream=run.identity.get("audio_stream"),
        engine_options={},
        stores=stores,
        serving_properties=None,
        vllm_config=None,
        **settings,
    )
