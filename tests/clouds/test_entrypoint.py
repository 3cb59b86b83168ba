"""Tests for jobs/image/entrypoint.sh: it loads CUDA's compatibility libraries when needed, and no job bypasses it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import machines
import pytest
import yaml
from cloudformation import load
from conftest import ROOT

from voxbatch.cli import cli
from voxbatch.engines.gpu import FIRST_DRIVERS

SCRIPT = ROOT / "jobs" / "image" / "entrypoint.sh"
JOBS = ROOT / "jobs"
OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U22-I3-AF01-1)  "
    "Tue Sep 23 10:11:16 UTC 2025\nGCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
)
CLOSED_MODULE = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Oct 22 19:06:45 UTC 2024\n"
    "GCC version:  gcc version 10.2.1 20210110 (Debian 10.2.1-6)\n"
)
MAIN = """
import json, os, sys
print(json.dumps([os.environ.get("LD_LIBRARY_PATH"), os.getpid(), sys.argv[1:]]))
sys.exit(3)
"""
Started = Callable[..., "str | None"]


@pytest.fixture
def started(tmp_path: Path) -> Started:
    """Return a function: started(version, CUDA_VERSION="13.0.2", …) gives the LD_LIBRARY_PATH of voxbatch.

    The machine's files of the driver and of CUDA lie below tmp_path.
    """
    script = tmp_path / "entrypoint.sh"
    text = SCRIPT.read_text()
    for place in ("/proc/driver/nvidia", "/dev/nvidiactl", "/usr/local/cuda/compat"):
        assert place in text
        text = text.replace(place, f"{tmp_path}{place}")
    script.write_text(text)
    script.chmod(0o755)
    (tmp_path / "packages" / "voxbatch").mkdir(parents=True)
    (tmp_path / "packages" / "voxbatch" / "__main__.py").write_text(MAIN)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    (tmp_path / "voxbatch.py").write_text("raise SystemExit('the current folder is no place for packages')")
    compat = tmp_path / "usr/local/cuda/compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.1").touch()

    def start(version: str | None, **environment: str) -> str | None:
        if version is not None:
            (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
            (tmp_path / "proc/driver/nvidia/version").write_text(version)
        env = {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(tmp_path / "packages"),
            **environment,
        }
        process = subprocess.Popen(
            [script, "run", "a b", "-o", ""], cwd=tmp_path, env=env, stdout=-1, stderr=-1, text=True
        )
        said, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (3, "")
        found, pid, arguments = json.loads(said)
        assert pid == process.pid, "signals reach voxbatch, because it takes the shell's place"
        assert arguments == ["run", "a b", "-o", ""]
        return None if found is None else found.replace(str(tmp_path), "")

    return start


@pytest.mark.parametrize(
    ("module", "version", "cuda", "used"),
    [
        (OPEN_MODULE, "575.57.08", "13.0.2", True),
        (CLOSED_MODULE, "580.65.06", "13.0.2", False),
        (OPEN_MODULE, "535.216.03", "12.9.1", False),
        (CLOSED_MODULE, "470.256.02", "12.9.1", True),
        (CLOSED_MODULE, "535.216.03", "99.0", False),
    ],
)
def test_compatibility_libraries_are_used_for_an_old_driver(
    started: Started, module: str, version: str, cuda: str, used: bool
) -> None:
    """The libraries come first if the driver is too old for PyTorch's CUDA, and are not used otherwise."""
    found = started(module.format(version), CUDA_VERSION=cuda, LD_LIBRARY_PATH="/usr/local/nvidia/lib64")
    front = "/usr/local/cuda/compat:" if used else ""
    assert found == f"{front}/usr/local/nvidia/lib64"


def test_library_path_gets_no_empty_entry(started: Started) -> None:
    """No empty entry is created, because it would mean the current folder."""
    assert started(CLOSED_MODULE.format("535.216.03"), CUDA_VERSION="13.0.2") == "/usr/local/cuda/compat"


@pytest.mark.parametrize("version", [None, "", "NVRM version: unknown\n"])
def test_nothing_is_set_without_a_driver(started: Started, version: str | None) -> None:
    """Nothing is set without a driver, as on the machine that builds the image."""
    assert started(version, CUDA_VERSION="13.0.2") is None


def test_nothing_is_set_without_the_libraries(started: Started, tmp_path: Path) -> None:
    """Nothing is set without the libraries; voxbatch itself then reports the fault."""
    (tmp_path / "usr/local/cuda/compat/libcuda.so.1").unlink()
    assert started(CLOSED_MODULE.format("535.216.03"), CUDA_VERSION="13.0.2") is None


@pytest.mark.parametrize(("torch_cuda", "used"), [("13.0", True), ("12.9", False), (None, False)])
def test_cuda_version_is_read_from_pytorch(
    started: Started, tmp_path: Path, torch_cuda: str | None, used: bool
) -> None:
    """If the image does not give its CUDA version, the version is read from PyTorch's file, without
    importing PyTorch.
    """
    packages = machines.gpu_machine(tmp_path / "more", torch_cuda=torch_cuda)
    (packages / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    path = f"{tmp_path / 'packages'}:{packages}"
    found = started(CLOSED_MODULE.format("535.216.03"), PYTHONPATH=path)
    assert found == ("/usr/local/cuda/compat" if used else None)


@pytest.mark.parametrize(("driver", "used"), [("535.216.03", True), ("580.65.06", False)])
def test_driver_version_is_read_from_nvml(started: Started, tmp_path: Path, driver: str, used: bool) -> None:
    """In a sandbox that shows a GPU but no file of the driver, NVML gives the driver version."""
    packages = machines.gpu_machine(tmp_path / "more", driver=driver)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    found = started(None, CUDA_VERSION="13.0.2", PYTHONPATH=f"{tmp_path / 'packages'}:{packages}")
    assert found == ("/usr/local/cuda/compat" if used else None)


def test_script_and_doctor_use_the_same_minimum_drivers() -> None:
    """The script and `doctor` use the same minimum driver versions."""
    found = re.findall(r"^\s+(\d+)\) needed=(\d+) ;;$", SCRIPT.read_text(), re.MULTILINE)
    assert {int(cuda): int(driver) for cuda, driver in found} == FIRST_DRIVERS


def test_every_job_starts_the_script() -> None:
    """The entry point of the image and every command of jobs/ start `voxbatch` by its name, which is the script. No
    manifest replaces the command.
    """
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "COPY --chmod=0755 jobs/image/entrypoint.sh /opt/voxbatch/bin/voxbatch\n" in dockerfile
    assert dockerfile.count("PATH=/opt/voxbatch/bin:$PATH") == 2, "the embedded engine's environment, and the script"
    files = [path for path in JOBS.rglob("*") if path.suffix in (".yaml", ".json", ".sh", ".sbatch", ".py")]
    texts = {path: path.read_text() for path in files if path != SCRIPT}
    commands = re.compile(r"-m voxbatch|bin/voxbatch run|^\s*(- )?command:", re.MULTILINE)
    assert [path for path, text in texts.items() if commands.search(text)] == []
    # test_jobs_sagemaker.py runs the entry points of these files with `voxbatch` on PATH.
    replaced = {path.name for path, text in texts.items() if "ContainerEntrypoint" in text}
    assert replaced == {"submit.py", "template.yaml"}


def containers(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every container of a parsed manifest."""
    if isinstance(node, dict):
        yield from (each for each in node.get("containers") or () if "image" in each)
        for value in node.values():
            yield from containers(value)
    elif isinstance(node, list):
        for value in node:
            yield from containers(value)


def test_every_container_keeps_the_entry_point() -> None:
    """Every container of Kubernetes and AWS Batch keeps the image's entry point, and its arguments are a command of
    voxbatch. test_terraform.py has the same for Cloud Run.
    """
    found = {}
    for path in sorted((JOBS / "kubernetes").rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            for each in containers(document):
                assert "command" not in each, path
                found[path.stem] = each["args"][0]
    batch = load(JOBS / "aws-batch" / "template.yaml")["Resources"]["Job"]["Properties"]["ContainerProperties"]
    assert "EntryPoint" not in batch
    found["aws-batch"] = batch["Command"][0]
    assert set(found) >= {"job", "cronjob", "listen", "aws-batch"}
    assert set(found.values()) <= set(cli.commands)


def test_slurm_starts_the_command_of_the_image() -> None:
    """In an Apptainer container, an array task starts `voxbatch` by its name, which is the image's script; Apptainer
    keeps the image's PATH.
    """
    text = (JOBS / "slurm" / "array.sbatch").read_text()
    assert 'read -ra command <<<"${VOXBATCH:-voxbatch}"' in text
    assert re.search(r'command=\(apptainer exec --nv .* "\$CONTAINER" "\$\{command\[@\]\}"\)', text)
