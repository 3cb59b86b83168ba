"""The Python interface: transcribe one recording, run a whole source, ask about its recordings, speak texts, read the
results, score texts, and compare runs.

`voxbatch/__init__` offers these names. A run made here has the guarantees of `voxbatch run`: it calls the same runner.
No signal handler is installed, nothing is printed, and the process is never ended: the messages of a run go to the
logger "voxbatch" of Python's `logging`.
"""

from voxbatch.api.background_run import BackgroundRun, estimate, read_results, run, start
from voxbatch.api.one_recording import stream, transcribe, transcribe_async
from voxbatch.api.scores import compare, score
from voxbatch.api.segment_stream import SegmentStream
from voxbatch.api.transcriber import Transcriber

__all__ = [
    "BackgroundRun",
    "SegmentStream",
    "Transcriber",
    "compare",
    "estimate",
    "read_results",
    "run",
    "score",
    "start",
    "stream",
    "transcribe",
    "transcribe_async",
]
