"""The command line: parse, build a Config, call one function, map to an exit code.

Results go to stdout; progress, logs and errors to stderr. Nothing heavy is imported before a command needs it.

Exit codes: 0 all done; 1 the run failed; 2 usage, config or manifest invalid; 3 finished, some items failed; 130 and
143 interrupted, resumable.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from voxbatch import __version__
from voxbatch.config import FORMATS, LOG_FORMATS, Config, load_profile
from voxbatch.errors import UsageError, VoxbatchError
from voxbatch.log import Log

if TYPE_CHECKING:
    from voxbatch.pipeline import Progress, Stop
    from voxbatch.run import Finished

EXIT_SOME_FAILED = 3

Command = Callable[..., Any]


def option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """An option that can also be given as VOXBATCH_NAME."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    settings.setdefault("envvar", "VOXBATCH_" + long[2:].upper().replace("-", "_"))
    return click.option(*names, show_envvar=True, **settings)


def _use_profile(ctx: click.Context, _: click.Parameter, name: str | None) -> str | None:
    """The profile's settings become the other options' defaults: below flags and VOXBATCH_*, above our own."""
    if name:
        settings = load_profile(name)
        settings.pop("description", None)
        given = settings.pop("engine_options", {})
        ctx.meta["voxbatch.profile_options"] = {key: str(value) for key, value in given.items()}
        ctx.meta["voxbatch.profile_engine"] = settings.get("engine")
        ctx.default_map = {**(ctx.default_map or {}), **settings}
    return name


def _comma(_: click.Context, __: click.Parameter, value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value or ()
    return tuple(part.strip() for part in parts if part.strip())


def _name_value(_: click.Context, __: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    if bad := [name for name, equals, _ in pairs if not equals or not name]:
        raise click.BadParameter(f"{bad[0]!r}: give NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _shard(_: click.Context, __: click.Parameter, text: str) -> tuple[int, int]:
    from voxbatch.shard import parse_shard

    return parse_shard(text)


def _together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for each in reversed(options):
            command = each(command)
        return command

    return decorate


manifest_options = _together(
    option("--limit", type=click.IntRange(min=1), help="Take only the first N items."),
    option("--allow-outside", is_flag=True, help="Let the manifest name any local file, not only those in its folder."),
    option("--only-under", multiple=True, metavar="DIR", help="Let it name files below DIR instead. Repeatable."),
)

run_options = _together(
    option("-o", "--out", metavar="OUT", help="Folder of the outputs. Default: NAME.voxbatch beside SOURCE."),
    option("--profile", is_eager=True, callback=_use_profile, metavar="NAME", help="See voxbatch profiles."),
    option("--engine", default="auto", show_default=True, metavar="NAME", help="auto, faster-whisper or scripted."),
    option("--model", metavar="MODEL", help="A CTranslate2 directory or hub name. Default: the engine's own."),
    option("--engine-option", multiple=True, callback=_name_value, metavar="NAME=VALUE", help="Repeatable."),
    option("--language", metavar="LANG", help="Of items that do not say, e.g. en. Default: the engine decides."),
    option("--formats", default="", callback=_comma, metavar="LIST", help=f"One file an item: {','.join(FORMATS)}."),
    option("--shard", default="0/1", show_default=True, callback=_shard, metavar="I/N", help="Part I (from 0) of N."),
    option("--resume/--overwrite", default=True, help="Go on where OUT stands (default), or erase its outputs first."),
    option("--part-items", type=int, default=200, show_default=True, metavar="K", help="Commit after K items,"),
    option("--part-seconds", type=float, default=30.0, show_default=True, metavar="T", help="or after T seconds."),
    option("--decoders", type=int, default=0, metavar="N", help="Decoding processes. Default: one a core, at most 16."),
    option("--dry-run", is_flag=True, help="Print items, hours, chunks, estimated time and cost; do nothing."),
    option("--expected-rtfx", type=float, metavar="X", help="For --dry-run: audio seconds a second."),
    option("--usd-per-hour", type=float, metavar="USD", help="For --dry-run: the machine's price."),
    option("-q", "--quiet", is_flag=True, help="No progress, no transcripts: warnings, errors and the exit code."),
    option("--log-format", type=click.Choice(LOG_FORMATS), default="auto", help="auto: JSON if stderr is no terminal."),
)  # fmt: skip


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="voxbatch")
def cli() -> None:
    """Batch transcription: a manifest in; transcripts, subtitles and a word error rate out.

    Nothing is lost or done twice: kill it at any moment and run the same command again.
    """


@cli.command()
@click.argument("source")
@run_options
@manifest_options
@click.pass_context
def run(ctx: click.Context, /, source: str, dry_run: bool, quiet: bool, log_format: str, **settings: Any) -> None:
    """Transcribe SOURCE: a manifest (.jsonl, .jsonl.gz, - for standard input) or a folder of recordings."""
    config = _config(ctx, source, settings)
    on_terminal = sys.stderr.isatty()
    log = Log(as_json=log_format == "json" or (log_format == "auto" and not on_terminal), quiet=quiet)
    if dry_run:
        _print_plan(config)
        return
    _leave(_run(config, log, show_progress=on_terminal and not log.as_json and not quiet, quiet=quiet))


def _config(ctx: click.Context, source: str, settings: dict[str, Any]) -> Config:
    from voxbatch.run import default_out

    shard, shards = settings.pop("shard")
    options = settings.pop("engine_option")
    if settings["engine"] in ("auto", ctx.meta.get("voxbatch.profile_engine")):
        options = {**ctx.meta.get("voxbatch.profile_options", {}), **options}
    out = settings.pop("out") or default_out(source)
    overwrite = not settings.pop("resume")
    return Config(
        source=source, out=out, shard=shard, shards=shards, engine_options=options, overwrite=overwrite, **settings
    )


def _run(config: Config, log: Log, show_progress: bool, quiet: bool) -> int:
    """Run, and say on the last line what is safe and how to go on when it does not end well."""
    from voxbatch import display
    from voxbatch import run as job
    from voxbatch.pipeline import Interrupted, Stop

    stop, latest = Stop(), _Latest()
    signals = _on_signals(stop)
    try:
        with (display.live if show_progress else display.events)(log) as observe:
            finished = job.run(config, log, latest.then(observe), stop)
    except Interrupted:
        log.warning("interrupted", text=f"interrupted; {_safe(config, latest)}")
        return 128 + signals[-1]
    except UsageError:
        raise
    except VoxbatchError as e:
        log.error("run_failed", text=f"{e}\n{_safe(config, latest)}")
        return e.exit_code
    return _report(config, finished, log, quiet)


class _Latest:
    """Remembers the progress that was last seen."""

    def __init__(self) -> None:
        self.progress: Progress | None = None

    def then(self, observe: Callable[[Progress], None]) -> Callable[[Progress], None]:
        def both(progress: Progress) -> None:
            self.progress = progress
            observe(progress)

        return both


def _safe(config: Config, latest: _Latest) -> str:
    p = latest.progress
    if p is None:
        return "nothing was transcribed by this process; run the same command again to go on"
    safe = f"{p.committed:,} of {p.items:,} items are safe in {config.out}"
    again = " without --overwrite" if config.overwrite else ""
    return f"{safe}; run the same command again{again} to go on from there"


def _on_signals(stop: Stop) -> list[int]:
    """Ask softly on the first SIGINT or SIGTERM; the second has its usual effect. Gives the list they are noted in."""
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)
        stop.ask()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return received


def _report(config: Config, finished: Finished, log: Log, quiet: bool) -> int:
    from voxbatch import display

    progress, usage, summary = finished.progress, finished.usage, finished.summary
    shard = f"{config.shard}/{config.shards}"
    if usage is not None:
        log.info(
            "run_finished", shard=shard, done=progress.done, failed=progress.failed, resumed=progress.resumed,
            audio_s=round(progress.audio_s, 1), wall_s=round(progress.wall_s, 2), rtfx=round(progress.rtfx, 2),
            decode_cpu_s=round(usage.decode_cpu_s, 2), engine_s=round(usage.engine_s, 2),
            starved_s=round(usage.starved_s, 2),
        )  # fmt: skip
    if summary is None:
        log.info("shard_done", text=f"shard {shard} is done; the last shard to finish merges")
        return EXIT_SOME_FAILED if progress.failed else 0
    if not quiet:
        for line in display.outcome(summary, _heads(config.out), _places(config.out)):
            click.echo(line)
    return EXIT_SOME_FAILED if summary["failed"] else 0


def _heads(out: str) -> list[tuple[str, str]]:
    from itertools import islice

    from voxbatch.display import SHOWN
    from voxbatch.finalize import TRANSCRIPTS
    from voxbatch.storage import open_store

    lines = [json.loads(line) for line in islice(open_store(out).lines(TRANSCRIPTS), SHOWN)]
    return [(line["id"], line["pred_text"]) for line in lines]


def _places(out: str) -> list[tuple[str, str]]:
    """What stands in OUT, in the order one wants to see it."""
    shown = [("transcripts", "transcripts.jsonl"), ("failures", "failures.jsonl"), ("summary", "summary.json")]
    shown += [(extension, extension + "/") for extension in FORMATS]
    return [(what, os.path.join(out, name)) for what, name in shown if os.path.exists(os.path.join(out, name))]


def _print_plan(config: Config) -> None:
    from voxbatch.display import clock
    from voxbatch.plan import plan

    p = plan(config)
    guessed = f", {p.estimated_items:,} of them by the headers of a sample" if p.estimated_items else ""
    time = f"about {clock(p.wall_s)} at RTFx {p.rtfx:g}" if p.wall_s is not None else "unknown: give --expected-rtfx"
    cost = (
        f"about ${p.usd:,.2f} at ${p.usd_per_hour:g} an hour" if p.usd is not None else "unknown: give --usd-per-hour"
    )
    for name, value in (
        ("engine", f"{p.engine} (model {p.model})"),
        ("items", f"{p.items:,}"),
        ("audio", f"{p.audio_s / 3600:,.2f} hours{guessed}"),
        ("chunks", f"at least {p.chunks:,}"),
        ("time", time),
        ("cost", cost),
        ("outputs", config.out),
    ):
        click.echo(f"{name:<8} {value}")


@cli.command()
@click.argument("source")
@manifest_options
def validate(source: str, limit: int | None, allow_outside: bool, only_under: tuple[str, ...]) -> None:
    """Check every line of SOURCE and report all bad ones. Opens no recording."""
    from voxbatch.manifest import PathPolicy, open_source, survey

    folders = tuple(os.path.abspath(folder) for folder in only_under)
    with open_source(source) as opened:
        found = survey(opened, PathPolicy(allow_outside, folders), limit)
    languages = ", ".join(f"{lang} {count:,}" for lang, count in found.languages.most_common(10))
    click.echo(f"{source}: {found.items:,} items, all valid")
    click.echo(
        f"{found.known_hours:,.2f} hours in the items that give a duration; {found.with_text:,} with a reference"
    )
    if languages:
        click.echo(f"languages: {languages}")


@cli.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
def manifest(folder: str) -> None:
    """Print a manifest of FOLDER's recordings; NAME.txt beside a recording is its reference.

    Paths are relative to FOLDER: save it there.
    """
    from voxbatch.manifest import folder_manifest
    from voxbatch.plan import probed

    for line in folder_manifest(folder, probed):
        click.echo(line)


@cli.command()
@click.argument("out", type=click.Path(exists=True, file_okay=False))
@option("--formats", default="", callback=_comma, metavar="LIST", help=f"One file an item: {','.join(FORMATS)}.")
def merge(out: str, formats: tuple[str, ...]) -> None:
    """Merge the parts in OUT by hand; the last shard does it by itself. Also writes further formats later."""
    from voxbatch import display
    from voxbatch.run import merge_by_hand

    summary = merge_by_hand(out, formats)
    for line in display.outcome(summary, _heads(out), _places(out)):
        click.echo(line)
    sys.exit(EXIT_SOME_FAILED if summary["failed"] else 0)


@cli.command()
@click.argument("out", type=click.Path(exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(out: str, as_json: bool) -> None:
    """Show how far the run in OUT is, from its parts."""
    from voxbatch.run import status as look

    found = look(out)
    if as_json:
        click.echo(json.dumps(found))
        return
    state = "finished" if found["finished"] else "not finished"
    click.echo(f"{out}: {found['committed']:,} of {found['items']:,} items committed, {state}")
    for shard in found["shards"]:
        done = "complete" if shard["complete"] else "open"
        click.echo(f"shard {shard['shard']}: {shard['items']:,} items in {shard['parts']:,} parts, {done}")


@cli.command()
@click.argument("hyp", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--ref", type=click.Path(exists=True, dir_okay=False), help="References by id; default: HYP's own `text`."
)
@option("--language", metavar="LANG", help="Of lines that do not say.")
def score(hyp: str, ref: str | None, language: str | None) -> None:
    """Score HYP (a transcripts.jsonl, or any JSON lines with pred_text) and print the counts as JSON."""
    from voxbatch.score.files import score_files

    click.echo(json.dumps(score_files(hyp, ref, language), indent=2, ensure_ascii=False))


@cli.command()
@click.argument("name", required=False)
def profiles(name: str | None) -> None:
    """List the profiles, or print what NAME resolves to."""
    from voxbatch.config import profile_names

    if name is None:
        for each in profile_names():
            click.echo(f"{each:<12} {load_profile(each).get('description', '')}")
        return
    import yaml

    click.echo(yaml.safe_dump(load_profile(name), sort_keys=False), nl=False)


@cli.command()
def doctor() -> None:
    """Say what is installed, which engine would run, and what to do about what is missing."""
    from voxbatch.doctor import findings

    found = list(findings())
    for each in found:
        click.echo(f"{each.state:<8} {each.name:<22} {each.detail}")
    sys.exit(1 if any(each.name == "engine" and each.state != "ok" for each in found) else 0)


def _leave(code: int) -> NoReturn:
    """Exit without waiting for an engine's threads, which may be deep in native code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> NoReturn:
    """The console script."""
    try:
        cli(prog_name="voxbatch", standalone_mode=False)
    except click.exceptions.Exit as e:
        sys.exit(e.exit_code)
    except click.ClickException as e:
        e.show()
        sys.exit(e.exit_code)
    except click.Abort:
        sys.exit(130)
    except VoxbatchError as e:
        click.echo(f"Error: {e}", err=True)
        sys.exit(e.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader went away; so do we
        sys.exit(1)
    sys.exit(0)
