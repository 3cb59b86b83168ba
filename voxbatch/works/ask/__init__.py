"""Ask questions about recordings."""

from voxbatch.work import OF_RECORDINGS, Work

SETTINGS = OF_RECORDINGS | {"kernel_cache", "profile"}
"""Settings of a run that hold for this kind."""
_ANSWERS = "has answers, and no transcripts: give the OUT of voxbatch run"
WORK = Work(
    name="ask",
    settings=SETTINGS,
    steps="voxbatch.works.ask.steps:Ask",
    submission="voxbatch.works.ask.command:SUBMITTED",
    command_tells_all=False,
    sets_engine_task=True,
    refused=dict.fromkeys(("calibrate", "compare", "correct", "export", "redact", "videos"), _ANSWERS),
)
