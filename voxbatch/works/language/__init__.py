"""Detect the languages of recordings."""

from voxbatch.work import OF_RECORDINGS, Work

SETTINGS = OF_RECORDINGS - {"report"}
"""Settings of a run that hold for this kind."""
LANGUAGES = "languages.jsonl"
WORK = Work(
    name="language",
    settings=SETTINGS,
    steps="voxbatch.works.language.steps:Detect",
    outputs=(("languages", LANGUAGES),),
    products="voxbatch.works.language.products:PRODUCTS",
    example="language recordings/",
)
