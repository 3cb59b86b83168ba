"""`voxbatch run --engine vllm` as a user starts it ends with a correct checkpoint, whatever process is killed."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import killed_at
import numpy as np
import psutil
import pytest
import soundfile
from conftest import Starter, environment, gone
from outputs import output_files
from stream import ENVIRONMENT
from waits import until
from warm_python import python

from voxbatch.process import kept

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ITEMS = 30
WAIT_S = 280
GONE_S = 120.0
"""How long after the end of a run a process of it may live."""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a manifest of ITEMS recordings of 2 to 10 s, and one of 40 s at the end. One of them is missing."""
    from sounds import babble

    folder = tmp_path_factory.mktemp("recordings")
    rows = []
    for i, seconds in enumerate([*np.linspace(2, 10, ITEMS - 1), 40]):
        if i != 7:
            soundfile.write(folder / f"r{i}.wav", babble(float(seconds), i), 16_000, subtype="PCM_16")
        rows.append({"audio_filepath": f"r{i}.wav"})
    (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "m.jsonl"


@pytest.fixture(scope="module")
def options(realtime: Path) -> list[str]:
    """Return the options of a run with the tiny Realtime."""
    given = ["dtype=float32", "enforce_eager=true", "max_num_batched_tokens=2048", "max_num_seqs=4", "watch=false"]
    flags = [flag for option in given for flag in ("--engine-option", option)]
    return ["--engine", "vllm", "--model", str(realtime), "--part-items", "2", "--log-format", "json", *flags]


@pytest.fixture(scope="module")
def finished(
    recordings: Path, options: list[str], tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    """Return a run that nothing disturbed."""
    from engine_runs import command

    folder = tmp_path_factory.mktemp("undisturbed")
    ended = command(folder, "run", recordings, "-o", folder / "out", *options)
    assert ended.returncode == 3, ended.stderr[-3000:]  # one recording is missing
    return ended


@pytest.fixture(scope="module")
def undisturbed(finished: subprocess.CompletedProcess[str]) -> bytes:
    """Return the transcripts.jsonl of this run."""
    return Path(finished.args[finished.args.index("-o") + 1], "transcripts.jsonl").read_bytes()


def parts(out: Path) -> int:
    """Return the number of committed parts."""
    return len(list(out.glob("parts/*/part-*.jsonl")))


def all_of(run: subprocess.Popen[str]) -> list[psutil.Process]:
    main = psutil.Process(run.pid)
    return [main, *main.children(recursive=True)]


def test_a_killed_run_leaves_no_engine_and_resumes(
    start: Starter, recordings: Path, options: list[str], undisturbed: bytes, tmp_path: Path
) -> None:
    """A killed run leaves no engine that holds the GPU, and the next run resumes and ends with the same bytes.

    The processes are spawned as by a user, and write nothing among the results.
    """
    from engine_runs import command

    out = tmp_path / "out"
    run = start("run", recordings, "-o", out, *options, env=ENVIRONMENT)
    until(lambda: parts(out) >= 2)
    processes = all_of(run)
    run.kill()
    assert gone(processes, GONE_S)
    assert run.communicate()[0] == ""
    assert not (out / "summary.json").exists()
    again = command(tmp_path, "run", recordings, "-o", out, *options)
    assert again.returncode == 3, again.stderr[-3000:]
    assert "done before" in again.stderr
    assert (out / "transcripts.jsonl").read_bytes() == undisturbed


@pytest.mark.parametrize(
    ("model", "needs"),
    [
        ("GlmAsrForConditionalGeneration", "transformers"),
        pytest.param("Qwen3ASRForConditionalGeneration", "torchvision", marks=pytest.mark.long),
        pytest.param("GraniteSpeechForConditionalGeneration", "torchaudio", marks=pytest.mark.long),
    ],
)
def test_kills_change_no_byte_of_a_run_with_vllms_own_classes(
    recordings: Path, model: str, needs: str, tmp_path: Path
) -> None:
    """A run that is killed (SIGKILL) three times after some parts and then ends has the files of an undisturbed run."""
    import speech_models
    from engine_runs import command

    if find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed, which this class needs")
    speech_models.MODELS[model](tmp_path / model)
    given = ["dtype=float32", "enforce_eager=true", "max_num_seqs=4", "max_model_len=640", "watch=false"]
    flags = [flag for option in (*given, "confidence=false") for flag in ("--engine-option", option)]
    small = ("--limit", "16", "--part-items", "1", "--language", "en", "--formats", "srt", "--no-report")
    run = ("run", recordings, "--engine", "vllm", "--model", tmp_path / model, *small, *flags, "-o")
    assert command(tmp_path, *run, tmp_path / "whole").returncode == 3
    code = f"import sys; sys.path.append({str(Path(killed_at.__file__).parent)!r}); import killed_at; "
    code += "killed_at.install(5); from voxbatch.cli import main; main()"
    for _ in range(3):
        arguments, variables = (*run, tmp_path / "killed"), environment(**ENVIRONMENT)
        killed = python("-c", code, *arguments, folder=tmp_path, environment=variables)
        assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert not (tmp_path / "killed" / "summary.json").exists()
    assert command(tmp_path, *run, tmp_path / "killed").returncode == 3
    assert output_files(tmp_path / "killed") == output_files(tmp_path / "whole")


def test_ctrl_c_interrupts_the_run(
    start_fork: Callable[..., subprocess.Popen[str]], recordings: Path, options: list[str], tmp_path: Path
) -> None:
    """A run ends as interrupted on Ctrl-C, which reaches the engine's process too.

    Finished items are committed, and no process remains.
    """
    out = tmp_path / "out"
    run = start_fork("run", recordings, "-o", out, *options)
    until(lambda: parts(out) >= 2)
    processes = all_of(run)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended because the others end
            process.send_signal(signal.SIGINT)
    stdout, stderr = run.communicate(timeout=WAIT_S)
    assert run.returncode == 130, stderr[-3000:]
    assert stdout == ""
    assert "run the same command again" in stderr
    assert gone(processes, GONE_S)


@pytest.fixture(scope="module")
def two_cards(realtime: Path, options: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options by which two worker processes of vLLM share the model, whose heads are of even numbers for that."""
    model = tmp_path_factory.mktemp("two") / "model"
    shutil.copytree(realtime, model)
    params = json.loads((model / "params.json").read_text())
    encoder = params["multimodal"]["whisper_model_args"]["encoder_args"]
    encoder |= {"n_heads": 2, "n_kv_heads": 2, "head_dim": encoder["head_dim"] // 2}
    (model / "params.json").write_text(json.dumps(params))
    shared = [str(model) if option == str(realtime) else option for option in options]
    return [*shared, "--engine-option", "tensor_parallel_size=2", "--engine-option", "prefill_encoder=false"]


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_a_killed_run_on_two_gpus_leaves_no_process(
    start: Starter, recordings: Path, two_cards: list[str], tmp_path: Path, number: int, code: int
) -> None:
    """It leaves neither vLLM's engine process nor a worker behind. test_parent_watchdog.py proves the same of
    processes without vLLM, also while native code holds the GIL."""
    out = tmp_path / "out"
    run = start("run", recordings, "-o", out, *two_cards, env=ENVIRONMENT)
    until(lambda: parts(out) >= 1 or run.poll() is not None)
    processes = all_of(run)
    run.send_signal(number)
    assert gone(processes, GONE_S)
    assert run.wait(GONE_S) == code


def test_standard_output_holds_only_results(finished: subprocess.CompletedProcess[str]) -> None:
    """The output of vLLM and its processes goes to the engine's own log, and not among the results."""
    assert "INFO" not in finished.stdout
    assert "29 done + 1 failed = 30 items" in finished.stdout
    events = [json.loads(line)["message"] for line in finished.stderr.splitlines() if line.startswith("{")]
    assert {"engine", "run_finished"} <= set(events)


def test_the_published_serving_properties_runs(recordings: Path, voxtral: Path, tmp_path: Path) -> None:
    """AWS's file for Voxtral runs unchanged, on another model and without its four GPUs."""
    from engine_runs import command

    file = tmp_path / "serving.properties"
    file.write_text(
        "option.model_id=mistralai/Voxtral-Small-24B-2507\n"
        "option.tensor_parallel_degree=4\n"
        "option.dtype=bfloat16\n"
        "option.tokenizer_mode=mistral\n"
        "option.config_format=mistral\n"
        "option.load_format=mistral\n"
        "option.trust_remote_code=true\n"
        "option.limit_mm_per_prompt=audio:8\n"
        'option.mm_processor_kwargs={"audio_sampling_rate": 16000, "audio_max_length": 1800.0}\n'
        "option.enable_chunked_prefill=true\n"
        "option.enable_prefix_caching=true\n"
        "option.use_v2_block_manager=true\n"
    )
    here = ["--model", voxtral, "--engine-option", "tensor_parallel_size=1", "--engine-option", "enforce_eager=true"]
    few = ["--limit", "3", "-o", tmp_path / "out", "--log-format", "json"]
    done = command(tmp_path, "run", recordings, "--serving-properties", file, *here, *few)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "3 done + 0 failed = 3 items" in done.stdout
    told = [json.loads(line) for line in done.stderr.splitlines() if '"serving_properties"' in line]
    assert [line["severity"] for line in told] == ["INFO"]
    assert "without effect here: option.trust_remote_code, option.mm_processor_kwargs" in told[0]["text"]


def test_the_published_vllm_config_runs(recordings: Path, realtime: Path, tmp_path: Path) -> None:
    """A published submission's file runs unchanged from the folder of the weights, without a model on the command
    line."""
    from engine_runs import command

    folder = tmp_path / "submission"
    folder.mkdir()
    for each in realtime.iterdir():
        (folder / each.name).symlink_to(each)
    (folder / "vllm_config.yaml").write_text(
        "model: .\n"
        "dtype: bfloat16\n"
        "enforce_eager: true\n"
        "max_num_seqs: 1\n"
        "gpu_memory_utilization: 0.65\n"
        "max_model_len: 512\n"
        "compilation_config:\n"
        "  cudagraph_mode: PIECEWISE\n"
    )
    file, few = folder / "vllm_config.yaml", ["--limit", "2", "-o", tmp_path / "out", "--log-format", "json"]
    done = command(tmp_path, "run", recordings, "--vllm-config", file, *few)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 done + 0 failed = 2 items" in done.stdout
    assert '"vllm_config"' not in done.stderr  # every setting has an effect
    identity = json.loads((tmp_path / "out" / "run.json").read_text())
    assert str(folder) in json.dumps(identity)


def test_a_tokenizer_that_counts_otherwise_ends_the_run(
    start_fork: Callable[..., subprocess.Popen[str]],
    recordings: Path,
    realtime: Path,
    options: list[str],
    tmp_path: Path,
) -> None:
    """If voxbatch and mistral-common count the tokens of a prompt differently, the run ends with the reason, and no
    process stays, not even the one that has imported vLLM to become the engine."""
    folder = tmp_path / "model"
    shutil.copytree(realtime, folder)
    tekken = json.loads((folder / "tekken.json").read_text())
    tekken["audio"]["frame_rate"] = 25.0
    (folder / "tekken.json").write_text(json.dumps(tekken))
    others = [str(folder) if option == str(realtime) else option for option in options]
    run, seen = start_fork("run", recordings, "-o", tmp_path / "out", *others), set[psutil.Process]()
    while run.poll() is None:
        with contextlib.suppress(psutil.Error):
            seen |= set(all_of(run))
        time.sleep(0.05)
    assert "differently: the prompt has" in run.communicate()[1]
    assert run.returncode == 1
    assert len(seen) > 1
    _, alive = psutil.wait_procs(seen, GONE_S)
    assert alive == []


def test_an_engine_that_stays_serves_the_next_run(
    start: Starter,
    recordings: Path,
    options: list[str],
    undisturbed: bytes,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Runs with --keep-engine load the model once and give the same bytes. A killed run takes the engine with it, and
    an engine that nobody takes ends with all its processes."""
    runtime = tempfile.mkdtemp(prefix="vb-")  # pytest's own paths are too long for a socket
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)

    def begin(out: str, keep: str) -> subprocess.Popen[str]:
        variables = {**ENVIRONMENT, "XDG_RUNTIME_DIR": runtime}
        return start("run", recordings, "-o", tmp_path / out, *options, "--keep-engine", keep, env=variables)

    def end(run: subprocess.Popen[str], is_used: bool) -> None:
        _, errors = run.communicate()
        assert (run.returncode, "of an earlier run is used again" in errors) == (3, is_used), errors[-3000:]

    end(begin("first", "10m"), is_used=False)
    (pid,) = kept.waiting()
    engine = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert len(engine) > 1
    end(begin("second", "10m"), is_used=True)
    killed = begin("killed", "10m")
    until(lambda: parts(tmp_path / "killed") >= 1, process=killed)
    killed.kill()
    assert gone(engine, GONE_S)
    end(begin("killed", "1s"), is_used=False)
    until(lambda: not kept.waiting())
    for out in ("first", "second", "killed"):
        assert (tmp_path / out / "transcripts.jsonl").read_bytes() == undisturbed
    shutil.rmtree(runtime)
