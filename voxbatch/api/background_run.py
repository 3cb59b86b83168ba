"""A run in a thread of its own, whose results and progress the calling thread reads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import fields, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from voxbatch import runner
from voxbatch.analysis import results
from voxbatch.analysis.results import Result, ResultReader
from voxbatch.api.kept_model import keeper
from voxbatch.api.keyword_types import RunKeywords, StoreKeywords
from voxbatch.api.keywords import place_of, run_options, with_keywords
from voxbatch.api.notebook_progress import notebook_progress
from voxbatch.api.python_log import python_log
from voxbatch.api.python_words import python_words
from voxbatch.config import Config
from voxbatch.errors import Cancelled, ConfigError, RunError, RunMismatchError
from voxbatch.output import run_file
from voxbatch.output.default_out import own_out
from voxbatch.output.summary import Summary
from voxbatch.runner import Progress, Stop, StopRequested

if TYPE_CHECKING:
    from voxbatch.runner.forecast import RunEstimate

Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""A manifest, a folder, a recording, a pattern or an address; or several of them."""


class BackgroundRun:
    """A run in progress. `start` makes it; use it as a context manager.

    Iterating yields the result of each item as soon as a part with it is committed, and first the results that earlier
    runs committed. Only one part of the results is in memory at a time. Leaving the `with` block stops a run that is
    still in progress: the finished items are committed, and the next run in the same OUT continues.

    All methods are for any thread.
    """

    def __init__(self, config: Config):
        """Start the run. The model that `transcribe` keeps is unloaded, because a GPU may not hold two."""
        keeper.unload()
        self.out = config.out
        """Folder of the outputs, a path or an address."""
        self._config = config
        self._stop = Stop(ends_process=False)
        self._summary: Future[Summary] = Future()
        self._changed = threading.Condition()
        """Guards `_progress`. Notified when the progress changes, and when the run ends."""
        self._progress: Progress | None = None
        threading.Thread(target=self._run, daemon=True, name="voxbatch-run").start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the run if it is still in progress.

        Raises:
            RunError: SystemExit(0) ends the block before the end of the run: the program would end like one whose run
                has finished.
        """
        self.stop()
        if isinstance(error, SystemExit) and not error.code and self._summary.exception() is not None:
            safe = "what is committed is safe; start it again to continue"
            raise RunError(f"sys.exit({error.code!r}) was called before the run in {self.out} had ended; {safe}")
        if kind is None and not isinstance(self._summary.exception(), StopRequested):
            self._summary.result()

    def __repr__(self) -> str:
        """Return OUT, and the progress or the end of the run."""
        state = self._summary.exception() or self._summary.result() if self._summary.done() else self.progress
        return f"BackgroundRun({self.out!r}, {state!r})"

    def __iter__(self) -> Iterator[Result]:
        """Yield the results of the run; see the class.

        Raises:
            UsageError, RunError: see `run`.
        """
        reader, num_committed = None, -1
        for progress in self.progress_changes():
            if progress.committed != num_committed:
                num_committed = progress.committed
                reader = reader or self._reader()
                yield from reader.new_results()
        self.wait()
        if reader is not None:  # a cascade has its results when it ends
            yield from reader.new_results()

    @property
    def progress(self) -> Progress | None:
        """The progress of the run. None until the manifest was read and OUT was reserved."""
        with self._changed:
            return self._progress

    def progress_changes(self) -> Iterator[Progress]:
        """Yield the progress when it has changed, until the run has ended. A slow reader misses some changes, and never
        the last one."""
        last: Progress | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._progress is not last or self._summary.done())  # noqa: B023
                is_last, progress = self._summary.done(), self._progress
            if progress is not None and progress is not last:
                yield progress
            last = progress
            if is_last:
                return

    def wait(self) -> Summary:
        """Wait for the end of the run, and return its summary.

        Raises:
            UsageError, RunError: see `run`.
            Cancelled: `stop` stopped the run.
        """
        try:
            return self._summary.result()
        except StopRequested:
            raise Cancelled(f"the run in {self.out} was stopped; start it again to continue") from None

    def wait_with(self, on_progress: Callable[[Progress], object] | None) -> Summary:
        """Wait for the end of the run, and return its summary. An exception stops the run.

        Args:
            on_progress: called from this thread with the progress of the run when it has changed. None shows it in a
                notebook.

        Raises:
            UsageError, RunError: see `run`.
        """
        on_progress = on_progress or notebook_progress()
        with self:
            for progress in self.progress_changes():
                if on_progress is not None:
                    on_progress(progress)
            return self.wait()

    def stop(self) -> None:
        """Stop the run, and wait for its end. The finished items are committed."""
        self._stop.requested.set()
        with self._changed:
            self._changed.wait_for(self._summary.done)

    def _run(self) -> None:
        try:
            with python_words(*(getattr(self._config, entry.name) for entry in fields(self._config))):
                result = runner.run(
                    self._config, python_log(), self._take_progress, self._stop, estimate_durations=True
                )
            assert result.summary is not None, "a run of one shard merges"
            self._take_progress(result.progress)  # the last commit of a run is not reported
            self._summary.set_result(result.summary)
        except BaseException as e:  # noqa: BLE001 the threads that wait for the run raise it
            self._summary.set_exception(e)
        with self._changed:
            self._changed.notify_all()

    def _take_progress(self, progress: Progress) -> None:
        """Keep a copy of the progress, which the run goes on to change."""
        with self._changed:
            self._progress = replace(progress)
            self._changed.notify_all()

    def _reader(self) -> ResultReader:
        store = self._config.stores.out(self.out)
        run = run_file.read(store)
        if run is None:
            raise RunMismatchError(f"{self.out}: run.json was deleted while the run was in progress")
        return ResultReader(store, run)


def config_of(source: Source, out: str | os.PathLike[str] | None, options: Mapping[str, object]) -> Config:
    """Return the config of a run.

    Raises:
        ConfigError: an option is unknown or has a wrong value, or there is no source.
    """
    places = list(source) if isinstance(source, Iterable) and not isinstance(source, str) else [source]
    if hasattr(source, "columns") or any(isinstance(place, Mapping) for place in places):
        raise ConfigError(
            f"the source is of type {type(source).__name__} and has rows; write them to a manifest of JSON lines, in "
            'pandas by `source.to_json("manifest.jsonl", orient="records", lines=True)`, in Polars by '
            '`source.write_ndjson("manifest.jsonl")`, and give its path'
        )
    if not all(isinstance(place, str | os.PathLike) for place in places):
        advice = "give a path or an address, or a list of them; bytes and arrays to voxbatch.transcribe"
        raise ConfigError(f"the source is of type {type(source).__name__}; {advice}")
    names = [os.path.expanduser(place) for place in places]
    if not names:
        raise ConfigError("the list of sources is empty; name at least one recording, folder or manifest")
    place = names[0] if len(names) == 1 else tuple(names)
    settings = run_options(options, RunKeywords)
    with python_words(names, out):
        return Config.of(settings, place, own_out(place, settings.stores) if out is None else place_of(out, "out"))


@with_keywords(RunKeywords)
def start(source: Source, out: str | os.PathLike[str] | None = None, **options: Unpack[RunKeywords]) -> BackgroundRun:
    """Start a run in a thread of its own, and return it at once. The arguments are those of `run`.

        with voxbatch.start("recordings/", "out") as run:
            for result in run:
                print(result.id, result.outcome)

    Raises:
        ConfigError: an option is unknown or has a wrong value.
    """
    return BackgroundRun(config_of(source, out, options))


@with_keywords(RunKeywords)
def run(
    source: Source,
    out: str | os.PathLike[str] | None = None,
    *,
    on_progress: Callable[[Progress], object] | None = None,
    **options: Unpack[RunKeywords],
) -> Summary:
    """Transcribe all recordings of a source, as `voxbatch run` does, and return the summary of the run.

    A run that was stopped or killed continues where it stopped when it is called again with the same arguments.
    Ctrl-C, or an exception from `on_progress`, stops the run: the finished items are committed first.

    Args:
        source: a manifest, a folder, a recording, a pattern such as "*.mp3", or an address; or a list of them.
        out: folder of the outputs, a path or an address. Default: NAME.voxbatch next to the source.
        on_progress: called from this thread with the progress of the run when it has changed. Default: a notebook
            shows it.
        options: those of the command, below.

    Raises:
        UsageError: an option, the manifest or OUT is wrong; nothing was transcribed.
        RunError: the run cannot continue. What is committed is safe, and the same call continues.
    """
    return start(source, out, **options).wait_with(on_progress)


@with_keywords(RunKeywords)
def estimate(
    source: Source, out: str | os.PathLike[str] | None = None, **options: Unpack[RunKeywords]
) -> list[RunEstimate]:
    """Return the expected items, seconds, chunks, time and cost of a run, as `voxbatch run --dry-run` does: those of
    its only pass, or of both passes of a cascade. The arguments are those of `run`. Nothing is written, and no model is
    fetched or loaded.

    Raises:
        UsageError: an option or the manifest is wrong.
        RunError: a place cannot be read.
    """
    from voxbatch.runner.forecast import estimate_run

    with python_words([], out):
        return estimate_run(config_of(source, out, options))


@with_keywords(StoreKeywords)
def read_results(out: str | os.PathLike[str], **options: Unpack[StoreKeywords]) -> Iterator[Result]:
    """Return an iterator over the results of a run that are committed so far, in the order of the parts.

    Args:
        out: folder of the outputs, a path or an address.
        options: those for access to a bucket, such as `anonymous`.

    Raises:
        UsageError: there is no run in OUT. This is told at once.
        RunError: OUT cannot be read, or it is damaged.
    """
    stores = run_options(options, StoreKeywords).stores
    return results.read_results(stores.out(place_of(out, "out")))
