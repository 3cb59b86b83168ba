"""Write Whisper's weights as ONNX, from whisper.cpp's format: `whisper_onnx.py GGML TOKENIZER FOLDER`.

bench_truth.py runs this with an interpreter that has torch, transformers and onnx. The weights are those of `ggml.py`,
TOKENIZER is the tokenizer.json beside them. The decoder has no cache, so that a token costs more than with the
published exports.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from common import ROOT

sys.path.append(str(ROOT / "tests" / "support" / "engine_vllm"))


def main(ggml: str, tokenizer: str, folder: str) -> None:
    """Convert the weights to transformers' format, and export these."""
    from onnx_export import export_whisper
    from whisper_tiny import write_model

    ids = {token["content"]: token["id"] for token in json.loads(Path(tokenizer).read_bytes())["added_tokens"]}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    controls = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    with tempfile.TemporaryDirectory() as scratch, open(ggml, "rb") as file:
        write_model(file, Path(scratch), controls)
        shutil.copy(tokenizer, Path(scratch, "tokenizer.json"))
        export_whisper(Path(scratch), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
