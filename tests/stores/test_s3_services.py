"""Tests for services that speak S3 and refuse a part of it: conditional writes, or the checksums of uploads."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import servers
import soundfile
from conftest import Voxbatch

from voxbatch.errors import StorageError
from voxbatch.storage import Stores
from voxbatch.stores import s3

pytestmark = pytest.mark.slow

CONDITIONS, CHECKSUMS = (
    ("if-none-match", "if-match"),
    ("x-amz-checksum-", "x-amz-sdk-checksum-algorithm", "x-amz-trailer"),
)
REFUSALS = {
    "b2": (501, "NotImplemented", "A header you provided implies functionality that is not implemented"),
    "another": (400, "InvalidArgument", "Unsupported header '{}' received for this API call."),
}


@pytest.fixture(params=servers.mainly("amazon", "seaweed"))
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, servers.Proxy]]:
    """Yield the address of a new bucket, and the proxy that leads to it."""
    server: servers.AmazonServer = request.getfixturevalue(request.param)
    name = f"odd-{uuid.uuid4().hex[:8]}"
    server.make(name)
    with servers.led_through(server, monkeypatch) as proxy:
        yield f"s3://{name}", proxy


def refuse(proxy: servers.Proxy, headers: tuple[str, ...], refusal: str) -> list[str]:
    """Refuse uploads that have one of the headers. Return the list of those that were refused."""
    status, code, message = REFUSALS[refusal]
    refused: list[str] = []

    def spoil(asked: servers.Asked) -> servers.Fault:
        names = [name for name in asked.headers if name.startswith(headers)]
        if asked.method not in ("PUT", "POST") or not names:
            return ""
        refused.append(names[0])
        body = f"<Error><Code>{code}</Code><Message>{message.format(names[0])}</Message></Error>"
        return servers.Reply(status, (("Content-Type", "application/xml"),), body.encode())

    proxy.spoil = spoil
    return refused


@pytest.mark.parametrize("refusal", REFUSALS)
def test_no_conditional_writes(
    bucket: tuple[str, servers.Proxy], refusal: str, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """A run into a store without conditional writes is refused before anything is done, and the way that the message
    names works: recordings from the store, OUT in a local folder, and a copy of it in the store."""
    place, proxy = bucket
    soundfile.write(tmp_path / "a.wav", np.random.default_rng(0).normal(0, 0.05, 16_000), 16_000)
    store = Stores().out(f"{place}/in")
    store.create("a.wav", [(tmp_path / "a.wav").read_bytes()])
    refuse(proxy, CONDITIONS, refusal)
    run = ("run", f"{place}/in/", "--engine", "scripted", "--no-report", "-o")
    done = voxbatch(*run, f"{place}/out")
    assert done.returncode == 1
    assert "it seems to have no conditional writes, without which processes replace each other's results" in done.stderr
    assert done.stderr.endswith("no item was started, and all committed items are safe\n")
    assert store.names("") == ["a.wav"]
    assert Stores().out(f"{place}/out").names("") == []
    done = voxbatch(*run, "out")
    assert done.returncode == 0, done.stderr
    client = s3.AmazonBucket(place[5:], Stores().options)._client
    for path in (tmp_path / "out").rglob("*.json*"):
        client.upload_file(str(path), place[5:], f"copy/{path.relative_to(tmp_path / 'out')}")
    copy = Stores().out(f"{place}/copy").read("transcripts.jsonl") or b""
    assert [json.loads(line)["id"] for line in copy.splitlines()] == ["a.wav"]


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("in_parts", [False, True])
def test_no_checksums(
    bucket: tuple[str, servers.Proxy], refusal: str, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that refuses checksum headers gets uploads without them, each signed with the SHA-256 of its bytes; the
    conditions stay."""
    if in_parts:
        monkeypatch.setattr(s3, "SINGLE_BYTES", 1 << 20)
        monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    place, proxy = bucket
    refused = refuse(proxy, CHECKSUMS, refusal)
    store = Stores().out(f"{place}/{refusal}-{in_parts}")
    assert store.prepare() is None
    data = np.random.default_rng(0).bytes(6 << 20)
    assert store.create("a", [data])
    assert not store.create("a", [b"other"])
    assert store.read("a") == data
    store.write("a", [b"new"])
    assert store.read("a") == b"new"
    assert len(refused) == 1
    uploads = [asked for asked in proxy.log if asked.method == "PUT" and asked.body and asked.number > 1]
    assert all(len(asked.headers["x-amz-content-sha256"]) == 64 for asked in uploads)


def test_another_refusal_is_no_condition(bucket: tuple[str, servers.Proxy]) -> None:
    """A store that refuses an upload for another reason is not said to lack conditional writes."""
    place, proxy = bucket
    body = b"<Error><Code>InvalidRequest</Code><Message>Bucket is frozen</Message></Error>"
    proxy.spoil = lambda asked: servers.Reply(400, (("Content-Type", "application/xml"),), body) if asked.body else ""
    with pytest.raises(StorageError, match=r"status 400 .*Bucket is frozen") as caught:
        Stores().out(f"{place}/out").prepare()
    assert "conditional" not in str(caught.value)
