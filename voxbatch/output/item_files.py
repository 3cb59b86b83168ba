"""The settings of the files of single items. `item_names` has their names.

They are a part of the config that a list and summary.json hold, not of a run's identity: a later merge may have others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from voxbatch.formats import DEFAULT_LIMITS, WRITERS, CueLimits
from voxbatch.output.products import Products
from voxbatch.work import work_of


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

    @property
    def formats_beside(self) -> frozenset[str]:
        """The formats that are written beside recordings: one of those that have the same extension."""
        by_extension = {WRITERS[form].beside: form for form in reversed(self.formats)}
        return frozenset(by_extension.values())

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ItemFiles:
        """Return the settings in a config. `beside` without formats means srt."""
        formats = tuple(name for name in config.get("formats") or () if name in WRITERS)
        limits = {name: config[name] for name in asdict(DEFAULT_LIMITS) if config.get(name) is not None}
        beside = bool(config.get("beside"))
        formats = formats or (("srt",) if beside else ())
        files = cls(formats, CueLimits(**limits), beside, bool(config.get("report")))
        products: Products = work_of(config).resolve("products")
        return products.item_files(files, config)

    def to_config(self, others: Iterable[str] = ()) -> dict[str, Any]:
        """Return the settings as they stand in a config, with further formats that OUT has."""
        formats = [name for name in WRITERS if name in {*self.formats, *others}]
        return {"formats": formats, **asdict(self.limits), "beside": self.beside, "report": self.report}
