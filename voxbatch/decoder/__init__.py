"""Recordings → Chunks in worker processes, several at a time, ahead of the engine.

Processes rather than threads, because decoding must use every core while the engine feeds its GPU from this one,
because a decoder that crashes or hangs on a hostile file must take one item with it and not the run, and because a
worker that nobody reads from stops by itself: its socket is the bounded window. A worker imports no engine. Does not
order: chunks of different recordings interleave as they become ready.

`pool` deals the tasks out and judges what comes of them, `process` is a worker as the pool sees it, `worker` its own
life, and `messages` what they tell each other.
"""

from voxbatch.decoder.messages import Decoded, Message, Task, Undecodable
from voxbatch.decoder.pool import DecoderPool
from voxbatch.decoder.process import spares

__all__ = ["Decoded", "DecoderPool", "Message", "Task", "Undecodable", "spares"]
