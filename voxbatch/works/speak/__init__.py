"""Speak texts."""

from voxbatch.work import EVERY_KIND, Work

SETTINGS = EVERY_KIND | {"language"}
"""Settings of a run that hold for this kind."""
WORK = Work(
    name="speak",
    settings=SETTINGS,
    steps="voxbatch.works.speak.steps:Speak",
    products="voxbatch.works.speak.products:PRODUCTS",
    example="speak texts.jsonl",
    command_tells_all=False,
    sets_engine_task=True,
)
