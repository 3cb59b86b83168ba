"""Write a model of the published shape: the configuration and the tokenizer, without weights but for one model.

    python benchmarks/gpu/full_size.py MODEL_DIR
    python benchmarks/gpu/full_size.py --shape small-24b MODEL_DIR

The folder serves to measure speed and memory with `--engine-option load_format=dummy`, which creates random weights:
the transcripts mean nothing. `mini-4b-realtime` (the default) is mistralai/Voxtral-Mini-4B-Realtime-2602, `mini-3b` is
Voxtral-Mini-3B-2507 and `small-24b` is Voxtral-Small-24B-2507. Each params.json has exactly the keys of the published
file. The vocabulary is mistral-common's own of the same size. `whisper-large-v3-turbo` is the model of that name of
openai, with a made-up vocabulary of the same size, whose special tokens have the published ids.

`qwen3-asr-1.7b` and `granite-speech-1b` have made-up vocabularies, too, and the sizes of Qwen/Qwen3-ASR-1.7B (arXiv
2601.21337) and ibm-granite/granite-4.0-1b-speech. The second has a dense decoder of the same layers.

`parakeet-tdt-0.6b-v3` is nvidia's model of that name with random weights (1.2 GB) and a made-up vocabulary. The bias of
blank is such that about 3.5 tokens and 2.3 words come of each second.

`voxtral-4b-tts` is mistralai/Voxtral-4B-TTS-2603, with random weights and voices (8.3 GB, made by the GPU if there is
one), because vLLM's loader of random weights does not know its parts. Its speeches have no end: see bench_speech.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

RATES = {"sampling_rate": 16_000, "frame_rate": 12.5}
MEL = {"num_mel_bins": 128, "hop_length": 160, "window_size": 400}
DECODER = {
    "dim": 3072, "n_layers": 26, "head_dim": 128, "hidden_dim": 9216, "n_heads": 32, "n_kv_heads": 8,
    "use_biases": False, "causal": True, "rope_theta": 1e6, "norm_eps": 1e-5, "vocab_size": 131_072,
    "model_parallel": 1, "tied_embeddings": True, "sliding_window": 8192, "model_max_length": 131_072,
    "max_position_embeddings": 131_072, "ada_rms_norm_t_cond": True, "ada_rms_norm_t_cond_dim": 32,
}  # fmt: skip
ENCODER = {
    "dim": 1280, "n_layers": 32, "head_dim": 64, "hidden_dim": 5120, "n_heads": 32, "n_kv_heads": 32,
    "vocab_size": 131_072, "use_biases": True, "use_cache": False, "rope_theta": 1e6, "causal": True, "norm_eps": 1e-5,
    "pos_embed": "rope", "max_source_positions": None, "ffn_type": "swiglu", "norm_type": "rms_norm",
    "sliding_window": 750,
}  # fmt: skip
INSTRUCT = {
    "head_dim": 128, "n_heads": 32, "n_kv_heads": 8, "use_biases": False, "causal": True, "rope_theta": 1e8,
    "norm_eps": 1e-5, "vocab_size": 131_072, "model_parallel": 1, "tied_embeddings": False, "sliding_window": None,
    "max_position_embeddings": 131_072,
}  # fmt: skip
MINI_3B = {"dim": 3072, "n_layers": 30, "hidden_dim": 8192, **INSTRUCT}
SMALL_24B = {"dim": 5120, "n_layers": 40, "hidden_dim": 32_768, **INSTRUCT}
WHISPER_ENCODER = {
    "dim": 1280, "n_layers": 32, "head_dim": 64, "hidden_dim": 5120, "n_heads": 20, "vocab_size": 51_866,
    "max_source_positions": 1500,
}  # fmt: skip
"""Encoder of both instruct models: Whisper large-v3's. It states no n_kv_heads, no biases and no causality."""
STREAMING_PARAMS = {"chunk_length_s": None, "global_log_mel_max": 1.5, "transcription_format": "streaming"}
WINDOWS = {"chunk_length_s": 30.0}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "mini-4b-realtime": (DECODER, ENCODER, STREAMING_PARAMS),
    "mini-3b": (MINI_3B, WHISPER_ENCODER, WINDOWS),
    "small-24b": (SMALL_24B, WHISPER_ENCODER, WINDOWS),
}
"""Decoder, encoder, and the keys of the encoder's audio in addition to RATES and MEL."""
REALTIME = "mini-4b-realtime"
STREAMING = {
    "transcription_format": "streaming", "transcription_delay_ms": 480, "streaming_look_ahead_ms": 2.5,
    "streaming_look_back_ms": 52.5, "streaming_n_left_pad_tokens": 32,
}  # fmt: skip
SPECIAL = {
    0: "<unk>", 1: "<s>", 2: "</s>", 3: "[INST]", 4: "[/INST]", 5: "[AVAILABLE_TOOLS]", 6: "[/AVAILABLE_TOOLS]",
    7: "[TOOL_RESULTS]", 8: "[/TOOL_RESULTS]", 9: "[TOOL_CALLS]", 10: "[IMG]", 11: "<pad>", 12: "[IMG_BREAK]",
    13: "[IMG_END]", 14: "[PREFIX]", 15: "[MIDDLE]", 16: "[SUFFIX]", 17: "[SYSTEM_PROMPT]", 18: "[/SYSTEM_PROMPT]",
    19: "[TOOL_CONTENT]", 24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 32: "[STREAMING_PAD]", 33: "[STREAMING_WORD]",
    34: "[TRANSCRIBE]", 35: "[ARGS]", 36: "[CALL_ID]", 37: "[THINK]", 38: "[/THINK]",
}  # fmt: skip

WHISPER_TURBO = {
    "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "dtype": "float16",
    "vocab_size": 51_866, "num_mel_bins": 128, "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120, "decoder_layers": 4, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120,
    "max_source_positions": 1500, "max_target_positions": 448, "activation_function": "gelu",
    "scale_embedding": False, "is_encoder_decoder": True,
}  # fmt: skip
"""config.json of openai/whisper-large-v3-turbo, without the ids of special tokens."""
WHISPER = "whisper-large-v3-turbo"
TEXT_VOCABULARY, LANGUAGES, TIMES = 50_257, 100, 1_501
"""Number of Whisper's text tokens, of its languages, and of its timestamps (openai/whisper, tokenizer.py)."""


def write_whisper(folder: Path) -> None:
    """Write the configuration and the tokenizer of WHISPER into `folder`. Only the first languages have their name."""
    from transformers import AddedToken, WhisperFeatureExtractor, WhisperTokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    codes = ["en", "zh", "de", "es", *(f"x{number}" for number in range(LANGUAGES - 4))]
    controls = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
    names = ["endoftext", "startoftranscript", *codes, *controls]
    special = {f"<|{name}|>": TEXT_VOCABULARY + index for index, name in enumerate(names)}
    letters = list(bytes_to_unicode().values())
    words = [*letters, *(f"word{number}" for number in range(TEXT_VOCABULARY - len(letters)))]
    tokenizer = WhisperTokenizer(
        vocab={word: index for index, word in enumerate(words)}, merges=[], pad_token="<|endoftext|>",
        extra_special_tokens=list(special), model_max_length=448, processor_class="WhisperProcessor",
    )  # fmt: skip
    tokenizer.add_tokens([AddedToken(f"<|{time / 50:.2f}|>", normalized=False) for time in range(TIMES)])
    assert tokenizer.get_vocab() | special == tokenizer.get_vocab(), "a special token has another id"
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=128).save_pretrained(folder)
    ids = {f"{name}_token_id": special["<|endoftext|>"] for name in ("bos", "eos", "pad")}
    ids["decoder_start_token_id"] = special["<|startoftranscript|>"]
    generation = {
        "is_multilingual": True, "lang_to_id": {f"<|{code}|>": special[f"<|{code}|>"] for code in codes},
        "task_to_id": {name: special[f"<|{name}|>"] for name in ("transcribe", "translate")},
        "no_timestamps_token_id": special["<|notimestamps|>"], "suppress_tokens": [],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**WHISPER_TURBO, **ids}, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({**generation, **ids}, indent=1))


def qwen3_asr() -> tuple[Any, Any]:
    """Return the configuration and the processor of Qwen3-ASR 1.7B."""
    import speech_models

    audio = {"d_model": 1024, "encoder_layers": 24, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096,
             "output_dim": 2048, "downsample_hidden_size": 480}  # fmt: skip
    text = {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
            "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 65_536}  # fmt: skip
    return speech_models.qwen3_asr(audio, text, 151_936)


def granite_speech() -> tuple[Any, Any]:
    """Return the configuration and the processor of Granite Speech 4.0 1B."""
    import speech_models

    audio = {"num_layers": 16, "hidden_dim": 1024, "num_heads": 8, "output_dim": 348}
    text = {"num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 4, "hidden_size": 2048,
            "intermediate_size": 4096, "max_position_embeddings": 131_072}  # fmt: skip
    projector = {"num_hidden_layers": 2, "num_attention_heads": 16, "hidden_size": 1024, "encoder_hidden_size": 1024,
                 "intermediate_size": 4096, "cross_attention_frequency": 1}  # fmt: skip
    return speech_models.granite_speech(audio, text, 100_352, projector)


TTS = "voxtral-4b-tts"
VOICES = {f"voice{number}": 146 for number in range(20)}
"""Number of rows by voice: 2,920 in all."""


def voxtral_tts() -> dict[str, Any]:
    """Return the params.json of TTS."""
    import speaking_model

    layers = {name: DECODER[name] for name in ("dim", "head_dim", "hidden_dim", "n_heads", "n_kv_heads")}
    codec = {"dim": 1024, "hidden_dim": 4096, "head_dim": 128, "n_heads": 8, "n_kv_heads": 8, "semantic_dim": 256,
             "semantic_codebook_size": 8192, "voice": dict.fromkeys(VOICES, 0)}  # fmt: skip
    params = {**speaking_model.PARAMS, **layers, "n_layers": DECODER["n_layers"], "vocab_size": DECODER["vocab_size"]}
    tiny = params["multimodal"]
    audio = {**tiny["audio_model_args"], "semantic_codebook_size": 8192}
    audio["acoustic_transformer_args"] = {**layers, "input_dim": layers["dim"], "n_layers": 3, "use_biases": False}
    tokenizer_args = {**tiny["audio_tokenizer_args"], **codec}
    return {**params, "multimodal": {**tiny, "audio_model_args": audio, "audio_tokenizer_args": tokenizer_args}}


def write_tts(folder: Path) -> None:
    """Write TTS into `folder`."""
    import speaking_model
    import torch

    (folder / "voice_embedding").mkdir(exist_ok=True)
    (folder / "params.json").write_text(json.dumps(voxtral_tts(), indent=1))
    (folder / "tekken.json").write_text(json.dumps(tokenizer(TTS)))
    random = torch.Generator("cuda" if torch.cuda.is_available() else "cpu").manual_seed(0)
    speaking_model.write_weights(folder, voxtral_tts(), VOICES, 0.0, random)


PARAKEET = "parakeet-tdt-0.6b-v3"
PARAKEET_ENCODER = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8, "intermediate_size": 4096,
    "num_mel_bins": 128, "attention_bias": False, "convolution_bias": False, "scale_input": False,
}  # fmt: skip
PARAKEET_TOKENS = 8192
BLANK_BIAS = 1.7
"""Added to blank, whose rivals are the highest of PARAKEET_TOKENS random numbers."""
DURATION_BIASES = (-1.0, 1.0, 2.0, 2.0, 1.0)
"""Added to the durations 0 to 4: few tokens take no time."""
ENCODER_STD = 0.08
"""Standard deviation of the encoder's weights. With the usual 0.02 all frames of a clip would be alike."""


def parakeet() -> Any:
    """Return PARAKEET with random weights, on the GPU if there is one."""
    import torch
    from transformers import ParakeetForTDT, ParakeetTDTConfig

    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        config = ParakeetTDTConfig(encoder_config=PARAKEET_ENCODER, vocab_size=PARAKEET_TOKENS + 1, pad_token_id=2)
        model = ParakeetForTDT(config)
        with torch.no_grad():
            for weight in model.encoder.parameters():
                if weight.dim() > 1:
                    weight.normal_(0.0, ENCODER_STD)
            for weight in (model.encoder_projector.weight, model.decoder.decoder_projector.weight):
                weight.normal_(0.0, weight.shape[1] ** -0.5)
            model.decoder.embedding.weight.normal_(0.0, 1.0)
            for name, weight in model.decoder.lstm.named_parameters():
                weight.normal_(0.0, 0.05 if "weight" in name else 0.0)
            model.joint.head.weight.normal_(0.0, model.joint.head.weight.shape[1] ** -0.5)
            model.joint.head.bias.zero_()
            model.joint.head.bias[PARAKEET_TOKENS] = BLANK_BIAS
            model.joint.head.bias[-len(DURATION_BIASES) :] = torch.tensor(DURATION_BIASES)
    return model.bfloat16().eval()


def write_parakeet(folder: Path) -> None:
    """Write PARAKEET into `folder`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    parakeet().save_pretrained(folder)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    pieces = ["<unk>", *letters]
    for number in range(PARAKEET_TOKENS - len(pieces)):
        text = "".join(letters[number // 26**place % 26] for place in range(1 + number % 5))
        pieces.append(f"{'▁' if number % 3 else ''}{text}{number}")
    tokenizer = Tokenizer(models.Unigram([(piece, 0.0) for piece in pieces], unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken("<blank>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    preprocessor = {"feature_size": 128, "sampling_rate": 16_000}
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))


CLASSES: dict[str, tuple[str, Callable[[], tuple[Any, Any]]]] = {
    "qwen3-asr-1.7b": ("Qwen3ASRForConditionalGeneration", qwen3_asr),
    "granite-speech-1b": ("GraniteSpeechForConditionalGeneration", granite_speech),
}
"""By shape: vLLM's class, and what makes the configuration and the processor."""


def params(shape: str = REALTIME) -> dict[str, Any]:
    """Return the params.json of one of SHAPES."""
    decoder, encoder, audio = SHAPES[shape]
    whisper = {
        "encoder_args": {**encoder, "audio_encoding_args": {**RATES, **MEL, **audio}},
        "downsample_args": {"downsample_factor": 4},
    }
    return {**decoder, "multimodal": {"whisper_model_args": whisper}}


def tokenizer(shape: str = REALTIME) -> dict[str, Any]:
    """Return the tekken.json of one of SHAPES, or of TTS."""
    import mistral_common

    vocabulary = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    found: dict[str, Any] = json.loads(vocabulary.read_text())
    for vision in ("image", "multimodal"):
        found.pop(vision, None)
    special = {**SPECIAL, **({35: "[REPEAT_AUDIO_TEXT]", 36: "[NEXT_AUDIO_TEXT]"} if shape == TTS else {})}
    names = [special.get(rank, f"<SPECIAL_{rank}>") for rank in range(max(special) + 1)]
    found["special_tokens"] = [{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(names)]
    found["config"]["version"] = "v7" if shape == TTS else "v11"
    of_voices = {"sampling_rate": 24_000, "voice_num_audio_tokens": VOICES}
    audio = {REALTIME: STREAMING, TTS: of_voices}.get(shape, WINDOWS)
    found["audio"] = {**RATES, "audio_encoding_config": MEL, **audio}
    return found


def write(folder: Path, shape: str = REALTIME) -> None:
    """Write the files of WHISPER, TTS, one of SHAPES or one of CLASSES into `folder`, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support" / "engine_vllm"))
    if shape == TTS:
        write_tts(folder)
        return
    if shape == PARAKEET:
        write_parakeet(folder)
        return
    if shape in CLASSES:
        name, make = CLASSES[shape]
        config, processor = make()
        config.architectures, config.dtype = [name], "bfloat16"
        config.save_pretrained(folder)
        processor.save_pretrained(folder)
        return
    if shape == WHISPER:
        write_whisper(folder)
        return
    (folder / "params.json").write_text(json.dumps(params(shape), indent=1))
    (folder / "tekken.json").write_text(json.dumps(tokenizer(shape)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=(*SHAPES, WHISPER, TTS, PARAKEET, *CLASSES), default=REALTIME)
    parser.add_argument("folder", type=Path, metavar="MODEL_DIR")
    given = parser.parse_args()
    write(given.folder, given.shape)
