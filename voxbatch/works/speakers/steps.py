"""Tell speakers apart, by their voices or by their channels: the steps that differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from voxbatch.config import Config
from voxbatch.decoding import Decoded
from voxbatch.decoding.messages import Diarization
from voxbatch.engines import EngineMessage, EngineSpec
from voxbatch.manifest import PathPolicy, Source
from voxbatch.records import SPLIT, Hypothesis, Transcript
from voxbatch.runner.steps import Addition
from voxbatch.text.speakers import stitch_channels, with_speakers
from voxbatch.text.stitching import stitch
from voxbatch.works.speakers.diarizing import beside, diarization_of

NETWORKS_GB = 2.1
"""GB of a GPU for the networks that tell speakers apart. On an H200 their process took 2.04 GB at most, with sixteen
decoders."""


class Speakers(Addition):
    """Tell the speakers of a mixdown apart by their voices."""

    def engine_options(self, engine: str) -> Mapping[str, str]:
        """Return the memory that the networks take beside vLLM."""
        return {"beside_gb": str(NETWORKS_GB)} if engine == "vllm" else {}

    def diarization(self, spec: EngineSpec, loads_networks: bool) -> Diarization:
        """See Addition."""
        return diarization_of(self.options, spec, loads_networks)

    def beside(
        self,
        diarization: Diarization | None,
        device: str | None,
        resources: ExitStack,
        on_engine_message: Callable[[EngineMessage], None],
    ) -> Diarization | None:
        """See Addition."""
        return beside(diarization, device, resources, on_engine_message) if diarization and device else diarization

    def transcript(self, decoded: Decoded, hypotheses: Sequence[Hypothesis]) -> Transcript | None:
        """See Addition."""
        if decoded.turns is None or decoded.levels:
            return None
        return with_speakers(stitch(decoded.spans, hypotheses, decoded.warnings), decoded.turns)


class Channels(Addition):
    """Recognise each channel alone, as a speaker."""

    def check_recordings(self, config: Config, source: Source, policy: PathPolicy) -> None:
        """See Addition."""
        if self.options.channels == SPLIT:
            from voxbatch.works.speakers.split_channels import check_channels

            check_channels(config, source, policy)

    def transcript(self, decoded: Decoded, hypotheses: Sequence[Hypothesis]) -> Transcript | None:
        """See Addition."""
        if not decoded.levels:
            return None
        names = self.options.channel_names
        return stitch_channels(decoded.spans, hypotheses, decoded.levels, names, decoded.warnings)
