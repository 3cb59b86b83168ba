"""The settings of a run that asks questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from voxbatch.errors import ConfigError
from voxbatch.records import AnswerOptions
from voxbatch.settings import QUESTION, check_settings, setting
from voxbatch.work import WorkOptions

DEFAULT_ANSWER = AnswerOptions()
"""A free text, by greedy decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOptions(WorkOptions):
    """The questions of a run.

    Raises:
        ConfigError: a value is out of range, or two options contradict each other.
    """

    key: ClassVar[str] = "questions"

    prompt: str | None = setting(
        None, group=QUESTION, metavar="TEXT",
        help="The question about each recording. A `prompt` in a manifest's line is asked instead.",
    )  # fmt: skip
    answer: AnswerOptions = DEFAULT_ANSWER
    map_reduce: bool = setting(
        False, group=QUESTION,
        help="Ask about the parts of a too long recording, then about the answers. Default: refuse it.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name, text in (("prompt", self.prompt), ("system", self.answer.system)):
            if text is not None and not text.strip():
                raise ConfigError(f"--{name} is empty; give a text, or leave it out")
        check_settings(self.answer)
        if self.answer.json_schema is not None and self.answer.tools is not None:
            raise ConfigError("--json-schema and --tools contradict each other: an answer is a document or has calls")
