"""The engine for NVIDIA's Parakeet and its family (CTC, RNN-T, TDT), by PyTorch, on NVIDIA GPUs.

    chunks → groups of up to GROUP_CLIPS clips → batches of rows (packing) → network → tokens → words

Three threads share the work: one chooses the next group and copies its samples to the GPU, one gives the GPU its work,
and the caller's makes words. The GPU has its next group before it has ended one.
"""

from __future__ import annotations

import dataclasses
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from voxbatch.engines import EngineSpec, Feed, gpu
from voxbatch.engines.kernel_cache import KernelCache, kernels_key
from voxbatch.engines.results import EngineMessage, Result
from voxbatch.engines.suspect_text import PieceText, flags, suspicions
from voxbatch.errors import EngineError
from voxbatch.records import SAMPLING_RATE, Chunk, Hypothesis
from voxbatch.settings import check_settings, parse
from voxbatch.settings import setting as setting
from voxbatch.storage import DEFAULT_STORES, Stores
from voxbatch.transducers.model import download, locate
from voxbatch.transducers.options import TransducerOptions
from voxbatch.transducers.requirements import check_installed, require_gpu
from voxbatch.transducers.words import Vocabulary

if TYPE_CHECKING:
    from voxbatch.transducers.network import ChunkGroup, Network
    from voxbatch.transducers.tokens import Tokens

ROW_FRAMES = (312, 376, 440)
"""Lengths of the rows in which clips are packed, in frames of 80 ms: 25, 30 and 35 s. Each is compiled once."""
GROUP_CLIPS = 512
"""Most clips that are decoded together: a step of 512 takes hardly longer than one of 256."""
POOL_CLIPS = 1024
"""Clips among which a group is chosen, so that its clips have similar lengths."""


@dataclass(frozen=True, slots=True)
class _DecodedGroup:
    """A group that the network has decoded."""

    chunks: Sequence[Chunk]
    tokens: Sequence[Tokens | None]
    """None for a chunk that is too short for the network."""


class TransducersEngine:
    """The engine: see `Engine` for its methods."""

    def __init__(self, model: str | None, options: Mapping[str, str], stores: Stores = DEFAULT_STORES):
        self._options = parse(TransducerOptions, "transducers", options)
        check_settings(self._options)
        check_installed()
        self._model = located = locate(model, stores)
        self._stores = stores
        self._network: Network | None = None
        self._kernels: KernelCache | None = None
        self._vocabulary: Vocabulary
        self.spec = EngineSpec(
            name="transducers",
            model=located.name,
            max_chunk_samples=round((ROW_FRAMES[-1] - 1) * located.frame_s * SAMPLING_RATE),
            concurrency=POOL_CLIPS,
            prefetch=64,
            languages=located.languages,
            uses_language=bool(located.prompts),
            word_times=True,
            confidence=True,
            own_process=True,
            license=located.license,
            origin=located.origin,
            versions={name: metadata.version(name) for name in ("torch", "transformers")},
            decoding={"dtype": self._options.dtype, **located.identity},
            workers=gpu.worker_environments(),
        )

    def stream(self, feed: Feed) -> Iterator[Result]:
        """Transcribe the chunks of the feed; see `Engine.stream`."""
        if self._network is None:
            require_gpu()
            yield from download(self._model)
            if place := self._options.kernel_cache:
                facts = {"model": [*self._model.identity.values()], "settings": dataclasses.astuple(self._options)[:2]}
                self._kernels = KernelCache(place, kernels_key(facts), self._stores)
                os.environ.update(self._kernels.environment())
                yield self._kernels.fetch()  # before PyTorch is imported
            yield from self._load()
        assert self._network is not None
        # An encoder is compiled for GPUs only: PyTorch needs a C++ compiler for a CPU.
        compile_after_s = self._options.compile_after_s if self._network.on_gpu else math.inf
        work = _StreamThreads(self._network, feed, compile_after_s)
        for decoded in work.results():
            for chunk, tokens in zip(decoded.chunks, decoded.tokens, strict=True):
                yield self._hypothesis(chunk, tokens)
        if self._kernels is not None and not feed.discarded and (message := self._kernels.store()):
            yield message

    def gpu_bytes(self) -> int | None:
        """Return the bytes in use on the GPU; see `Engine.gpu_bytes`."""
        return next((info.used_bytes for info in gpu.visible_gpus()), None)

    def close(self) -> None:
        """Unload the model; see `Engine.close`."""
        self._network = None

    def _load(self) -> Iterator[EngineMessage]:
        import torch

        from voxbatch.transducers.loading import load
        from voxbatch.transducers.network import Network

        began = time.monotonic()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cpu" and gpu.visible_gpus():  # a run on the CPU would take days, and the GPU would wait
            raise EngineError(gpu.why_unusable(torch.version.cuda))
        name = self._options.dtype
        if name == "auto":
            name = "float32" if device == "cpu" else "bfloat16" if torch.cuda.is_bf16_supported(False) else "float16"
        network, pieces = load(self._model, device, getattr(torch, name))
        self._vocabulary = Vocabulary(pieces)
        self._network = Network(self._model, network, ROW_FRAMES, self._options.rows, GROUP_CLIPS)
        where = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
        yield EngineMessage(f"{self._model.name} in {name} on {where}: ready in {time.monotonic() - began:.1f} s")

    def _hypothesis(self, chunk: Chunk, tokens: Tokens | None) -> Hypothesis:
        if tokens is None:
            return Hypothesis(chunk.item, chunk.index, "")
        frame_s, seconds = self._model.frame_s, len(chunk.samples) / SAMPLING_RATE
        starts, ends = tokens.starts * frame_s, tokens.ends * frame_s
        words = self._vocabulary.words(tokens.ids, starts, ends, tokens.probabilities, seconds)
        text = "".join(word.text for word in words).strip()
        reasons = flags(suspicions(chunk.samples, PieceText(text, words)))
        return Hypothesis(chunk.item, chunk.index, text, words, flags=reasons)


class _StreamThreads:
    """The threads of one stream.

    The pool belongs to the preparing thread alone, and the network's state to the decoding thread; groups and results
    pass between them through queues.
    """

    def __init__(self, network: Network, feed: Feed, compile_after_s: float):
        self._network, self._feed, self._compile_after_s = network, feed, compile_after_s
        self._pool: list[Chunk] = []
        """Chunks without a group, the oldest first."""
        self._slots = threading.Semaphore(2)
        """One group that the GPU works on, and one that it finds ready then."""
        self._prepared: queue.SimpleQueue[tuple[Sequence[Chunk], ChunkGroup] | None] = queue.SimpleQueue()
        self._decoded: queue.SimpleQueue[_DecodedGroup | BaseException | None] = queue.SimpleQueue()

    def results(self) -> Iterator[_DecodedGroup]:
        """Yield the decoded groups until the feed is closed and empty.

        Raises:
            Exception: the network failed.
        """
        for target in (self._prepare, self._decode):
            threading.Thread(target=self._guarded, args=(target,), daemon=True, name=target.__name__).start()
        while (decoded := self._decoded.get()) is not None:
            if isinstance(decoded, BaseException):
                raise decoded
            yield decoded

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as e:  # noqa: BLE001 the caller's thread raises it
            self._decoded.put(e)

    def _prepare(self) -> None:
        """Choose groups, and copy their samples to the device."""
        from voxbatch.transducers.network import MIN_SAMPLES

        while True:
            self._slots.acquire()
            chunks = self._next_chunks()
            if not chunks:
                self._prepared.put(None)
                return
            long = [chunk for chunk in chunks if len(chunk.samples) >= MIN_SAMPLES]
            if len(long) < len(chunks):
                short = [chunk for chunk in chunks if len(chunk.samples) < MIN_SAMPLES]
                self._decoded.put(_DecodedGroup(short, [None] * len(short)))
            if long:
                self._prepared.put((long, self._network.prepare(long)))
            else:
                self._slots.release()

    def _next_chunks(self) -> list[Chunk]:
        """Return chunks of similar lengths, the oldest one among them. None are left if the list is empty."""
        pool = self._pool
        while len(pool) < POOL_CLIPS and (chunk := self._feed.get(wait=not pool)) is not None:
            pool.append(chunk)
        if self._feed.discarded:
            return []
        if len(pool) <= GROUP_CLIPS:
            self._pool = []
            return pool
        by_length = sorted(range(len(pool)), key=lambda index: len(pool[index].samples))
        first = min(by_length.index(0), len(pool) - GROUP_CLIPS)
        chosen = set(by_length[first : first + GROUP_CLIPS])
        self._pool = [chunk for index, chunk in enumerate(pool) if index not in chosen]
        return [pool[index] for index in sorted(chosen)]

    def _decode(self) -> None:
        """Give the device its groups."""
        busy_s = 0.0
        while (prepared := self._prepared.get()) is not None:
            chunks, group = prepared
            if busy_s >= self._compile_after_s:
                self._network.compile()
            began = time.monotonic()
            tokens = self._network.decode(group)
            busy_s += time.monotonic() - began
            self._slots.release()
            self._decoded.put(_DecodedGroup(chunks, tokens))
        self._decoded.put(None)
