"""vllm-omni on a CPU: a platform for it, since it has none, and codes from given noise.

vllm-omni is installed beside vLLM's CPU build, in an environment of its own:

    pip install --no-deps vllm-omni==0.32.0rc1 accelerate==1.12.0 aenum==3.1.16 antlr4-python3-runtime==4.13.2 av \
        diffusers==0.40.0 janus msgpack omegaconf prettytable

`site` makes the folder with which vllm-omni's processes find this module. With the variable NOISE, the noise of the
flow matching comes from `voxbatch.vllm.plugin.speech.noise`, by the seed that a request has in its
`additional_information`, and the codes of each request are written below that folder.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

NOISE = "OMNI_ON_CPU_NOISE"
STUBS = ("torchvision", "torchaudio")
"""Packages that have no build for PyTorch's CPU build in PyPI. vllm-omni imports both, and Voxtral TTS uses neither."""


class _Stubs:
    """Finds empty modules for STUBS."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in STUBS else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        from unittest.mock import MagicMock

        module = ModuleType(spec.name)
        module.__getattr__ = lambda name: MagicMock()  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is made."""


def stub() -> None:
    """Let this process import STUBS, and let transformers believe that they are not installed."""
    find_spec = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name in STUBS else find_spec(name, package)
    sys.meta_path.append(_Stubs())


def site(folder: Path) -> Path:
    """Return a folder for the path that makes vllm-omni find its platform."""
    info = folder / "omni_on_cpu-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: omni-on-cpu\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm_omni.platform_plugins]\ncpu = omni_on_cpu:platform\n")
    (folder / "sitecustomize.py").write_text("import omni_on_cpu\n\nomni_on_cpu.stub()\n")
    return folder


def platform() -> str:
    """Return the name of the platform's class, for vllm-omni."""
    return "omni_on_cpu.CpuPlatform"


def __getattr__(name: str) -> Any:
    """Make the classes when they are asked for: vllm-omni asks for the platform while it is imported."""
    if name == "CpuPlatform":
        return _platform()
    if name.endswith("Worker"):
        return _worker(name)
    raise AttributeError(name)


def _platform() -> type:
    import psutil
    import torch
    from vllm.platforms.cpu import CpuPlatform as VllmCpuPlatform
    from vllm_omni.platforms.interface import OmniPlatform, OmniPlatformEnum

    def memory(cls: Any, device: Any = None) -> tuple[int, int]:
        return psutil.virtual_memory().available, psutil.virtual_memory().total

    members = {
        "_omni_enum": OmniPlatformEnum.OOT,
        "get_omni_ar_worker_cls": classmethod(lambda cls: "omni_on_cpu.ArWorker"),
        "get_omni_generation_worker_cls": classmethod(lambda cls: "omni_on_cpu.GenerationWorker"),
        "get_default_stage_config_path": classmethod(lambda cls: "vllm_omni/deploy"),
        "get_torch_device": classmethod(lambda cls, local_rank=None: torch.device("cpu")),
        "get_device_count": classmethod(lambda cls: 1),
        "get_device_version": classmethod(lambda cls: None),
        "synchronize": classmethod(lambda cls: None),
        "get_free_memory": classmethod(lambda cls, device=None: psutil.virtual_memory().available),
        "get_device_memory": classmethod(memory),
        "supports_torch_inductor": classmethod(lambda cls: False),
        "supports_talker_mtp_graph_capture": classmethod(lambda cls: False),
    }
    return type("CpuPlatform", (OmniPlatform, VllmCpuPlatform), members)


def _worker(name: str) -> type:
    from vllm.v1.worker import cpu_worker
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner, _torch_cuda_wrapper
    from vllm_omni.worker.gpu_ar_model_runner import GPUARModelRunner
    from vllm_omni.worker.gpu_generation_model_runner import GPUGenerationModelRunner
    from vllm_omni.worker.mixins import OmniWorkerMixin

    base: Any = GPUARModelRunner if name == "ArWorker" else GPUGenerationModelRunner

    class Runner(base, CPUModelRunner):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            with _torch_cuda_wrapper():
                super().__init__(*arguments, **named)

    class Worker(OmniWorkerMixin, cpu_worker.CPUWorker):  # type: ignore[misc]
        model_runner_cls = Runner  # vllm-omni looks at it

        def init_device(self) -> None:
            if folder := os.environ.get(NOISE):
                _give_noise(Path(folder))
            original, cpu_worker.CPUModelRunner = cpu_worker.CPUModelRunner, Runner
            self.use_v2_model_runner = False
            super().init_device()
            cpu_worker.CPUModelRunner = original

        def encoder_loaded(self) -> bool:
            return bool(self.model_runner.model.encoder_loaded())

    return Worker


def _give_noise(folder: Path) -> None:
    """Replace the random numbers of vllm-omni's flow matching, and write the codes of each request to SEED.npy."""
    import numpy as np
    import torch
    from vllm_omni.model_executor.models.voxtral_tts import voxtral_tts
    from vllm_omni.model_executor.models.voxtral_tts import voxtral_tts_audio_generation as generation

    from voxbatch.vllm.plugin.speech.noise import noise

    model: Any = voxtral_tts.VoxtralTTSForConditionalGeneration
    flow: Any = generation.FlowMatchingAudioTransformer
    language_model: Any = generation.VoxtralTTSAudioGenerationForConditionalGeneration
    preprocess, forward, logits = model.tts_preprocess, flow.forward, language_model.compute_mm_logits
    frames, rows = dict[int, list[Any]](), list[int]()

    def preprocessed(self: Any, input_ids: Any, input_embeds: Any, **info: Any) -> Any:
        (seed,) = info["noise_seed"]
        if self._is_prefill_step(info, input_ids):
            frames[seed] = []
        rows.append(seed)
        return preprocess(self, input_ids, input_embeds, **info)

    def with_noise(self: Any, llm_hidden: Any, cfg_alpha: Any) -> Any:
        assert len(rows) == len(llm_hidden)
        counts = [len(frames[seed]) for seed in rows]
        given, randn = noise(torch.tensor(rows), torch.tensor(counts), self.model_args.n_acoustic_codebook), torch.randn
        torch.randn = lambda *shape, **named: given.to(llm_hidden.dtype)
        codes = forward(self, llm_hidden, cfg_alpha)
        torch.randn = randn
        for seed, row in zip(rows, codes, strict=True):
            frames[seed].append(row)
            if row[0] == 1:
                np.save(folder / f"{seed}.npy", torch.stack(frames[seed]).short().numpy())
        rows.clear()
        return codes

    def in_dtype(self: Any, hidden_states: Any, cfg_alpha: Any) -> Any:
        ends, codes = logits(self, hidden_states, cfg_alpha)
        return ends.to(hidden_states.dtype), codes  # vllm-omni's are always bfloat16

    model.tts_preprocess, flow.forward, language_model.compute_mm_logits = preprocessed, with_noise, in_dtype
