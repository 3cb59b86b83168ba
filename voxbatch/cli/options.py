"""The options of the commands, and the RunOptions that they make.

Order of precedence: a flag, a VOXBATCH_* variable, a file for vLLM (serving.properties or vLLM's own), a profile's
setting, a default.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from voxbatch.answer_options import AnswerOptions
from voxbatch.cli.commands import WithFormats, format_name
from voxbatch.config import FORMATS, LOG_FORMATS, PROFILE_KEYS, RETRY_CHOICES, RunOptions, check_include, load_profile
from voxbatch.errors import ConfigError
from voxbatch.languages import language_name, language_tag, unknown_language
from voxbatch.platforms import tasks
from voxbatch.questions import QuestionOptions, checked_schema, checked_tools, translation_prompt
from voxbatch.safe_text import counted
from voxbatch.storage.options import StoreOptions

if TYPE_CHECKING:
    from voxbatch.engines.vllm.config_keys import FileSettings

Command = Callable[..., Any]

MAX_FILE_BYTES = 1 << 20
"""Size of the largest file with a question, a JSON schema or functions."""
LOG_FORMAT = "voxbatch.log_format"
"""Key of click's `obj`, which the console script reads: the value of --log-format."""

_PROFILE_OPTIONS, _PROFILE_ENGINE = "voxbatch.profile_options", "voxbatch.profile_engine"
"""Keys of click's `meta`: the engine options and the engine of the profile that was given."""


class ForwardedOption(click.Option):
    """An option of `run` that `submit` and `listen` pass on to the runs that they start on other machines."""

    def __init__(self, *args: Any, is_local: bool = False, **settings: Any):
        """Build the option.

        Args:
            args: see click.Option.
            is_local: a variable sets the option for this machine only. A flag sets it for the other machines.
            settings: see click.Option.
        """
        super().__init__(*args, **settings)
        self._is_local = is_local

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the text of the option and its source, and remember the text for `arguments`."""
        text, source = super().consume_value(ctx, opts)
        ctx.meta[f"voxbatch.text.{self.name}"] = text
        return text, source

    def arguments(self, ctx: click.Context) -> list[str]:
        """Return the option as arguments for other machines; [] if neither a flag nor a variable gave it."""
        source = ctx.get_parameter_source(str(self.name))
        if not (
            source is ParameterSource.COMMANDLINE or (source is ParameterSource.ENVIRONMENT and not self._is_local)
        ):
            return []
        name, text = max(self.opts, key=len), ctx.meta[f"voxbatch.text.{self.name}"]
        if self.is_flag:
            return [name] if self.type_cast_value(ctx, text) else self.secondary_opts[:1]
        return [part for each in (text if self.multiple else [text]) for part in (name, str(each))]


def forwarded(ctx: click.Context, omit: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the options of `run` that were given by flags and variables, as arguments for a run elsewhere.

    Args:
        ctx: the parsed command.
        omit: names of options that have another meaning for this command; they are left out.
    """
    options = [each for each in ctx.command.params if isinstance(each, ForwardedOption) and each.name not in omit]
    return tuple(argument for each in options for argument in each.arguments(ctx))


class OptionalValueCommand(WithFormats):
    """A command whose option --retry-failed may stand without a value, also before an argument. Click's own optional
    values would take the argument for the value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give --retry-failed its value if the next word is not one, and parse."""
        parsed = [
            f"{name}={RETRY_CHOICES[0]}" if name == "--retry-failed" and after not in RETRY_CHOICES else name
            for name, after in zip(args, [*args, ""][1:], strict=True)
        ]
        return super().parse_args(ctx, parsed)


def option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """Return a click option that can also be given as the variable VOXBATCH_NAME."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    settings.setdefault("envvar", "VOXBATCH_" + long[2:].upper().replace("-", "_"))
    return click.option(*names, **settings)


run_option = functools.partial(option, cls=ForwardedOption)


def _read_profile(ctx: click.Context, _: click.Parameter, name: str | None) -> str | None:
    """Make the profile's settings the defaults of the other options.

    They rank below flags and VOXBATCH_* variables, and above the built-in defaults.
    """
    if name:
        settings = load_profile(name)
        settings.pop("description", None)
        given = settings.pop("engine_options", {})
        ctx.meta[_PROFILE_OPTIONS] = {key: str(value) for key, value in given.items()}
        ctx.meta[_PROFILE_ENGINE] = settings.get("engine")
        ctx.default_map = {**(ctx.default_map or {}), **settings}
    return name


def comma(_: click.Context, __: click.Parameter, value: Any) -> tuple[str, ...]:
    """Split a list at commas; drop empty parts."""
    parts = value.split(",") if isinstance(value, str) else value or ()
    return tuple(part.strip() for part in parts if part.strip())


def language(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Return the tag of a language that is given as a tag or as a name.

    Raises:
        BadParameter: the language is unknown.
    """
    if value is None:
        return None
    tag = language_tag(value)
    if reason := unknown_language(tag):
        raise click.BadParameter(f"{value!r}: {reason}")
    return tag


def format_names(ctx: click.Context, param: click.Parameter, value: Any) -> tuple[str, ...]:
    """Split a list of formats at commas; ".SRT" is srt."""
    return tuple(map(format_name, comma(ctx, param, value)))


def log_format(ctx: click.Context, _: click.Parameter, value: str) -> str:
    """Remember the format of the log for errors that end the command."""
    ctx.ensure_object(dict)[LOG_FORMAT] = value
    return value


def name_value(_: click.Context, __: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    """Parse NAME=VALUE options.

    Raises:
        BadParameter: a value without a name or without "=".
    """
    pairs = [value.partition("=") for value in values]
    if bad := [name for name, equals, _ in pairs if not equals or not name]:
        raise click.BadParameter(f"{bad[0]!r}: give NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _workers(_: click.Context, __: click.Parameter, value: Any) -> int:
    if value == "auto":
        return 0
    try:
        return int(value)
    except ValueError as e:
        raise click.BadParameter(f"{value!r}: give auto or a number") from e


def _shard(_: click.Context, __: click.Parameter, text: str) -> tuple[int, int] | None:
    from voxbatch.runner.shard import parse_shard

    return None if text == tasks.AUTO else parse_shard(text)


def _patterns(_: click.Context, __: click.Parameter, patterns: tuple[str, ...]) -> tuple[str, ...]:
    check_include(patterns)
    return patterns


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return one decorator that adds all of the options, in this order."""

    def decorate(command: Command) -> Command:
        for each in reversed(options):
            command = each(command)
        return command

    return decorate


class PathOrAddress(click.Path):
    """An existing local path, or an address."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return an address as it is; check that a local path exists."""
        from voxbatch.storage import is_remote

        return value if is_remote(str(value)) else super().convert(value, param, ctx)


class FolderOrAddress(PathOrAddress):
    """An existing local folder, or an address."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False)


def _one_or_several(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> str | tuple[str, ...]:
    return names[0] if len(names) == 1 else names


source_argument = click.argument("source", nargs=-1, required=True, callback=_one_or_several)

include_option = run_option(
    "--include", multiple=True, callback=_patterns, metavar="GLOB",
    help="From a folder, take only recordings whose path or name matches GLOB, e.g. '*.flac'; * also matches /. "
    "Repeatable.",
)  # fmt: skip

manifest_options = _options(
    run_option("--limit", type=click.IntRange(min=1), metavar="N", help="Take only the first N items."),
    include_option,
    run_option("--allow-outside", is_flag=True,
               help="Let the manifest name any local file and any address, not only those next to it."),
    run_option("--only-under", multiple=True, metavar="PLACE",
               help="Let the manifest name only files below PLACE, a folder or the address of a folder. Repeatable."),
)  # fmt: skip

_store_options = _options(
    run_option("--s3-endpoint-url", metavar="URL",
               help="Address of an S3-compatible service. Default: AWS_ENDPOINT_URL_S3, or Amazon's."),
    run_option("--anonymous", is_flag=True, help="Access public buckets without credentials."),
    run_option("--requester-pays", is_flag=True, help="Pay for requests to requester-pays buckets."),
    run_option("--allow-private-addresses", is_flag=True,
               help="Let http(s) addresses lead to this machine and to private networks."),
    run_option("--max-http-gb", type=float, default=4.0, show_default=True, metavar="GB",
               help="Refuse larger files at http(s) addresses (2^30 bytes each)."),
)  # fmt: skip

_OUT = option(
    "-o", "--out", metavar="OUT",
    help="Folder of the outputs. Default: NAME.voxbatch next to SOURCE, or in the current folder if SOURCE is on a web "
    "server or a whole bucket.",
)  # fmt: skip

_PROFILE = run_option(
    "--profile", is_eager=True, callback=_read_profile, metavar="NAME",
    help="Use the settings of a profile; see voxbatch profiles.",
)  # fmt: skip

_SERVING_PROPERTIES = option(
    "--serving-properties", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
    help="A serving.properties file with the model and vLLM's settings; it overrides the profile.",
)  # fmt: skip

_VLLM_CONFIG = option(
    "--vllm-config", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
    help="The same as a YAML file in the format of vLLM's own --config.",
)  # fmt: skip

_REPORT = run_option(
    "--report/--no-report", default=None,
    help="Write report.html, a page with the error rates and with each item's text and audio. Default: if OUT is a "
    "local folder.",
)  # fmt: skip

_ITEM_FILES = (
    run_option("--formats", default="", callback=format_names, metavar="LIST",
               help=f"Write one file per item in each of these formats: {','.join(FORMATS)}."),
    run_option("--beside", is_flag=True,
               help="Write them (srt by default) also beside the recordings: talk.srt next to talk.mp4. Files "
               "of others stay."),
    _REPORT,
    run_option("--max-line", type=int, default=42, show_default=True, metavar="N",
               help="Longest line of a subtitle in columns. A Chinese or Japanese character takes two."),
    run_option("--max-lines", type=int, default=2, show_default=True, metavar="N", help="Most lines of a subtitle."),
    run_option("--max-cps", type=float, default=20.0, show_default=True, metavar="N",
               help="Columns per second that a reader can follow: a subtitle is shown longer where there is room."),
)  # fmt: skip

_MODEL = run_option(
    "--model", metavar="MODEL", help="A folder, a name on the hub, gs:// or s3://. Default: the engine's own model.",
)  # fmt: skip

_ENGINE_OPTION = run_option(
    "--engine-option", multiple=True, callback=name_value, metavar="NAME=VALUE",
    help="An option of this engine only, e.g. beam_size=1. Repeatable.",
)  # fmt: skip

_ENGINE_NAME = run_option(
    "--engine", default="auto", show_default=True, metavar="NAME", help="auto, vllm, faster-whisper or scripted.",
)  # fmt: skip

_KERNEL_CACHE = run_option(
    "--kernel-cache", metavar="PLACE",
    help="A folder, gs:// or s3:// prefix from which the kernels of an earlier run with the same GPU, model and "
    "settings are fetched, and where they are stored if they are not there. Engine vllm only.",
)  # fmt: skip

_AUDIO_STREAM = run_option(
    "--audio-stream", type=int, metavar="N",
    help="Audio stream to take, from 0, of recordings that have several, such as a film in two languages. Default: the "
    "first one with sound.",
)  # fmt: skip

_ENGINE = (
    _ENGINE_NAME,
    _MODEL,
    _ENGINE_OPTION,
    run_option("--prefill-encoder/--no-prefill-encoder", default=None,
               help="Run Voxtral Realtime's encoder once per chunk, or as stock vLLM does. Default: once per chunk "
               "with the versions of vLLM for which this is proven."),
    _KERNEL_CACHE,
    run_option("--language", metavar="LANG",
               help="Language of items that do not name one, e.g. en. Default: the engine decides."),
    _AUDIO_STREAM,
    *_ITEM_FILES,
)  # fmt: skip

_TASK = (
    option("--shard", default=tasks.AUTO, show_default=True, callback=_shard, metavar="auto|I/N",
           help="Do part I (from 0) of N; auto: the part of this task, or everything if there is one task."),
    option("--tasks", type=click.Choice((tasks.AUTO, tasks.NONE, *tasks.PLATFORMS)), default=tasks.AUTO,
           show_default=True, metavar="NAME",
           help=f"Platform that says which of several tasks this process is: {', '.join(tasks.PLATFORMS)}; auto: "
           "detect it; none: ignore the environment."),
    option("--resume/--overwrite", default=True, help="Continue the run in OUT (default), or erase its outputs first."),
    option("--update", is_flag=True,
           help="Continue the run in OUT even if the manifest has changed: keep the transcripts of unchanged lines. A "
           "folder needs no --update, unless it may be empty: then there is nothing to do, and the exit code is 0."),
    option("--retry-failed", type=click.Choice(RETRY_CHOICES), metavar="[retryable|all]",
           help="Do the failed items of OUT again: those that may succeed with nothing changed (retryable, default), "
           "or all."),
)  # fmt: skip

_CALIBRATION = run_option(
    "--calibration", type=PathOrAddress(exists=True), metavar="FILE",
    help="Estimate the WER of a run without references: a file that `voxbatch calibrate` wrote.",
)  # fmt: skip

_EFFORT = (
    run_option("--fail-unreachable", is_flag=True,
               help="Record recordings as failed if their store is down or denies access. Default: stop, so that the "
               "run can continue later."),
    run_option("--max-hours", type=float, default=24.0, show_default=True, metavar="H",
               help="Fail items with more than H hours of audio."),
    run_option("--part-items", type=int, default=200, show_default=True, metavar="K",
               help="Commit a part after K finished items …"),
    run_option("--part-seconds", type=float, default=30.0, show_default=True, metavar="T",
               help="… or after T seconds, whichever comes first. A kill loses at most this work."),
    run_option("--decoders", type=int, default=0, is_local=True, metavar="N",
               help="Decoder processes for each worker. Default: one per core in total, and at most 16 for each "
               "worker."),
    run_option("--workers", default="auto", show_default=True, callback=_workers, is_local=True, metavar="auto|N",
               help="Processes that run in parallel: one for each GPU, or at most N."),
)  # fmt: skip

_DRY_RUN = option("--dry-run", is_flag=True, help="Print items, hours, chunks, estimated time and cost, then exit.")

_EXPECTED = (
    option("--expected-rtfx", type=float, metavar="X",
           help="For estimates: seconds of audio per second of one machine. Default: the profile's value, or for "
           "Voxtral Realtime a calculation for the GPU."),
    run_option("--usd-per-hour", type=float, metavar="USD",
               help="Price of one machine. Default: the price known to voxbatch on Cloud Run and SageMaker, elsewhere "
               "none: no cost is shown."),
)  # fmt: skip

_ENDING = (
    run_option("-q", "--quiet", is_flag=True, help="Print no progress and no transcripts, only warnings and errors."),
    run_option("--exit-zero", is_flag=True,
               help="Exit with 0 instead of 3 if items failed; failures.jsonl lists them."),
    run_option("--log-format", type=click.Choice(LOG_FORMATS), default="auto", is_eager=True, callback=log_format,
               help="auto: JSON lines in a job on a cloud platform or Kubernetes, text elsewhere."),
)  # fmt: skip

run_options = _options(
    _OUT,
    _PROFILE,
    _SERVING_PROPERTIES,
    _VLLM_CONFIG,
    *_ENGINE,
    *_TASK,
    _CALIBRATION,
    *_EFFORT,
    _DRY_RUN,
    *_EXPECTED,
    *_ENDING,
)

ask_options = _options(
    _OUT,
    _PROFILE,
    _SERVING_PROPERTIES,
    _VLLM_CONFIG,
    _ENGINE_NAME,
    _MODEL,
    _ENGINE_OPTION,
    _KERNEL_CACHE,
    _AUDIO_STREAM,
    _REPORT,
    *_TASK,
    *_EFFORT,
    _DRY_RUN,
    *_EXPECTED,
    *_ENDING,
)
"""The options of `run` that also apply to `ask`: an answer has no language, no subtitles and no calibration."""

question_options = _options(
    run_option("--prompt", metavar="TEXT",
               help="The question about each recording. A `prompt` in a manifest's line is asked instead."),
    run_option("--prompt-file", type=PathOrAddress(exists=True, dir_okay=False), metavar="FILE",
               help="File with the question, in place of --prompt."),
    run_option("--translate-to", callback=language, metavar="LANG",
               help="Ask for a translation into LANG, e.g. en, in place of --prompt."),
    run_option("--system", metavar="TEXT", help="The system prompt."),
    run_option("--max-tokens", type=int, default=1024, show_default=True, metavar="N",
               help="Largest number of tokens of an answer."),
    run_option("--temperature", type=float, default=0.0, show_default=True, metavar="T",
               help="0 takes the likeliest token each time."),
    run_option("--top-p", type=float, default=1.0, show_default=True, metavar="P",
               help="With a temperature: choose among the likeliest tokens whose probabilities add up to P."),
    run_option("--seed", type=int, default=0, show_default=True, metavar="N",
               help="With a temperature: seed of each answer."),
    run_option("--json-schema", type=PathOrAddress(exists=True, dir_okay=False), metavar="FILE",
               help="A JSON schema that each answer follows."),
    run_option("--tools", type=PathOrAddress(exists=True, dir_okay=False), metavar="FILE",
               help="Functions in OpenAI's format, a JSON list, that the model may call. Nothing is executed."),
    run_option("--map-reduce", is_flag=True,
               help="Ask about the parts of a recording that is too long for one question, and then about the "
               "answers. Default: refuse it."),
)  # fmt: skip

job_options = _options(_PROFILE, *_ENGINE, *_EFFORT, *_EXPECTED, *_ENDING)
"""The options of `run` that also apply to a run on other machines.

Such a run has its own OUT and tasks, and sees no file of this machine. It has no --overwrite: one task could erase the
outputs of another task.
"""


server_options = _options(_PROFILE, _SERVING_PROPERTIES, _VLLM_CONFIG, _MODEL, _ENGINE_OPTION)
"""The options of `run` that also apply to a server."""


def store_options(command: Command) -> Command:
    """Add the options for access to stores to a command, which gets them as one argument, `store_options`."""

    @functools.wraps(command)
    def with_store_options(*args: Any, **settings: Any) -> Any:
        return command(*args, **_with_store_options(settings))

    return _store_options(with_store_options)


def _with_store_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the options for access to stores as one StoreOptions."""
    names = {each.name for each in fields(StoreOptions)}
    given = StoreOptions(**{name: value for name, value in settings.items() if name in names})
    return {name: value for name, value in settings.items() if name not in names} | {"store_options": given}


def questions_of(settings: dict[str, Any]) -> QuestionOptions:
    """Return what `ask` asks, and remove the values of `question_options` from the settings.

    Args:
        settings: the values of the options, with store_options among them.

    Raises:
        ConfigError: an option is invalid, a file holds something else, or two options contradict each other.
        StorageError: the address of a file cannot be read.
    """
    prompts = {name: settings.pop(name) for name in ("prompt", "prompt_file", "translate_to")}
    given = [f"--{name.replace('_', '-')}" for name, value in prompts.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} each give the question; leave out all but one")
    access = settings["store_options"]
    prompt = prompts["prompt"]
    if file := prompts["prompt_file"]:
        prompt = read_text("--prompt-file", file, access).strip()
    elif tag := prompts["translate_to"]:
        prompt = translation_prompt(language_name(tag))
    schema, tools = settings.pop("json_schema"), settings.pop("tools")
    names = ("system", "max_tokens", "temperature", "top_p", "seed")
    answer = AnswerOptions(
        **{name: settings.pop(name) for name in names},
        json_schema=checked_schema(read_text("--json-schema", schema, access), schema) if schema else None,
        tools=checked_tools(read_text("--tools", tools, access), tools) if tools else None,
    )
    return QuestionOptions(prompt=prompt, answer=answer, map_reduce=settings.pop("map_reduce"))


def read_text(flag: str, place: str, access: StoreOptions) -> str:
    """Return the content of a small text file, local or at an address.

    Args:
        flag: the option that names the file.
        place: the file.
        access: access to the address.

    Raises:
        ConfigError: it cannot be read, is too large or is not UTF-8.
        StorageError: the address cannot be read.
    """
    from voxbatch.storage import is_remote, open_remote

    try:
        with open_remote(place, access) if is_remote(place) else open(place, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(f"{flag} {place} has more than {MAX_FILE_BYTES:,} bytes; give a smaller file")
        return content.decode()
    except OSError as e:
        raise ConfigError(f"{flag} {place}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"{flag} {place} is not UTF-8; save it again as UTF-8") from e


def is_given(ctx: click.Context, name: str) -> bool:
    """Return whether an option was given by a flag or a variable, not by a profile or a default."""
    return ctx.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def limiting_variables(ctx: click.Context) -> list[str]:
    """Return a sentence for each VOXBATCH_* variable that lets the command take only a part of the items.

    A shell may have inherited such a variable, so the command names it.
    """
    limit, shard = ctx.params.get("limit"), ctx.params.get("shard")
    effects = [("limit", f"={limit} limits this command to {counted(limit, 'item')}")] if limit else []
    if shard and shard[1] > 1:
        effects.append(("shard", f"={shard[0]}/{shard[1]} limits this command to shard {shard[0]} of {shard[1]}"))
    return [
        f"VOXBATCH_{name.upper()}{effect}; unset it to take all items"
        for name, effect in effects
        if ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT
    ]


def run_options_of(ctx: click.Context, settings: Mapping[str, Any], served: FileSettings | None = None) -> RunOptions:
    """Return the RunOptions that the parsed options make.

    Args:
        ctx: the parsed command, whose options include `job_options`.
        settings: the values of the options, without those that the command handles itself.
        served: a file for vLLM; see `file_for_vllm`.

    Raises:
        ConfigError: a value is invalid, or the file is for another engine than the one that was asked for.
    """
    given = dict(settings)
    if served:
        if is_given(ctx, "engine") and given["engine"] not in ("auto", "vllm"):
            raise ConfigError(
                f"{served.flag} {served.file} is for the engine vllm, but --engine is {given['engine']}; leave out one "
                "of them"
            )
        given["engine"] = "vllm"
    given["model"], options = _of_file(ctx, given["model"], served)
    if (prefill_encoder := given.pop("prefill_encoder", None)) is not None:
        options["prefill_encoder"] = str(prefill_encoder).lower()
    options |= given.pop("engine_option")
    if given["engine"] in ("auto", ctx.meta.get(_PROFILE_ENGINE)):
        options = {**ctx.meta.get(_PROFILE_OPTIONS, {}), **options}
    elif ctx.get_parameter_source("model") is ParameterSource.DEFAULT_MAP:
        given["model"] = None  # the model of a profile is for the profile's engine
    return RunOptions(**given, engine_options=options)


def _of_file(ctx: click.Context, model: str | None, served: FileSettings | None) -> tuple[str | None, dict[str, str]]:
    """Return the model, and the engine options of a file for vLLM.

    Args:
        ctx: the parsed command.
        model: the value of --model.
        served: the file, if one was given.
    """
    if served is None:
        return model, {}
    options = dict(served.options)
    if not served.model:
        return model, options
    if is_given(ctx, "model"):
        options.pop("revision", None)  # the revision belongs to the file's model
        return model, options
    return served.model, options


def server_settings(
    ctx: click.Context, model: str | None, engine_option: Mapping[str, str], served: FileSettings | None
) -> tuple[str | None, dict[str, str]]:
    """Return the model and the engine options of a server, by the order of precedence of `run`.

    Args:
        ctx: the parsed command, whose options are `server_options`.
        model: the value of --model.
        engine_option: the value of --engine-option.
        served: a file for vLLM; see `file_for_vllm`.

    Raises:
        ConfigError: the profile is not for vLLM.
    """
    if (engine := ctx.meta.get(_PROFILE_ENGINE)) not in (None, "vllm"):
        raise ConfigError(
            f"--profile {ctx.params['profile']} is for the engine {engine}, and only vllm has a server; see voxbatch "
            "profiles"
        )
    model, options = _of_file(ctx, model, served)
    return model, {**ctx.meta.get(_PROFILE_OPTIONS, {}), **options, **engine_option}


def file_for_vllm(serving_properties: str | None, vllm_config: str | None) -> FileSettings | None:
    """Return the settings of the file for vLLM that was given; None if none was.

    Raises:
        ConfigError: two files were given, or a file is invalid.
    """
    if serving_properties and vllm_config:
        raise ConfigError(
            f"--serving-properties {serving_properties} and --vllm-config {vllm_config} both set vLLM; leave out one "
            "of them"
        )
    if serving_properties:
        from voxbatch.engines.vllm import serving_properties as properties_file

        return properties_file.read(serving_properties)
    if vllm_config:
        from voxbatch.engines.vllm import vllm_config as config_file

        return config_file.read(vllm_config)
    return None


def parsed_run_options(ctx: click.Context) -> RunOptions:
    """Return the RunOptions of a parsed `run` command, whatever its shard.

    Raises:
        ConfigError: see `run_options_of` and `file_for_vllm`.
    """
    names = {each.name for each in fields(RunOptions)} - {"shard"} | {"engine_option", "prefill_encoder"}
    settings = {name: value for name, value in _with_store_options(ctx.params).items() if name in names}
    served = file_for_vllm(ctx.params["serving_properties"], ctx.params["vllm_config"])
    return run_options_of(ctx, settings, served)


def resolved_profile(name: str, command: click.Command) -> dict[str, Any]:
    """Return the settings of a run that has this profile and no other option; its input and output are left out."""
    parent = click.get_current_context(silent=True)  # without a parent, the command would lose -h
    with command.make_context(command.name, ["--profile", name, "-"], parent) as ctx:
        settings = parsed_run_options(ctx).to_dict()
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in settings.items()
        if name in PROFILE_KEYS
    }
