"""The command line: parse the options, build a Config, call one function, map the result to an exit code.

Results go to stdout; progress, logs and errors go to stderr. A heavy module is imported only by the command that needs
it.

Exit codes: 0 all items done; 1 the run failed; 2 usage, config or manifest invalid; 3 finished, but some items failed;
130 (SIGINT) and 143 (SIGTERM) interrupted, resumable. On SageMaker the reason for the codes 1, 2 and 3 becomes the
job's ExitMessage.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, NoReturn

import click

from voxbatch import __version__
from voxbatch.cli.ask_command import ask
from voxbatch.cli.commands import Commands, WithFormats, next_step, usage
from voxbatch.cli.compare_command import compare
from voxbatch.cli.flags_command import calibrate, flags
from voxbatch.cli.listen_command import listen
from voxbatch.cli.models_command import models
from voxbatch.cli.options import (
    LOG_FORMAT,
    FolderOrAddress,
    PathOrAddress,
    format_names,
    include_option,
    language,
    option,
    parsed_run_options,
    resolved_profile,
    store_options,
)
from voxbatch.cli.report_command import report
from voxbatch.cli.run_command import run
from voxbatch.cli.score_options import score_options
from voxbatch.cli.serve_command import serve
from voxbatch.cli.submit_command import submit
from voxbatch.cli.validate_command import validate
from voxbatch.config import FORMATS, TEXT_KINDS, check_cues, check_formats, load_profile
from voxbatch.errors import CheckpointError, VoxbatchError
from voxbatch.log import Log, is_json
from voxbatch.platforms.tasks import in_job, sagemaker
from voxbatch.safe_text import counted, escape_controls
from voxbatch.storage.options import StoreOptions

if TYPE_CHECKING:
    from voxbatch.scoring import ScoreOptions

WIDTH = 100
"""Columns of the printed output."""


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
    epilog="To begin: voxbatch run FOLDER. voxbatch COMMAND --help explains a command.",
)
@click.version_option(__version__, prog_name="voxbatch")
def cli() -> None:
    """Batch transcription: recordings in; transcripts, subtitles and a word error rate out.

    No item is lost or transcribed twice. Kill a run at any moment, and run the same command again to continue.
    """


@cli.command(short_help="Print a manifest of a folder's recordings.")
@click.argument("folder", type=FolderOrAddress())
@include_option
@store_options
def manifest(folder: str, include: tuple[str, ...], store_options: StoreOptions) -> None:
    """Print a manifest of FOLDER's recordings. The reference of a recording is the file NAME.txt next to it.

    Paths are relative to FOLDER, so save the manifest there. FOLDER may be gs://bucket/folder/ or s3://bucket/folder/.
    For these no recording is opened, and no line has a `duration`.
    """
    from voxbatch.manifest import folder_manifest, prefix_manifest
    from voxbatch.storage import is_remote

    if is_remote(folder):
        lines = prefix_manifest(folder, store_options, include)
    else:
        from voxbatch.runner.forecast import probe_duration

        lines = folder_manifest(folder, lambda path: probe_duration(path, store_options, certain=True), include)
    for line in lines:
        click.echo(line)


@cli.command(cls=WithFormats, short_help="Merge OUT by hand, or write more formats later.")
@click.argument("out", type=FolderOrAddress())
@option(
    "--formats",
    default="",
    callback=format_names,
    metavar="LIST",
    help=f"Write one file per item in each of these formats: {','.join(FORMATS)}. Default: those of the last merge.",
)
@option("--beside/--no-beside", default=None, help="Write them also beside the recordings, or no longer.")
@option("--report/--no-report", default=None, help="Write report.html, or no longer.")
@option("--max-line", type=int, metavar="N", help="Longest line of a subtitle in columns.")
@option("--max-lines", type=int, metavar="N", help="Most lines of a subtitle.")
@option("--max-cps", type=float, metavar="N", help="Columns per second that a reader can follow.")
@option(
    "--calibration",
    type=PathOrAddress(exists=True),
    metavar="FILE",
    help="Estimate the WER by a file of `voxbatch calibrate`.",
)
@store_options
def merge(
    out: str,
    formats: tuple[str, ...],
    beside: bool | None,
    report: bool | None,
    max_line: int | None,
    max_lines: int | None,
    max_cps: float | None,
    calibration: str | None,
    store_options: StoreOptions,
) -> None:
    """Merge the parts in OUT by hand, or write more formats later. The last shard of a run merges by itself.

    An option that is not given keeps the value of the last merge.
    """
    from voxbatch.cli.session import EXIT_SOME_FAILED, print_outcome
    from voxbatch.output.merge import merge_again
    from voxbatch.storage import open_store

    check_formats(formats)
    check_cues(max_line, max_lines, max_cps)
    given = {
        "formats": formats or None,
        "beside": beside,
        "report": report,
        "max_line": max_line,
        "max_lines": max_lines,
    }
    changes = {name: value for name, value in {**given, "max_cps": max_cps}.items() if value is not None}
    summary = merge_again(open_store(out, store_options), changes, Log(), store_options, calibration)
    print_outcome(summary, out, store_options)
    sys.exit(EXIT_SOME_FAILED if summary.failed else 0)


@cli.command()
@click.argument("out", type=FolderOrAddress())
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.option(
    "--verify",
    is_flag=True,
    help="Read every part and every output, and show what is damaged, missing or of another run, with the commands "
    "that repair it. The exit code is 1 if there is a problem.",
)
@store_options
def status(out: str, as_json: bool, verify: bool, store_options: StoreOptions) -> None:
    """Show the progress of the run in OUT."""
    from voxbatch.output.status import read_status
    from voxbatch.output.verify import verify as verify_out
    from voxbatch.storage import open_store

    store = open_store(out, store_options)
    problems = verify_out(store) if verify else []
    found = None
    try:
        found = read_status(store)
    except CheckpointError:
        if not problems:  # otherwise the error is among them
            raise
    if as_json:
        listed = {"problems": [asdict(problem) for problem in problems]} if verify else {}
        click.echo(json.dumps({**(found.to_dict() if found else {}), **listed}))
        sys.exit(1 if problems else 0)
    lines = []
    if found is not None:
        state = "finished" if found.finished else "not finished"
        lines.append(f"{out}: {found.committed:,} of {found.items:,} items committed, {state}")
        for shard in found.shards:
            done = "complete" if shard.complete else "open"
            sizes = f"{counted(shard.items, 'item')} in {counted(shard.parts, 'part')}"
            lines.append(f"shard {shard.shard}: {sizes}, {done}")
    for problem in problems:
        lines.append(f"problem: {problem.file}: {problem.problem}")
        lines += [f"  repair: {step}" for step in problem.repair]
    if verify and not problems:
        lines.append("verified: no problem found")
    for line in lines:
        click.echo(escape_controls(line))
    sys.exit(1 if problems else 0)


@cli.command(short_help="Score transcripts against references.")
@click.argument("hyp", type=PathOrAddress(exists=True))
@click.option("--ref", type=PathOrAddress(exists=True), help="References: a file or a folder. Default: HYP's own.")
@click.option("--language", metavar="LANG", callback=language, help="Language of lines that do not name one, e.g. en.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(TEXT_KINDS),
    metavar="KIND",
    help=f"Kind of files whose names do not tell it: {', '.join(TEXT_KINDS)}.",
)
@score_options
@store_options
def score(
    hyp: str,
    ref: str | None,
    language: str | None,
    kind: str | None,
    options: ScoreOptions,
    store_options: StoreOptions,
) -> None:
    """Score HYP and print the counts as JSON. HYP is the OUT of a run; or a file with transcripts of any program: JSON
    lines with pred_text, CSV or TSV, NIST's trn, ctm or stm, Kaldi's text, the JSON of Whisper's programs, or plain
    lines; or a folder with one file for each recording.

    For an OUT, the figure is the run's own: items that failed count as deletions. With --ref, texts are matched by id,
    else by the recording's path, else by its name without folder and extension. References without a hypothesis count
    as deletions.
    """
    from voxbatch.output.layout import FAILURES
    from voxbatch.output.score import is_run, score_place
    from voxbatch.scoring import UNDETERMINED
    from voxbatch.storage import redacted

    found = score_place(hyp, ref, language, kind, store_options, options)
    languages = found.corpus.by_language
    if is_run(hyp) and not ref:
        missing = sum(each.missing for each in languages.values())
        click.echo(f"the run in {hyp}; {counted(missing, 'item')} of {FAILURES} count as deletions", err=True)
    if found.matching and ref:
        for note in found.matching.notes(redacted(hyp), redacted(ref)):
            click.echo(escape_controls(note), err=True)
    for note in found.notes:
        click.echo(escape_controls(note), err=True)
    if unknown := languages.get(UNDETERMINED):
        count = unknown.items + unknown.missing
        text = f"no language is known for {counted(count, 'item')}; if the texts are English, give --language en"
        click.echo(f"Warning: {text}: the rules for English differ", err=True)
    click.echo(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))


@cli.command(short_help="List the profiles, or show one.")
@click.argument("name", required=False)
def profiles(name: str | None) -> None:
    """List the profiles, or print the settings of profile NAME and the arguments that vLLM would get."""
    from voxbatch.config import profile_names

    if name is None:
        for each in profile_names():
            click.echo(f"{each:<12} {load_profile(each).get('description', '')}")
        return
    import yaml

    resolved = resolved_profile(name, run)
    if resolved["engine"] == "vllm":
        from voxbatch.engines.vllm.arguments_preview import preview_arguments

        resolved |= preview_arguments(resolved["model"], resolved["engine_options"])
    click.echo(yaml.safe_dump(resolved, sort_keys=False, width=WIDTH), nl=False)


@cli.command(short_help="Show what is installed and what is missing.")
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Show what is installed, which engine would run, and how to install what is missing.

    The settings are those of a run with the same VOXBATCH_* variables: VOXBATCH_MODEL is looked for, and VOXBATCH_OUT
    is created and written to. The last line says whether voxbatch is ready. The exit code is 1 if it is not.
    """
    from voxbatch.display import aligned
    from voxbatch.doctor import findings, is_ready, verdict

    with run.make_context(run.name, ["-"], ctx) as running:
        found = list(findings(parsed_run_options(running), running.params["out"]))
    for each in found:
        click.echo(aligned(escape_controls(f"{each.state:<8} {each.name:<22} "), escape_controls(each.detail)))
    click.echo(escape_controls(f"\n{verdict(found)}", allowed="\n"))
    sys.exit(0 if is_ready(found) else 1)


cli.add_command(run)
cli.add_command(ask)
cli.add_command(calibrate)
cli.add_command(compare)
cli.add_command(flags)
cli.add_command(models)
cli.add_command(report)
cli.add_command(serve)
cli.add_command(validate)
cli.add_command(submit)
cli.add_command(listen)


def main() -> NoReturn:
    """Run the console script and exit with one of the module's exit codes.

    Raises:
        Exception: an unexpected error (a bug) passes through, so that its traceback is shown.
    """
    told: dict[str, str] = {}
    try:
        cli(prog_name="voxbatch", standalone_mode=False, obj=told)
    except click.exceptions.Exit as e:
        sys.exit(e.exit_code)
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.format_message(), err=True)
        sys.exit(e.exit_code)
    except click.ClickException as e:
        _show(f"{e.format_message()}{next_step(e)}", told, usage(e))
        sys.exit(e.exit_code)
    except click.Abort:
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        sys.exit(130)
    except VoxbatchError as e:
        _show(str(e), told)
        sys.exit(e.exit_code)
    except OSError as e:  # standard output is a closed pipe, or a file on a full disk
        if not isinstance(e, BrokenPipeError):
            _show(str(e), told)
        _discard_output()
        sys.exit(1)
    except Exception as e:  # a bug: let Python print the traceback
        _leave_message(f"{type(e).__name__}: {e}")
        raise
    sys.exit(0)


def _show(error: str, told: Mapping[str, str], usage: str = "") -> None:
    """Show the error that ends the command, in the format of its log. Text begins with the usage.

    Args:
        told: the format of the log under LOG_FORMAT, if the command line was read so far.
    """
    _leave_message(error)
    log = Log(is_json(told.get(LOG_FORMAT, "auto"), in_job(os.environ)))
    if usage and not log.as_json:
        log.info("usage", text=usage)
    log.error("failed", text=error)


def _discard_output() -> None:
    """Discard what is left in the buffer of standard output, so that the flush at the exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave_message(reason: str) -> None:
    sagemaker.write_exit_message(reason, sagemaker.root_folder(os.environ))
