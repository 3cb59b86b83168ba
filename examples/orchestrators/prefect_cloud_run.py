"""Prefect: transcribe a manifest on Cloud Run."""

from google.cloud import run_v2
from prefect import flow, task

JOB = "projects/PROJECT/locations/europe-west1/jobs/voxbatch"


@task(retries=2, retry_delay_seconds=60)
def run(source: str, out: str, tasks: int) -> str:
    overrides = {"container_overrides": [{"args": ["run", source, "-o", out]}], "task_count": tasks}
    operation = run_v2.JobsClient().run_job({"name": JOB, "overrides": overrides})
    execution = operation.result(timeout=None)  # the client's default gives up after 15 minutes
    if execution.succeeded_count < execution.task_count:
        raise RuntimeError(f"{execution.failed_count} tasks of {execution.name} failed: a retry continues their work")
    return out


@flow
def transcribe(day: str, tasks: int = 2) -> str:
    return run(f"gs://PROJECT-voxbatch-in/days/{day}.jsonl", f"gs://PROJECT-voxbatch-out/days/{day}", tasks)
