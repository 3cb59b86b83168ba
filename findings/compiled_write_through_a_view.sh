#!/usr/bin/env bash
# Guess: code without a graph break that runs eagerly also compiles.
# What happens: an in-place change of an as_strided view runs eagerly and is refused by torch.compile; the same change
# out of place compiles. The shift of relative positions as a view meets this.
# Found by running torch 2.13.0 (and 2.11.0 on a GPU) on 2026-11-28.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
"$folder/venv/bin/python" - <<'PYTHON'
import torch
def shifted(scores, mask, in_place):
    view = scores.clone().view(-1).as_strided((4, 4), (6, 1), 3)
    return view.masked_fill_(mask, 0.0) if in_place else view.masked_fill(mask, 0.0)
scores, mask = torch.arange(32.0).view(4, 8)[:, :7].contiguous(), torch.eye(4, dtype=torch.bool)
eager = shifted(scores, mask, True)
compiled = torch.compile(shifted, backend="aot_eager", fullgraph=True)
assert torch.equal(compiled(scores, mask, False), eager)
try:
    compiled(scores, mask, True)
except Exception as error:
    text = next(line for line in str(error).splitlines() if "as_strided" in line)
    print("torch", torch.__version__, "eager runs; compiled:", text[:150])
else:
    raise SystemExit("changed: it compiles")
PYTHON
