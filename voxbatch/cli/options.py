"""The options of the commands, and the RunOptions that they make.

Order of precedence: a flag, a VOXBATCH_* variable, a file for vLLM (serving.properties or vLLM's own), a profile's
setting, a default.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, get_args

import click
from click.core import ParameterSource

from voxbatch.cli.commands import COMMANDS, GroupedCommand, format_name
from voxbatch.config import (
    ANY_SPEAKERS,
    FORMATS,
    LOG_FORMATS,
    RETRY_CHOICES,
    ModelChoice,
    RunOptions,
    check_include,
)
from voxbatch.errors import ConfigError
from voxbatch.hints import FORMAT, OPTION, SETTING, SOURCE, hint
from voxbatch.languages import language_tag, unknown_language
from voxbatch.platforms.tasks.known import AUTO, NONE, PLATFORMS
from voxbatch.safe_text import counted
from voxbatch.settings import COMMON, MACHINE, MODEL, OUTPUTS, PROCESS, SWITCHES, Setting, settings_of
from voxbatch.storage import StoreOptions, Stores, is_remote

if TYPE_CHECKING:
    from voxbatch.vllm.engine.config_keys import FileSettings

Command = Callable[..., Any]

PREFIX = "VOXBATCH_"
"""Begin of the names of the variables that set options."""
LOG_FORMAT = "voxbatch.log_format"
"""Key of click's `obj`, which the console script reads: the value of --log-format."""

PROFILE = "voxbatch.profile"
"""Key of click's `meta`: the profile that was given."""


MUX, BURN = "mux", "burn"
"""Values of `videos`: subtitles as a track of the copies of videos, or in the picture."""


class Option(click.Option):
    """An option in a group of the help."""

    def __init__(self, *args: Any, group: str = COMMON, **settings: Any):
        """Build the option.

        Args:
            group: title of its group in the help, one of GROUPS.
        """
        super().__init__(*args, **settings)
        self.group = group

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Return the value that the variable of the option gives. That of a flag is one of SWITCHES: click takes other
        words, and takes "false" for the value of a flag that is no truth value.

        Raises:
            BadParameter: the variable of a flag has another word.
        """
        text = self.resolve_envvar_value(ctx) if self.is_flag else None
        if text is None:
            return super().value_from_envvar(ctx)
        if (is_on := SWITCHES.get(text.strip().lower())) is None:
            raise click.BadParameter(f"{text!r} is not one of {', '.join(SWITCHES)}", ctx, self)
        return is_on if self.is_bool_flag else self.flag_value if is_on else None


class ForwardedOption(Option):
    """An option of `run` that `submit` and `listen` pass on to the runs that they start on other machines."""

    def __init__(self, *args: Any, is_local: bool = False, **settings: Any):
        """Build the option.

        Args:
            is_local: a variable sets the option for this machine only. A flag sets it for the other machines.
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
        return [part for value in (text if self.multiple else [text]) for part in (name, str(value))]


_OPTIONAL_VALUES = {
    "--retry-failed": (RETRY_CHOICES[0], "|".join(RETRY_CHOICES)),
    "--speakers": (ANY_SPEAKERS, rf"{ANY_SPEAKERS}|\d+(-\d+)?"),
}
"""Options that may stand without a value: the value that they get, and a pattern of their values."""


class RunCommand(GroupedCommand):
    """A command whose options --retry-failed and --speakers may stand without a value, also before an argument. Click's
    own optional values would take the argument for the value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give an option its value if the next word is not one, and parse.

        Raises:
            NoSuchOption: whisper.cpp and ffmpeg have the option: -osrt, in which click would read -o srt.
        """
        parsed = []
        for name, after in zip(args, [*args, ""][1:], strict=True):
            if re.fullmatch("-[a-z]{2,}", name) and hint(OPTION, name):
                raise click.NoSuchOption(name, ctx=ctx)
            value, pattern = _OPTIONAL_VALUES.get(name, ("", ".*"))
            parsed.append(name if re.fullmatch(pattern, after) else f"{name}={value}")
        return super().parse_args(ctx, parsed)


def option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """Return a click option that can also be given as the variable VOXBATCH_NAME."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    settings.setdefault("envvar", PREFIX + long[2:].upper().replace("-", "_"))
    return click.option(*names, **{"cls": Option, **settings})


def _read_profile(ctx: click.Context, _: click.Parameter, name: str | None) -> str | None:
    """Make the profile's settings the defaults of the other options.

    They rank below flags and VOXBATCH_* variables, and above the built-in defaults.
    """
    if name:
        from voxbatch.profiles import for_engine, load_profile

        profile = ctx.meta[PROFILE] = load_profile(name)
        ctx.default_map = {**(ctx.default_map or {}), **for_engine(profile, "auto")[0]}
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
    """Split a list of formats at commas; ".SRT" is srt.

    Raises:
        BadParameter: a format is known by another name here.
    """
    names = tuple(map(format_name, comma(ctx, param, value)))
    for name in names:
        if answer := hint(FORMAT, name):
            raise click.BadParameter(f"{name}: {answer}", ctx, param)
    return names


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


def _seconds(_: click.Context, __: click.Parameter, text: str) -> float:
    """Return the seconds of a time such as 90, 90s, 10m or 1h.

    Raises:
        BadParameter: the text is no time.
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        return float(number) * _UNITS[unit]
    except ValueError as e:
        raise click.BadParameter(f"{text!r}: give a time such as 90s, 10m or 1h; 0 keeps no engine") from e


_UNITS = {"s": 1, "m": 60, "h": 3600}
"""Seconds of the units of a time."""


def _shard(_: click.Context, __: click.Parameter, text: str) -> tuple[int, int] | None:
    if text == AUTO:
        return None
    from voxbatch.runner.shard import parse_shard

    return parse_shard(text)


def _patterns(_: click.Context, __: click.Parameter, patterns: tuple[str, ...]) -> tuple[str, ...]:
    check_include(patterns)
    return patterns


def combined(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return one decorator that adds all of the options, in this order."""

    def decorate(command: Command) -> Command:
        for add in reversed(options):
            command = add(command)
        return command

    return decorate


class PathOrAddress(click.Path):
    """An existing local path, or an address."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return an address as it is; check that a local path exists."""
        return value if is_remote(str(value)) else super().convert(value, param, ctx)


class FolderOrAddress(PathOrAddress):
    """An existing local folder, or an address."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse a recording with the way to its run."""
        from voxbatch.manifest.recording_path import is_recording

        if isinstance(value, str) and os.path.isfile(value) and is_recording(value):
            out = f"{os.path.splitext(value)[0]}.voxbatch"
            remedy = f"its run is in {out}" if os.path.isdir(out) else f"first: voxbatch run {shlex.quote(value)}"
            self.fail(f"{value} is a recording, and a folder OUT is needed; {remedy}", param, ctx)
        return super().convert(value, param, ctx)


def _sources(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> str | tuple[str, ...]:
    """Return the name of SOURCE, or several names.

    Raises:
        BadParameter: a name is a setting of another program: pretrained_name=….
    """
    for name in names:
        word, equals, _value = name.lstrip("+").partition("=")
        if equals and (answer := hint(SETTING, word)) and not os.path.lexists(name):
            raise click.BadParameter(f"{name!r} is no recording. {answer}")
        if (answer := hint(SOURCE, name)) and not os.path.lexists(name):
            raise click.BadParameter(f"{name!r} is no recording. {answer}")
    return names[0] if len(names) == 1 else names


source_argument = click.argument("source", nargs=-1, required=True, callback=_sources)

FILE = {"type": PathOrAddress(exists=True, dir_okay=False)}
"""Parameters of click for an option that names a file."""
_PARSING: Mapping[str, Mapping[str, Any]] = {
    "profile": {"is_eager": True, "callback": _read_profile},
    "engine_options": {"flag": "--engine-option", "multiple": True, "callback": name_value},
    "formats": {"multiple": False, "default": "", "callback": format_names},
    "include": {"callback": _patterns},
    **{name: {"multiple": False, "default": "", "callback": comma} for name in ("channel_names", "keep", "only")},
    **dict.fromkeys(("hotwords", "rules", "json_schema", "tools"), FILE),
    **{name: {"type": FolderOrAddress()} for name in ("answers", "speaker_names")},
    "limit": {"type": click.IntRange(min=1)},
    "overwrite": {"flag": "--resume/--overwrite", "default": True, "callback": lambda _, __, resume: not resume},
    "calibration": {"type": PathOrAddress(exists=True)},
    "decoders": {"is_local": True},
    "keep_engine": {"type": str, "default": "0", "callback": _seconds, "is_local": True},
    "workers": {"type": str, "default": "auto", "show_default": True, "callback": _workers, "is_local": True},
    "quality": {"cls": Option},
    "expected_rtfx": {"cls": Option},
}
"""Parameters of click for the settings whose text is not read by their type alone. --quality and --expected-rtfx are
not forwarded, because the choice and the estimates are made here."""


def setting_option(declared: Setting) -> Callable[[Command], Command]:
    """Return the option for a setting.

    A default is shown, unless the help tells it. A truth value whose default depends on others is a pair of flags.
    """
    kinds = get_args(declared.hint) or (declared.hint,)
    flag, default = declared.flag, declared.default
    settings: dict[str, Any] = {
        "cls": ForwardedOption, "group": declared.group, "metavar": declared.metavar, "help": declared.help,
    }  # fmt: skip
    if bool in kinds:
        settings |= {"is_flag": True} if default is False else {"default": None}
        flag += "" if default is False else f"/--no-{flag[2:]}"
    elif isinstance(default, tuple | dict):
        settings["multiple"] = True
    else:
        settings |= {"type": click.Choice(declared.choices) if declared.choices else kinds[0], "default": default}
        settings["show_default"] = default is not None and "Default: " not in declared.help
    settings |= _PARSING.get(declared.name, {})
    return option(settings.pop("flag", flag), declared.name, **settings)


_DECLARED = settings_of(RunOptions)
MANIFEST_SETTINGS = ("limit", "include", "allow_outside", "only_under")
_OF_RUN = {
    **{name: setting_option(_DECLARED[name]) for name in ("profile", "engine", "model", "engine_options")},
    "prefill_encoder": option(
        "--prefill-encoder/--no-prefill-encoder", cls=ForwardedOption, default=None, group=MODEL,
        help="Run Voxtral Realtime's encoder once per chunk, or as stock vLLM does. Default: where this is proven.",
    ),
    "reproducible": option(
        "--reproducible", is_flag=True, cls=ForwardedOption, group=MODEL,
        help="Make text, times and confidences depend on the item alone. For transcripts of Voxtral and Whisper on an "
        "H200.",
    ),
    **{name: setting_option(_DECLARED[name]) for name in ("kernel_cache", "language", "audio_stream", *_DECLARED)},
}  # fmt: skip
"""The options for the settings of a run, in the order in which `forwarded` passes them on."""


def _of_run(names: Iterable[str]) -> list[Callable[[Command], Command]]:
    """Return some of the options for the settings of a run, in their order."""
    return [add for name, add in _OF_RUN.items() if name in names]


include_option, prompt_option = _OF_RUN["include"], _OF_RUN["prompt"]
manifest_options = combined(*(_OF_RUN[name] for name in MANIFEST_SETTINGS))
_store_options = combined(*map(setting_option, settings_of(StoreOptions).values()))

_OUT = option(
    "-o", "--out", metavar="OUT",
    help="Folder of the outputs. Default: NAME.voxbatch next to SOURCE, here for a web server or a whole bucket.",
)  # fmt: skip

_FILES_FOR_VLLM = (
    option("--serving-properties", type=click.Path(exists=True, dir_okay=False), group=MODEL, metavar="FILE",
           help="A serving.properties file with the model and vLLM's settings; it overrides the profile."),
    option("--vllm-config", type=click.Path(exists=True, dir_okay=False), group=MODEL, metavar="FILE",
           help="The same as a YAML file in the format of vLLM's own --config."),
)  # fmt: skip

_TASK = (
    option("--shard", default=AUTO, show_default=True, callback=_shard, group=MACHINE, metavar="auto|I/N",
           help="Do part I (from 0) of N; auto: that of this task, or everything."),
    option("--tasks", type=click.Choice((AUTO, NONE, *PLATFORMS)), default=AUTO,
           show_default=True, group=MACHINE, metavar="NAME",
           help=f"Platform that says which of several tasks this process is: {', '.join(PLATFORMS)}; auto: "
           "detect it; none: ignore the environment."),
    option("--dry-run", is_flag=True, help="Print items, hours, chunks, estimated time and cost, then exit."),
)  # fmt: skip

_ENDING = (
    option("-q", "--quiet", cls=ForwardedOption, is_flag=True,
           help="Print no progress and no transcripts, only warnings and errors."),
    option("--exit-zero", cls=ForwardedOption, is_flag=True, group=OUTPUTS,
           help="Exit with 0 instead of 3 if items failed; failures.jsonl lists them."),
    option("--log-format", cls=ForwardedOption, type=click.Choice(LOG_FORMATS), default="auto", is_eager=True,
           callback=log_format, group=OUTPUTS,
           help="auto: JSON lines in a job on a cloud platform or Kubernetes, text elsewhere."),
)  # fmt: skip

video_options = combined(
    option("--mux", "videos", flag_value=MUX, default="", group=OUTPUTS,
           help="Also write a copy of each local video with the subtitles as a track: talk.subtitled.mp4."),
    option("--burn", "videos", flag_value=BURN, group=OUTPUTS,
           help="The same with the subtitles in the picture, which is encoded again."),
)  # fmt: skip

text_options = combined(
    setting_option(settings_of(ModelChoice)["quality"]),
    option("--stdout", type=click.Choice(FORMATS), default=None, group=OUTPUTS, metavar="FORMAT",
           help="Print the transcripts in this format, and all else to standard error. Default: txt in a pipe, if "
           "SOURCE names recordings."),
    option("--redact", metavar="FOLDER", group=OUTPUTS,
           help="Also write redacted copies of texts and sound there, as voxbatch redact OUT -o FOLDER."),
    option("-v", "--verbose", is_flag=True,
           help="Print also latencies, memory, the model's place, and the rules of the score."),
)  # fmt: skip

_NAMES = _OF_RUN.keys() - {*MANIFEST_SETTINGS}
merge_options = combined(
    *_of_run(
        ("formats", "beside", "report", "max_line", "max_lines", "max_cps", "frame_rate", "min_gap", "calibration")
    )
)
run_options = combined(_OUT, *_FILES_FOR_VLLM, *_of_run(_NAMES), *_TASK, *_ENDING)


def work_options(names: Collection[str], files_for_vllm: bool = False) -> Callable[[Command], Command]:
    """Return the options of a command for a kind of work.

    Args:
        names: the settings of a run that hold for it, without those of `manifest_options`.
        files_for_vllm: also take the files for vLLM.
    """
    return combined(_OUT, *(_FILES_FOR_VLLM if files_for_vllm else ()), *_of_run(names), *_TASK, *_ENDING)


_FOR_ONE_PROCESS = {name for name, declared in _DECLARED.items() if declared.use == PROCESS}
job_options = combined(*_of_run(_NAMES - _FOR_ONE_PROCESS - {"prompt"}), *_ENDING)
"""The options of `run` that also apply to a run on other machines, but --prompt.

Such a run has its own OUT and tasks, and sees no file of this machine. It has no --overwrite: one task could erase the
outputs of another task.
"""

server_options = combined(_OF_RUN["profile"], *_FILES_FOR_VLLM, _OF_RUN["model"], _OF_RUN["engine_options"])
"""The options of `run` that also apply to a server."""


def store_options(command: Command) -> Command:
    """Add the options for access to stores to a command, which gets the Stores that they make, `stores`."""

    @functools.wraps(command)
    def with_stores(*args: Any, **settings: Any) -> Any:
        return command(*args, **_with_stores(settings))

    return _store_options(with_stores)


def _with_stores(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the Stores in place of the options for access to stores."""
    names = settings_of(StoreOptions)
    stores = Stores(StoreOptions(**{name: value for name, value in settings.items() if name in names}))
    return {name: value for name, value in settings.items() if name not in names} | {"stores": stores}


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


def unknown_variables(environ: Iterable[str]) -> list[str]:
    """Return a sentence for each variable whose name begins with VOXBATCH_ and that nothing reads."""
    names = sorted(name for name in environ if name.startswith(PREFIX))
    if not (names := [name for name in names if not name.startswith(_READ_ELSEWHERE)]):
        return []
    options = (param.envvar for command in COMMANDS.values() for param in command.params)
    known = {name for names in options if names for name in ([names] if isinstance(names, str) else names)}
    sentences = []
    for name in sorted(set(names) - known):
        close = difflib.get_close_matches(name.removeprefix(PREFIX), [k.removeprefix(PREFIX) for k in known], 1)
        meant = f"; did you mean {PREFIX}{close[0]}?" if close else "; voxbatch run --help lists the options"
        sentences.append(f"{name} is no variable of voxbatch{meant}")
    return sentences


_READ_ELSEWHERE = (
    "VOXBATCH_CONFINEMENT", "VOXBATCH_FFMPEG", "VOXBATCH_NO_WAIT", "VOXBATCH_SCRIPTED_WORKER", "VOXBATCH_TASK_COUNT",
    "VOXBATCH_TEST_", "VOXBATCH_VLLM_",
)  # fmt: skip
"""Beginnings of the names of variables that are no options."""


def run_options_of(ctx: click.Context, settings: Mapping[str, Any], served: FileSettings | None = None) -> RunOptions:
    """Return the RunOptions that the parsed options make.

    Args:
        ctx: the parsed command, whose options include `job_options`.
        settings: the values of the options, without those that the command handles itself.
        served: a file for vLLM; see `file_for_vllm`.

    Raises:
        ConfigError: a value is invalid, or the file is for another engine than the one that was asked for.
        StorageError: the address of the hotwords cannot be read.
    """
    values, options = dict(settings), dict[str, str]()
    if served:
        if is_given(ctx, "engine") and values["engine"] not in ("auto", "vllm"):
            raise ConfigError(
                f"{served.flag} {served.file} is for the engine vllm, but --engine is {values['engine']}; leave out "
                "one of them"
            )
        values["engine"] = "vllm"
        options |= served.options
        if served.model and is_given(ctx, "model"):
            options.pop("revision", None)  # the revision belongs to the file's model
        elif served.model:
            values["model"] = served.model
    if (prefill_encoder := values.pop("prefill_encoder", None)) is not None:
        options["prefill_encoder"] = str(prefill_encoder).lower()
    if values.pop("reproducible", False):
        options["reproducible"] = "true"
    options |= values["engine_options"]
    if profile := ctx.meta.get(PROFILE):
        from voxbatch.profiles import for_engine

        held, profile_options = for_engine(profile, values["engine"])
        options = {**{name: str(value) for name, value in profile_options.items()}, **options}
        if "model" not in held and ctx.get_parameter_source("model") is ParameterSource.DEFAULT_MAP:
            values["model"] = None
    if place := values.get("hotwords"):
        from voxbatch.cli.text_files import read_hotwords

        values["hotwords"] = read_hotwords(place, values["stores"])
    return RunOptions(**{**values, "engine_options": options})


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
        from voxbatch.vllm.engine import serving_properties as properties_file

        return properties_file.read(serving_properties)
    if vllm_config:
        from voxbatch.vllm.engine import vllm_config as config_file

        return config_file.read(vllm_config)
    return None


def parsed_run_options(ctx: click.Context) -> RunOptions:
    """Return the RunOptions of a parsed `run` command, whatever its shard.

    Raises:
        ConfigError: see `run_options_of` and `file_for_vllm`.
    """
    names = {*_OF_RUN, "stores"}
    settings = {name: value for name, value in _with_stores(ctx.params).items() if name in names}
    served = file_for_vllm(ctx.params["serving_properties"], ctx.params["vllm_config"])
    return run_options_of(ctx, settings, served)
