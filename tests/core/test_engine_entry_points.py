"""Tests for engines of other packages: they run by their names, and a broken one is named with its package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from conftest import IMPORT_PATH, ManifestWriter, Voxbatch, environment

from voxbatch.engines import entry_points


def package(folder: Path, name: str, engine: str, value: str, module: str = "") -> str:
    """Write a package that registers an engine, as an installer leaves it. Return a PYTHONPATH with it."""
    info = folder / f"{name.replace('-', '_')}-2.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text(f"[voxbatch.engines]\n{engine} = {value}\n")
    if module:
        (folder / f"{value.partition(':')[0]}.py").write_text(module)
    return os.pathsep.join([str(folder), IMPORT_PATH])


def test_an_engine_of_another_package_runs_by_its_name(
    manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """`--engine NAME` runs it, also in a process of its own and in workers, and the outputs name it."""
    for number, option in enumerate(("own_process=true", "workers=2")):
        done = voxbatch(
            "run", manifest(1.1, 0.6), "-o", f"o{number}", "--engine", "scripted", "--engine-option", option
        )
        assert done.returncode == 0, done.stderr
        assert "engine scripted: asked for" in done.stderr
        summary = json.loads((tmp_path / f"o{number}" / "summary.json").read_text())
        assert (summary["engine"]["name"], summary["done"]) == ("scripted", 2)


def test_the_engine_of_the_docstring_runs(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The example that a reader copies is a whole engine."""
    lines = (entry_points.__doc__ or "").split("my_package.py:\n")[1].split("\nThe module")[0]
    env = {"PYTHONPATH": package(tmp_path / "site", "mine", "my-engine", "my_package:REGISTRATION", dedent(lines))}
    done = voxbatch("run", manifest(1.0), "-o", "out", "--engine", "my-engine", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "transcripts.jsonl").read_text())["pred_text"] == "16000 samples"


def test_doctor_models_and_errors_name_it(voxbatch: Voxbatch, manifest: ManifestWriter) -> None:
    """`models` and `doctor` name the engine and its package, and an unknown name is answered with all known ones."""
    assert "engine scripted: of the package scripted-engine 1.0\n" in voxbatch("models").stdout
    assert "of scripted-engine 1.0" in voxbatch("doctor").stdout
    refused = voxbatch("run", manifest(0.5), "--engine", "scribbled")
    known = "auto, faster-whisper, onnx-asr, scripted, transducers, vllm"
    assert f"engine 'scribbled' is unknown; known are {known}" in refused.stderr


BROKEN = {
    "no module": ("gone:REGISTRATION", "", "cannot be imported: ModuleNotFoundError: No module named 'gone'"),
    "no name": ("thin:REGISTRATION", "x = 1", "cannot be imported: AttributeError: module 'thin' has no attribute"),
    "an error": ("loud:REGISTRATION", "1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
    "no registration": ("odd:x", "x = 1", "odd:x is no voxbatch.engines.Registration, but of type int"),
    "no class": (
        "late:REGISTRATION",
        "from voxbatch.engines import Registration\nREGISTRATION = Registration(class_path='late:Missing')",
        "cannot be imported: module 'late' has no attribute 'Missing'",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_package_is_named(fault: str, manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The error has the engine, the package with its version, the cause and what to do. Other engines run."""
    value, module, cause = BROKEN[fault]
    env = {"PYTHONPATH": package(tmp_path / "site", "their-engine", "theirs", value, module)}
    done = voxbatch("run", manifest(0.5), "-o", "out", "--engine", "theirs", env=env)
    assert done.returncode == 1, done.stderr
    assert f"engine theirs of their-engine 2.1{'' if cause[0] == 'c' else ':'} {cause}" in done.stderr
    assert "update or uninstall the package" in done.stderr
    assert "Traceback" not in done.stderr
    assert voxbatch("run", manifest(0.5), "-o", "other", "--engine", "scripted", env=env).returncode == 0
    listed = voxbatch("models", env=env)
    assert listed.returncode == 0, listed.stderr
    assert "their-engine 2.1" in listed.stdout
    assert "their-engine 2.1" in voxbatch("doctor", env=env).stdout


@pytest.mark.slow
def test_two_packages_with_one_engine_are_refused(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """No guess is made which of the two is meant."""
    package(tmp_path / "site", "their-engine", "scripted", "scripted_engine:REGISTRATION")
    path = package(tmp_path / "site", "our-engine", "ours", "scripted_engine:REGISTRATION")
    done = voxbatch("run", manifest(0.5), "--engine", "scripted", env={"PYTHONPATH": path})
    both = "scripted-engine 1.0 and their-engine 2.1"
    assert f"engine scripted is registered by {both}: uninstall all but one of them" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("--help",), ("run", "--help"), ("run", "m.jsonl", "--engine", "faster-whisper")]
)
def test_no_package_is_looked_for_without_need(arguments: tuple[str, ...], manifest: ManifestWriter) -> None:
    """The help and a run with an engine of voxbatch read no metadata of other packages."""
    script = "import sys; sys.modules['voxbatch.engines.entry_points'] = None; from voxbatch import cli; cli.main()"
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=manifest(0.5).parent, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
