"""Tests for the alignment of two sequences of tokens."""

from __future__ import annotations

from random import Random

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.scoring import alignment
from voxbatch.scoring.alignment import Edit, align
from voxbatch.scoring.counts import count_errors

WORDS = st.lists(st.sampled_from(["one", "day", "red", "dog", "ran", "home", "far"]), max_size=40)
NAMES = {"equal": "equal", "substitute": "substitution", "delete": "deletion", "insert": "insertion"}
"""jiwer's names of the kinds of edits."""


def damaged(words: list[str], rate: float, seed: int) -> list[str]:
    """Return words with errors: a third each substituted, deleted, and with another word inserted after them."""
    random, out = Random(seed), []
    for word in words:
        kind = int(random.random() / rate * 3)
        out += {0: [], 1: [random.choice(words)], 2: [word, random.choice(words)]}.get(kind, [word])
    return out


@pytest.mark.parametrize(
    ("reference", "hypothesis", "edits"),
    [
        ("the cat sat", "the dog", [("equal", 0, 0), ("substitution", 1, 1), ("deletion", 2, None)]),
        ("a b", "", [("deletion", 0, None), ("deletion", 1, None)]),
        ("", "a b", [("insertion", None, 0), ("insertion", None, 1)]),
        ("a c", "a b c", [("equal", 0, 0), ("insertion", None, 1), ("equal", 1, 2)]),
        ("", "", []),
    ],
)
def test_edits_equal_those_found_by_hand(
    reference: str, hypothesis: str, edits: list[tuple[str, int | None, int | None]]
) -> None:
    """Every token of both texts is in exactly one edit, in order."""
    assert [(e.kind, e.reference, e.hypothesis) for e in align(reference.split(), hypothesis.split())] == edits


@given(WORDS.filter(bool), WORDS)
def test_edits_are_those_of_jiwer(reference: list[str], hypothesis: list[str]) -> None:
    """jiwer, which also uses rapidfuzz, aligns the same tokens."""
    expected = [
        Edit(
            NAMES[block.type],  # type: ignore[arg-type]
            None if block.type == "insert" else block.ref_start_idx + k,
            None if block.type == "delete" else block.hyp_start_idx + k,
        )
        for block in jiwer.process_words(" ".join(reference), " ".join(hypothesis)).alignments[0]
        for k in range(max(block.ref_end_idx - block.ref_start_idx, block.hyp_end_idx - block.hyp_start_idx))
    ]
    assert align(reference, hypothesis) == expected


def test_a_long_pair_has_as_many_errors_with_a_band_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The band that makes long pairs fast changes no rate, for a good transcript and for an unrelated one."""
    random = Random(19)
    words = random.choices([f"w{n}" for n in range(500)], k=4000)
    texts = [damaged(words, 0.1, seed=1), random.choices(words, k=4000), ["w1", "w2"] * 3000]
    plain = [count_errors(" ".join(words), " ".join(text), "fr").errors for text in texts]
    monkeypatch.setattr(alignment, "LONG_PAIR", 0)
    assert [count_errors(" ".join(words), " ".join(text), "fr").errors for text in texts] == plain
