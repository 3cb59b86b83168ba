"""`voxbatch run`: transcribe recordings. `start` is shared with `voxbatch ask`, which differs in its options alone."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from voxbatch.cli.commands import COMMANDS
from voxbatch.cli.options import (
    RunCommand,
    file_for_vllm,
    is_given,
    limiting_variables,
    manifest_options,
    run_options,
    run_options_of,
    source_argument,
    store_options,
    text_options,
    unknown_variables,
    video_options,
)
from voxbatch.config import FORMATS, Config, RunOptions
from voxbatch.errors import ConfigError
from voxbatch.log import Log, is_json
from voxbatch.platforms.tasks import in_job, own_task
from voxbatch.sources.kinds import are_recordings, names_recordings
from voxbatch.storage import is_remote
from voxbatch.work import work

_OF_THE_RUN = frozenset(("source", "out", "limit", "retry_failed", "dry_run", "shard", "tasks"))
"""Options that its redaction does not take over."""
EARLIER_CODE = "voxbatch.earlier_code"
"""Key of click's `meta`: the exit code of the run whose redaction this is."""
DEFAULT_FORMATS = ("srt", "txt")
"""Formats of the files of a run of recordings, unless others are given. A manifest may have millions of items: its run
writes only the formats that are given."""


_COMMON = (
    "out", "formats", "stdout", "beside", "quality", "model", "language", "task", "speakers", "hotwords", "dry_run",
    "limit", "retry_failed", "overwrite", "verbose", "quiet",
)  # fmt: skip
"""The options that --help shows."""


@click.command(
    cls=RunCommand,
    common=_COMMON,
    short_help="Transcribe recordings: files, a folder, a manifest.",
    epilog="\b\nSubtitles, also in videos: --mux, --burn, --max-line, --max-lines,\n"
    "and --max-cps, --frame-rate: see --help-all.\n\n"
    "Each option can also be given as an environment variable: VOXBATCH_ENGINE, VOXBATCH_PART_ITEMS, …",
)
@source_argument
@run_options
@video_options
@text_options
@manifest_options
@store_options
@click.pass_context
def run(ctx: click.Context, /, **settings: Any) -> None:
    """Transcribe SOURCE: recordings, folders of recordings, or a manifest.

    \b
    Examples:
      voxbatch run talk.mp3
      voxbatch run recordings/ -o out --language en --formats srt,txt
      voxbatch run calls.jsonl -o out --model small --dry-run

    Recordings and local folders get a .srt and a .txt file for each recording, unless --formats names others; a
    manifest gets those of --formats alone. In a pipe, `voxbatch run talk.mp3` prints the text.

    Give several files and folders, a pattern in quotes ('calls/*.wav'), or @list.txt, which has one path or address a
    line. A manifest (.jsonl, .csv, .tsv, .parquet, wav.scp, - for standard input) is given alone. All may be at gs://,
    s3://, hf://datasets/ or http(s):// addresses. A folder in a bucket is written gs://bucket/folder/, with / at the
    end.
    """
    source = settings["source"]
    is_default = not settings["beside"] and ctx.get_parameter_source("formats") is ParameterSource.DEFAULT
    default_formats = DEFAULT_FORMATS if is_default and are_recordings(source) else ()
    if (
        settings["stdout"] is None
        and names_recordings(source)
        and not (settings["quiet"] or sys.stdout.isatty() or _is_collected())
    ):
        settings["stdout"] = "txt"
    if quality := settings.pop("quality"):
        from voxbatch.engines.quality import take_quality

        settings["note"] = take_quality(quality, settings, {name for name in settings if is_given(ctx, name)})
    start(ctx, default_formats=default_formats, **settings)


def start(
    ctx: click.Context,
    /,
    source: str | tuple[str, ...],
    out: str | None,
    serving_properties: str | None,
    vllm_config: str | None,
    tasks: str,
    shard: tuple[int, int] | None,
    dry_run: bool,
    quiet: bool,
    log_format: str,
    exit_zero: bool,
    videos: str = "",
    stdout: str | None = None,
    verbose: bool = False,
    note: str = "",
    redact: str | None = None,
    default_formats: tuple[str, ...] = (),
    **settings: Any,
) -> None:
    """Run the options of `run` or `ask`, and exit with the code of the run.

    Args:
        default_formats: formats of an OUT that has no run yet, or that is overwritten.
    """
    from voxbatch.cli.session import Ending, leave, transcribe
    from voxbatch.display import can_animate

    served = file_for_vllm(serving_properties, vllm_config)
    sources = (source,) if isinstance(source, str) else source
    task, (settings["shard"], settings["shards"]) = own_task(os.environ, tasks, shard, sources)
    if task and not is_given(ctx, "usd_per_hour"):
        from voxbatch.platforms.tasks.task import usd_per_hour

        if (price := usd_per_hour(task, os.environ)) is not None:
            settings["usd_per_hour"] = price
    _refuse_file(out)
    _refuse_output(sources)
    _check_redaction(redact, settings["shards"])
    options = run_options_of(ctx, settings, served)
    if not out:
        from voxbatch.output.default_out import own_out

        out = own_out(source, options.stores)
    config = Config.of(_with_formats(options, out, default_formats), source, out)
    as_json = is_json(log_format, in_job(os.environ))
    shard_fields = {"shard": f"{config.shard}/{config.shards}"} if task or config.shards > 1 else {}
    log = Log(as_json, quiet, fields={**shard_fields, **(task.log_fields() if task else {})})
    if task:
        from voxbatch.platforms.tasks.task import announce

        announce(task, config.shard, config.shards, config.out, log, has_shard_option=shard is not None)
    for text in limiting_variables(ctx):
        log.warning("limited", text=text)
    for text in unknown_variables(os.environ):
        log.warning("unknown_variable", text=text)
    if served:
        served.report(log)
    if note:
        log.info("quality", text=note)
    if dry_run:
        from voxbatch.cli.estimates import print_plan
        from voxbatch.engines.model_files import downloads_logged

        with downloads_logged(log):
            print_plan(config)
        return
    show_progress = can_animate() and not as_json and not quiet
    ending = Ending(quiet, verbose, stdout or "", exit_zero, videos, shows_items=not _is_collected())
    code = transcribe(config, log, show_progress, ending, shares_out=task is not None) or ctx.meta.get(EARLIER_CODE, 0)
    _redact(ctx, config, redact, code)
    leave(code)


def _redact(ctx: click.Context, config: Config, folder: str | None, code: int) -> None:
    """Redact the OUT of a run that is complete, and exit with the code of both. Without a folder, do nothing."""
    from voxbatch.cli.session import EXIT_SOME_FAILED

    if folder is None or code not in (0, EXIT_SOME_FAILED):
        return
    ctx.meta[EARLIER_CODE] = code
    settings = {name: value for name, value in ctx.params.items() if is_given(ctx, name) and name not in _OF_THE_RUN}
    settings |= {"formats": ",".join(config.formats), "update": not config.overwrite}
    command = COMMANDS["redact"]
    with command.make_context("redact", [config.out, "-o", folder], parent=ctx, default_map=settings) as further:
        command.invoke(further)


def _check_redaction(folder: str | None, shards: int) -> None:
    """Check that a run can be followed by its redaction, before it starts. Without a folder, it is not.

    Raises:
        ConfigError: other tasks may still be at work at its end, or a package is missing.
    """
    if folder is None:
        return
    if shards > 1:
        raise ConfigError(
            "--redact: the copies are made of the whole OUT; leave it out, and run voxbatch redact OUT -o FOLDER when "
            "all shards are complete"
        )
    from voxbatch.engines.choice import choose

    steps = work("redact").resolve("steps")
    for engine in steps.engines:
        choose(engine, steps.engines)


def _is_collected() -> bool:
    """Return whether a platform keeps what is printed as the log of a job. It is then read by others than OUT, so
    transcripts and names of recordings are not printed unless --stdout asks for them."""
    return in_job(os.environ) and not sys.stderr.isatty()


def _with_formats(options: RunOptions, out: str, formats: tuple[str, ...]) -> RunOptions:
    """Return the options with these formats if there are some, unless they continue a run, whose first list has its
    own."""
    from voxbatch.output import run_file

    if not formats or (not options.overwrite and run_file.read(options.stores.out(out)) is not None):
        return options
    return replace(options, formats=formats)


def _refuse_file(out: str | None) -> None:
    """Refuse an OUT that has the name of a file, unless there is such a folder.

    Raises:
        ConfigError: a file was meant.
    """
    suffix = os.path.splitext(out or "")[1].lower()[1:]
    if out and suffix in (*FORMATS, *_FILES) and not os.path.isdir(out):
        form = f" and --formats {suffix}" if suffix in FORMATS else "; transcripts.jsonl is always written"
        folder = os.path.splitext(out)[0]
        raise ConfigError(f"-o {out}: OUT is a folder, which holds all outputs; give -o {folder}{form}")


def _refuse_output(sources: tuple[str, ...]) -> None:
    """Refuse the name of an output after the recordings, as ffmpeg takes it.

    Raises:
        ConfigError: an output was meant.
    """
    suffix = os.path.splitext(sources[-1])[1].lower()[1:]
    if len(sources) > 1 and suffix in FORMATS and not is_remote(sources[-1]) and not os.path.lexists(sources[-1]):
        raise ConfigError(f"{sources[-1]} does not exist, and outputs are given by options: -o OUT --formats {suffix}")


_FILES = ("jsonl", "csv", "tsv", "parquet", "html", "md", "docx")
"""Extensions of files, besides those of the formats."""
