"""`voxbatch ask`: ask a question about each recording, with the checkpoint, shards and outputs of `voxbatch run`."""

from __future__ import annotations

from typing import Any

import click

from voxbatch.cli.options import (
    FILE,
    MANIFEST_SETTINGS,
    ForwardedOption,
    RunCommand,
    combined,
    language,
    manifest_options,
    option,
    setting_option,
    source_argument,
    store_options,
    work_options,
)
from voxbatch.cli.run_command import start
from voxbatch.cli.text_files import read_text
from voxbatch.errors import ConfigError
from voxbatch.languages import language_name
from voxbatch.records import AnswerOptions
from voxbatch.settings import QUESTION, settings_of
from voxbatch.works.ask import SETTINGS
from voxbatch.works.ask.answer_format import checked_schema, checked_tools
from voxbatch.works.ask.options import QuestionOptions

_QUESTION = settings_of(QuestionOptions)
further_question_options = combined(
    option("--prompt-file", cls=ForwardedOption, group=QUESTION, metavar="FILE", **FILE,
           help="File with the question, in place of --prompt."),
    option("--translate-to", cls=ForwardedOption, callback=language, group=QUESTION, metavar="LANG",
           help="Ask for a translation into LANG, e.g. en, in place of --prompt."),
    *map(setting_option, settings_of(AnswerOptions).values()),
    setting_option(_QUESTION["map_reduce"]),
)  # fmt: skip
"""The options of questions but --prompt."""
question_options = combined(setting_option(_QUESTION["prompt"]), further_question_options)


@click.command(
    cls=RunCommand,
    short_help="Ask a question about each recording.",
    epilog="Each option can also be given as an environment variable: VOXBATCH_PROMPT, VOXBATCH_MAX_TOKENS, …",
)
@source_argument
@question_options
@work_options(SETTINGS - {*MANIFEST_SETTINGS}, files_for_vllm=True)
@manifest_options
@store_options
@click.pass_context
def ask(ctx: click.Context, /, **settings: Any) -> None:
    """Ask a question about each recording of SOURCE: a summary, facts as JSON, a translation, calls of functions.

    SOURCE is what `voxbatch run` takes. A manifest's line may have a `prompt` of its own, and several recordings in
    `audio_filepaths`. The answers are in OUT/transcripts.jsonl. Engine vllm with Voxtral Mini 3B or Small 24B.
    """
    start(ctx, own=questions_of(settings), **settings)


def questions_of(settings: dict[str, Any]) -> QuestionOptions:
    """Return what `ask` asks, and remove the values of `question_options` from the settings.

    Args:
        settings: the values of the options, with `stores` among them.

    Raises:
        ConfigError: an option is invalid, a file holds something else, or two options contradict each other.
        StorageError: the address of a file cannot be read.
    """
    prompts = {name: settings.pop(name) for name in ("prompt", "prompt_file", "translate_to")}
    flags = [f"--{name.replace('_', '-')}" for name, value in prompts.items() if value is not None]
    if len(flags) > 1:
        raise ConfigError(f"{' and '.join(flags)} each give the question; leave out all but one")
    stores = settings["stores"]
    prompt = prompts["prompt"]
    if file := prompts["prompt_file"]:
        prompt = read_text("--prompt-file", file, stores).strip()
    elif tag := prompts["translate_to"]:
        prompt = (
            f"Translate everything that is said in the recording into {language_name(tag)}. Answer with the "
            "translation only."
        )
    schema, tools = settings.pop("json_schema"), settings.pop("tools")
    answer = AnswerOptions(
        **{name: settings.pop(name) for name in settings_of(AnswerOptions) if name in settings},
        json_schema=checked_schema(read_text("--json-schema", schema, stores), schema) if schema else None,
        tools=checked_tools(read_text("--tools", tools, stores), tools) if tools else None,
    )
    return QuestionOptions(prompt=prompt, answer=answer, map_reduce=settings.pop("map_reduce"))


class _SubmittedQuestions:
    """See submit_command.SubmittedKind."""

    command = ask
    help = "Ask questions, as voxbatch ask does, with the options of --prompt."
    prompt_help = (
        "With --ask, the question about each recording. Otherwise, for Whisper models, a text that could stand before "
        "each recording, in its style and with its names."
    )
    options = staticmethod(further_question_options)
    own_options = staticmethod(questions_of)


SUBMITTED = _SubmittedQuestions()
