"""vLLM is imported without what a batch job never uses, and all of that is there when something uses it."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from voxbatch.vllm.plugin import lazy_imports, vllm_version

pytest_plugins = ["engine_runs"]

IMPORT = """
import inspect, json, sys
from importlib import metadata
from voxbatch.vllm.plugin import lazy_imports

usual = inspect.getmodule, metadata.packages_distributions
with lazy_imports.lazily():
    import torch
    compile_later = torch.compile

    @torch.compile(backend="eager")
    def double(number):
        return 2 * number

    import vllm.entrypoints.llm
    import vllm.model_executor.models.voxtral_realtime
    import vllm.v1.engine.core
    inside = "scipy.optimize._lsap", "scipy.signal._signaltools", "setuptools", "torch._inductor.lowering", "networkx"
    found = {"before": [name for name in inside if name in sys.modules]}
found["is_usual"] = [usual == (inspect.getmodule, metadata.packages_distributions), torch.compile is not compile_later]

from transformers.loss import loss_for_object_detection
from vllm.distributed.device_communicators import pynccl_allocator
from vllm.multimodal import audio

found["assignment"] = [part.tolist() for part in loss_for_object_detection.linear_sum_assignment([[4, 1], [2, 3]])]
found["resampled"] = len(audio.scipy_signal.resample_poly([0.0] * 8, 1, 2))
found["missing"] = hasattr(audio.scipy_signal, "resample_nothing")
try:
    pynccl_allocator.load_inline()
except TypeError as e:
    found["load_inline"] = str(e)
found["doubled"] = double(torch.tensor(4)).item()
from torch._inductor import graph, lowering
found["fallbacks"] = [each for each in ("vllm::any", "aten::any") if each in lowering.FALLBACK_ALLOW_LIST]
found["is_one_list"] = graph.FALLBACK_ALLOW_LIST is lowering.FALLBACK_ALLOW_LIST
found["after"] = [name for name in inside[:-1] if name in sys.modules]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_modules_are_loaded_when_they_are_used() -> None:
    """In a new process, an import of vLLM loads none of them, and then each does what it does anywhere else. vLLM's
    patch of PyTorch's compiler, which looks at a module that is not loaded, comes when that module is."""
    if not vllm_version.is_proven((vllm_version.find() or ("", ""))[1]):
        pytest.skip("needs the proven version of vLLM")
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert "load_inline() missing" in found.pop("load_inline")
    assert found == {
        "before": [],
        "is_usual": [True, True],
        "assignment": [[0, 1], [1, 0]],
        "resampled": 4,
        "missing": False,
        "doubled": 8,
        "fallbacks": ["vllm::any"],
        "is_one_list": True,
        "after": ["scipy.optimize._lsap", "scipy.signal._signaltools", "setuptools", "torch._inductor.lowering"],
    }


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0+d20261127", ""])
def test_another_version_is_imported_as_usual(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is replaced for a version of vLLM that the plugin is not made for."""
    monkeypatch.setattr(vllm_version, "find", lambda: ("vllm", version) if version else None)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    before = list(sys.meta_path), inspect.getmodule
    with lazy_imports.lazily():
        assert (sys.meta_path, inspect.getmodule) == before


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return what stands for a package whose function `late` somebody takes, and which notes imports in `imports`."""
    (tmp_path / "lazy_module").mkdir()
    (tmp_path / "lazy_module/part.py").write_text("PART = 2\n")
    (tmp_path / "lazy_module/__init__.py").write_text(
        f"with open({str(tmp_path / 'imports')!r}, 'a') as file:\n    file.write('import ')\n"
        "VALUE = 1\ndef late(number, by=1):\n    return number * by\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    stub = lazy_imports._stub("lazy_module", "late")
    assert stub is not None
    monkeypatch.setitem(sys.modules, "lazy_module", stub)
    monkeypatch.delitem(sys.modules, "lazy_module.part", raising=False)
    return stub


def test_module_is_imported_once_at_its_first_use(stub: ModuleType, tmp_path: Path) -> None:
    """An import of the module, or of its function, does not run its code. An attribute does, and a call."""
    from lazy_module import late  # type: ignore[import-not-found]

    assert importlib.import_module("lazy_module.part").PART == 2
    assert inspect.getmodule(stub) is stub
    assert not (tmp_path / "imports").exists()
    assert late(3, by=2) == 6
    assert (stub.VALUE, stub.late(4)) == (1, 4)
    assert (tmp_path / "imports").read_text() == "import "
    assert sys.modules["lazy_module"] is not stub
    with pytest.raises(AttributeError, match="module 'lazy_module' has no attribute 'missing'"):
        _ = stub.missing


@pytest.mark.parametrize("name", ["missing_package.part", "json.missing"])
def test_module_that_is_missing_has_no_stub(name: str) -> None:
    """A module that is not installed is missed where it is imported, as usual."""
    assert lazy_imports._stub(name, "") is None


def test_module_of_a_frame_is_found_by_its_name() -> None:
    """The answer is that of inspect.getmodule, for frames and for all else."""
    frame = inspect.currentframe()
    for thing in (frame, test_module_of_a_frame_is_found_by_its_name, Path, inspect):
        assert lazy_imports._module(inspect.getmodule, thing) is inspect.getmodule(thing)


def test_distributions_are_those_of_the_standard_library() -> None:
    """A package has one of the distributions that the standard library gives, and no other package has one."""
    expected = metadata.packages_distributions()
    distributions = lazy_imports._Distributions(lambda: expected)
    assert set(distributions) == set(expected)
    assert len(distributions) == len(expected)
    names = ("numpy", "pytest", "soundfile", "yaml", "missing_package")
    for package in names:
        assert set(distributions.get(package, [])) <= set(expected.get(package, []))
        assert bool(distributions.get(package)) == (package in expected)


def test_files_are_not_searched_for_a_package_of_the_same_name() -> None:
    """The search through all distributions is made only if there is none of the package's name."""
    searches: list[str] = []

    def search() -> dict[str, list[str]]:
        searches.append("search")
        return {"odd": ["even"]}

    distributions = lazy_imports._Distributions(search)
    assert distributions["numpy"] == ["numpy"]
    assert searches == []
    assert distributions["odd"] == ["even"]
    assert distributions.get("missing") is None
    assert searches == ["search"]
