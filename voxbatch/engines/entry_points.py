"""Find the engines of other packages, which register them by entry points.

    [project.entry-points."voxbatch.engines"]
    my-engine = "my_package:REGISTRATION"

An entry point names a `Registration`, in a module that imports no large library. To look for it, the metadata of all
installed packages is read. So an engine of voxbatch itself is never looked for here. A whole engine, my_package.py:

    from voxbatch.engines import SAMPLING_RATE, EngineSpec, Registration
    from voxbatch.records import Hypothesis

    REGISTRATION = Registration(class_path="my_package:MyEngine")


    class MyEngine:
        def __init__(self, model, options, stores):  # --model, or None; --engine-option as a dictionary
            self.spec = EngineSpec(
                "my-engine",
                model or "m1",
                max_chunk_samples=30 * SAMPLING_RATE,
                concurrency=1,
                decoding=options,  # what decides the text: OUT takes no run with another value
            )

        def stream(self, feed):
            # Load the model here, once.
            while (chunk := feed.get()) is not None:
                text = f"{len(chunk.samples)} samples"  # recognise them: float32, mono, at SAMPLING_RATE
                yield Hypothesis(chunk.item, chunk.index, text)  # also words with times, or a confidence

        def gpu_bytes(self):
            return None

        def close(self):
            pass

The module `interface` explains each member.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata

from voxbatch.engines.interface import Registration
from voxbatch.errors import EngineError

GROUP = "voxbatch.engines"


@functools.cache
def find(name: str) -> Registration | None:
    """Return the registration of an engine of another package. None if no package has it.

    Raises:
        EngineError: the registration cannot be imported or is none, or several packages have this engine.
    """
    entries = [*metadata.entry_points(group=GROUP, name=name)]
    if len(entries) > 1:
        packages = " and ".join(sorted(map(_package, entries)))
        raise EngineError(f"engine {name} is registered by {packages}: uninstall all but one of them")
    return _load(entries[0]) if entries else None


def names() -> list[str]:
    """Return the names of the engines of other packages."""
    return sorted(metadata.entry_points(group=GROUP).names)


def installed() -> Iterator[tuple[str, Registration | EngineError]]:
    """Yield the name of each engine of another package, with its registration or the error of `find`."""
    for name in names():
        try:
            registration = find(name)
            assert registration is not None
            yield name, registration
        except EngineError as e:
            yield name, e


def _load(entry: metadata.EntryPoint) -> Registration:
    package = _package(entry)
    try:
        registration = entry.load()
    except Exception as e:
        raise EngineError(
            f"engine {entry.name} of {package} cannot be imported: {type(e).__name__}: {e}; update or uninstall the "
            "package"
        ) from e
    if not isinstance(registration, Registration):
        raise EngineError(
            f"engine {entry.name} of {package}: {entry.value} is no voxbatch.engines.Registration, but of type "
            f"{type(registration).__name__}; update or uninstall the package"
        )
    return replace(registration, package=package)


def _package(entry: metadata.EntryPoint) -> str:
    """Return the name and the version of the package that has an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"
