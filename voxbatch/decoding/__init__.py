"""Turn recordings into Chunks in decoder processes, several at a time, ahead of the engine.

Decoding runs in processes rather than threads, for three reasons. It must use every core while the engine feeds its GPU
from this process. A decoder that crashes or hangs on a hostile file must lose one item and not the run. A decoder whose
messages are not read stops by itself, because its socket bounds the data that it can send ahead. A decoder process
imports no engine. The order is not kept: chunks of different recordings interleave as they become ready.

`pool` distributes the tasks to the decoder processes and judges the results. `decoder` is the program of such a
process, and `messages` defines the messages between them.
"""

from voxbatch.decoding.messages import SPLIT_ADVICE, Decoded, DecodeTask, Message, Undecodable
from voxbatch.decoding.pool import DecoderPool, warm_pool

__all__ = ["SPLIT_ADVICE", "DecodeTask", "Decoded", "DecoderPool", "Message", "Undecodable", "warm_pool"]
