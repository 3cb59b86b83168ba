"""The commands `models` (which models there are, and which of them are on this machine) and `profiles`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from voxbatch.cli.commands import HELP_WIDTH, WIDTH
from voxbatch.cli.options import parsed_run_options
from voxbatch.errors import ConfigError, EngineError
from voxbatch.languages import language_name, language_tag
from voxbatch.safe_text import escape_controls
from voxbatch.work import work

if TYPE_CHECKING:
    from voxbatch.engines.known_models import KnownModel
    from voxbatch.engines.quality import Candidate


@click.command(short_help="List the models, or explain one.")
@click.argument("name", required=False, metavar="[NAME|LANG]")
@click.option("--cpu", is_flag=True, help="Only models for a CPU.")
@click.option("--fits", is_flag=True, help="Only models that an installed engine can run in this machine's memory.")
@click.option("--all", "is_full", is_flag=True, help="All models, with error rates, memory, speed and licence.")
def models(name: str | None, cpu: bool, fits: bool, is_full: bool) -> None:
    """Show what each model costs on this machine, for English and other languages or for LANG (de, german): errors,
    time, memory and download. With --cpu, --fits or --all, list all models with languages and licence. Or explain
    model NAME and how to get it.

    Other models work, too: --model of `run` takes any folder, and OWNER/NAME of the Hugging Face hub.
    """
    from voxbatch.engines import ENGINES, has_gpu
    from voxbatch.engines.known_models import KNOWN_MODELS, engines_of, find, unknown_name

    language = None if name is None else language_tag(name)
    if name is None or ((model := find(name)) is None and language in _languages()):
        shown = [model for model in KNOWN_MODELS if language is None or language in model.languages]
        shown = [model for model in shown if not (cpu and ENGINES[model.engine].uses_gpu)]
        lines = _table(shown, fits) if is_full or fits or cpu else _choices(language)
    elif model is None:
        raise unknown_name(name)
    else:
        here = next((engine for engine in sorted(engines_of(name)) if ENGINES[engine].uses_gpu == has_gpu()), None)
        lines = _details(find(name, here) or model)
    for line in lines:
        click.echo(escape_controls(line))


_SPEED = "seconds of audio per second on one H200, with made-up weights"


def _languages() -> set[str]:
    """Return the languages that a model of the table knows."""
    from voxbatch.engines.known_models import KNOWN_MODELS

    return {language for model in KNOWN_MODELS for language in model.languages}


def _choices(language: str | None) -> Iterator[str]:
    """Yield the models that this machine can run, each more accurate than all faster ones, for a language, or for
    English and for all others; and how to take one."""
    from voxbatch.engines import quality

    option = f" {language}" if language else ""
    try:
        ladders = {code: quality.choices(code) for code in ([language] if language else ["en", None])}
    except ConfigError:
        known = f" that knows {language_name(language)}" if language else ""
        yield f"no installed engine has a model{known} for this machine"
        yield from _engines_of_packages()
        yield f"all models, and how to install their engines: voxbatch models{option} --all"
        return
    candidates = [candidate for ladder in ladders.values() for candidate, _ in ladder]
    width = max(len(candidate.model.name) for candidate in candidates)
    memory = "" if candidates[0].uses_gpu else "  MEMORY"
    yield f"  {'MODEL':<{width}} ERRORS  1 HOUR{memory}  DOWNLOAD  --quality"
    for code, ladder in ladders.items():
        others = "" if code == "en" else " (errors in English)"
        yield f"for {language_name(code) if code else 'other languages'}{others}"
        yield from (_choice(candidate, qualities, width) for candidate, qualities in ladder)
    yield ""
    yield from _explained(candidates[-1])
    yield from () if candidates[0].uses_gpu else _of_unknown_speed(language)
    yield from _engines_of_packages()
    yield f"take one: voxbatch run FOLDER --language {language or 'LANG'} --quality best, or --model NAME"
    narrower = "" if language else "for a language: voxbatch models LANG; "
    yield f"{narrower}all, on GPUs too: voxbatch models{option} --all"


def _choice(candidate: Candidate, qualities: Sequence[str], width: int) -> str:
    from voxbatch.engines.quality import QUALITIES

    model, errors = candidate.model, _figure(candidate.errors)
    memory = "" if candidate.uses_gpu else f" {candidate.memory_bytes / 1e9:4.1f} GB"
    download = "none" if model.place != "no" else f"{model.megabytes:,} MB" if model.megabytes else "unknown"
    taken = "all" if len(qualities) == len(QUALITIES) else ", ".join(qualities)
    row = f"  {model.name:<{width}} {errors and f'{errors} %':>6} {candidate.hour:>7}{memory} {download:>9}"
    return f"{row}  {taken}".rstrip()


def _explained(last: Candidate) -> Iterator[str]:
    """Yield the meaning of the columns of `_choices`, whose last model is given."""
    from voxbatch.engines import quality
    from voxbatch.engines.known_models import CLEAN, LEADERBOARD

    source = LEADERBOARD if last.uses_gpu else CLEAN
    speed = "on one H200, with made-up weights" if last.uses_gpu else f"may be {quality.CPU_ERROR:.0%} off"
    free = f"{quality.free_bytes(last.uses_gpu) / 1e9:.1f} GB"
    for text in (
        f"ERRORS: {source.partition(', docs')[0]}. Interviews and other languages have more.",
        f"1 HOUR: takes so long, {speed}; yours: voxbatch run FOLDER --dry-run",
        f"Left out: more memory than the free {free}. --quality takes at most {60 / quality.REAL_TIME:.0f} min.",
    ):
        yield from _wrapped(text)


def _of_unknown_speed(language: str | None) -> Iterator[str]:
    """Yield the sentence about the most accurate model for a CPU whose speed there is unknown."""
    from voxbatch.engines import ENGINES, quality
    from voxbatch.engines.known_models import KNOWN_MODELS

    on_cpu = [model for model in KNOWN_MODELS if model.wer and not ENGINES[model.engine].uses_gpu]
    known = sorted((model for model in on_cpu if quality.knows(model, language)), key=lambda model: model.wer or 0)
    other = next((model for model in known if model.gmac), None)
    if other and known[0] != other:
        name = known[0].name
        rates = f"{known[0].wer:.2f} %, where {other.name} has {other.wer:.2f} % (Open ASR Leaderboard, English)"
        yield from _wrapped(f"{name}: errors {rates}; its speed here is unknown: voxbatch models {name}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - 1, break_on_hyphens=False)


def _by_engine(models: Sequence[KnownModel], fits: bool) -> Iterator[tuple[str, list[str], list[KnownModel]]]:
    """Yield (engine, the lines about it, its models) of each engine that has some of the models."""
    from voxbatch.engines import ENGINES, install_command, quality

    for engine, use in sorted((name, engine.use) for name, engine in ENGINES.items() if engine.use):
        install = install_command(engine)
        rows = [model for model in models if model.engine == engine]
        if fits:
            rows = [model for model in rows if not install and quality.fits(model)]
        if rows:
            yield engine, [f"engine {engine}, {use}", *([f"  not installed: {install}"] if install else [])], rows


def _engines_of_packages() -> Iterator[str]:
    from voxbatch.engines import entry_points

    for name, registration in entry_points.installed():
        if isinstance(registration, EngineError):
            yield str(registration)
        else:
            yield f"engine {name}{registration.use and f', {registration.use}'}: of the package {registration.package}"


def _table(models: Sequence[KnownModel], fits: bool) -> Iterator[str]:
    from voxbatch.engines import ENGINES, quality
    from voxbatch.engines.known_models import CLEAN, LEADERBOARD
    from voxbatch.speakers.weights import EMBEDDING, SEGMENTATION

    for engine, lines, rows in _by_engine(models, fits):
        yield from lines
        row = _gpu_row if ENGINES[engine].uses_gpu else _cpu_row
        yield row("MODEL", "LANG", "WER", "CLEAN", "MEMORY", "SPEED", "LICENCE", "HERE")
        for model in rows:
            memory, rtfx = quality.memory_bytes(model), quality.speed_of(model)
            yield row(
                model.name,
                "en" if model.languages == ("en",) else str(len(model.languages)),
                _figure(model.wer),
                _figure(model.clean),
                f"{memory / 1e9:.1f} GB" if memory else "",
                f"{rtfx if ENGINES[engine].uses_gpu else float(f'{rtfx:.2g}'):,g}" if rtfx else "",
                model.license,
                model.place,
            )
        yield ""
    for line in _engines_of_packages():
        yield from (line, "")
    yield "networks of --speakers, from the hub"
    for network in (SEGMENTATION, EMBEDDING):
        yield f"  {network.repository:<40} {network.license:<11} {network.megabytes} MB"
        yield f"    {network.origin}"
    yield ""
    yield "LANG: en, or the number of languages."
    yield from textwrap.wrap(f"WER: {LEADERBOARD}; in %.", WIDTH - 1)
    yield from textwrap.wrap(f"CLEAN: {CLEAN}; in %.", WIDTH - 1)
    gpu = f"SPEED: of engines for GPUs, {_SPEED}. An hour of audio costs the hour of a GPU divided by it."
    cpu = "Of engines for a CPU, seconds of audio per second on this one, calculated from a measurement of tiny.en; may"
    yield "MEMORY: calculated from the size of the weights."
    yield from textwrap.wrap(f"{gpu} {cpu} be {quality.CPU_ERROR:.0%} off.", WIDTH - 1)
    yield "HERE: bundled (installed as a package), cached (downloaded before), no (the"
    yield "first run downloads it)."
    yield "voxbatch models NAME explains one: languages, size, price, how to get it."
    yield "vLLM runs other models of the same classes, too: docs/gpus-and-models.md."


def _figure(error_rate: float | None) -> str:
    return "" if error_rate is None else f"{error_rate:.2f}"


def _gpu_row(model: str, languages: str, wer: str, _: str, __: str, speed: str, license: str, place: str) -> str:
    return f"  {model:<39} {languages:>4} {wer:>4} {speed:>6} {license:<12} {place}"


def _cpu_row(
    model: str, languages: str, wer: str, clean: str, memory: str, speed: str, license: str, place: str
) -> str:
    return f"  {model:<18} {languages:>4} {wer:>4} {clean:>5} {memory:>7} {speed:>6} {license:<12} {place}"


def _details(model: KnownModel) -> Iterator[str]:
    from voxbatch import prices
    from voxbatch.engines import ENGINES, install_command
    from voxbatch.engines.hub import cache_folder
    from voxbatch.engines.known_models import CLEAN, LEADERBOARD
    from voxbatch.engines.quality import memory_bytes, speed_of

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
        "WER": "; ".join(
            f"{figure:.2f} %: {source}" for figure, source in ((model.wer, LEADERBOARD), (model.clean, CLEAN)) if figure
        )
        or "no published figure is known here",
        "memory": f"about {memory_bytes(model) / 1e9:.1f} GB, calculated" if model.megabytes else "unknown here",
        "speed": f"about {speed_of(model):.2g} times real time on this CPU, calculated"
        if not ENGINES[model.engine].uses_gpu and speed_of(model)
        else f"{model.rtfx:,} {_SPEED}"
        if model.rtfx
        else "not measured on a GPU",
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
