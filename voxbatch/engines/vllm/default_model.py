"""Values of the published Voxtral Mini 4B Realtime, for calculations before the files of the model are there."""

from __future__ import annotations

from typing import Any

DEFAULT_DELAY_MS = 480
"""The model's own transcription delay: tekken.json, audio.transcription_delay_ms."""
PARAMS: dict[str, Any] = {
    "dim": 3072, "n_layers": 26, "head_dim": 128, "hidden_dim": 9216, "n_heads": 32, "n_kv_heads": 8,
    "vocab_size": 131_072, "tied_embeddings": True,
    "multimodal": {"whisper_model_args": {"encoder_args": {
        "dim": 1280, "n_layers": 32, "head_dim": 64, "hidden_dim": 5120, "n_heads": 32, "n_kv_heads": 32,
        "ffn_type": "swiglu", "sliding_window": 750}}},
}  # fmt: skip
"""The part of params.json that `memory` and `speed` read."""
