"""The checks that a run still owns OUT.

A process checks that its run is still the owner, and its list still the latest, before it commits a part and before it
writes or deletes any other file.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator

from voxbatch.errors import CheckpointError, RunError, StorageError, TakenOverError
from voxbatch.log import Log
from voxbatch.output.layout import RUN_FILE, list_name
from voxbatch.output.lease import work_on
from voxbatch.output.run_file import Run, read_existing, read_file
from voxbatch.storage import Store

CHECK_INTERVAL_S = 0.2
"""Seconds in which files are written or deleted without another look at run.json and the lists.

A process that was suspended looks at once when it continues. In this time no other run can take OUT over, transcribe
and merge. But an upload that began before may land later, so a merge replaces outputs that an earlier process wrote.
"""


class Ownership:
    """The checks of one process that its run is still the owner of OUT, and its list the latest.

    Several threads may use an object: at worst, two of them read run.json at the same time.
    """

    def __init__(self, store: Store, run: Run):
        self._store, self._run = store, run
        self._checked_at = float("-inf")
        self._checking = threading.Lock()

    def check(self) -> None:
        """Read run.json, and look for a later list, by its name: the listing of a store may lack it.

        Raises:
            TakenOverError: OUT belongs to another run now, or was deleted.
            CheckpointError: see `read`.
            StorageError: OUT cannot be read.
        """
        now, place = _clock(), self._store.place
        self._check_owner()
        own, following = (list_name(self._run.list_number + step, self._run.generation) for step in (0, 1))
        if not self._store.exists(own):
            self._check_owner()  # a run that has taken OUT over since has deleted it
            raise TakenOverError(f"{place}/{own} is gone: OUT was deleted or moved during the run")
        if self._store.exists(following):
            raise TakenOverError(
                f"{place}: another process continues this OUT with the present list of recordings, or does failed "
                "recordings again, and has taken over the committed items; this process ends, and nothing is to be done"
            )
        self._checked_at = now

    def _check_owner(self) -> None:
        place = self._store.place
        if (owner := read_file(self._store)) is None:
            raise TakenOverError(
                f"{place}/{RUN_FILE} is gone: OUT was deleted or moved during the run, or the process that started the "
                "run ended before its model was loaded"
            )
        if owner.key != self._run.key:
            raise TakenOverError(
                f"{place}: another run, {owner.key}, took OUT over with --overwrite; this run, {self._run.key}, ends, "
                "and its items in OUT are gone; to run both, give each its own OUT with -o"
            )

    def check_again(self) -> None:
        """Check, unless the last check was less than CHECK_INTERVAL_S seconds ago. Threads that come at the same time
        wait for one check. See `check`."""
        with self._checking:
            if _clock() - self._checked_at >= CHECK_INTERVAL_S:
                self.check()

    def checked(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the blocks of a file that is to be replaced, and check after the last one. So the check follows the
        look of `Store.write` at the file, and a process that is late replaces nothing of a later run. See `check`."""
        yield from blocks
        self.check_again()


def _clock() -> float:
    """Return seconds that also pass while the machine is suspended, unlike those of time.monotonic."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@contextlib.contextmanager
def takeover_explained(store: Store, run: Run) -> Iterator[None]:
    """Replace an error inside the context, if it is the consequence of a takeover: for example, a part is missing
    because the other run has deleted it.

    Raises:
        TakenOverError: an error occurred, and OUT belongs to another run.
    """
    try:
        yield
    except TakenOverError:
        raise
    except RunError:
        with contextlib.suppress(StorageError, CheckpointError):  # then nothing is known about the owner
            Ownership(store, run).check()
        raise


@contextlib.contextmanager
def existing_run(store: Store, command: str, log: Log) -> Iterator[Run]:
    """Yield the run in OUT. No other process works on it inside the context.

    Args:
        command: the command that changes OUT, such as "forget". "" if it changes nothing: then others may.

    Raises:
        ConfigError, CheckpointError: see `read_existing`.
        InUseError: another process works on OUT.
        TakenOverError: see `takeover_explained`.
    """
    run = read_existing(store)
    alone = work_on(store, 0, 1, is_alone=True, log=log, command=command) if command else contextlib.nullcontext()
    with takeover_explained(store, run), alone:
        yield run
