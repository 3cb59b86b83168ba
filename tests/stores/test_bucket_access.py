"""Tests for permissions, requester-pays and expiring credentials of buckets: errors name everything but the secrets."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from clouds import Endpoint, answering, google_reply
from conftest import Voxbatch, environment
from servers import Asked, Fault, Place, Reply, account, placed, refused

from voxbatch.storage import StoreOptions, Stores, parallel_map
from voxbatch.storage.bucket import BucketStore

pytestmark = [
    pytest.mark.slow,  # starts servers
    # Clients leave the socket of an interrupted reply to the garbage collector, which the fixture here runs.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

either = pytest.mark.parametrize("place", ["google", "amazon"], indirect=True)
"""Parameters for tests in which a third server would show nothing new."""
google_only = pytest.mark.parametrize("place", ["google"], indirect=True)
amazon_only = pytest.mark.parametrize("place", ["amazon"], indirect=True)


@pytest.fixture(params=["google", "amazon", "seaweed"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Yield an OUT in a new bucket on each of the servers."""
    with placed(request.getfixturevalue(request.param), monkeypatch) as out:
        yield out


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def google_error(status: int, message: str) -> Reply:
    """Return an error reply of Cloud Storage's JSON API."""
    error = {"code": status, "message": message, "errors": [{"message": message, "domain": "global"}]}
    return Reply(status, (("Content-Type", "application/json"),), json.dumps({"error": error}).encode())


def amazon_error(status: int, code: str, message: str) -> Reply:
    """Return an error reply of S3."""
    text = f"<Error><Code>{code}</Code><Message>{message}</Message><RequestId>4442587FB7D0A2F9</RequestId></Error>"
    return Reply(status, (("Content-Type", "application/xml"),), f'<?xml version="1.0"?>\n{text}'.encode())


DENIED_BY_GOOGLE = google_error(403, "robot@p.iam.gserviceaccount.com does not have storage.objects.x access to it.")
DENIED_BY_AMAZON = amazon_error(403, "AccessDenied", "User: arn:aws:iam::1:user/ann is not authorized to perform it")
NO_BUCKET_AT_GOOGLE = google_error(404, "The specified bucket does not exist.")
NO_BUCKET_AT_AMAZON = amazon_error(404, "NoSuchBucket", "The specified bucket does not exist")
UNKNOWN_KEY = amazon_error(403, "InvalidAccessKeyId", "The AWS Access Key Id you provided is not in our records.")


def calls(store: BucketStore) -> dict[str, Callable[[], Any]]:
    """Return a call for each permission."""
    return {
        "get": lambda: store.read("a"),
        "list": lambda: store.names("a"),
        "create": lambda: store.create("a", [b"x"]),
        "delete": lambda: store.delete("a"),
    }


@either
def test_denied_call_names_the_missing_permission(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each call that lacks a permission fails at its first request, with the account, the missing permission, the
    object and the store's words.
    """
    with token_server(monkeypatch, tmp_path, place):
        store = place.store()
        is_google = place.server.scheme == "gs"
        place.proxy.spoil = lambda asked: DENIED_BY_GOOGLE if is_google else DENIED_BY_AMAZON
        who = "robot@p.iam.gserviceaccount.com" if is_google else f"the access key {place.server.settings('')[KEY_ID]}"
        rights = {"get": "s3:GetObject", "list": "s3:ListBucket", "create": "s3:PutObject", "delete": "s3:DeleteObject"}
        for right, call in calls(store).items():
            place.proxy.forget()
            text = refused(call)
            assert f"{place.uri}/a" in text
            assert (
                f"permission denied: {who} lacks {f'storage.objects.{right}' if is_google else rights[right]} " in text
            )
            assert ("does not have storage.objects.x" if is_google else "not authorized to perform") in text
            assert place.asked() == 1


KEY_ID = "AWS_ACCESS_KEY_ID"


@either
def test_missing_bucket_is_named(place: Place, voxbatch: Voxbatch) -> None:
    """A missing bucket fails the first call with its name, with the replies of test servers and of real services. A
    run that names one is not advised again."""
    missing = f"{place.server.scheme}://nowhere-{uuid.uuid4().hex[:8]}/run"
    for call in (Stores().out(missing).prepare, lambda: Stores().out(missing).names("")):
        place.proxy.forget()
        assert "there is no bucket nowhere-" in refused(call)
        assert place.asked() == 1
    done = voxbatch("run", f"{missing}/", "-o", "out", "--engine", "scripted")
    assert (done.returncode, done.stderr.endswith("check its name\n")) == (2, True), done.stderr
    is_google = place.server.scheme == "gs"
    place.proxy.spoil = lambda asked: NO_BUCKET_AT_GOOGLE if is_google else NO_BUCKET_AT_AMAZON
    for call in calls(place.store()).values():
        place.proxy.forget()
        assert f"there is no bucket {place.bucket}: check its name" in refused(call)
        assert place.asked() == 1


@either
def test_unsupported_request_is_not_retried(place: Place) -> None:
    """A service that rejects create-if-absent as unsupported is not retried. S3 is asked once more, without checksums,
    and the message names the other way."""
    is_google = place.server.scheme == "gs"
    words = "A header you provided implies functionality that is not implemented"
    reply = google_error(501, words) if is_google else amazon_error(501, "NotImplemented", words)
    place.proxy.spoil = lambda asked: reply
    text = refused(place.store().prepare)
    assert f"the store refused with status 501 ({'' if is_google else 'NotImplemented: '}{words})" in text
    assert ("write OUT to a local folder (-o FOLDER), and copy it" in text) == (not is_google)
    assert place.asked() == (1 if is_google else 2)


@amazon_only
def test_redirecting_endpoint_is_a_wrong_address(place: Place) -> None:
    """An endpoint that redirects, as from http to https, is reported as a wrong address."""
    place.proxy.spoil = lambda asked: Reply((301, 307, 308)[asked.number % 3], (("Location", "https://127.0.0.1:1/"),))
    for call in calls(place.store()).values():
        assert "the server redirects to another endpoint: check the endpoint's address" in refused(call)


@amazon_only
def test_unknown_access_key_is_named(place: Place) -> None:
    """A key that S3 does not know fails at once with its id."""
    place.proxy.spoil = lambda asked: UNKNOWN_KEY
    text = refused(lambda: place.store().create("a", [b"x"]))
    assert "the access key AKIDMOTO or its secret is not valid there: set AWS_ACCESS_KEY_ID" in text
    assert "InvalidAccessKeyId: The AWS Access Key Id you provided is not in our records" in text
    assert place.asked() == 1


@pytest.mark.parametrize("place", ["seaweed"], indirect=True)
def test_wrong_secret_is_refused_and_not_shown(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that checks signatures refuses a wrong secret, and the error does not show it."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET-OF-another")
    text = refused(lambda: place.store().create("a", [b"x"]))
    assert "the access key AKIDWEED or its secret is not valid there: set AWS_ACCESS_KEY_ID" in text
    assert place.asked() == 1


@pytest.mark.parametrize(("uri", "missing"), [("gs://bucket/m", "google.cloud.storage"), ("s3://bucket/m", "boto3")])
def test_missing_library_names_the_extra(uri: str, missing: str, tmp_path: Path) -> None:
    """The error names the extra to install if the client library is missing."""
    code = f"""
import sys
sys.modules[{missing!r}] = None
from voxbatch.errors import ConfigError, StorageError
from voxbatch.storage import Stores
try:
    Stores().out({uri!r})
except StorageError as e:
    print(e)
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), cwd=tmp_path, capture_output=True, text=True)
    assert "the client library is not installed" in done.stdout, done.stderr
    assert done.stdout.endswith(f": pip install 'voxbatch[{'gcs' if uri[0] == 'g' else 's3'}]'\n")


# ── credentials ───────────────────────────────────────────────────────────────────────────────────────────────────────


def token(name: str) -> Reply:
    """Return a reply of Google's token server."""
    grant = {"access_token": f"TOKEN-OF-{name}", "expires_in": 3600, "token_type": "Bearer"}
    return google_reply(grant)


def role(name: str) -> Reply:
    """Return a reply with container credentials, as on ECS and EKS."""
    until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    login = {"AccessKeyId": f"AKID{name}", "SecretAccessKey": f"SECRET-OF-{name}", "Token": f"TOKEN-OF-{name}"}
    return google_reply({**login, "Expiration": until})


@contextmanager
def token_server(monkeypatch: pytest.MonkeyPatch, folder: Path, place: Place, *answers: Reply) -> Iterator[Endpoint]:
    """Start a token server and give Cloud Storage's client a service account key file; S3's client is unchanged."""
    with answering(*(answers or [token("OLD")])) as vendor:
        if place.server.scheme == "gs":
            key = folder / "key.json"
            key.write_text(json.dumps(account(vendor.url)))
            monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
            monkeypatch.setenv("API_ENDPOINT_OVERRIDE", place.proxy.url)
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
        yield vendor


def bearer(asked: Asked) -> str:
    """Return the Authorization header of a request."""
    return asked.headers.get("authorization", "")


def never(name: str, from_number: int = 0) -> Callable[[Asked], Fault]:
    """Return a function that refuses credentials of this name from a request number on, like the two stores."""
    expired = amazon_error(400, "ExpiredToken", "The provided token has expired.")
    no = google_error(401, "Invalid Credentials")

    def decide(asked: Asked) -> Fault:
        if asked.number < from_number or name not in bearer(asked):
            return ""
        return no if bearer(asked).startswith("Bearer") else expired

    return decide


@google_only
def test_expired_token_is_renewed_once(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A token that is refused during a run is renewed once, without an error."""
    with token_server(monkeypatch, tmp_path, place, token("OLD"), token("NEW")) as vendor:
        store = place.store()
        place.proxy.spoil = never("OLD", from_number=4)
        assert all(store.create(f"{i}", [b"x"]) for i in range(8))
        assert len(vendor.calls) == 2
        assert "OLD" in bearer(place.proxy.log[0])
        assert "NEW" in bearer(place.proxy.log[-1])
        assert place.asked("put") == 9


@google_only
def test_refused_new_token_is_an_error(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the new token is refused, too, the error says after few requests that the credentials are invalid."""
    with token_server(monkeypatch, tmp_path, place):
        place.proxy.spoil = never("OLD")
        text = refused(lambda: place.store().create("a", [b"x"]))
        assert "the credentials are invalid or have expired: set GOOGLE_APPLICATION_CREDENTIALS" in text
        # the client makes three attempts by itself, each with a new token, and voxbatch makes one more
        assert place.asked() <= 6


@pytest.fixture
def on_a_container(monkeypatch: pytest.MonkeyPatch) -> Callable[[Endpoint], None]:
    """Return a function that makes the S3 client get its credentials from a server, as in a container."""

    def enter(vendor: Endpoint) -> None:
        for name in (KEY_ID, "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{vendor.url}/credentials")

    return enter


@amazon_only
def test_expired_role_credentials_are_renewed_once(place: Place, on_a_container: Callable[[Endpoint], None]) -> None:
    """Credentials that expire during a run are renewed once, however many threads notice it."""
    with answering(role("OLD"), role("NEW")) as vendor:
        on_a_container(vendor)
        store = place.store()
        place.proxy.spoil = never("OLD", from_number=20)
        assert all(parallel_map(store.concurrency, lambda i: store.create(f"{i}", [b"x"]), range(100)))
        assert len(vendor.calls) == 2
        assert "AKIDOLD" in bearer(place.proxy.log[0])
        assert "AKIDNEW" in bearer(place.proxy.log[-1])
        assert len(store.names("")) == 100


@amazon_only
def test_reply_without_a_body_renews_expired_credentials(
    place: Place, on_a_container: Callable[[Endpoint], None]
) -> None:
    """Expired credentials are renewed, too, if a request without an error body (HEAD) notices it first."""
    with answering(role("OLD"), role("NEW")) as vendor:
        on_a_container(vendor)
        place.proxy.spoil = never("OLD")
        assert not place.store().exists("a")
        assert place.proxy.counts()["stat", "run 1/a"] == 2
        assert len(vendor.calls) == 2


@amazon_only
def test_expired_new_credentials_are_an_error(place: Place, on_a_container: Callable[[Endpoint], None]) -> None:
    """If the new credentials have expired, too, one clear error says so."""
    with answering(role("OLD")) as vendor:
        on_a_container(vendor)
        place.proxy.spoil = never("OLD")
        text = refused(lambda: place.store().create("a", [b"x"]))
        assert "the credentials have expired: set AWS_ACCESS_KEY_ID" in text
        assert (len(vendor.calls), place.asked()) == (2, 2)


# ── requester-pays and anonymous access ───────────────────────────────────────────────────────────────────────────────


@either
def test_each_request_names_the_requester_as_payer(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each request states that the requester pays."""
    with token_server(monkeypatch, tmp_path, place):
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "payer-1")
        store = place.store(StoreOptions(requester_pays=True))
        store.create("a", [b"x"])
        assert store.read("a") == b"x"
        assert store.exists("a")
        assert store.names("") == ["a"]
        store.delete("a")
    assert len(place.proxy.log) == 5
    for asked in place.proxy.log:
        assert asked.query.get("userProject") == ["payer-1"] or asked.headers.get("x-amz-request-payer") == "requester"


@google_only
def test_requester_pays_needs_a_project(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cloud Storage charges a project, so one must be known: the credentials of a person often name none."""
    from google.auth.credentials import AnonymousCredentials

    for name in ("GOOGLE_CLOUD_PROJECT", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("google.auth.default", lambda *args, **kwargs: (AnonymousCredentials(), None))
    text = refused(lambda: place.store(StoreOptions(requester_pays=True)))
    assert "--requester-pays bills a project, and none is set: set GOOGLE_CLOUD_PROJECT" in text


@either
def test_anonymous_requests_carry_no_credentials(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Anonymous requests carry no credentials, even if some are configured, and a refusal names the missing permission
    of anonymous callers.
    """
    with token_server(monkeypatch, tmp_path, place) as vendor:
        store = place.store(StoreOptions(anonymous=True))
        for right, call in calls(store).items():
            if (right, place.server.scheme) != ("delete", "s3"):  # the only call that this server refuses
                call()
        assert not [asked for asked in place.proxy.log if bearer(asked)]
        assert not vendor.calls
        place.proxy.forget()
        is_google = place.server.scheme == "gs"
        words = "Anonymous caller does not have storage.objects.get access"
        reply = google_error(401, words) if is_google else amazon_error(403, "AccessDenied", "Access Denied")
        place.proxy.spoil = lambda asked: reply
        assert "permission denied: nobody (--anonymous) lacks " in refused(lambda: store.read("a"))
        assert place.asked() == 1
