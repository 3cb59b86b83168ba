"""The command `models`: which models there are, and which of them are on this machine."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from voxbatch.safe_text import escape_controls

if TYPE_CHECKING:
    from voxbatch.engines.known_models import KnownModel

WIDTH = 79
"""Columns of the printed text: a terminal's usual 80, without the last one."""


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


def _table() -> Iterator[str]:
    from voxbatch.engines import install_command
    from voxbatch.engines.known_models import KNOWN_MODELS, LEADERBOARD

    for engine, use in (("faster-whisper", "on a CPU"), ("vllm", "on NVIDIA GPUs")):
        install = install_command(engine)
        yield f"engine {engine}, {use}{f'; not installed: {install}' if install else ''}"
        yield f"  {'MODEL':<40} {'LANGUAGES':<9} {'MB':>6} {'WER':>5} HERE"
        for each in KNOWN_MODELS:
            if each.engine == engine:
                languages = "English" if each.languages == ("en",) else str(len(each.languages))
                wer = "" if each.wer is None else f"{each.wer:.2f}"
                yield f"  {each.name:<40} {languages:<9} {each.megabytes:>6,} {wer:>5} {each.place:<8}".rstrip()
        yield ""
    yield f"WER: {LEADERBOARD}; in %."
    yield "HERE: bundled (installed as a package), cached (downloaded before), no (the"
    yield "first run downloads it). Licences: Whisper MIT, Voxtral Apache-2.0."
    yield "voxbatch models NAME explains one: languages, licence, how to get it."


def _details(model: KnownModel) -> Iterator[str]:
    from voxbatch.engines import install_command
    from voxbatch.engines.hub import cache_folder
    from voxbatch.engines.known_models import LEADERBOARD
    from voxbatch.languages import language_name

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
        "size": f"about {model.megabytes:,} MB",
        "licence": model.license,
        "WER": "no published figure is known here" if model.wer is None else f"{model.wer:.2f} %: {LEADERBOARD}",
        "here": here[model.place],
        "run": f"voxbatch run recordings/ --engine {model.engine} --model {model.name}",
    }
    if model.place == "no":
        rows["no network"] = (
            f"on another machine: hf download {model.hub} --local-dir model; copy the folder here, and give --model "
            "./model"
        )
    for label, text in {"model": model.name, **rows}.items():
        for number, line in enumerate(textwrap.wrap(text, WIDTH - 12, break_long_words=False, break_on_hyphens=False)):
            yield f"{label if not number else '':<11} {line}"
