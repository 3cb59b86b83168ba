"""Airflow, with apache-airflow-providers-google: transcribe each day's manifest on Cloud Run."""

import pendulum
from airflow.providers.google.cloud.operators.cloud_run import CloudRunExecuteJobOperator
from airflow.sdk import DAG

with DAG("transcribe", schedule="@daily", start_date=pendulum.datetime(2026, 1, 1), catchup=False) as dag:
    source, out = "gs://PROJECT-voxbatch-in/days/{{ ds }}.jsonl", "gs://PROJECT-voxbatch-out/days/{{ ds }}"
    CloudRunExecuteJobOperator(
        task_id="transcribe",
        project_id="PROJECT",
        region="europe-west1",
        job_name="voxbatch",
        overrides={"container_overrides": [{"args": ["run", source, "-o", out]}], "task_count": 2},
        retries=2,  # a retry continues where the execution before it stopped
    )
