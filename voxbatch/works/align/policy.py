"""The rules of a manifest of texts whose times are looked for."""

from __future__ import annotations

from typing import Any

from voxbatch.manifest.json_line import LineError
from voxbatch.manifest.path_policy import PathPolicy


class GivenTextPolicy(PathPolicy):
    """The rules of a manifest whose lines have texts. A text is no reference: the output has the same one."""

    __slots__ = ()

    def details(self, row: dict[str, Any], reference: str | None) -> dict[str, Any]:
        """Return the text whose times are looked for.

        Raises:
            LineError: there is none.
        """
        if not (reference and reference.strip()):
            raise LineError("has no `text`; give the text whose times are looked for")
        return {**super().details(row, None), "given": reference}
