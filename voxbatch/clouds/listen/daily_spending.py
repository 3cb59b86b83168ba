"""The expected price of what a listener starts in a day, kept in its OUT: one empty file for each execution.

    batches/spent-2026-11-30/16.4200-3f2a…    an execution that is expected to cost 16.42 USD

The file is created before the execution is started, and the day is added up after that. So several dispatchers together
never exceed the limit, and a dispatcher that starts anew knows what was spent before.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid

from voxbatch.clouds.listen.manifest_window import FOLDER
from voxbatch.errors import ConfigError, StorageError
from voxbatch.storage import Store

_NAME = re.compile(r".*/(\d+\.\d+)-[0-9a-f]{12}")
"""The name of an execution, with its price."""


class DailySpending:
    """Adds up the expected price of the executions of a UTC day."""

    def __init__(self, store: Store | None, max_usd: float):
        """Begin with what is stored.

        Args:
            store: OUT of the listener; None: nothing is stored, and this process counts alone.
            max_usd: the most for a day; 0: no limit, and nothing is counted.
        """
        self._store, self._max_usd, self._names = store, max_usd, set[str]()

    def add(self, usd: float) -> str:
        """Count an execution, and return its name for `withdraw`; "" if nothing is counted.

        Raises:
            ConfigError: the day would be above the limit. The execution is not counted.
            StorageError: OUT cannot be read or written.
        """
        if not self._max_usd:
            return ""
        name = f"{FOLDER}/spent-{time.strftime('%Y-%m-%d', time.gmtime())}/{usd:.4f}-{uuid.uuid4().hex[:12]}"
        try:
            if self._store:
                self._store.create(name, [])
            self._names.add(name)
            total = self._total(name.rpartition("/")[0])
        except StorageError:  # nothing will be started
            with contextlib.suppress(StorageError):
                self.withdraw(name)
            raise
        if total <= self._max_usd:
            return name
        self.withdraw(name)
        raise ConfigError(
            f"the executions of this day (UTC) would be expected to cost {total:,.2f} USD, and --max-usd-per-day is "
            f"{self._max_usd:,.2f}: replay this message tomorrow, or raise --max-usd-per-day "
            "(VOXBATCH_MAX_USD_PER_DAY; MAX_USD_PER_DAY of deploy.sh) and replay it"
        )

    def withdraw(self, name: str) -> None:
        """Take back an execution that was not started."""
        self._names.discard(name)
        if name and self._store:
            self._store.delete(name)

    def _total(self, day: str) -> float:
        """Return the price of all executions of a day. The listing may lack those of this process that are young, and
        may have what others have put there."""
        stored = self._store.names(day) if self._store else []
        prices = (_NAME.fullmatch(name) for name in self._names.union(stored) if name.startswith(f"{day}/"))
        return sum(float(price[1]) for price in prices if price)
