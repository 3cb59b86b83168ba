"""Translate the configuration of a NeMo model into the values of transformers' configurations.

A model that transformers' Parakeet would compute differently is refused: its text would be plausible and wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voxbatch.errors import ConfigError
from voxbatch.records import SAMPLING_RATE

Config = dict[str, Any]

MAX_SIZE, MAX_LAYERS = 1_000_000, 200
"""Largest numbers of channels and of layers."""
_CLASSES = {"EncDecRNNTBPEModel": "rnnt", "EncDecHybridRNNTCTCBPEModel": "rnnt", "EncDecCTCModelBPE": "ctc"}
"""Last part of NeMo's name of a model's class → how it is decoded. A TDT has the class of an RNN-T."""
_MODULES = "nemo.collections.asr.modules."
_FIXED: dict[str, tuple[Any, ...]] = {
    "preprocessor._target_": (f"{_MODULES}AudioToMelSpectrogramPreprocessor",),
    "preprocessor.sample_rate": (SAMPLING_RATE,),
    "preprocessor.normalize": ("per_feature",),
    "preprocessor.window": ("hann",),
    "preprocessor.preemph": (0.97,),
    "preprocessor.log": (True,),
    "preprocessor.frame_splicing": (1,),
    "preprocessor.mag_power": (2.0,),
    "preprocessor.mel_norm": ("slaney",),
    "preprocessor.exact_pad": (False,),
    "preprocessor.pad_value": (0,),
    "preprocessor.lowfreq": (0,),
    "preprocessor.highfreq": (None, SAMPLING_RATE / 2),
    "preprocessor.log_zero_guard_type": ("add",),
    "preprocessor.log_zero_guard_value": (2**-24,),
    "encoder._target_": (f"{_MODULES}ConformerEncoder",),
    "encoder.subsampling": ("dw_striding",),
    "encoder.subsampling_factor": (8,),
    "encoder.causal_downsampling": (False,),
    "encoder.self_attention_model": ("rel_pos",),
    "encoder.att_context_size": (None, [-1, -1], [[-1, -1]]),
    "encoder.att_context_style": ("regular",),
    "encoder.att_chunk_context_size": (None,),
    "encoder.untie_biases": (True,),
    "encoder.conv_norm_type": ("batch_norm",),
    "encoder.reduction": (None,),
    "encoder.global_tokens": (0,),
    "decoder._target_": (f"{_MODULES}RNNTDecoder",),
    "decoder.normalization_mode": (None,),
    "decoder.blank_as_pad": (True,),
    "joint._target_": (f"{_MODULES}RNNTJoint",),
}
"""The values with which transformers computes the same. A missing one is NeMo's default: the first one here …"""
_REQUIRED = ("._target_", "encoder.subsampling", "encoder.subsampling_factor")
"""… except for those whose default in NeMo is another one."""


def refused(path: Path, seen: str, allowed: str) -> ConfigError:
    """Return the error for an archive with something that voxbatch does not run."""
    return ConfigError(
        f"--model {path}: {seen}; voxbatch runs {allowed}. Take a model that `voxbatch models` lists, or a folder in "
        "Hugging Face's format"
    )


def translated(path: Path, config: Config) -> tuple[Config, Config]:
    """Return values for transformers' Parakeet…Config and ParakeetFeatureExtractor.

    Args:
        path: the archive, for messages.
        config: content of its model_config.yaml.

    Raises:
        ConfigError: the model is not one that voxbatch runs.
    """
    return _Translation(path, config).translated()


class _Translation:
    def __init__(self, path: Path, config: Config):
        self._path, self._config = path, config

    def translated(self) -> tuple[Config, Config]:
        package, _, name = str(self._config.get("target")).rpartition(".")
        if name not in _CLASSES or not package.startswith("nemo.collections.asr.models."):
            raise self._error(f"its class (target) is {self._config.get('target')!r}", f"NeMo's {', '.join(_CLASSES)}")
        is_ctc = _CLASSES[name] == "ctc"
        for setting, allowed in _FIXED.items():
            if not is_ctc or not setting.startswith(("decoder.", "joint.")):
                self._check(setting, allowed)
        encoder = {"encoder_config": self._encoder()}
        return encoder | (self._ctc() if is_ctc else self._transducer()), self._features()

    def _error(self, seen: str, allowed: str) -> ConfigError:
        return refused(self._path, seen, allowed)

    def _value(self, setting: str, default: Any = None) -> Any:
        """Return a value inside the configuration: "joint.jointnet.dropout"."""
        value: Any = self._config
        for name in setting.split("."):
            if not isinstance(value, Mapping) or name not in value:
                return default
            value = value[name]
        return value

    def _check(self, setting: str, allowed: tuple[Any, ...]) -> None:
        value = self._value(setting, None if setting.endswith(_REQUIRED) else allowed[0])
        if value not in allowed or isinstance(value, bool) is not isinstance(allowed[0], bool):
            raise self._error(f"{setting} is {value!r}", f"models with {' or '.join(map(repr, allowed))}")

    def _number(self, setting: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        value = self._value(setting, default)
        if type(value) is not int or not 0 < value <= most:
            raise self._error(f"{setting} is {value!r}", f"models with 1 to {most:,}")
        return value

    def _equal(self, first: str, second: str) -> int:
        """Return a number that stands in two places."""
        number, other = self._number(first), self._number(second)
        if number != other:
            raise self._error(f"{first} is {number} and {second} is {other}", "models where the two are equal")
        return number

    def _encoder(self) -> Config:
        hidden, kernel = self._number("encoder.d_model"), self._number("encoder.conv_kernel_size", 31)
        self._check("encoder.conv_context_size", (None, [kernel // 2, kernel // 2]))  # others are for streams
        self._check("encoder.feat_out", (-1, 0, hidden))
        channels = "encoder.subsampling_conv_channels"
        has_biases = self._value("encoder.use_bias", True) is True
        return {
            "model_type": "parakeet_encoder",
            "hidden_size": hidden,
            "num_hidden_layers": self._number("encoder.n_layers", most=MAX_LAYERS),
            "num_attention_heads": self._number("encoder.n_heads", 4),
            "intermediate_size": hidden * self._number("encoder.ff_expansion_factor", 4),
            "hidden_act": "silu",
            "attention_bias": has_biases,
            "convolution_bias": has_biases,
            "conv_kernel_size": kernel,
            "subsampling_factor": 8,
            "subsampling_conv_channels": hidden if self._value(channels, -1) == -1 else self._number(channels),
            "subsampling_conv_kernel_size": 3,
            "subsampling_conv_stride": 2,
            "num_mel_bins": self._equal("encoder.feat_in", "preprocessor.features"),
            "max_position_embeddings": self._number("encoder.pos_emb_max_len", 5000),
            "scale_input": self._value("encoder.xscaling", True) is True,
        }

    def _ctc(self) -> Config:
        self._check("decoder._target_", (f"{_MODULES}ConvASRDecoder",))
        size = self._number("decoder.num_classes")
        return {"model_type": "parakeet_ctc", "vocab_size": size + 1, "pad_token_id": size}

    def _transducer(self) -> Config:
        """Return the values of an RNN-T or a TDT. Blank is the id after the vocabulary, and pads, too."""
        blank = self._equal("decoder.vocab_size", "joint.num_classes")
        activation = str(self._value("joint.jointnet.activation")).lower()
        if activation not in ("relu", "sigmoid", "tanh"):
            raise self._error(f"joint.jointnet.activation is {activation!r}", "models with relu, sigmoid or tanh")
        durations = self._durations()
        return {
            "model_type": "parakeet_tdt" if durations else "parakeet_rnnt",
            "vocab_size": blank + 1,
            "blank_token_id": blank,
            "pad_token_id": blank,
            "decoder_hidden_size": self._equal("decoder.prednet.pred_hidden", "joint.jointnet.joint_hidden"),
            "num_decoder_layers": self._number("decoder.prednet.pred_rnn_layers", most=MAX_LAYERS),
            "hidden_act": activation,
            "max_symbols_per_step": self._value("decoding.greedy.max_symbols") or 10,
        } | ({"durations": durations} if durations else {})

    def _durations(self) -> list[int]:
        """Return the durations of a TDT; [] for an RNN-T."""
        loss = self._value("loss.loss_name", "default")
        kind = self._value("decoding.model_type") or ("tdt" if loss == "tdt" else "rnnt")
        durations = []
        if kind == "tdt":
            durations = self._value("decoding.durations") or self._value("loss.tdt_kwargs.durations")
            if not isinstance(durations, list) or durations != [*range(len(durations))] or len(durations) < 2:
                raise self._error(f"decoding.durations is {durations!r}", "models with 0, 1, 2 and so on, without gaps")
        elif kind != "rnnt" or loss == "tdt":
            raise self._error(f"decoding.model_type is {kind!r} and loss.loss_name is {loss!r}", "rnnt and tdt")
        if (extra := self._value("joint.num_extra_outputs", 0)) != len(durations):
            raise self._error(f"joint.num_extra_outputs is {extra!r}", f"{len(durations)} with durations {durations}")
        return durations

    def _features(self) -> Config:
        size, stride = self._samples("size", 0.02), self._samples("stride", 0.01)
        return {
            "feature_size": self._number("preprocessor.features"),
            "sampling_rate": SAMPLING_RATE,
            "win_length": size,
            "hop_length": stride,
            "n_fft": self._value("preprocessor.n_fft") or 1 << (size - 1).bit_length(),
            "preemphasis": 0.97,
        }

    def _samples(self, name: str, default: float) -> int:
        """Return the size or stride of a window in samples. It is given in samples or in seconds."""
        setting = f"preprocessor.window_{name}"
        seconds = self._value(setting, default)
        if not isinstance(seconds, int | float) or not 0.001 <= seconds <= 1:
            raise self._error(f"{setting} is {seconds!r}", "models with 0.001 to 1 second")
        return self._value(f"preprocessor.n_window_{name}") or round(seconds * SAMPLING_RATE)
