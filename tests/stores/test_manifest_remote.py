"""Tests for manifests in buckets and on web servers, and for prefixes as sources: they give the
lines of local files.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import servers
from clouds import Call, Endpoint, google_reply
from conftest import Voxbatch, environment
from servers import Reply
from web_server import served

from voxbatch.errors import ManifestError, StorageError
from voxbatch.manifest import Source, items, survey
from voxbatch.sources.folder import folder_manifest
from voxbatch.sources.opening import open_source
from voxbatch.sources.prefix import prefix_manifest
from voxbatch.sources.references import MAX_REFERENCE_BYTES
from voxbatch.storage import StoreOptions, Stores, retrying_client

# Google's client leaves sockets to the garbage collector.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

LINES = ['{"audio_filepath":"a.wav"}', '{"audio_filepath":"x/b c.wav","text":"eins"}']
PLAIN = "".join(line + "\n" for line in LINES).encode()


# ── places ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Bucket:
    """A bucket of one test."""

    def __init__(self, server: servers.Server):
        self._server, self._name = server, f"calls-{uuid.uuid4().hex[:8]}"
        self.uri = f"{server.scheme}://{self._name}"
        self.variables = server.settings(f"http://127.0.0.1:{server.port}")
        """Environment variables with which a process finds the bucket."""
        server.make(self._name)

    def put(self, name: str, data: bytes = b"", encoding: str | None = None) -> None:
        self._server.put(self._name, name, data, **({"encoding": encoding} if encoding else {}))


@pytest.fixture(params=servers.mainly("gs", "s3"))
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Return an empty bucket of each kind, which this process and its children find."""
    server: servers.Server = request.getfixturevalue({"gs": "google", "s3": "amazon"}[request.param])
    found = Bucket(server)
    for name, value in found.variables.items():
        monkeypatch.setenv(name, value)
    return found


def told(source: Source) -> tuple[str, list[tuple[str, str | None]]]:
    """Return the fingerprint and the (id, reference) of each item."""
    with source:
        return survey(source).fingerprint, [(item.id, item.text) for item in items(source)]


def rows(uri: str, **options: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in prefix_manifest(uri, **options)]


# ── manifests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["m.jsonl.gz", "packed.jsonl", "any name #1?.x"])
def test_manifest_in_a_bucket_reads_like_a_local_one(bucket: Bucket, tmp_path: Path, name: str) -> None:
    """A manifest in a bucket reads like the same local file, compressed or not and under any name; its recordings lie
    beside it.
    """
    (tmp_path / "m.jsonl").write_bytes(PLAIN)
    is_packed = name.endswith(".gz") or name == "packed.jsonl"
    encoding = "gzip" if name == "packed.jsonl" else None
    bucket.put(f"day 1/{name}", gzip.compress(PLAIN) if is_packed else PLAIN, encoding)
    source = open_source(f"{bucket.uri}/day 1/{name}")
    assert (source.name, source.base) == (f"{bucket.uri}/day 1/{name}", f"{bucket.uri}/day 1/")
    assert [item.audio for item in items(source)] == [f"{bucket.uri}/day 1/a.wav", f"{bucket.uri}/day 1/x/b c.wav"]
    assert told(source) == told(open_source(tmp_path / "m.jsonl"))


def test_inherited_source_reads_the_same_lines(bucket: Bucket) -> None:
    """A Source that another process inherits has the address of the folder and the fetched bytes."""
    bucket.put("day/m.jsonl", PLAIN)
    with open_source(f"{bucket.uri}/day/m.jsonl") as source:
        bucket.put("day/m.jsonl", b"nonsense")
        inheritable = source.inheritable()
        again = replace(inheritable, fd=os.dup(inheritable.fd)).open()
        assert again.base == f"{bucket.uri}/day/"
        with again:
            assert [item.audio for item in items(again)] == [item.audio for item in items(source)]


def test_large_remote_manifest_is_read_from_disk(bucket: Bucket) -> None:
    """A manifest of many blocks is read completely from disk."""
    count = 60_000
    bucket.put("m.jsonl", b"".join(b'{"audio_filepath":"%d.wav","text":"%s"}\n' % (n, b"w" * 40) for n in range(count)))
    with open_source(f"{bucket.uri}/m.jsonl") as source:
        assert survey(source).items == count


@pytest.mark.parametrize("bucket", ["gs", "s3"], indirect=True)
def test_missing_manifest_and_unlistable_bucket_differ(bucket: Bucket) -> None:
    """A missing manifest is an error of the user; a bucket that cannot be listed is an error of the store."""
    bucket.put("day/a.wav")
    for name in ("none.jsonl", "day"):
        with pytest.raises(ManifestError) as caught:
            open_source(f"{bucket.uri}/{name}")
        what = "give a .jsonl or .jsonl.gz manifest; the address of a folder in a bucket ends in /"
        assert str(caught.value) == f"{bucket.uri}/{name}: does not exist; {what}"
    with pytest.raises(StorageError, match="no-such-bucket"):
        open_source(f"{bucket.uri[:2]}://no-such-bucket/")


# ── prefixes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

TREE = {
    "a.wav": b"", "b.FLAC": b"", "b.txt": b"\xef\xbb\xbf caf\xc3\xa9 \r\n", "c.mp3": b"", "c.TXT": b"zwei",
    "data:1.wav": b"", "deep/er/d.ogg": b"", "deep/er/d.txt": b"", "notes.txt": b"no recording's",
    ".hidden.wav": b"", ".git/e.wav": b"", "deep/.x/f.wav": b"", "list.m3u8": b"", "raw.pcm": b"", "none": b"",
    "e.wav": b"", "e.LAB": b"five\n", "f.mp4": b"", "f.mp4.txt": b"six", "g.mp4": b"", "g.srt": b"1\n",
}  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "day/", "in/day 1/"])
@pytest.mark.parametrize("bucket", ["gs", "s3"], indirect=True)
def test_prefix_gives_the_manifest_of_a_folder(bucket: Bucket, tmp_path: Path, prefix: str) -> None:
    """The same objects below a prefix, or in a whole bucket, and as files in a folder give the same manifest."""
    for name, data in TREE.items():
        bucket.put(prefix + name, data)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    if prefix:
        bucket.put(prefix)  # the placeholder with which consoles mark a folder
        bucket.put("day-2/elsewhere.wav")
    of_prefix, of_folder = Counter[str](), Counter[str]()
    listed = sorted(prefix_manifest(f"{bucket.uri}/{prefix}", others=of_prefix))
    assert listed == sorted(folder_manifest(tmp_path, others=of_folder))
    assert of_prefix == of_folder == {".pcm": 1}
    with open_source(f"{bucket.uri}/{prefix}") as source:
        assert source.note.startswith("left out 1 file of other kinds (1 .pcm); ")
        taken = "references: 5 beside recordings, such as b.txt; 1 .srt beside recordings not taken as references; "
        assert f"; {taken}to score against them: voxbatch score OUT --ref FOLDER" in source.note
        assert source.base == f"{bucket.uri}/{prefix}"
        assert {item.audio for item in items(source)} == {f"{bucket.uri}/{prefix}{item.id}" for item in items(source)}
        assert survey(source).with_text == 5
        assert {item.id: item.text for item in items(source)}["b.FLAC"] == "café"
    with open_source(f"{bucket.uri}/{prefix}b.FLAC") as source:
        assert source.note == "references: 1 beside recordings, such as b.txt"


@pytest.mark.parametrize("bucket", ["gs", "s3"], indirect=True)
def test_rows_of_a_prefix_carry_the_state_of_each_object(bucket: Bucket) -> None:
    """A row of a prefix has the size and the generation of its object, so that a replaced object has another row; the
    printed manifest of the prefix has neither.
    """
    found = []
    for data in (b"123", b"456"):
        bucket.put("day/a.wav", data)
        with open_source(f"{bucket.uri}/day/") as source:
            assert source.grows
            found += [json.loads(text) for _, text in source.lines()]
    assert [row.pop("size") for row in found] == [3, 3]
    assert found[0].pop("generation") != found[1].pop("generation")
    assert found == [{"audio_filepath": "a.wav"}] * 2 == rows(f"{bucket.uri}/day/") * 2


def test_typescript_in_a_prefix_is_no_recording(bucket: Bucket) -> None:
    """Below a prefix, a .ts object is a recording if its size is a number of a transport stream's packets."""
    for name, size in (("app.ts", 1000), ("video.ts", 188 * 7), ("camera.mts", 192 * 7), ("empty.ts", 0)):
        bucket.put(name, bytes(size))
    assert [row["audio_filepath"] for row in rows(f"{bucket.uri}/")] == ["camera.mts", "empty.ts", "video.ts"]


def test_recordings_of_a_whole_bucket_are_in_key_order(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a bucket without a slash is a whole bucket, because it cannot be a manifest. Its recordings are
    ordered by the bytes of their keys, over several pages of the listing.
    """
    monkeypatch.setattr(retrying_client, "LISTING_PAGE_SIZE", 7)
    names = sorted(f"take {n}.wav" for n in range(30))
    for name in names:
        bucket.put(name)
    with open_source(bucket.uri) as source:
        assert [item.audio for item in items(source)] == [f"{bucket.uri}/{name}" for name in names]


def test_key_with_an_empty_part_is_written_as_an_address(bucket: Bucket) -> None:
    """A key with an empty part is named by its address; each line leads back to its key, with the reference of that
    key.
    """
    names = ["/a.wav", "x//b.wav", "x/gs://c/d.wav", "e?#%20.wav", "ü \\.wav"]
    for name in names:
        bucket.put(f"day/{name}")
        bucket.put(f"day/{name[:-4]}.txt", name.encode())
    found = rows(f"{bucket.uri}/day/")
    assert {row["audio_filepath"] for row in found} == {
        f"{bucket.uri}/day//a.wav",
        f"{bucket.uri}/day/x//b.wav",
        f"{bucket.uri}/day/x/gs://c/d.wav",
        "e?#%20.wav",
        "ü \\.wav",
    }
    with open_source(f"{bucket.uri}/day/") as source:
        assert sorted((item.audio, item.text or "") for item in items(source)) == sorted(
            (f"{bucket.uri}/day/{name}", name) for name in names
        )


def test_unusable_references_are_all_named(bucket: Bucket) -> None:
    """References that are too long are all named, none is read whole, and the run is refused."""
    for name, data in [("a", b"x" * (MAX_REFERENCE_BYTES + 1)), ("b", b"ja"), ("c", b"x" * (MAX_REFERENCE_BYTES + 1))]:
        bucket.put(f"{name}.wav")
        bucket.put(f"{name}.txt", data)
    with pytest.raises(ManifestError) as caught:
        open_source(f"{bucket.uri}/")
    first, second = str(caught.value).splitlines()
    assert first.startswith(f"{bucket.uri}/: 'a.txt': the reference cannot be read: it is longer than")
    assert second.startswith(f"{bucket.uri}/: 'c.txt': the reference cannot be read: it is longer than")


def test_include_selects_recordings_of_a_prefix(bucket: Bucket) -> None:
    """--include works as in a folder; only references of included recordings are read."""
    for name in ("a.flac", "x/b.flac", "x/c.wav"):
        bucket.put(f"day/{name}")
    bucket.put("day/x/c.txt", b"\xff")
    assert [row["audio_filepath"] for row in rows(f"{bucket.uri}/day/", include=["*.flac"])] == ["a.flac", "x/b.flac"]
    with pytest.raises(ManifestError, match=r"holds no recordings that match --include \*\.ogg; its files: "):
        open_source(f"{bucket.uri}/day/", include=["*.ogg"])


def test_empty_prefix_is_refused(bucket: Bucket) -> None:
    """An empty prefix is refused like an empty folder; a prefix without its slash gets a hint."""
    bucket.put("day/notes.txt", b"x")
    for name, content in (("day/", "its files: 1 with .txt"), ("none/", "it is empty")):
        with pytest.raises(ManifestError, match=rf"^{bucket.uri}/{name}: holds no recordings; {content}"):
            open_source(f"{bucket.uri}/{name}")
    with pytest.raises(ManifestError, match=rf"^{bucket.uri}/day: does not end in /, .*; write {bucket.uri}/day/$"):
        rows(f"{bucket.uri}/day")


COUNT = 100_000
"""Recordings of the fake Cloud Storage that can only list."""


def listing(call: Call, raw: bytes) -> Reply:
    """Return a page of its listing."""
    asked = parse_qs(urlsplit(call.path).query)
    prefix = asked["prefix"][0]
    start = int(asked.get("startOffset", [f"{prefix}0000000"])[0].removeprefix(prefix)[:7])
    numbers = range(start, min(start + 1000, COUNT if prefix == "many/" else 1000))
    found = [{"name": f"{prefix}{n:07}, a rather long name of a call.wav", "size": "1"} for n in numbers]
    return google_reply({"kind": "storage#objects", "items": found})


MEASURE = """
import resource, sys
from voxbatch.sources.opening import open_source
from voxbatch.storage import StoreOptions, Stores

with open_source(sys.argv[1], stores=Stores(StoreOptions(anonymous=True))) as source:
    count = sum(1 for _ in source.lines())
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_recordings() -> None:
    """99,000 additional recordings, whose names take over 8 MB, need less than 3 MB of memory."""
    endpoint = Endpoint(listing)
    with served(endpoint):
        env = {**environment(), "STORAGE_EMULATOR_HOST": endpoint.url}
        found = []
        for prefix in ("few", "many"):
            command = [sys.executable, "-c", MEASURE, f"gs://calls/{prefix}/"]
            done = subprocess.run(command, env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            found.append([int(number) for number in done.stdout.split()])
    (few, few_kb), (many, many_kb) = found
    assert (few, many) == (1000, COUNT)
    assert many_kb - few_kb < 3000


# ── web servers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_manifest_on_a_web_server_is_read() -> None:
    """A manifest with a signed address is read; its name, its folder and the error of a missing one show no signature,
    and its recordings lie on the server.
    """
    stores = Stores(StoreOptions(allow_private_addresses=True))
    endpoint = Endpoint(lambda call, _: Reply(200, (), PLAIN) if call.path == "/x/m.jsonl?sig=secret" else Reply(404))
    web = endpoint.url
    with served(endpoint):
        with open_source(f"{web}/x/m.jsonl?sig=secret", stores=stores) as source:
            assert (source.name, source.base) == (f"{web}/x/m.jsonl?…", f"{web}/x/")
            assert [item.audio for item in items(source)] == [f"{web}/x/a.wav", f"{web}/x/x/b%20c.wav"]
        with pytest.raises(ManifestError, match=r"/x/none\.jsonl\?…: does not exist; give a \.jsonl") as caught:
            open_source(f"{web}/x/none.jsonl?sig=secret", stores=stores)
    assert "secret" not in str(caught.value)


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_commands_accept_addresses_and_storage_options(bucket: Bucket, voxbatch: Voxbatch) -> None:
    """`validate` and `manifest` accept addresses and storage options; a refused address gives exit code 2, a failing
    store 1.
    """
    for name in ("a.wav", "b.flac"):
        bucket.put(f"day/{name}")
    bucket.put("day/a.txt", b"ja")
    bucket.put("day/m.jsonl", PLAIN)
    env = dict(bucket.variables)
    if "AWS_ENDPOINT_URL" in env:
        env |= {"VOXBATCH_S3_ENDPOINT_URL": env["AWS_ENDPOINT_URL"], "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}

    done = voxbatch("manifest", f"{bucket.uri}/day/", env=env)
    assert (done.returncode, done.stderr) == (0, "references: 1 beside recordings, such as a.txt\n")
    assert done.stdout == '{"audio_filepath": "a.wav", "text": "ja"}\n{"audio_filepath": "b.flac"}\n'
    done = voxbatch("validate", f"{bucket.uri}/day/", "--include", "a.*", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{bucket.uri}/day/: 1 item, no problem found\n")
    done = voxbatch("validate", f"{bucket.uri}/day/m.jsonl", "--only-under", f"{bucket.uri}/other", env=env)
    assert done.returncode == 2
    assert f"'a.wav' is outside of {bucket.uri}/other/, and this manifest may name only recordings there" in done.stderr
    assert voxbatch("validate", f"{bucket.uri}-none/", env=env).returncode == 1
