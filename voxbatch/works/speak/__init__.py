"""Speak texts."""

from voxbatch.work import EVERY_KIND, Work

SETTINGS = EVERY_KIND | {"language"}
"""Settings of a run that hold for this kind."""
RECORDINGS = "recordings.jsonl"
"""A manifest of the recordings."""
BOOK, TRACK = "m4b/book.m4b", "track.flac"
"""Files of all recordings: an audiobook, and the track of subtitles."""
_SPOKEN = "holds spoken texts; transcribe them, and give that OUT: voxbatch run {out}/recordings.jsonl"
WORK = Work(
    name="speak",
    settings=SETTINGS,
    steps="voxbatch.works.speak.steps:Speak",
    outputs=(("recordings", RECORDINGS), ("track", TRACK), ("", BOOK)),
    products="voxbatch.works.speak.products:PRODUCTS",
    example="speak texts.jsonl",
    command_tells_all=False,
    sets_engine_task=True,
    refused={
        **dict.fromkeys(("calibrate", "compare", "redact", "score"), _SPOKEN),
        "beside": "has its recordings inside: leave out --beside",
        "correct": "holds spoken texts: correct them in their source, and speak them again",
        "export": "holds spoken texts, and is a data set as it is: parts/ has each recording with its text",
        "videos": "holds spoken texts, and no video: leave out --mux and --burn",
    },
)
