"""Runs with the scripted engine that wait at a known point until the test lets them go on."""

from __future__ import annotations

import subprocess
from pathlib import Path

from waits import until


class Hold:
    """A point after some results at which the engines of a run wait; see `hold` of ScriptedOptions.

    Args:
        folder: does not exist yet.
        after: number of results that each engine gives before it waits.
    """

    def __init__(self, folder: Path, after: int = 1):
        folder.mkdir()
        self._folder = folder
        self.engine_options = {"hold": str(folder), "hold_after": str(after)}
        self.options = tuple(
            word for name, value in self.engine_options.items() for word in ("--engine-option", f"{name}={value}")
        )
        """The same on the command line."""

    def pids(self) -> set[int]:
        """Return the process ids of all engines that have come to the point."""
        return {int(path.name) for path in self._folder.iterdir()}

    def reached(self, engines: int = 1, process: subprocess.Popen[str] | None = None) -> None:
        """Wait until so many engines have come to the point. Fail if the process ends before."""
        until(lambda: len(self.pids()) >= engines, process=process)

    def release(self) -> None:
        """Let all engines go on, and none wait any more."""
        self._folder.rename(self._folder.with_name(f"{self._folder.name}-released"))
