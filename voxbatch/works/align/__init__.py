"""Find the times of given texts."""

from voxbatch.work import OF_RECORDINGS, Work

SETTINGS = OF_RECORDINGS | {
    "language", "formats", "beside", "max_line", "max_lines", "max_cps", "frame_rate", "min_gap", "speakers",
    "speaker_model", "speaker_names",
}  # fmt: skip
"""Settings of a run that hold for this kind."""
_GIVEN = "has given texts, of which no engine recognised a word: give the OUT of voxbatch run"
WORK = Work(
    name="align",
    settings=SETTINGS,
    steps="voxbatch.works.align.steps:Align",
    refused={
        **dict.fromkeys(("calibrate", "compare"), _GIVEN),
        "correct": "has given texts: correct them in the manifest, and run again with --update",
    },
)
