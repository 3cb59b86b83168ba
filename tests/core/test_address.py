"""Tests for addresses: they are parsed, joined and shown without I/O, with one result for every spelling."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from voxbatch.storage.address import (
    folder_of,
    is_endpoint,
    is_folder,
    is_remote,
    join,
    name_of,
    normalized,
    parse_bucket_address,
    place_of,
    redacted,
    scheme_of,
)

BUCKETS = st.from_regex(r"[a-z0-9][a-z0-9._-]{1,10}[a-z0-9]", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
PARTS = TEXT.filter(lambda part: "/" not in part and part not in (".", ".."))
KEYS = st.lists(PARTS | st.just(""), min_size=1, max_size=5).map("/".join)
FOLDERS = st.builds(
    lambda scheme, bucket, key: f"{scheme}://{bucket}/{key and key + '/'}",
    st.sampled_from(["gs", "s3"]),
    BUCKETS,
    st.lists(PARTS | st.just(""), max_size=4).map("/".join),
)
WEB = st.builds(
    lambda scheme, host, port, path, query: f"{scheme}://{host}{port}/{path}{query}",
    st.sampled_from(["http", "https", "HTTPS"]),
    st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9.-]{0,9}[a-zA-Z0-9])?", fullmatch=True),
    st.sampled_from(["", ":80", ":443", ":8080"]),
    st.lists(PARTS, max_size=4).map("/".join),
    st.just("") | TEXT.map("?{}".format),
)


# ── normal form ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("uri", "spelling"),
    [
        ("GS://calls/2026/a.wav", "gs://calls/2026/a.wav"),
        ("S3://Old_Bucket/a b#c?d.wav", "s3://Old_Bucket/a b#c?d.wav"),
        ("gs://calls", "gs://calls/"),
        ("gs://calls//x//a.wav", "gs://calls//x//a.wav"),
        ("HTTPS://Host:443/A b.wav#t=5", "https://host/A%20b.wav"),
        ("http://host:443/a.wav", "http://host:443/a.wav"),
        ("http://host:80", "http://host/"),
        ("https://host?a=b", "https://host/?a=b"),
        ("https://host/caf\u00e9/100%25.wav?sig=a%2Fb+c&x=[1]", "https://host/caf%C3%A9/100%25.wav?sig=a%2Fb+c&x=[1]"),
        ("https://[::1]:8080/a.wav", "https://[::1]:8080/a.wav"),
    ],
)
def test_one_spelling(uri: str, spelling: str) -> None:
    """Schemes and hosts become lower case, default ports and fragments are dropped; a key is never changed."""
    assert normalized(uri) == spelling


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("gs://a/x.wav", "'a' is not a valid bucket name"),
        ("gs:///x.wav", "'' is not a valid bucket name"),
        ("s3://buck et/x.wav", "'buck et' is not a valid bucket name"),
        ("gs://calls/../x.wav", 'is "." or ".."'),
        ("https://host/x/%2E%2e/a.wav", 'is "." or ".."'),
        ("https://host/x/..%2Fa.wav", 'is "." or ".."'),
        ("https://host/x/..\\a.wav", 'is "." or ".."'),
        ("http:///a.wav", "the host or port is not valid"),
        ("http://host\\@other/a.wav", "a user name or password"),
        ("http://host\n/a.wav", "the host or port is not valid"),
        ("http://h\u00f6st/a.wav", "in ASCII"),
        ("http://[::1/a.wav", "the host or port is not valid"),
        ("https://user:secret@host/a.wav", "a user name or password"),
        ("https://@host/a.wav", "a user name or password"),
        ("/a.wav", "the address of a bucket is"),
    ],
)
def test_what_nothing_can_be_called(uri: str, says: str) -> None:
    """An invalid address is refused with a reason that contains no password."""
    with pytest.raises(ValueError, match=says) as caught:
        normalized(uri)
    assert "secret" not in str(caught.value)


@pytest.mark.slow
@given(WEB | st.builds("{}{}".format, FOLDERS, KEYS))
@example("http://0:80?")
def test_a_spelling_is_its_own(uri: str) -> None:
    """Normalizing is idempotent, and keeps the place, the name and the kind of an address. A web address becomes
    printable ASCII without blanks, as a request line requires.
    """
    once = normalized(uri)
    assert normalized(once) == once
    assert once.startswith(place_of(uri))
    assert (place_of(once), scheme_of(once)) == (place_of(uri), scheme_of(uri))
    if scheme_of(uri) in ("gs", "s3"):
        assert once == uri
        assert once.endswith(name_of(uri))
    else:
        assert once.isascii()
        assert once.isprintable()
        assert " " not in once


@given(st.sampled_from(["gs://", "s3://", "http://", "HTTPS://"]), st.text(max_size=30))
def test_any_text_is_an_address_or_a_reason(scheme: str, text: str) -> None:
    """No text with the scheme of an address makes these functions crash."""
    uri = scheme + text
    assert is_remote(uri)
    name_of(uri), redacted(uri), place_of(uri), folder_of(uri), is_folder(uri), is_endpoint(uri)
    with contextlib.suppress(ValueError):
        assert normalized(uri)


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("uri", "folder", "name", "place"),
    [
        ("gs://calls/x/m.jsonl", "gs://calls/x/", "calls/x/m.jsonl", "gs://calls/"),
        ("S3://calls/m.jsonl", "s3://calls/", "calls/m.jsonl", "s3://calls/"),
        ("gs://calls", "gs://calls/", "calls/", "gs://calls/"),
        ("gs://calls/a?b/c#d.wav", "gs://calls/a?b/", "calls/a?b/c#d.wav", "gs://calls/"),
        ("HTTPS://Host:443/x/m.jsonl?k=a/b#c/d", "https://host/x/", "host/x/m.jsonl", "https://host/"),
        ("https://host", "https://host/", "host/", "https://host/"),
        ("http://u:p@host:8080/m.jsonl", "http://host:8080/", "host:8080/m.jsonl", "http://host:8080/"),
    ],
)
def test_parts(uri: str, folder: str, name: str, place: str) -> None:
    """ "?" and "#" are part of a bucket's key, but end the path on a web server."""
    assert (folder_of(uri), name_of(uri), place_of(uri)) == (folder, name, place)


def test_a_local_path_has_no_place() -> None:
    """A local path has the empty place, so that all local recordings are in one place."""
    assert place_of("/data/a.wav") == place_of("a.wav") == ""


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("gs://calls", True),
        ("gs://calls/x/", True),
        ("gs://calls/x", False),
        ("https://host/x/", True),
        ("https://host/x?path=/", False),
        ("https://host/download/?id=3", False),
    ],
)
def test_folders_end_in_a_slash(uri: str, folder: bool) -> None:
    """A folder ends in a slash or is a whole bucket; an address with a query may be a file."""
    assert is_folder(uri) == folder


@given(FOLDERS, KEYS)
def test_a_bucket_address_is_its_parts(folder: str, key: str) -> None:
    """The scheme, bucket and key of an address, joined again, are the address."""
    found = parse_bucket_address(folder + key)
    assert str(found) == folder + key
    assert found.bucket in place_of(folder + key)


@pytest.mark.parametrize(
    ("uri", "is_one"),
    [
        ("https://s3.example.com", True),
        ("http://127.0.0.1:9000", True),
        ("http://user:pw@minio:9000/base/", True),
        ("s3.example.com", False),
        ("gs://bucket", False),
        ("https://host?x=1", False),
        ("https://host/#x", False),
    ],
)
def test_endpoint_is_a_web_server_without_a_query(uri: str, is_one: bool) -> None:
    """An endpoint is the address of a web server without a query."""
    assert is_endpoint(uri) == is_one


# ── joining ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("folder", "path", "joined"),
    [
        ("gs://calls/x/", "a.wav", "gs://calls/x/a.wav"),
        ("gs://calls/x/", "./y//a.wav", "gs://calls/x/y/a.wav"),
        ("gs://calls/x/", "../a.wav", "gs://calls/a.wav"),
        ("gs://calls/x//", "a.wav", "gs://calls/x//a.wav"),
        ("gs://calls/", "a#1?b%20.wav", "gs://calls/a#1?b%20.wav"),
        ("gs://calls/x/", "y/", "gs://calls/x/y/"),
        ("gs://calls/x/", "..", "gs://calls/"),
        ("https://host/x/", "../a b.wav", "https://host/a%20b.wav"),
        ("https://host/x%20y/", "a%20b#1?.wav", "https://host/x%20y/a%20b%231%3F.wav"),
    ],
)
def test_relative_path_is_resolved(folder: str, path: str, joined: str) -> None:
    """A relative path is resolved, and the key of the folder is not changed."""
    assert join(folder, path) == joined


@pytest.mark.parametrize(
    ("folder", "path"), [("gs://calls/", "../a.wav"), ("gs://calls/x/", "../../calls/a.wav"), ("https://h/", "x/../..")]
)
def test_path_never_leaves_its_place(folder: str, path: str) -> None:
    """A path must not leave the bucket or host, even if it leads back in."""
    with pytest.raises(ValueError, match="it leads out of "):
        join(folder, path)


@given(FOLDERS, st.lists(PARTS, min_size=1, max_size=4))
def test_folder_of_undoes_join(folder: str, parts: list[str]) -> None:
    """A path without dots is appended to the folder, and folder_of removes its last part."""
    joined = join(folder, "/".join(parts))
    assert joined == folder + "/".join(parts)
    assert folder_of(join(folder, parts[0])) == folder


@given(FOLDERS | st.just("https://host/x/y/"), st.lists(st.sampled_from(["a", "..", ".", "", "b.wav"]), max_size=7))
def test_join_stays_inside(folder: str, parts: list[str]) -> None:
    """A joined address lies in the bucket or on the host, and is in normal form."""
    try:
        joined = join(folder, "/".join(parts))
    except ValueError:
        return
    assert joined.startswith(place_of(folder))
    assert normalized(joined) == joined


# ── display ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("/a?b.wav", "/a?b.wav"),
        ("gs://calls/a?b.wav", "gs://calls/a?b.wav"),
        ("https://host/a.wav", "https://host/a.wav"),
        ("https://host/a.wav?X-Amz-Signature=secret", "https://host/a.wav?…"),
        ("https://host/a.wav#secret", "https://host/a.wav"),
        ("https://me:secret@host:1/a.wav", "https://host:1/a.wav"),
        ("https://me:se/secret@host/a.wav", "https://…"),
        ("https://me:secret@[bad/a.wav?secret", "https://…"),
    ],
)
def test_redacted_address_has_no_query_or_password(uri: str, text: str) -> None:
    """Neither a query nor a password is shown, even if the address is broken."""
    assert redacted(uri) == text


@given(WEB, st.from_regex("[a-z]{9}", fullmatch=True))
def test_redacted_address_has_no_secret(uri: str, secret: str) -> None:
    """No secret is shown from any part of an address that can carry one."""
    assume(secret not in uri)
    scheme, _, rest = uri.partition("://")
    bare = rest.partition("?")[0]
    for leaking in (f"{scheme}://{secret}@{rest}", f"{scheme}://me:{secret}@{rest}", f"{scheme}://{bare}?{secret}"):
        assert secret not in redacted(leaking)
        assert secret not in folder_of(leaking) + name_of(leaking) + place_of(leaking)
