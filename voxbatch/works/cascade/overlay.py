"""The second pass of a cascade: choose the items that the large model does again, and lay its entries over the first.

The first pass is an ordinary run of the small model. Its items with text in another language than the one asked for are
chosen, and then the least confident ones, until they have the wanted share of the audio, or until the others have the
wanted word error rate by a calibration of the small model. The choice is a function of the committed first pass and is
stored nowhere, so that every process that continues the run makes the same one. The second pass has parts of its own
beside those of the first:

    parts/shard-00000-of-00001/second-00007.jsonl, second-complete.json

`Entries` lays them over the first pass with `overlaid`. The text of the more confident model is the `pred_text` of an
item, unless only that text is in another language, and the key `cascade` of its line has both texts.
"""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from voxbatch.output.checkpoint import read_complete, unreadable_record
from voxbatch.output.layout import SECOND, complete_name, part_names, shard_folder
from voxbatch.output.lines import CASCADE_KEY, word_confidences
from voxbatch.output.lists import ItemList
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import Run
from voxbatch.output.stored_json import json_bytes
from voxbatch.records import OTHER_LANGUAGE
from voxbatch.scoring.counts import tokens
from voxbatch.storage import Store
from voxbatch.storage.columns import ItemSet

if TYPE_CHECKING:
    from voxbatch.scoring.calibration import Fit


@dataclass(frozen=True, slots=True)
class Amount:
    """How much the second pass does again: up to a share, or down to a word error rate."""

    share: float | None
    """Part of the transcribed audio, from 0 to 1."""
    wer: float | None = None
    """Expected word error rate of the items that are not chosen, from 0 to 1."""
    fit: Fit | None = None
    """The calibration of the small model by which errors are expected."""

    def to_dict(self) -> dict[str, Any]:
        """Return the amount as values for the identity of a run."""
        if self.fit is None:
            return {"share": self.share}
        return {"wer": self.wer, "fit": asdict(self.fit)}

    @classmethod
    def of(cls, run: Run) -> Amount:
        """Return the amount of the run of a cascade."""
        from voxbatch.scoring.calibration import Fit

        stored = run.identity["cascade"]
        return cls(stored.get("share"), stored.get("wer"), Fit(**stored["fit"]) if "fit" in stored else None)

    def excess(self, line: Mapping[str, Any]) -> float:
        """Return the expected errors of an output line above those that the word error rate allows."""
        from voxbatch.scoring.calibration import expected_wrong

        assert self.fit is not None
        assert self.wer is not None
        confidences = word_confidences(line) or ()
        allowed = self.wer * self.fit.length_per_word * len(confidences)
        return self.fit.errors_per_wrong * expected_wrong(self.fit, confidences) - allowed


def chosen(entries: Iterable[PartEntry], amount: Amount, num_items: int, size: int) -> ItemSet:
    """Return the items that the second pass does again: those in another language than the one asked for, then those
    of the lowest confidence.

        confidences 0.9, 0.5, 0.7 of 10 s each, share 0.4  →  item 1

    An item that is too long for the rest of the share is left out, and the next ones are looked at. By a word error
    rate, an item that is below the rate is left out. A failed item is not chosen, nor one that has neither a confidence
    nor a flag. Items of equal confidence are chosen in the order of the list.

    Args:
        entries: the entries of the first pass, complete and in the order of the list.
        amount: how much is chosen.
        num_items: number of items in the manifest. Kept transcripts of recordings that are gone follow them.
        size: number of items in the list.
    """
    indexes, confidences, costs, left = array("q"), array("d"), array("d"), 0.0
    for entry in entries:
        if entry.kind == "transcript" and entry.index < num_items:
            line = json.loads(entry.line)
            # Seconds of the share, or expected errors above the rate, which are negative for an item below it.
            cost = line["audio_duration"] if amount.fit is None else amount.excess(line)
            left += cost
            # Without a confidence, there are no words (or this engine cannot score them), and only a flag is a reason.
            if line["confidence"] is not None or line["flags"]:
                indexes.append(entry.index)
                confidences.append(0.0 if _is_other_language(line) else line["confidence"] or 0.0)
                costs.append(cost)
    left, items = left * (1.0 if amount.share is None else amount.share), ItemSet(size)
    for number in np.argsort(np.asarray(confidences), kind="stable").tolist():
        if amount.fit is None:
            is_chosen = costs[number] <= left
        else:  # no errors can be expected without words, or in another language; the flag is the reason
            is_chosen = not confidences[number] or (left > 0 and costs[number] > 0)
        if is_chosen:
            left -= costs[number]
            items[indexes[number]] = True
    return items


def done_items(store: Store, run: Run) -> ItemSet:
    """Return the items that the second pass has done.

    Raises:
        CheckpointError: a part is damaged.
    """
    done, latest = ItemSet(run.items), ItemList(store, run)
    for entry in chain.from_iterable(map(latest.read_part, part_names(store, run.generation, SECOND))):
        done[entry.index] = True
    return done


def missing_items(store: Store, run: Run) -> int | None:
    """Return the number of chosen items that no part of the second pass has; None if no record says that the pass is
    complete.

    Raises:
        CheckpointError: the record or a part is damaged, or another run wrote it.
    """
    name = complete_name(shard_folder(0, 1, run.generation), run.list_number, SECOND)
    if (record := read_complete(store, name, run.key)) is None:
        return None
    done = done_items(store, run)
    if not record.chosen:
        return max(0, record.items - done.count())
    try:
        chosen_items = ItemSet.of_bytes(run.items, base64.b64decode(record.chosen, validate=True))
    except ValueError as e:
        raise unreadable_record(store, name, "its items are not those of the list") from e
    return (chosen_items - done).count()


def overlaid(first: Iterable[PartEntry], second: Iterator[PartEntry]) -> Iterator[PartEntry]:
    """Yield the entries of the first pass, each with what the second pass has of its item. Both are in the order of the
    list. A failed item stays as it is."""
    following = next(second, None)
    for entry in first:
        while following is not None and following.index < entry.index:
            following = next(second, None)
        if entry.kind == "transcript":
            yield combined(entry, following if following and following.index == entry.index else None)
        else:
            yield entry


def combined(first: PartEntry, second: PartEntry | None) -> PartEntry:
    """Return the entry of an item of a cascade: the line of the more confident model, with CASCADE_KEY. Of equal
    confidences, the large model counts. A text in the language asked for counts before one that is in another.

    Args:
        first: the transcript of the small model.
        second: the entry of the large model. None if it did not do the item.
    """
    if second is None:
        return replace(first, line=_with_key(first.line, None))
    small, large = json.loads(first.line), json.loads(second.line)
    if second.kind == "failure":
        reason = f"the large model failed: {large['message']}"
        return replace(first, line=_with_key(first.line, {"texts": [_text(small)], "agree": None, "reason": reason}))
    is_better = _rank(large) >= _rank(small)
    (kept, better), (_, other) = ((second, large), (first, small))[:: 1 if is_better else -1]
    agree = tokens(small["pred_text"], better["lang"]) == tokens(large["pred_text"], better["lang"])
    if _is_other_language(other) and not _is_other_language(better):
        reason = f"the text of {other['model']} is in another language than the one asked for"
    else:
        reason = f"{better['model']} is at least as confident: {_shown(better)} to {_shown(other)}"
    record = {"texts": [_text(small), _text(large)], "agree": agree, "reason": reason}
    return replace(kept, line=_with_key(kept.line, record))


def _rank(line: Mapping[str, Any]) -> tuple[bool, float]:
    """Return how good the text of a line is beside another text of the same item."""
    return not _is_other_language(line), line["confidence"] or 0.0


def _is_other_language(line: Mapping[str, Any]) -> bool:
    """Return whether a text, or a stretch of it, is in another language than the one asked for."""
    return any(flag["kind"] == OTHER_LANGUAGE for flag in line["flags"])


def _text(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text of one model, for CASCADE_KEY."""
    return {name: line[name] for name in ("engine", "model", "pred_text", "confidence")}


def _shown(line: Mapping[str, Any]) -> str:
    confidence = line["confidence"]
    return "no words" if confidence is None else f"{confidence:.3f}"


def _with_key(line: bytes, record: Mapping[str, Any] | None) -> bytes:
    """Return a line with CASCADE_KEY at its end."""
    return b'%b,"%b":%b}' % (line[:-1], CASCADE_KEY.encode(), json_bytes(record))


class _SecondPass:
    """See products.SecondPassFiles."""

    def missing(self, store: Store, run: Run) -> int | None:
        return missing_items(store, run)

    def overlaid(self, first: Iterable[PartEntry], second: Iterator[PartEntry]) -> Iterator[PartEntry]:
        return overlaid(first, second)

    def chosen(self, entries: Iterable[PartEntry], run: Run, num_items: int) -> ItemSet:
        return chosen(entries, Amount.of(run), num_items, run.items)


SECOND_PASS = _SecondPass()
