#!/usr/bin/env bash
# Good guess: what runs eagerly compiles, and an in-place masked_fill_ compiles like masked_fill.
# What happens: an in-place masked_fill_ on a view of a view whose last step is as_strided() raises under torch.compile
#   (also with the backend aot_eager): "encountered a mutation on a view chain of length 2, where view 1 was an
#   as_strided() call". With as_strided() as the only view, or with the out-of-place masked_fill, it compiles.
# Date: 2026-11-28. Source: found by running torch 2.13.0 (CPU).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON' || exit 1
import sys

from importlib.metadata import version

print("versions:", {name: version(name) for name in ('torch',)})

import torch


def in_place(x, mask):
    x.view(2, 4).as_strided((2, 2), (4, 1)).masked_fill_(mask, 0.0)
    return x.sum()


def in_place_of_one_view(x, mask):
    x.as_strided((2, 2), (4, 1)).masked_fill_(mask, 0.0)
    return x.sum()


def out_of_place(x, mask):
    return x.view(2, 4).as_strided((2, 2), (4, 1)).masked_fill(mask, 0.0).sum()


found = {}
mask = torch.tensor([[True, False], [False, True]])
for function in (in_place, in_place_of_one_view, out_of_place):
    eager = float(function(torch.arange(1.0, 9.0), mask))
    try:
        found[function] = float(torch.compile(function, backend="aot_eager")(torch.arange(1.0, 9.0), mask)) == eager
    except Exception as error:
        found[function] = str(error)
    print(f"{function.__name__}: eager {eager}; compiled: {str(found[function])[:240]}")
same = "mutation on a view chain of length 2, where view 1 was an as_strided() call" in str(found[in_place])
same = same and found[in_place_of_one_view] is True and found[out_of_place] is True

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
