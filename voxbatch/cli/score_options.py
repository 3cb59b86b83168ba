"""The options of `score` that say how texts are compared and how items are grouped."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from voxbatch.scoring import NORMALIZERS, Rules, ScoreOptions
from voxbatch.scoring.leaderboard import read_leaderboard
from voxbatch.scoring.replacements import read_replacements

Command = Callable[..., Any]

_OPTIONS = (
    click.option(
        "--normalizer",
        type=click.Choice(NORMALIZERS),
        default="auto",
        show_default=True,
        help="Rules for the texts before they are compared. auto: Whisper's for English, else basic, which keep "
        "combining marks. none: compare the words as they are written (orthographic WER).",
    ),
    click.option("--case", is_flag=True, help="Upper and lower case differ. auto then means basic for English, too."),
    click.option("--punctuation", is_flag=True, help="Punctuation counts: `yes,` is not `yes`. auto: as with --case."),
    click.option(
        "--replace",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="Words to replace in both texts after the normaliser: a JSON object, or two columns separated by a tab.",
    ),
    click.option(
        "--leaderboard",
        metavar="FOLDER",
        type=click.Path(exists=True, file_okay=False),
        help="Score English as the Open ASR Leaderboard does, by the rules in this copy of its repository.",
    ),
    click.option("--by", metavar="KEYS", default="", help="Also score each value of these keys, e.g. speaker,source."),
    click.option(
        "--cluster",
        metavar="KEY",
        help="Calculate the intervals by the values of this key, e.g. speaker, instead of by item.",
    ),
)


def score_options(command: Command) -> Command:
    """Add the options to a command, which gets them as one argument, `options`.

    Raises:
        ConfigError: an option has no such value, or two do not fit together.
    """

    @functools.wraps(command)
    def with_options(
        *args: Any,
        normalizer: str,
        case: bool,
        punctuation: bool,
        replace: str | None,
        leaderboard: str | None,
        by: str,
        cluster: str | None,
        **settings: Any,
    ) -> Any:
        replacements = None if replace is None else read_replacements(replace)
        theirs = None if leaderboard is None else read_leaderboard(leaderboard)
        rules = Rules(normalizer, case, punctuation, replacements, theirs)
        keys = tuple(dict.fromkeys(key.strip() for key in by.split(",") if key.strip()))
        return command(*args, **settings, options=ScoreOptions(rules, keys, cluster))

    for add in reversed(_OPTIONS):
        with_options = add(with_options)
    return with_options
