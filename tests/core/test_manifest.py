"""Tests for manifests: lines become Items or are reported as bad, and sources of every kind give the same lines in both
passes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from voxbatch.errors import ConfigError, ManifestError
from voxbatch.manifest import DEFAULT_POLICY, MAX_LANGUAGES, LineError, PathPolicy, Survey, items, parse_line, survey
from voxbatch.manifest.json_line import MAX_LINE_BYTES
from voxbatch.records import Item
from voxbatch.sources.folder import folder_manifest, natural_key
from voxbatch.sources.opening import open_source
from voxbatch.sources.references import MAX_REFERENCE_BYTES
from voxbatch.storage.columns import ItemSet

ANYWHERE = PathPolicy(allow_outside=True)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"audio_filepath": st.from_regex(r"[a-z0-9é]{1,8}\.wav", fullmatch=True)},
        optional={
            "duration": st.floats(0.001, 1e5) | st.none(),
            "offset": st.floats(0, 1e5),
            "text": st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.none(),
            "lang": st.sampled_from(["en", "pt-BR"]),
            "anything": st.recursive(st.booleans() | st.integers(), st.lists, max_leaves=5),
        },
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda row: str(row["audio_filepath"]),
)


def write(folder: Path, *lines: str | bytes, name: str = "m.jsonl", end: bytes = b"\n") -> Path:
    """Write a manifest of these lines."""
    path = folder / name
    path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + end for line in lines))
    return path


def surveyed(path: Path, policy: PathPolicy = DEFAULT_POLICY, limit: int | None = None) -> Survey:
    with open_source(path) as source:
        return survey(source, policy, limit)


def bad_lines(path: Path, policy: PathPolicy = DEFAULT_POLICY) -> list[tuple[int, str]]:
    """Return the line number and reason of each bad line; assert that there are any."""
    with pytest.raises(ManifestError) as caught:
        surveyed(path, policy)
    return [(bad.line, bad.reason) for bad in caught.value.bad_lines]


def read(path: Path, **options: Any) -> list[Item]:
    with open_source(path) as source:
        return list(items(source, **options))


def parse(row: object, policy: PathPolicy = DEFAULT_POLICY) -> Item:
    """Parse a row as line 7 and item 3 of a manifest in /base."""
    return parse_line(row if isinstance(row, bytes) else json.dumps(row).encode(), 7, 3, "/base", policy)


def line_error(row: object, policy: PathPolicy = DEFAULT_POLICY) -> str:
    """Return the reason for which a row is refused."""
    with pytest.raises(LineError) as caught:
        parse(row, policy)
    return str(caught.value)


# ── One line ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_key_is_stored_in_its_field() -> None:
    """Each key is stored in its field, and the row is kept whole with its unknown keys."""
    row = {"audio_filepath": "./a/../b.wav", "offset": 12.5, "duration": 5, "channel": 1, "text": "hi", "lang": "pt-BR"}
    row["speaker"] = {"name": "Ana"}
    item = parse(row)
    assert item == Item(3, 7, "b.wav#12.5-5#ch1", "/base/b.wav", 12.5, 5.0, "hi", "pt-BR", 1, json.dumps(row).encode())


def test_null_counts_as_absent() -> None:
    """An optional key that is null counts as absent; so does an empty `lang`."""
    row = dict.fromkeys(["offset", "duration", "channel", "text", "id"], None) | {"audio_filepath": "a.wav", "lang": ""}
    assert parse(row) == Item(3, 7, "a.wav", "/base/a.wav", row=json.dumps(row).encode())


@pytest.mark.parametrize(
    ("row", "item_id"),
    [
        ({"audio_filepath": "a.wav"}, "a.wav"),
        ({"audio_filepath": ".//x/./a.wav"}, "x/a.wav"),
        ({"audio_filepath": "../../x/a.wav"}, "x/a.wav"),
        ({"audio_filepath": "//x/a.wav"}, "x/a.wav"),
        ({"audio_filepath": "..dots..wav"}, "..dots..wav"),
        ({"audio_filepath": "#1.wav"}, "#1.wav"),
        ({"audio_filepath": "a.wav", "offset": 0, "duration": 0.25}, "a.wav#0-0.25"),
        ({"audio_filepath": "a.wav", "offset": -0.0}, "a.wav#0"),
        ({"audio_filepath": "a.wav", "offset": 100}, "a.wav#100"),
        ({"audio_filepath": "a.wav", "channel": 0}, "a.wav#ch0"),
        ({"audio_filepath": "a.wav", "offset": 1, "id": "./mine"}, "./mine"),
        ({"audio_filepath": "a.wav", "id": 42}, "42"),
        ({"audio_filepath": "a.wav", "id": "क्‍ष"}, "क्‍ष"),
        ({"audio_filepath": "a\nb\x85 100%.wav", "channel": 1}, "a%0Ab%C2%85 100%.wav#ch1"),
        ({"audio_filepath": "file:caf%E9.wav"}, "caf%E9.wav"),
        ({"audio_filepath": "file:///x/a.wav"}, "x/a.wav"),
        ({"audio_filepath": "GS://calls//x/a b.wav"}, "calls//x/a b.wav"),
        ({"audio_filepath": "s3://calls/a?b#c.wav", "channel": 1}, "calls/a?b#c.wav#ch1"),
        ({"audio_filepath": "https://Host:443/x/a%20b.wav?X-Signature=1#t", "offset": 1}, "host/x/a%20b.wav#1"),
        ({"audio_filepath": "http://host:8080/café 1.wav"}, "host:8080/café 1.wav"),
        ({"audio_filepath": "https://host/?id=3"}, "host/"),
        ({"audio_filepath": "https://host/a.wav?1", "id": "mine"}, "mine"),
    ],
)
def test_id_is_given_or_derived_from_the_path(row: dict[str, Any], item_id: str) -> None:
    """The id is the `id` of the line, else the normalized path with the segment and the channel that the line requests.

    For an address, the path is the bucket and the key, or the host and the path, as they are written.
    """
    assert parse(row, ANYWHERE).id == item_id


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (b'{"audio_filepath":"a.wav","text":"caf\xe9"}', "byte 0xE9 at byte offset 37 is not UTF-8; save"),
        (b"hello", "not JSON: Expecting value at column 1, near 'hello'; write one JSON object a line"),
        (b'{"audio_filepath":"a.wav"} {"b":1}', "Extra data at column 28"),
        (b'{"audio_filepath":"a.w', "ends within a JSON object"),
        (b'{"audio_filepath":"a.wav","duration":NaN}', "holds NaN"),
        (b'{"audio_filepath":"a.wav","mine":[-Infinity]}', "holds -Infinity"),
        (b'{"audio_filepath":"a.wav","mine":1e999}', "holds the number '1e999'"),
        (b'{"audio_filepath":"a.wav","mine":' + b"9" * 5000 + b"}", "more than 4,300 digits"),
        (b'{"audio_filepath":"a.wav","mine":' + b"[" * 65 + b"]" * 65 + b"}", "nested too deep; at most 64"),
        (b"[" * 200_000, "nested too deep"),
        (b'{"audio_filepath":"a.wav","mine":"\\ud800"}', "holds \\ud800, half of a surrogate pair"),
        (b'{"text":"' + b"a" * MAX_LINE_BYTES + b'"}', "has 10,000,011 bytes, at most 10,000,000 are allowed"),
        (b'{"x":[' + b"[]," * 250_000 + b"0]}", "holds 500,002 commas and opening brackets, at most 500,000 are"),
        ({"audio_filepath": "a.wav", "text": "a" * 1_500_001}, "`text` has 1,500,001 characters or more after"),
        ({"audio_filepath": "a.wav", "text": "\ufdfa" * 112_000}, "normalisation, at most 1,500,000 are allowed"),
        ([1, 2], "is an array, [1, 2]; a line is a JSON object with `audio_filepath`"),
        ("x", "is a string, 'x'"),
        (None, "is null, null"),
        ({}, "has no `audio_filepath`, its keys: none; name the recording with it"),
        ({"path": "a.wav", "n": 1}, "its keys: 'path', 'n'; rename `path` to `audio_filepath`"),
        ({"audio_filepath": 123}, "`audio_filepath` is 123; it must be a string"),
        ({"audio_filepath": None}, "`audio_filepath` is null; it must be a string"),
        ({"audio_filepath": " "}, "`audio_filepath` is ' ', empty"),
        ({"audio_filepath": "a\0.wav"}, "no file name holds NUL"),
        ({"audio_filepath": "."}, "'.' is a folder; name a recording"),
        ({"audio_filepath": "/"}, "'/' is a folder; name a recording"),
        ({"audio_filepath": "https://www.youtube.com/watch?v=x"}, "is a web page, and no recording; yt-dlp fetches"),
        ({"audio_filepath": "C:\\calls\\a.wav"}, "'C:\\\\calls\\\\a.wav' is a path of Windows; write the path that"),
        ({"audio_filepath": "é" * 513}, "is longer than 1,024 bytes; give the line a shorter `id`"),
        ({"audio_filepath": "a/" * 3000 + "a.wav", "id": "x"}, "longer than 4,096 bytes"),
        ({"audio_filepath": "a.wav", "id": ""}, "`id` is ''; it must be a string that is not empty"),
        ({"audio_filepath": "a.wav", "id": True}, "`id` is true; it must be a string"),
        ({"audio_filepath": "a.wav", "id": 1.5}, "`id` is 1.5; it must be a string"),
        ({"audio_filepath": "a.wav", "id": "a\x9b31m"}, r"`id` 'a\x9b31m' holds control characters"),
        ({"audio_filepath": "a.wav", "duration": 0}, "`duration` is 0; it must be seconds, more than 0"),
        ({"audio_filepath": "a.wav", "duration": True}, "`duration` is true"),
        ({"audio_filepath": "a.wav", "duration": "5"}, "`duration` is '5'"),
        ({"audio_filepath": "a.wav", "duration": 1e308}, "at most 2,592,000 (30 days)"),
        ({"audio_filepath": "a.wav", "duration": 10**400}, "at most 2,592,000 (30 days)"),
        ({"audio_filepath": "a.wav", "offset": -0.1}, "`offset` is -0.1; it must be seconds, 0 or more"),
        ({"audio_filepath": "a.wav", "offset": [1]}, "`offset` is [1]"),
        ({"audio_filepath": "a.wav", "channel": -1}, "`channel` is -1; give a whole number from 0"),
        ({"audio_filepath": "a.wav", "channel": False}, "`channel` is false"),
        ({"audio_filepath": "a.wav", "channel": 65_535}, "`channel` is 65535"),
        ({"audio_filepath": "a.wav", "text": 5}, "`text` is 5; it must be a string or null"),
        ({"audio_filepath": "a.wav", "lang": ["en"]}, '`lang` is ["en"]; it must be a string or null'),
    ],
)
def test_refused_line_shows_value_and_rule(row: object, says: str) -> None:
    """Each fault has a reason that shows the value and states what is allowed."""
    assert says in line_error(row)


def test_a_path_of_windows_is_relative_to_the_manifest(tmp_path: Path) -> None:
    """A backslash divides folders, unless a file has it in its name."""
    (tmp_path / "x\\b.wav").touch()
    line = b'{"audio_filepath": "x\\\\%s.wav"}'
    found = [parse_line(line % name, 1, 0, str(tmp_path)).audio for name in (b"a", b"b")]
    assert found == [f"{tmp_path}/x/a.wav", f"{tmp_path}/x\\b.wav"]


@pytest.mark.slow
@given(st.text(min_size=100, max_size=2000) | st.lists(st.integers(), min_size=100) | st.text(max_size=90))
def test_reasons_are_short_without_control_characters(value: object) -> None:
    """A reason quotes about 80 characters at most, and contains no control characters for a terminal."""
    reason = line_error({"audio_filepath": "a.wav", "duration": value})
    assert len(reason) < 200
    assert reason.isprintable()


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = ["audio_filepath", "offset", "duration", "channel", "id", "text", "lang", "other"]


@pytest.mark.slow
@given(st.binary() | st.dictionaries(st.sampled_from(KEYS), JSONISH).map(lambda row: json.dumps(row).encode()))
@example(b"\xef\xbb\xbf{}")
def test_any_bytes_are_an_item_or_a_reason(text: bytes) -> None:
    """No line crashes the parser, and an accepted line can be written again as UTF-8 JSON."""
    try:
        item = parse(text)
    except LineError:
        return
    json.dumps(json.loads(item.row), ensure_ascii=False, allow_nan=False).encode()
    assert item.audio.startswith("/base/")
    assert 1 <= len(item.id.encode()) <= 1024


# ── Path policy ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "policy", "resolved"),
    [
        ("x/../a.wav", DEFAULT_POLICY, "/base/a.wav"),
        ("/base/x/a.wav", DEFAULT_POLICY, "/base/x/a.wav"),
        ("12:30.wav", DEFAULT_POLICY, "/base/12:30.wav"),
        ("./concat:a.wav", DEFAULT_POLICY, "/base/concat:a.wav"),
        ("x/http://a.wav", DEFAULT_POLICY, "/base/x/http:/a.wav"),
        ("~/a%20b.wav", DEFAULT_POLICY, "/base/~/a%20b.wav"),
        ("../a.wav", ANYWHERE, "/a.wav"),
        ("//etc/a.wav", ANYWHERE, "/etc/a.wav"),
        ("../corpus/a.wav", PathPolicy(only_under=("/corpus/", "/other")), "/corpus/a.wav"),
        ("/other/a.wav", PathPolicy(only_under=("/corpus/x/..", "/other")), "/other/a.wav"),
        ("a.wav", PathPolicy(only_under=("/",)), "/base/a.wav"),
        ("file:x/a%20b.wav", DEFAULT_POLICY, "/base/x/a b.wav"),
        ("file:///base/caf%C3%A9.wav", DEFAULT_POLICY, "/base/café.wav"),
        ("file:caf%E9.wav", DEFAULT_POLICY, "/base/caf\udce9.wav"),
    ],
)
def test_relative_paths_resolve_against_manifest_folder(path: str, policy: PathPolicy, resolved: str) -> None:
    """Relative paths resolve against the folder of the manifest; a colon alone does not make a path remote."""
    assert parse({"audio_filepath": path}, policy).audio == resolved


OUTSIDE = {
    "../a.wav": "/a.wav", "x/../../a.wav": "/a.wav", "/etc/passwd": "/etc/passwd", "/base2/a.wav": "/base2/a.wav",
    "//etc/x": "/etc/x", "FILE:/etc/passwd": "/etc/passwd", "file://localhost/etc/passwd": "/etc/passwd",
    "file:x/..%2f../..%2fetc/passwd": "/etc/passwd",
}  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE)
def test_only_a_local_manifest_may_name_any_file(path: str) -> None:
    """A manifest on this machine may name files outside of its folder; --only-under confines it. One at an address, as
    a listener and its uploads bring it, may not, and the reason names both flags."""
    assert parse({"audio_filepath": path, "id": "x"}).audio == OUTSIDE[path]
    assert "' is outside of /base, " in line_error(
        {"audio_filepath": path, "id": "x"}, PathPolicy(only_under=("/base",))
    )
    if path[0] in "/F":
        with pytest.raises(
            LineError, match=r"outside of gs://calls/, .*--only-under PLACE, .*--allow-outside"
        ) as caught:
            DEFAULT_POLICY.resolve(path, "gs://calls/x/")
        assert path[-6:] in str(caught.value)


@pytest.mark.parametrize(
    ("paths", "ids"),
    [
        (["/data/x/train/a.wav", "/data/x/test/b.wav"], ["train/a.wav", "test/b.wav"]),
        (["/data/xy/a.wav", "/data/xz/a.wav"], ["xy/a.wav", "xz/a.wav"]),
        (["/data/é/a.wav", "/data/é/b\n.wav"], ["a.wav", "b%0A.wav"]),
        (["/data/a.wav"], ["a.wav"]),
        (["/a.wav", "/b/c.wav"], ["a.wav", "b/c.wav"]),
        (["/data/a.wav", "b.wav"], ["data/a.wav", "b.wav"]),
        (["/data/x/a.wav", "gs://calls/x.wav"], ["data/x/a.wav", "calls/x.wav"]),
        (["/data//a.wav", "/data/x/../b.wav"], ["data/a.wav", "data/b.wav"]),
    ],
)
def test_ids_leave_out_the_common_folder_of_absolute_paths(tmp_path: Path, paths: list[str], ids: list[str]) -> None:
    """The ids of absolute paths, as NeMo's manifests have them, are as short as they are unambiguous; also the ids of a
    process that inherits the manifest, and of the first items alone."""
    rows = [json.dumps({"audio_filepath": path}, ensure_ascii=path.isascii()) for path in paths]
    with open_source(write(tmp_path, *rows)) as source:
        assert [item.id for item in items(source)] == ids
        assert [item.id for item in items(source, limit=1)] == ids[:1]
        with replace(source.inheritable(), fd=os.dup(source.inheritable().fd)).open() as inherited:
            assert [item.id for item in items(inherited)] == ids


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("file://host/a.wav", "names no file of this machine; write the plain path"),
        ("file:a%00.wav", "names no file of this machine"),
        ("file:", "names no file of this machine"),
        ("ftp://me:secret@host/a.wav", "ftp://… is of an unsupported kind; give a path, gs://, s3:// or http(s)://"),
        ("http:/a.wav", "names the protocol http:"),
        ("concat:a.wav|b.wav", "names the protocol concat:"),
        ("crypto+http:x", "names the protocol crypto+http:"),
        ("crypto+https://host/x", "crypto+https://… is of an unsupported kind"),
        ("subfile,,start,0,end,9,,:/etc/passwd", "names the protocol subfile:"),
        ("PIPE:0", "for a file of that name write ./pipe:…"),
        ("data:audio/wav;base64,AA==", "names the protocol data:"),
        ("gs://calls/x/../a.wav", """'gs://calls/x/../a.wav': a part of the name is "." or "..\""""),
        ("s3://calls/x/", "'s3://calls/x/' is the address of a folder; name a recording"),
        ("gs://calls", "is the address of a folder"),
        ("https://host/", "is the address of a folder"),
        ("https://me:secret@host/a.wav", "'https://host/a.wav': it contains a user name or password"),
        ("https://host/%2e%2E/a.wav?secret", "'https://host/%2e%2E/a.wav?…': a part of the path is"),
    ],
)
@pytest.mark.parametrize(
    "policy", [DEFAULT_POLICY, ANYWHERE, PathPolicy(only_under=("/",)), PathPolicy(only_under=("gs://calls",))]
)
@pytest.mark.parametrize("base", ["/base", "gs://calls/x", "https://host/"])
def test_protocols_and_invalid_addresses_are_always_refused(
    path: str, says: str, policy: PathPolicy, base: str
) -> None:
    """No flag admits ffmpeg protocols or impossible addresses, and no reason shows a secret."""
    with pytest.raises(LineError) as caught:
        policy.resolve(path, base)
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


IN_BUCKET, ON_WEB = "gs://calls/x/", "https://host/x/"
UNDER = PathPolicy(only_under=("gs://calls/2026", "S3://b-1/", "https://Host:443/x", "/corpus"))


@pytest.mark.parametrize(
    ("path", "base", "policy", "resolved"),
    [
        ("gs://any/a.wav", "/base", DEFAULT_POLICY, "gs://any/a.wav"),
        ("http://127.0.0.1:9/x.wav", "/base", DEFAULT_POLICY, "http://127.0.0.1:9/x.wav"),
        ("a.wav", IN_BUCKET, DEFAULT_POLICY, "gs://calls/x/a.wav"),
        ("./data:1.wav", IN_BUCKET, DEFAULT_POLICY, "gs://calls/x/data:1.wav"),
        ("gs://calls/other/a.wav", IN_BUCKET, DEFAULT_POLICY, "gs://calls/other/a.wav"),
        ("../a.wav", ON_WEB, DEFAULT_POLICY, "https://host/a.wav"),
        ("https://HOST:443/a.wav?sig=1", ON_WEB, DEFAULT_POLICY, "https://host/a.wav?sig=1"),
        ("gs://any/a.wav", ON_WEB, ANYWHERE, "gs://any/a.wav"),
        ("/etc/a.wav", IN_BUCKET, ANYWHERE, "/etc/a.wav"),
        ("gs://calls/2026/a.wav", "/base", UNDER, "gs://calls/2026/a.wav"),
        ("../2026/a.wav", IN_BUCKET, UNDER, "gs://calls/2026/a.wav"),
        ("s3://b-1/a.wav", IN_BUCKET, UNDER, "s3://b-1/a.wav"),
        ("https://host/x/a.wav?sig=1", "/base", UNDER, "https://host/x/a.wav?sig=1"),
        ("/corpus/a.wav", IN_BUCKET, UNDER, "/corpus/a.wav"),
    ],
)
def test_addresses_are_admitted_by_policy(path: str, base: str, policy: PathPolicy, resolved: str) -> None:
    """A local manifest may name any address, a remote manifest its own bucket or server; --only-under replaces both
    rules.
    """
    assert policy.resolve(path, base) == resolved


@pytest.mark.parametrize(
    ("path", "base", "policy", "places"),
    [
        ("gs://calls2/a.wav", IN_BUCKET, DEFAULT_POLICY, "gs://calls/"),
        ("s3://calls/a.wav", IN_BUCKET, DEFAULT_POLICY, "gs://calls/"),
        ("https://host/a.wav", IN_BUCKET, DEFAULT_POLICY, "gs://calls/"),
        ("/etc/passwd", IN_BUCKET, DEFAULT_POLICY, "gs://calls/"),
        ("/x/a.wav", ON_WEB, DEFAULT_POLICY, "https://host/"),
        ("http://host/a.wav", ON_WEB, DEFAULT_POLICY, "https://host/"),
        ("https://host:8443/a.wav", ON_WEB, DEFAULT_POLICY, "https://host/"),
        ("gs://calls/2026-x/a.wav", "/base", UNDER, "gs://calls/2026/, s3://b-1/, https://host/x/, /corpus"),
        ("/corpus2/a.wav", "/base", UNDER, "gs://calls/2026/, s3://b-1/, https://host/x/, /corpus"),
        ("gs://calls/2026.wav", "/base", UNDER, "gs://calls/2026/, s3://b-1/, https://host/x/, /corpus"),
        ("https://host/xy/a.wav", "/base", UNDER, "gs://calls/2026/, s3://b-1/, https://host/x/, /corpus"),
        ("a.wav", IN_BUCKET, UNDER, "gs://calls/2026/, s3://b-1/, https://host/x/, /corpus"),
        ("gs://calls/a.wav", "/base", PathPolicy(only_under=("/",)), "/"),
    ],
)
def test_addresses_outside_are_refused(path: str, base: str, policy: PathPolicy, places: str) -> None:
    """Another bucket, server or port, or a local file, is refused; a prefix matches only whole parts of a path."""
    with pytest.raises(LineError) as caught:
        policy.resolve(path, base)
    reason = f"{path!r} is outside of {places}, and this manifest may name only recordings there; move the recording"
    assert reason in str(caught.value)


NAMES = st.sampled_from(["a.wav", "x", "..", ".", "", "%2e%2e", "2026", "2026-x", "\\..", "?", "#"])
PLACES = st.sampled_from(["", "/", "gs://calls/", "s3://calls/", "https://host/", "https://host:1/", "HTTPS://HOST/"])


@given(st.builds(lambda place, parts: place + "/".join(parts), PLACES, st.lists(NAMES, max_size=5)))
def test_admitted_path_is_below_an_admitted_folder(path: str) -> None:
    """A path that a policy admits lies below an admitted place and contains no "." or ".." parts."""
    under = PathPolicy(only_under=("gs://calls/2026", "https://host/x/", "/base"))
    for base, policy, places in [
        ("/base", DEFAULT_POLICY, ("/", "gs://", "s3://", "https://")),
        (IN_BUCKET, DEFAULT_POLICY, ("gs://calls/",)),
        (ON_WEB, DEFAULT_POLICY, ("https://host/",)),
        ("/base", under, ("gs://calls/2026/", "https://host/x/", "/base/")),
        (IN_BUCKET, under, ("gs://calls/2026/", "https://host/x/", "/base/")),
    ]:
        try:
            resolved = policy.resolve(path or "a", base)
        except LineError:
            continue
        assert resolved.startswith(places)
        assert {".", ".."}.isdisjoint(resolved.partition("?")[0].split("/"))


def test_reasons_and_ids_contain_no_signature(tmp_path: Path) -> None:
    """No reason shows the query of an address; two addresses that differ only in the query are the same recording."""
    address = "https://host/a.wav?sig=secret"
    lines = [json.dumps({"audio_filepath": address + more}) for more in ("1", "2", "3" * 5000, "\0")]
    path = write(tmp_path, *lines, json.dumps({"audio_filepath": f"{address}", "id": "mine"}))
    found = bad_lines(path)
    assert found[0] == (2, "id 'host/a.wav' is also line 1's; give each line its own `id`")
    assert [line for line, _ in found] == [2, 3, 4]
    assert not [reason for _, reason in found if "secret" in reason]


def test_invalid_policy_is_refused_when_built() -> None:
    """An impossible address, or two contradicting flags, raise a ConfigError that shows the value. A relative folder is
    one of the current folder."""
    assert PathPolicy(only_under=("corpus/../a",)).only_under == (os.path.abspath("a"),)
    with pytest.raises(ConfigError, match="contradict each other"):
        PathPolicy(allow_outside=True, only_under=("/corpus",))
    with pytest.raises(ConfigError, match="--only-under gs://c: 'c' is not a valid bucket name"):
        PathPolicy(only_under=("gs://c",))
    with pytest.raises(ConfigError, match=r"--only-under https://h/x\?… ends in a query; give the address of a folder"):
        PathPolicy(only_under=("https://h/x?secret",))
    with pytest.raises(ConfigError, match="--only-under https://h/x: it contains a user name"):
        PathPolicy(only_under=("https://me:secret@h/x",))


# ── The whole manifest ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@given(ROWS, st.sampled_from([b"\n", b"\r\n"]), st.booleans(), st.lists(st.integers(0, 20), max_size=4))
def test_survey_and_items_read_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], end: bytes, bom: bool, blanks: list[int]
) -> None:
    """Rows are read unchanged, with index and line number; blank lines, line ends and a BOM do not
    change the survey.
    """
    folder = tmp_path_factory.mktemp("m")
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    plain = surveyed(write(folder, *lines))
    numbers = list(range(1, len(lines) + 1))
    for at in sorted(blanks, reverse=True):
        lines.insert(at, " \t")
        numbers = [number + (number > at) for number in numbers]
    path = write(folder, *lines, end=end)
    if bom:
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    found, seen = read(path), surveyed(path)
    assert [json.loads(item.row) for item in found] == rows
    assert [item.index for item in found] == list(range(len(rows)))
    assert [item.line for item in found] == [n for n, line in enumerate(lines, 1) if line.strip()]
    assert (seen.items, seen.fingerprint, seen.with_text) == (plain.items, plain.fingerprint, plain.with_text)
    wanted = np.array([row.get("duration") or np.nan for row in rows], np.float32)
    assert np.array_equal(seen.durations, wanted, equal_nan=True)
    assert seen.with_text == sum(row.get("text") is not None for row in rows)


@given(st.lists(st.sampled_from(["good", "bad", "blank"]), min_size=1, max_size=30).filter(lambda x: "bad" in x))
def test_every_bad_line_is_reported(tmp_path_factory: pytest.TempPathFactory, kinds: list[str]) -> None:
    """All bad lines are reported, each with its number."""
    text = {"good": '{"audio_filepath": "%d.wav"}', "bad": '{"audio_filepath": %d}', "blank": ""}
    lines = [text[kind] % n if "%" in text[kind] else text[kind] for n, kind in enumerate(kinds)]
    path = write(tmp_path_factory.mktemp("m"), *lines)
    assert [line for line, _ in bad_lines(path)] == [n for n, kind in enumerate(kinds, 1) if kind == "bad"]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_duplicate_names_its_first_line(tmp_path_factory: pytest.TempPathFactory, numbers: list[int]) -> None:
    """Each line that repeats an id is refused, and the reason names the first line with that id."""
    path = write(tmp_path_factory.mktemp("m"), *[json.dumps({"audio_filepath": f"{n}.wav"}) for n in numbers])
    expected = [
        (line, f"id '{n}.wav' is also line {numbers.index(n) + 1}'s; give each line its own `id`")
        for line, n in enumerate(numbers, 1)
        if numbers.index(n) != line - 1
    ]
    assert (bad_lines(path) if expected else []) == expected
    assert expected or surveyed(path).items == len(numbers)


def test_explicit_id_that_equals_a_derived_id_is_a_duplicate(tmp_path: Path) -> None:
    """An explicit id may collide with a derived one; bad lines and duplicates are reported together, in line order."""
    path = write(tmp_path, '{"audio_filepath":"a.wav"}', "nonsense", '{"audio_filepath":"b.wav","id":"a.wav"}', "5")
    assert [line for line, _ in bad_lines(path)] == [2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "first_bad"),
    [
        (["nonsense"] * 3000, 1),
        (['{"audio_filepath":"a.wav"}'] * 3000, 2),
        ([f'{{"audio_filepath":"{n % 2500}.wav"}}' for n in range(5000)], 2501),
    ],
    ids=["faults", "one id", "many ids"],
)
def test_many_bad_lines_are_counted(tmp_path: Path, lines: list[str], first_bad: int) -> None:
    """The first thousand bad lines are listed and the others are counted, for faults and for duplicates."""
    with pytest.raises(ManifestError) as caught:
        surveyed(write(tmp_path, *lines))
    assert [bad.line for bad in caught.value.bad_lines] == list(range(first_bad, first_bad + 1000))
    assert caught.value.total == len(lines) - first_bad + 1


def test_limit_stops_reading(tmp_path: Path) -> None:
    """With a limit, later lines are not read, and the fingerprint is that of the lines used."""
    lines = [json.dumps({"audio_filepath": f"{n}.wav", "lang": "en", "duration": 1800}) for n in range(5)]
    long, short = write(tmp_path, *lines, "nonsense"), write(tmp_path, *lines[:3], name="short.jsonl")
    seen = surveyed(long, limit=3)
    assert (seen.items, seen.known_s, dict(seen.languages)) == (3, 5400, {"en": 3})
    assert seen.fingerprint == surveyed(short).fingerprint != surveyed(long, limit=4).fingerprint
    assert [item.index for item in read(long, limit=3)] == [0, 1, 2]


def test_number_of_counted_languages_is_limited(tmp_path: Path) -> None:
    """Many different values of `lang` do not make the survey grow without limit."""
    rows = [json.dumps({"audio_filepath": f"{n}.wav", "lang": f"x-{n}"}) for n in range(MAX_LANGUAGES + 50)]
    languages = surveyed(write(tmp_path, *rows)).languages
    assert len(languages) == MAX_LANGUAGES + 1
    assert languages.total() == len(rows)
    assert languages["…"] > 0


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_wanted_items_keep_their_indexes(tmp_path_factory: pytest.TempPathFactory, mask: list[bool]) -> None:
    """Only the wanted items are yielded, and their indexes remain those of the whole manifest."""
    path = write(tmp_path_factory.mktemp("m"), *[json.dumps({"audio_filepath": f"{n}.wav"}) for n in range(len(mask))])
    chosen = [index for index, wanted in enumerate(mask) if wanted]
    wanted = ItemSet(len(mask))
    wanted.add(np.array(chosen, np.int64))
    assert [item.index for item in read(path, wanted=wanted)] == chosen


def test_items_raises_for_a_bad_line(tmp_path: Path) -> None:
    """A bad line in the second pass raises a ManifestError with its number."""
    with pytest.raises(ManifestError, match=r"m\.jsonl: line 2: not JSON"):
        read(write(tmp_path, "", "nonsense"))


# ── Sources ───────────────────────────────────────────────────────────────────────────────────────────────────────────

LINES = ['{"audio_filepath":"a.wav"}', '{"audio_filepath":"b.wav"}']


def test_every_kind_of_source_gives_the_same_survey(tmp_path: Path) -> None:
    """A file, its gzip of two members, standard input and a pipe give the same survey, and each can be read twice at
    the same time.
    """
    plain = write(tmp_path, *LINES)
    packed = tmp_path / "m.jsonl.gz"
    packed.write_bytes(b"".join(gzip.compress(line.encode() + b"\n") for line in LINES))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=lambda: pipe.write_bytes(plain.read_bytes()), daemon=True).start()
    stdin = io.BytesIO(packed.read_bytes())
    bases = []
    for spec in [str(plain), str(packed), "-", str(pipe)]:
        with open_source(spec, stdin) as source:
            assert survey(source).fingerprint == surveyed(plain).fingerprint
            pairs = zip(items(source), items(source), strict=True)
            assert [(one.id, other.id) for one, other in pairs] == [("a.wav", "a.wav"), ("b.wav", "b.wav")]
            bases.append(source.base)
    assert bases == [str(tmp_path), str(tmp_path), os.getcwd(), os.getcwd()]


def test_manifest_that_changes_between_passes_is_refused(tmp_path: Path) -> None:
    """A manifest that is rewritten between the passes is refused; a manifest that is replaced is read in its old
    version.
    """
    path = write(tmp_path, *LINES)
    with open_source(path) as source:
        survey(source)
        write(tmp_path, *LINES[:1], name="new").rename(path)
        assert len(list(items(source))) == 2
    with open_source(path) as source:
        survey(source)
        write(tmp_path, *reversed(LINES))
        assert source.has_changed()
        with pytest.raises(ManifestError, match="changed while it was being read, after line 0; let its writer finish"):
            list(items(source))


@pytest.mark.slow
@pytest.mark.parametrize("is_gzip", [False, True])
@pytest.mark.parametrize("change", ["rewritten", "truncated"])
def test_no_line_of_a_changed_block_is_used(tmp_path: Path, is_gzip: bool, change: str) -> None:
    """A manifest that is rewritten in place or truncated in the middle of a pass yields lines of its first version, and
    then an error, also if its size and time stay the same.
    """
    rng = random.Random(0)
    rows = [{"audio_filepath": f"{i}.wav", "note": rng.randbytes(500).hex()} for i in range(4_000)]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    other = content.replace(b".wav", b".mp3")
    if is_gzip:
        content, other = gzip.compress(content, 1, mtime=0), gzip.compress(other, 1, mtime=0)
    (path := tmp_path / "m.jsonl").write_bytes(content)
    with open_source(path) as source:
        assert survey(source).items == 4_000
        passing, before = items(source), path.stat()
        seen = [next(passing).audio for _ in range(1_000)]
        if change == "truncated":
            os.truncate(path, 1_500_000)
        else:
            with path.open("r+b") as file:
                file.write(other[: len(content)])
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(ManifestError, match=r"changed while it was being read, after line [\d,]+; let its writer"):
            seen.extend(item.audio for item in passing)
    assert 1_000 <= len(seen) < 4_000
    assert seen == [str(tmp_path / f"{i}.wav") for i in range(len(seen))]


def test_lines_that_are_appended_after_the_survey_are_not_used(tmp_path: Path) -> None:
    """A manifest that grows after the survey is used as it was, and the change can be noticed."""
    path = write(tmp_path, *LINES)
    with open_source(path) as source:
        assert not source.has_changed()
        count = survey(source).items
        with path.open("a") as file:
            file.write('{"audio_filepath": "late.wav"}\n')
        assert len(list(items(source))) == count
        assert source.has_changed()


def test_manifest_that_grows_during_the_survey_is_refused(tmp_path: Path) -> None:
    """A manifest whose writer has not finished is refused, also if it ends with a whole line."""
    path = write(tmp_path, *LINES)
    with open_source(path) as source:
        with path.open("a") as file:
            file.write('{"audio_filepath": "late.wav"}\n')
        with pytest.raises(ManifestError, match="changed while it was being read; let its writer finish"):
            survey(source)


@pytest.mark.slow
def test_long_line_is_not_kept_in_memory(tmp_path: Path) -> None:
    """The parser keeps at most 10 MB of a line of 100 MB, and continues after it."""
    path = tmp_path / "m.jsonl"
    with path.open("wb") as file:
        file.truncate(100_000_000)
        file.seek(0, os.SEEK_END)
        file.write(b"\nnonsense\n")
    tracemalloc.start()
    found = bad_lines(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [line for line, _ in found] == [1, 2]
    assert "has 100,000,000 bytes, at most 10,000,000 are allowed" in found[0][1]
    assert peak < 30_000_000


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("m.jsonl", b"", "no items"),
        ("m.jsonl", b"\xef\xbb\xbf\r\n \n", "no items"),
        ("m.jsonl", '{"audio_filepath":"a.wav"}'.encode("utf-16")[:-1], "cannot be read to its end"),
        ("m.jsonl.gz", b'{"audio_filepath":"a.wav"}\n', "is not gzip, though its name says so"),
        ("m.jsonl.gz", b"", "is not gzip, though its name says so"),
        ("m.jsonl.gz", gzip.compress(bytes(range(100)), mtime=0)[:-9], "cannot be read to its end"),
        ("m.jsonl.gz", gzip.compress((b" " * 999_999 + b"\n") * 30, mtime=0), "more than 200 times its size"),
        ("m.jsonl.gz", gzip.compress(LINES[0].encode() + b"\n", mtime=0) + b"junk", "cannot be read to its end"),
        ("m.jsonl.gz", b"\x1f\x8b\x08\x00" + b"x" * 100, "cannot be read to its end"),
    ],
)
def test_file_that_is_no_manifest_is_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    """Empty, wrongly encoded, corrupt or mistaken files are refused with advice."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ManifestError, match=says) as caught:
        surveyed(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")


def test_unsupported_source_is_refused_with_accepted_kinds(tmp_path: Path) -> None:
    """An address of an unsupported kind is refused with the kinds that are accepted, and a loop of links with the
    reason.
    """
    with pytest.raises(ManifestError, match=r"ftp://h/m\.jsonl: is of an unsupported kind; give a path, or a gs://"):
        open_source("ftp://h/m.jsonl")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ManifestError, match="cannot be opened: Too many levels of symbolic links"):
        open_source(tmp_path / "loop")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("https://h/day/", "https://h/day/: is a folder of a web server, which cannot be listed; give a manifest"),
        ("gs://c/m.jsonl", "gs://c/m.jsonl: cannot be opened: 'c' is not a valid bucket name"),
        ("gs://calls/../m.jsonl", "gs://calls/../m.jsonl: cannot be opened: a part of the name is"),
        ("https://me:secret@h/m.jsonl", "https://h/m.jsonl: cannot be opened: it contains a user name or password"),
    ],
)
def test_address_that_is_no_manifest_is_refused_without_connecting(spec: str, says: str) -> None:
    """An address that is no manifest is refused before a connection is made, and the error shows no secret."""
    with pytest.raises(ManifestError) as caught:
        open_source(spec)
    assert str(caught.value).startswith(says)
    assert "secret" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_source_is_refused(tmp_path: Path) -> None:
    """An unreadable manifest or subfolder is refused, not skipped."""
    write(tmp_path, *LINES).chmod(0)
    with pytest.raises(ManifestError, match="cannot be opened: Permission denied; check its permissions"):
        open_source(tmp_path / "m.jsonl")
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(ManifestError, match="'closed': cannot be listed: Permission denied"):
        open_source(tmp_path)


# ── Folders ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_folder_is_listed_in_natural_order(tmp_path: Path) -> None:
    """A folder is listed in natural order, with references; hidden files and other file types are left out."""
    for name in ["take 10.wav", "take 9.FLAC", "x/2.mp3", "x/10.ogg", "x.wav", "data:1.wav", ".hidden.wav"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in [".git/a.wav", "notes/read.me", "no_extension", "list.m3u8", "raw.pcm", "folder.wav/in.wav"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "take 9.txt").write_bytes(b"\xef\xbb\xbf  caf\xc3\xa9 \r\n")
    (tmp_path / "x" / "10.txt").mkdir()
    found = read(tmp_path)
    assert [item.id for item in found] == [
        *["data:1.wav", "folder.wav/in.wav", "take 9.FLAC", "take 10.wav", "x/2.mp3", "x/10.ogg", "x.wav"]
    ]
    assert [item.text for item in found if item.text is not None] == ["café"]
    assert {item.audio for item in found} == {str(tmp_path / item.id) for item in found}
    assert surveyed(tmp_path).items == 7


def test_rows_of_a_folder_carry_the_state_of_each_recording(tmp_path: Path) -> None:
    """A row of a folder has the size and the modification time of its recording, so that a changed recording has
    another row; the printed manifest of the folder has neither, and a dangling link has none.
    """
    (tmp_path / "a.wav").write_bytes(b"12345")
    os.utime(tmp_path / "a.wav", ns=(0, 1_700_000_000_000_417_999))
    (tmp_path / "gone.wav").symlink_to("nowhere")
    with open_source(tmp_path) as source:
        assert source.grows
        assert [json.loads(text) for _, text in source.lines()] == [
            {"audio_filepath": "a.wav", "size": 5, "modified": "2023-11-14T22:13:20.000417Z"},
            {"audio_filepath": "gone.wav"},
        ]
        with replace(source.inheritable(), fd=os.dup(source.inheritable().fd)).open() as inherited:
            assert inherited.grows
        before = survey(source).fingerprint
    os.utime(tmp_path / "a.wav", ns=(0, 1_700_000_000_000_418_000))
    assert surveyed(tmp_path).fingerprint != before
    printed = list(folder_manifest(tmp_path))
    assert printed[0] == '{"audio_filepath": "a.wav"}'
    with open_source(write(tmp_path, *printed)) as source:
        assert not source.grows


@pytest.mark.parametrize(
    ("globs", "found"),
    [
        (["*.flac"], ["a.flac", "x/b.flac"]),
        (["x/*"], ["x/b.flac", "x/c.wav", "x/y/c.wav"]),
        (["c.*"], ["x/c.wav", "x/y/c.wav"]),
        (["x/c.wav"], ["x/c.wav"]),
        (["[ab].flac", "y/*"], ["a.flac", "x/b.flac"]),
        (["*/y/?.wav", "a.flac"], ["a.flac", "x/y/c.wav"]),
    ],
)
def test_include_selects_by_path_or_name(tmp_path: Path, globs: list[str], found: list[str]) -> None:
    """A pattern matches the path below the folder or its last part; a match with one of several patterns is enough."""
    for name in ["a.flac", "x/b.flac", "x/c.wav", "x/y/c.wav"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "x" / "c.txt").write_bytes(b"caf\xe9" if "x/c.wav" not in found else b"ja")
    with open_source(tmp_path, include=globs) as source:
        assert [item.id for item in items(source)] == found


def test_include_without_effect_is_refused(tmp_path: Path) -> None:
    """Patterns that match no recording are refused, and so are patterns for a source that is no folder."""
    (tmp_path / "a.wav").touch()
    with pytest.raises(
        ManifestError, match=r"holds no recordings that match --include \*\.flac x; its files: 1 with \.wav"
    ):
        open_source(tmp_path, include=["*.flac", "x"])
    manifest = write(tmp_path, *LINES)
    for spec in [str(manifest), "-", "gs://calls/m.jsonl"]:
        with pytest.raises(ConfigError, match=r"--include '\*\.flac' selects recordings of a folder, and .* is"):
            open_source(spec, io.BytesIO(), include=["*.flac"])


def test_folder_takes_durations_from_the_probe(tmp_path: Path) -> None:
    """A probe receives absolute paths; an unknown or impossible duration is left out."""
    seconds = {"a.wav": 1.5, "b.wav": None, "c.wav": float("nan"), "d.wav": 0.0}
    for name in seconds:
        (tmp_path / name).touch()
    lines = folder_manifest(tmp_path, lambda path: seconds[os.path.relpath(path, tmp_path)])
    assert [json.loads(line).get("duration") for line in lines] == [1.5, None, None, None]


def test_folder_follows_links_once(tmp_path: Path) -> None:
    """Links are followed, loops end, no folder is listed twice, and a dangling link is kept so that
    its item can fail.
    """
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.wav").touch()
    for link, target in {
        "file.wav": "real/a.wav",
        "gone.wav": "nowhere",
        "self.wav": "self.wav",
        "real/up": "..",
        "twin": "real",
    }.items():
        (tmp_path / link).symlink_to(target)
    assert [item.id for item in read(tmp_path)] == ["file.wav", "gone.wav", "real/a.wav", "self.wav"]


@pytest.mark.slow
def test_folder_deeper_than_recursion_limit_is_listed(tmp_path: Path) -> None:
    """A path with more parts than Python's recursion limit is listed."""
    deep = tmp_path
    for _ in range(1500):
        deep = deep / "d"
        deep.mkdir()
    (deep / "a.wav").touch()
    rows = [json.loads(line) for line in folder_manifest(tmp_path)]
    (deep / "a.wav").unlink()
    # deleted here, because pytest's own cleanup exceeds the recursion limit
    for folder in [deep, *deep.parents][:1500]:
        folder.rmdir()
    assert rows == [{"audio_filepath": "d/" * 1500 + "a.wav"}]


def test_unusable_folder_entries_are_named(tmp_path: Path) -> None:
    """A reference that is too long is refused by its name."""
    for name in ["a.wav", "b.wav"]:
        (tmp_path / name).touch()
    (tmp_path / "a.txt").write_bytes(b"x" * (MAX_REFERENCE_BYTES + 1))
    with pytest.raises(ManifestError) as caught:
        open_source(tmp_path)
    assert caught.value.bad_lines[0].reason.startswith("'a.txt': the reference cannot be read: it is longer than ")


@given(st.lists(st.integers(0, 10**12), unique=True))
def test_numbers_in_names_sort_by_value(numbers: list[int]) -> None:
    """Numbers in names sort by value, with or without leading zeros."""
    names = [f"Take {n:0{n % 5}} b" for n in numbers]
    assert sorted(names, key=natural_key) == [name for _, name in sorted(zip(numbers, names, strict=True))]
