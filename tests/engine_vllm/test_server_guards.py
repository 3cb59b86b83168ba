"""Tests for the guards of vLLM's server that need no model: addresses, and the samples of a recording."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import web_server

from voxbatch.vllm.plugin import server_guards

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # importing vLLM warns
RATE = 16_000


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the guards for one test."""
    from vllm.entrypoints.speech_to_text.base import serving
    from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, audio

    monkeypatch.setattr(serving, "load_audio", audio.load_audio)
    monkeypatch.setattr(audio, "load_audio", audio.load_audio)
    monkeypatch.setattr(MEDIA_CONNECTOR_REGISTRY, "name2class", dict(MEDIA_CONNECTOR_REGISTRY.name2class))
    server_guards._register_connector()
    server_guards._check_samples()


def fetched(url: str) -> Any:
    """Return the samples and the rate of a recording, which is fetched as the server does."""
    from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY

    async def fetch() -> Any:
        connector = MEDIA_CONNECTOR_REGISTRY.load(server_guards.CONNECTOR, allowed_media_domains=[])
        try:
            return await connector.fetch_audio_async(url)
        finally:
            await (await connector.connection.get_async_client()).close()
            connector.connection._async_client = None

    return asyncio.run(fetch())


def wav(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="FLOAT")
    return file.getvalue()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server on this machine that has a.wav, and the paths that are asked for."""
    (tmp_path / "a.wav").write_bytes(wav(np.ones(RATE)))
    with web_server.served_folder(tmp_path) as (url, asked):
        yield url, asked


def test_private_addresses_are_refused(site: tuple[str, list[str]]) -> None:
    """A request can name no address of this machine, in no spelling, and no connection is made."""
    from vllm.exceptions import VLLMValidationError

    url, asked = site
    port = url.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost", "0x7f000001", "[::ffff:127.0.0.1]"):
        with pytest.raises(
            VLLMValidationError, match="only public addresses are read, unless --allow-private-addresses"
        ):
            fetched(f"http://{host}:{port}/a.wav")
    assert asked == []


def test_private_addresses_can_be_admitted(site: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """With --allow-private-addresses, a private server is read; metadata servers are not, also by a redirect."""
    from vllm.exceptions import VLLMValidationError

    monkeypatch.setenv(server_guards.ALLOW_PRIVATE, "1")
    samples, rate = fetched(f"{site[0]}/a.wav")
    assert (len(samples), rate) == (RATE, RATE)
    with pytest.raises(VLLMValidationError, match="no recording is read from there"):
        fetched("http://169.254.169.254/latest/meta-data")

    class Redirects(web_server.Handler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", "http://169.254.169.254/a.wav")
            self.end_headers()

    refused = pytest.raises(VLLMValidationError, match="no recording is read from there")
    with web_server.served(web_server.WebServer(Redirects)) as server, refused:
        fetched(f"{server.url}/a.wav")


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (np.zeros(0), "has no samples"),
        (np.array([0.1, np.nan, 0.2]), "1 of 3 samples"),
        (np.array([np.inf, -np.inf, 0.0]), "2 of 3 samples"),
    ],
)
def test_samples_without_a_text_are_refused(samples: np.ndarray, reason: str) -> None:
    """A recording without a sample, or with samples that are no numbers, never reaches the model."""
    from vllm.entrypoints.speech_to_text.base import serving
    from vllm.multimodal.media.audio import AudioMediaIO

    with pytest.raises(ValueError, match=reason):
        AudioMediaIO().load_bytes(wav(samples))
    with pytest.raises(ValueError, match=reason):
        serving.load_audio(io.BytesIO(wav(samples)), sr=RATE)


def test_other_samples_stay() -> None:
    """Samples that are numbers reach the model as before."""
    from vllm.multimodal.media.audio import AudioMediaIO

    expected = np.linspace(-1, 1, 100, dtype=np.float32)
    samples, _ = AudioMediaIO().load_bytes(wav(expected))
    assert np.array_equal(samples, expected)
