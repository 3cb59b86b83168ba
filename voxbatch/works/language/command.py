"""`voxbatch language`: detect the languages of recordings, with the checkpoint and the shards of `voxbatch run`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from voxbatch.cli.options import (
    MANIFEST_SETTINGS,
    RunCommand,
    comma,
    manifest_options,
    option,
    setting_option,
    source_argument,
    store_options,
    work_options,
)
from voxbatch.cli.run_command import start
from voxbatch.config import RunOptions
from voxbatch.settings import settings_of
from voxbatch.works.language import SETTINGS
from voxbatch.works.language.options import DEFAULT_MODEL, DetectionOptions

_OWN, _OF_RUN = settings_of(DetectionOptions), settings_of(RunOptions)
_CANDIDATES = _OWN["candidates"]
_MODEL_HELP = f"A multilingual Whisper model: a folder, a name on the hub, gs:// or s3://. Default: {DEFAULT_MODEL}."


@click.command(
    cls=RunCommand,
    short_help="Detect the language of each recording.",
    epilog="Each option can also be given as an environment variable: VOXBATCH_WINDOWS, VOXBATCH_MODEL, …",
)
@source_argument
@setting_option(_OWN["windows"])
@option("--candidates", group=_CANDIDATES.group, callback=comma, metavar=_CANDIDATES.metavar, help=_CANDIDATES.help)
@setting_option(replace(_OF_RUN["engine"], help="auto or faster-whisper."))
@setting_option(replace(_OF_RUN["model"], help=_MODEL_HELP))
@work_options(SETTINGS - {"engine", "model", *MANIFEST_SETTINGS})
@manifest_options
@store_options
@click.pass_context
def language(ctx: click.Context, /, **settings: Any) -> None:
    """Detect the language of each recording of SOURCE, in a few windows that are spread over it.

    \b
    Examples:
      voxbatch language recordings/ -o languages
      voxbatch language calls.jsonl -o languages --candidates en,de,fr

    SOURCE is what `voxbatch run` takes. OUT/languages.jsonl has the language of each recording, and is a manifest for
    voxbatch run. OUT/summary.json has the recordings and the hours of each language.
    """
    own = DetectionOptions(**{name: settings.pop(name) for name in _OWN})
    start(ctx, own=own, serving_properties=None, vllm_config=None, **settings)
