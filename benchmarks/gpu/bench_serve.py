"""Measure `voxbatch serve` with many clients at a time, eager beside CUDA graphs.

    python benchmarks/gpu/bench_serve.py MODEL_DIR [--profile NAME] [--modes graphs eager] [--concurrency N …]
                                         [--waves W] [--seconds S] [--engine-option NAME=VALUE …] [--out FILE]

For each mode the server is started as a user starts it, with random weights. Then each way of asking is measured with
each number of clients. Every client sends its requests one after another, and all clients begin at the same moment:

    transcriptions   POST /v1/audio/transcriptions with a WAV file
    chat             POST /v1/chat/completions with a recording, streamed: for the instruct models
    realtime         a WebSocket at /v1/realtime, the whole recording at once: for Voxtral Realtime
    live             the same WebSocket, in messages of 480 ms at the speed of speech

The latency of a request is the time until its whole answer; of `live` it is the time from the last message of audio
until the answer is complete. `first_s` is the time from the first message until the first token, for the ways that
stream. RTF is the median latency by the seconds of audio, RTFx the seconds of audio of all requests by the time of the
measurement. One wave of requests goes before each way and is not measured.

The texts of random weights mean nothing, so each request has the number of tokens of a real one: Voxtral Realtime one
for each 80 ms of audio, the instruct models --tokens. vLLM does not let a client of /v1/audio/transcriptions ignore the
end of the text; random weights predict it in one of 131,072 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import itertools
import json
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import soundfile
from shared import RATE, ROOT, environment, swelling_noise, tell, watched

READY_S = 240
"""Seconds until a server must be healthy."""
PATIENCE_S = 200
"""Seconds after which a request has failed."""
MESSAGE_S = 0.48
"""Seconds of audio in a message of a stream."""
FEWEST = 4
"""Least number of requests of a single client."""
CLIPS = 8
"""Number of different recordings."""
MODES = {"graphs": "false", "eager": "true"}
"""The engine option enforce_eager of each mode."""
WAYS = {True: ("transcriptions", "realtime", "live"), False: ("transcriptions", "chat")}
"""The ways of asking, for Voxtral Realtime and for other models."""
END = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class Clip:
    """A recording of noise."""

    pcm: bytes
    """Samples of 16 bits, mono, at 16 kHz."""
    wav: bytes

    @property
    def seconds(self) -> float:
        return len(self.pcm) / 2 / RATE


@dataclass(frozen=True, slots=True)
class Answer:
    """The times of one answer in seconds."""

    latency_s: float
    first_s: float | None = None


@dataclass(frozen=True, slots=True)
class Client:
    """A connection to a server that is ready."""

    session: aiohttp.ClientSession
    model: str
    tokens: int
    """Number of tokens of an answer of an instruct model; 0 for Voxtral Realtime."""

    async def transcriptions(self, clip: Clip) -> Answer:
        """Send a recording as a file, and wait for its text."""
        form = aiohttp.FormData({"model": self.model, "language": "en"})
        form.add_field("max_completion_tokens", str(self.tokens or text_tokens(clip)))
        form.add_field("file", clip.wav, filename="clip.wav", content_type="audio/wav")
        began = time.monotonic()
        async with self.session.post("/v1/audio/transcriptions", data=form) as response:
            await read(response)
        return Answer(time.monotonic() - began)

    async def chat(self, clip: Clip) -> Answer:
        """Ask about a recording, and read the answer as it comes."""
        audio = {"data": base64.b64encode(clip.wav).decode(), "format": "wav"}
        content = [{"type": "input_audio", "input_audio": audio}, {"type": "text", "text": "What is said?"}]
        body = {
            "model": self.model, "messages": [{"role": "user", "content": content}], "max_tokens": self.tokens,
            "ignore_eos": True, "temperature": 0.0, "stream": True,
        }  # fmt: skip
        began, first_s = time.monotonic(), None
        async with self.session.post("/v1/chat/completions", json=body) as response:
            if response.status != 200:
                await read(response)
            async for line in response.content:
                if not line.startswith(b"data: ") or line.startswith(END):
                    continue
                event = json.loads(line.removeprefix(b"data: "))
                if first_s is None and event["choices"] and event["choices"][0]["delta"].get("content"):
                    first_s = time.monotonic() - began
        return Answer(time.monotonic() - began, first_s)

    async def realtime(self, clip: Clip) -> Answer:
        """Stream a recording as fast as possible."""
        return await self._stream(clip, pace=0.0)

    async def live(self, clip: Clip) -> Answer:
        """Stream a recording as if it were spoken."""
        return await self._stream(clip, pace=1.0)

    async def _stream(self, clip: Clip, pace: float) -> Answer:
        async with self.session.ws_connect("/v1/realtime", max_msg_size=0) as connection:
            await connection.receive_json()  # session.created
            await connection.send_json({"type": "session.update", "model": self.model})
            await connection.send_json({"type": "input_audio_buffer.commit"})
            began = time.monotonic()
            speaking = asyncio.create_task(speak(connection, clip, began, pace))
            first_s = None
            while True:
                event = await connection.receive_json()
                if event["type"] == "error":
                    speaking.cancel()
                    raise RuntimeError(event["error"])
                if event["type"] == "transcription.done":
                    break
                if first_s is None:
                    first_s = time.monotonic() - began
            spoken = await speaking
            waited_since = spoken if pace else began
            return Answer(time.monotonic() - waited_since, first_s)


async def speak(connection: aiohttp.ClientWebSocketResponse, clip: Clip, began: float, pace: float) -> float:
    """Send a recording, and return the time of its last message."""
    block = 2 * round(MESSAGE_S * RATE)
    for start in range(0, len(clip.pcm), block):
        data = clip.pcm[start : start + block]
        due = began + pace * (start + len(data)) / 2 / RATE  # a message can be sent when its last sample is spoken
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        message = {"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()}
        await connection.send_json(message)
    await connection.send_json({"type": "input_audio_buffer.commit", "final": True})
    return time.monotonic()


async def read(response: aiohttp.ClientResponse) -> str:
    """Return the body of a response.

    Raises:
        RuntimeError: the server refused the request.
    """
    text = await response.text()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {text[:300]}")
    return text


def text_tokens(clip: Clip) -> int:
    """Return the number of tokens that Voxtral Realtime writes for a recording. It does not depend on the delay."""
    from voxbatch.vllm.engine.realtime_limits import max_tokens

    return max_tokens(len(clip.pcm) // 2, delay=0)


def clips(seconds: float) -> list[Clip]:
    """Return different recordings of swelling noise."""
    found = []
    for seed in range(CLIPS):
        samples = swelling_noise(round(seconds * RATE), seed)
        pcm, wav = (samples * 32_767).astype("<i2"), io.BytesIO()
        soundfile.write(wav, pcm, RATE, subtype="PCM_16", format="WAV")
        found.append(Clip(pcm.tobytes(), wav.getvalue()))
    return found


# -- the server --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(command: list[str], log: Path) -> Iterator[float]:
    """Run a server, and give the seconds until it was ready.

    Raises:
        RuntimeError: the server ended, or took too long.
    """
    began = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=file, stderr=file)
    port = command[command.index("--port") + 1]
    try:
        while not is_healthy(f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None or time.monotonic() - began > READY_S:
                raise RuntimeError(f"the server is not ready: {log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.25)
        yield time.monotonic() - began
    finally:
        process.terminate()  # it ends with all its processes (tests/engine_vllm/test_serve.py)
        process.wait()


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# -- the measurement ---------------------------------------------------------------------------------------------------


async def measured(port: int, way: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a line for each number of clients."""
    seconds, recordings = given.seconds, clips(given.seconds)
    found: list[dict[str, Any]] = []
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{port}", timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        models = json.loads(await read(await session.get("/v1/models")))
        client = Client(session, models["data"][0]["id"], 0 if given.is_realtime else given.tokens)
        ask = getattr(client, "realtime" if way == "live" else way)
        await all_clients(ask, clips(1.0), max(given.concurrency), 1)
        ask = getattr(client, way)
        for concurrency in given.concurrency:
            waves = 1 if way == "live" else max(given.waves, FEWEST if concurrency == 1 else 1)
            found.append({"way": way, "concurrency": concurrency, "clip_s": seconds})
            before = await generated(session)
            with watched() as gpu:
                began = time.monotonic()
                answers, errors = await all_clients(ask, recordings, concurrency, waves)
                wall_s = time.monotonic() - began
            tokens = round((await generated(session) - before) / max(1, len(answers)), 1)
            found[-1] |= {**figures(answers, errors, seconds, wall_s), "tokens": tokens, **gpu}
            tell({**given.line, **found[-1]}, given.out)
            if not answers:
                raise RuntimeError(f"{way}: no request was answered: {errors[0]}")
    return found


async def generated(session: aiohttp.ClientSession) -> float:
    """Return the number of tokens that the server has generated since its start."""
    metrics = await read(await session.get("/metrics"))
    return sum(
        float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith("vllm:generation_tokens_total")
    )


async def all_clients(
    ask: Callable[[Clip], Awaitable[Answer]], recordings: list[Clip], concurrency: int, waves: int
) -> tuple[list[Answer], list[str]]:
    """Let a number of clients ask one after another, and return the answers and the errors."""
    following, answers, errors = itertools.cycle(recordings), list[Answer](), list[str]()

    async def ask_often() -> None:
        for _ in range(waves):
            try:
                async with asyncio.timeout(PATIENCE_S):
                    answers.append(await ask(next(following)))
            except (aiohttp.ClientError, OSError, RuntimeError, TypeError, ValueError) as e:
                errors.append(f"{type(e).__name__}: {e}")

    await asyncio.gather(*(ask_often() for _ in range(concurrency)))
    return answers, errors


def figures(answers: list[Answer], errors: list[str], seconds: float, wall_s: float) -> dict[str, Any]:
    """Return the figures of the answers to requests of `seconds` of audio each."""
    failed = {"failed": len(errors), "first_error": errors[0]} if errors else {}
    if not answers:
        return {"requests": 0, **failed}
    p50, p90, p95 = np.percentile([each.latency_s for each in answers], [50, 90, 95], method="inverted_cdf")
    first = [each.first_s for each in answers if each.first_s is not None]
    return {
        "requests": len(answers), "p50_s": round(p50, 3), "p90_s": round(p90, 3), "p95_s": round(p95, 3),
        "first_s": round(float(np.median(first)), 3) if first else None, "rtf": round(p50 / seconds, 4),
        "rtfx": round(len(answers) * seconds / wall_s, 1), "requests_per_s": round(len(answers) / wall_s, 2),
        "wall_s": round(wall_s, 2), **failed,
    }  # fmt: skip


def main() -> None:
    given = parsed()
    lines: list[dict[str, Any]] = []
    for mode in given.modes:
        port = free_port()
        options = ["load_format=dummy", f"enforce_eager={MODES[mode]}", *given.engine_option]
        command = [sys.executable, "-m", "voxbatch", "serve", "--profile", given.profile, "--model", given.model]
        command += ["--port", str(port), *(part for each in options for part in ("--engine-option", each))]
        given.line = {"name": given.profile, "mode": mode, "model": Path(given.model).name}
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            try:
                with served(command, log) as ready_s:
                    tell({**given.line, "command": shlex.join(command), "ready_s": round(ready_s, 1)}, given.out)
                    for way in WAYS[given.is_realtime]:
                        lines += [{**given.line, **line} for line in asyncio.run(measured(port, way, given))]
            except RuntimeError as e:
                tell({**given.line, "error": str(e)}, given.out)
    if not lines or any(line.get("failed") for line in lines):
        sys.exit("some requests failed: see the errors above")


def parsed() -> argparse.Namespace:
    from voxbatch.vllm.engine.model import REALTIME, locate

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=lambda folder: str(Path(folder).resolve()))
    parser.add_argument("--profile", default="ctx512-batch")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 32, 64], help="numbers of clients")
    parser.add_argument("--waves", type=int, default=3, help="requests of each client; live has one")
    parser.add_argument("--seconds", type=float, default=10.0, help="of audio in a request")
    parser.add_argument("--tokens", type=int, default=40, help="of text in an answer of an instruct model")
    parser.add_argument("--engine-option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path, help="append the lines there too")
    given = parser.parse_args()
    given.is_realtime = locate(given.model, None).family == REALTIME
    return given


if __name__ == "__main__":
    main()
