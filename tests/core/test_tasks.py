"""Tests for tasks: a task derives its shard from the platform and refuses contradictions. Kills and restarts of tasks
do not change the merged outputs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
import servers
from conftest import ROOT, ManifestWriter, Starter, Voxbatch
from holds import Hold
from hypothesis import given
from hypothesis import strategies as st
from outputs import FAST, committed, outputs
from sagemaker_deployment import HOSTS, container

from voxbatch.errors import ConfigError
from voxbatch.output.layout import part_names
from voxbatch.platforms.tasks import find, known, sagemaker, shard_of, unknown
from voxbatch.platforms.tasks.task import Task
from voxbatch.runner.shard import MAX_SHARDS
from voxbatch.storage import Store, Stores, retry

# ── the task of this process ──────────────────────────────────────────────────────────────────────────────────────────

pytestmark = pytest.mark.forks_children

CLOUD_RUN = {"CLOUD_RUN_TASK_INDEX": "3", "CLOUD_RUN_TASK_COUNT": "8"}
NAMED = {"CLOUD_RUN_JOB": "calls", "CLOUD_RUN_EXECUTION": "calls-x7k", "CLOUD_RUN_TASK_ATTEMPT": "1"}
BATCH = {"AWS_BATCH_JOB_ARRAY_INDEX": "3", "AWS_BATCH_JOB_ID": "a1b2:3", "AWS_BATCH_JOB_ATTEMPT": "2"}
INDEXED = {"JOB_COMPLETION_INDEX": "3"}
SLURM = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "8", "SLURM_ARRAY_TASK_MIN": "1"}
ELASTIC = {"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
GOOGLE_BATCH = {"BATCH_TASK_INDEX": "3", "BATCH_TASK_COUNT": "8", "BATCH_TASK_RETRY_ATTEMPT": "1"}
SKYPILOT = {"SKYPILOT_NODE_RANK": "3", "SKYPILOT_NUM_NODES": "8", "SKYPILOT_TASK_ID": "sky-2026-11-26_calls"}
POOL = {"SKYPILOT_JOB_RANK": "3", "SKYPILOT_NUM_JOBS": "8", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1"}
DSTACK = {"DSTACK_NODE_RANK": "3", "DSTACK_NODES_NUM": "8", "DSTACK_GPUS_PER_NODE": "1", "DSTACK_GPUS_NUM": "8"}
TRAIN_JOB = {"PET_NODE_RANK": "3", "PET_NNODES": "8", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "node-0-0"}
METAFLOW = {
    "MF_PARALLEL_NODE_INDEX": "3",
    "MF_PARALLEL_NUM_NODES": "8",
    "MF_WORKER_REPLICA_INDEX": "2",
    "MF_WORLD_SIZE": "8",
}
LEPTON = {
    "LEPTON_JOB_WORKER_INDEX": "3", "LEPTON_JOB_TOTAL_WORKERS": "8", "LEPTON_JOB_FAILURE_COUNT": "1",
    "LEPTON_JOB_NAME": "calls", "LEPTON_RESOURCE_ACCELERATOR_NUM": "1",
}  # fmt: skip
STEP = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}
POOLS = {"workerpool0": ["chief:2222"], "workerpool1": [f"worker-{i}:2222" for i in range(7)]}
NOWHERE = "/nowhere"


def vertex(pool: str, index: int) -> dict[str, str]:
    """Return the variable of a replica of a Vertex AI job with 8 replicas, in the form that Google documents."""
    spec = {"cluster": POOLS, "environment": "cloud", "task": {"type": pool, "index": index, "trial": ""}}
    return {"CLUSTER_SPEC": json.dumps(spec)}


@pytest.mark.parametrize(
    ("environ", "task"),
    [
        ({}, None),
        (CLOUD_RUN | NAMED, Task(3, 8, "cloud-run", 1, "calls-x7k", "calls")),
        ({"CLOUD_RUN_TASK_INDEX": ""}, None),
        (BATCH | {"AWS_BATCH_JOB_ARRAY_SIZE": "8"}, Task(3, 8, "aws-batch", 1, "a1b2")),
        ({"AWS_BATCH_JOB_ID": "a1b2", "AWS_BATCH_JOB_ATTEMPT": "1"}, None),
        (GOOGLE_BATCH, Task(3, 8, "google-batch", 1)),
        (SKYPILOT, Task(3, 8, "skypilot", execution="sky-2026-11-26_calls")),
        (POOL, Task(3, 8, "skypilot-pool")),
        (vertex("workerpool0", 0), Task(0, 8, "vertex-ai")),
        (vertex("workerpool1", 6), Task(7, 8, "vertex-ai")),
        (DSTACK | {"DSTACK_RUN_NAME": "calls"}, Task(3, 8, "dstack", name="calls")),
        (INDEXED | TRAIN_JOB, Task(3, 8, "kubeflow")),
        (TRAIN_JOB | INDEXED | ELASTIC, Task(3, 8, "torchrun", 0)),
        ({"JOB_COMPLETION_INDEX": "0"} | METAFLOW, Task(3, 8, "metaflow")),
        (LEPTON, Task(3, 8, "lepton", 1, name="calls")),
        (DSTACK | {"DSTACK_NODE_RANK": "0", "DSTACK_NODES_NUM": "1"}, Task(0, 1, "dstack")),
        (INDEXED | {"VOXBATCH_TASK_COUNT": "8"}, Task(3, 8, "kubernetes")),
        (INDEXED | {"JOB_COMPLETIONS": " 8 "}, Task(3, 8, "kubernetes")),
        (
            SLURM | {"SLURM_RESTART_COUNT": "2", "SLURM_ARRAY_JOB_ID": "17", "SLURM_JOB_NAME": "calls"},
            Task(6, 8, "slurm", 2, "17", "calls"),
        ),
        ({"SLURM_JOB_ID": "17", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, None),
        (STEP, Task(3, 8, "srun")),
        (ELASTIC, Task(3, 8, "torchrun", 0)),
        ({"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1"}, Task(3, 8, "torchrun")),
        ({"RANK": "3", "WORLD_SIZE": "8"}, None),
        ({"RANK": "3", "MASTER_ADDR": "10.0.0.1"}, None),
        ({"WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1"}, None),
        ({"VOXBATCH_TASK_COUNT": "1"}, None),
    ],
)
def test_task_is_found_by_variables(environ: Mapping[str, str], task: Task | None) -> None:
    """The variables of each platform give its task; incomplete variables, or variables that other programs also set,
    give none.
    """
    assert find(environ, NOWHERE) == task
    if task is not None:
        assert find(environ, NOWHERE, task.platform) == task
    assert find(environ, NOWHERE, "none") is None


WHOLE = "it must be a whole number from"
UNSEEN = "(--tasks none ignores it)"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (CLOUD_RUN | {"CLOUD_RUN_TASK_INDEX": "8"}, f"CLOUD_RUN_TASK_INDEX is '8'; {WHOLE} 0 to 7 {UNSEEN}"),
        (CLOUD_RUN | {"CLOUD_RUN_TASK_COUNT": "0"}, f"CLOUD_RUN_TASK_COUNT is '0'; {WHOLE} 1 to 99,999 {UNSEEN}"),
        (CLOUD_RUN | {"CLOUD_RUN_TASK_COUNT": "٨"}, f"CLOUD_RUN_TASK_COUNT is '٨'; {WHOLE} 1 to 99,999 {UNSEEN}"),
        ({"CLOUD_RUN_TASK_INDEX": "3"}, f"CLOUD_RUN_TASK_COUNT is not set; {WHOLE} 1 to 99,999 {UNSEEN}"),
        (
            BATCH,
            (
                "AWS_BATCH_JOB_ARRAY_INDEX is '3', but AWS Batch arrays do not give the number of tasks: set "
                f"VOXBATCH_TASK_COUNT to their number, or give --shard I/N {UNSEEN}"
            ),
        ),
        (
            BATCH | {"AWS_BATCH_JOB_ARRAY_SIZE": "8", "VOXBATCH_TASK_COUNT": "9"},
            "AWS_BATCH_JOB_ARRAY_SIZE is 8 and VOXBATCH_TASK_COUNT is 9; they must agree",
        ),
        (
            {"VOXBATCH_TASK_COUNT": "8"},
            (
                "VOXBATCH_TASK_COUNT is 8, but the number of this task is unknown: JOB_COMPLETION_INDEX and "
                "AWS_BATCH_JOB_ARRAY_INDEX are not set; make the job an indexed one, give --shard I/8, or leave "
                "VOXBATCH_TASK_COUNT out"
            ),
        ),
        (
            SLURM | {"SLURM_ARRAY_TASK_STEP": "4"},
            "SLURM_ARRAY_TASK_ID is 7, of 8 ids from 1 to 29 by 4; they must be evenly spaced, such as --array=0-7 "
            + UNSEEN,
        ),
        (
            {"CLUSTER_SPEC": "chief:2222"},
            f"CLUSTER_SPEC is 'chief:2222'; Vertex AI names each replica of a job and this one there {UNSEEN}",
        ),
        (
            SLURM | STEP,
            (
                "this process is task 51 of 64 (Slurm array, attempt 0) and task 3 of 8 (step of srun) at once; give "
                "--tasks slurm or --tasks srun, or --tasks none and --shard I/N"
            ),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"},
            (
                "OMPI_COMM_WORLD_RANK is '3' and OMPI_COMM_WORLD_SIZE is 8: this process is one of several tasks of a "
                "job of Open MPI, and each would do all of the work; give --shard $OMPI_COMM_WORLD_RANK/"
                "$OMPI_COMM_WORLD_SIZE, here 3/8, or --tasks none if each task has work of its own"
            ),
        ),
        (
            {"PBS_ARRAY_INDEX": "1"},
            (
                "PBS_ARRAY_INDEX is '1': this process is one of several tasks of a PBS array, and each would do all of "
                "the work; give --shard $((PBS_ARRAY_INDEX - 1))/8 for -J 1-8, or --tasks none if each task has work "
                "of its own"
            ),
        ),
        (
            CLOUD_RUN | NAMED | INDEXED | {"VOXBATCH_TASK_COUNT": "16"},
            (
                "this process is task 3 of 8 (Cloud Run job calls, execution calls-x7k, attempt 1) and task 3 of 16 "
                "(Kubernetes job) at once; give --tasks cloud-run or --tasks kubernetes, or "
                "--tasks none and --shard I/N"
            ),
        ),
    ],
)
def test_invalid_variables_are_refused(environ: Mapping[str, str], message: str) -> None:
    """An invalid variable is named with its value and the permitted values; two contradicting platforms are refused."""
    with pytest.raises(ConfigError) as caught:
        find(environ, NOWHERE)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", known.UNREAD)
def test_task_of_a_platform_that_is_not_read_is_refused(name: str) -> None:
    """A task that is one of several on a platform that is not read is refused, unless a flag says what it does or a
    platform that is read divides the work.
    """
    count = known.UNREAD[name].count
    environ = {name: "3"} | ({count: "8"} if count else {})
    with pytest.raises(ConfigError, match=rf"^{name} is '3'.*give --shard .*{name}"):
        find(environ, NOWHERE)
    with pytest.raises(ConfigError, match=rf"^{name} is '3'"):
        find(environ | {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}, NOWHERE)
    assert find(environ, NOWHERE, "none") is None
    assert find(environ, NOWHERE, count=8) is None
    assert find(environ | CLOUD_RUN, NOWHERE) == Task(3, 8, "cloud-run")


@pytest.mark.parametrize(
    "environ",
    [
        {"NOMAD_ALLOC_INDEX": "0"},
        {"VC_TASK_INDEX": "0"},
        {"NODE_RANK": "0"},
        {"NODE_RANK": "0", "NUM_NODES": "1"},
        {"NUM_NODES": "8"},
        {"SGE_TASK_ID": "undefined", "SGE_TASK_LAST": "undefined"},
        {"LSB_JOBID": "17", "LSB_JOBINDEX": "0"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {"SLURM_JOB_ID": "17", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_NODEID": "0"},
        {"PBS_JOBID": "17", "PBS_TASKNUM": "1", "PBS_NODENUM": "0"},
        {"AZ_BATCH_TASK_ID": "t3", "AZ_BATCH_NODE_ID": "n"},
        {"RUNPOD_POD_ID": "p", "MASTER_ADDR": "10.0.0.1", "WORLD_SIZE": "1"},
        {"CI_NODE_INDEX": "3", "CI_NODE_TOTAL": "8"},
        {"LOCAL_RANK": "3"},
    ],
)
def test_task_that_may_be_the_only_one_is_not_refused(environ: Mapping[str, str]) -> None:
    """Variables that a task without others has, too, are no reason to refuse. The jobs of a CI pipeline are no tasks:
    each transcribes what it tests.
    """
    assert find(environ, NOWHERE) is None


UNKNOWN = [
    ({"ACME_NODE_RANK": "3", "ACME_NUM_NODES": "8"}, "ACME_NODE_RANK is 3 and ACME_NUM_NODES is 8"),
    ({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "8"}, "HOROVOD_RANK is 3 and HOROVOD_SIZE is 8"),
    ({"MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_SIZE": "8"}, "MV2_COMM_WORLD_RANK is 3 and MV2_COMM_WORLD_SIZE is 8"),
    ({"NODE_INDEX": "3", "NODE_COUNT": "8"}, "NODE_INDEX is 3 and NODE_COUNT is 8"),
    ({"JOB_INDEX": "3", "JOB_TOTAL_WORKERS": "8"}, "JOB_INDEX is 3 and JOB_TOTAL_WORKERS is 8"),
    (
        {"ACME_NODE_RANK": "3", "ACME_NODES_NUM": "8", "ACME_TASK_INDEX": "0"},
        "ACME_NODE_RANK is 3 and ACME_NODES_NUM is 8; ACME_TASK_INDEX is 0 and ACME_NODES_NUM is 8",
    ),
]


@pytest.mark.parametrize(("environ", "pairs"), UNKNOWN)
def test_task_of_an_unknown_platform_is_refused(environ: dict[str, str], pairs: str) -> None:
    """A pair of variables that looks like the number of a task and the number of tasks is refused, with both names and
    what to do, unless a flag says what the process does or a platform that is read divides the work.
    """
    index, count = re.findall(r"([A-Z0-9_]+) is", pairs)[:2]
    with pytest.raises(ConfigError) as caught:
        find(environ, NOWHERE)
    assert str(caught.value) == (
        f"{pairs}: this process may be one of 8 tasks of a platform that voxbatch does not know, and each would do all "
        f"of the work; give --shard ${index}/${count}, here 3/8, or --tasks none if each task has work of its own or "
        "the variables mean something else; and please open an issue that names the platform and these variables"
    )
    assert find(environ, NOWHERE, "none") is None
    assert find(environ, NOWHERE, count=8) is None
    assert find(environ | CLOUD_RUN, NOWHERE) == Task(3, 8, "cloud-run")
    with pytest.raises(ConfigError, match="does not know"):
        find(environ | {"CLOUD_RUN_TASK_INDEX": "0", "CLOUD_RUN_TASK_COUNT": "1"}, NOWHERE)


@pytest.mark.parametrize(
    "environ",
    [
        {"SHLVL": "1", "HISTSIZE": "1000", "LINES": "50", "WINDOW_INDEX": "0", "GIT_CONFIG_COUNT": "2"},
        {"CONDA_SHLVL": "2", "CONDA_ENV_INDEX": "1", "UV_INDEX": "https://a", "PIP_INDEX": "1"},
        {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4", "ROLE_RANK": "0", "ROLE_WORLD_SIZE": "1", "GROUP_RANK": "0"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_UNIVERSE_SIZE": "16",
         "OMPI_COMM_WORLD_NODE_RANK": "0"},
        {"PMIX_RANK": "0", "PMIX_SERVER_NUM": "4", "PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALNRANKS": "4"},
        {"SLURM_JOB_ID": "17", "SLURM_NODEID": "0", "SLURM_JOB_NUM_NODES": "4", "SLURM_GTIDS": "0"},
        {"CUDA_DEVICE_INDEX": "0", "CUDA_DEVICE_COUNT": "8", "NCCL_RANK": "0", "NCCL_BUFF_SIZE": "4194304"},
        {"GPU_INDEX": "0", "GPU_COUNT": "8", "RUNPOD_GPU_COUNT": "2", "RUNPOD_POD_INDEX": "0"},
        {"APP_SHARD_INDEX": "0", "APP_BATCH_SIZE": "32", "APP_CACHE_SIZE": "9", "APP_RETRY_COUNT": "3"},
        {"ACME_NODE_RANK": "0", "ACME_NUM_NODES": "1"},
        {"ACME_NODE_RANK": "9", "ACME_NUM_NODES": "8"},
        {"ACME_NODE_RANK": "3", "OTHER_NUM_NODES": "8"},
        {"ACME_NODE_RANK": "3"},
        {"ACME_NODE_RANK": "first", "ACME_NUM_NODES": "8"},
        {"CI": "true", "SEMAPHORE_JOB_INDEX": "3", "SEMAPHORE_JOB_COUNT": "8"},
        {"RANK": "3", "WORLD_SIZE": "8"},
        {"PYTEST_XDIST_WORKER_COUNT": "2", "PYTEST_INDEX": "0"},
        {"BATCH_INDEX": "3", "BATCH_SIZE": "32"},
        {"AWS_BATCH_JOB_MAIN_NODE_INDEX": "0", "AWS_BATCH_JOB_NUM_NODES": "8"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_PORT": "443"},
    ],
)  # fmt: skip
def test_numbers_of_other_things_are_not_refused(environ: dict[str, str]) -> None:
    """Variables of login shells, conda, MPI and Slurm with one task, GPUs, one machine, applications and CI pipelines
    are no numbers of tasks.
    """
    assert find(environ, NOWHERE) is None


def test_this_machine_is_no_task() -> None:
    """The environment of the person who runs the tests has no pair that is refused."""
    assert unknown.find(dict(os.environ)) == []


def test_the_page_has_the_variables_of_each_platform_with_their_source() -> None:
    """docs/tasks.md has a row for each platform, read or not, with its variables and the page that documents them."""
    rows = [line for line in (ROOT / "docs" / "tasks.md").read_text().splitlines() if "](https://" in line]
    for name, platform in known.PLATFORMS.items():
        (row,) = [line for line in rows if f"(`{name}`)" in line]
        assert all(variable in row for variable in (platform.index, *platform.counts))
    for name, unread in known.UNREAD.items():
        (row,) = [line for line in rows if f"`{name}`" in line]
        assert unread.count in row
        assert (unread.shard.partition("/")[0] or f"${name}/${unread.count}") in row


def test_platforms_that_agree_count_as_one() -> None:
    """Platforms that agree count as one, and a single task is ignored beside a platform with several. A chosen platform
    has priority and must be present.
    """
    alike = CLOUD_RUN | INDEXED | {"VOXBATCH_TASK_COUNT": "8"}
    assert find(alike, NOWHERE) == Task(3, 8, "cloud-run")
    single = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
    assert find(SLURM | single, NOWHERE) == Task(6, 8, "slurm", 0)
    assert find(single | {"CLOUD_RUN_TASK_INDEX": "0", "CLOUD_RUN_TASK_COUNT": "1"}, NOWHERE) == Task(0, 1, "cloud-run")
    assert find(SLURM | CLOUD_RUN, NOWHERE, "slurm") == Task(6, 8, "slurm", 0)
    with pytest.raises(ConfigError, match="--tasks slurm: no Slurm array has started this process: SLURM_ARRAY_TASK_"):
        find(CLOUD_RUN, NOWHERE, "slurm")


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(1, 1000), st.integers(1, 500), st.data())
def test_slurm_array_ids_map_to_tasks(least: int, step: int, count: int, data: st.DataObject) -> None:
    """The ids of --array=least-…:step map to the tasks 0, 1, …, each once, also if srun starts several processes for
    each; an id between them is refused."""
    last = least + (count - 1) * step
    array = {
        "SLURM_ARRAY_TASK_COUNT": f"{count}", "SLURM_ARRAY_TASK_MIN": f"{least}", "SLURM_ARRAY_TASK_MAX": f"{last}",
        "SLURM_ARRAY_TASK_STEP": f"{step}",
    }  # fmt: skip
    index = data.draw(st.integers(0, count - 1))
    found = find(array | {"SLURM_ARRAY_TASK_ID": f"{least + index * step}"}, NOWHERE)
    assert found == Task(index, count, "slurm", 0)
    step_of_srun = {"SLURM_ARRAY_TASK_ID": f"{least + index * step}", "SLURM_STEP_NUM_TASKS": "3"}
    processes = [find(array | step_of_srun | {"SLURM_PROCID": f"{rank}"}, NOWHERE, "slurm") for rank in range(3)]
    assert processes == [Task(3 * index + rank, 3 * count, "slurm", 0) for rank in range(3)]
    other = data.draw(st.integers(0, last + 10 * step).filter(lambda i: i not in range(least, last + 1, step)))
    with pytest.raises(ConfigError, match="evenly spaced"):
        find(array | {"SLURM_ARRAY_TASK_ID": f"{other}"}, NOWHERE)


VARIABLES = [
    *CLOUD_RUN,
    *BATCH,
    *SLURM,
    *ELASTIC,
    *GOOGLE_BATCH,
    *STEP,
    *DSTACK,
    *TRAIN_JOB,
    *METAFLOW,
    *LEPTON,
    "CLUSTER_SPEC",
    *known.UNREAD,
    known.TASK_COUNT,
]


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(VARIABLES), st.text(max_size=4)))
def test_any_variables_give_a_valid_task_or_an_error(environ: dict[str, str]) -> None:
    """Any values give a task with an index below its count, no task, or a ConfigError."""
    try:
        task = find(environ, NOWHERE)
    except ConfigError:
        return
    assert task is None or 0 <= task.index < task.count


def test_tasks_and_shards_have_the_same_limit() -> None:
    """`tasks` and `shard` have the same limit, although `tasks` is in a lower layer and cannot import it."""
    assert known.MAX_TASKS == MAX_SHARDS


# ── the shard of a task ───────────────────────────────────────────────────────────────────────────────────────────────

THIRD = Task(3, 8, "cloud-run", 1, "calls-x7k", "calls")


@pytest.mark.parametrize(
    ("task", "asked", "shard"),
    [
        (None, None, (0, 1)),
        (None, (3, 16), (3, 16)),
        (THIRD, None, (3, 8)),
        (THIRD, (3, 8), (3, 8)),
        (Task(0, 1, "cloud-run"), (3, 16), (3, 16)),
    ],
)
def test_shard_follows_from_the_task(task: Task | None, asked: tuple[int, int] | None, shard: tuple[int, int]) -> None:
    """A process runs the shard of its task, unless the task is the only one and --shard was given."""
    assert shard_of(task, asked) == shard


@pytest.mark.parametrize("asked", [(0, 1), (4, 8), (3, 16)])
def test_shard_that_contradicts_the_task_is_refused(asked: tuple[int, int]) -> None:
    """A --shard other than the task's is refused: eight tasks with --shard 0/1 would do everything eight times."""
    with pytest.raises(ConfigError) as caught:
        shard_of(THIRD, asked)
    assert str(caught.value) == (
        f"--shard {asked[0]}/{asked[1]} contradicts CLOUD_RUN_TASK_INDEX: this is task 3 of 8 (Cloud Run job calls, "
        "execution calls-x7k, attempt 1), and its shard is 3/8; leave out --shard (VOXBATCH_SHARD), or give --tasks "
        "none to use --shard alone"
    )


def test_shard_option_gives_the_task_count() -> None:
    """--shard I/N replaces VOXBATCH_TASK_COUNT, unless the index of the task is not below N."""
    assert find(INDEXED, NOWHERE, count=8) == Task(3, 8, "kubernetes")
    assert find({"VOXBATCH_TASK_COUNT": "8"}, NOWHERE, count=8) is None
    with pytest.raises(ConfigError, match=r"^--shard I/1 contradicts JOB_COMPLETION_INDEX, which is 3: .*--tasks none"):
        find(INDEXED, NOWHERE, count=1)


# ── SageMaker ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_hosts_are_numbered_by_their_names(tmp_path: Path) -> None:
    """Hosts are numbered in the order of the numbers in their names; the job's name is included if it is known."""
    found = [find({}, container(tmp_path / host, host, ProcessingJobName="calls")) for host in HOSTS]
    assert found == [Task(i, 3, "sagemaker", name="calls") for i in (2, 1, 0)]
    assert find({}, container(tmp_path / "x")) == Task(2, 3, "sagemaker")


@pytest.mark.parametrize(("current", "hosts"), [("algo-3", HOSTS), ("algo-1", []), ("algo-1", None), ("a", ["a", 1])])
def test_invalid_host_lists_are_refused(tmp_path: Path, current: str, hosts: Any) -> None:
    """Files without a valid host list are named, with their content."""
    with pytest.raises(ConfigError, match=rf"config/resourceconfig.json: current_host is '{current}' and hosts are"):
        find({}, container(tmp_path, current, hosts))


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_files_without_a_json_object_are_refused(tmp_path: Path, text: str) -> None:
    """Files that hold no JSON object are refused, too."""
    root = container(tmp_path)
    (tmp_path / "config" / "resourceconfig.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="SageMaker writes a JSON object there"):
        find({}, root)


def test_instance_type_is_read_from_the_host_or_the_job(tmp_path: Path) -> None:
    """The instance type comes from the host's own file, else from the job's; damaged files give none."""
    cluster: dict[str, Any] = {"ProcessingResources": {"ClusterConfig": {"InstanceType": "ml.g6.xlarge"}}}
    root = container(tmp_path / "a", **cluster)
    assert sagemaker.instance_type(root) == "ml.g6.xlarge"
    own = {"current_host": "algo-1", "hosts": ["algo-1"], "current_instance_type": "ml.g6.8xlarge"}
    (tmp_path / "a" / "config" / "resourceconfig.json").write_text(json.dumps(own))
    assert sagemaker.instance_type(root) == "ml.g6.8xlarge"
    for text in ("{", "[]", json.dumps({"ProcessingResources": None})):
        (tmp_path / "a" / "config" / "resourceconfig.json").write_text(text)
        (tmp_path / "a" / "config" / "processingjobconfig.json").write_text(text)
        assert sagemaker.instance_type(root) is None
    assert sagemaker.instance_type(str(tmp_path / "b")) is None


def test_sharded_input_is_refused(tmp_path: Path) -> None:
    """A manifest that only this host has is refused: a shard of it would silently leave the rest undone."""
    inputs = [
        {"InputName": "mine", "S3Input": {"LocalPath": "/in/mine", "S3DataDistributionType": "ShardedByS3Key"}},
        {"InputName": "all", "S3Input": {"LocalPath": "/in/all", "S3DataDistributionType": "FullyReplicated"}},
        {"InputName": "other", "DatasetDefinition": {}},
    ]
    root = container(tmp_path, ProcessingInputs=inputs)
    sagemaker.refuse_sharded_input(["/in/all/m.jsonl", "s3://calls/m.jsonl"], root)
    sagemaker.refuse_sharded_input(["/in/mine/m.jsonl"], NOWHERE)
    for source in ("/in/mine", "/in/mine/m.jsonl"):
        with pytest.raises(ConfigError, match=r"lies in /in/mine, of which each host has a part of its own"):
            sagemaker.refuse_sharded_input(["talk.mp3", source], root)


def test_exit_message_is_cut_to_1_kb(tmp_path: Path) -> None:
    """The ExitMessage is the first KB of the reason, in whole characters; without SageMaker nothing is written."""
    root = container(tmp_path / "host")
    sagemaker.write_exit_message("a" + "é" * 1000, root)
    assert (tmp_path / "host" / "output" / "message").read_bytes() == ("a" + "é" * 511).encode()
    sagemaker.write_exit_message("no", str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_failed_job_writes_the_exit_message(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """Any failure, however early, becomes the job's ExitMessage, with the usual exit code. With --exit-zero, failed
    items are no failure.
    """
    path = manifest(0.5, None)
    base = container(tmp_path / "host", "algo-1", ["algo-1"])
    message = tmp_path / "host" / "output" / "message"
    for code, reason, options in (
        (2, "Invalid value for '--limit': 0 is not", ("--limit", "0")),
        (2, "engine 'x' is unknown", ("--engine", "x")),
        (2, "engine 'x' is unknown", ("--engine", "x", "--log-format", "text")),
        (1, "scripted to die after 1 results", (*FAST, "--engine-option", "die_after=1")),
        (3, "finished, but 1 item failed: see failures.jsonl", FAST),
    ):
        done = voxbatch("run", path, *options, env={"SAGEMAKER_BASE_DIR": base})
        assert done.returncode == code, done.stderr
        assert message.read_text().startswith(reason)
        message.unlink()
    assert voxbatch("run", path, *FAST, env={"SAGEMAKER_BASE_DIR": base, "VOXBATCH_EXIT_ZERO": "1"}).returncode == 0
    assert not message.exists()


# ── as the user sees it ───────────────────────────────────────────────────────────────────────────────────────────────

LABELS = "logging.googleapis.com/labels"


def test_task_logs_its_shard(voxbatch: Voxbatch, manifest: ManifestWriter) -> None:
    """A task logs one event with its shard, warns if OUT is local, and adds the shard and Cloud Run's labels to every
    line.
    """
    done = voxbatch("run", manifest(0.5), *FAST, env=CLOUD_RUN | NAMED)
    assert done.returncode == 0
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines[0]["text"] == "task 3 of 8 (Cloud Run job calls, execution calls-x7k, attempt 1): shard 3/8"
    assert (lines[1]["message"], lines[1]["severity"]) == ("local_out", "WARNING")
    assert {(line["shard"], line["attempt"]) for line in lines} == {("3/8", 1)}
    prefix = "run.googleapis.com/"
    labels = {f"{prefix}execution_name": "calls-x7k", f"{prefix}task_index": "3", f"{prefix}task_attempt": "1"}
    assert all(line[LABELS] == labels for line in lines)


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"VOXBATCH_LIMIT": "2"}, "VOXBATCH_LIMIT=2 limits this command to 2 items; unset it to take all items"),
        (
            SLURM,
            (
                "SLURM_ARRAY_TASK_ID makes this process task 6 of 8 (Slurm array, attempt 0): shard 6/8; give --tasks "
                "none to take all items"
            ),
        ),
    ],
)
def test_variable_that_makes_a_run_smaller_is_named(
    voxbatch: Voxbatch, manifest: ManifestWriter, environ: dict[str, str], text: str
) -> None:
    """A variable that a shell may have inherited causes one warning if it makes the run smaller, also with --quiet."""
    command = ("run", manifest(0.5, 0.5, 0.5), *FAST, "--quiet", "--log-format", "text")
    done = voxbatch(*command, env=environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"Warning: {text}\n")


@pytest.mark.parametrize(
    ("options", "environ"),
    [
        (("--limit", "2"), {"VOXBATCH_LIMIT": "1"}),
        (("--tasks", "none"), SLURM | {"VOXBATCH_SHARD": "0/1"}),
        (("--shard", "6/8"), SLURM | {"VOXBATCH_SHARD": "auto"}),
        ((), ELASTIC | {"RANK": "0", "WORLD_SIZE": "1"}),
        ((), {"SLURM_JOB_ID": "17", "SLURM_PROCID": "3", "SLURM_NTASKS": "4"}),
    ],
)
def test_variable_without_effect_causes_no_warning(
    voxbatch: Voxbatch, manifest: ManifestWriter, options: tuple[str, ...], environ: dict[str, str]
) -> None:
    """No warning comes for a variable that a flag overrides or that does not make the run smaller."""
    done = voxbatch("run", manifest(0.5), *FAST, "--quiet", *options, env=environ)
    assert (done.returncode, done.stderr) == (0, "")


def test_validate_names_a_variable_that_limits_it(voxbatch: Voxbatch, manifest: ManifestWriter) -> None:
    """The variable with a limit is named by `validate`, too, on standard error."""
    done = voxbatch("validate", manifest(0.1, 0.1), env={"VOXBATCH_LIMIT": "1"})
    assert "1 item, all valid" in done.stdout
    assert done.stderr == "Warning: VOXBATCH_LIMIT=1 limits this command to 1 item; unset it to take all items\n"


def test_contradicting_shard_is_refused_before_writing(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """A contradicting shard, also as a variable, is refused before anything is written; --tasks
    none ignores the task.
    """
    path = manifest(0.5)
    for options, more in ((("--shard", "0/1"), {}), ((), {"VOXBATCH_SHARD": "0/1"})):
        done = voxbatch("run", path, *FAST, *options, env=CLOUD_RUN | more)
        assert (done.returncode, "--shard 0/1 contradicts CLOUD_RUN_TASK_INDEX" in done.stderr) == (2, True)
    assert voxbatch("run", path, *FAST, "--overwrite", env=CLOUD_RUN).returncode == 2
    assert not (tmp_path / "m.voxbatch").exists()
    assert voxbatch("run", path, *FAST, "--shard", "0/1", "--tasks", "none", env=CLOUD_RUN).returncode == 0
    assert (tmp_path / "m.voxbatch" / "summary.json").exists()
    assert voxbatch("profiles", "cpu", env=CLOUD_RUN | {"CLOUD_RUN_TASK_INDEX": "x"}).returncode == 0


# ── many tasks with kills and restarts ────────────────────────────────────────────────────────────────────────────────

ITEMS, TASKS = 24, 8
KILLED, ZOMBIE = {1, 4}, 6


class Crew:
    """The tasks of one job on Cloud Run."""

    def __init__(self, start: Starter, manifest: Path, out: str):
        self._start, self._manifest, self._out = start, manifest, out

    def begin(self, index: int, attempt: int = 0, hold: Hold | None = None) -> Popen[str]:
        """Start a task, which commits each item as a part."""
        engine = ("--engine-option", "delay_s=0.02", "--engine-option", "concurrency=1")
        slowly = (*engine, *(hold.options if hold else ()), "--part-items", "1")
        task = {"TASK_INDEX": index, "TASK_COUNT": TASKS, "TASK_ATTEMPT": attempt}
        env = {retry.NO_WAIT: "1", **{f"CLOUD_RUN_{name}": str(value) for name, value in task.items()}}
        return self._start("run", self._manifest, "-o", self._out, *FAST, *slowly, env=env)


def strike(first: Mapping[int, Popen[str]], numbers: Mapping[int, signal.Signals], store: Store) -> None:
    """Send each of these tasks, which wait after their first result, its signal when that is committed."""
    left = dict(numbers)
    while left:
        time.sleep(0.02)
        at_work = {int(name.split("-")[1]) for name in part_names(store)}
        for index in left.keys() & at_work:
            first[index].send_signal(left.pop(index))
        for index in left:
            assert first[index].poll() is None, first[index].communicate()


def ended(processes: Iterable[Popen[str]]) -> list[int]:
    """Wait for the processes and return their exit codes."""
    codes = []
    for process in processes:
        said = process.communicate(timeout=120)
        assert "Traceback" not in said[1]
        codes.append(process.returncode)
    return codes


def disturbed(crew: Crew, store: Store, hold: Hold) -> Popen[str]:
    """Run all tasks; kill some and restart them, and suspend one and replace it. Return the suspended task when all
    others have ended.
    """
    victims = KILLED | {ZOMBIE}
    first = {index: crew.begin(index, hold=hold if index in victims else None) for index in range(TASKS)}
    hold.reached(len(victims))
    strike(first, {index: signal.SIGSTOP if index == ZOMBIE else signal.SIGKILL for index in victims}, store)
    again = [crew.begin(index, attempt=1) for index in sorted(victims)]
    calm = [process for index, process in first.items() if index not in victims]
    assert set(ended([first[index] for index in KILLED])) == {-signal.SIGKILL}
    assert set(ended([*calm, *again])) <= {0, 3}
    hold.release()
    return first[ZOMBIE]


@pytest.fixture
def bucket(google: servers.Server, monkeypatch: pytest.MonkeyPatch) -> Iterable[servers.Place]:
    with servers.placed(google, monkeypatch) as place:
        yield place


@pytest.mark.parametrize("place", [pytest.param("folder", marks=pytest.mark.long), "bucket"])
def test_outputs_of_killed_tasks_equal_those_of_one_process(
    manifest: ManifestWriter, voxbatch: Voxbatch, start: Starter, tmp_path: Path, bucket: servers.Place, place: str
) -> None:
    """With killed and restarted tasks and one zombie task that resumes, the outputs are the bytes of one process. No
    item is in two parts, and the zombie ends normally.
    """
    path = manifest(*[0.5 + i / 100 for i in range(ITEMS - 1)], None, text="one two", lang="en")
    assert voxbatch("run", path, "-o", "alone", *FAST).returncode == 3
    alone = outputs(Stores().out(str(tmp_path / "alone")))
    out = bucket.uri if place == "bucket" else str(tmp_path / "out")
    store = Stores().out(out)
    asleep = disturbed(Crew(start, path, out), store, Hold(tmp_path / "hold"))
    assert asleep.poll() is None
    assert outputs(store) == alone
    asleep.send_signal(signal.SIGCONT)
    assert ended([asleep]) == [3]  # it finds everything done and merged, and one item failed
    assert outputs(store) == alone
    assert committed(store) == dict.fromkeys(range(ITEMS), 1)
    summary = json.loads(store.read("summary.json") or b"")
    assert (summary["items"], summary["done"], summary["failed"]) == (ITEMS, ITEMS - 1, 1)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("503", "cannot write gs://"), ("stall", "the last commit took over 9 s")],
)
def test_unavailable_store_does_not_delay_the_end(
    manifest: ManifestWriter, start: Starter, bucket: servers.Place, fault: str, reason: str
) -> None:
    """A store that refuses or does not answer does not delay the end of the process, which reports that nothing is
    safe.
    """
    bucket.proxy.stall_s = 60
    bucket.proxy.spoil = lambda request: fault if request.verb == "put" and "/part-" in request.key else ""
    process = start("run", manifest(0.5, 0.5), "-o", bucket.uri, *FAST, "--part-items", "1", "--log-format", "text")
    while not bucket.proxy.spoilt:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    said = "".join(process.communicate(timeout=55))
    assert process.returncode == 143
    assert f"Warning: interrupted; {reason}" in said
    assert f"0 of 2 items are safe in {bucket.uri}; run the same command again to continue" in said
