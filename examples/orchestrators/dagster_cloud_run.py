"""Dagster: the transcripts of each day as a partitioned asset, made on Cloud Run."""

import dagster as dg
from google.cloud import run_v2

JOB = "projects/PROJECT/locations/europe-west1/jobs/voxbatch"


@dg.asset(partitions_def=dg.DailyPartitionsDefinition("2026-01-01"), retry_policy=dg.RetryPolicy(max_retries=2))
def transcripts(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    out = f"gs://PROJECT-voxbatch-out/days/{context.partition_key}"
    args = ["run", f"gs://PROJECT-voxbatch-in/days/{context.partition_key}.jsonl", "-o", out]
    overrides = {"container_overrides": [{"args": args}], "task_count": 2}
    operation = run_v2.JobsClient().run_job({"name": JOB, "overrides": overrides})
    execution = operation.result(timeout=None)  # the client's default gives up after 15 minutes
    if execution.succeeded_count < execution.task_count:
        raise dg.Failure(f"{execution.failed_count} tasks of {execution.name} failed: a retry continues their work")
    return dg.MaterializeResult(metadata={"out": out, "execution": execution.name})


defs = dg.Definitions(assets=[transcripts])
