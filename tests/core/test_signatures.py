"""Tests for the signatures of addresses: an object whose address is signed anew is the same one."""

from __future__ import annotations

import json

import pytest

from voxbatch.manifest import item_key
from voxbatch.storage.signatures import is_signed, unsigned, unsigned_texts

V4 = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=A%2F1&X-Amz-Date=1&X-Amz-Expires=9&X-Amz-SignedHeaders=host"
SIGNED = {
    "s3": f"{V4}&X-Amz-Security-Token=x&X-Amz-Signature=",
    "s3, version 2": "AWSAccessKeyId=A&Expires=9&Signature=",
    "gcs": f"{V4.replace('Amz', 'Goog')}&X-Goog-Signature=",
    "gcs, version 2": "GoogleAccessId=a@b&Expires=9&Signature=",
    "azure": "sv=2022-11-02&st=1&se=2&sr=b&sp=r&spr=https&sig=",
    "azure, of a user": "sp=r&skoid=a&sktid=b&skt=1&ske=2&sks=b&skv=2022-11-02&sv=2022-11-02&sr=b&sig=",
    "cloudfront": "Expires=9&Key-Pair-Id=K&Signature=",
    "oss": "x-oss-signature-version=OSS4&x-oss-credential=a&x-oss-date=1&x-oss-expires=9&x-oss-signature=",
    "oss, version 1": "OSSAccessKeyId=A&Expires=9&Signature=",
    "cos": "q-sign-algorithm=sha1&q-ak=A&q-sign-time=1%3B2&q-key-time=1&q-header-list=&q-url-param-list=&q-signature=",
    "swift": "temp_url_expires=9&temp_url_sig=",
}
PLACE = "https://calls.example/day/a%20b.wav"


@pytest.mark.parametrize("name", SIGNED)
@pytest.mark.parametrize("own", ["", "id=17", "versionId=3&part=%26"])
def test_signature_is_left_out(name: str, own: str) -> None:
    """The parameters of a signature are left out wherever they stand, and all others stay as they are written."""
    kept = f"{PLACE}?{own}" if own else PLACE
    for query in (f"{own}&{SIGNED[name]}1", f"{SIGNED[name]}2&{own}"):
        assert unsigned(f"{PLACE}?{query.strip('&')}") == kept
        assert is_signed(f"{PLACE}?{query.strip('&')}#t=1")
    assert unsigned(f"{PLACE}?{SIGNED[name].lower()}3") == PLACE


@pytest.mark.parametrize(
    "address",
    [
        PLACE,
        f"{PLACE}?id=17",
        f"{PLACE}?Expires=9&Signature=1",  # of no known scheme
        f"{PLACE}?sv=svenska&sr=2",
        f"{PLACE}?X-Amz-Date=1",
        "s3://b/a?X-Amz-Signature=1",
        "calls/a.wav?X-Amz-Signature=1",
        "",
    ],
)
def test_other_addresses_stay(address: str) -> None:
    """An address without a complete signature of a known scheme stays as it is."""
    assert unsigned(address) == address
    assert not is_signed(address)


@pytest.mark.parametrize("name", SIGNED)
def test_texts_lose_the_signatures_of_their_addresses(name: str) -> None:
    """A signature is left out of an address in a sentence, too, and nothing else of a row is changed."""
    address = f"{PLACE}?id=17&{SIGNED[name]}1"
    row = {"a": address, "b": [f"(see {address}, or {address}).", 1.5, None], "c": {"d": f"a?b {PLACE}?x=1 {address}"}}
    assert unsigned_texts(row) == {
        "a": f"{PLACE}?id=17",
        "b": [f"(see {PLACE}?id=17, or {PLACE}?id=17).", 1.5, None],
        "c": {"d": f"a?b {PLACE}?x=1 {PLACE}?id=17"},
    }


def key(address: object, **row: object) -> bytes:
    return item_key("a", json.dumps({"audio_filepath": address, **row}).encode())


def test_identity_of_an_item() -> None:
    """An item keeps its key when its address is signed anew, in any string of its row; another object has another."""
    old, new = (f"{PLACE}?{SIGNED['azure']}{number}" for number in (1, 2))
    assert key(old) == key(new) != key(f"{PLACE}?id=17&{SIGNED['azure']}1")
    assert key([old, PLACE], more={"n": 1.5, "x": [new]}) == key([new, PLACE], more={"n": 1.5, "x": [old]})
    assert key(old, text="a") != key(new, text="b")
    plain = b'{"audio_filepath": "a.wav", "text":  "see http://a/?b"}'
    assert item_key("a", plain) != item_key("a", plain.replace(b"  ", b" "))  # the line as it is written
