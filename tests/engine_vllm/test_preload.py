"""An engine starts in a process that has imported vLLM before, or in a usual one, and no process is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

from voxbatch.engines.vllm.preloaded_process import PreloadedProcess
from voxbatch.vllm_plugin import parent_watchdog, preload

pytestmark = pytest.mark.timeout(120)


def answer(connection: Connection) -> None:
    """Send what the process of an engine sees."""
    process = multiprocessing.current_process()
    connection.send((os.getpid(), os.environ.get("VOXBATCH_TEST"), process.daemon))


def started(preloaded: PreloadedProcess, target: Callable[..., object]) -> tuple[Any, Any]:
    """Start a target as vLLM does. Return the process and what the target sends."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = preloaded.Process(target=target, name="EngineCore", kwargs={"connection": there})
    process.start()
    there.close()
    return process, here.recv()


@pytest.mark.slow
def test_the_target_runs_in_the_preloaded_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The preloaded process runs the target, with today's environment, and may have children of its own."""
    with parent_watchdog.kills_children():
        preloaded = PreloadedProcess()
        monkeypatch.setenv("VOXBATCH_TEST", "now")
        process, seen = started(preloaded, answer)
    assert seen == (preloaded._preloaded.pid, "now", False)
    preloaded.end_if_unused()
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.slow
def test_a_usual_process_takes_the_place_of_a_dead_one() -> None:
    """If the preloaded process has died, a usual process runs the target."""
    preloaded = PreloadedProcess()
    preloaded._preloaded.kill()
    preloaded._preloaded.join()
    process, seen = started(preloaded, answer)
    assert seen[0] == process.pid
    preloaded.end_if_unused()
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.slow
def test_what_cannot_be_sent_goes_to_a_usual_process() -> None:
    """An argument that only a new process can get, such as a lock, leads to a usual process."""
    preloaded, context = PreloadedProcess(), multiprocessing.get_context("spawn")
    assert preloaded.take(print, {"sep": context.Lock()}) is None
    preloaded.end_if_unused()
    assert not preloaded._preloaded.is_alive()


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
