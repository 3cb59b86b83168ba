"""Tests for the names of items' files: the recording's name without its extension, never shared by two items."""

from __future__ import annotations

from unicodedata import normalize

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from voxbatch.output.item_names import ItemNames, short_name

STEMS = st.sampled_from(["a", "A", "a.b", "d/a", "D/a", "d/a.mp4", "a.mp4", "a.mp4.wav", ".", "\u00fc", "u\u0308"])
IDS = st.lists(
    st.builds(
        lambda stem, suffix, part: stem + suffix + part,
        STEMS,
        st.sampled_from(["", ".mp4", ".wav", ".MP4", ".txt"]),
        st.sampled_from(["", "#1-2", "#ch0", "#1-2#ch1"]),
    ),
    unique=True,
    max_size=30,
)


@pytest.mark.parametrize(
    ("item_id", "short"),
    [
        ("day1/talk.mp4", "day1/talk"), ("talk.MP4", "talk"), ("a.wav#12.5-5#ch1", "a#12.5-5#ch1"), ("v1.2", "v1.2"),
        (".wav", ".wav"), ("d/.wav", "d/.wav"), ("talk", "talk"), ("Dr. Who", "Dr. Who"), ("a.wav/b", "a.wav/b"),
    ],
)  # fmt: skip
def test_only_extensions_of_recordings_are_left_out(item_id: str, short: str) -> None:
    """A short name is the id without the extension of a recording; another part after a dot belongs to the name."""
    assert short_name(item_id) == short


def test_recordings_with_one_stem_keep_their_extensions() -> None:
    """talk.mp4 and talk.wav in one folder keep their extensions; another folder's talk.mp4 does not need it."""
    names = ItemNames(["a/talk.mp4", "a/talk.wav", "b/talk.mp4", "a/other.mp4"])
    found = [names.name(each) for each in ("a/talk.mp4", "a/talk.wav", "b/talk.mp4", "a/other.mp4")]
    assert found == ["a/talk.mp4", "a/talk.wav", "b/talk", "a/other"]


@given(IDS, st.booleans())
@example(["talk.mp4", "talk.wav", "talk.mp4.mkv"], False)
@example(["Talk.wav", "talk.wav", "TALK", "straße", "STRASSE"], True)
@example(["\u00e9.wav", "e\u0301.wav", "\u00e9"], False)
def test_names_are_unique_and_do_not_depend_on_the_order(ids: list[str], folds_case: bool) -> None:
    """Different ids have different names, as the file system compares names, in any order of the items."""
    names, turned = ItemNames(ids, folds_case), ItemNames(reversed(ids), folds_case)
    found = [names.name(item_id) for item_id in ids]
    compared = [normalize("NFC", name.casefold() if folds_case else name) for name in found]
    assert len(set(compared)) == len(ids)
    assert found == [turned.name(item_id) for item_id in ids]
