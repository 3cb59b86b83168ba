"""Run voxbatch's command line in this process and record its items: `traced.py TRACE HANG_S ARGS…`.

TRACE gets the lines "taken ITEM", "finished ITEM" and "merging 0", each with a clock time, as they happen; a SIGKILL
loses none of them. A decoder of this process hangs after HANG_S seconds. Recording does not change the work of
voxbatch: it wraps three calls.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from voxbatch import cli
from voxbatch.decoding import pool
from voxbatch.engines.feed import Feed
from voxbatch.output import merge
from voxbatch.process import hang_detector
from voxbatch.runner.results import Results


def main() -> None:
    """Trace voxbatch, and run it."""
    trace = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    pool.HANG_TIMEOUT_S = float(sys.argv[2])
    hang_detector.MIN_CPU_S = 0.1
    take, finish, merge_all = Feed.get, Results._finish, merge.merge

    def tell(what: str, item: int) -> None:
        os.write(trace, f"{what} {item} {time.time():.6f}\n".encode())

    def taken(feed: Feed, wait: bool = True) -> Any:
        chunk = take(feed, wait)
        if chunk is not None:
            tell("taken", chunk.item)
        return chunk

    def finished(results: Results, pending: Any, *arguments: Any) -> Any:
        tell("finished", pending.item.index)
        return finish(results, pending, *arguments)

    def merging(*arguments: Any, **options: Any) -> Any:
        tell("merging", 0)
        return merge_all(*arguments, **options)

    Feed.get, Results._finish, merge.merge = taken, finished, merging  # type: ignore[method-assign,assignment]
    sys.argv = ["voxbatch", *sys.argv[3:]]
    cli.main()


if __name__ == "__main__":
    main()
