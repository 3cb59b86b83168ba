"""A store whose answers lag: its listing lacks what was written last, for some seconds or for ever."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable

from voxbatch.storage import Store


class LaggingStore:
    """A store around another one.

    Args:
        lag_s: seconds for which the listing lacks a new object.
        hides: the names that lag. None means all.
        name_lag_s: seconds for which a new object is also missing by its name, as on a network file system.
    """

    def __init__(
        self,
        store: Store,
        lag_s: float = math.inf,
        hides: Callable[[str], bool] = lambda name: True,
        name_lag_s: float = 0.0,
    ) -> None:
        self._store, self._lag_s, self._hides, self.name_lag_s = store, lag_s, hides, name_lag_s
        self._written_at: dict[str, float] = {}
        self.place, self.concurrency, self.max_open = store.place, store.concurrency, store.max_open
        self.calls = Counter[str]()
        """Number of calls by the name of their method."""

    def _is_hidden(self, name: str, lag_s: float) -> bool:
        return self._hides(name) and time.monotonic() - self._written_at.get(name, -math.inf) < lag_s

    def prepare(self) -> str | None:
        return self._store.prepare()

    def read(self, name: str) -> bytes | None:
        self.calls["read"] += 1
        return None if self._is_hidden(name, self.name_lag_s) else self._store.read(name)

    def exists(self, name: str) -> bool:
        self.calls["exists"] += 1
        return not self._is_hidden(name, self.name_lag_s) and self._store.exists(name)

    def checksum(self, name: str) -> str:
        return self._store.checksum(name)

    def lines(self, name: str) -> Generator[bytes]:
        return self._store.lines(name)

    def names(self, prefix: str) -> list[str]:
        self.calls["names"] += 1
        return [name for name in self._store.names(prefix) if not self._is_hidden(name, self._lag_s)]

    def create(self, name: str, blocks: Iterable[bytes], durable: bool = True) -> bool:
        self.calls["create"] += 1
        is_created = self._store.create(name, blocks, durable)
        if is_created:
            self._written_at[name] = time.monotonic()
        return is_created

    def write(self, name: str, blocks: Iterable[bytes], durable: bool = True) -> None:
        self._written_at.setdefault(name, time.monotonic())
        self._store.write(name, blocks, durable)

    def sync(self) -> None:
        self._store.sync()

    def delete(self, name: str, check: Callable[[], None] | None = None) -> None:
        self._written_at.pop(name, None)
        self._store.delete(name, check)
