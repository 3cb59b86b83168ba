"""Write Parakeet checkpoints of transformers in the layout of onnx-asr: encoder-model.onnx and
decoder_joint-model.onnx, or model.onnx of a CTC model, with vocab.txt and config.json. Names and shapes are those of
NeMo's own export.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    ParakeetCTCConfig,
    ParakeetForCTC,
    ParakeetForRNNT,
    ParakeetForTDT,
    ParakeetRNNTConfig,
    ParakeetTDTConfig,
)

from voxbatch.records import Samples

BLANK = "<blk>"
DURATIONS = (0, 1, 2, 3, 4)
PIECES = (
    "<unk>", "<pad>", "▁", "▁the", "▁a", "▁very", "▁good", "▁time", "s", "ing", "ed", "er", "▁¿", "¿", "▁¡", "¡", ".",
    ",", "?", "!", "'", "-", "▁$", "$", "5", "0", "▁Hola", "ola", "H", "é", "ß", "▁да", "д", "ä", "n", "t", "e", "o",
    "i", "r", "▁w", "▁m", "▁th", "▁in", "▁of", "▁and", "▁to", "▁que", "▁de", "▁la", "x", "z",
)  # fmt: skip
ENCODER = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "num_mel_bins": 80,
    "subsampling_conv_channels": 16,
}  # fmt: skip
GAIN = 5.0
"""Factor of the decoder's random weights. With transformers' own, it hardly heeds its last token."""


RELU_MEAN = 0.4
"""Mean of max(0, x) for normally distributed x: 1/√(2π)."""
DIRECTIONS = 12
"""Number of main directions of the encoder's output that count. The others are small, so that their rounding would."""


def tiny(kind: str, seed: int = 0, max_symbols: int = 10, blank_bias: float = 4.0) -> Any:
    """Return a random model of a kind, ctc, rnnt or tdt, that emits tokens.

    Args:
        blank_bias: added to the logit of blank.
    """
    torch.manual_seed(seed)
    blank = len(PIECES)
    shared: dict[str, Any] = {"vocab_size": blank + 1, "encoder_config": ENCODER}
    if kind == "ctc":
        model: Any = ParakeetForCTC(ParakeetCTCConfig(pad_token_id=blank, **shared))
        head = model.ctc_head
    else:
        shared |= {"decoder_hidden_size": 24, "blank_token_id": blank, "pad_token_id": 1}
        shared |= {"max_symbols_per_step": max_symbols}
        rnnt = ParakeetForRNNT(ParakeetRNNTConfig(**shared)) if kind == "rnnt" else None
        model = rnnt or ParakeetForTDT(ParakeetTDTConfig(durations=list(DURATIONS), **shared))
        head = model.joint.head
    randomise(model)
    with torch.no_grad():
        head.bias[blank] += blank_bias
    return model.eval()


def randomise(model: Any) -> None:
    """Give a random model weights with which its tokens depend on the audio and on the token before."""
    with torch.no_grad():
        if isinstance(model, ParakeetForCTC):
            _spread(model.eval(), model.ctc_head)
            model.ctc_head.weight.mul_(GAIN)
            model.ctc_head.bias.mul_(GAIN)
            return
        for weight in model.decoder.parameters():
            weight.mul_(GAIN * 2)
        _spread(model.eval(), model.encoder_projector)
        model.joint.head.weight.normal_(0, 1.0)
        model.joint.head.bias.copy_(-model.joint.head.weight.sum(1) * RELU_MEAN)


def _spread(model: Any, layer: nn.Module) -> None:
    """Give the layer after the encoder outputs of mean 0 and variance 1, which change from frame to frame. The frames
    of a random encoder are nearly equal."""
    config = model.config.encoder_config
    inputs = extractor(config.num_mel_bins)([babble(30.0)], sampling_rate=16_000, return_tensors="pt")
    frames = model.encoder(inputs.input_features).last_hidden_state[0]
    _, scales, directions = torch.linalg.svd(frames - frames.mean(0), full_matrices=False)
    whitening = (directions * (len(frames) ** 0.5 / scales)[:, None])[:DIRECTIONS]
    weight = torch.randn(layer.weight.shape[0], DIRECTIONS) / DIRECTIONS**0.5 @ whitening
    layer.weight.copy_(weight.reshape(layer.weight.shape))
    layer.bias.copy_(-weight @ frames.mean(0))


def export(model: Any, folder: Path, pieces: Sequence[str] = PIECES, integers: torch.dtype = torch.int32) -> Path:
    """Write a model to a folder, and return the folder.

    Args:
        integers: type of the decoder's integer inputs, which are int64 in older exports.
    """
    folder.mkdir(parents=True, exist_ok=True)
    encoder = model.config.encoder_config
    features = torch.randn(2, encoder.num_mel_bins, 200), torch.tensor([200, 150])
    config: dict[str, Any] = {"features_size": encoder.num_mel_bins, "subsampling_factor": encoder.subsampling_factor}
    axes = {"audio_signal": {0: "batch", 2: "time"}, "length": {0: "batch"}}
    if isinstance(model, ParakeetForCTC):
        config["model_type"] = "nemo-conformer-ctc"
        _write(_Ctc(model), features, folder / "model.onnx", axes, {"logprobs": {0: "batch", 1: "frames"}})
    else:
        is_tdt = isinstance(model, ParakeetForTDT)
        config["model_type"] = f"nemo-conformer-{'tdt' if is_tdt else 'rnnt'}"
        config["max_tokens_per_step"] = model.config.max_symbols_per_step
        outputs = {"outputs": {0: "batch", 2: "frames"}, "encoded_lengths": {0: "batch"}}
        _write(_Encoder(model), features, folder / "encoder-model.onnx", axes, outputs)
        _write_decoder(model, folder / "decoder_joint-model.onnx", integers)
    rows = [*pieces, BLANK]
    (folder / "vocab.txt").write_text("".join(f"{piece} {number}\n" for number, piece in enumerate(rows)))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def export_whisper(directory: Path, folder: Path) -> Path:
    """Write Whisper from a directory of transformers in the layout of onnx-community, and return the folder. The
    decoder has no cache, so that a token costs more than with the published exports."""
    from transformers import WhisperForConditionalGeneration

    folder.mkdir()
    model: Any = WhisperForConditionalGeneration.from_pretrained(directory, attn_implementation="eager").eval()
    config, frames = model.config, {"encoder_hidden_states": {0: "batch"}}
    features = torch.zeros(1, config.num_mel_bins, 2 * config.max_source_positions)
    outputs = {"last_hidden_state": {0: "batch"}}
    axes = {"input_features": {0: "batch"}}
    _write(_WhisperEncoder(model), (features,), folder / "encoder_model.onnx", axes, outputs)
    tokens = {"input_ids": {0: "batch", 1: "tokens"}, **frames}
    inputs = torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, config.max_source_positions, config.d_model)
    logits = {"logits": {0: "batch", 1: "tokens"}}
    _write(_WhisperDecoder(model), inputs, folder / "decoder_model_merged.onnx", tokens, logits)
    tokenizer = json.loads((directory / "tokenizer.json").read_bytes())
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    (folder / "vocab.json").write_text(json.dumps(tokenizer["model"]["vocab"]))
    (folder / "added_tokens.json").write_text(json.dumps(added))
    (folder / "config.json").write_text(json.dumps({"model_type": "whisper", "num_mel_bins": config.num_mel_bins}))
    return folder


def _write_decoder(model: Any, path: Path, integers: torch.dtype) -> None:
    width, layers = model.config.encoder_config.hidden_size, model.config.num_decoder_layers
    state = torch.zeros(layers, 2, model.config.decoder_hidden_size)
    inputs = torch.zeros(2, width, 1), torch.zeros(2, 1, dtype=integers), torch.ones(2, dtype=integers), state, state
    names = ("encoder_outputs", "targets", "target_length", "input_states_1", "input_states_2")
    axes = {name: {1 if "states" in name else 0: "batch"} for name in names}
    outputs = {"outputs": {0: "batch"}, "prednet_lengths": {0: "batch"}}
    outputs |= {name: {1: "batch"} for name in ("output_states_1", "output_states_2")}
    _write(_DecoderJoint(model), inputs, path, axes, outputs)


def _write(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    path: Path,
    axes: dict[str, dict[int, str]],
    outputs: dict[str, dict[int, str]],
) -> None:
    """Write a module. PyTorch's newer exporter refuses the encoder, and after the older one, a module in training mode
    would put the model into that mode, too."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            inputs,
            str(path),
            input_names=list(axes),
            output_names=list(outputs),
            dynamic_axes={**axes, **outputs},
            opset_version=17,
            dynamo=False,
        )


def babble(seconds: float, seed: int = 1) -> Samples:
    """Return sounds of 80 to 240 ms, of three tones and noise, mono at 16 kHz: each frame differs from the last."""
    rng, count = np.random.default_rng(seed), round(16_000 * seconds)
    sounds, made = [np.zeros(0)], 0
    while made < count:
        times = np.arange(int(rng.integers(1_280, 3_840))) / 16_000
        tones = sum(np.sin(2 * np.pi * frequency * times) for frequency in rng.uniform(100, 6_000, 3))
        sounds.append(rng.uniform(0.01, 0.2) * (tones + rng.normal(0, rng.uniform(0, 1), len(times))))
        made += len(times)
    return np.concatenate(sounds)[:count].astype(np.float32)


def extractor(mels: int) -> Any:
    """Return transformers' feature extractor. It takes its mel filters from librosa, which has no place beside vLLM:
    transformers' own filters are the same, up to the rounding to float32."""
    from transformers.audio_utils import mel_filter_bank

    def mel(sr: int, n_fft: int, n_mels: int, fmin: float, fmax: float, norm: str) -> Any:
        filters = mel_filter_bank(n_fft // 2 + 1, n_mels, fmin, fmax, sr, norm=norm, mel_scale="slaney")
        return filters.T.astype("float32")

    module: Any = importlib.import_module("transformers.models.parakeet.feature_extraction_parakeet")
    if not hasattr(module, "librosa"):
        module.librosa = SimpleNamespace(filters=SimpleNamespace(mel=mel))
    return module.ParakeetFeatureExtractor(feature_size=mels)


class _Part(nn.Module):  # type: ignore[misc]  # torch may be missing
    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def _masked(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        features = audio_signal.transpose(1, 2)
        return features, torch.arange(features.shape[1])[None] < length[:, None]


class _Ctc(_Part):
    def forward(self, audio_signal: Tensor, length: Tensor) -> Tensor:
        features, mask = self._masked(audio_signal, length)
        return torch.log_softmax(self.model(features, mask).logits, -1)


class _Encoder(_Part):
    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        features, mask = self._masked(audio_signal, length)
        encoded = self.model.encoder(features, mask).last_hidden_state
        return encoded.transpose(1, 2), self.model._get_subsampling_output_length(length).long()


class _DecoderJoint(_Part):
    def forward(
        self, encoder_outputs: Tensor, targets: Tensor, target_length: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        decoder = self.model.decoder
        states, (hidden, cell) = decoder.lstm(decoder.embedding(targets.long()), (hidden, cell))
        frames = self.model.encoder_projector(encoder_outputs.transpose(1, 2))[:, :, None]
        return self.model.joint(decoder.decoder_projector(states)[:, None], frames), target_length, hidden, cell


class _WhisperEncoder(_Part):
    def forward(self, input_features: Tensor) -> Any:
        return self.model.model.encoder(input_features).last_hidden_state


class _WhisperDecoder(_Part):
    def forward(self, input_ids: Tensor, encoder_hidden_states: Tensor) -> Any:
        count = input_ids.shape[1]
        mask = torch.full((count, count), torch.finfo(torch.float32).min).triu(1)[None, None]
        states = self.model.model.decoder(
            input_ids, mask, encoder_hidden_states, position_ids=torch.arange(count)[None], use_cache=False
        )
        return self.model.proj_out(states.last_hidden_state)
