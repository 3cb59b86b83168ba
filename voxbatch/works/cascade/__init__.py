"""Do the least sure items of a run again with a larger model."""

from voxbatch.work import Work

WORK = Work(
    name="cascade",
    steps="voxbatch.works.cascade.steps:Cascade",
    checks="voxbatch.works.cascade.options:check",
    overlay="voxbatch.works.cascade.overlay:SECOND_PASS",
    refused={"calibrate": "is of a cascade of two models, and a calibration is of one: give a run of one model"},
)
