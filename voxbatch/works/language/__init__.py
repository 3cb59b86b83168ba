"""Detect the languages of recordings."""

from voxbatch.work import OF_RECORDINGS, Work

SETTINGS = OF_RECORDINGS - {"report"}
"""Settings of a run that hold for this kind."""
LANGUAGES = "languages.jsonl"
_WITHOUT_TEXTS = "has the languages of recordings, and no texts; "
_NOT_YET = f"{_WITHOUT_TEXTS}transcribe them first: voxbatch run {{out}}/{LANGUAGES}"
WORK = Work(
    name="language",
    settings=SETTINGS,
    steps="voxbatch.works.language.steps:Detect",
    outputs=(("languages", LANGUAGES),),
    products="voxbatch.works.language.products:PRODUCTS",
    example="language recordings/",
    refused={
        **dict.fromkeys(("calibrate", "compare", "correct", "export", "find", "redact", "score", "videos"), _NOT_YET),
        **dict.fromkeys(("beside", "formats"), f"{_WITHOUT_TEXTS}leave out --formats and --beside"),
    },
)
