"""The commands `models` (which models there are, and which of them are on this machine) and `profiles`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from voxbatch.cli.commands import HELP_WIDTH, WIDTH
from voxbatch.cli.options import parsed_run_options
from voxbatch.errors import EngineError
from voxbatch.languages import language_name
from voxbatch.safe_text import escape_controls
from voxbatch.work import work

if TYPE_CHECKING:
    from voxbatch.engines.known_models import KnownModel


@click.command(short_help="List the models, or explain one.")
@click.argument("name", required=False)
def models(name: str | None) -> None:
    """List the models with a short name or a profile, or explain model NAME and how to get it.

    Other models work, too: --model of `run` takes any folder, and OWNER/NAME of the Hugging Face hub.
    """
    from voxbatch.engines.known_models import find, unknown_name

    if name is None:
        lines = _table()
    elif (model := find(name)) is None:
        raise unknown_name(name)
    else:
        lines = _details(model)
    for line in lines:
        click.echo(escape_controls(line))


_SPEED = "seconds of audio per second on one H200, with made-up weights"


def _table() -> Iterator[str]:
    from voxbatch.engines import ENGINES, entry_points, install_command
    from voxbatch.engines.known_models import KNOWN_MODELS, LEADERBOARD
    from voxbatch.speakers.weights import EMBEDDING, SEGMENTATION

    for engine, use in sorted((name, engine.use) for name, engine in ENGINES.items() if engine.use):
        install = install_command(engine)
        yield f"engine {engine}, {use}"
        if install:
            yield f"  not installed: {install}"
        yield f"  {'MODEL':<39} {'LANG':>4} {'WER':>4} {'SPEED':>6} {'LICENCE':<12} HERE"
        for model in KNOWN_MODELS:
            if model.engine == engine:
                languages = "en" if model.languages == ("en",) else str(len(model.languages))
                wer = "" if model.wer is None else f"{model.wer:.2f}"
                speed = f"{model.rtfx:,}" if model.rtfx else ""
                yield f"  {model.name:<39} {languages:>4} {wer:>4} {speed:>6} {model.license:<12} {model.place}"
        yield ""
    for name, registration in entry_points.installed():
        if isinstance(registration, EngineError):
            yield str(registration)
        else:
            yield f"engine {name}{registration.use and f', {registration.use}'}: of the package {registration.package}"
        yield ""
    yield "networks of --speakers, from the hub"
    for network in (SEGMENTATION, EMBEDDING):
        yield f"  {network.repository:<40} {network.license:<11} {network.megabytes} MB"
        yield f"    {network.origin}"
    yield ""
    yield "LANG: en, or the number of languages."
    yield from textwrap.wrap(f"WER: {LEADERBOARD}; in %.", WIDTH - 1)
    yield from textwrap.wrap(f"SPEED: {_SPEED}. An hour of audio costs the hour of a GPU divided by it.", WIDTH - 1)
    yield "HERE: bundled (installed as a package), cached (downloaded before), no (the"
    yield "first run downloads it)."
    yield "voxbatch models NAME explains one: languages, size, price, how to get it."
    yield "vLLM runs other models of the same classes, too: docs/gpus-and-models.md."


def _details(model: KnownModel) -> Iterator[str]:
    from voxbatch import prices
    from voxbatch.engines import install_command
    from voxbatch.engines.hub import cache_folder
    from voxbatch.engines.known_models import LEADERBOARD

    usd_per_hour = prices.machines()[prices.RENTED_H200].usd_per_hour
    if len(model.languages) == 1:
        languages = "English only: for other languages take one that knows more, such as base"
    else:
        names = sorted(map(language_name, model.languages))
        languages = f"{len(names)}: {', '.join(names)}"
    here = {
        "bundled": "yes, installed as a package: it needs no network",
        "cached": f"yes, in {cache_folder()}",
        "no": f"no: the first run downloads it to {cache_folder()}",
    }
    install = install_command(model.engine)
    rows = {
        "engine": f"{model.engine}{f', not installed: {install}' if install else ''}",
        "hub": model.hub,
        "languages": languages,
        "size": f"about {model.megabytes:,} MB" if model.megabytes else "unknown here",
        "licence": model.license,
        "WER": "no published figure is known here" if model.wer is None else f"{model.wer:.2f} %: {LEADERBOARD}",
        "speed": f"{model.rtfx:,} {_SPEED}" if model.rtfx else "not measured on a GPU",
        "price": f"{usd_per_hour / model.rtfx:.4f} USD an hour of audio, at {usd_per_hour:g} USD an hour for an H200"
        if model.rtfx
        else "unknown without a speed",
        "tested": model.tested or "nothing with this model",
        "here": here[model.place],
        "run": f"voxbatch {work(model.work).example} --engine {model.engine} --model {model.name}",
    }
    if model.place == "no":
        rows["no network"] = (
            f"on another machine: hf download {model.hub} --local-dir model; copy the folder here, and give --model "
            "./model"
        )
    for label, text in {"model": model.name, **rows}.items():
        for number, line in enumerate(textwrap.wrap(text, WIDTH - 12, break_long_words=False, break_on_hyphens=False)):
            yield f"{label if not number else '':<11} {line}"


@click.command(short_help="List the profiles, or show one.")
@click.argument("name", required=False)
@click.pass_context
def profiles(ctx: click.Context, name: str | None) -> None:
    """List the profiles, or print the settings of profile NAME and the arguments that vLLM would get."""
    from voxbatch.profiles import PROFILE_KEYS, load_profile, profile_names

    if name is None:
        for profile in profile_names():
            click.echo(f"{profile:<12} {load_profile(profile).get('description', '')}")
        return
    import yaml

    from voxbatch.cli.run_command import run
    from voxbatch.engines.previews import preview_arguments

    with run.make_context(run.name, ["--profile", name, "-"], ctx) as running:
        settings = parsed_run_options(running).to_dict()
    resolved: dict[str, Any] = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in settings.items()
        if key in PROFILE_KEYS
    }
    resolved |= preview_arguments(resolved["engine"], resolved["model"], resolved["engine_options"])
    click.echo(yaml.safe_dump(resolved, sort_keys=False, width=HELP_WIDTH), nl=False)
