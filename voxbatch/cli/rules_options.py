"""The options of `score` and `compare` that choose how texts are normalised."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from voxbatch.scoring.normalize import NORMALIZERS, Rules

_OPTIONS = (
    click.option(
        "--normalizer",
        type=click.Choice(NORMALIZERS),
        default="auto",
        show_default=True,
        help="Rules for the texts before they are compared. auto: Whisper's for English, else basic; whisper: exactly "
        "Whisper's; none: words as they are written.",
    ),
    click.option("--case", is_flag=True, help="Upper and lower case differ. auto then means basic for English, too."),
    click.option("--punctuation", is_flag=True, help="Punctuation counts: `yes,` is not `yes`. auto: as with --case."),
    click.option(
        "--replace",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="Words to replace in both texts: a JSON object, or two columns separated by a tab.",
    ),
    click.option(
        "--leaderboard",
        metavar="FOLDER",
        type=click.Path(exists=True, file_okay=False),
        help="Score English as the Open ASR Leaderboard does, by this copy of its repository.",
    ),
)


def rules_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which gets the Rules that they make, `rules`."""

    @functools.wraps(command)
    def with_rules(
        *args: Any,
        normalizer: str,
        case: bool,
        punctuation: bool,
        replace: str | None,
        leaderboard: str | None,
        **settings: Any,
    ) -> Any:
        from voxbatch.scoring.leaderboard import read_leaderboard
        from voxbatch.scoring.replacements import read_replacements

        replacements = None if replace is None else read_replacements(replace)
        theirs = None if leaderboard is None else read_leaderboard(leaderboard)
        return command(*args, rules=Rules(normalizer, case, punctuation, replacements, theirs), **settings)

    for option in reversed(_OPTIONS):
        option(with_rules)
    return with_rules
