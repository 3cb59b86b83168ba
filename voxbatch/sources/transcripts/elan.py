"""Read ELAN's EAF.

Tiers depend on each other: words divide an utterance, a gloss stands for one. Of each tree of tiers one is read: its
root; or the first tier below that has the text, where the root has numbers, sounds or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import groupby
from xml.etree.ElementTree import Element

from voxbatch.sources.transcripts.tiers import Tier, has_remarks, spoken
from voxbatch.sources.transcripts.timed_text import TimedText, interpolated
from voxbatch.sources.xml_tree import elements, full_text

_ROOTS = ""
"""In place of the parent of tiers that have none."""
_NUMBER = re.compile(r"\S*\d\S*")
"""A label that counts utterances: "12", "talk.012". Toolbox and FLEx have the text below such labels."""
_MOST = 0.9
"""Share of labels that are numbers, from which a tier has no text."""
_CODES = frozenset(("ft", "nt", "mb", "ge", "gl", "gls", "ps", "lit", "msa", "cf", "hn", "segnum"))
"""Parts of the names of tiers of Toolbox and FLEx that have translations, glosses and notes."""


def elan_texts(root: Element) -> list[TimedText]:
    """Return what the tiers of an ANNOTATION_DOCUMENT say.

    Raises:
        ValueError: no tier has words (see `spoken`), two tiers have one name, or tiers depend on each other in a
            circle.
    """
    tiers: dict[str, Element] = {}
    for tier in elements(root, "TIER"):
        if tiers.setdefault(name := tier.get("TIER_ID", ""), tier) is not tier:
            raise ValueError(f"two tiers are called {name!r}; rename one in ELAN")
    parents = {
        name: parent if (parent := tier.get("PARENT_REF", "")) in tiers else _ROOTS for name, tier in tiers.items()
    }
    order = TopologicalSorter({name: [parent] for name, parent in parents.items()}).static_order()
    spans = _spans(root, [tiers[name] for name in order if name in tiers])
    below: dict[str, list[Tier]] = {}
    for name, tier in tiers.items():
        labels = [
            TimedText(full_text(annotation.find("ANNOTATION_VALUE")), *spans[annotation.get("ANNOTATION_ID", "")])
            for annotation in _annotations(tier)
        ]
        below.setdefault(parents[name], []).append(Tier(name, labels, tier.get("PARTICIPANT", "")))
    return spoken(_with_the_text(tier, below) for tier in below.get(_ROOTS, ()))


def _with_the_text(root: Tier, below: Mapping[str, Sequence[Tier]]) -> Tier:
    """Return the first tier of a tree that has text, in the order of its levels; the root if none has."""
    level = [root]
    while level:
        for tier in level:
            if _has_text(tier):
                return tier
        level = [child for tier in level for child in below.get(tier.name, ())]
    return root


def _has_text(tier: Tier) -> bool:
    labels = [label.text.strip() for label in tier.labels if label.text.strip()]
    numbers = sum(bool(_NUMBER.fullmatch(label)) for label in labels)
    return numbers < _MOST * len(labels) and not has_remarks(tier.name, _CODES)


def _annotations(tier: Element) -> Iterator[Element]:
    return (annotation for parent in tier.findall("ANNOTATION") for annotation in parent)


def _spans(root: Element, tiers: Iterable[Element]) -> dict[str, tuple[float, float]]:
    """Return the start and end in seconds of each annotation by its id. Annotations of one tier that refer to the same
    one divide its time.

    Args:
        tiers: each tier after its parent.
    """
    slots = list(elements(root, "TIME_SLOT"))
    values = [None if (value := slot.get("TIME_VALUE")) is None else int(value) / 1000 for slot in slots]
    times = dict(zip((slot.get("TIME_SLOT_ID") for slot in slots), interpolated(values), strict=True))
    spans: dict[str, tuple[float, float]] = {}
    for tier in tiers:
        for parent, group in groupby(_annotations(tier), lambda annotation: annotation.get("ANNOTATION_REF")):
            parts = [*group]
            start, end = spans.get(parent or "", (0.0, 0.0))
            step = (end - start) / len(parts)
            for number, part in enumerate(parts):
                if parent is None:
                    start_slot, end_slot = (times.get(part.get(f"TIME_SLOT_REF{slot}"), 0.0) for slot in (1, 2))
                    spans[part.get("ANNOTATION_ID", "")] = start_slot, end_slot
                else:
                    spans[part.get("ANNOTATION_ID", "")] = start + number * step, start + (number + 1) * step
    return spans
