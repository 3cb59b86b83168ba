"""The files of a run that asks questions."""

from __future__ import annotations

from voxbatch.errors import ConfigError
from voxbatch.output.products import Products


class Answered(Products):
    """The answers, which stand in the place of transcripts."""

    def check_data_set(self, place: str) -> None:
        """See Products."""
        raise ConfigError(f"{place} has answers, and no transcripts: give the OUT of voxbatch run")


PRODUCTS = Answered()
