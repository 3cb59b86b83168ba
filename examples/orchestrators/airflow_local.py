"""Airflow: transcribe a folder every night on the worker's machine, then write the table. A retry continues.

The worker needs voxbatch; SOURCE and OUT are paths or addresses that it can reach.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, task

SOURCE, OUT = "/data/calls", "/data/calls.voxbatch"


@dag(schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def transcribe_calls() -> None:
    @task.bash(retries=3, retry_delay=timedelta(minutes=5), do_xcom_push=False)
    def transcribe() -> str:
        return f"voxbatch run '{SOURCE}' -o '{OUT}' --update --exit-zero"

    @task.bash(do_xcom_push=False)
    def export() -> str:
        return f"voxbatch report '{OUT}' --export '{OUT}/items.parquet'"

    transcribe() >> export()


transcribe_calls()
