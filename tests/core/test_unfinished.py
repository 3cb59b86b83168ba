"""Tests for what may end a run that has not finished: the exit code is never that of a finished one, and a message
says what it was.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import IMPORT_PATH, ManifestWriter, Voxbatch
from outputs import keys, owned
from scripted_engine import ScriptedTestEngine

import voxbatch as vb
from voxbatch.config import RunOptions
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.records import Item
from voxbatch.runner import Progress, Stop
from voxbatch.runner.pipeline import Pipeline
from voxbatch.storage import Stores

SETTINGS = ("--engine", "scripted", "--decoders", "1")


def options(**values: object) -> list[str]:
    return [word for name, value in values.items() for word in ("--engine-option", f"{name}={value}")]


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), GeneratorExit()])
def test_an_exit_in_a_thread_is_an_error_of_the_run(error: BaseException, tmp_path: Path) -> None:
    """The list of items ends with an error that is no Exception before anything is decoded."""

    def read(_: int) -> Item:
        raise error

    store = Stores().out(str(tmp_path / "out"))
    checkpoint = Checkpoint(store, owned(store, items=1), keys(1))
    engine = ScriptedTestEngine(None, {})
    pipeline = Pipeline(engine, checkpoint, RunOptions(decoders=1), Progress(1), lambda _: None, Stop())
    with pytest.raises(vb.RunError, match=f"{type(error).__name__} in a thread of the run"):
        pipeline.run(map(read, range(1)))


@pytest.mark.slow
@pytest.mark.parametrize("place", [{}, {"own_process": "true"}, {"workers": "2"}])
@pytest.mark.parametrize("error", ["SystemExit", "KeyboardInterrupt"])
def test_an_exit_while_the_model_is_loaded_ends_the_run_with_a_message(
    error: str, place: dict[str, str], manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """A library that calls sys.exit(0) when it finds no GPU, for example."""
    path = manifest(0.5, 0.6)
    done = voxbatch("run", path, "-o", "out", *SETTINGS, *options(load_error=error, **place))
    assert done.returncode == 1, done.stderr
    assert f"engine scripted: {error}" in done.stderr
    assert "Traceback" in done.stderr
    assert not (tmp_path / "out" / "summary.json").exists()
    assert voxbatch("run", path, "-o", "out", *SETTINGS).returncode == 0


@pytest.mark.slow
def test_a_process_that_ends_with_exit_code_0_is_not_taken_for_done(
    manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """An engine in a child process that calls os._exit(0) has died of its chunk, and a worker is lost."""
    path, exits = manifest(*[0.5] * 6), options(crash_items="3", crash_signal=-1)
    done = voxbatch("run", path, "-o", "child", *SETTINGS, *exits, *options(own_process="true"))
    assert done.returncode == 3, done.stderr
    assert "5 done + 1 failed = 6 items (1 crashed the engine)" in done.stdout
    done = voxbatch("run", path, "-o", "workers", *SETTINGS, *exits, *options(workers=2))
    assert done.returncode == 1, done.stderr
    assert "no worker is left" in done.stderr
    assert "exit code 0" in done.stderr


EXITING_DECODER = """
import os, sys
if "voxbatch.decoding.decoder" in sys.orig_argv[-2]:
    from voxbatch.storage import stores
    recording = stores.Stores.recording
    def exiting(self, audio):
        if audio.endswith("r1.wav"):
            os._exit(0)
        return recording(self, audio)
    stores.Stores.recording = exiting
"""


@pytest.mark.slow
def test_a_decoder_that_ends_with_exit_code_0_has_died(
    manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """Native code in a decoder calls exit: its recording fails, and the others are transcribed."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(EXITING_DECODER)
    path = os.pathsep.join([str(tmp_path / "site"), IMPORT_PATH])
    done = voxbatch("run", manifest(0.5, 0.6, 0.7), "-o", "out", *SETTINGS, env={"PYTHONPATH": path})
    assert done.returncode == 3, done.stderr
    assert "2 done + 1 failed = 3 items (1 killed the decoder)" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("warm_decoders")
def test_sys_exit_in_a_callback_is_no_end_of_a_finished_run(manifest: ManifestWriter, tmp_path: Path) -> None:
    """sys.exit(0) before the end of a run raises RunError, in a callback and in a loop; another exit code passes, and
    so does any after the end."""
    path = manifest(*[0.5] * 30)
    slow: dict[str, Any] = {"engine": "scripted", "engine_options": {"delay_s": 0.2, "concurrency": 1}, "part_items": 1}
    with pytest.raises(vb.RunError, match=r"sys.exit\(None\) was called before the run in .* had ended"):
        vb.run(path, tmp_path / "out", on_progress=lambda _: sys.exit(), **slow)
    with pytest.raises(SystemExit, match="4"):
        vb.run(path, tmp_path / "out", on_progress=lambda _: sys.exit(4), **slow)
    first = vb.start(path, tmp_path / "out", **slow)
    with pytest.raises(vb.RunError, match="had ended"), first:
        sys.exit(0 * len(next(iter(first)).id))
    last = vb.start(path, tmp_path / "out", engine="scripted", part_items=1)
    with pytest.raises(SystemExit), last:
        sys.exit(last.wait().failed)
