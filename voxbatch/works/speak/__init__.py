"""Speak texts."""

from voxbatch.work import EVERY_KIND, Work

SETTINGS = EVERY_KIND | {"language"}
"""Settings of a run that hold for this kind."""
_SPOKEN = "holds spoken texts; transcribe them, and give that OUT: voxbatch run {out}/recordings.jsonl"
WORK = Work(
    name="speak",
    settings=SETTINGS,
    steps="voxbatch.works.speak.steps:Speak",
    products="voxbatch.works.speak.products:PRODUCTS",
    example="speak texts.jsonl",
    command_tells_all=False,
    sets_engine_task=True,
    refused={
        **dict.fromkeys(("calibrate", "compare", "score"), _SPOKEN),
        "beside": "has its recordings inside: leave out --beside",
        "export": "holds spoken texts, and is a data set as it is: parts/ has each recording with its text",
        "videos": "holds spoken texts, and no video: leave out --mux and --burn",
    },
)
