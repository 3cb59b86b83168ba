"""Runs a snippet of examples/orchestrators/ with the real packages of its orchestrator, and the real clients of the
clouds, whose requests go to a local server.

    python orchestrators_real.py airflow_cloud_run http://127.0.0.1:1234

The interpreter is the one that VOXBATCH_TEST_ORCHESTRATORS names, so that nothing of voxbatch is imported here. Exit
code 0: the orchestrator reports success.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DAY = "2026-11-20"


def redirect_cloud_run(url: str) -> type:
    """Let all clients of Cloud Run's jobs send their requests to the server, by REST."""
    from google.cloud import run_v2
    from google.cloud.run_v2.services.jobs import transports
    from google.oauth2.credentials import Credentials

    class Client(run_v2.JobsClient):  # type: ignore[misc]
        def __init__(self, **_: Any):
            host = url.removeprefix("http://")
            transport = transports.JobsRestTransport(host=host, url_scheme="http", credentials=Credentials("TOKEN"))
            super().__init__(transport=transport)

    run_v2.JobsClient = Client
    return Client


def run_task(snippet: Any) -> None:
    """Run the only task of an Airflow DAG, with its templates rendered for the day."""
    (task,) = snippet.dag.tasks
    context = {"ds": DAY, "ti": SimpleNamespace(xcom_push=lambda **_: None), "task": task}
    task.render_template_fields(context)
    task.execute(context)


def airflow_cloud_run(url: str) -> None:
    client = redirect_cloud_run(url)
    os.environ["AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"] = "google-cloud-platform://"
    cloud_run: Any = importlib.import_module("airflow.providers.google.cloud.hooks.cloud_run")
    from google.oauth2.credentials import Credentials

    cloud_run.JobsClient = client
    cloud_run.CloudRunHook.get_credentials = lambda _: Credentials("TOKEN")
    run_task(importlib.import_module("airflow_cloud_run"))


def airflow_sagemaker(url: str) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": "SECRET-OF-test", "AWS_REGION": "us-east-1"}
    os.environ |= {**keys, "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL_SAGEMAKER": url}
    os.environ["AIRFLOW_CONN_AWS_DEFAULT"] = "aws://"
    snippet = importlib.import_module("airflow_sagemaker")
    snippet.dag.tasks[0].check_interval = 0
    run_task(snippet)


def dagster_cloud_run(url: str) -> None:
    redirect_cloud_run(url)
    dg, snippet = importlib.import_module("dagster"), importlib.import_module("dagster_cloud_run")
    dg.Definitions.validate_loadable(snippet.defs)
    assert dg.materialize([snippet.transcripts], partition_key=DAY).success


def prefect_cloud_run(url: str) -> None:
    redirect_cloud_run(url)
    snippet = importlib.import_module("prefect_cloud_run")
    snippet.run.retry_delay_seconds = 0
    assert snippet.transcribe(DAY) == f"gs://PROJECT-voxbatch-out/days/{DAY}"


if __name__ == "__main__":
    name, url = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "orchestrators"))
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"AIRFLOW_HOME": home, "DAGSTER_HOME": home, "PREFECT_HOME": home, "DO_NOT_TRACK": "1"}
        os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "120"
        globals()[name](url)
