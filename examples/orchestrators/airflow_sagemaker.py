"""Airflow, with apache-airflow-providers-amazon: transcribe each day's manifest on SageMaker."""

import pendulum
from airflow.providers.amazon.aws.operators.sagemaker import SageMakerProcessingOperator
from airflow.sdk import DAG

with DAG("transcribe", schedule="@daily", start_date=pendulum.datetime(2026, 1, 1), catchup=False) as dag:
    source, out = "s3://IN/days/{{ ds }}.jsonl", "s3://OUT/days/{{ ds }}"
    cluster = {"InstanceCount": 2, "InstanceType": "ml.g6.2xlarge", "VolumeSizeInGB": 100}
    SageMakerProcessingOperator(
        task_id="transcribe",
        config={
            "ProcessingJobName": "voxbatch-{{ ds }}",
            "ProcessingResources": {"ClusterConfig": cluster},
            "AppSpecification": {
                "ImageUri": "123456789012.dkr.ecr.REGION.amazonaws.com/voxbatch:TAG",
                "ContainerArguments": ["run", source, "-o", out, "--exit-zero"],
            },
            "RoleArn": "arn:aws:iam::123456789012:role/voxbatch-run",
            "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        },
        retries=2,  # a retry continues where the job before it stopped
    )
