"""Write Whisper's weights in the format of whisper.cpp, from a folder in CTranslate2's format.

Both formats hold the same tensors. CTranslate2 joins the projections of queries, keys and values to one tensor; its
keys have a bias of zero, which whisper.cpp leaves out. Only float16 and float32 weights of English-only models are
read: the vocabulary of other models has another number of words.
"""

from __future__ import annotations

import struct
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from faster_whisper.feature_extractor import FeatureExtractor

MAGIC = 0x67676D6C
NUM_WORDS = 50_256
"""Number of tokens of text (openai/whisper, gpt2.tiktoken). whisper.cpp names the others itself."""
TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
"""Types of CTranslate2's tensors."""
Tensors = dict[str, Any]


def read_ctranslate2(path: Path) -> Tensors:
    """Return the tensors of a model.bin by their names."""
    with open(path, "rb") as file:
        _number(file, "I"), _name(file), _number(file, "I")  # versions, and the kind of model
        tensors = {}
        for _ in range(_number(file, "I")):
            name, shape = _name(file), [_number(file, "I") for _ in range(_number(file, "B"))]
            dtype, size = TYPES[_number(file, "B")], _number(file, "I")
            tensors[name] = np.frombuffer(file.read(size), dtype).reshape(shape)
    return tensors


def _number(file: BufferedReader, kind: str) -> int:
    return int(struct.unpack(f"<{kind}", file.read(struct.calcsize(f"<{kind}")))[0])


def _name(file: BufferedReader) -> str:
    return file.read(_number(file, "H"))[:-1].decode()


def ggml_tensors(source: Tensors, layers: int) -> Tensors:
    """Return the tensors by their names in whisper.cpp."""
    tensors: Tensors = {"decoder.token_embedding.weight": source["decoder/embeddings/weight"]}

    def copy(name: str, target: str, *parts: str) -> None:
        """Copy a linear or convolutional layer, divided into parts, e.g. query, key, value."""
        for number, part in enumerate(parts or ("",)):
            for kind in ("weight", "bias") if part != "key" else ("weight",):
                tensors[f"{target}{part}.{kind}"] = np.split(source[f"{name}/{kind}"], len(parts) or 1)[number]

    def norm(name: str, target: str) -> None:
        tensors[f"{target}.weight"], tensors[f"{target}.bias"] = source[f"{name}/gamma"], source[f"{name}/beta"]

    for side in ("encoder", "decoder"):
        tensors[f"{side}.positional_embedding"] = source[f"{side}/position_encodings/encodings"]
        for number in range(layers):
            name, block = f"{side}/layer_{number}", f"{side}.blocks.{number}"
            norm(f"{name}/self_attention/layer_norm", f"{block}.attn_ln")
            copy(f"{name}/self_attention/linear_0", f"{block}.attn.", "query", "key", "value")
            copy(f"{name}/self_attention/linear_1", f"{block}.attn.out")
            if side == "decoder":
                norm(f"{name}/attention/layer_norm", f"{block}.cross_attn_ln")
                copy(f"{name}/attention/linear_0", f"{block}.cross_attn.query")
                copy(f"{name}/attention/linear_1", f"{block}.cross_attn.", "key", "value")
                copy(f"{name}/attention/linear_2", f"{block}.cross_attn.out")
            norm(f"{name}/ffn/layer_norm", f"{block}.mlp_ln")
            copy(f"{name}/ffn/linear_0", f"{block}.mlp.0")
            copy(f"{name}/ffn/linear_1", f"{block}.mlp.2")
    for number in (1, 2):
        copy(f"encoder/conv{number}", f"encoder.conv{number}")
        tensors[f"encoder.conv{number}.bias"] = tensors[f"encoder.conv{number}.bias"][:, None]
    norm("encoder/layer_norm", "encoder.ln_post")
    norm("decoder/layer_norm", "decoder.ln")
    return tensors


def write_ggml(folder: Path, target: Path) -> None:
    """Write the ggml file of an English-only model: weights in float16, biases, norms and positions in float32."""
    source = read_ctranslate2(folder / "model.bin")
    layers = sum(name.startswith("encoder/layer_") and name.endswith("ffn/linear_0/bias") for name in source)
    heads = int(source["encoder/num_heads"])
    num_tokens, width = source["decoder/embeddings/weight"].shape
    context, text = (len(source[f"{side}/position_encodings/encodings"]) for side in ("encoder", "decoder"))
    mels = source["encoder/conv1/weight"].shape[1]
    filters = FeatureExtractor(feature_size=mels).mel_filters.astype(np.float32)
    byte_of = _bytes()
    words = (folder / "vocabulary.txt").read_text(encoding="utf-8").split("\n")[:NUM_WORDS]
    with open(target, "wb") as file:
        sizes = (num_tokens, context, width, heads, layers, text, width, heads, layers, mels, 1)
        file.write(struct.pack(f"<I{len(sizes)}i", MAGIC, *sizes))
        file.write(struct.pack("<2i", *filters.shape) + filters.tobytes() + struct.pack("<i", len(words)))
        for word in words:
            data = bytes(byte_of[letter] for letter in word)
            file.write(struct.pack("<i", len(data)) + data)
        for name, tensor in ggml_tensors(source, layers).items():
            is_half = name.endswith("weight") and tensor.ndim > 1
            data = np.ascontiguousarray(tensor, np.float16 if is_half else np.float32)
            header = struct.pack(f"<{3 + data.ndim}i", data.ndim, len(name), is_half, *reversed(data.shape))
            file.write(header + name.encode() + data.tobytes())


def _bytes() -> dict[str, int]:
    """Return the byte of each letter of the vocabulary (GPT-2, encoder.py): printable bytes stand for themselves, the
    others are 256 and above, in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}
