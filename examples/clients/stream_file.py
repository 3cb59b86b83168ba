"""Send a file to Voxtral Realtime as if it were spoken now, and print the text as it comes.

voxbatch serve --profile ctx512
pip install soundfile soxr websockets
python stream_file.py talk.flac
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys

import soundfile
import soxr
import websockets

SERVER = os.environ.get("VOXBATCH_SERVER", "ws://127.0.0.1:8000/v1/realtime")
MODEL = os.environ.get("VOXBATCH_SERVED_MODEL", "mistralai/Voxtral-Mini-4B-Realtime-2602")
RATE = 16_000
BLOCK_S = 0.48
"""Seconds of audio in a message."""


async def main(path: str, pace: float = 1.0) -> None:
    """Stream one file. `pace` 1 is real time, 0 as fast as possible."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono = soxr.resample(samples.mean(axis=1), rate, RATE)
    audio = (mono * 32767).clip(-32768, 32767).astype("<i2").tobytes()
    async with websockets.connect(SERVER, max_size=None) as socket:
        await socket.recv()  # session.created
        await socket.send(json.dumps({"type": "session.update", "model": MODEL}))
        await socket.send(json.dumps({"type": "input_audio_buffer.commit"}))

        async def speak() -> None:
            block = 2 * round(BLOCK_S * RATE)
            for start in range(0, len(audio), block):
                data = base64.b64encode(audio[start : start + block]).decode()
                await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": data}))
                await asyncio.sleep(BLOCK_S * pace)
            await socket.send(json.dumps({"type": "input_audio_buffer.commit", "final": True}))

        speaking = asyncio.create_task(speak())
        async for message in socket:
            event = json.loads(message)
            if event["type"] == "transcription.delta":
                print(event["delta"], end="", flush=True)
            elif event["type"] == "transcription.done":
                print()
                break
            elif event["type"] == "error":
                sys.exit(f"the server says: {event['error']}")
        await speaking


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(float, sys.argv[2:])))
