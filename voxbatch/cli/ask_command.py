"""`voxbatch ask`: ask a question about each recording, with the checkpoint, shards and outputs of `voxbatch run`."""

from __future__ import annotations

from typing import Any

import click

from voxbatch.cli.options import (
    OptionalValueCommand,
    ask_options,
    manifest_options,
    question_options,
    questions_of,
    source_argument,
    store_options,
)
from voxbatch.cli.run_command import start


@click.command(
    cls=OptionalValueCommand,
    short_help="Ask a question about each recording.",
    epilog="Each option can also be given as an environment variable: VOXBATCH_PROMPT, VOXBATCH_MAX_TOKENS, …",
)
@source_argument
@question_options
@ask_options
@manifest_options
@store_options
@click.pass_context
def ask(ctx: click.Context, /, **settings: Any) -> None:
    """Ask a question about each recording of SOURCE: a summary, facts as JSON, a translation, calls of functions.

    SOURCE is what `voxbatch run` takes. A manifest's line may have a `prompt` of its own, and several recordings in
    `audio_filepaths`. The answers are in OUT/transcripts.jsonl. Engine vllm with Voxtral Mini 3B or Small 24B.
    """
    start(ctx, questions=questions_of(settings), **settings)
