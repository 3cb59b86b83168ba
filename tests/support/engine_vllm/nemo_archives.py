"""Write .nemo archives of tiny models, with the members, names and configuration of NeMo 3.0.

`nemo_reference.py` builds real NeMo models of the same configurations, and records what NeMo's `save_to` writes;
`test_nemo_reference.py` compares.
"""

from __future__ import annotations

import io
import re
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from numpy.typing import NDArray
from tiny_weights import BLANK, PIECES, TinyModel

Config = dict[str, Any]

TOKENIZER = "0123456789abcdef0123456789abcdef_tokenizer.model"
VOCABULARY = "0123456789abcdef0123456789abcdef_vocab.txt"
CLASSES = {
    "ctc": "ctc_bpe_models.EncDecCTCModelBPE",
    "rnnt": "rnnt_bpe_models.EncDecRNNTBPEModel",
    "tdt": "rnnt_bpe_models.EncDecRNNTBPEModel",
    "hybrid": "hybrid_rnnt_ctc_bpe_models.EncDecHybridRNNTCTCBPEModel",
}
_NAMES = (
    (r"^encoder\.subsampling\.layers\.", "encoder.pre_encode.conv."),
    (r"^encoder\.subsampling\.linear\.", "encoder.pre_encode.out."),
    (r"\.conv\.norm\.", ".conv.batch_norm."),
    (r"\.self_attn\.([qkv])_proj\.", r".self_attn.linear_\1."),
    (r"\.self_attn\.o_proj\.", ".self_attn.linear_out."),
    (r"\.self_attn\.relative_k_proj\.", ".self_attn.linear_pos."),
    (r"\.self_attn\.bias_([uv])$", r".self_attn.pos_bias_\1"),
    (r"^ctc_head\.", "decoder.decoder_layers.0."),
    (r"^encoder_projector\.", "joint.enc."),
    (r"^decoder\.decoder_projector\.", "joint.pred."),
    (r"^decoder\.embedding\.", "decoder.prediction.embed."),
    (r"^decoder\.lstm\.", "decoder.prediction.dec_rnn.lstm."),
    (r"^joint\.head\.", "joint.joint_net.2."),
)
"""transformers' names → NeMo's."""


def nemo_name(name: str) -> str:
    """Return NeMo's name of a weight of transformers."""
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def nemo_weights(model: TinyModel) -> dict[str, NDArray[Any]]:
    """Return the weights of a model under NeMo's names."""
    return {nemo_name(name): values for name, values in model.weights.items()}


def nemo_config(model: TinyModel, is_hybrid: bool = False) -> Config:
    """Return the model_config.yaml that NeMo writes for a model, as far as a reader may look at it."""
    encoder = model.config["encoder_config"]
    config: Config = {
        "sample_rate": 16_000,
        "preprocessor": {
            "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
            "sample_rate": 16_000,
            "normalize": "per_feature",
            "window_size": 0.025,
            "window_stride": 0.01,
            "window": "hann",
            "features": encoder["num_mel_bins"],
            "n_fft": 512,
            "log": True,
            "frame_splicing": 1,
            "dither": 1e-05,
            "pad_to": 0,
            "pad_value": 0.0,
        },
        "encoder": _encoder(encoder),
        "tokenizer": {
            "dir": "tokenizer",
            "type": "bpe",
            "model_path": f"nemo:{TOKENIZER}",
            "vocab_path": f"nemo:{VOCABULARY}",
        },
        "spec_augment": {
            "_target_": "nemo.collections.asr.modules.SpectrogramAugmentation",
            "freq_masks": 2,
            "time_masks": 10,
            "freq_width": 27,
            "time_width": 0.05,
        },
        "train_ds": None,
        "validation_ds": None,
        "target": f"nemo.collections.asr.models.{CLASSES['hybrid' if is_hybrid else model.architecture]}",
        "nemo_version": "3.0.0",
    }
    ctc = {
        "_target_": "nemo.collections.asr.modules.ConvASRDecoder",
        "feat_in": encoder["hidden_size"],
        "num_classes": BLANK,
        "vocabulary": list(PIECES),
    }
    if model.architecture == "ctc":
        return config | {"decoder": ctc}
    config |= _transducer(model)
    if is_hybrid:
        config["aux_ctc"] = {"ctc_loss_weight": 0.3, "decoder": ctc, "decoding": {"strategy": "greedy"}}
    return config


def _encoder(encoder: Mapping[str, Any]) -> Config:
    return {
        "_target_": "nemo.collections.asr.modules.ConformerEncoder",
        "feat_in": encoder["num_mel_bins"],
        "feat_out": -1,
        "n_layers": encoder["num_hidden_layers"],
        "d_model": encoder["hidden_size"],
        "use_bias": encoder["attention_bias"],
        "subsampling": "dw_striding",
        "subsampling_factor": encoder["subsampling_factor"],
        "subsampling_conv_channels": encoder["subsampling_conv_channels"],
        "causal_downsampling": False,
        "ff_expansion_factor": encoder["intermediate_size"] // encoder["hidden_size"],
        "self_attention_model": "rel_pos",
        "n_heads": encoder["num_attention_heads"],
        "att_context_size": [-1, -1],
        "att_context_style": "regular",
        "xscaling": encoder["scale_input"],
        "untie_biases": True,
        "pos_emb_max_len": encoder["max_position_embeddings"],
        "conv_kernel_size": encoder["conv_kernel_size"],
        "conv_norm_type": "batch_norm",
        "conv_context_size": None,
        "dropout": 0.1,
        "dropout_pre_encoder": 0.1,
        "dropout_emb": 0.0,
        "dropout_att": 0.1,
        "stochastic_depth_drop_prob": 0.0,
        "stochastic_depth_mode": "linear",
        "stochastic_depth_start_layer": 1,
        "reduction": None,
        "reduction_position": None,
        "reduction_factor": 1,
    }


def _transducer(model: TinyModel) -> Config:
    size = model.config["decoder_hidden_size"]
    hidden = model.config["encoder_config"]["hidden_size"]
    config: Config = {
        "model_defaults": {"enc_hidden": hidden, "pred_hidden": size, "joint_hidden": size},
        "decoder": {
            "_target_": "nemo.collections.asr.modules.RNNTDecoder",
            "normalization_mode": None,
            "random_state_sampling": False,
            "blank_as_pad": True,
            "prednet": {"pred_hidden": size, "pred_rnn_layers": 2, "t_max": None, "dropout": 0.2},
            "vocab_size": BLANK,
        },
        "joint": {
            "_target_": "nemo.collections.asr.modules.RNNTJoint",
            "log_softmax": None,
            "preserve_memory": False,
            "fuse_loss_wer": False,
            "fused_batch_size": -1,
            "jointnet": {
                "joint_hidden": size,
                "activation": "relu",
                "dropout": 0.2,
                "encoder_hidden": hidden,
                "pred_hidden": size,
            },
            "num_classes": BLANK,
            "vocabulary": list(PIECES),
        },
        "decoding": {"strategy": "greedy_batch", "greedy": {"max_symbols": 10}},
        "loss": {"loss_name": "default"},
        "labels": list(PIECES),
    }
    if model.architecture == "tdt":
        durations = model.config["durations"]
        config["model_defaults"] |= {"tdt_durations": durations, "num_tdt_durations": len(durations)}
        config["joint"]["num_extra_outputs"] = len(durations)
        config["decoding"] |= {"model_type": "tdt", "durations": durations}
        losses = {"fastemit_lambda": 0.0, "clamp": -1.0, "durations": durations, "sigma": 0.02, "omega": 0.1}
        config["loss"] = {"loss_name": "tdt", "tdt_kwargs": losses}
    return config


def sentencepiece_model(pieces: Sequence[str] = PIECES) -> bytes:
    """Return a SentencePiece model: a ModelProto with pieces, a TrainerSpec and a NormalizerSpec."""
    parts = []
    for number, piece in enumerate(pieces):
        kind = 2 if piece == "<unk>" else 1  # UNKNOWN, NORMAL
        parts.append(
            _field(1, _field(1, piece.encode()) + b"\x15" + struct.pack("<f", -number) + bytes([3 << 3, kind]))
        )
    unused = b"".join(bytes([*_varint(field << 3)]) + b"\xff" * 9 + b"\x01" for field in (41, 42, 43))  # bos, eos, pad
    trainer = bytes([3 << 3, 2, *_varint(4 << 3), len(pieces), *_varint(40 << 3), 0]) + unused  # BPE, sizes, unk
    return b"".join(parts) + _field(2, trainer) + _field(3, _field(1, b"identity"))


def write_archive(
    path: Path,
    config: Config,
    weights: Mapping[str, Any] | bytes,
    tokenizer: bytes | None = None,
    others: Mapping[str, bytes] | None = None,
    mode: str = "w:",
) -> Path:
    """Write a .nemo archive.

    Args:
        path: the file.
        config: content of model_config.yaml.
        weights: tensors by NeMo's names, or the bytes of model_weights.ckpt.
        tokenizer: the SentencePiece model.
        others: further members.
        mode: how tarfile opens the file: "w:" as NeMo 1.7 and later do, "w:gz" as before.
    """
    import torch

    if not isinstance(weights, bytes):
        buffer = io.BytesIO()
        torch.save({name: torch.as_tensor(values) for name, values in weights.items()}, buffer)
        weights = buffer.getvalue()
    vocabulary = "\n".join(PIECES).encode()
    members = {
        TOKENIZER: sentencepiece_model() if tokenizer is None else tokenizer,
        VOCABULARY: vocabulary,
        "model_config.yaml": yaml.safe_dump(config, allow_unicode=True, sort_keys=False).encode(),
        "model_weights.ckpt": weights,
        **(others or {}),
    }
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        folder = tarfile.TarInfo(".")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, content in members.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def _varint(value: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first."""
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def _field(field: int, content: bytes) -> bytes:
    """Return a text, bytes or a message inside a protobuf message."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content
