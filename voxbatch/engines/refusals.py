"""Say why an engine refuses a language, and what to do."""

from __future__ import annotations

from voxbatch.engines import EngineSpec, multilingual_model
from voxbatch.errors import ConfigError
from voxbatch.languages import ISO_639_1, primary_subtag, unknown_language

MAX_LISTED_LANGUAGES = 10
"""Largest number of languages that a message lists."""


def language_refusal(spec: EngineSpec, lang: str) -> str | None:
    """Return, as text for people, why an engine refuses a language, or None if the engine accepts it.

    Args:
        lang: a primary subtag.
    """
    if spec.knows(lang) or spec.languages is None:
        return None
    if unknown := unknown_language(lang):
        return unknown
    if spec.languages == ISO_639_1:
        return (
            f"model {spec.model} takes the two-letter codes of ISO 639-1, such as en; correct the code or leave it out"
        )
    other = "a model that knows more: --quality best" if multilingual_model(spec.name) else "another --model"
    if len(spec.languages) > MAX_LISTED_LANGUAGES:
        return f"it is not among the {len(spec.languages)} languages of model {spec.model}; correct it, or leave it out"
    return f"model {spec.model} knows only {', '.join(sorted(spec.languages))}; take {other}"


def require_language(spec: EngineSpec, lang: str) -> None:
    """Check that an engine accepts a language.

    Args:
        lang: a language tag, e.g. "pt-BR".

    Raises:
        ConfigError: the engine states its languages, and the language is not one of them.
    """
    if reason := language_refusal(spec, primary_subtag(lang)):
        is_known = spec.only_language and not unknown_language(lang) and multilingual_model(spec.name)
        raise ConfigError(f"--language {lang}: {reason}", ("--quality", "best") if is_known else ())
