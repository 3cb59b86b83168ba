"""Voxtral TTS: a text and a voice become one request, and its frames of 80 ms a speech.

The model is one stage of vLLM (`voxbatch.vllm.plugin.speech`, which has the ids of its tokens). The engine's process
returns the samples with a finished request; see `VllmProcess`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from voxbatch.audio import ffmpeg
from voxbatch.engines.model_files import cache_folder
from voxbatch.engines.pieces import Piece, SpokenPiece
from voxbatch.errors import ConfigError
from voxbatch.process.child import for_program
from voxbatch.records import Samples, Speech
from voxbatch.records import TextPiece as Text
from voxbatch.vllm.engine import memory
from voxbatch.vllm.engine.families import Family
from voxbatch.vllm.engine.families.request import Request, TokenScores, UnsupportedPiece, UnusableAnswer
from voxbatch.vllm.engine.families.voxtral import scheduler_class
from voxbatch.vllm.engine.linked_folder import linked_folder
from voxbatch.vllm.engine.model import SPEECH, Model
from voxbatch.vllm.engine.settings import VllmSettings
from voxbatch.vllm.engine.tekken import Tekken, load_tekken, require_agreement
from voxbatch.vllm.plugin import speech

TEXT_TOKENS = 128
"""Positions that the text of a piece takes at most, with its control tokens: 15 s of English have about 50."""
TYPICAL_FRAMES = 190
"""Frames of a piece: 15 s."""
MIN_FRAMES = 250
"""Least number of frames that the context must hold: 20 s."""
KV_BYTES = 2
"""Bytes of a number in the K/V cache."""
SERVER = "vllm_omni.entrypoints.cli.main"
"""The module of vllm-omni's command."""
STAGE = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "enforce_eager", "gpu_memory_utilization")
"""Engine options that vllm-omni's first stage takes, the language model with the flow matching. The second stage is the
codec. All other settings of both are those of vllm_omni/deploy/voxtral_tts.yaml."""


class Speaking(Family):
    """The family of Voxtral TTS: see `Family` for its methods."""

    name, profile = SPEECH, "tts"
    runs_in_plugin_alone = "Voxtral TTS"
    why_no_plugin = ""
    max_inputs: Mapping[str, int] = {}  # for vLLM a text model
    shares_prefixes = True  # the voices are tokens of the prompts, so requests share their K/V
    slots = speech.SLOTS
    scores = False
    decoding_settings = ()  # neither of them has an effect on speech
    fills_memory = True
    languages = frozenset({"ar", "de", "en", "es", "fr", "hi", "it", "nl", "pt"})
    uses_language = True
    sampling_rate = speech.SAMPLING_RATE
    scripts = ("Latin", "Arabic", "Devanagari")
    max_requests = speech.MAX_REQUESTS

    @classmethod
    def formats(cls, settings: VllmSettings, is_translated: bool) -> dict[str, str]:
        """Return the formats of the generated config.json and of Mistral's weights; see `Family.formats`."""
        return {**super().formats(settings, is_translated), "config_format": "hf", "load_format": "mistral"}

    @classmethod
    def own_arguments(cls) -> dict[str, Any]:
        """Return that the model has no tokenizer for vLLM; see vllm.plugin.speech."""
        return {"skip_tokenizer_init": True}

    @classmethod
    def scheduler(cls, settings: VllmSettings, on_cpu: bool, kind: str = "Batch") -> str | None:
        """Return the scheduler that speaks; see `Family.scheduler`."""
        return scheduler_class("Speech", on_cpu)

    @classmethod
    def unplanned_bytes(
        cls, model: Model, settings: VllmSettings, prefilled: bool, planned: float, requests: int
    ) -> float:
        """Return the memory of the graphs and of the codec; see `Family.unplanned_bytes`."""
        return memory.SPEECH_BYTES

    @classmethod
    def step_tokens(cls, requests: int, prefilled: bool, on_cpu: bool) -> int:
        """Return the step that `memory` counts with, on a GPU; see `Family.step_tokens`."""
        return 0 if on_cpu else memory.STEP

    @classmethod
    def serving_folder(cls, model: Model, settings: VllmSettings, aligns_stream: bool = False) -> Path:
        """Return a folder with a config.json that vLLM knows; see `Family.serving_folder`."""
        files = {"config.json": json.dumps(_config(model))}
        return linked_folder(model, settings.delay_ms, cache_folder() / "served", aligns_stream, files)

    @classmethod
    def longest_chunk_s(cls, settings: VllmSettings) -> None:
        """Return None; see `Family.longest_chunk_s`."""

    @classmethod
    def licence_warning(cls, model: Model) -> str:
        """Return that the published voices are not for commerce; see `Family.licence_warning`."""
        return f"the licence of {model.name}, {model.license}, forbids commercial use, also of the recordings"

    @classmethod
    def check_serving(cls, settings: VllmSettings, options: Mapping[str, str]) -> None:
        """Check that vllm-omni is installed, and takes the options; see `Family.check_serving`."""
        if find_spec("vllm_omni") is None:
            raise ConfigError(
                "Voxtral TTS is served by vllm-omni, which is not installed: pip install 'voxbatch[tts]'. voxbatch "
                "speak does without it"
            )
        if others := options.keys() - {*STAGE, "devices", "revision"}:
            raise ConfigError(
                f"engine option {', '.join(sorted(others))}: not for vllm-omni's server, which takes "
                f"{', '.join(STAGE)}; give its own arguments after --"
            )

    @classmethod
    def other_server(
        cls, model: Model, settings: VllmSettings, options: Mapping[str, str], served_name: str
    ) -> tuple[list[str], dict[str, Any]]:
        """Return vllm-omni's server; see `Family.other_server`."""
        stage = {name: getattr(settings, name) for name in STAGE if name in options}
        requests = {name: value for name, value in stage.items() if name == "max_num_seqs"}
        stages = {"0": {"max_model_len": settings.max_model_len, **stage}, "1": requests}
        command = [SERVER, "serve", str(model.path), "--omni"]
        return command, {"served_model_name": served_name, "stage_overrides": stages}

    def __init__(self, model: Model, settings: VllmSettings):
        super().__init__(model, settings)
        self._rows, shape = voice_rows(model), model.shape()
        self.warning = self.licence_warning(model)
        self.voices = tuple(self._rows)
        self.proof = SpokenPiece(np.zeros(0, np.float32), spoken=Text("Yes.", self.voices[0], 0))
        self.prompt_tokens = max(self._rows.values()) + TEXT_TOKENS
        self.max_chunk_samples = (settings.max_model_len - self.prompt_tokens) * speech.FRAME
        if self.max_chunk_samples < MIN_FRAMES * speech.FRAME:
            raise ConfigError(
                f"max_model_len is {settings.max_model_len}; a voice and a text take {self.prompt_tokens} positions, "
                f"and a second of speech 12.5 more: give at least {self.prompt_tokens + MIN_FRAMES}"
            )
        numbers = 2 * shape["n_layers"] * shape["n_kv_heads"] * shape["head_dim"]
        self.request_bytes = numbers * KV_BYTES * (self.prompt_tokens + TYPICAL_FRAMES)

    def load(self, folder: Path) -> None:
        """Load the tokenizer, and check its counts; see `Family.load`."""
        self._tekken: Tekken = load_tekken(folder)
        for voice, rows in self._rows.items():
            tokens = self._tokens("Yes.", voice)
            audio = tokens.count(self._tekken.audio_encoder.audio_token)
            require_agreement(
                audio == rows and tokens[-1] == speech.BEGIN_AUDIO,
                folder,
                f"voice {voice} has {audio} tokens and the last one is {tokens[-1]}, and voxbatch counts {rows} and "
                f"{speech.BEGIN_AUDIO}",
            )

    def request(self, piece: Piece) -> Request:
        """Return the request of a text; see `Family.request`. Its last token is replaced by the slot."""
        assert isinstance(piece, SpokenPiece)
        text = piece.spoken
        names = list(self._rows)
        row = speech.FIRST_ROW + sum(self._rows[name] for name in names[: names.index(text.voice)])
        first_token = speech.FIRST_ROW + sum(self._rows.values())
        prompt, audio = [], self._tekken.audio_encoder.audio_token
        for token in self._tokens(text.text, text.voice):
            prompt.append(row if token == audio else first_token + token)
            row += token == audio
        if (frames := self.max_model_len - len(prompt)) < MIN_FRAMES:
            raise UnsupportedPiece(
                f"the text has {len(prompt):,} tokens with its voice, of {self.max_model_len:,} positions: divide it"
            )
        return Request({"prompt_token_ids": prompt}, max_tokens=frames, seed=text.seed)

    def read(self, piece: Piece, token_ids: list[int], finish_reason: str, scores: TokenScores | None = None) -> Speech:
        """Return the speech; see `Family.read`."""
        from voxbatch.speech.sound import MAX_SPEED, overlong, speed_to_fit, trimmed

        assert isinstance(piece, SpokenPiece)
        text = piece.spoken
        if finish_reason != "stop":
            seconds = len(token_ids) * speech.FRAME / speech.SAMPLING_RATE
            raise UnusableAnswer(f"the speech of {text.text[:80]!r} did not end within {seconds:.0f} s; give a --seed")
        if not len(piece.samples):
            raise UnusableAnswer(f"no sound came of {text.text[:80]!r}")
        samples, rate = trimmed(piece.samples, self.sampling_rate), self.sampling_rate
        if (speed := speed_to_fit(samples, rate, text.longest_s)) > 1:
            samples = trimmed(faster(samples, rate, min(MAX_SPEED, speed)), rate)
        return Speech(0, 0, text, samples, overlong(samples, rate, text.longest_s))

    def _tokens(self, text: str, voice: str) -> list[int]:
        from mistral_common.protocol.speech.request import SpeechRequest

        request: Any = SpeechRequest(input=text, voice=voice)
        return list(self._tekken.instruct.encode_speech_request(request).tokens)


def voice_rows(model: Model) -> dict[str, int]:
    """Return the number of rows of each voice of Voxtral TTS, which are positions of a prompt.

    Raises:
        ConfigError: tekken.json names no voices, or the file of a voice is missing.
    """
    rows: dict[str, int] = model.audio_settings().get("voice_num_audio_tokens") or {}
    if not rows:
        raise ConfigError(f"{model.path}/tekken.json names no voices (audio.voice_num_audio_tokens)")
    for name in rows:
        if not (path := model.path / "voice_embedding" / f"{name}.pt").is_file():
            raise ConfigError(f"{model.name} lacks {path.relative_to(model.path)}: download the whole model")
    return rows


def _config(model: Model) -> dict[str, Any]:
    """Return the config.json with which vLLM runs Voxtral TTS: a Mistral with the vocabulary of vllm.plugin.speech."""
    params, rows = model.shape(), voice_rows(model)
    return {
        "architectures": [speech.ARCHITECTURE],
        "model_type": "mistral",
        "vocab_size": speech.FIRST_ROW + sum(rows.values()) + params["vocab_size"],
        "hidden_size": params["dim"],
        "num_hidden_layers": params["n_layers"],
        "num_attention_heads": params["n_heads"],
        "num_key_value_heads": params["n_kv_heads"],
        "head_dim": params["head_dim"],
        "intermediate_size": params["hidden_dim"],
        "rms_norm_eps": params["norm_eps"],
        "rope_parameters": {"rope_type": "default", "rope_theta": params["rope_theta"]},
        "max_position_embeddings": params["max_position_embeddings"],
        "sliding_window": None,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": speech.END,
        "dtype": "bfloat16",
        "voxtral_tts": {**params["multimodal"], "voices": rows, "folder": str(model.path)},
    }


def faster(samples: Samples, sampling_rate: int, speed: float) -> Samples:
    """Return speech that is faster and has the same pitch, by ffmpeg's filter atempo.

    Args:
        speed: 2.0 halves the length.

    Raises:
        AudioError: there is no ffmpeg.
        CalledProcessError: it fails.
    """
    form = ("-f", "f32le", "-ar", str(sampling_rate), "-ac", "1")
    command = [ffmpeg.executable(), "-v", "error", *form, "-i", "-", "-af", f"atempo={speed:.4f}", *form, "-"]
    done = subprocess.run(
        command, input=samples.tobytes(), capture_output=True, check=True, env=for_program(os.environ)
    )
    return np.frombuffer(done.stdout, np.float32)
