"""The rules of a manifest of recordings whose languages are detected."""

from __future__ import annotations

from typing import Any

from voxbatch.manifest.path_policy import PathPolicy


class UnhintedPolicy(PathPolicy):
    """The rules of a manifest whose words are not heard. The text of a line stays, for a run that transcribes it."""

    __slots__ = ()

    def details(self, row: dict[str, Any], reference: str | None) -> dict[str, Any]:
        """Return the reference. No words are expected."""
        return {"text": reference}
