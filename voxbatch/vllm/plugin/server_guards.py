"""Guards that `voxbatch serve` adds to vLLM's server: addresses that a request may name, recordings that cannot be
recognised or depend on their company, and plain text where it is asked for.

`ServerGuards` is a middleware because vLLM imports it by its path in the process that answers requests, whatever
plugins are switched on. It only installs the guards.

| request | stock vLLM 0.32 | here |
|---|---|---|
| an address that leads to this machine or a private network, also by a redirect | fetched | 400 |
| a recording without a sample | a text that the model makes up | 400, as OpenAI's API |
| samples that are NaN or infinite | given to the model; later requests may get other texts | 400 |
| `response_format=text` | JSON (vLLM issue 49095) | text/plain |
| recordings that vLLM pads without a mask, at the same time | encoded together | each alone, as in a run |
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from voxbatch.stores.ssrf_guard import forbidden_kind, machine_kind
from voxbatch.vllm.plugin import WORKER_EXTENSION, vllm_version
from voxbatch.vllm.plugin.server_middleware import App, Receive, Scope, Send

ALLOW_PRIVATE = "VOXBATCH_ALLOW_PRIVATE_ADDRESSES"
"""Environment variable, 1 to admit addresses of this machine and of private networks."""
CONNECTOR = "voxbatch"
"""Name by which vLLM's variable VLLM_MEDIA_CONNECTOR selects our way to fetch the recordings of requests."""
CONNECTOR_VARIABLE = "VLLM_MEDIA_CONNECTOR"


class ServerGuards:
    """Install the guards, and pass all requests on."""

    def __init__(self, app: App):
        self._app = app
        install()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on. Before the first one, prepare the workers, which have their model by then."""
        if scope["type"] == "lifespan":
            try:
                await _encode_alone(scope["app"].state)
            except Exception as e:  # noqa: BLE001 uvicorn would take any for an app without a lifespan, and go on
                await send({"type": "lifespan.startup.failed", "message": f"no worker was prepared: {e}"})
                return
        await self._app(scope, receive, send)


async def _encode_alone(state: Any) -> None:
    """Encode recordings alone that need it (see `patches.group_and_batch_mm_kwargs`). A server that gets its arguments
    elsewhere, as that of vllm-omni, has other workers."""
    parallel = getattr(getattr(state, "vllm_config", None), "parallel_config", None)
    if getattr(parallel, "worker_extension_cls", "") == WORKER_EXTENSION:
        await state.engine_client.collective_rpc("voxbatch_encode_alone")


def install() -> None:
    """Register the connector, and replace what vLLM's own version lacks. Another version than the proven one gets the
    connector alone, which is an interface of vLLM."""
    _register_connector()
    installed = vllm_version.find()
    if installed and vllm_version.is_proven(installed[1]):
        _check_samples()
        _answer_text()


def _register_connector() -> None:
    import aiohttp
    from vllm.connections import HTTPConnection
    from vllm.exceptions import VLLMValidationError
    from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector

    def new_socket(info: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
        """Return a socket for an address that is about to be connected, of a name or of a redirect."""
        family, kind, protocol, _, address = info
        if reason := refusal(str(address[0])):
            raise VLLMValidationError(reason)
        return socket.socket(family, kind, protocol)

    class Connection(HTTPConnection):  # type: ignore[misc]
        """Fetches recordings from admitted addresses, without a proxy, which would connect to any."""

        _async_client: Any

        async def get_async_client(self) -> Any:
            if self._async_client is None:
                connector = aiohttp.TCPConnector(socket_factory=new_socket)
                self._async_client = aiohttp.ClientSession(connector=connector, trust_env=False)
            return self._async_client

        def get_sync_client(self) -> Any:
            raise NotImplementedError("the server fetches recordings asynchronously")

    connection = Connection()

    @MEDIA_CONNECTOR_REGISTRY.register(CONNECTOR)
    class Connector(MediaConnector):  # type: ignore[misc]
        def __init__(self, *args: Any, **settings: Any):
            super().__init__(*args, **{**settings, "connection": connection})


def refusal(address: str) -> str:
    """Return why an address is not connected; "" for one that is admitted."""
    if kind := machine_kind(address):
        return f"{address} is {kind}: no recording is read from there"
    if os.environ.get(ALLOW_PRIVATE) != "1" and (kind := forbidden_kind(address)):
        return f"{address} is {kind}: only public addresses are read, unless --allow-private-addresses is given"
    return ""


def checked(load_audio: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that loads audio, and refuses what no text can be made of."""

    def load(*args: Any, **settings: Any) -> Any:
        samples, rate = load_audio(*args, **settings)
        if not np.size(samples):
            raise ValueError("The recording has no samples.")
        if broken := int(np.count_nonzero(~np.isfinite(samples))):
            raise ValueError(f"{broken} of {np.size(samples)} samples of the recording are NaN or infinite.")
        return samples, rate

    return load


def _check_samples() -> None:
    from vllm.entrypoints.speech_to_text.base import serving
    from vllm.multimodal.media import audio

    audio.load_audio = serving.load_audio = checked(audio.load_audio)


class _PlainText(str):
    """The content of an answer in plain text."""

    __slots__ = ()


def _answer_text() -> None:
    """Answer `response_format=text` as OpenAI's API does."""
    from fastapi.responses import JSONResponse, PlainTextResponse
    from vllm.entrypoints.speech_to_text.transcription import api_router as transcription
    from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionResponse
    from vllm.entrypoints.speech_to_text.transcription.serving import OpenAIServingTranscription
    from vllm.entrypoints.speech_to_text.translation import api_router as translation
    from vllm.entrypoints.speech_to_text.translation.protocol import TranslationResponse
    from vllm.entrypoints.speech_to_text.translation.serving import OpenAIServingTranslation

    def answer(content: Any, **settings: Any) -> Any:
        kind = PlainTextResponse if isinstance(content, _PlainText) else JSONResponse
        return kind(content=content, **settings)

    transcription.JSONResponse = translation.JSONResponse = answer
    for serving, name, response in (
        (OpenAIServingTranscription, "create_transcription", TranscriptionResponse),
        (OpenAIServingTranslation, "create_translation", TranslationResponse),
    ):
        setattr(serving, name, _in_text(getattr(serving, name), response))


def _in_text(create: Callable[..., Awaitable[Any]], response: Any) -> Callable[..., Awaitable[Any]]:
    """Return a method that creates an answer, whose content is plain text where the request asks for it."""

    class Text(response):  # type: ignore[misc]
        def model_dump(self, **_: Any) -> _PlainText:
            return _PlainText(self.text)

    async def create_answer(serving: Any, audio: bytes, request: Any, raw_request: Any = None) -> Any:
        answer = await create(serving, audio, request, raw_request)
        if request.response_format == "text" and type(answer) is response:
            return Text.model_construct(**dict(answer))
        return answer

    return create_answer
