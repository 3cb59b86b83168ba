"""Speech from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Unpack

from voxbatch.api.background_run import BackgroundRun, config_of
from voxbatch.api.keyword_types import SpeakKeywords
from voxbatch.api.keywords import checked, with_keywords
from voxbatch.errors import ConfigError
from voxbatch.output.summary import Summary
from voxbatch.runner import Progress
from voxbatch.settings import settings_of
from voxbatch.storage import StoreOptions
from voxbatch.works.speak import SETTINGS
from voxbatch.works.speak.options import SpeechOptions


@with_keywords(SpeakKeywords, SpeechOptions)
def speak(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    formats: str | Collection[str] = (),
    on_progress: Callable[[Progress], object] | None = None,
    **options: Unpack[SpeakKeywords],
) -> Summary:
    """Speak each text of a source, as `voxbatch speak` does, and return the summary of the run.

    recordings.jsonl in OUT is a manifest of the recordings, which `run` takes.

    Args:
        source: JSON lines, a table, a text or Markdown file, an EPUB, or subtitles; see docs/speech.md.
        out: see `run`.
        formats: formats of the recordings besides FLAC: a list, or a string with commas.
        on_progress: see `run`.
        options: `voice`, `loudness`, `seed`, `verify`, …, and those of `run` that are not about recordings.

    Raises:
        UsageError: an option, the source or OUT is wrong; nothing was spoken.
        RunError: the run cannot continue. What is committed is safe, and the same call continues.
    """
    values: dict[str, Any] = dict(options)
    declared = settings_of(SpeechOptions)
    speech = {name: checked(declared[name], values.pop(name)) for name in declared if name in values}
    if unknown := sorted(values.keys() - {*SETTINGS, *settings_of(StoreOptions)}):
        raise ConfigError(f"option {unknown[0]}: unknown, or without a meaning for speech; leave it out")
    names = formats.split(",") if isinstance(formats, str) else formats
    speech["audio_formats"] = tuple(name.strip() for name in names if name.strip())
    return BackgroundRun(replace(config_of(source, out, values), own=SpeechOptions(**speech))).wait_with(on_progress)
