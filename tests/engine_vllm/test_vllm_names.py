"""Names and parameters inside vLLM that voxbatch uses, read from vLLM's source without importing it.

For another version than the installed one, unpack its wheel and name the folder that holds `vllm`:
`VOXBATCH_TEST_VLLM=FOLDER python -m pytest tests/engine_vllm/test_vllm_names.py`. Equal names prove nothing about what
the code behind them does: see voxbatch/vllm/plugin/vllm_version.py.
"""

from __future__ import annotations

import ast
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest_plugins = ["engine_runs"]
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RUNNER = "v1/worker/gpu_model_runner.py:GPUModelRunner"
SCHEDULER = "v1/core/sched/scheduler.py:Scheduler"
METHODS = {
    f"{RUNNER}._update_states": "scheduler_output",
    f"{RUNNER}._execute_mm_encoder": "scheduler_output",
    f"{RUNNER}._gather_mm_embeddings": "scheduler_output shift_computed_tokens",
    f"{RUNNER}._prepare_input_ids": "scheduler_output num_reqs total_num_scheduled_tokens cu_num_tokens",
    f"{RUNNER}._sample": "logits spec_decode_metadata",
    f"{RUNNER}._bookkeeping_sync": "scheduler_output sampler_output logits hidden_states num_scheduled_tokens",
    f"{SCHEDULER}.schedule": "throttle_prefills",
    f"{SCHEDULER}.update_from_output": "scheduler_output model_runner_output",
    f"{SCHEDULER}.add_request": "request",
    f"{SCHEDULER}._try_schedule_encoder_inputs": "request num_computed_tokens num_new_tokens encoder_compute_budget "
    "shift_computed_tokens",
    f"{SCHEDULER}._preempt_request": "request timestamp drop_stale_output",
    "v1/engine/core_client.py:SyncMPClient.get_output": "",
    "v1/engine/core_client.py:MPClient.shutdown": "timeout",
    "model_executor/models/registry.py:_run_in_subprocess": "fn",
    "tokenizers/registry.py:cached_tokenizer_from_config": "model_config kwargs",
    "multimodal/utils.py:group_and_batch_mm_kwargs": "mm_kwargs device pin_memory",
    "renderers/base.py:BaseRenderer.render_cmpl": "prompts tok_params prompt_extras skip_mm_cache",
}
"""Methods and functions that voxbatch replaces, derives or calls → their parameters after `self`."""


def source() -> Path:
    """Return the folder of vLLM's source."""
    if named := os.environ.get("VOXBATCH_TEST_VLLM"):
        return Path(named) / "vllm"
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


def file_of(module: str) -> Path | None:
    """Return the file of a module of vLLM; None if there is none."""
    path = source().joinpath(*module.split(".")[1:])
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


def names_in(module: str) -> set[str]:
    """Return the names that a module of vLLM defines or imports, and those of its modules."""
    file = file_of(module)
    if file is None:
        return set()
    names = {path.stem for path in file.parent.iterdir()} if file.name == "__init__.py" else set()
    for node in ast.walk(parsed(file)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names |= {alias.asname or alias.name for alias in node.names}
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.Dict():  # vLLM imports its public names when they are used, by a table
                names |= {
                    key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
                }
    return names


def imports() -> set[tuple[str, str]]:
    """Return the (module, name) that voxbatch imports from vLLM; the name is empty for a module as a whole."""
    found = set[tuple[str, str]]()
    for file in (ROOT / "voxbatch").rglob("*.py"):
        for node in ast.walk(parsed(file)):
            match node:
                case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "vllm":
                    found |= {(module, alias.name) for alias in node.names}
                case ast.Import():
                    found |= {(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "vllm"}
                case ast.Constant(value=str(text)) if text.startswith("vllm.") and text.replace(".", "").isidentifier():
                    found.add((text, ""))
    return found


def test_names_exist() -> None:
    """Each module and name that voxbatch takes from vLLM is there."""
    missing = [
        f"{module}.{name}".rstrip(".")
        for module, name in sorted(imports())
        if not (
            name in names_in(module)
            if name
            else file_of(module) or module.split(".")[-1] in names_in(module.rpartition(".")[0])
        )
    ]
    assert len(imports()) > 50
    assert missing == ["vllm.general_plugins"]  # a group of entry points, and no module


@pytest.mark.parametrize("place", METHODS)
def test_parameters_are_known(place: str) -> None:
    """A method that voxbatch replaces, derives or calls has the parameters that voxbatch knows."""
    file, _, path = place.partition(":")
    node: ast.AST = parsed(source() / file)
    for part in path.split("."):
        assert isinstance(node, ast.Module | ast.ClassDef)
        [node] = [child for child in node.body if getattr(child, "name", "") == part]
    assert isinstance(node, ast.FunctionDef)
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    names = [argument.arg for argument in every if argument is not None and argument.arg != "self"]
    assert " ".join(names) == METHODS[place]
