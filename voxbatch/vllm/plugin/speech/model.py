"""Voxtral TTS for vLLM: the language model is vLLM's Mistral, and `compute_logits` runs the flow matching.

The flow matching must know which request a row of hidden states belongs to. `forward` therefore appends each row's
token and position to its hidden state, as bits. So neither the order of the rows nor the runner's own data matter, and
CUDA graphs may hold `forward` and the work of `compute_logits` (`row_graphs`). A preempted request computes its K/V
again from the frames of its slot, which stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from vllm.config import VllmConfig
from vllm.model_executor.models.mistral import MistralForCausalLM
from vllm.sequence import IntermediateTensors

from voxbatch.vllm.plugin.packing import copy_to
from voxbatch.vllm.plugin.speech import BEGIN_AUDIO, END, FIRST_ROW, SLOTS
from voxbatch.vllm.plugin.speech.codec import Codec
from voxbatch.vllm.plugin.speech.flow_matching import EMPTY_CODE, END_CODE, NUM_SPECIAL, FlowMatching
from voxbatch.vllm.plugin.speech.noise import noise
from voxbatch.vllm.plugin.speech.row_graphs import CPU_SIZES, RowGraphs

_TOKENS = "mm_audio_embeddings.tok_embeddings.weight"
_CODES = "mm_audio_embeddings.audio_codebook_embeddings.embeddings.weight"
_FLOW_MATCHING, _CODEC = "acoustic_transformer.", "audio_tokenizer."


class SpeechModel(MistralForCausalLM):  # type: ignore[misc]
    """Voxtral TTS. The tensors of the slots have one row more than there are slots, for rows that belong to none."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self._speech: dict[str, Any] = vllm_config.model_config.hf_config.voxtral_tts
        self._width = vllm_config.model_config.hf_config.hidden_size
        audio = self._speech["audio_model_args"]
        sizes = [audio["semantic_codebook_size"]] + [audio["acoustic_codebook_size"]] * audio["n_acoustic_codebook"]
        self._firsts = torch.tensor([0, *sizes[:-1]]).add(NUM_SPECIAL).cumsum(0) - NUM_SPECIAL
        self._frames = torch.zeros(SLOTS + 1, vllm_config.model_config.max_model_len, len(sizes), dtype=torch.int16)
        self._starts = torch.zeros(SLOTS + 1, dtype=torch.int64)
        """Number of positions of each slot's prompt."""
        self._seeds = torch.zeros(SLOTS + 1, dtype=torch.int64)
        self._embeddings = torch.zeros(vllm_config.scheduler_config.max_num_batched_tokens, self._width)
        """The embeddings of a step. They stay where they are, because vLLM's graphs read them."""
        self._has_equal_batches = False
        patch_runner()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the language model, and make the flow matching and the codec. See vLLM's models."""
        embedding = self.model.embed_tokens.weight
        others: dict[str, torch.Tensor] = {}
        tokens: list[torch.Tensor] = []

        def of_language_model() -> Iterable[tuple[str, torch.Tensor]]:
            for name, weight in weights:
                if name == _TOKENS:
                    tokens.append(weight)
                elif name == _CODES or name.startswith((_FLOW_MATCHING, _CODEC)):
                    others[name] = weight.to(embedding.device, None if ".quantizer." in name else embedding.dtype)
                else:
                    yield name, weight
            unused = tokens[0].new_zeros(FIRST_ROW, self._width)
            yield "tok_embeddings.weight", torch.cat((unused, *self._voices(), *tokens))

        loaded: set[str] = super().load_weights(of_language_model())
        for name in ("_firsts", "_frames", "_starts", "_seeds"):
            setattr(self, name, getattr(self, name).to(embedding.device))
        self._embeddings = self._embeddings.to(embedding)
        self._codes = others[_CODES]
        self._begin = FIRST_ROW + sum(self._speech["voices"].values()) + BEGIN_AUDIO
        self._flow_matching = FlowMatching(_below(others, _FLOW_MATCHING), self._speech["audio_model_args"])
        self._codec = Codec(_below(others, _CODEC), self._speech["audio_tokenizer_args"])
        nobody = torch.tensor([END, 0], dtype=torch.int32).view(embedding.dtype).to(embedding.device)
        self._next_tokens = RowGraphs(self._with_next_frames, torch.cat((nobody.new_zeros(self._width), nobody)))
        return loaded

    def capture(self, requests: int) -> None:
        """Capture the CUDA graphs of `compute_logits` for a number of requests."""
        self._next_tokens.capture(requests)

    def _voices(self) -> list[torch.Tensor]:
        """Return the rows of each voice, [rows, width].

        Raises:
            ValueError: a file has another number of rows than tekken.json states.
        """
        tensors = []
        for name, rows in self._speech["voices"].items():
            path = Path(self._speech["folder"], "voice_embedding", f"{name}.pt")
            tensor = torch.load(path, map_location="cpu", weights_only=True)
            if tensor.shape != (rows, self._width):
                raise ValueError(f"{path} has the shape {tuple(tensor.shape)}, not {(rows, self._width)}")
            tensors.append(tensor)
        return tensors

    def begin(self, requests: Sequence[tuple[int, int, int]]) -> None:
        """Prepare the slots of new requests: (slot, positions of the prompt, seed) of each."""
        if self._starts.device.type == "cpu" and not self._has_equal_batches:
            for layer in self.model.modules():  # only now: vLLM chooses these functions after it has loaded the weights
                if hasattr(layer, "cpu_linear"):
                    layer.cpu_linear = _with_equal_batches(layer.cpu_linear)
            self._has_equal_batches = True
        on_host = torch.tensor(requests, dtype=torch.int64)
        on_device = torch.empty_like(on_host, device=self._starts.device)
        copy_to(on_device, on_host)
        slots, starts, seeds = on_device.unbind(1)
        self._starts[slots], self._seeds[slots] = starts, seeds
        self._frames.index_fill_(0, slots, EMPTY_CODE)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of tokens that are no slots."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the hidden state of each position, followed by its token and position as bits.

        Args:
            input_ids: [positions].
            positions: [positions].
        """
        slots, frames = self._places(input_ids, positions)
        codes = self._frames[slots, frames.clamp(min=0)] + self._firsts
        spoken = functional.embedding(codes, self._codes).sum(1)
        is_frame = (input_ids < SLOTS) & (frames >= 0)
        rows = self.model.embed_tokens(torch.where(input_ids < SLOTS, self._begin, input_ids))
        embeddings = torch.where(is_frame[:, None], spoken, rows, out=self._embeddings[: len(input_ids)])
        hidden = self.model(None, positions, intermediate_tensors, embeddings)
        return torch.cat((hidden, torch.stack((input_ids, positions), 1).int().view(hidden.dtype)), 1)

    def _places(self, ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the slot of each position, and the number of the frame that its token stands for: -1 for the last
        token of a prompt."""
        slots = ids.clamp(max=SLOTS).long()
        return slots, positions - self._starts[slots]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Make the next frame of each row, and return scores that leave one choice: the row's slot, or the end.

        Args:
            hidden_states: [rows, width and the appended bits].
        """
        return self._next_tokens(hidden_states)

    def _with_next_frames(self, hidden_states: torch.Tensor) -> torch.Tensor:
        ids, positions = hidden_states[:, self._width :].contiguous().view(torch.int32).unbind(1)
        slots, frames = self._places(ids, positions.long())
        frames = (frames + 1).clamp(0, self._frames.shape[1] - 1)
        codes = self._codes_of(slots, frames, hidden_states[:, : self._width].contiguous())
        made = self._frames[slots, frames].long()
        # a request that was preempted computes its positions again, perhaps rounded otherwise, and later frames depend
        # on the first codes
        codes = torch.where(made[:, :1] == EMPTY_CODE, codes, made)
        self._frames[slots, frames] = codes.short()
        tokens = torch.where(codes[:, 0] == END_CODE, END, slots)
        logits = torch.full((len(slots), END + 1), -torch.inf, device=slots.device)
        return logits.scatter_(1, tokens[:, None], 0.0)

    def _codes_of(self, slots: torch.Tensor, frames: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return the codes of frames, [rows, 37]."""
        random = noise(self._seeds[slots], frames, self._flow_matching.num_acoustic)
        return self._flow_matching.codes(hidden, random)

    def sounds(self, requests: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the samples of finished requests, float32.

        Args:
            requests: (slot, number of frames) of each.

        Raises:
            ValueError: a slot has another number of frames.
        """
        device = self._frames.device
        slots, counts = torch.tensor(requests, dtype=torch.int64).view(-1, 2).to(device).unbind(1)
        places = torch.arange(self._frames.shape[1], device=device)
        is_end = (self._frames[slots, :, 0] == END_CODE) & (places <= counts[:, None])
        is_right = (is_end == (places == counts[:, None])).all(1)
        for (slot, frames), right in zip(requests, is_right.tolist(), strict=True):
            if not right:
                raise ValueError(f"slot {slot} does not end after {frames} frames")
        with torch.inference_mode():
            speeches = self._codec.samples([self._frames[slot, :frames] for slot, frames in requests])
            return [samples.numpy().tobytes() for samples in speeches]


def _with_equal_batches(linear: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a product that is calculated with the same number of rows at a time.

    On a CPU, products of few rows and of many have other last bits, and the codes of a frame change all later frames.
    """
    (rows,) = CPU_SIZES

    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        batches = functional.pad(x, (0, 0, 0, -len(x) % rows)).split(rows)
        return torch.cat([linear(batch, weight, bias) for batch in batches])[: len(x)]

    return product


def _below(weights: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}


def patch_runner() -> None:
    """Let vLLM's runner prepare the slots of the requests that begin in a step, and capture the graphs of
    `compute_logits` after its own, once in a process."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    update, capture = GPUModelRunner._update_states, GPUModelRunner.capture_model
    if hasattr(update, "original"):
        return

    def update_states(runner: Any, scheduler_output: Any) -> Any:
        if requests := [
            (request.prompt_token_ids[-1], len(request.prompt_token_ids), request.sampling_params.seed)
            for request in scheduler_output.scheduled_new_reqs
        ]:
            runner.get_model().begin(requests)
        return update(runner, scheduler_output)

    def capture_model(runner: Any) -> Any:
        captured = capture(runner)
        if runner.compilation_config.cudagraph_mode.name != "NONE":
            runner.get_model().capture(runner.max_num_reqs)
        return captured

    update_states.original = update  # type: ignore[attr-defined]
    GPUModelRunner._update_states, GPUModelRunner.capture_model = update_states, capture_model
