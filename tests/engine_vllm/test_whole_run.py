"""`voxbatch run --engine vllm` as a user starts it ends with a correct checkpoint, whatever process is killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import soundfile
from conftest import Starter, Voxbatch, environment, gone
from stream import ENVIRONMENT

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ITEMS = 30
WAIT_S = 280
GONE_S = 15.0
"""How long after the end of a run a process of it may live."""
STUCK = """
import ctypes, multiprocessing, os

def register():
    # vLLM calls this in each of its processes; in its workers, native code then keeps the GIL for good.
    if multiprocessing.current_process().name.startswith("VllmWorker"):
        open(os.path.join(os.path.dirname(__file__), f"stuck-{os.getpid()}"), "w").close()
        ctypes.PyDLL(None).sleep(900)
"""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a manifest of ITEMS recordings of 4 to 40 s, one of them missing."""
    from sounds import babble

    folder = tmp_path_factory.mktemp("recordings")
    rows = []
    for i, seconds in enumerate(np.linspace(4, 40, ITEMS)):
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
def undisturbed(recordings: Path, options: list[str], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the transcripts.jsonl of a run without a kill."""

    out = tmp_path_factory.mktemp("undisturbed") / "out"
    command = [sys.executable, "-m", "voxbatch", "run", str(recordings), "-o", str(out), *options]
    ended = subprocess.run(command, env=environment(**ENVIRONMENT), capture_output=True, text=True, timeout=WAIT_S)
    assert ended.returncode == 3, ended.stderr[-3000:]
    return (out / "transcripts.jsonl").read_bytes()


def wait_for(what: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def parts(out: Path) -> int:
    """Return the number of committed parts."""
    return len(list(out.glob("parts/*/part-*.jsonl")))


def engine_of(pid: int) -> psutil.Process:
    """Return the process of vLLM's engine core."""
    found = [child for child in psutil.Process(pid).children(recursive=True) if "EngineCore" in _title(child)]
    assert len(found) == 1
    return found[0]


def all_of(run: subprocess.Popen[str]) -> list[psutil.Process]:
    main = psutil.Process(run.pid)
    return [main, *main.children(recursive=True)]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_a_killed_engine_is_restarted(
    start: Starter, recordings: Path, options: list[str], undisturbed: bytes, tmp_path: Path
) -> None:
    """A killed engine process is started again, and the run ends by itself with the bytes of an undisturbed run."""
    out = tmp_path / "out"
    run = start("run", recordings, "-o", out, *options, env=ENVIRONMENT)
    wait_for(lambda: parts(out) >= 2)
    engine_of(run.pid).kill()
    stdout, stderr = run.communicate(timeout=WAIT_S)
    assert run.returncode == 3, stderr[-3000:]  # one recording is missing
    assert "29 done + 1 failed = 30 items" in stdout
    assert "vLLM died" in stderr, stderr
    assert (out / "transcripts.jsonl").read_bytes() == undisturbed


def test_a_killed_run_leaves_no_engine_and_resumes(
    start: Starter, voxbatch: Voxbatch, recordings: Path, options: list[str], undisturbed: bytes, tmp_path: Path
) -> None:
    """A killed run leaves no engine that holds the GPU, and the next run resumes and ends with the same bytes."""
    out = tmp_path / "out"
    run = start("run", recordings, "-o", out, *options, env=ENVIRONMENT)
    wait_for(lambda: parts(out) >= 2)
    processes = all_of(run)
    run.kill()
    assert gone(processes, GONE_S)
    assert not (out / "summary.json").exists()
    again = voxbatch("run", recordings, "-o", out, *options, env=ENVIRONMENT)
    assert again.returncode == 3, again.stderr[-3000:]
    assert "items were done before" in again.stderr
    assert (out / "transcripts.jsonl").read_bytes() == undisturbed


def test_a_run_killed_while_loading_leaves_no_engine(
    start: Starter, recordings: Path, options: list[str], tmp_path: Path
) -> None:
    """An engine that is still loading when its run is killed ends too."""
    run = start("run", recordings, "-o", tmp_path / "out", *options, env=ENVIRONMENT)
    wait_for(lambda: [child for child in psutil.Process(run.pid).children(True) if "spawn_main" in _title(child)])
    processes = all_of(run)
    run.kill()
    assert gone(processes, GONE_S)


def test_ctrl_c_interrupts_the_run(start: Starter, recordings: Path, options: list[str], tmp_path: Path) -> None:
    """A run ends as interrupted on Ctrl-C, which reaches the engine's process too.

    Finished items are committed, and no process remains.
    """
    out = tmp_path / "out"
    run = start("run", recordings, "-o", out, *options, env=ENVIRONMENT, start_new_session=True)
    wait_for(lambda: parts(out) >= 2)
    processes = all_of(run)
    os.killpg(run.pid, signal.SIGINT)
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


@pytest.fixture
def stuck(start: Starter, recordings: Path, two_cards: list[str], tmp_path: Path) -> subprocess.Popen[str]:
    """A run that loads its model by two workers, both of which are in native code that keeps the GIL."""
    site = tmp_path / "site"
    info = site / "stuck-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stuck\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nstuck = stuck:register\n")
    (site / "stuck.py").write_text(STUCK)
    path = {"PYTHONPATH": os.pathsep.join([environment()["PYTHONPATH"], str(site)])}
    run = start("run", recordings, "-o", tmp_path / "out", *two_cards, env={**ENVIRONMENT, **path})
    wait_for(lambda: len(list(site.glob("stuck-*[0-9]"))) == 2 or run.poll() is not None)
    return run


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_hanging_workers_end_with_the_run(stuck: subprocess.Popen[str], number: int, code: int) -> None:
    """No process of the run survives it, whether it was asked to stop or was killed."""
    processes = all_of(stuck)
    stuck.send_signal(number)
    assert gone(processes, GONE_S)
    stderr = stuck.communicate()[1]
    assert stuck.returncode == code, stderr[-3000:]
    assert ("run the same command again to continue" in stderr) == (number == signal.SIGTERM)


def test_workers_do_not_survive_their_engine(stuck: subprocess.Popen[str]) -> None:
    """vLLM's engine process is killed alone: its workers end as well, and so does the run, which cannot go on."""
    processes = all_of(stuck)
    engine_of(stuck.pid).kill()
    assert gone(processes, GONE_S)
    assert stuck.wait(GONE_S) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_killed_run_on_two_gpus_leaves_no_process(
    start: Starter, recordings: Path, two_cards: list[str], tmp_path: Path, number: int, code: int
) -> None:
    """It leaves neither vLLM's engine process nor a worker behind."""
    out = tmp_path / "out"
    run = start("run", recordings, "-o", out, *two_cards, env=ENVIRONMENT)
    wait_for(lambda: parts(out) >= 1 or run.poll() is not None)
    processes = all_of(run)
    run.send_signal(number)
    assert gone(processes, GONE_S)
    assert run.wait(GONE_S) == code


def test_standard_output_holds_only_results(
    voxbatch: Voxbatch, recordings: Path, options: list[str], tmp_path: Path
) -> None:
    """The output of vLLM and its processes goes to the engine's own log, and not among the results."""
    ended = voxbatch("run", recordings, "-o", tmp_path / "out", "--limit", 3, *options, env=ENVIRONMENT)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "INFO" not in ended.stdout
    assert "3 done + 0 failed = 3 items" in ended.stdout
    events = [json.loads(line)["message"] for line in ended.stderr.splitlines() if line.startswith("{")]
    assert {"engine", "run_finished"} <= set(events)


def test_incomplete_weights_are_refused(voxbatch: Voxbatch, recordings: Path, realtime: Path, tmp_path: Path) -> None:
    """A truncated file of weights is named with both sizes before vLLM is loaded."""
    model = tmp_path / "model"
    model.mkdir()
    for file in ("params.json", "tekken.json"):
        (model / file).symlink_to(realtime / file)
    whole = (realtime / "consolidated.safetensors").read_bytes()
    (model / "consolidated.safetensors").write_bytes(whole[:-1000])
    ended = voxbatch("run", recordings, "-o", tmp_path / "out", "--engine", "vllm", "--model", model, env=ENVIRONMENT)
    assert ended.returncode == 1
    assert f"consolidated.safetensors is incomplete: {len(whole) - 1000:,} bytes of {len(whole):,}" in ended.stderr


def test_a_folder_without_a_model_is_refused(voxbatch: Voxbatch, recordings: Path, tmp_path: Path) -> None:
    """A folder without a model is refused with exit code 2 and the missing files."""
    ended = voxbatch("run", recordings, "-o", tmp_path / "out", "--engine", "vllm", "--model", tmp_path)
    assert ended.returncode == 2
    assert "neither params.json (Mistral's format) nor config.json" in ended.stderr


def test_the_published_serving_properties_runs(
    voxbatch: Voxbatch, recordings: Path, voxtral: Path, tmp_path: Path
) -> None:
    """AWS's file for Voxtral runs unchanged, on another model and without its four GPUs."""
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
    done = voxbatch("run", recordings, "--serving-properties", file, *here, *few, env=ENVIRONMENT, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "3 done + 0 failed = 3 items" in done.stdout
    told = [json.loads(line) for line in done.stderr.splitlines() if '"serving_properties"' in line]
    assert [line["severity"] for line in told] == ["INFO"]
    assert "without effect here: option.trust_remote_code, option.mm_processor_kwargs" in told[0]["text"]


def test_the_published_vllm_config_runs(voxbatch: Voxbatch, recordings: Path, realtime: Path, tmp_path: Path) -> None:
    """A published submission's file runs unchanged from the folder of the weights, without a model on the command
    line."""
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
    done = voxbatch("run", recordings, "--vllm-config", file, *few, env=ENVIRONMENT, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 done + 0 failed = 2 items" in done.stdout
    assert '"vllm_config"' not in done.stderr  # every setting has an effect
    identity = json.loads((tmp_path / "out" / "run.json").read_text())
    assert str(folder) in json.dumps(identity)


def test_a_tokenizer_that_counts_otherwise_ends_the_run(
    recordings: Path, realtime: Path, options: list[str], tmp_path: Path
) -> None:
    """If voxbatch and mistral-common count the tokens of a prompt differently, the run ends with the reason, and no
    process stays, not even the one that has imported vLLM to become the engine."""
    folder = tmp_path / "model"
    shutil.copytree(realtime, folder)
    tekken = json.loads((folder / "tekken.json").read_text())
    tekken["audio"]["frame_rate"] = 25.0
    (folder / "tekken.json").write_text(json.dumps(tekken))
    command = [sys.executable, "-m", "voxbatch", "run", str(recordings), "-o", str(tmp_path / "out"), *options]
    command[command.index(str(realtime))] = str(folder)
    seen: set[psutil.Process] = set()
    with subprocess.Popen(
        command, env=environment(**ENVIRONMENT), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        while run.poll() is None:
            with contextlib.suppress(psutil.Error):
                seen |= set(all_of(run))
            time.sleep(0.2)
        assert run.stderr is not None
        assert "differently: the prompt has" in run.stderr.read()
    assert run.returncode == 1
    assert len(seen) > 1
    _, alive = psutil.wait_procs(seen, GONE_S)
    assert alive == []
