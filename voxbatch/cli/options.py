"""The options of the commands, and the Config that they make.

Order of precedence: a flag, a VOXBATCH_* variable, a file for vLLM (serving.properties or vLLM's own), a profile's
setting, a default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from voxbatch.config import FORMATS, LOG_FORMATS, PROFILE_KEYS, Config, load_profile
from voxbatch.errors import ConfigError
from voxbatch.platforms import tasks
from voxbatch.platforms.tasks import sagemaker

if TYPE_CHECKING:
    from voxbatch.engines.vllm.config_keys import FileSettings

Command = Callable[..., Any]


def option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """Return a click option that can also be given as the variable VOXBATCH_NAME."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    settings.setdefault("envvar", "VOXBATCH_" + long[2:].upper().replace("-", "_"))
    return click.option(*names, **settings)


def _use_profile(ctx: click.Context, _: click.Parameter, name: str | None) -> str | None:
    """Make the profile's settings the defaults of the other options.

    They rank below flags and VOXBATCH_* variables, and above the built-in defaults.
    """
    if name:
        settings = load_profile(name)
        settings.pop("description", None)
        given = settings.pop("engine_options", {})
        ctx.meta["voxbatch.profile_options"] = {key: str(value) for key, value in given.items()}
        ctx.meta["voxbatch.profile_engine"] = settings.get("engine")
        ctx.default_map = {**(ctx.default_map or {}), **settings}
    return name


def comma(_: click.Context, __: click.Parameter, value: Any) -> tuple[str, ...]:
    """Split a list at commas; drop empty parts."""
    parts = value.split(",") if isinstance(value, str) else value or ()
    return tuple(part.strip() for part in parts if part.strip())


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
    if text == tasks.AUTO:
        return None
    from voxbatch.runner.shard import parse_shard

    return parse_shard(text)


def _properties(_: click.Context, __: click.Parameter, file: str | None) -> FileSettings | None:
    if file is None:
        return None
    from voxbatch.engines.vllm.serving_properties import read

    return read(file)


def _vllm_config(_: click.Context, __: click.Parameter, file: str | None) -> FileSettings | None:
    if file is None:
        return None
    from voxbatch.engines.vllm.vllm_config import read

    return read(file)


def _together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for each in reversed(options):
            command = each(command)
        return command

    return decorate


class _PathOrAddress(click.Path):
    """An existing local path, or an address."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return an address as it is; check that a local path exists."""
        from voxbatch.storage import is_remote

        return value if is_remote(str(value)) else super().convert(value, param, ctx)


class FolderOrAddress(_PathOrAddress):
    """An existing local folder, or an address."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False)


class FileOrAddress(_PathOrAddress):
    """An existing local file, or an address."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False)


include_option = option(
    "--include", multiple=True, metavar="GLOB",
    help="From a folder, take only recordings whose path or name matches GLOB, e.g. '*.flac'; * also matches /. "
    "Repeatable.",
)  # fmt: skip

manifest_options = _together(
    option("--limit", type=click.IntRange(min=1), metavar="N", help="Take only the first N items."),
    include_option,
    option("--allow-outside", is_flag=True,
           help="Let the manifest name any local file and any address, not only those next to it."),
    option("--only-under", multiple=True, metavar="PLACE",
           help="Let the manifest name only files below PLACE, a folder or the address of a folder. Repeatable."),
)  # fmt: skip

access_options = _together(
    option("--s3-endpoint-url", metavar="URL",
           help="Address of an S3-compatible service. Default: AWS_ENDPOINT_URL_S3, or Amazon's."),
    option("--anonymous", is_flag=True, help="Access public buckets without credentials."),
    option("--requester-pays", is_flag=True, help="Pay for requests to requester-pays buckets."),
    option("--allow-private-addresses", is_flag=True,
           help="Let http(s) addresses lead to this machine and to private networks."),
    option("--max-http-gb", type=float, default=4.0, show_default=True, metavar="GB",
           help="Refuse larger files at http(s) addresses (2^30 bytes each)."),
)  # fmt: skip

_OUT = option(
    "-o", "--out", metavar="OUT",
    help="Folder of the outputs. Default: NAME.voxbatch next to SOURCE, or in the current folder if SOURCE is on a web "
    "server or a whole bucket.",
)  # fmt: skip

_PROFILE = option(
    "--profile", is_eager=True, callback=_use_profile, metavar="NAME",
    help="Use the settings of a profile; see voxbatch profiles.",
)  # fmt: skip

_SERVING_PROPERTIES = option(
    "--serving-properties", type=click.Path(exists=True, dir_okay=False), callback=_properties, metavar="FILE",
    help="A serving.properties file with the model and vLLM's settings; it overrides the profile.",
)  # fmt: skip

_VLLM_CONFIG = option(
    "--vllm-config", type=click.Path(exists=True, dir_okay=False), callback=_vllm_config, metavar="FILE",
    help="The same as a YAML file in the format of vLLM's own --config.",
)  # fmt: skip

_ENGINE = (
    option("--engine", default="auto", show_default=True, metavar="NAME",
           help="auto, vllm, faster-whisper or scripted."),
    option("--model", metavar="MODEL",
           help="A folder, a name on the hub, gs:// or s3://. Default: the engine's own model."),
    option("--engine-option", multiple=True, callback=name_value, metavar="NAME=VALUE",
           help="An option of this engine only, e.g. beam_size=1. Repeatable."),
    option("--prefill-encoder/--no-prefill-encoder", default=None,
           help="Run Voxtral Realtime's encoder once per chunk, or as stock vLLM does. Default: once per chunk with "
           "the versions of vLLM for which this is proven."),
    option("--language", metavar="LANG",
           help="Language of items that do not name one, e.g. en. Default: the engine decides."),
    option("--formats", default="", callback=comma, metavar="LIST",
           help=f"Write one file per item in each of these formats: {','.join(FORMATS)}."),
)  # fmt: skip

_TASK = (
    option("--shard", default=tasks.AUTO, show_default=True, callback=_shard, metavar="auto|I/N",
           help="Do part I (from 0) of N; auto: the part of this task, or everything if there is one task."),
    option("--tasks", type=click.Choice((tasks.AUTO, tasks.NONE, *tasks.PLATFORMS)), default=tasks.AUTO,
           show_default=True, metavar="NAME",
           help=f"Platform that says which of several tasks this process is: {', '.join(tasks.PLATFORMS)}; auto: "
           "detect it; none: ignore the environment."),
    option("--resume/--overwrite", default=True, help="Continue the run in OUT (default), or erase its outputs first."),
)  # fmt: skip

_EFFORT = (
    option("--fail-unreachable", is_flag=True,
           help="Record recordings as failed if their store is down or denies access. Default: stop, so that the run "
           "can continue later."),
    option("--part-items", type=int, default=200, show_default=True, metavar="K",
           help="Commit a part after K finished items …"),
    option("--part-seconds", type=float, default=30.0, show_default=True, metavar="T",
           help="… or after T seconds, whichever comes first. A kill loses at most this work."),
    option("--decoders", type=int, default=0, metavar="N",
           help="Decoder processes for each worker. Default: one per core in total, and at most 16 for each worker."),
    option("--workers", default="auto", show_default=True, callback=_workers, metavar="auto|N",
           help="Processes that run in parallel: one for each GPU, or at most N."),
)  # fmt: skip

_DRY_RUN = option("--dry-run", is_flag=True, help="Print items, hours, chunks, estimated time and cost, then exit.")

_EXPECTED = (
    option("--expected-rtfx", type=float, metavar="X",
           help="For estimates: seconds of audio per second of one machine. Default: the profile's value, or for "
           "Voxtral Realtime a calculation for the GPU."),
    option("--usd-per-hour", type=float, metavar="USD",
           help="Price of one machine. Default: on Cloud Run and SageMaker the price known to voxbatch, else the "
           "profile's."),
)  # fmt: skip

_ENDING = (
    option("-q", "--quiet", is_flag=True, help="Print no progress and no transcripts, only warnings and errors."),
    option("--exit-zero", is_flag=True, help="Exit with 0 instead of 3 if items failed; failures.jsonl lists them."),
    option("--log-format", type=click.Choice(LOG_FORMATS), default="auto",
           help="auto: text on a terminal, JSON lines elsewhere."),
)  # fmt: skip

run_options = _together(
    _OUT, _PROFILE, _SERVING_PROPERTIES, _VLLM_CONFIG, *_ENGINE, *_TASK, *_EFFORT, _DRY_RUN, *_EXPECTED, *_ENDING
)

job_options = _together(_PROFILE, *_ENGINE, *_EFFORT, *_EXPECTED, *_ENDING)
"""The options of `run` that also apply to a run on other machines.

Such a run has its own OUT and tasks, and sees no file of this machine. It has no --overwrite: one task could erase the
outputs of another task.
"""


class Forwarding(click.Command):
    """A command that can return the options of `run` that it was given; see `forwarded`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and keep them for `forwarded`."""
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


_ARGUMENTS = "voxbatch.arguments"
_OWN = {"source", "out", "shard", "tasks", "resume", "serving_properties", "vllm_config", "dry_run", "expected_rtfx"}
"""Options of `run` that have another meaning, or none, for a command that starts a run elsewhere."""
_OF_A_MACHINE = {"decoders", "workers"}
"""Options that a variable sets for this machine only; a flag sets them for the other machine."""


def forwarded(ctx: click.Context, but: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the options of `run` that were given by flags and variables, as arguments for a run elsewhere.

    Args:
        but: names of options that have another meaning for this command; they are left out.
    """
    given, _, _ = ctx.command.make_parser(ctx).parse_args(list(ctx.meta[_ARGUMENTS]))
    written: list[str] = []
    for param in ctx.command.params:
        if isinstance(param, click.Option) and param.name in _RUN - _OWN - set(but):
            value, source = param.consume_value(ctx, given)
            from_here = source is ParameterSource.ENVIRONMENT and param.name not in _OF_A_MACHINE
            if source is ParameterSource.COMMANDLINE or from_here:
                written += _written(ctx, param, value)
    return tuple(written)


def _written(ctx: click.Context, param: click.Option, value: Any) -> list[str]:
    name = max(param.opts, key=len)
    if param.is_flag:
        return [name] if param.type_cast_value(ctx, value) else []
    return [text for each in (value if param.multiple else [value]) for text in (name, str(each))]


@click.command()
@click.argument("source")
@run_options
@manifest_options
@access_options
def _run(**_: Any) -> None:
    """A command that exists only for its list of options."""


_RUN = {param.name for param in _run.params}


def own_task(source: str, settings: dict[str, Any]) -> tasks.Task | None:
    """Return the task that this process is, and set the shard in `settings` unless --shard sets it.

    Returns:
        None if this process is no task of a platform.

    Raises:
        ConfigError: the environment contradicts itself or --shard.
    """
    engine, asked = settings.pop("tasks"), settings["shard"]
    root = sagemaker.root_folder(os.environ)
    task = tasks.find(os.environ, root, engine, asked and asked[1])
    settings["shard"] = tasks.shard_of(task, asked)
    if task and task.platform == "sagemaker" and task.count > 1:
        sagemaker.refuse_sharded_input(source, root)
    return task


def _prefill(settings: dict[str, Any]) -> dict[str, str]:
    asked = settings.pop("prefill_encoder", None)
    return {} if asked is None else {"prefill_encoder": str(asked).lower()}


def priced(ctx: click.Context, config: Config, task: tasks.Task | None) -> Config:
    """Set the price of the machine that this task runs on, if the price is known and --usd-per-hour was not given."""
    if task is None or is_given(ctx, "usd_per_hour"):
        return config
    from voxbatch import engines, prices

    instance_type = sagemaker.instance_type(sagemaker.root_folder(os.environ)) if task.platform == "sagemaker" else None
    known = prices.usd_per_hour(prices.machine(task.platform, instance_type, engines.has_gpu()))
    return config if known is None else replace(config, usd_per_hour=known)


def config_of(ctx: click.Context, source: str, settings: dict[str, Any]) -> Config:
    """Build the Config from the parsed options; the options that `Config` does not have are removed from `settings`."""
    from voxbatch.output.layout import default_out

    shard, shards = settings.pop("shard") or (0, 1)
    options = {**_served(ctx, settings), **_prefill(settings), **settings.pop("engine_option")}
    if settings["engine"] not in ("auto", ctx.meta.get("voxbatch.profile_engine")):
        if ctx.get_parameter_source("model") is click.core.ParameterSource.DEFAULT_MAP:
            settings["model"] = None  # the model of a profile is for the profile's engine
    else:
        options = {**ctx.meta.get("voxbatch.profile_options", {}), **options}
    out = settings.pop("out") or default_out(source)
    overwrite = not settings.pop("resume")
    return Config(
        source=source, out=out, shard=shard, shards=shards, engine_options=options, overwrite=overwrite, **settings
    )


def _served(ctx: click.Context, settings: dict[str, Any]) -> dict[str, str]:
    """Return the engine options of a file for vLLM; set engine and model unless a flag or a variable sets them.

    Raises:
        ConfigError: two files were given, or an engine other than vLLM.
    """
    served: FileSettings | None = settings.pop("serving_properties", None)
    other: FileSettings | None = settings.pop("vllm_config", None)
    if served and other:
        raise ConfigError(
            f"{served.flag} {served.file} and {other.flag} {other.file} both set vLLM; leave one of them out"
        )
    served = served or other
    if served is None:
        return {}
    if is_given(ctx, "engine") and settings["engine"] not in ("auto", "vllm"):
        raise ConfigError(
            f"{served.flag} {served.file} sets the engine vllm, and --engine {settings['engine']} was asked for; leave "
            "one of them out"
        )
    settings["engine"] = "vllm"
    options = dict(served.options)
    if served.model and is_given(ctx, "model"):
        options.pop("revision", None)  # the revision belongs to the file's model
    elif served.model:
        settings["model"] = served.model
    return options


def is_given(ctx: click.Context, name: str) -> bool:
    """Return whether an option was given by a flag or a variable, not by a profile or a default."""
    return ctx.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def resolved_profile(name: str, command: click.Command) -> dict[str, Any]:
    """Return the settings of a run that has this profile and no other option; its input and output are left out."""
    parent = click.get_current_context(silent=True)  # without a parent, the command would lose -h
    with command.make_context(command.name, ["--profile", name, "-"], parent) as ctx:
        own = {"profile", "source", "dry_run", "quiet", "log_format", "tasks", "exit_zero"}
        settings = {key: value for key, value in ctx.params.items() if key not in own}
        config = config_of(ctx, "-", settings).to_dict()
    settings = {key: value for key, value in config.items() if key in PROFILE_KEYS}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
