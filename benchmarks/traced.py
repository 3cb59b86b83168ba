"""Run voxbatch's command line in this process and record it: `traced.py [OPTION VALUE]… ARGS…`.

    --usage FILE    at the end, one JSON object: the CPU seconds of the main process and of its children
    --items FILE    as they happen, lines "taken ITEM", "finished ITEM" and "merging" with a clock time; a SIGKILL loses
                    none of them
    --hang-s S      a decoder of this process hangs after S seconds, and not after two minutes

Recording does not change the work of voxbatch: it wraps three calls.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Parse the options above and run voxbatch with the rest."""
    options: dict[str, str] = {}
    arguments = sys.argv[1:]
    while arguments[0] in ("--usage", "--items", "--hang-s"):
        options[arguments[0]] = arguments[1]
        del arguments[:2]
    from voxbatch import cli

    if "--usage" in options:
        # a run ends with os._exit, which skips every `finally`
        _before(os, "_exit", lambda *_: _note_usage(options["--usage"]))
    if "--items" in options:
        _trace_items(options["--items"])
    if "--hang-s" in options:
        from voxbatch.decoding import pool
        from voxbatch.process import hang_detector

        pool.HANG_TIMEOUT_S = float(options["--hang-s"])
        hang_detector.MIN_CPU_S = 0.1
    sys.argv = ["voxbatch", *arguments]
    try:
        cli.main()
    finally:
        if "--usage" in options:
            _note_usage(options["--usage"])


def _before(owner: Any, name: str, note: Callable[..., None]) -> None:
    """Call `note` with the arguments of each call of owner.name, before the call."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        note(*args)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def _trace_items(path: str) -> None:
    from voxbatch.engines.feed import Feed
    from voxbatch.output import merge
    from voxbatch.runner.results import Results

    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(what: str) -> None:
        os.write(fd, f"{what} {time.time():.6f}\n".encode())

    take = Feed.get

    def taken(feed: Feed, wait: bool = True) -> Any:
        chunk = take(feed, wait)
        if chunk is not None:
            tell(f"taken {chunk.item}")
        return chunk

    Feed.get = taken  # type: ignore[method-assign]
    _before(Results, "_finish", lambda _, pending, __: tell(f"finished {pending.item.index}"))
    _before(merge, "merge", lambda *_: tell("merging 0"))


def _note_usage(path: str) -> None:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    usage = {"cpu_s": own.ru_utime + own.ru_stime, "children_cpu_s": children.ru_utime + children.ru_stime}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(usage, file)


if __name__ == "__main__":
    main()
