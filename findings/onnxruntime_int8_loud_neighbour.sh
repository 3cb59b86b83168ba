#!/usr/bin/env bash
# Good guess: in a network of 8 bits by onnxruntime's quantize_dynamic, a quiet clip has the same result in any batch, or one that
#   differs by the rounding.
# What happens: DynamicQuantizeLinear takes one scale for the whole input of a product, all clips of the batch together. Beside a
#   clip that is 20 times as loud, the error of a quiet clip grows from 1 % to 17 %. Weights in blocks with
#   accuracy_level=4 (MatMulNBitsQuantizer) also compute in 8 bits, and give the same bits beside any clip.
# Date: 2026-11-29. Source: found by running onnxruntime 1.32.0, onnx 1.23.2.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6 onnx-ir==1.1.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON' || exit 1
import logging
import sys

from importlib.metadata import version

print("versions:", {name: version(name) for name in ("onnxruntime", "onnx", "numpy")})

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

logging.disable(logging.WARNING)
folder = sys.argv[1]
random = np.random.default_rng(0)
weight = random.normal(0, 0.05, (256, 64)).astype(np.float32)
shapes = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["clips", "frames", size]) for name, size in (("x", 256), ("y", 64))}
product = helper.make_node("MatMul", ["x", "weight"], ["y"])
graph = helper.make_graph([product], "product", [shapes["x"]], [shapes["y"]], [numpy_helper.from_array(weight, "weight")])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), f"{folder}/float.onnx")
quantize_dynamic(f"{folder}/float.onnx", f"{folder}/dynamic.onnx")
blocks = MatMulNBitsQuantizer(onnx.load(f"{folder}/float.onnx"), bits=8, block_size=32, accuracy_level=4)
blocks.process()
blocks.model.save_model_to_file(f"{folder}/blocks.onnx")
sessions = {
    name: onnxruntime.InferenceSession(f"{folder}/{name}.onnx", providers=["CPUExecutionProvider"])
    for name in ("float", "dynamic", "blocks")
}
quiet, other, loud = (random.normal(0, size, (1, 50, 256)).astype(np.float32) for size in (0.1, 0.1, 2.0))
true = quiet[0] @ weight


def error(name, *company):
    """Return the mean error of the quiet clip's result in a batch, as a share of the result's size."""
    result = sessions[name].run(None, {"x": np.concatenate([quiet, *company])})[0][0]
    return float(np.abs(result - true).mean() / np.abs(true).mean())


errors = {name: [error(name), error(name, other), error(name, loud)] for name in sessions}
for name, shares in errors.items():
    print(f"{name}: alone {shares[0]:.4f}, beside a clip as quiet {shares[1]:.4f}, beside a loud one {shares[2]:.4f}")
alone, beside_quiet, beside_loud = errors["dynamic"]
same = alone < 0.02 and beside_quiet < 0.02 and beside_loud > 0.1
same = same and errors["blocks"][0] == errors["blocks"][2] < 0.02 and errors["float"][2] < 1e-5

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
