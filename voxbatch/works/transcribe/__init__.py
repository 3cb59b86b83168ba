"""Transcribe recordings."""

from voxbatch.work import Work

WORK = Work(
    name="transcribe",
    steps="voxbatch.runner.steps:Steps",
    products="voxbatch.works.transcribe.products:PRODUCTS",
)
