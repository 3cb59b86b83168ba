"""Tell speakers apart, by their voices or by their channels."""

from voxbatch.work import Work

WORK = Work(
    name="speakers",
    steps="voxbatch.works.speakers.steps:Speakers",
    checks="voxbatch.works.speakers.options:check_speakers",
)
CHANNELS = Work(
    name="channels",
    steps="voxbatch.works.speakers.steps:Channels",
    checks="voxbatch.works.speakers.options:check_channels",
    names_speakers=True,
)
