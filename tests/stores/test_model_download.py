"""Tests for models in buckets: a model arrives complete, once and in the listed revision, whatever is killed or
interrupted.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import servers
from conftest import environment
from hypothesis import given
from hypothesis import strategies as st
from servers import AmazonServer, Asked, Fault, Proxy, Reply, Server, led_through
from waits import until

from voxbatch.errors import ConfigError, EngineError, StorageError
from voxbatch.storage import Stores, model_download, partial_file
from voxbatch.storage.address import parse_bucket_address
from voxbatch.storage.model_download import MARKER, DownloadedModel, download_model
from voxbatch.storage.objects import Stat

slow = pytest.mark.slow
"""The test starts servers."""

# Google's client leaves the socket of an interrupted reply to the garbage collector, which each test here runs.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]


class Model:
    """A model of four files in its own bucket behind a proxy."""

    FILES: ClassVar = {
        "config.json": b"{}",
        "weights.bin": bytes(range(256)) * 400,
        "tokens/en.txt": b"",
        "tokens/de.txt": b"ein",
    }

    def __init__(self, server: Server, proxy: Proxy, cache: Path):
        self.server, self.proxy, self.cache = server, proxy, cache
        self.bucket = f"models-{uuid.uuid4().hex[:8]}"
        self.uri = f"{server.scheme}://{self.bucket}/asr/tiny"
        self.lines: list[str] = []
        server.make(self.bucket)
        for name, data in self.FILES.items():
            self.put(f"asr/tiny/{name}", data)

    def put(self, name: str, data: bytes, **settings: str) -> None:
        self.server.put(self.bucket, name, data, **settings)

    def fetch(self, uri: str | None = None) -> DownloadedModel:
        return download_model(uri or self.uri, self.cache, self.lines.append)

    def fetched(self) -> Counter[str]:
        """Return the number of requests for each object since the last call."""
        counted = Counter(asked.name for asked in self.proxy.log if asked.verb == "get")
        self.proxy.forget()
        return counted

    def script(self, head: str = "") -> subprocess.Popen[str]:
        """Start the same fetch in another process, which prints its log lines and finally the folder."""
        code = f"""
import sys
{head}
from pathlib import Path
from voxbatch.storage.model_download import download_model
print(download_model(sys.argv[1], Path(sys.argv[2]), lambda line: print(line, flush=True)).path)
"""
        command = [sys.executable, "-c", code, self.uri, str(self.cache)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment(), stdout=pipe, stderr=pipe, text=True)


def files(folder: Path) -> dict[str, bytes]:
    """Return the files in the folder except for the marker."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if name != MARKER}


@pytest.fixture(params=servers.mainly("google", "amazon"))
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    server: Server = request.getfixturevalue(request.param)
    with led_through(server, monkeypatch) as proxy:
        yield Model(server, proxy, tmp_path / "cache")


# ── a successful download ─────────────────────────────────────────────────────────────────────────────────────────────


@slow
def test_all_files_arrive_once(model: Model) -> None:
    """All files below the prefix arrive in their folders, including the empty one, without neighbours and placeholders.
    A second call fetches nothing.
    """
    for name in ("asr/tiny-v2/config.json", "asr/tiny", "asr/tiny/", "asr/tiny/tokens/", f"asr/tiny/{MARKER}"):
        model.put(name, b"" if name.endswith("/") else b"not this")
    first = model.fetch()
    assert files(first.path) == Model.FILES
    assert first.path.parent == model.cache
    assert first.path.name == f"{model.bucket}-asr-tiny-{first.revision}"
    asked = model.fetched()
    assert set(asked.values()) == {1}
    assert set(asked) - {"en.txt"} == {"config.json", "weights.bin", "de.txt"}  # the empty file needs no request
    assert model.fetch(model.uri + "/") == first
    assert not model.fetched()
    assert len(model.lines) == 1
    assert f"fetching 4 of 4 files, 0.1 MB, from {model.uri}/ to {first.path}" in model.lines[0]


@slow
def test_engine_takes_a_model_from_a_bucket(model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The vLLM engine accepts a model by its bucket address: it detects the family, pins the revision, and reports
    missing weights.
    """
    from voxbatch.vllm.engine.model import REALTIME, complete, locate

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    audio = {"audio_encoding_args": {"transcription_format": "streaming"}}
    params = {"multimodal": {"whisper_model_args": {"encoder_args": audio}}}
    model.put("asr/voxtral/params.json", json.dumps(params).encode())
    model.put("asr/voxtral/tekken.json", b'{"audio": {"transcription_delay_ms": 480}}')
    uri = f"{model.server.scheme}://{model.bucket}/asr/voxtral"
    found = locate(uri, None)
    assert (found.name, found.family, found.is_mistral) == (uri, REALTIME, True)
    assert found.revision == model.fetch(uri).revision
    assert found.audio_settings() == {"transcription_delay_ms": 480}
    with pytest.raises(EngineError, match=r"has no consolidated\*\.safetensors: download the whole model"):
        complete(found)
    with pytest.raises(ConfigError, match="revision"):
        locate(uri, "v1")


@slow
@pytest.mark.parametrize("model", ["amazon"], indirect=True)
def test_model_comes_from_the_s3_endpoint_of_the_run(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is fetched from the S3 endpoint of the run's other buckets."""
    from voxbatch.storage import StoreOptions, Stores

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    stores = Stores(StoreOptions(s3_endpoint_url=model.proxy.url))
    assert files(download_model(model.uri, model.cache, model.lines.append, stores).path) == Model.FILES


@slow
def test_revision_is_the_digest_of_the_marker(model: Model) -> None:
    """The revision is the digest of the marker: the same bytes keep it, and other bytes give another folder."""
    first = model.fetch()
    assert hashlib.sha256((first.path / MARKER).read_bytes()).hexdigest().startswith(first.revision)
    model.put("asr/tiny/config.json", b"{}")
    assert model.fetch() == first
    model.put("asr/tiny/config.json", b"[]")
    second = model.fetch()
    assert second.revision != first.revision
    assert second.path != first.path
    assert files(second.path) == {**Model.FILES, "config.json": b"[]"}
    assert files(first.path) == Model.FILES


@slow
def test_whole_bucket_can_be_the_model(model: Model) -> None:
    """A whole bucket can be the model folder."""
    fetched = model.fetch(f"{model.server.scheme}://{model.bucket}")
    assert files(fetched.path) == {f"asr/tiny/{name}": data for name, data in Model.FILES.items()}


@slow
def test_more_files_than_threads_all_arrive(model: Model) -> None:
    """More files than are fetched concurrently, with special characters in their names, all arrive."""
    names = [f"{i}/ü %2F#?+&=.bin" for i in range(30)]
    for name in names:
        model.put(f"many/{name}", name.encode())
    fetched = model.fetch(f"{model.server.scheme}://{model.bucket}/many")
    assert files(fetched.path) == {name: name.encode() for name in names}


@slow
def test_large_object_is_never_in_memory(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large object is never in memory as a whole, only the stretches that are being fetched."""
    model.put("asr/tiny/weights.bin", bytes(150_000_000))
    for name in ("STORAGE_EMULATOR_HOST", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{model.server.port}")
    peak = """
import atexit, re
from voxbatch.storage import partial_file
partial_file.STRETCH_BYTES = 1 << 20
from pathlib import Path
atexit.register(lambda: print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]))
"""
    out, err = model.script(peak).communicate()
    *_, folder, peak_kib = out.split("\n")[:-1] or [err, "0"]
    assert Path(folder, "weights.bin").stat().st_size == 150_000_000, err
    assert int(peak_kib) < 150_000


# ── faults during the download ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def stretches(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fetch stretches of 10,000 bytes. Return the starts of those of the large file."""
    monkeypatch.setattr(partial_file, "STRETCH_BYTES", 10_000)
    return list(range(0, len(Model.FILES["weights.bin"]), 10_000))


SMALL_STRETCHES = "from voxbatch.storage import partial_file; partial_file.STRETCH_BYTES = 10_000"


def journal(model: Model) -> list[Path]:
    """Return the partial files that have stretches of the large file."""
    partials = []
    for path in model.cache.glob(".models-*.partial/*.stretches"):
        with suppress(FileNotFoundError):  # a small file that is complete now
            if path.with_suffix("").stat().st_size > 10_000:
                partials.append(path.with_suffix(""))
    return partials


@slow
def test_stretches_of_one_object_are_fetched_at_the_same_time(model: Model, stretches: list[int]) -> None:
    """All stretches of an object are fetched although the first reply is slow, and the object is complete in the
    end."""
    model.proxy.faults["weights.bin"] = ["hold"]
    process = model.script(SMALL_STRETCHES)
    assert model.proxy.held.wait(200)
    until(lambda: model.proxy.counts()["get", "asr/tiny/weights.bin"] == len(stretches))
    assert not list(model.cache.glob("models-*/weights.bin"))
    model.proxy.release.set()
    folder = Path(process.communicate()[0].split("\n")[-2])
    assert files(folder) == Model.FILES
    assert sorted(path.name for path in model.cache.iterdir()) == [f".{folder.name}.lock", folder.name]


@slow
def test_failed_stretch_is_retried_alone(model: Model, stretches: list[int]) -> None:
    """Only the stretches of an object that failed are fetched again."""
    model.proxy.faults["weights.bin"] = ["503", "", "short", "cut"]
    assert files(model.fetch().path) == Model.FILES
    assert model.fetched()["weights.bin"] == len(stretches) + 3


@slow
@pytest.mark.parametrize("damage", [False, True])
def test_stretches_of_a_killed_process_are_kept(model: Model, stretches: list[int], damage: bool) -> None:
    """After a kill the folder is not marked as complete, and only the missing stretches are fetched, and those that the
    disk lost.
    """
    model.proxy.faults["weights.bin"] = ["hold"]
    process = model.script(SMALL_STRETCHES)
    assert model.proxy.held.wait(200)
    until(lambda: len(list(model.cache.glob("models-*/**/*.*"))) == 3)  # the small files
    until(lambda: any(len(path.with_suffix(".stretches").read_text().splitlines()) == 10 for path in journal(model)))
    process.kill()
    process.communicate()
    assert not list(model.cache.glob(f"models-*/{MARKER}"))
    (partial,) = journal(model)
    with partial.open("r+b") as file, partial.with_suffix(".stretches").open("a") as lines:
        lines.write("100")  # the last line may be cut off
        file.seek(50_000)
        file.write(b"\0\0\0\0" if damage else Model.FILES["weights.bin"][50_000:50_004])
    model.fetched()
    fetched = model.fetch()
    assert model.fetched() == {"weights.bin": 2 if damage else 1}
    assert files(fetched.path) == Model.FILES
    assert "fetching 1 of 4 files" in model.lines[0]


def wrong(size: int) -> Reply:
    """Return a complete reply with other bytes than those of the object."""
    headers = (("Content-Range", f"bytes 0-{size - 1}/{size}"), ("ETag", '"0"'), ("x-goog-generation", "1"))
    return Reply(206, headers, b"?" * size)


@slow
def test_damaged_object_is_fetched_once_more(model: Model) -> None:
    """A file whose bytes do not match the checksum of the store is fetched once more, and then refused."""
    reply = wrong(len(Model.FILES["weights.bin"]))
    model.proxy.faults["weights.bin"] = [reply] * 2
    with pytest.raises(StorageError, match=r"weights\.bin: the received data does not match its check.*second"):
        model.fetch()
    assert model.fetched()["weights.bin"] == 2
    assert not list(model.cache.glob("models-*/weights.bin"))
    model.proxy.faults["weights.bin"] = [reply]
    assert files(model.fetch().path) == Model.FILES
    assert model.fetched() == {"weights.bin": 2}
    assert model.lines[-1].startswith("trying again: weights.bin: the received data does not match its checksum")


@slow
def test_object_in_parts_is_checked(seaweed: AmazonServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of S3 that was stored in parts has no MD5; its CRC-32 is checked."""
    data = os.urandom(6 << 20)
    with led_through(seaweed, monkeypatch) as proxy:
        model = Model(seaweed, proxy, tmp_path / "cache")
        at = {"Bucket": model.bucket, "Key": "asr/tiny/weights.bin"}
        crc = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
        whole = {"ChecksumAlgorithm": "CRC32", "ChecksumType": "FULL_OBJECT"}
        upload = seaweed.client.create_multipart_upload(**at, **whole)["UploadId"]
        parts = []
        for number, part in enumerate((data[: 5 << 20], data[5 << 20 :]), 1):
            reply = seaweed.client.upload_part(
                **at, UploadId=upload, PartNumber=number, Body=part, ChecksumAlgorithm="CRC32"
            )
            parts.append({"PartNumber": number, "ETag": reply["ETag"], "ChecksumCRC32": reply["ChecksumCRC32"]})
        seaweed.client.complete_multipart_upload(
            **at, UploadId=upload, MultipartUpload={"Parts": parts}, ChecksumCRC32=crc, ChecksumType="FULL_OBJECT"
        )
        model.proxy.faults["weights.bin"] = [wrong(len(data))]
        assert files(model.fetch().path)["weights.bin"] == data


@slow
def test_only_damaged_files_are_fetched_again(model: Model) -> None:
    """Only files that are missing or truncated in the cache are fetched again."""
    fetched = model.fetch()
    model.fetched()
    (fetched.path / "tokens/de.txt").unlink()
    (fetched.path / "weights.bin").write_bytes(b"short")
    assert model.fetch() == fetched
    assert model.fetched() == {"de.txt": 1, "weights.bin": 1}
    assert files(fetched.path) == Model.FILES


@slow
def test_temporary_files_of_a_killed_process_are_removed(model: Model) -> None:
    """Temporary files of a killed process are removed, on systems without nameless files."""
    fetched = model.fetch()
    (fetched.path / MARKER).unlink()
    (fetched.path / "tokens" / ".tmp-0123").write_bytes(b"half")
    assert files(model.fetch().path) == Model.FILES
    assert (fetched.path / MARKER).exists()


@slow
def test_second_process_waits_for_the_first(model: Model) -> None:
    """If two processes start together, one fetches, and the other waits and logs it; both end with the same folder."""
    model.proxy.faults["weights.bin"] = ["hold"]
    first = model.script()
    assert model.proxy.held.wait(200)
    second = model.script()
    assert second.stdout is not None
    assert second.stdout.readline().startswith("another process is fetching ")
    model.proxy.release.set()
    ends = [process.communicate()[0].split("\n")[-2] for process in (first, second)]
    assert ends[0] == ends[1]
    assert files(Path(ends[0])) == Model.FILES
    assert set(model.fetched().values()) == {1}


@slow
def test_two_processes_without_locks_fetch_the_same_files(model: Model) -> None:
    """On a file system without locks both processes fetch, and neither damages the files of the other."""
    head = """
import fcntl
def flock(*_): raise OSError(38, "no locks")
fcntl.flock = flock
"""
    model.proxy.faults["weights.bin"] = ["hold", "hold"]
    both = [model.script(head), model.script(head)]
    until(lambda: not model.proxy.faults["weights.bin"])
    model.proxy.release.set()
    ends = [process.communicate()[0].split("\n")[-2] for process in both]
    assert ends[0] == ends[1]
    assert files(Path(ends[0])) == Model.FILES


# ── invalid models and refusals ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("uri", ["", "models/tiny", "gs://", "s3:///tiny", "https://host/tiny", "gs:/models/tiny"])
def test_address_without_a_bucket_is_refused(uri: str, tmp_path: Path) -> None:
    """An address without a bucket is refused with the form of a valid one."""
    with pytest.raises(StorageError, match=r"gs://bucket/prefix or s3://bucket/prefix|'' is not a valid bucket name"):
        download_model(uri, tmp_path)


@slow
@pytest.mark.parametrize("path", ["/nothing", "/asr/tiny/weights.bin", "/asr/tin"])
def test_prefix_without_objects_is_an_error(model: Model, path: str) -> None:
    """A prefix without objects is an error that names the prefix; no folder is created."""
    with pytest.raises(StorageError, match=rf"{path}/: there is no object below it: give the folder that holds"):
        model.fetch(f"{model.server.scheme}://{model.bucket}{path}")
    assert not model.cache.exists()


@slow
@pytest.mark.parametrize("model", ["google"], indirect=True)  # the S3 server normalizes such names
@pytest.mark.parametrize("name", ["../out", "tokens/../../out", "/out", "a//b"])
def test_names_that_lead_out_are_refused(model: Model, name: str) -> None:
    """An object whose name leads out of the folder, or is invalid in one, stops the fetch before its first request."""
    model.put(f"asr/tiny/{name}", b"x")
    with pytest.raises(StorageError, match=rf"the object {model.uri}/{name} cannot be stored in a local folder"):
        model.fetch()
    assert not model.cache.exists()


@given(st.text(st.sampled_from("./\0a\\~ü")))
def test_accepted_names_stay_inside(name: str) -> None:
    """An accepted name is in normal form and stays below the folder."""
    place = parse_bucket_address("gs://models/m/")
    bucket: Any = SimpleNamespace(list=lambda prefix: [Stat(f"{prefix}{name}", 1, "tag")])
    with suppress(StorageError):
        (accepted,) = model_download._list_files(place, bucket)
        assert accepted.name == name
        assert os.path.normpath(os.path.join("/folder", name)) == f"/folder/{name}"
        assert "\0" not in name


PARAMS: dict[str, Any] = {"multimodal": {"whisper_model_args": {"encoder_args": {"audio_encoding_args": {}}}}}
"""A params.json by which the engine recognises a Voxtral."""


@slow
def test_model_bucket_may_be_of_another_cloud_and_account(
    google: Server, seaweed: AmazonServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is read from a bucket of S3 that the account may only read, for a run from and to Cloud Storage."""
    from voxbatch.vllm.engine.model import locate

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with suppress(seaweed.client.exceptions.BucketAlreadyOwnedByYou):
        seaweed.make(servers.READABLE_BUCKET)
    for name, data in (("params.json", json.dumps(PARAMS).encode()), ("tekken.json", b"{}")):
        seaweed.put(servers.READABLE_BUCKET, f"voxtral/{name}", data)
    seaweed.make(other := f"other-{uuid.uuid4().hex[:8]}")
    seaweed.put(other, "voxtral/params.json", b"{}")
    reader = {"AWS_ACCESS_KEY_ID": servers.READER["accessKey"], "AWS_SECRET_ACCESS_KEY": servers.READER["secretKey"]}
    place = f"{google.scheme}://calls-{uuid.uuid4().hex[:8]}"
    google.make(place.partition("://")[2])
    with led_through(google, monkeypatch), led_through(seaweed, monkeypatch):
        for name, value in reader.items():
            monkeypatch.setenv(name, value)
        assert Stores().out(f"{place}/out").create("run.json", [b"{}"])
        assert Stores().out(f"{place}/out").read("run.json") == b"{}"
        model = locate(f"s3://{servers.READABLE_BUCKET}/voxtral", None)
        assert (model.path / "params.json").read_text() == json.dumps(PARAMS)
        with pytest.raises(StorageError, match=rf"s3://{other}/voxtral/: permission denied: .*s3:ListBucket on"):
            locate(f"s3://{other}/voxtral", None)
        with pytest.raises(StorageError, match="permission denied: the access key AKIDREADER lacks s3:PutObject"):
            Stores().out(f"s3://{servers.READABLE_BUCKET}/out").create("run.json", [b"{}"])


@slow
@pytest.mark.parametrize("model", ["google"], indirect=True)
def test_a_failure_ends_a_fetch_whose_stretches_wait(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of one file ends the download at once, also while stretches of another file wait for a thread."""
    monkeypatch.setattr(model_download, "STREAMS", 2)
    monkeypatch.setattr(partial_file, "STRETCH_BYTES", 1_000)
    denied = Reply(403, (("Content-Type", "application/json"),), b'{"error": {"code": 403, "message": "no access"}}')
    small_asked, large_asked = threading.Event(), threading.Event()
    download_file = model_download._download_file

    def ordered(fetch: model_download._Fetch, file: model_download.RemoteFile, *paths: Path) -> None:
        if file.name == "weights.bin":  # its stretches would take both threads
            assert small_asked.wait(200)
        download_file(fetch, file, *paths)

    def spoiled(asked: Asked) -> Fault:
        if asked.verb == "get" and asked.name.endswith("de.txt"):
            small_asked.set()
            assert large_asked.wait(200)
            return denied
        if asked.verb == "get" and asked.name == "weights.bin":
            large_asked.set()
            time.sleep(0.5)
        return ""

    monkeypatch.setattr(model_download, "_download_file", ordered)
    model.proxy.spoil = spoiled
    with pytest.raises(StorageError, match=r"tokens/de\.txt: permission denied"):
        model.fetch()
    assert 0 < model.fetched()["weights.bin"] < len(Model.FILES["weights.bin"]) / 1_000


@slow
@pytest.mark.parametrize("model", ["google"], indirect=True)
@pytest.mark.parametrize(("verb", "permission"), [("list", "storage.objects.list"), ("get", "storage.objects.get")])
def test_unreadable_model_bucket_names_the_role(model: Model, verb: str, permission: str) -> None:
    """If only the bucket of the models may not be read, the error names this bucket and the role that it needs."""
    denied = Reply(403, (("Content-Type", "application/json"),), b'{"error": {"code": 403, "message": "no access"}}')
    model.proxy.spoil = lambda asked: denied if asked.verb == verb and model.bucket in asked.path else ""
    other = f"calls-{uuid.uuid4().hex[:8]}"
    model.server.make(other)
    assert Stores().out(f"gs://{other}/out").create("run.json", [b"{}"])
    message = rf"{model.uri}/.*: permission denied: .* lacks {permission} \(role roles/storage.objectViewer\)"
    with pytest.raises(StorageError, match=message):
        model.fetch()
    assert Stores().out(f"gs://{other}/out").read("run.json") == b"{}"


@slow
def test_object_replaced_after_the_listing_is_not_stored(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that is replaced between the listing and its download is not stored in the old revision's folder."""
    listed = model_download._list_files

    def listed_and_replaced(*place: Any) -> list[model_download.RemoteFile]:
        found = listed(*place)
        model.put("asr/tiny/weights.bin", b"x" * len(Model.FILES["weights.bin"]))
        return found

    monkeypatch.setattr(model_download, "_list_files", listed_and_replaced)
    with pytest.raises(StorageError, match=r"weights\.bin: .*start again"):
        model.fetch()
    (folder,) = model.cache.glob("models-*")
    assert not {"weights.bin", MARKER} & set(os.listdir(folder))


@slow
def test_object_stored_as_gzip_is_refused(model: Model) -> None:
    """An object stored as gzip is refused, because an engine would read the compressed bytes."""
    model.put("asr/tiny/config.json", b"\x1f\x8b", encoding="gzip")
    with pytest.raises(
        StorageError, match=r"config\.json: it is stored with Content-Encoding: gzip: store it uncompressed"
    ):
        model.fetch()


@slow
def test_full_disk_leaves_no_partial_file(model: Model, small_disk: Path) -> None:
    """A full disk gives an error of one line with the file, which need not be the large one, and no incomplete file."""
    model.put("asr/tiny/weights.bin", bytes(2_000_000))
    model.cache = small_disk / "cache"
    with pytest.raises(StorageError, match=rf"cannot write {small_disk}/cache/\S+: the disk is full: free some space"):
        model.fetch()
    (folder,) = model.cache.glob("models-*")
    assert "weights.bin" not in os.listdir(folder)


@slow
def test_unwritable_cache_is_named(model: Model) -> None:
    """A cache that cannot be created, or whose place is taken by a file, is named with a remedy for a model's cache."""
    model.cache.write_bytes(b"")
    with pytest.raises(StorageError, match=rf"cannot write {model.cache}/.*choose another cache folder"):
        model.fetch()
    model.cache = Path("/proc/voxbatch")
    with pytest.raises(StorageError, match="cannot write /proc/voxbatch/"):
        model.fetch()


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all credentials of this machine from the environment."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "STORAGE_EMULATOR_HOST"))]:
        monkeypatch.delenv(name)
    for name in ("HOME", "CLOUDSDK_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.parametrize(
    ("uri", "way"), [("gs://models/m", "GOOGLE_APPLICATION_CREDENTIALS"), ("s3://models/m", "AWS_ACCESS_KEY_ID")]
)
@pytest.mark.usefixtures("nobody")
@slow
def test_missing_credentials_name_the_variables(uri: str, way: str, tmp_path: Path) -> None:
    """The error says how to set credentials if there are none."""
    with pytest.raises(StorageError, match=rf"cannot (read|list) {uri[:11]}.*: no usable credentials .*set {way}"):
        download_model(uri, tmp_path)
