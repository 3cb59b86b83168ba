"""The settings of the files of single items. `item_names` has their names.

They are a part of the config that a list and summary.json hold, not of a run's identity: a later merge may have others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from voxbatch.errors import CheckpointError
from voxbatch.formats import DEFAULT_LIMITS, WRITERS, CueLimits
from voxbatch.output.layout import list_name
from voxbatch.output.products import Products
from voxbatch.output.run_file import Run, read_list
from voxbatch.output.summary import read_whole_summary
from voxbatch.storage import Store
from voxbatch.work import work_of

LIMITS = tuple(asdict(DEFAULT_LIMITS))
"""Names of the limits of cues in a config."""


def given_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the files of single items that a config gives. `beside` without formats means srt."""
    formats = config.get("formats") or (("srt",) if config.get("beside") else None)
    values = {"formats": formats, **{name: config.get(name) for name in ("beside", "report", *LIMITS)}}
    return {name: value for name, value in values.items() if value is not None}


def latest_config(store: Store, run: Run) -> Mapping[str, Any]:
    """Return the config of the latest merge of a run, with what the lists after it give: a run may be stopped, and get
    another list, before it merges.

    Raises:
        CheckpointError: the latest list is damaged.
    """
    summary = read_whole_summary(store)
    merged = summary.facts.config if summary is not None and summary.key == run.key else {}
    first = summary.list if summary is not None and merged else 0
    if first == run.list_number:
        return merged
    given: dict[str, Any] = {}
    for number in range(first + 1, run.list_number):
        name = list_name(number, run.generation)
        with contextlib.suppress(CheckpointError):  # nothing else of an earlier list is needed
            given |= given_settings(read_list(store, name, run.key).facts.config) if store.exists(name) else {}
    listed = read_list(store, list_name(run.list_number, run.generation), run.key).facts.config
    return {**listed, **merged, **given, **given_settings(listed)}


@dataclass(frozen=True, slots=True)
class ItemFiles:
    """The files of single items: the formats, the shape of the cues, and whether beside the recordings; the report."""

    formats: tuple[str, ...] = ()
    """Names from formats.WRITERS."""
    limits: CueLimits = DEFAULT_LIMITS
    beside: bool = False
    """Write each file also beside the recording."""
    report: bool = False
    audio: tuple[str, ...] = ()
    """Names from layout.AUDIO_FORMATS, in a run that speaks."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ItemFiles:
        """Return the settings in a config; see given_settings."""
        settings = given_settings(config)
        formats = tuple(name for name in settings.get("formats", ()) if name in WRITERS)
        limits = CueLimits(**{name: settings[name] for name in LIMITS if name in settings})
        files = cls(formats, limits, settings.get("beside", False), settings.get("report", False))
        products: Products = work_of(config).resolve("products")
        return products.item_files(files, config)

    def to_config(self, others: Iterable[str] = ()) -> dict[str, Any]:
        """Return the settings as they stand in a config, with further formats that OUT has."""
        formats = [name for name in WRITERS if name in {*self.formats, *others}]
        return {"formats": formats, **asdict(self.limits), "beside": self.beside, "report": self.report}
