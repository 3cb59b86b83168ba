"""The options of answers. They are apart from the other records, because the command line needs them without numpy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The way in which an engine answers all questions of a run."""

    system: str | None = None
    """The system prompt. None leaves it out."""
    max_tokens: int = 1024
    """Largest number of tokens of an answer."""
    temperature: float = 0.0
    """0 means greedy decoding."""
    top_p: float = 1.0
    seed: int = 0
    """Seed of each answer, for a temperature above 0."""
    json_schema: str | None = None
    """JSON text of the schema that each answer follows. None means free text."""
    tools: str | None = None
    """JSON text of a list of functions in OpenAI's format that the model may call. None means no functions."""
