"""An engine starts in a process that has imported vLLM before, or in a usual one, and no process is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from voxbatch.vllm.engine.preloaded_process import PreloadedProcess
from voxbatch.vllm.engine.tekken import load_tekken
from voxbatch.vllm.plugin import parent_watchdog, preload

pytest_plugins = ["engine_runs"]
pytestmark = pytest.mark.timeout(600)


def answer(connection: Connection) -> None:
    """Send what the process of an engine sees."""
    process = multiprocessing.current_process()
    connection.send((os.getpid(), os.environ.get("VOXBATCH_TEST"), process.daemon, gc.get_freeze_count() > 100_000))


def started(preloaded: PreloadedProcess, target: Callable[..., object]) -> tuple[Any, Any]:
    """Start a target as vLLM does. Return the process and what the target sends: the id of its process, a variable,
    whether it is a daemon, and whether vLLM's objects are kept out of the garbage collector."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = preloaded.Process(target=target, name="EngineCore", kwargs={"connection": there})
    process.start()
    there.close()
    return process, here.recv()


@pytest.mark.slow
def test_the_target_runs_in_the_preloaded_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The preloaded process runs the target, with today's environment, and may have children of its own. The function
    for the start is called once."""
    starts: list[str] = []
    with parent_watchdog.kills_children():
        preloaded = PreloadedProcess(False, "", lambda: starts.append("started"))
        monkeypatch.setenv("VOXBATCH_TEST", "now")
        process, seen = started(preloaded, answer)
    assert seen == (preloaded._preloaded.pid, "now", False, True)
    assert starts == ["started"]
    preloaded.end_if_unused()
    process.join(300)
    assert process.exitcode == 0


@pytest.mark.slow
def test_a_usual_process_takes_the_place_of_a_dead_one() -> None:
    """If the preloaded process has died, a usual process runs the target."""
    starts: list[str] = []
    preloaded = PreloadedProcess(False, "", lambda: starts.append("started"))
    preloaded._preloaded.kill()
    preloaded._preloaded.join()
    process, seen = started(preloaded, answer)
    assert seen[0] == process.pid
    assert starts == ["started"]
    preloaded.end_if_unused()
    process.join(300)
    assert process.exitcode == 0


@pytest.mark.slow
def test_what_cannot_be_sent_goes_to_a_usual_process() -> None:
    """An argument that only a new process can get, such as a lock, leads to a usual process."""
    preloaded, context = PreloadedProcess(False, "", list), multiprocessing.get_context("spawn")
    assert preloaded.take(print, {"sep": context.Lock()}) is None
    preloaded.end_if_unused()
    assert not preloaded._preloaded.is_alive()


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF"])
def test_a_change_of_the_gpu_leads_to_a_usual_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that CUDA reads once, and that has changed since the process was started, leads to a usual process."""
    preloaded = PreloadedProcess(False, "", list)
    monkeypatch.setenv(name, "changed")
    assert preloaded.take(print, {}) is None
    preloaded.end_if_unused()


def test_a_machine_without_a_driver_has_no_cuda_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CUDA context is created without a driver, or with a library that is none, and nothing fails."""
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")  # so that it is restored after the test
    monkeypatch.delenv("CUDA_MODULE_LOADING")
    preload.create_cuda_context("libcuda-that-is-missing.so.1")
    preload.create_cuda_context("libc.so.6")
    assert os.environ["CUDA_MODULE_LOADING"] == "LAZY"


def test_the_cuda_context_is_that_of_the_first_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is initialised, and the primary context of its first device is retained, once each."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("needs a C compiler")
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    (tmp_path / "driver.c").write_text(
        "#include <stdio.h>\n"
        'static void say(const char *text) { FILE *f = fopen(LOG, "a"); fputs(text, f); fclose(f); }\n'
        'int cuInit(unsigned flags) { say(flags ? "flags " : "init "); return 0; }\n'
        'int cuDeviceGet(int *device, int i) { *device = 7; say(i ? "other " : "first "); return 0; }\n'
        'int cuDevicePrimaryCtxRetain(void **c, int d) { *c = &say; say(d == 7 ? "retain" : "wrong"); return 0; }\n'
    )
    library = tmp_path / "libdriver.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", f'-DLOG="{tmp_path / "log"}"', "-o", library, tmp_path / "driver.c"], check=True
    )
    preload.create_cuda_context(str(library))
    assert (tmp_path / "log").read_text() == "init first retain"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_engine_finds_the_tokenizer(realtime: Path) -> None:
    """vLLM uses the tokenizer that was loaded before it had a configuration, and so does voxbatch. Neither loads it a
    second time."""
    from vllm import EngineArgs
    from vllm.tokenizers import cached_tokenizer_from_config
    from vllm.tokenizers.registry import cached_get_tokenizer

    cached_get_tokenizer.cache_clear()
    preload.load_tokenizer(str(realtime))
    made = EngineArgs(
        str(realtime), config_format="mistral", load_format="mistral", tokenizer_mode="mistral", max_model_len=512
    ).create_model_config()
    cached_tokenizer_from_config(made)
    assert cached_get_tokenizer.cache_info().misses == 1
    assert load_tekken(realtime).mistral is preload.load_tokenizer(str(realtime)).mistral
    assert cached_get_tokenizer.cache_info().misses == 1


def test_objects_of_an_import_are_not_looked_at_again() -> None:
    """After the import, its objects are in the oldest generation. Objects that the program froze stay frozen."""
    gc.collect()
    with preload.without_gc():
        made: list[list[int]] = [[] for _ in range(50_000)]
    assert gc.get_count()[0] < 1_000
    assert sum(each is made for each in gc.get_objects(2)) == 1
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with preload.without_gc():
            pass
        assert gc.get_freeze_count() >= frozen - 1_000
    finally:
        gc.unfreeze()


def test_the_garbage_collector_is_as_before() -> None:
    """The collector is off while vLLM is imported, and then as it was."""
    with preload.without_gc():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with preload.without_gc():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_kept_pieces_are_those_of_mistral_common() -> None:
    """A tokenizer that is loaded with kept pieces has the texts of one that is not, token for token, and afterwards
    mistral-common is as before."""
    import mistral_common
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    vocabulary = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    before = Tekkenizer.id_to_piece
    with preload.kept_pieces():
        kept = Tekkenizer.from_file(vocabulary)
        pieces = [kept.id_to_piece(token_id) for token_id in range(kept.n_words)]
    assert Tekkenizer.id_to_piece is before
    usual = Tekkenizer.from_file(vocabulary)
    assert kept.vocab() == usual.vocab() == pieces
    assert len(pieces) > 100_000
    assert any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
