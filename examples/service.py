"""A service that transcribes uploads: segments while they come, subtitles at the end, and cancel; see docs/service.md.

pip install fastapi uvicorn python-multipart
uvicorn service:app
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Query, Response, UploadFile
from fastapi.responses import PlainTextResponse, StreamingResponse

import voxbatch

MAX_BYTES = 100 << 20
MAX_JOBS = 8
"""Recordings that wait or are being transcribed. One is transcribed at a time."""
KEPT_JOBS = 100
"""Finished recordings whose text can be fetched."""


@dataclass
class Job:
    """A recording, and the events about it so far."""

    stream: voxbatch.SegmentStream
    events: list[tuple[str, str]] = field(default_factory=list)
    """Name and JSON text of each event. The last one is "done", "failed" or "cancelled"."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def has_ended(self) -> bool:
        return bool(self.events) and self.events[-1][0] != "segment"

    @property
    def state(self) -> str:
        name = self.events[-1][0] if self.events else "waiting"
        return "transcribing" if name == "segment" else name

    async def run(self) -> None:
        """Add the events of the recording."""
        try:
            async for segment in self.stream:
                await self.add("segment", asdict(segment))
            await self.add("done", {"text": (await self.stream.result_async()).text})
        except voxbatch.VoxbatchError as error:
            name = "cancelled" if isinstance(error, voxbatch.Cancelled) else "failed"
            await self.add(name, {"error": type(error).__name__, "message": str(error)})

    async def add(self, name: str, content: dict[str, object]) -> None:
        async with self.changed:
            self.events.append((name, json.dumps(content)))
            self.changed.notify_all()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with voxbatch.Transcriber() as app.state.transcriber:  # one model for all requests
        yield


app = FastAPI(lifespan=lifespan)
jobs: dict[str, Job] = {}
tasks: set[asyncio.Task[None]] = set()
taking = asyncio.Lock()
"""One upload at a time is counted and read: else many that come together exceed MAX_JOBS and the memory."""


def job_of(name: str) -> Job:
    if name not in jobs:
        raise HTTPException(404, f"there is no recording {name}")
    return jobs[name]


@app.post("/recordings", status_code=202)
async def upload(file: UploadFile) -> dict[str, str]:
    """Take a recording in any format, and begin."""
    async with taking:
        if sum(not job.has_ended for job in jobs.values()) >= MAX_JOBS:
            raise HTTPException(429, "too many recordings; try again later", {"Retry-After": "30"})
        data = await file.read(MAX_BYTES + 1)
        if not 0 < len(data) <= MAX_BYTES:
            raise HTTPException(413, f"a recording has 1 to {MAX_BYTES:,} bytes")
        for name in [name for name, job in jobs.items() if job.has_ended][:-KEPT_JOBS]:
            del jobs[name]
        name = uuid.uuid4().hex
        jobs[name] = job = Job(app.state.transcriber.stream(data))
    task = asyncio.create_task(job.run())
    tasks.add(task)  # asyncio itself forgets a task that nobody holds
    task.add_done_callback(tasks.discard)
    return {"id": name}


@app.get("/recordings/{name}")
async def status(name: str) -> dict[str, object]:
    """Return the state, and how many seconds of the recording are transcribed; its duration is known at the end."""
    job = job_of(name)
    transcript = job.stream.transcript
    ends = [json.loads(content)["end"] for kind, content in job.events if kind == "segment"]
    duration = transcript.audio_duration if transcript else None
    return {"state": job.state, "transcribed": max(ends, default=0.0), "duration": duration}


@app.get("/recordings/{name}/events")
async def events(
    name: str,
    last_event_id: Annotated[int, Query(ge=-1)] = -1,
    resumed_after: Annotated[int | None, Header(alias="Last-Event-ID", ge=-1)] = None,
) -> Response:
    """Send the segments as server-sent events, from the one after `last_event_id` on. `EventSource` tells it in a
    header when it connects again, until the status is 204."""
    job = job_of(name)
    first = (last_event_id if resumed_after is None else resumed_after) + 1
    if job.has_ended and first >= len(job.events):
        return Response(status_code=204)

    async def lines() -> AsyncIterator[str]:
        at = first
        while not (job.has_ended and at >= len(job.events)):
            async with job.changed:
                while len(job.events) <= at and not job.has_ended:
                    await job.changed.wait()
            for kind, content in job.events[at:]:
                yield f"id: {at}\nevent: {kind}\ndata: {content}\n\n"
                at += 1

    return StreamingResponse(lines(), media_type="text/event-stream")


@app.get("/recordings/{name}/text")
async def text(name: str, form: str = "txt") -> PlainTextResponse:
    """Return the text in any format of voxbatch: txt, srt, vtt, json, …"""
    job = job_of(name)
    transcript = job.stream.transcript
    if transcript is None:
        reason = f": {json.loads(job.events[-1][1])['message']}" if job.has_ended else ""
        raise HTTPException(409, f"the recording is {job.state}{reason}")
    try:
        return PlainTextResponse(transcript.to(form))
    except voxbatch.ConfigError as error:
        raise HTTPException(400, str(error)) from error


@app.delete("/recordings/{name}", status_code=204)
async def cancel(name: str) -> None:
    """Stop a recording. The next one begins."""
    await asyncio.to_thread(job_of(name).stream.close)
