"""The engine of a run that redacts: it recognises nothing. The chunks of a recording pass through it, so that a run
that redacts has the decoders, the checkpoint and the limits of memory of any other run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import metadata

from voxbatch.engines import EngineSpec, Feed, Registration
from voxbatch.engines.results import Result
from voxbatch.records import SAMPLING_RATE, Hypothesis
from voxbatch.storage import DEFAULT_STORES, Stores

NAME = "rules"
PACKAGES = {"faker": "Faker", "icu4py": "icu4py", "phonenumbers": "phonenumberslite", "stdnum": "python-stdnum"}
"""The packages that the rules need, by their modules."""
ENGINES = {
    NAME: Registration(
        class_path="voxbatch.works.redact.engine:RulesEngine",
        needs=tuple(PACKAGES),
        install="pip install 'voxbatch[redact]'",
        use="anywhere",
    ),
}
"""The engines that redact."""


class RulesEngine:
    """Gives an empty text for each chunk. See `Engine` for the methods."""

    def __init__(self, model: str | None, options: Mapping[str, str], _: Stores = DEFAULT_STORES):
        self.spec = EngineSpec(
            name=NAME,
            model="voxbatch",
            max_chunk_samples=60 * SAMPLING_RATE,
            concurrency=2,
            license="Apache-2.0",
            origin="voxbatch",
            versions={name: _version(name) for name in PACKAGES.values()},
            decoding=dict(options),
        )

    def stream(self, feed: Feed) -> Iterator[Result]:
        """Yield an empty text for each chunk."""
        while chunk := feed.get():
            yield Hypothesis(chunk.item, chunk.index, "")

    def gpu_bytes(self) -> None:
        """Return None: no GPU is used."""

    def close(self) -> None:
        """Do nothing."""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # the same module is also in another package
        return "unknown"
