"""Translation of Voxtral Realtime's tensors from transformers' names and layout to those of Mistral's own files.

"model.language_model.layers.3.self_attn.q_proj.weight" → "layers.3.attention.wq.weight"

vLLM's model loads Mistral's names only. The tensors are the same, with one difference: queries and keys order the
coordinates of a head differently. Mistral's rotary embedding rotates neighbours (0 with 1). The one in transformers
rotates the two halves (0 with head_dim / 2). The code works on numpy arrays and on torch tensors, and imports neither
library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

EMBEDDING = "mm_streams_embeddings.embedding_module"
"""Prefix of Mistral's names for the audio encoder, the adapter and the token embedding."""
ENCODER = f"{EMBEDDING}.whisper_encoder"
INPUT, OUTPUT = f"{EMBEDDING}.tok_embeddings.weight", "output.weight"
"""Mistral's names of the token embedding and of the output matrix. A tied model shares one matrix between them."""
ROTATED = re.compile(r".*\.attention\.w[qk]\.(weight|bias)")
"""Mistral's names of the tensors that the rotary embedding acts on: queries and keys."""
TOP = {
    "lm_head": "output",
    "language_model.lm_head": "output",
    "language_model.embed_tokens": f"{EMBEDDING}.tok_embeddings",
    "language_model.norm": "norm",
    "multi_modal_projector.linear_1": f"{EMBEDDING}.audio_language_projection.0",
    "multi_modal_projector.linear_2": f"{EMBEDDING}.audio_language_projection.2",
    "audio_tower.embedder.conv1": f"{ENCODER}.conv_layers.0.conv",
    "audio_tower.embedder.conv2": f"{ENCODER}.conv_layers.1.conv",
    "audio_tower.norm": f"{ENCODER}.transformer.norm",
}
"""Modules outside of the layers: transformers' name → Mistral's name."""
LAYERS = {"language_model": "layers", "audio_tower": f"{ENCODER}.transformer.layers"}
"""Prefixes of the layers' names: transformers' → Mistral's."""
LAYER = {
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn_layer_norm": "attention_norm",
    "final_layer_norm": "ffn_norm",
    "ada_rms_norm.linear1": "ada_rms_norm_t_cond.0",
    "ada_rms_norm.linear2": "ada_rms_norm_t_cond.2",
}
"""Modules of a layer, in the decoder and in the encoder. transformers has different names for the norms of the two."""


def translated(tensors: Iterable[tuple[str, Any]], params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each tensor by Mistral's name and in Mistral's layout.

    A file may hold a copy of a tied embedding as the output matrix. The copy is yielded too: vLLM
    sees the copy's name in the file and treats the two matrices as untied, until it finds them equal.

    Args:
        tensors: by transformers' names, in any order.
        params: the model's params.json.

    Raises:
        ValueError: a tensor does not belong to this model, or a model with a tied embedding has a different output
            matrix.
    """
    encoder = params["multimodal"]["whisper_model_args"]["encoder_args"]
    shared: dict[str, Any] = {}
    for name, tensor in tensors:
        translated_name = mistral_name(name)
        if params["tied_embeddings"] and translated_name in (INPUT, OUTPUT):
            shared[translated_name] = tensor
        if ROTATED.fullmatch(translated_name):
            part = encoder if translated_name.startswith(ENCODER) else params
            # Mistral's order of the rows of a matrix or a bias is 0, head_dim / 2, 1, … in each head.
            halves = tensor.reshape(-1, 2, part["head_dim"] // 2, *tensor.shape[1:])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        yield translated_name, tensor
    if OUTPUT in shared and not (INPUT in shared and bool((shared[INPUT] == shared[OUTPUT]).all())):
        raise ValueError(
            "config.json says tie_word_embeddings, and lm_head.weight is not equal to embed_tokens.weight: if the file "
            "is right, set tie_word_embeddings to false in config.json"
        )


def mistral_name(name: str) -> str:
    """Return Mistral's name of a tensor.

    Levels called "model" are skipped, because they differ between versions of transformers: the published files have
    "language_model.model.layers", the modules of 5.19 are "model.language_model.layers", and the save_pretrained of
    5.19 writes "language_model.model.model.layers".

    Raises:
        ValueError: Voxtral Realtime has no tensor of this name.
    """
    module, _, kind = ".".join(level for level in name.split(".") if level != "model").rpartition(".")
    if module in TOP:
        return f"{TOP[module]}.{kind}"
    layer_name = re.fullmatch(r"(language_model|audio_tower)\.layers\.(\d+)\.(.+)", module)
    if layer_name is None or layer_name[3] not in LAYER:
        raise ValueError(f"{name}: Voxtral Realtime in Hugging Face's format has no such tensor")
    return f"{LAYERS[layer_name[1]]}.{layer_name[2]}.{LAYER[layer_name[3]]}.{kind}"
