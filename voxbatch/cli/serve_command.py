"""`voxbatch serve`: become vLLM's own OpenAI server, with the arguments of a profile."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from voxbatch.cli.options import PROFILE, file_for_vllm, option, run_options_of, server_options, store_options
from voxbatch.config import LOG_FORMATS
from voxbatch.errors import ConfigError
from voxbatch.log import is_json
from voxbatch.platforms.tasks import in_job
from voxbatch.safe_text import escape_controls
from voxbatch.storage import Stores
from voxbatch.vllm.plugin.server_middleware import PERIODS, Rate

if TYPE_CHECKING:
    from voxbatch.vllm.engine.config_keys import FileSettings


def rate_limit_of(_ctx: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """Return the value of --rate-limit, checked."""
    if text:
        try:
            Rate.parse(text)
        except ValueError as e:
            raise click.BadParameter(str(e)) from e
    return text


@click.command(short_help="Serve a model with vLLM's OpenAI API.")
@click.argument("others", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM_ARGUMENTS]")
@server_options
@option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen at; 0.0.0.0: for every machine that reaches this one. Nobody is asked for a password.",
)
@option(
    "--port",
    type=click.IntRange(1, 65_535),
    default=8000,
    show_default=True,
    envvar=["VOXBATCH_PORT", "PORT"],
    metavar="N",
    help="Port to listen at. The variable PORT sets it, too.",
)
@option(
    "--rate-limit",
    callback=rate_limit_of,
    metavar="N/PERIOD",
    help=f"Requests that one address may send in a period ({', '.join(PERIODS)}), such as 60/minute; further ones are "
    "answered 429. Each instance of a service counts for itself.",
)
@option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="auto",
    show_default=True,
    help="Format of the access log; auto: JSON on a cloud platform.",
)
@option("--dry-run", is_flag=True, help="Print the command of the server, and do not start it.")
@store_options
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    others: tuple[str, ...],
    profile: str | None,
    serving_properties: str | None,
    vllm_config: str | None,
    model: str | None,
    engine_options: Mapping[str, str],
    host: str,
    port: int,
    rate_limit: str | None,
    log_format: str,
    dry_run: bool,
    stores: Stores,
) -> None:
    """Serve one model on this machine's GPUs: vLLM's own server, started with exactly the arguments of a profile.

    Voxtral TTS (--profile tts) is served by vllm-omni, at /v1/audio/speech.

    It answers /v1/chat/completions, /v1/completions, /v1/audio/transcriptions, /v1/models, /health, /metrics and
    SageMaker's /ping and /invocations; for Voxtral Realtime also /v1/realtime, a WebSocket. Arguments after -- go to
    vLLM as they are.
    """
    from voxbatch import engines
    from voxbatch.vllm.engine.server import Server, as_flags, middleware

    if install := engines.install_command("vllm"):
        raise ConfigError(f"engine vllm is not installed, and only vllm has a server: {install}")
    served = file_for_vllm(serving_properties, vllm_config)
    if (engine := ctx.meta.get(PROFILE, {}).get("engine")) not in (None, "vllm"):
        raise ConfigError(
            f"--profile {profile} is for the engine {engine}, and only vllm has a server; see voxbatch profiles"
        )
    settings = {"engine": "vllm", "model": model, "engine_options": engine_options}
    options = run_options_of(ctx, settings, served)
    server = Server(options.model, options.engine_options, stores)
    if served:
        _tell_unknown(served)
        switches = {"true": True, "false": False}
        of_file = {name: switches.get(value.lower(), value) for name, value in served.of_server.items()}
        others = (*as_flags(of_file), *others)
    for message in server.bring_model():
        if not message.is_progress:
            click.echo(escape_controls(message.text), err=True)
    allow_private = stores.options.allow_private_addresses
    flags = middleware(rate_limit, is_json(log_format, in_job(os.environ)), allow_private)
    command = server.command(host, port, (*flags, *others))
    if dry_run:
        click.echo(shlex.join(command))
        return
    click.echo(escape_controls(f"serving {server.model} at http://{host}:{port}/v1, when vLLM is ready"), err=True)
    sys.stderr.flush()
    os.execv(command[0], command)  # noqa: S606 vLLM gets this process's id, signals and environment


def _tell_unknown(served: FileSettings) -> None:
    """Print the keys of a file for vLLM that have no effect here."""
    without = [name for name in served.without_effect if name.removeprefix("option.") not in served.of_server]
    if without:
        click.echo(escape_controls(f"{served.file}: without effect here: {', '.join(without)}"), err=True)
    for text in served.unknown:
        click.echo(escape_controls(f"Warning: {text}"), err=True)
