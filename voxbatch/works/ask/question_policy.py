"""Read the question and the recordings of a line of a manifest of questions.

Such a line may have these keys besides those of every manifest:

    {"audio_filepaths": ["a.wav", "b.wav"], "prompt": "Who agrees with whom?", "id": "talk-7"}

`prompt` is the question, instead of that of the run. `audio_filepaths` names several recordings, in place of
`audio_filepath`, which names one. With several recordings, `offset`, `duration` and `channel` have no meaning and are
refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from voxbatch.manifest.json_line import AUDIO_KEY, AUDIOS_KEY, LineError, quote
from voxbatch.manifest.path_policy import PathPolicy

MAX_RECORDINGS = 8
"""Most recordings of one question."""
MAX_PROMPT_CHARACTERS = 100_000
"""Longest prompt: more tokens than the context of any model that is known here."""


@dataclass(frozen=True, slots=True)
class QuestionPolicy(PathPolicy):
    """The rules of a manifest of questions: the paths that it may name, and the question of lines without one."""

    prompt: str | None = None
    """The question of lines without a `prompt`. None means that each line must have one."""
    is_divided: bool = False
    """True if long recordings are asked about part by part. A line then has one recording."""

    def details(self, row: dict[str, Any], reference: str | None) -> dict[str, Any]:
        """Return the question. An answer is not scored, and no word is expected."""
        return {"prompt": self.question(row)}

    def question(self, row: dict[str, Any]) -> str:
        """Return the question of a line.

        Raises:
            LineError: there is none, or it is no text.
        """
        prompt = row.get("prompt")
        if prompt is None:
            prompt = self.prompt
        if prompt is None:
            raise LineError("has no `prompt`; add one to the line, or give --prompt for all lines")
        if not isinstance(prompt, str) or not prompt.strip():
            raise LineError(f"`prompt` is {quote(prompt)}; it must be a text that is not empty")
        if len(prompt) > MAX_PROMPT_CHARACTERS:
            raise LineError(f"`prompt` has {len(prompt):,} characters, at most {MAX_PROMPT_CHARACTERS:,} are allowed")
        return prompt

    def recordings(self, row: dict[str, Any]) -> list[Any]:
        """Return the recordings that a line names in `audio_filepaths`, or the one in `audio_filepath`.

        Raises:
            LineError: there are too many, or keys contradict each other.
        """
        paths = row.get(AUDIOS_KEY)
        if paths is None:
            return [row[AUDIO_KEY]] if AUDIO_KEY in row else []
        if not isinstance(paths, list) or not paths:
            raise LineError(f"`{AUDIOS_KEY}` is {quote(paths)}; it must be a list of 1 to {MAX_RECORDINGS} paths")
        if len(paths) > MAX_RECORDINGS:
            raise LineError(
                f"`{AUDIOS_KEY}` names {len(paths):,} recordings, and a question has at most {MAX_RECORDINGS}; ask "
                "about them in several lines"
            )
        if row.get(AUDIO_KEY) not in (None, paths[0]):
            raise LineError(f"has `{AUDIO_KEY}` and `{AUDIOS_KEY}`, which differ; give one of them")
        if len(paths) > 1 and self.is_divided:
            raise LineError(
                f"`{AUDIOS_KEY}` names {len(paths)} recordings, and --map-reduce takes one in each line; leave out "
                "--map-reduce, or ask about each recording in a line of its own"
            )
        extra = [key for key in ("offset", "duration", "channel") if row.get(key) is not None]
        if len(paths) > 1 and extra:
            allowed = f"`{extra[0]}` belongs to one recording, and `{AUDIOS_KEY}` names {len(paths)}"
            raise LineError(f"{allowed}; leave it out, or ask about each recording in a line of its own")
        return paths
