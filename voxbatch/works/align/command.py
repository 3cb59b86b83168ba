"""`voxbatch align`: find the times of given texts. It is `voxbatch run` with the task `align`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from voxbatch.cli.options import (
    MANIFEST_SETTINGS,
    RunCommand,
    manifest_options,
    setting_option,
    source_argument,
    store_options,
    work_options,
)
from voxbatch.cli.run_command import start
from voxbatch.config import RunOptions
from voxbatch.records import ALIGN
from voxbatch.settings import settings_of
from voxbatch.works.align import SETTINGS


@click.command(
    cls=RunCommand,
    short_help="Find the times of the words of given texts.",
    epilog="Each option can also be given as an environment variable: VOXBATCH_MODEL, VOXBATCH_FORMATS, …",
)
@source_argument
@setting_option(replace(settings_of(RunOptions)["engine"], help="auto, pocketsphinx (English) or ctc."))
@work_options(SETTINGS - {"engine", *MANIFEST_SETTINGS})
@manifest_options
@store_options
@click.pass_context
def align(ctx: click.Context, /, **settings: Any) -> None:
    """Find when each word of a known text is spoken: the `text` of each row of SOURCE.

    \b
    Examples:
      voxbatch align book.jsonl -o out --formats srt,textgrid
      voxbatch align talks.jsonl -o out --language de --model models/wav2vec2-de

    The output has the same text with times, as subtitles too. Text that is not in the audio gets none, and a warning.
    English needs no --model. A model is a folder, gs:// or s3:// with a CTC network (model.onnx, vocab.json).
    """
    start(ctx, task=ALIGN, serving_properties=None, vllm_config=None, **settings)
