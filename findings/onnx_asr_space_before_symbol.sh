#!/usr/bin/env bash
# Good guess: the text of a recognition is its tokens joined, with "▁" as a space.
# What happens: a space before a character that is no letter or digit is removed, also before an opening mark or a sign:
#   "Hola. ¿Qué" becomes "Hola.¿Qué" and "cuesta $5" becomes "cuesta$5". The tokens of the same result keep the
#   space. (The pattern is "\s\B", meant for " .".)
# Date: 2026-11-28. Source: found by running onnx-asr 0.12.0, onnxruntime 1.32.0, onnx 1.23.2.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile onnx-asr==0.12.0 onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON' || exit 1
import sys
from pathlib import Path

from importlib.metadata import version

print("versions:", {name: version(name) for name in ('onnx-asr', 'onnxruntime', 'onnx')})

import numpy as np
import onnx
import onnx_asr
from onnx import TensorProto, helper, numpy_helper

PIECES = ["▁Hola", ".", "▁¿", "Qué", "▁tal", "?", "▁Eso", "▁cuesta", "▁$", "5", "▁sí", "<blk>"]
TEXT = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 10]

# A CTC model that ignores its input: its output is the log-probabilities of TEXT, one token a frame.
folder = Path(sys.argv[1], "model")
folder.mkdir()
vocab = "".join(f"{piece} {place}\n" for place, piece in enumerate(PIECES))
(folder / "vocab.txt").write_text(vocab, encoding="utf-8")
scores = np.full((1, len(TEXT), len(PIECES)), -20, np.float32)
scores[0, range(len(TEXT)), TEXT] = 0
graph = helper.make_graph(
    [helper.make_node("Identity", ["scores"], ["logprobs"])],
    "tiny",
    [
        helper.make_tensor_value_info("audio_signal", TensorProto.FLOAT, ["batch", 80, "time"]),
        helper.make_tensor_value_info("length", TensorProto.INT64, ["batch"]),
    ],
    [helper.make_tensor_value_info("logprobs", TensorProto.FLOAT, list(scores.shape))],
    [numpy_helper.from_array(scores, "scores")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.save(model, folder / "model.onnx")

# 12 frames of 80 ms.
samples = np.random.default_rng(0).normal(0, 0.1, 12 * 1280 - 640).astype(np.float32)
recognizer = onnx_asr.load_model("nemo-conformer-ctc", folder, providers=["CPUExecutionProvider"])
result = recognizer.with_timestamps().recognize(samples)
joined = "".join(result.tokens).strip()
print("joined tokens:", joined)
print("text:         ", result.text)
same = joined == "Hola. ¿Qué tal? Eso cuesta $5. sí" and result.text == "Hola.¿Qué tal? Eso cuesta$5. sí"

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
