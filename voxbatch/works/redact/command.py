"""`voxbatch redact`: copy the transcripts and recordings of an OUT without secrets."""

from __future__ import annotations

from typing import Any

import click

from voxbatch.cli.options import FolderOrAddress, RunCommand, combined, setting_option, store_options, work_options
from voxbatch.cli.run_command import start
from voxbatch.settings import settings_of
from voxbatch.storage import Stores
from voxbatch.works.redact import SETTINGS
from voxbatch.works.redact.key import keyed_hash, own_key
from voxbatch.works.redact.options import RedactionOptions

_OWN = settings_of(RedactionOptions)


@click.command(
    cls=RunCommand,
    short_help="Copy OUT without card numbers, names and other secrets.",
    epilog="Each option can also be given as an environment variable: VOXBATCH_KEEP, VOXBATCH_SOUND, …",
)
@click.argument("source", metavar="OUT", type=FolderOrAddress())
@combined(*map(setting_option, _OWN.values()))
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

    Without -o, the copies are beside OUT in redacted-…, because the name of OUT may be that of a person.
    The copies have no file names, columns or metadata of the originals, which stay as they are. No detector finds
    everything: look through review.csv, and listen to a sample.
    """
    from voxbatch.output import run_file

    original = stores.out(source)
    run = run_file.read_existing(original)
    folder, slash, _ = source.rstrip("/").rpartition("/")
    own = RedactionOptions(**{name: settings.pop(name) for name in _OWN})
    start(
        ctx,
        source=source,
        out=out or f"{folder}{slash}redacted-{keyed_hash('copies', own_key(original), 4)}",  # the same in each run
        own=own,
        audio_stream=run.identity.get("audio_stream"),
        engine_options={},
        stores=stores,
        serving_properties=None,
        vllm_config=None,
        **settings,
    )
