"""Tests for `voxbatch doctor` on machines with GPUs: its findings, warnings and failures."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import machines
import pytest
from click.testing import CliRunner
from conftest import Recorder, Voxbatch
from google.auth.credentials import AnonymousCredentials
from servers import GoogleServer, google_server

from voxbatch import doctor, engines
from voxbatch.cli import cli
from voxbatch.config import RunOptions
from voxbatch.engines import checks, gpu
from voxbatch.engines.checks import Finding
from voxbatch.errors import EngineError
from voxbatch.transducers.requirements import require_gpu


@pytest.fixture
def hub() -> Iterator[None]:
    """Let huggingface_hub be imported again, in the test and after it: it reads its environment when it is imported."""

    def forget() -> dict[str, Any]:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "huggingface_hub"}

    before = forget()
    yield
    forget()
    sys.modules.update(before)


@pytest.fixture
def diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: None) -> Any:
    """Return a function: diagnosed(driver="535.216.03", …) gives the findings on such a machine (machines.gpu_machine)
    by name.
    """

    def diagnose(asked: RunOptions | None = None, out: str | None = None, **machine: Any) -> dict[str, Finding]:
        packages = machines.gpu_machine(tmp_path / "packages", **machine)
        environment = {**machines.hub_cache(tmp_path / "cache"), "PYTHONPATH": machines.path(packages)}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.syspath_prepend(packages)
        monkeypatch.setitem(sys.modules, "pynvml", None)  # monkeypatch restores the module at the end
        del sys.modules["pynvml"]
        monkeypatch.setattr(engines, "has_gpu", lambda: True)
        return {each.name: each for each in doctor.findings(asked, out)}

    return diagnose


@pytest.mark.slow
def test_plugin_that_is_off_is_a_warning(diagnosed: Any) -> None:
    """A vLLM with which `auto` does not use the plugin is a warning with the cost and the remedy, not a failure."""
    found = diagnosed(vllm="0.31.0")
    assert found["vllm"].state == "warning"
    assert found["vllm-plugin"].state == "warning"
    assert "about 5 times slower" in found["vllm-plugin"].detail
    assert "pip install 'voxbatch[vllm]'" in found["vllm-plugin"].detail
    assert found["engine"].state == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.26.0", "0.40.0"])
def test_another_vllm_is_a_warning(diagnosed: Any, version: str) -> None:
    """Another vLLM runs without the plugin, and both findings say so."""
    found = diagnosed(vllm=version)
    assert found["vllm"].state == found["vllm-plugin"].state == "warning"
    assert f"vllm {version} is installed, and voxbatch was tested with vLLM 0.32" in found["vllm"].detail
    assert f"vllm {version} is installed, and the plugin is proven with 0.32" in found["vllm-plugin"].detail
    assert found["engine"].state == "ok"


@pytest.mark.slow
def test_working_gpu_is_ok(diagnosed: Any) -> None:
    """A working GPU is one on which PyTorch allocated a tensor with the installed driver. With the vLLM of the extra,
    the plugin is on.
    """
    found = diagnosed()
    assert found["vllm-plugin"].state == "ok"
    assert found["cuda"] == Finding(
        "cuda", "ok", "driver 580.95.05 runs CUDA 13.0, and PyTorch for CUDA 13.0 allocates memory on each GPU"
    )
    assert found["engine"].state == "ok"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "detail"),
    [
        ({"fault": "CUDA error 803"}, "cannot use the GPU with driver 580.95.05 (RuntimeError: CUDA error 803): check"),
        ({"torch_cuda": None, "fault": "not compiled with CUDA"}, "this PyTorch is a build without CUDA: pip install"),
        ({"hang": 60.0}, "cannot use the GPU with driver 580.95.05 (no answer within 2 s)"),
    ],
)
def test_errors_of_pytorch_fail_the_engine(
    diagnosed: Any, monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any], detail: str
) -> None:
    """Any error of PyTorch, also a hang, is reported, and the engine fails."""
    monkeypatch.setattr(gpu.probe, "__defaults__", (2.0,))
    found = diagnosed(**machine)
    assert found["cuda"].state == "failed"
    assert detail in found["cuda"].detail
    assert found["engine"].state == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "faults"),
    [({}, ""), ({"torch_cuda": None, "fault": "not compiled with CUDA"}, "cuda"), ({"cards": 0}, "gpu")],
)
def test_faults_of_a_gpu_fail_the_engine_for_parakeet(
    diagnosed: Any, tmp_path: Path, machine: dict[str, Any], faults: str
) -> None:
    """The engine by PyTorch alone needs a GPU that works, too, where there is one."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "parakeet_tdt"}')
    found = diagnosed(RunOptions(model=str(tmp_path / "model")), **machine)
    assert found["transformers"].state == "ok"
    if faults:
        assert found["engine"].detail == f"transducers is installed and cannot start here: see {faults} above"
    else:
        assert (found["engine"].state, found["cuda"].state) == ("ok", "ok")
        assert found["engine"].detail.startswith("transducers: it runs ")


def test_driver_without_a_visible_gpu_fails_the_engine(diagnosed: Any) -> None:
    """A driver without a visible GPU cannot start vLLM either."""
    found = diagnosed(cards=0)
    assert (found["gpu"].state, found["cuda"].state) == ("missing", "ok")
    assert found["engine"].detail == "vllm is installed and cannot start here: see gpu above"


@pytest.mark.parametrize("name", ["engine", "model", "out"])
def test_exit_code_is_1_if_a_run_could_not_start(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The exit code is 1 if the engine, the model or OUT fails; a warning alone does not change it."""
    for state, code in (("ok", 0), ("failed", 1)):
        found = [Finding("vllm-plugin", "warning", "slow"), Finding(name, state, "")]
        monkeypatch.setattr(doctor, "findings", lambda *_, found=found: iter(found))
        assert CliRunner().invoke(cli, ["doctor"]).exit_code == code


def test_model_of_the_run_is_checked(diagnosed: Any, tmp_path: Path) -> None:
    """The model of VOXBATCH_MODEL is the one that is checked, with the size of its weights."""
    name = machines.model_folder(tmp_path / "model")
    found = diagnosed(RunOptions(model=name))
    assert found["model"].state == "ok"
    assert found["model"].detail.startswith(f"{name}, 8.9 GB")
    assert "vllm-model" not in found, "nothing is said about the default model, which is not used"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/nowhere/model", "there is no such folder"),
        ("owner/model-that-is-not-in-the-cache", "the hub is switched off"),
        (None, "the hub is switched off"),  # the weights of the default model are not in the cache
    ],
)
def test_model_that_cannot_be_read_fails(diagnosed: Any, name: str | None, reason: str) -> None:
    """A model that is not there, or whose weights cannot be fetched, is a failure, as it is for a run."""
    found = diagnosed(RunOptions(model=name))
    assert (found["engine"].state, found["model"].state) == ("ok", "failed")
    assert reason in found["model"].detail or "HF_HUB_OFFLINE" in found["model"].detail
    assert not doctor.is_ready(list(found.values()))


def test_incomplete_weights_fail(diagnosed: Any, tmp_path: Path) -> None:
    """Weights that a copy left incomplete are found before a GPU is waited for."""
    name = machines.model_folder(tmp_path / "model")
    os.truncate(tmp_path / "model" / "consolidated.safetensors", 1_000_000)
    assert "consolidated.safetensors is incomplete" in diagnosed(RunOptions(model=name))["model"].detail


def test_model_that_is_too_large_for_the_gpu_fails(diagnosed: Any, tmp_path: Path) -> None:
    """Weights that are larger than the GPU's memory are a failure; several GPUs, or 8 bits, may have room for them."""
    name = machines.model_folder(tmp_path / "model", 40)
    found = diagnosed(RunOptions(model=name))["model"]
    assert found.state == "failed"
    # By hand: an L4 has 24.15 GB, of which 90 % may be filled; the driver keeps 0.64, and memory.UNCOUNTED_BYTES.
    assert re.search(
        r"its weights take 40.0 GB, and there are 2\d\.\d GB for it on 1 GPU: take larger GPUs", found.detail
    )


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleServer]:
    """Serve a model in gs://models/voxtral/, whose weights are a few bytes."""
    machines.small_files(tmp_path / "small")
    with google_server() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setattr("google.auth.default", lambda *_, **__: (AnonymousCredentials(), "p"))
        server.make("models")
        for file in (tmp_path / "small").iterdir():
            server.put("models", f"voxtral/{file.name}", file.read_bytes())
        server.put("models", "voxtral/consolidated.safetensors", b"weights")
        yield server


@pytest.mark.slow
def test_model_in_a_bucket_is_listed_and_not_fetched(diagnosed: Any, bucket: GoogleServer) -> None:
    """A model in a bucket is checked without its weights: what is missing is found, and nothing stays in the cache."""
    asked = RunOptions(model="gs://models/voxtral")
    found = diagnosed(asked)
    assert found["model"].state == "ok", found["model"].detail
    assert found["model"].detail.startswith("gs://models/voxtral, 0.0 GB")
    assert not (Path(os.environ["HF_HOME"]).parent / "voxbatch").exists()

    bucket.remove("models", "voxtral/consolidated.safetensors")
    assert "has no consolidated*.safetensors" in again(asked)["model"].detail
    assert (
        "there is no object below gs://models/nothing/"
        in again(RunOptions(model="gs://models/nothing"))["model"].detail
    )
    missing = again(RunOptions(model="gs://no-such-bucket/voxtral"))["model"]
    assert (missing.state, "no-such-bucket" in missing.detail) == ("failed", True)


def again(asked: RunOptions) -> dict[str, Finding]:
    """Return the findings on the same machine once more."""
    return {each.name: each for each in doctor.findings(asked)}


@pytest.fixture
def parakeet(diagnosed: Any, tmp_path: Path) -> Any:
    """Return a function: parakeet(num_bytes, options, …) gives the findings for a Parakeet of this size on a machine
    with the extra parakeet and without vLLM."""

    def diagnose(num_bytes: int = 2_510_000_000, options: Mapping[str, str] | None = None, **machine: Any) -> Any:
        model = machines.parakeet_folder(tmp_path / "parakeet", num_bytes)
        asked = RunOptions(model=model, engine_options=options or {})
        return diagnosed(asked, **{"vllm": None, **machine})

    return diagnose


@pytest.mark.slow
def test_parakeet_runs_without_vllm(parakeet: Any) -> None:
    """With the extra parakeet alone, the GPU is tried with PyTorch, and Parakeet's engine and its model are ready. An
    L4 has memory for the 64 rows of a batch."""
    found = parakeet()
    assert (found["vllm"].state, found["transformers"].state) == ("missing", "ok")
    assert found["cuda"].detail.endswith("and PyTorch for CUDA 13.0 allocates memory on each GPU")
    assert (found["engine"].state, found["engine"].detail[:12]) == ("ok", "transducers:")
    assert (found["model"].state, ", 2.5 GB" in found["model"].detail) == ("ok", True)
    assert "memory" not in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "faulty", "detail"),
    [
        ({"torch_cuda": None, "fault": "no CUDA"}, "cuda", "a build without CUDA: pip install 'voxbatch[vllm]', or"),
        ({"driver": "535.216.03", "cuda": 12020, "fault": "35"}, "cuda", "driver 535.216.03 runs CUDA 12.2, and"),
        ({"fault": "CUDA error 803"}, "cuda", "cannot use the GPU with driver 580.95.05 (RuntimeError: CUDA"),
        ({"cards": 0}, "gpu", "no GPU answers: check nvidia-smi and CUDA_VISIBLE_DEVICES, and pip install"),
    ],
)  # fmt: skip
def test_parakeet_does_not_start_without_its_gpu(
    parakeet: Any, machine: dict[str, Any], faulty: str, detail: str
) -> None:
    """Parakeet does not silently run on the CPU where there is a driver: a PyTorch without CUDA, a driver that is too
    old and GPUs that are hidden fail the engine, with the remedy. A run is refused for the same reason.
    """
    found = parakeet(**machine)
    assert detail in found[faulty].detail
    reason = f"transducers is installed and cannot start here: see {faulty} above"
    assert found["engine"] == Finding("engine", "failed", reason)
    if machine.get("fault") != "CUDA error 803":  # which PyTorch alone knows
        with pytest.raises(EngineError, match="check nvidia-smi" if faulty == "gpu" else re.escape(detail[:20])):
            require_gpu()


@pytest.mark.slow
def test_parakeet_needs_a_new_transformers(parakeet: Any) -> None:
    """A transformers without the classes fails the engine with the command that helps, as it does for a run."""
    found = parakeet(transformers="4.57.6")
    needed = "transformers 4.57.6 is installed, and the engine transducers needs 5.16 or later: pip install"
    assert (found["engine"].state, needed in found["engine"].detail) == ("failed", True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gigabytes", "options", "warning"),
    [
        # By hand: 8.0 GB less 0.64 of the driver, 0.6 of CUDA and 2.51 / 2 of weights are 5.5; a row takes 0.166.
        # In float32 weights and rows take twice that: 12.0 less 1.24 and 2.51 are 8.25.
        (8.0, {}, "64 rows may not fit, as the smallest GPU has 8.0 GB: --engine-option rows=33"),
        (8.0, {"rows": "32"}, None),
        (12.0, {"dtype": "float32"}, "64 rows may not fit, as the smallest GPU has 12.0 GB: --engine-option rows=24"),
    ],
)
def test_small_gpu_takes_fewer_rows(
    parakeet: Any, gigabytes: float, options: dict[str, str], warning: str | None
) -> None:
    """A GPU that may be too small for the rows of a batch is a warning with a number of rows that fits."""
    found = parakeet(options=options, total_bytes=int(gigabytes * 1e9))
    assert found.get("memory") == (Finding("memory", "warning", warning) if warning else None)
    assert found["model"].state == "ok"


@pytest.mark.slow
def test_gpu_that_is_too_small_for_the_weights_fails(parakeet: Any) -> None:
    """A model whose weights leave no memory for a row is a failure."""
    found = parakeet(80_000_000_000)["model"]
    assert (found.state, "its weights take 80.0 GB, and the smallest GPU has 24.2 GB" in found.detail) == (
        "failed",
        True,
    )


def test_parakeet_on_this_machine(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The engine is missing without the extra, with the command that installs it, and a run that asks for it fails."""
    if not engines.install_command("transducers"):
        pytest.skip("PyTorch and transformers are installed")
    model = machines.parakeet_folder(tmp_path / "parakeet", 1000)
    done = voxbatch("doctor", env={"VOXBATCH_MODEL": model, "VOXBATCH_ENGINE": "transducers"})
    install = "pip install 'voxbatch[parakeet]'"
    assert f"missing  transformers           for the engine for Parakeet on GPUs: {install}\n" in done.stdout
    assert "failed   engine                 engine transducers is " in done.stdout
    assert f"{'' if engines.has_gpu() else 'on a machine with one: '}{install}\n" in done.stdout
    assert done.returncode == 1


@pytest.mark.slow
def test_full_disk_fails(diagnosed: Any, bucket: GoogleServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that would not fit onto the disk is a failure with both numbers."""
    monkeypatch.setattr(checks, "_free_bytes", lambda place: 3)  # no test can fill a disk
    found = diagnosed(RunOptions(model="gs://models/voxtral"))["model"]
    assert found.state == "failed"
    assert "0.0 GB are free there: set XDG_CACHE_HOME and HF_HOME" in found.detail


@pytest.mark.slow
def test_out_that_cannot_be_written_fails(diagnosed: Any, tmp_path: Path) -> None:
    """OUT is written to, if it is given; without it there is no finding."""
    (tmp_path / "file").touch()
    found = diagnosed(None, str(tmp_path / "file" / "out"))
    assert found["out"].state == "failed"
    assert not doctor.is_ready(list(found.values()))
    assert "out" not in again(RunOptions())


@pytest.mark.parametrize(("variable", "value"), [("VOXBATCH_MODEL", "/nowhere/model"), ("VOXBATCH_OUT", "/proc/out")])
def test_settings_come_from_the_variables_of_a_run(voxbatch: Voxbatch, variable: str, value: str) -> None:
    """The command takes the settings of a run with the same variables, and fails as that run would."""
    done = voxbatch("doctor", env={variable: value})
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("not ready: ")
    assert value in done.stdout


def test_last_line_is_the_verdict() -> None:
    """The verdict is that of the engine, with its remedy; other faults are named as limits."""
    engine = Finding("engine", "ok", "faster-whisper")
    assert doctor.verdict([engine]) == "ready: voxbatch run FOLDER transcribes a folder of recordings"
    assert doctor.verdict([Finding("ffmpeg", "failed", "gone"), engine]).startswith("ready, with limits: see ffmpeg ab")
    assert doctor.verdict([Finding("boto3", "missing", "for s3://"), engine]).startswith("ready: ")
    failed = Finding("engine", "failed", "no engine is installed: pip install 'voxbatch[cpu]'")
    assert doctor.verdict([failed]) == "not ready: no engine is installed: pip install 'voxbatch[cpu]'"


def test_an_extra_is_listed_with_its_use(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A package that is missing stands beside its use and the command that installs it; that is no failure."""
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib import metadata\n"
        "real = metadata.version\n"
        "def version(name):\n"
        "    if name == 'boto3':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
    )
    done = voxbatch("doctor", env={"PYTHONPATH": machines.path(tmp_path)})
    use = "for s3:// addresses and SageMaker: pip install 'voxbatch[s3]'"
    assert f"missing  boto3                  {use}\n" in done.stdout


def test_run_gives_the_same_message_as_doctor(tmp_path: Path, voxbatch: Voxbatch, recording: Recorder) -> None:
    """A run ends with 1 before a model is loaded, with the same message."""
    recording("a.wav", 0.5)
    (tmp_path / "m.jsonl").write_text('{"audio_filepath": "a.wav"}\n')
    machines.small_files(tmp_path / "model")
    packages = machines.gpu_machine(tmp_path / "packages", driver="535.216.03", cuda=12020, fault="CUDA error 35")
    env = {"PYTHONPATH": machines.path(packages), "CUDA_VISIBLE_DEVICES": "0"}
    done = voxbatch("run", "m.jsonl", "--engine", "vllm", "--model", "model", env=env)
    assert done.returncode == 1
    assert "driver 535.216.03 runs CUDA 12.2, and this PyTorch is built for CUDA 13.0: install" in done.stderr
