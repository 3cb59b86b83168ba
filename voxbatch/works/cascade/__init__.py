"""Do the least sure items of a run again with a larger model."""

from voxbatch.work import Work

WORK = Work(
    name="cascade",
    steps="voxbatch.works.cascade.steps:Cascade",
    checks="voxbatch.works.cascade.options:check",
    overlay="voxbatch.works.cascade.overlay:SECOND_PASS",
)
