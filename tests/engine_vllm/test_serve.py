"""`voxbatch serve` as a user starts it, asked by real clients: openai, WebSockets, boto3, and a page in Chromium."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import browser
import numpy as np
import pytest
import soundfile
import waits
from cloudformation import load
from conftest import ROOT, Voxbatch, environment, gone
from stream import ENVIRONMENT

if TYPE_CHECKING:
    from engine_runs import Spoken

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CLIENTS = ROOT / "examples" / "clients"
READY_S = 400
RATE_LIMIT = 60
"""Requests in an hour that the server of the Realtime answers: more than the tests before that of the limit make."""
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of the next days.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
SPEECH_FRAMES = 40
"""Frames of a speech of vllm-omni's server: its model never ends by itself."""
with_omni = pytest.mark.skipif(find_spec("vllm_omni") is None, reason="vllm-omni is not installed (see omni_on_cpu)")
ON_CPU = ("--engine-option", "dtype=float32", "--engine-option", "enforce_eager=true")


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers."""

    process: subprocess.Popen[bytes]
    port: int
    model: str
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def realtime_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/realtime"


@contextmanager
def served(model: Path, log: Path, *options: str, on_cpu: tuple[str, ...] = ON_CPU, **others: str) -> Iterator[Served]:
    """Start `voxbatch serve`, with further environment variables, and wait until it is healthy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "voxbatch", "serve", "--model", str(model), "--port", str(port), *on_cpu, *options]
    variables = {name: value for name, value in ENVIRONMENT.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment(**variables, **others), stdout=file, stderr=file)
    found = Served(process, port, model.name, log)
    try:
        deadline = time.monotonic() + READY_S
        while not is_healthy(found.url):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def mini(voxtral: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve the tiny instruct model with the profile of Mini 3B, which may read recordings of this machine."""
    log = tmp_path_factory.mktemp("mini") / "log"
    options = ("--profile", "mini-3b", "--engine-option", "max_model_len=4096", "--allow-private-addresses")
    with served(voxtral, log, *options) as found:
        yield found


@pytest.fixture(scope="module")
def live(realtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve the tiny Realtime with many requests at a time, at the model's own delay, with a limit of requests and a
    log in JSON."""
    engine = ("--profile", "ctx512-batch", "--engine-option", "delay_ms=480")
    requests = ("--rate-limit", f"{RATE_LIMIT}/hour", "--log-format", "json")
    with served(realtime, tmp_path_factory.mktemp("live") / "log", *engine, *requests) as found:
        yield found


@pytest.fixture(scope="module")
def wav(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sounds import babble

    path = tmp_path_factory.mktemp("audio") / "call.wav"
    soundfile.write(path, babble(4.0, 1), 16_000, subtype="PCM_16")
    return path


@pytest.fixture
def openai(mini: Served) -> Iterator[Any]:
    """Return a client of the openai package."""
    from openai import OpenAI

    with OpenAI(base_url=f"{mini.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def audio(path: Path) -> dict[str, Any]:
    data = base64.b64encode(path.read_bytes()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def message(*content: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*content, {"type": "text", "text": "What is said?"}]}]


def test_openai_endpoints(mini: Served, openai: Any, wav: Path) -> None:
    """The openai package lists the model, chats with text, with one and with two recordings, and transcribes. A
    recording of up to 30 s takes 375 tokens.
    """
    assert [each.id for each in openai.models.list()] == [mini.model]
    asked = {"model": mini.model, "max_tokens": 6, "temperature": 0}
    alone, one, two = (
        openai.chat.completions.create(messages=message(*[audio(wav)] * count), **asked) for count in range(3)
    )
    assert one.usage.prompt_tokens - alone.usage.prompt_tokens == 375 + 1  # [BEGIN_AUDIO]
    assert two.usage.prompt_tokens - one.usage.prompt_tokens == 375 + 1
    assert all(each.choices[0].message.content for each in (alone, one, two))
    assert openai.completions.create(model=mini.model, prompt="one two", max_tokens=4, temperature=0).choices[0].text
    said = openai.audio.transcriptions.create(model=mini.model, file=("call.wav", wav.read_bytes()), language="en")
    assert said.text.strip()


def test_plain_text(mini: Served, openai: Any, wav: Path) -> None:
    """A request for plain text is answered with the text that one for JSON has, as text/plain."""
    asked = {"model": mini.model, "file": ("call.wav", wav.read_bytes()), "language": "en", "temperature": 0}
    answer = openai.audio.transcriptions.with_raw_response.create(**asked, response_format="text")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text == openai.audio.transcriptions.create(**asked).text


@pytest.mark.parametrize(
    ("samples", "reason"),
    [([], "no samples"), ([0.1, float("nan"), 0.2], "1 of 3 samples"), ([float("inf")], "1 of 1")],
)
def test_recordings_without_a_text_are_refused(mini: Served, openai: Any, samples: list[float], reason: str) -> None:
    """A recording without a sample, or with samples that are no numbers, is answered 400 by both ways in."""
    from openai import BadRequestError

    file = BytesIO()
    soundfile.write(file, np.array(samples), 16_000, format="WAV", subtype="FLOAT")
    with pytest.raises(BadRequestError, match=reason):
        openai.audio.transcriptions.create(model=mini.model, file=("a.wav", file.getvalue()))
    data = base64.b64encode(file.getvalue()).decode()
    content: Any = message({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})
    with pytest.raises(BadRequestError, match=reason):
        openai.chat.completions.create(model=mini.model, messages=content)


def test_metadata_servers_are_refused(mini: Served, openai: Any) -> None:
    """A request that names a metadata server is answered 400, also where private addresses are admitted."""
    from openai import BadRequestError

    part = {"type": "audio_url", "audio_url": {"url": "http://169.254.169.254/latest/meta-data"}}
    with pytest.raises(BadRequestError, match="no recording is read from there"):
        openai.chat.completions.create(model=mini.model, messages=message(part))


def test_published_requests(mini: Served, voxtral: Path, wav: Path) -> None:
    """The requests of AWS's published example for Voxtral, of which a client replaces the audio parts, are answered in
    OpenAI's form: text, a recording by its address and as base64, two recordings, and a spoken request with a tool.
    """
    openai_form = runpy.run_path(str(CLIENTS / "sagemaker_client.py"))["openai_form"]
    inside = {"type": "audio", "data": f"data:audio/wav;base64,{base64.b64encode(wav.read_bytes()).decode()}"}
    question = {"type": "text", "text": "What is said?"}
    handler = partial(SimpleHTTPRequestHandler, directory=str(wav.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as files:
        Thread(target=files.serve_forever, daemon=True).start()
        outside = {"type": "audio", "path": f"http://127.0.0.1:{files.server_port}/{wav.name}"}
        contents: list[Any] = ["What is vLLM?", [question, outside], [question, inside], [outside, inside, question]]
        prompts = []
        for content in contents:
            asked = {"messages": [{"role": "user", "content": content}], "temperature": 0.2, "top_p": 0.95}
            found = invoked(mini, openai_form({**asked, "max_tokens": 5}))
            message = found["choices"][0]["message"]
            assert (message["role"], type(message["content"])) == ("assistant", str)
            assert found["usage"]["completion_tokens"] <= 5
            prompts.append(found["usage"]["prompt_tokens"])
        spoken = {"messages": [{"role": "user", "content": [outside]}], "tools": [TOOL], **calling(voxtral)}
        [call] = invoked(mini, openai_form(spoken))["choices"][0]["message"]["tool_calls"]
        files.shutdown()
    _, one, same, two = prompts
    assert one == same == two - 375 - 1  # [BEGIN_AUDIO]
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")


def invoked(of: Served, body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of /invocations."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{of.url}/invocations", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=200) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_tool_calls(mini: Served, voxtral: Path, openai: Any, wav: Path, choice: Any) -> None:
    """A request that must end with a tool call gets one whose name and arguments obey the tool's schema, at once and
    as a stream. vLLM leaves the blanks around a name that a random model writes into a stream.
    """
    asked = {"model": mini.model, "messages": message(audio(wav)), "tools": [TOOL], "tool_choice": choice}
    asked |= calling(voxtral)
    [call] = openai.chat.completions.create(**asked).choices[0].message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name.strip() == "get_weather"
    assert arguments.keys() == {"city", "days"}
    assert arguments["city"] in ("Paris", "Rome")
    assert arguments["days"] in range(1, 10)
    parts = [
        part.function
        for event in openai.chat.completions.create(stream=True, **asked)
        for part in event.choices[0].delta.tool_calls or ()
    ]
    assert "".join(part.name or "" for part in parts).strip() == "get_weather"
    assert json.loads("".join(part.arguments or "" for part in parts)) == arguments


def calling(voxtral: Path) -> dict[str, Any]:
    """Return parameters with which a random model calls a tool.

    vLLM's grammar allows any text before a call, also if a call is required. So the token that begins a call is
    preferred, and no tokens of blanks are allowed, so that the JSON ends soon.
    """
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tekken = Tekkenizer.from_file(voxtral / "tekken.json")
    blanks = [token for token in range(tekken.num_special_tokens, tekken.n_words) if not tekken.decode([token]).strip()]
    bias = {tekken.get_special_token("[TOOL_CALLS]"): 50, **dict.fromkeys(blanks, -100)}
    return {"logit_bias": bias, "parallel_tool_calls": False, "max_tokens": 60, "temperature": 0}


def test_too_many_recordings_are_refused(mini: Served, openai: Any, wav: Path) -> None:
    """Five recordings are the limit of vLLM, also if a file says eight; what the context cannot hold is refused."""
    from openai import BadRequestError

    asked = {"model": mini.model, "max_tokens": 4}
    with pytest.raises(BadRequestError, match="At most 5 audio"):
        openai.chat.completions.create(messages=message(*[audio(wav)] * 6), **asked)
    long = [*message(audio(wav)), {"role": "user", "content": "one two three four " * 1_200}]
    with pytest.raises(BadRequestError, match="4096"):
        openai.chat.completions.create(messages=long, **asked)


def test_sagemaker_endpoints(mini: Served, wav: Path) -> None:
    """boto3's own client asks /invocations, without the endpoint's path, which SageMaker removes. /ping answers."""
    boto3 = pytest.importorskip("boto3")
    ask = runpy.run_path(str(CLIENTS / "sagemaker_client.py"))["ask"]
    keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none", "region_name": "eu-west-1"}
    runtime = boto3.client("sagemaker-runtime", endpoint_url=mini.url, **keys)

    def remove_path(request: Any, **_: Any) -> None:
        assert request.url == f"{mini.url}/endpoints/calls/invocations"
        request.url = f"{mini.url}/invocations"

    runtime.meta.events.register("before-send.sagemaker-runtime.InvokeEndpoint", remove_path)
    assert ask(runtime, "calls", "What is said?", str(wav))
    with urllib.request.urlopen(f"{mini.url}/ping", timeout=100) as answer:
        assert answer.status == 200


def test_example_clients(mini: Served, live: Served, wav: Path) -> None:
    """The clients of examples/clients run as they are."""
    for name, arguments, variables in (
        ("chat.py", ["What is said?", wav], {"OPENAI_BASE_URL": f"{mini.url}/v1"}),
        ("agent.py", [wav], {"OPENAI_BASE_URL": f"{mini.url}/v1"}),
        (
            "stream_file.py",
            [wav, 0],
            {"VOXBATCH_SERVER": live.realtime_url, "VOXBATCH_SERVED_MODEL": live.model},
        ),
    ):
        command = [sys.executable, str(CLIENTS / name), *map(str, arguments)]
        done = subprocess.run(command, env=environment(**variables), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{name}: {done.stderr[-2000:]}"
        assert done.stdout.strip(), name


@pytest.mark.parametrize(("peer", "caller"), [("169.254.8.129", "203.0.113.9"), ("192.0.2.7", "192.0.2.7")])
def test_caller_of_cloud_run_is_not_the_address_that_it_writes(peer: str, caller: str) -> None:
    """With the setting of jobs/cloudrun, uvicorn takes the last address of X-Forwarded-For, which Google's front end
    adds, if the request comes from a link-local address; and none that the caller sends itself.
    """
    module = (ROOT / "jobs" / "cloudrun" / "terraform" / "service" / "main.tf").read_text()
    (trusted,) = re.findall(r'FORWARDED_ALLOW_IPS = "([^"]+)"', module)
    seen: dict[str, Any] = {}

    async def app(scope: dict[str, Any], *_: object) -> None:
        seen.update(scope)

    middleware = import_module("uvicorn.middleware.proxy_headers").ProxyHeadersMiddleware(app, trusted)
    headers = [(b"x-forwarded-for", b"198.51.100.1, 203.0.113.9")]
    asyncio.run(middleware({"type": "http", "scheme": "http", "client": (peer, 1), "headers": headers}, None, None))
    assert seen["client"][0] == caller


def test_benchmark_of_an_instruct_model(mini: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """bench_serve.py gets exactly the tokens that it asks for, from a chat."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "gpu")
    given = SimpleNamespace(seconds=2.0, concurrency=[2], waves=2, tokens=7, is_realtime=False, line={}, out=None)
    [line] = asyncio.run(import_module("bench_serve").measured(mini.port, "chat", given))
    assert (line["requests"], line["tokens"]) == (4, 7)
    assert 0 < line["first_s"] < line["p95_s"]


async def streamed(of: Served, waveform: np.ndarray, block: int) -> dict[str, Any]:
    """Stream a waveform in blocks of samples, and return the last event."""
    import websockets

    pcm = np.round(waveform * 32768).clip(-32768, 32767).astype("<i2").tobytes()
    async with websockets.connect(of.realtime_url, max_size=None) as connection:
        await connection.recv()
        await connection.send(json.dumps({"type": "session.update", "model": of.model}))
        await connection.send(json.dumps({"type": "input_audio_buffer.commit"}))
        for start in range(0, len(pcm), 2 * block):
            data = base64.b64encode(pcm[start : start + 2 * block]).decode()
            await connection.send(json.dumps({"type": "input_audio_buffer.append", "audio": data}))
        await connection.send(json.dumps({"type": "input_audio_buffer.commit", "final": True}))
        while True:
            event: dict[str, Any] = json.loads(await asyncio.wait_for(connection.recv(), 200))
            assert event["type"] != "error", event
            if event["type"] == "transcription.done":
                return event


@pytest.mark.parametrize("block", [640, 7_680], ids=["40 ms", "480 ms"])
def test_realtime_gives_the_tokens_of_a_batch(
    live: Served, realtime: Path, realtime_spoken: Spoken, block: int
) -> None:
    """Audio that is streamed, in small or large messages, gives the text that stock vLLM gives for the whole chunk, and
    one token more, of the padding at its end.

    It does not with the look-back of 52.5 ms in the model's tekken.json, which `serve` rounds to 60 ms.
    """
    from voxbatch.vllm.engine.tekken import load_tekken

    names = sorted(realtime_spoken.waveforms, key=lambda name: len(realtime_spoken.waveforms[name]))
    decode = load_tekken(realtime).decode
    for name in (names[5], names[16], names[28]):
        event = asyncio.run(streamed(live, realtime_spoken.waveforms[name], block))
        expected = realtime_spoken.tokens[name]
        assert event["usage"]["completion_tokens"] == len(expected) + 1, name
        # the last token of the chunk may be a part of a character
        assert event["text"].startswith(decode(expected).rstrip("\ufffd")), name


def test_transcriptions_at_a_time_end_with_their_audio(live: Served, realtime: Path, realtime_spoken: Spoken) -> None:
    """Recordings that are transcribed at the same time, by a model that never writes an end, give the tokens of a
    batch. The server survives: vLLM alone dies, with all its requests, when a text outlasts its audio.
    """
    from openai import OpenAI

    from voxbatch.vllm.engine.tekken import load_tekken

    decode, client = load_tekken(realtime).decode, OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)

    def said(name: str) -> str:
        file = BytesIO()
        soundfile.write(file, realtime_spoken.waveforms[name], 16_000, subtype="PCM_16", format="WAV")
        found: str = client.audio.transcriptions.create(model=live.model, file=("call.wav", file.getvalue())).text
        return found

    names = sorted(realtime_spoken.waveforms, key=lambda name: len(realtime_spoken.waveforms[name]))[5:20:3]
    with client, ThreadPoolExecutor(len(names)) as threads:
        for name, text in zip(names, threads.map(said, names), strict=True):
            assert text.rstrip("\ufffd") == decode(realtime_spoken.tokens[name]).rstrip("\ufffd"), name
    assert is_healthy(live.url)


@pytest.mark.skipif(browser.CHROMIUM is None, reason="there is no Chromium")
def test_page_with_a_microphone(live: Served, wav: Path, tmp_path: Path) -> None:
    """The page sends what a (fake) microphone hears, shows the text as it comes, and ends when Stop is pressed."""
    flags = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
    with browser.browser(*flags, f"--use-file-for-fake-audio-capture={wav}") as page:
        address = (CLIENTS / "microphone.html").as_uri()
        page.open(f"{address}?server={live.realtime_url}&model={live.model}")
        page.click("#button")
        page.wait("document.getElementById('text').textContent.length > 20")
        page.screenshot(tmp_path / "page.png")
        page.click("#button")
        page.wait("document.getElementById('state').textContent === 'done'")
        assert page.complaints == []


def test_a_signal_ends_the_server(live: Served) -> None:
    """SIGTERM ends the server with all its processes: they are those of vLLM, under the id that was started. Until
    then, it keeps the limit of requests, and its access log is JSON. The openai package gets its RateLimitError with
    the time to wait, a WebSocket the status 429; probes are never refused. No later test can use this server.
    """
    import httpx2
    import psutil
    from openai import OpenAI, RateLimitError
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    client = OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)  # before the limit allows one more
    codes: list[int] = []
    while 429 not in codes:
        codes.append(httpx2.get(f"{live.url}/v1/models").status_code)
    assert {*codes[:-1]} == {200}
    assert len(codes) < 2 * RATE_LIMIT
    with client, pytest.raises(RateLimitError, match="too many requests; try again in") as refused:
        client.models.list()
    assert 0 < int(refused.value.response.headers["retry-after"]) <= 3600 / RATE_LIMIT
    with pytest.raises(InvalidStatus, match="429"):
        connect(live.realtime_url)
    assert is_healthy(live.url)
    codes += [429, 429]
    children = psutil.Process(live.process.pid).children(recursive=True)
    assert "vllm" in " ".join(psutil.Process(live.process.pid).cmdline())
    assert children
    live.process.send_signal(signal.SIGTERM)
    assert gone(children, 120)
    lines = [json.loads(line) for line in live.log.read_text().splitlines() if line.startswith("{")]
    logged = [line["httpRequest"]["status"] for line in lines if line["message"] == "request"]
    assert logged[-len(codes) :] == codes


def test_a_transcript_does_not_depend_on_its_company(tmp_path: Path) -> None:
    """Recordings of Granite Speech that are encoded in one step get the texts that each has alone. vLLM pads them
    without a mask. The server is stopped while the recordings come, and forgets between the two ways.
    """
    pytest.importorskip("torchaudio")
    import httpx2
    from sounds import babble
    from speech_models import write_granite_speech

    write_granite_speech(tmp_path / "granite")
    clips = [BytesIO() for _ in range(4)]
    for number, clip in enumerate(clips):
        soundfile.write(clip, babble(0.6 + 3 * number, number), 16_000, format="WAV")
    options = ("--engine-option", "max_model_len=896", "--", "--enable-log-requests")
    with (
        served(tmp_path / "granite", tmp_path / "log", *options, VLLM_SERVER_DEV_MODE="1") as server,
        httpx2.Client(base_url=server.url, timeout=200) as client,
        ThreadPoolExecutor(len(clips)) as threads,
    ):

        def text(clip: BytesIO) -> str:
            files = {"file": ("a.wav", clip.getvalue())}
            answer = client.post("/v1/audio/transcriptions", data={"model": server.model}, files=files)
            return str(answer.raise_for_status().json()["text"])

        alone = [text(clip) for clip in clips]
        client.post("/pause").raise_for_status()
        client.post("/reset_encoder_cache").raise_for_status()
        together = [threads.submit(text, clip) for clip in clips]
        waits.until(lambda: server.log.read_text().count("Added request") == 2 * len(clips))
        client.post("/resume").raise_for_status()
        assert [answer.result() for answer in together] == alone
    assert len({*alone}) == len(clips)


# ── the command line, without a server ────────────────────────────────────────────────────────────────────────────────


def flags(printed: str) -> dict[str, str]:
    """Return the flags of a printed command with their values."""
    words = shlex.split(printed)
    return {word: following for word, following in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}


def test_dry_run_prints_the_arguments_of_the_profile(voxbatch: Voxbatch, voxtral: Path) -> None:
    """The command has the profile's values; options of the user, and arguments after --, come after them."""
    done = voxbatch(
        "serve", "--model", voxtral, "--profile", "mini-3b", "--engine-option", "max_num_seqs=7", "--dry-run", "--",
        "--api-key", "secret",
    )  # fmt: skip
    found = flags(done.stdout)
    assert {name: found[name] for name in ("--max-model-len", "--dtype", "--max-num-seqs", "--api-key")} == {
        "--max-model-len": "1024", "--dtype": "bfloat16", "--max-num-seqs": "7", "--api-key": "secret",
    }  # fmt: skip
    assert found["--tool-call-parser"] == "mistral"
    assert json.loads(found["--limit-mm-per-prompt"]) == {"audio": 5}


def test_published_serving_properties(voxbatch: Voxbatch, voxtral: Path) -> None:
    """AWS's published serving.properties configures the server: its own keys for a server have an effect here."""
    file = ROOT.parent / "shared" / "world" / "serving.properties"
    if not file.is_file():
        pytest.skip("the published files are not here")
    done = voxbatch(
        "serve", "--serving-properties", file, "--model", voxtral, "--engine-option", "tensor_parallel_size=1",
        "--dry-run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--enable-prefix-caching" in done.stdout.rpartition("--no-enable-prefix-caching")[2]
    assert "without effect here: option.trust_remote_code" in done.stderr


def test_sagemaker_starts_the_server_with_one_word(voxbatch: Voxbatch, voxtral: Path, tmp_path: Path) -> None:
    """SageMaker runs `serve` with the variables of the job files: vLLM listens at port 8080 for every machine, with the
    values of the serving.properties beside the weights.
    """
    folder = ROOT / "jobs" / "sagemaker" / "endpoint"
    model = load(folder / "template.yaml")["Resources"]["Model"]["Properties"]["PrimaryContainer"]["Environment"]
    variables = {name: value for name, value in model.items() if name.startswith("VOXBATCH_")}
    file = tmp_path / "serving.properties"
    file.write_text((folder / "serving.properties").read_text().replace("/opt/ml/model", str(voxtral)))
    variables |= {"VOXBATCH_SERVING_PROPERTIES": str(file), "VOXBATCH_DRY_RUN": "1"}
    variables["VOXBATCH_ENGINE_OPTION"] = "tensor_parallel_size=1"  # this machine has no GPU
    done = voxbatch("serve", env=variables)
    assert done.returncode == 0, done.stderr
    found = flags(done.stdout)
    names = ("--host", "--port", "--max-model-len", "--max-num-seqs", "--dtype")
    assert [found[name] for name in names] == ["0.0.0.0", "8080", "32768", "16", "bfloat16"]
    assert "Warning" not in done.stderr


def test_cloud_run_starts_the_server_with_its_variables(voxbatch: Voxbatch, realtime: Path) -> None:
    """The arguments and variables of Cloud Run's service give vLLM the port, the length and the concurrency.

    tests/clouds/test_jobs_service.py has the service's definition evaluated and compares the same arguments.
    """
    options = "max_model_len=8192 gpu_memory_utilization=0.9 max_num_seqs=8"
    variables = {"PORT": "8080", "VOXBATCH_ENGINE_OPTION": options, "VOXBATCH_MODEL": str(realtime)}
    arguments = ("serve", "--host", "0.0.0.0", "--profile", "ctx512")
    done = voxbatch(*arguments, "--dry-run", env=variables)
    assert done.returncode == 0, done.stderr
    found = flags(done.stdout)
    names = ("--host", "--port", "--max-model-len", "--max-num-seqs")
    assert [found[name] for name in names] == ["0.0.0.0", "8080", "8192", "8"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profile", "cpu"], "--profile cpu is for the engine faster-whisper, and only vllm has a server"),
        (["--engine-option", "prefill_encoder=true"], "the plugin's encoder needs whole recordings"),
        (["--engine-option", "task=ask"], "it is for voxbatch ask"),
        (["--engine-option", "max_len=3"], "max_len"),
        (["--port", "0"], "0 is not in the range"),
    ],
)
def test_wrong_options_are_refused(voxbatch: Voxbatch, realtime: Path, arguments: list[str], said: str) -> None:
    """A wrong option is refused before anything is loaded."""
    done = voxbatch("serve", "--model", realtime, *arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr


@pytest.fixture(scope="module")
def tts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a model whose speeches do not end."""
    import omni_on_cpu
    from speaking_model import write_speaker

    folder = tmp_path_factory.mktemp("tts")
    found = f"{ROOT}:{omni_on_cpu.site(folder / 'site')}:{Path(omni_on_cpu.__file__).parent}"
    options = ("--profile", "tts", "--engine-option", "enforce_eager=true", "--engine-option", "max_num_seqs=4")
    write_speaker(folder / "speaker", end_gain=0)
    with served(folder / "speaker", folder / "log", *options, on_cpu=(), PYTHONPATH=found) as server:
        yield server


@with_omni
def test_speech_is_served(tts: Served) -> None:
    """The openai package gets a speech at once, and in parts: all frames, at 24 kHz, the same number of samples in WAV,
    PCM and events. An unknown voice and an empty text are refused with the reason."""
    from openai import BadRequestError, OpenAI

    limit = {"max_new_tokens": SPEECH_FRAMES}
    with OpenAI(base_url=f"{tts.url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [tts.model]
        asked: dict[str, Any] = {"model": tts.model, "input": "The train leaves at nine.", "voice": "ann"}
        whole = client.audio.speech.create(**asked, response_format="wav", extra_body=limit)
        samples, rate = soundfile.read(BytesIO(whole.content))
        assert (rate, len(samples)) == (24_000, SPEECH_FRAMES * 1_920)
        assert np.abs(samples).max() > 0
        streaming = client.audio.speech.with_streaming_response
        with streaming.create(
            **asked, response_format="pcm", extra_body={**limit, "stream": True, "stream_format": "audio"}
        ) as answer:
            assert sum(map(len, answer.iter_bytes())) == SPEECH_FRAMES * 1_920 * 2
        with streaming.create(**asked, response_format="pcm", extra_body={**limit, "stream": True}) as answer:
            events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
        assert [event["type"] for event in events[-1:]] == ["speech.audio.done"]
        assert len(events) > 2, "the speech came in one part"
        for wrong, reason in (({"voice": "eve"}, "ann, bob"), ({"input": " "}, "empty")):
            with pytest.raises(BadRequestError, match=reason):
                client.audio.speech.create(**{**asked, **wrong})
