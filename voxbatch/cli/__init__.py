"""The command line: parse the options, build a Config, call one function, map the result to an exit code.

Results go to stdout; progress, logs and errors go to stderr. The module of a command is imported when the
command is used.

Exit codes: 0 all items done; 1 the run failed; 2 usage, config or manifest invalid; 3 finished, but some items failed;
130 (SIGINT) and 143 (SIGTERM) interrupted, resumable. On SageMaker the reason for the codes 1, 2 and 3 becomes the
job's ExitMessage.
"""

from __future__ import annotations

import errno
import faulthandler
import os
import sys
from collections.abc import Mapping
from typing import NoReturn

import click

from voxbatch import __version__
from voxbatch.cli.commands import COMMANDS, HELP_WIDTH, Commands
from voxbatch.cli.options import LOG_FORMAT
from voxbatch.cli.usage_errors import message_of, usage
from voxbatch.errors import VoxbatchError
from voxbatch.log import Log, is_json
from voxbatch.platforms.tasks import in_job, write_exit_message
from voxbatch.process import confinement, streams


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_WIDTH},
    epilog="To begin: voxbatch run FOLDER. voxbatch COMMAND --help explains a command.",
)
@click.version_option(__version__, prog_name="voxbatch")
def cli() -> None:
    """Batch transcription: recordings in; transcripts, subtitles and a word error rate out.

    No item is lost or transcribed twice. Kill a run at any moment, and run the same command again to continue.
    """


def _add_context(error: click.ClickException) -> None:
    """Add the command to an error of click's parser about an option without its value, which has none."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if isinstance(error, click.BadOptionUsage) and error.ctx is None and name in COMMANDS:
        error.ctx = click.Context(COMMANDS[name], click.Context(cli, info_name="voxbatch"), name)


_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> NoReturn:
    """Run the console script and exit with one of the module's exit codes.

    Raises:
        Exception: an unexpected error (a bug) passes through, so that its traceback is shown.
    """
    confinement.hide_memory()
    streams.prepare()
    faulthandler.enable(2)  # otherwise native code that crashes ends this process without a word
    told: dict[str, str] = {}
    try:
        cli(prog_name="voxbatch", standalone_mode=False, obj=told)
    except click.exceptions.Exit as e:
        sys.exit(e.exit_code)
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.format_message(), err=True)
        sys.exit(e.exit_code)
    except click.ClickException as e:
        _add_context(e)
        _show(message_of(e), told, usage(e))
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
            is_output = e.filename is None and e.errno in _DISK_ERRORS
            _show(f"cannot write to standard output: {e.strerror}" if is_output else str(e), told)
        _discard_output()
        sys.exit(1)
    except Exception as e:  # a bug: let Python print the traceback
        write_exit_message(f"{type(e).__name__}: {e}")
        raise
    sys.exit(0)


def _show(error: str, told: Mapping[str, str], usage: str = "") -> None:
    """Show the error that ends the command, in the format of its log. Text begins with the usage.

    Args:
        told: the format of the log under LOG_FORMAT, if the command line was read so far.
    """
    write_exit_message(error)
    log = Log(is_json(told.get(LOG_FORMAT, "auto"), in_job(os.environ)))
    if usage and not log.as_json:
        log.info("usage", text=usage)
    log.error("failed", text=error)


def _discard_output() -> None:
    """Discard what is left in the buffer of standard output, so that the flush at the exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
