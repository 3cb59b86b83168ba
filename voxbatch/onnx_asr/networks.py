"""The networks of an ONNX model in memory, with the checks that they fit to its vocabulary and its config.json."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from voxbatch.engines.known_models import WHISPER_CODES
from voxbatch.engines.pieces import Piece
from voxbatch.engines.suspect_text import PieceText
from voxbatch.errors import ConfigError, EngineError
from voxbatch.onnx_asr.decoding import INTEGERS, MAX_SYMBOLS, Transducer
from voxbatch.onnx_asr.folder import INT8, OnnxModel
from voxbatch.process.limits import find_limit
from voxbatch.records import SAMPLING_RATE, Samples
from voxbatch.transducers.tokens import Tokens, ctc_tokens
from voxbatch.transducers.words import Vocabulary

DURATIONS = range(5)
"""Durations of a TDT model whose config.json has none: those of all published ones."""


class TimedNetwork:
    """A model whose tokens have times: CTC, RNN-T or TDT. Several threads may use it at the same time."""

    def __init__(self, asr: Any, model: OnnxModel, transducer: Transducer | None):
        self._asr, self._transducer = asr, transducer
        self._vocabulary, self._blank = Vocabulary(model.pieces), asr._blank_idx
        self._is_ctc = model.kind_name.endswith("ctc")
        self._frame_s = asr.window_step * asr._subsampling_factor

    def encode(self, piece: Piece) -> Any:
        """Return the outputs of the encoder for the frames of a piece, of shape (frames, width)."""
        outputs, lengths = self._asr._encode(*self._asr._preprocessor(*_alone(piece)))
        return outputs[0, : int(lengths[0])]

    def read(self, pieces: Sequence[Piece], encoded: Sequence[Any]) -> list[PieceText]:
        """Return the texts of pieces, with word times and confidences. None as an output gives an empty text."""
        clips = [output for output in encoded if output is not None]
        tokens = iter(self._tokens(clips) if clips else ())
        return [
            PieceText("") if output is None else self._text(piece, next(tokens))
            for piece, output in zip(pieces, encoded, strict=True)
        ]

    def _tokens(self, clips: Sequence[Samples]) -> list[Tokens]:
        if self._transducer is not None:
            return self._transducer.decode(clips)
        if self._is_ctc:
            return [ctc_tokens(clip.argmax(-1), np.exp(clip.max(-1)), self._blank) for clip in clips]
        return [self._decoded_by_onnx_asr(clip) for clip in clips]

    def _decoded_by_onnx_asr(self, clip: Samples) -> Tokens:
        (found,) = self._asr._decoding(clip[None], np.array([len(clip)]), need_logprobs=True)
        ids, starts = (np.array(column, np.int64) for column in found[:2])
        return Tokens(ids, starts, starts + 1, np.exp(np.array(found[2], np.float32)))

    def _text(self, piece: Piece, tokens: Tokens) -> PieceText:
        words = self._vocabulary.words(
            tokens.ids,
            tokens.starts * self._frame_s,
            tokens.ends * self._frame_s,
            tokens.probabilities,
            len(piece.samples) / SAMPLING_RATE,
        )
        return PieceText("".join(word.text for word in words), words)


class TextNetwork:
    """A model that gives a text without times: Whisper and Canary.

    It has the methods of a TimedNetwork. Clips are decoded alone: in a batch of onnx-asr, Whisper's features depend on
    the loudest clip, and Canary goes on writing for the clips that have ended.
    """

    def __init__(self, asr: Any, model: OnnxModel):
        self._asr, self._is_whisper = asr, model.kind_name.startswith("whisper")
        self._is_english_only = self._is_whisper and model.languages == ("en",)
        if self._is_english_only:
            # onnx-asr asks each Whisper for a language and a task. One that knows English only then writes nothing: it
            # learnt to begin with these two tokens (openai/whisper, tokenizer.py).
            asr._transcribe_input = asr._transcribe_input[:, [0, -1]]

    def encode(self, piece: Piece) -> str:
        """Return the text itself, because onnx-asr's decoders take samples."""
        language = WHISPER_CODES.get(piece.lang or "", piece.lang) if self._is_whisper else piece.lang
        if self._is_english_only:
            language = "notimestamps"  # onnx-asr makes this name the second token
        (found,) = self._asr.recognize_batch(*_alone(piece), language=language)
        return str(found.text)

    def read(self, pieces: Sequence[Piece], encoded: Sequence[Any]) -> list[PieceText]:
        """Return the texts of pieces; see `TimedNetwork`."""
        return [PieceText(text or "") for text in encoded]


OnnxNetwork = TimedNetwork | TextNetwork


def _alone(piece: Piece) -> tuple[Samples, Any]:
    return piece.samples[None].astype(np.float32, copy=False), np.array([len(piece.samples)], np.int64)


def load(model: OnnxModel, name: str, quantization: str) -> OnnxNetwork:
    """Load a model, and check that its networks fit to its config.json and vocabulary.

    Args:
        name: the value of --model, for messages.

    Raises:
        ConfigError: they do not, or a file is missing or no network.
        EngineError: the memory of this machine does not suffice.
    """
    import onnx_asr

    options = _session_options()
    try:
        asr: Any = onnx_asr.load_model(
            model.kind_name,
            model.folder,
            quantization=INT8 if quantization == INT8 else None,
            sess_options=options,
            providers=["CPUExecutionProvider"],
        ).asr
        if not model.kind.has_times:
            return TextNetwork(asr, model)
        transducer = _transducer(asr._decoder_joint, model, name) if hasattr(asr, "_decoder_joint") else None
        network = TimedNetwork(asr, model, transducer)
        if model.is_nemo:
            _check_encoder(asr, model, name, network)
    except ConfigError:
        raise
    except Exception as e:  # onnxruntime and onnx-asr raise many types
        if (limit := find_limit(e)) is not None:
            raise EngineError(f"onnx-asr: {limit}") from e
        raise ConfigError(
            f"--model {name}: onnx-asr cannot load it as {model.kind_name} in {quantization} ({e}). Copy the model "
            "again with all its files, the .onnx.data beside the .onnx too"
        ) from e
    return network


def check_decoder(model: OnnxModel, name: str, quantization: str) -> None:
    """Check the decoder of a transducer of NeMo, which is small, if it is here. Other models are not looked at.

    Raises:
        ConfigError: see `_transducer`.
    """
    files = [path for pattern in model.patterns(quantization) for path in model.folder.glob(pattern)]
    if model.is_transducer and (found := [path for path in files if path.name.startswith("decoder_joint-model")]):
        options = _session_options()
        import onnxruntime

        try:
            session = onnxruntime.InferenceSession(found[0], options, providers=["CPUExecutionProvider"])
        except Exception as e:  # onnxruntime raises many types
            raise ConfigError(f"--model {name}: onnxruntime cannot load {found[0].name} ({e}); copy it again") from e
        _transducer(session, model, name)


def _session_options() -> Any:
    """Return the options of a network that each thread runs on one core."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # see `voice.speech_probabilities`
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return options


def _transducer(session: Any, model: OnnxModel, name: str) -> Transducer:
    """Return the decoder of a model of NeMo, after a look at the number of its scores.

    Raises:
        ConfigError: its inputs have other types, or its scores do not fit to the vocabulary and the durations.
    """
    types = {entry.name: entry.type for entry in session.get_inputs()}
    for integer in ("targets", "target_length"):
        if types.get(integer) not in INTEGERS:
            raise ConfigError(
                f"--model {name}: the decoder's input {integer} is {types.get(integer)}; "
                f"known are {', '.join(INTEGERS)}"
            )
    size, is_tdt = len(model.pieces), model.kind_name.endswith("tdt")
    durations = list(model.config.get("durations") or DURATIONS) if is_tdt else None
    max_symbols = int(model.config.get("max_tokens_per_step", MAX_SYMBOLS))
    transducer = Transducer(session, size, durations, max_symbols)
    width = next(entry.shape[1] for entry in session.get_inputs() if entry.name == "encoder_outputs")
    _, states = transducer.start(1)
    scores = transducer.step(np.zeros((1, width), np.float32), np.zeros(1, np.int64), states)[0].shape[1]
    if scores != size + len(durations or ()):
        wanted = f"{size:,} tokens" + (f" and {len(durations)} durations {durations}" if durations else "")
        raise ConfigError(
            f"--model {name}: the decoder gives {scores:,} scores, and vocab.txt and config.json have {wanted}; "
            "vocab.txt must have the lines of the export, and config.json its model_type and durations"
        )
    return transducer


def _check_encoder(asr: Any, model: OnnxModel, name: str, network: TimedNetwork) -> None:
    """Check an encoder of NeMo with a second of noise.

    Raises:
        ConfigError: it takes other features than config.json says, has another subsampling, or a CTC network another
            vocabulary.
    """
    features, factor = asr._features_size, asr._subsampling_factor
    encoder = getattr(asr, "_encoder", None) or asr._model
    taken = next(entry.shape[1] for entry in encoder.get_inputs() if entry.name == "audio_signal")
    if isinstance(taken, int) and taken != features:
        raise ConfigError(
            f"--model {name}: the encoder takes {taken} features, and config.json says features_size {features}; "
            "correct it"
        )
    noise = np.random.default_rng(0).normal(0, 0.01, SAMPLING_RATE).astype(np.float32)
    frames, width = (encoded := network.encode(Piece(noise))).shape
    expected = -(-(SAMPLING_RATE // 160) // factor)  # of 100 frames of features
    if frames != expected or not np.isfinite(encoded).all():
        raise ConfigError(
            f"--model {name}: the encoder gives {frames} frames for a second, and config.json's subsampling_factor "
            f"{factor} gives {expected}; correct it"
        )
    if model.kind_name.endswith("ctc") and width != len(model.pieces):
        raise ConfigError(
            f"--model {name}: the network gives {width:,} scores, and vocab.txt has {len(model.pieces):,} lines; "
            "it must have those of the export"
        )
