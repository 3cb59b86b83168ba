"""`voxbatch speak`: make a recording of each text, with the checkpoint, shards and outputs of `voxbatch run`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from voxbatch.cli.options import (
    RunCommand,
    combined,
    format_names,
    option,
    setting_option,
    source_argument,
    store_options,
    work_options,
)
from voxbatch.cli.run_command import start
from voxbatch.config import RunOptions
from voxbatch.settings import settings_of
from voxbatch.works.speak import SETTINGS
from voxbatch.works.speak.options import SpeechOptions

_DECLARED = dict(settings_of(SpeechOptions))
_FORMATS = _DECLARED.pop("audio_formats")
speech_options = combined(
    *map(setting_option, _DECLARED.values()),
    setting_option(replace(settings_of(RunOptions)["engine"], help="auto, hibari, or vllm for Voxtral TTS.")),
    option("--formats", _FORMATS.name, envvar="VOXBATCH_AUDIO_FORMATS", group=_FORMATS.group, callback=format_names,
           metavar=_FORMATS.metavar, default="", help=_FORMATS.help),
)  # fmt: skip


@click.command(
    cls=RunCommand,
    short_help="Speak texts: a list, a book, subtitles.",
    epilog="Each option can also be given as an environment variable: VOXBATCH_VOICE, VOXBATCH_LOUDNESS, …",
)
@source_argument
@speech_options
@work_options(SETTINGS - {"engine"})
@store_options
@click.pass_context
def speak(ctx: click.Context, /, **settings: Any) -> None:
    """Speak each text of SOURCE.

    \b
    Examples:
      voxbatch speak prompts.jsonl -o prompts --formats wav
      voxbatch speak book.epub -o book --formats m4b
      voxbatch speak film.srt -o dub

    SOURCE is JSON lines with `text` (also `id`, `voice`, `lang`), a table with a column `text`, a text or Markdown
    file, an EPUB, or subtitles, whose cues are spoken in their times. OUT/recordings.jsonl is a manifest for voxbatch
    run.
    """
    values = {name: settings.pop(name) for name in settings_of(SpeechOptions)}
    settings |= {"own": SpeechOptions(**values), "serving_properties": None, "vllm_config": None}
    start(ctx, **settings)
