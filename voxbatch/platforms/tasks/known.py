"""List the platforms that start tasks, and the variables in which they tell a task its number.

To add a platform, add a line to `PLATFORMS`, or to `UNREAD`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

AUTO, NONE = "auto", "none"
TASK_COUNT = "VOXBATCH_TASK_COUNT"
"""Variable with the number of tasks, for platforms that do not tell it."""
MAX_TASKS = 99_999
"""Highest number of tasks; equal to the highest number of shards."""
HOW_TO_IGNORE = f" (--tasks {NONE} ignores it)"
"""Advice about a variable that a platform did not set."""
SAGEMAKER_ROOT = "/opt/ml"
"""Root folder of SageMaker's files."""
_SAGEMAKER_ROOT_VARIABLE = "SAGEMAKER_BASE_DIR"
"""Variable that names another root; SageMaker's own toolkits read it."""
SAGEMAKER_HOSTS = "config/resourceconfig.json"
"""The file below it that names the hosts."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform of --tasks. docs/tasks.md has the vendor's page of each."""

    title: str
    """The name of a job of the platform, for people."""
    index: str
    """Variable with the number of the task, or SageMaker's file. Messages name it."""
    counts: tuple[str, ...] = ()
    """Variables with the number of tasks; the first one that is set counts."""
    signs: tuple[str, ...] = ()
    """Variables one of which exists if the platform started this process; `index` alone if empty."""
    reader: str = "numbered"
    """Name of a function in `readers`."""
    attempt: str = ""
    """Variable with the number of the attempt."""
    first_attempt: int = 0
    execution: str = ""
    """Variable with the identifier of this execution of the job."""
    name: str = ""
    """Variable with the name of the job."""
    inherited: bool = False
    """True if a shell or a script of a task passes the variables on to each command that it starts."""
    shares_no_folder: bool = False
    """True if the tasks share no folder, unless one is mounted."""
    on_kubernetes: bool = False
    """True if its tasks may be pods of jobs of Kubernetes, whose own index then says nothing about the tasks."""


PLATFORMS = {
    "cloud-run": Platform(
        "Cloud Run job", "CLOUD_RUN_TASK_INDEX", ("CLOUD_RUN_TASK_COUNT",),
        ("CLOUD_RUN_TASK_INDEX", "CLOUD_RUN_TASK_COUNT"), attempt="CLOUD_RUN_TASK_ATTEMPT",
        execution="CLOUD_RUN_EXECUTION", name="CLOUD_RUN_JOB", shares_no_folder=True,
    ),
    "google-batch": Platform(
        "Google Batch job", "BATCH_TASK_INDEX", ("BATCH_TASK_COUNT",), attempt="BATCH_TASK_RETRY_ATTEMPT",
        shares_no_folder=True,
    ),
    "vertex-ai": Platform("Vertex AI job", "CLUSTER_SPEC", reader="vertex_ai", shares_no_folder=True),
    "sagemaker": Platform("SageMaker job", SAGEMAKER_HOSTS, reader="sagemaker_host", shares_no_folder=True),
    "aws-batch": Platform(
        "AWS Batch array", "AWS_BATCH_JOB_ARRAY_INDEX", ("AWS_BATCH_JOB_ARRAY_SIZE", TASK_COUNT),
        attempt="AWS_BATCH_JOB_ATTEMPT", first_attempt=1, execution="AWS_BATCH_JOB_ID",
    ),
    "skypilot": Platform(
        "SkyPilot job", "SKYPILOT_NODE_RANK", ("SKYPILOT_NUM_NODES",), execution="SKYPILOT_TASK_ID",
        shares_no_folder=True,
    ),
    "skypilot-pool": Platform(
        "SkyPilot pool", "SKYPILOT_JOB_RANK", ("SKYPILOT_NUM_JOBS",), ("SKYPILOT_NUM_JOBS",),
        execution="SKYPILOT_TASK_ID", shares_no_folder=True,
    ),
    "dstack": Platform(
        "dstack task", "DSTACK_NODE_RANK", ("DSTACK_NODES_NUM",), execution="DSTACK_RUN_ID", name="DSTACK_RUN_NAME",
        shares_no_folder=True, on_kubernetes=True,
    ),
    "kubeflow": Platform(
        "Kubeflow TrainJob", "PET_NODE_RANK", ("PET_NNODES",), reader="kubeflow", on_kubernetes=True
    ),
    "metaflow": Platform(
        "Metaflow step", "MF_PARALLEL_NODE_INDEX", ("MF_PARALLEL_NUM_NODES",), shares_no_folder=True,
        on_kubernetes=True,
    ),
    "lepton": Platform(
        "DGX Cloud Lepton job", "LEPTON_JOB_WORKER_INDEX", ("LEPTON_JOB_TOTAL_WORKERS",),
        attempt="LEPTON_JOB_FAILURE_COUNT", name="LEPTON_JOB_NAME", on_kubernetes=True,
    ),
    "kubernetes": Platform("Kubernetes job", "JOB_COMPLETION_INDEX", (TASK_COUNT, "JOB_COMPLETIONS")),
    "slurm": Platform("Slurm array", "SLURM_ARRAY_TASK_ID", reader="slurm", inherited=True),
    # A Slurm job without srun has SLURM_PROCID and SLURM_NTASKS, too, but only one process.
    "srun": Platform(
        "step of srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS",), ("SLURM_STEP_NUM_TASKS",), inherited=True,
    ),
    "torchrun": Platform("torchrun job", "RANK", reader="torchrun", inherited=True),
}  # fmt: skip
"""The platforms, by the names of --tasks."""


@dataclass(frozen=True, slots=True)
class UnreadPlatform:
    """A platform whose tasks get their numbers by --shard: it does not say how many there are, or is rarely used."""

    title: str
    """The name of a job of the platform, for people."""
    count: str = ""
    """Variable with the number of tasks."""
    alone: str = "0"
    """Value of the index for which, without a count, the task may be the only one."""
    shard: str = ""
    """Value that a script gives to --shard. If it is empty, a script gives the index and the count."""


UNREAD = {
    "AWS_BATCH_JOB_NODE_INDEX": UnreadPlatform("multi-node job of AWS Batch", "AWS_BATCH_JOB_NUM_NODES"),
    "NODE_RANK": UnreadPlatform("cluster of RunPod or Lightning", "NUM_NODES"),
    "OMPI_COMM_WORLD_RANK": UnreadPlatform("job of Open MPI", "OMPI_COMM_WORLD_SIZE"),
    "PMI_RANK": UnreadPlatform("job of MPI", "PMI_SIZE"),
    "FLUX_TASK_RANK": UnreadPlatform("job of Flux", "FLUX_JOB_SIZE"),
    "LWS_WORKER_INDEX": UnreadPlatform("LeaderWorkerSet of Kubernetes", "LWS_GROUP_SIZE"),
    "VC_TASK_INDEX": UnreadPlatform("job of Volcano", shard="$VC_TASK_INDEX/8 for 8 replicas"),
    "NOMAD_ALLOC_INDEX": UnreadPlatform("group of Nomad", shard="$NOMAD_ALLOC_INDEX/8 for a count of 8"),
    "PBS_ARRAY_INDEX": UnreadPlatform("PBS array", alone="", shard="$((PBS_ARRAY_INDEX - 1))/8 for -J 1-8"),
    "PBS_ARRAYID": UnreadPlatform("Torque array", alone="", shard="$((PBS_ARRAYID - 1))/8 for -t 1-8"),
    "SGE_TASK_ID": UnreadPlatform(
        "Grid Engine array", alone="undefined", shard="$((SGE_TASK_ID - 1))/$SGE_TASK_LAST for -t 1-8"
    ),
    "LSB_JOBINDEX": UnreadPlatform("LSF array", shard="$((LSB_JOBINDEX - 1))/8 for an array [1-8]"),
}
"""The platforms that `find` refuses, by their variable with the number of the task. docs/tasks.md has their pages."""


def sagemaker_root(environ: Mapping[str, str]) -> str:
    """Return the root folder of SageMaker's files."""
    return environ.get(_SAGEMAKER_ROOT_VARIABLE) or SAGEMAKER_ROOT
