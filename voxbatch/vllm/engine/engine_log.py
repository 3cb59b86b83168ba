"""The log of vLLM's processes, and the cause of their death that it tells.

It goes to a file, because standard output belongs to the results and the terminal to the progress line.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from voxbatch.storage.temporary_files import temporary_errors
from voxbatch.vllm.engine import compat

LOG_LINES = 3
"""Number of the engine's last errors that a message quotes."""


class EngineDied(Exception):
    """Report that the engine has ended, and with it all requests that it held.

    `cause` goes into the failures of items, so it does not name the log, whose path differs from run to run. The text
    of the exception names it. `is_stopped` is true if a signal told the engine to end, so that no request is to
    blame."""

    def __init__(self, cause: str, log: Path | None = None, is_stopped: bool = False):
        self.cause, self.is_stopped = cause, is_stopped
        self.out_of_memory = "out of memory" in cause.lower()
        super().__init__(f"{cause} (its log: {log})" if log else cause)


class EngineLog:
    """A temporary folder with the logging configuration that all of vLLM's processes read, and with their logs."""

    def __init__(self) -> None:
        with temporary_errors("the log of vLLM"):
            self._folder = Path(tempfile.mkdtemp(prefix="voxbatch-vllm-"))
            self.file, self._errors = self._folder / "engine.log", self._folder / "errors.log"
            self.config = self._folder / "logging.json"
            self.config.write_text(json.dumps(_logging(self.file, self._errors)))
        self._is_quoted = False

    def errors(self) -> str:
        """Return the errors that the processes have logged."""
        return self._errors.read_text(errors="replace").strip() if self._errors.exists() else ""

    def cause(self, error: Exception, killed: str = "") -> str:
        """Return one line: the last errors of the engine's log, else how its process ended, else the error itself."""
        self._is_quoted = True
        named = [line.split("] ", 1)[-1] for line in self.errors().splitlines() if _names_an_exception(line)]
        causes = list(dict.fromkeys(named))[-LOG_LINES:] or [killed or f"{type(error).__name__}: {error}"]
        return "; ".join(causes)[:1000]

    def remove(self) -> None:
        """Remove the folder, unless it holds errors or a message names it: then somebody will want to read it."""
        if not self._is_quoted and not self.errors():
            shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def errors_as_death(log: EngineLog, engine: Any = None, of_request: bool = False) -> Iterator[None]:
    """Raise EngineDied, with the cause from the log, for any exception of vLLM.

    vLLM reports the death of its core by several types of exceptions.

    Args:
        engine: vLLM's LLMEngine; None while it loads.
        of_request: raise ValueError for an error about the request itself.
    """
    try:
        yield
    except Exception as e:
        if of_request and isinstance(e, ValueError | TypeError):
            raise ValueError(str(e)) from e
        codes = [process.exitcode or 0 for process in compat.processes(engine)] if engine is not None else []
        killed = next((f"its process was killed by signal {-code}" for code in codes if code < 0), "")
        raise EngineDied(log.cause(e, killed), log.file) from e


def _names_an_exception(line: str) -> bool:
    """Return whether a line is the last one of a traceback: "torch.OutOfMemoryError: CUDA out of memory. …"."""
    head, colon, _ = line.split("] ", 1)[-1].partition(":")
    last = head.rpartition(".")[2]
    return bool(colon) and head.replace(".", "").replace("_", "").isalnum() and last.endswith(("Error", "Exception"))


def _logging(full_log: Path, errors: Path) -> dict[str, Any]:
    def to(path: Path, level: str) -> dict[str, Any]:
        return {
            "class": "logging.FileHandler",
            "filename": str(path),
            "level": level,
            "formatter": "plain",
            "delay": True,
        }

    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(asctime)s %(process)d %(levelname)s [%(name)s] %(message)s"}},
        "handlers": {
            "all": to(full_log, "INFO"),
            "errors": to(errors, "ERROR"),
            "parent": {"()": "voxbatch.vllm.plugin.parent_watchdog.DieWithParent"},
        },
        "loggers": {"vllm": {"handlers": ["all", "errors", "parent"], "level": "INFO", "propagate": False}},
    }
