"""Read the secrets that a model listed: the answers of `voxbatch ask`, a second detector beside the rules.

[{"kind": "person", "text": "Jan Wexgrove"}]  →  each "Jan Wexgrove" in the transcript of the item is a person
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from voxbatch.errors import ConfigError
from voxbatch.manifest.json_line import quote
from voxbatch.output import run_file
from voxbatch.output.entries import Entries
from voxbatch.output.lines import parse_line
from voxbatch.output.summary import read_summary
from voxbatch.safe_text import counted
from voxbatch.storage import Stores
from voxbatch.work import work_of
from voxbatch.works.redact.rules import KINDS, own_name

LISTED_KINDS = tuple(kind for kind in KINDS if kind not in ("file_name", "speaker_name"))
RULE = "answer"


class ListedSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret that an answer lists."""

    kind: Literal[LISTED_KINDS]  # type: ignore[valid-type]
    text: str


class SecretAnswers:
    """The secrets that answers list. They are read side by side with the transcripts; the answers that come before
    their transcripts wait in memory.

    Raises:
        ConfigError: OUT has no answers, or not all of them, or an answer has another shape.
    """

    def __init__(self, place: str, stores: Stores) -> None:
        store = stores.out(place)
        run, self._name = run_file.read_existing(store), f"--answers {store.place}"
        if work_of(run.identity).name != "ask":
            raise ConfigError(f"{self._name} has no answers: give the OUT of voxbatch ask")
        if read_summary(store) is None:
            raise ConfigError(f"{self._name} is not finished; run the same voxbatch ask again, then redact")
        self._lines = (parse_line(store, entry, run.products) for entry in Entries(store, run))
        self._waiting: dict[str, list[ListedSecret]] = {}
        self._unanswered = self._strange = 0

    def of(self, item_id: str, text: str) -> list[tuple[str, str]]:
        """Return (kind, words) of each listed secret that occurs in the text of an item."""
        while item_id not in self._waiting and (line := next(self._lines, None)):
            if "answer" in line:
                self._waiting[line["id"]] = self._listed(line)
        listed = self._waiting.pop(item_id, None)
        self._unanswered += listed is None
        secrets = [(secret.kind, " ".join(re.findall(r"\w+", secret.text))) for secret in listed or ()]
        occurring = [(kind, words) for kind, words in secrets if words and own_name(words).search(text)]
        self._strange += len(secrets) - len(occurring)
        return occurring

    def _listed(self, line: Mapping[str, Any]) -> list[ListedSecret]:
        """Return the secrets that an answer lists. A message about another shape quotes none of its texts."""
        try:
            return msgspec.json.decode(line["answer"], type=list[ListedSecret])
        except (msgspec.DecodeError, RecursionError) as e:
            allowed = f"a list of objects with a text and a kind, one of {', '.join(LISTED_KINDS)}"
            place = f"{self._name}: the answer of item {quote(line['id'])}"
            raise ConfigError(f"{place}: {e}; ask for {allowed}, by the schema in docs/redact.md") from e

    def notes(self) -> Iterator[str]:
        """Yield what the answers lack."""
        if self._unanswered:
            yield f"{counted(self._unanswered, 'item')} without an answer: redacted by rules alone"
        if self._strange:
            yield f"{counted(self._strange, 'text')} of answers that are not in their transcripts"
