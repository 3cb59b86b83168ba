"""Voxtral TTS for vLLM: the language model is vLLM's Mistral, and `compute_logits` runs the flow matching.

The flow matching must know which request a row of hidden states belongs to. `forward` therefore appends each row's
token and position to its hidden state, as bits. So neither the order of the rows nor the runner's own data matter, and
a CUDA graph may hold `forward`. Preempted requests continue: the frames of their slots are still here.
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

from voxbatch.vllm_plugin.speech import BEGIN_AUDIO, END, FIRST_ROW, SLOTS
from voxbatch.vllm_plugin.speech.codec import Codec
from voxbatch.vllm_plugin.speech.flow_matching import END_CODE, NUM_SPECIAL, FlowMatching
from voxbatch.vllm_plugin.speech.noise import noise

_TOKENS = "mm_audio_embeddings.tok_embeddings.weight"
_CODES = "mm_audio_embeddings.audio_codebook_embeddings.embeddings.weight"
ROWS = 16
"""Rows of a product on a CPU; see `in_equal_batches`."""
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
        self._has_equal_batches = False
        self._seeds = torch.zeros(SLOTS + 1, dtype=torch.int64)
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
        self._codes = others[_CODES]
        self._begin = FIRST_ROW + sum(self._speech["voices"].values()) + BEGIN_AUDIO
        self._flow_matching = FlowMatching(_below(others, _FLOW_MATCHING), self._speech["audio_model_args"])
        self._codec = Codec(_below(others, _CODEC), self._speech["audio_tokenizer_args"])
        return loaded

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
        slots, starts, seeds = torch.tensor(requests, dtype=torch.int64).to(self._starts.device).unbind(1)
        self._starts[slots], self._seeds[slots] = starts, seeds

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
        hidden = self.model(None, positions, intermediate_tensors, torch.where(is_frame[:, None], spoken, rows))
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
        ids, positions = hidden_states[:, self._width :].contiguous().view(torch.int32).unbind(1)
        slots, frames = self._places(ids, positions.long())
        frames = (frames + 1).clamp(0, self._frames.shape[1] - 1)
        random = noise(self._seeds[slots], frames, self._flow_matching.num_acoustic)
        hidden = hidden_states[:, : self._width].contiguous()
        if hidden.device.type == "cpu":
            codes = in_equal_batches(self._flow_matching.codes, hidden, random)
        else:
            codes = self._flow_matching.codes(hidden, random)
        self._frames[slots, frames] = codes.short()
        tokens = torch.where(codes[:, 0] == END_CODE, END, slots)
        logits = torch.full((len(slots), END + 1), -torch.inf, device=slots.device)
        return logits.scatter_(1, tokens[:, None], 0.0)

    def sounds(self, requests: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the samples of finished requests, float32.

        Args:
            requests: (slot, number of frames) of each.

        Raises:
            ValueError: a slot has another number of frames.
        """
        speeches = [self._frames[slot, : frames + 1] for slot, frames in requests]
        for speech, (slot, frames) in zip(speeches, requests, strict=True):
            if (speech[:, 0] == END_CODE).nonzero().flatten().tolist() != [frames]:
                raise ValueError(f"slot {slot} does not end after {frames} frames")
        with torch.inference_mode():
            return [samples.numpy().tobytes() for samples in self._codec.samples([speech[:-1] for speech in speeches])]


def in_equal_batches(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """Return a function of tensors, [rows, …] each, that is called with ROWS rows at a time.

    On a CPU, products of few rows and of many have other last bits, and the codes of a frame change all later frames.
    """
    count = len(tensors[0])
    filled = [functional.pad(tensor, (0, 0, 0, -count % ROWS)) for tensor in tensors]
    batches = zip(*(tensor.split(ROWS) for tensor in filled), strict=True)
    return torch.cat([function(*batch) for batch in batches])[:count]


def _with_equal_batches(linear: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x, weight, bias: in_equal_batches(lambda rows: linear(rows, weight, bias), x)


def _below(weights: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}


def patch_runner() -> None:
    """Let vLLM's runner prepare the slots of the requests that begin in a step, once in a process."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    original = GPUModelRunner._update_states
    if hasattr(original, "original"):
        return

    def update_states(runner: Any, scheduler_output: Any) -> Any:
        if requests := [
            (request.prompt_token_ids[-1], len(request.prompt_token_ids), request.sampling_params.seed)
            for request in scheduler_output.scheduled_new_reqs
        ]:
            runner.get_model().begin(requests)
        return original(runner, scheduler_output)

    update_states.original = original  # type: ignore[attr-defined]
    GPUModelRunner._update_states = update_states
