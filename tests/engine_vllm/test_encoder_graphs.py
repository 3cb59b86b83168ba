"""The fixed sizes and the fixed memory of the encoder's CUDA graphs, run by Triton's interpreter without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, environment

pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton is not installed")

import tower

CASES = """
import torch
import tower

from voxbatch.vllm_plugin import rotary_kernel
from voxbatch.vllm_plugin.encoder import Encoder
from voxbatch.vllm_plugin.encoder_attention import Windowed
from voxbatch.vllm_plugin.encoder_graphs import CHUNKS, FRAMES

WINDOW, PAD = 90, 3
tower.HEAD = 16  # the least that Triton multiplies
whole, adapter = tower.tower(WINDOW)
plain, graphed = Encoder(whole, adapter, PAD), Encoder(whole, adapter, PAD)
graphed._attention = Windowed(WINDOW, tower.HEAD**-0.5)
graphed._rotate_and_lay_out = rotary_kernel.rotate_and_lay_out
graphed._graphs = graphs = graphed._make_graphs()
silence = graphed._silence.frames
assert silence

def encoded(encoder, audio):
    with torch.no_grad():
        return encoder(audio)

def chunk(frames):
    samples = torch.randn(320 * (silence + frames)) * 0.1
    samples[: plain._silence.samples] = 0
    return samples

def compare(*frames):
    audio = [chunk(each) for each in frames]
    for found, expected in zip(encoded(graphed, audio), encoded(plain, audio), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)

torch.manual_seed(0)
compare(200, 40)              # padded
compare(FRAMES)               # exactly a size
compare(252)                  # what the groups before left in memory is not read
compare(8, 4, 8, 4, 100)      # more chunks, and fewer frames
compare(300, 120)             # the next size
assert graphs._sizes == {FRAMES, 2 * FRAMES}, graphs._sizes
assert graphs.fit([4] * (CHUNKS - 1)) and not graphs.fit([4] * CHUNKS)
assert graphs.fit([8_192]) and not graphs.fit([8_192, 4])

# a group without a graph: too many chunks, or a chunk that does not begin with silence
sizes = set(graphs._sizes)
compare(*[4] * CHUNKS)
loud = [torch.randn(320 * 40)]
torch.testing.assert_close(encoded(graphed, loud)[0], encoded(plain, loud)[0], atol=2e-5, rtol=1e-5)
assert graphs._sizes == sizes
"""


@pytest.mark.slow
def test_padded_groups_have_the_rows_of_groups_without_padding() -> None:
    """The rows of a padded group are those of the same chunks without padding, also if an earlier group was larger."""
    paths = f"{ROOT}{os.pathsep}{Path(tower.__file__).parent}"
    settings = environment(TRITON_INTERPRET="1", OMP_NUM_THREADS="1", PYTHONPATH=paths)
    done = subprocess.run([sys.executable, "-c", CASES], env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
