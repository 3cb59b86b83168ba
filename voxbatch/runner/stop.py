"""A request to stop a run, for example from a signal handler."""

from __future__ import annotations

import threading

FINAL_COMMIT_TIMEOUT_S = 8.0
"""Time limit of the last commit of a process that was told to stop. Cloud Run and others kill it after 10 s."""


class StopRequested(BaseException):
    """The run was asked to stop. Finished items are committed, unless the message says why they could not be.

    Like KeyboardInterrupt, this is not an Exception: storage clients treat every Exception as a failed connection and
    send the request again.
    """


class Stop:
    """A stop request. While items are transcribed, the stop is graceful: the finished items are committed first. At
    other times it takes effect at once.

    Args:
        ends_process: True if the process ends after a run that was stopped or that failed. Otherwise the run first
            waits for the engine's thread: another run may use the engine, which can have one stream only, and a normal
            exit of Python must not find a thread in native code.
    """

    def __init__(self, ends_process: bool = True) -> None:
        self.ends_process = ends_process
        self.requested = threading.Event()
        self.graceful = False
        """True while items are transcribed. The thread that handles signals sets and reads it."""

    def request(self) -> None:
        """Request a stop.

        Raises:
            StopRequested: nothing is transcribed now. Otherwise the pipeline raises it after its last commit.
        """
        self.requested.set()
        if not self.graceful:
            raise StopRequested
