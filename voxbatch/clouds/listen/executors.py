"""The options that all runs of a listener share, and their performance in this process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from voxbatch import engines, runner
from voxbatch.clouds.listen.message import RunRequest
from voxbatch.config import Config, RunOptions
from voxbatch.decoding import warm_pool
from voxbatch.display import log_result, progress_events
from voxbatch.engines import EngineCache
from voxbatch.engines.choice import choose
from voxbatch.log import Log
from voxbatch.runner import Stop
from voxbatch.runner.prepare import worker_environments
from voxbatch.runner.steps import steps_of
from voxbatch.storage import redacted
from voxbatch.storage.address import is_folder


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """The options that all runs of a listener share."""

    run: RunOptions
    include: tuple[str, ...] = ()
    """Patterns for the recordings of a folder; see manifest.recording_path.is_included."""

    def config(self, request: RunRequest) -> Config:
        """Return the Config of one run. A manifest that the listener wrote may name only its own recordings."""
        include = self.include if is_folder(request.source) else ()
        config = Config.of(self.run, request.source, request.out, include=include)
        if not request.only_under:
            return config
        return replace(config, allow_outside=False, only_under=(*config.only_under, *request.only_under))


class LocalExecutor:
    """Performs runs in this process, with an engine and decoder processes that stay ready."""

    is_local: ClassVar[bool] = True
    """True if this process does the work. It then holds a lease on the OUT, so that no second listener does the same
    work."""

    def __init__(self, options: SharedOptions, stop: Stop, log: Log):
        """Create the engine, which loads its model for the first run.

        Raises:
            UsageError: no run could succeed, so the options are at fault and not a message.
        """
        self._options, self._stop, self._log = options, stop, log
        self._engine_cache = EngineCache()
        run = options.run
        name = choose(run.engine, model=run.model, stores=run.stores).name
        engine_options = engines.options_with_kernels(name, run.engine_options, run.kernel_cache)
        engine = self._engine_cache.get(name, run.model, engine_options, run.stores)
        steps_of(run).check(engine.spec)
        if (second := steps_of(run).second_model(engine.spec)) is not None:
            models = f"{engine.spec.model} and then {second.spec.model}"
            text = f"each run loads {models} anew; for many small runs, collect more recordings for one run"
            log.warning("loads_anew", text=f"{text} (--batch-window)")
        if (count := len(worker_environments(engine.spec, run.workers))) > 1:
            log.warning(
                "loads_anew",
                text=f"{count} GPUs share each run, and load the model anew for it; for many small runs start a "
                "listener for each GPU (--engine-option devices=0), or give --workers 1",
            )
        warm_pool.open()

    def execute(self, request: RunRequest) -> float | None:
        """Bring a run to its end, and return None: its messages may be acknowledged.

        Raises:
            UsageError: the run can never succeed.
            RunError: the run cannot continue here and now.
            StopRequested: a signal stopped the run.
        """
        config, log = self._options.config(request), self._log.with_fields(out=request.out)
        source = redacted(request.source)
        log.info("run_started", source=source, text=f"{source} → {request.out}")
        with progress_events(log) as observe:
            result = runner.run(config, log, observe, self._stop, self._engine_cache, shares_out=True)
        log_result(config, result, log)
        return None

    def close(self) -> None:
        """Unload the engine, and end the decoder processes."""
        warm_pool.close()
        self._engine_cache.close()
