"""Say what is wrong with a command line that click refuses, and what to type instead."""

from __future__ import annotations

import click

MEANT = {
    "transcribe": "voxbatch run SOURCE transcribes",
    "help": "Try voxbatch --help",
    "version": "Try voxbatch --version",
}
"""Words that people type as commands, and the answer."""
_OPTIONS_ELSEWHERE = {
    **dict.fromkeys(("--beam-size", "--beam_size"), "With faster-whisper: --engine-option beam_size=5"),
    **dict.fromkeys(("--compute-type", "--compute_type"), "With faster-whisper: --engine-option compute_type=int8"),
    "--device": "With faster-whisper: --engine-option device=cuda; vLLM takes all GPUs",
    "--threads": "With faster-whisper: --engine-option threads=4",
    "--batch-size": "The engine fills its batches by itself",
    "--task": "For a translation: voxbatch ask SOURCE --translate-to en, with a Voxtral model on a GPU",
    "--translate": "For a translation: voxbatch ask SOURCE --translate-to en, with a Voxtral model on a GPU",
    **dict.fromkeys(("--diarize", "--min-speakers", "--max-speakers"), "Speakers are told apart by --speakers 2-4"),
    "--output-dir": "OUT is given by -o",
    "--output-format": "Formats are given by --formats srt,vtt",
    "--word-timestamps": "Each output has the times of words",
    "--lang": "The language is given by --language",
    "--version": "The version is shown by voxbatch --version",
    **dict.fromkeys(("--verbose", "--debug"), "The log has everything already"),
}
"""Options of other programs, and what voxbatch has in their place."""
DESTRUCTIVE = ("--overwrite", "--drop")
"""Options that no message suggests, because they delete what somebody may still need."""
_MISSING_SOURCE = """

Give one of these as SOURCE:
  voxbatch run talk.mp3      a recording
  voxbatch run recordings/   a folder of recordings
  voxbatch run calls.jsonl   a manifest"""


def usage(error: click.ClickException) -> str:
    """Return the usage of the command that refused its arguments, or "" for another error."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return ""
    return f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n"


def message_of(error: click.ClickException) -> str:
    """Return the message of an error, with what to type instead if that is known."""
    if isinstance(error, click.NoSuchOption) and (place := _OPTIONS_ELSEWHERE.get(error.option_name)):
        return f"{error.message} {place}."
    if isinstance(error, click.NoSuchOption):
        harmless = [name for name in error.possibilities or () if name not in DESTRUCTIVE]
        error = click.NoSuchOption(error.option_name, error.message, harmless, error.ctx)
    message = error.format_message()
    if isinstance(error, click.MissingParameter) and error.ctx is not None and error.param is not None:
        message += _MISSING_SOURCE if (error.ctx.info_name, error.param.name) == ("run", "source") else ""
    return message
