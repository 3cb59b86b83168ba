"""Tests for jobs/sagemaker/endpoint.

The scripts run against the fake `aws`, which keeps the stack. test_jobs_sagemaker.py checks the template against AWS's
schemas; here, its numbers are checked against voxbatch's own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from cloudformation import Stack, load
from conftest import ROOT
from fake_aws import PSEUDO, FakeAws, pairs, parameters, validated
from sagemaker_deployment import ACCOUNT, DIGEST, EMAIL, KEY, REGION, SAGEMAKER, Deployment, did

from voxbatch.cli import cli
from voxbatch.engines.gpu_specs import GPU_SPECS
from voxbatch.vllm.engine import serving_properties
from voxbatch.vllm.engine.memory import UNCOUNTED_BYTES, Footprint, step_bytes

ENDPOINT = SAGEMAKER / "endpoint"
BUCKET = f"voxbatch-models-{ACCOUNT}-{REGION}"
PREFIX = "mistralai/Voxtral-Mini-3B-2507/"
TOPIC = f"arn:aws:sns:{REGION}:{ACCOUNT}:answers"


@pytest.fixture
def deployment(moto: str, tmp_path: Path) -> Iterator[Deployment]:
    fake = FakeAws(moto)
    with fake.on_path(tmp_path) as folder:
        yield Deployment(moto, folder, fake)


def built(there: Deployment, variables: dict[str, str]) -> None:
    """Do what the build does: push the image, or bring the weights."""
    if variables["STEP"] == "image":
        there.push()
    else:
        key = f"{variables['MODEL']}/consolidated.safetensors"
        there.client("s3").put_object(Bucket=BUCKET, Key=key, Body=b"x")


@pytest.mark.slow
def test_one_command_brings_all_and_a_second_run_changes_nothing(deployment: Deployment, tmp_path: Path) -> None:
    """From an empty account, deploy.sh brings the image by the jobs' deploy.sh, the weights by a build, and makes the
    endpoint. A second run changes nothing; another serving.properties makes a new model. An endpoint stays real-time.
    The image stays while the endpoint uses it, and teardown.sh leaves nothing but data.
    """
    there, fake = deployment, deployment.fake
    fake.on_build = partial(built, there)
    lines = there.run("endpoint/deploy.sh")
    assert did(lines) == [
        "changed  stack voxbatch", "changed  stack voxbatch", "changed  serving.properties",
        "changed  stack voxbatch-endpoint",
    ]  # fmt: skip
    made = fake.stacks["voxbatch-endpoint"].stack.resources
    there.changes()
    lines = there.run("endpoint/deploy.sh", ALERT_EMAIL="")
    assert (did(lines), there.changes()[0][:2]) == ([], ["cloudformation", "deploy"])

    other = tmp_path / "other.properties"
    other.write_text((ENDPOINT / "serving.properties").read_text().replace("batch_size=16", "batch_size=4"))
    [refused] = there.run("endpoint/deploy.sh", code=1, MODE="async")
    assert refused.endswith("an endpoint stays what it is: run teardown.sh first, or set MODE=realtime")
    lines = there.run("endpoint/deploy.sh", SERVING_PROPERTIES=str(other), TAGS="team=speech,cost=42")
    assert did(lines) == ["changed  serving.properties", "changed  stack voxbatch-endpoint"]
    changed = fake.stacks["voxbatch-endpoint"]
    assert changed.tags == {"team": "speech", "cost": "42"}
    assert environment_of(changed.stack.resources) != environment_of(made)
    assert changed.given["Concurrency"] == "4"

    there.changes()
    lines = there.run("endpoint/teardown.sh", "--dry-run")
    assert {"plan     remove stack voxbatch-endpoint", "plan     remove serving.properties"} <= set(lines)
    assert there.changes() == []
    lines = there.run("teardown.sh", "--with-data")
    assert "kept     repository voxbatch: the endpoint uses it" in lines
    assert f"kept     bucket voxbatch-models-{ACCOUNT}-{REGION}: the endpoint uses it" in lines
    assert did(there.run("endpoint/teardown.sh")) == ["gone     stack voxbatch-endpoint", "gone     serving.properties"]
    assert did(there.run("endpoint/teardown.sh")) == []
    assert fake.stacks == {}


def environment_of(resources: dict[str, Any]) -> dict[str, str]:
    """Return the environment of the container."""
    found: dict[str, str] = resources["Model"][1]["PrimaryContainer"]["Environment"]
    return found


@pytest.mark.slow
def test_invalid_settings_are_refused(deployment: Deployment, tmp_path: Path) -> None:
    """Invalid settings are refused with the reason, before any resource of the endpoint is made."""
    deployment.fake.on_build = partial(built, deployment)
    deployment.run("deploy.sh", VERIFY="no", MODEL=PREFIX.rstrip("/"))
    (tmp_path / "a").write_text("option.model_id=s3://b/m/\n")
    (tmp_path / "b").write_text("option.model_id = /opt/ml/model\noption.max_rolling_batch_size=0\n")
    for settings, message in (
        ({"MODE": "both"}, "Parameter Mode failed to satisfy constraint: it must be realtime or async"),
        ({"MAX_INSTANCES": "0"}, "Parameter MaxInstances failed to satisfy constraint"),
        ({"MODEL_PREFIX": "m/"}, f"there are no weights (*.safetensors) in s3://{BUCKET}/m/: bring them, or leave"),
        ({"SUCCESS_TOPIC": TOPIC}, "SUCCESS_TOPIC, ERROR_TOPIC: only MODE=async has notifications"),
        (
            {"ERROR_TOPIC": "answers", "MODE": "async"},
            "Parameter ErrorTopic failed to satisfy constraint: it must be a",
        ),
        ({"FALLBACK_TYPES": "a,b,c"}, "an endpoint takes up to two of them"),
        ({"SERVING_PROPERTIES": "none"}, "SERVING_PROPERTIES is 'none'; there is no such file"),
        ({"SERVING_PROPERTIES": str(tmp_path / "a")}, "has no line option.model_id=/opt/ml/model"),
        ({"SERVING_PROPERTIES": str(tmp_path / "b")}, "has no line option.max_rolling_batch_size=N, from 1"),
        ({"ALERT_EMAIL": ""}, "nobody would be told of failures: set ALERT_EMAIL to a mail address, or ALERTS=no"),
        ({"VOLUME_KMS_KEY": KEY}, "an ml.g6.2xlarge has disks of its own"),
    ):
        lines = deployment.run("endpoint/deploy.sh", code=1, **settings)
        assert message in "\n".join(lines), lines
    assert deployment.fake.stacks.keys() == {"voxbatch"}
    assert "takes --dry-run (show what" in deployment.run("endpoint/teardown.sh", "--everything", code=1)[0]


# ── the stack ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def stack(**given: str) -> Stack:
    """Return the stack with these parameters."""
    needed = {
        "ImageDigest": DIGEST, "Bucket": BUCKET, "ModelPrefix": PREFIX, "Properties": "0" * 64,
        "Concurrency": "16", "AlertEmail": EMAIL,
    }  # fmt: skip
    return Stack(load(ENDPOINT / "template.yaml"), {**needed, **given}, PSEUDO)


ALL = {"Subnets": "subnet-1,subnet-2", "SecurityGroups": "sg-1", "KmsKey": KEY, "VolumeKmsKey": KEY}
ASYNC = {"Mode": "async", "SuccessTopic": TOPIC, "ErrorTopic": TOPIC}


@pytest.mark.parametrize("given", [{}, ALL, ASYNC, {**ASYNC, **ALL}], ids=["realtime", "all", "async", "async-all"])
def test_model_starts_from_its_bucket(given: dict[str, str]) -> None:
    """The model comes from its folder of the bucket, and may take half an hour to start. Each instance of an
    asynchronous endpoint gets as many requests as vLLM runs.
    """
    resources = stack(**given).resources
    if given.get("Mode") == "async":
        client = resources["Configuration"][1]["AsyncInferenceConfig"]["ClientConfig"]
        assert client == {"MaxConcurrentInvocationsPerInstance": "16"}
    [variant] = resources["Configuration"][1]["ProductionVariants"]
    assert variant["ContainerStartupHealthCheckTimeoutInSeconds"] == 1800
    source = resources["Model"][1]["PrimaryContainer"]["ModelDataSource"]["S3DataSource"]
    assert source == {
        "S3Uri": f"s3://{BUCKET}/{PREFIX}", "S3DataType": "S3Prefix", "CompressionType": "None",
    }  # fmt: skip


def test_async_scales_to_zero_and_back() -> None:
    """An asynchronous endpoint may have no instance: the target of its backlog is a batch for each instance, and an
    alarm starts the first one. A real-time endpoint keeps one, because SageMaker scales no other kind to zero.
    """
    realtime, asynchronous = stack().resources, stack(**ASYNC).resources
    assert (realtime["Scaling"][1]["MinCapacity"], asynchronous["Scaling"][1]["MinCapacity"]) == (1, 0)
    tracked = realtime["ScaleByInvocations"][1]["TargetTrackingScalingPolicyConfiguration"]
    assert tracked["PredefinedMetricSpecification"] == {
        "PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"
    }
    tracked = asynchronous["ScaleByBacklog"][1]["TargetTrackingScalingPolicyConfiguration"]
    assert (tracked["CustomizedMetricSpecification"]["MetricName"], tracked["TargetValue"]) == (
        "ApproximateBacklogSizePerInstance",
        "16",
    )
    alarm = asynchronous["WaitingAlarm"][1]
    assert (alarm["MetricName"], alarm["AlarmActions"]) == ("HasBacklogWithoutCapacity", ["voxbatch-from-zero"])
    assert realtime.keys() - asynchronous.keys() == {"ScaleByInvocations", "ErrorsAlarm", "LatencyAlarm"}
    assert not {"ScaleByBacklog", "ScaleFromZero", "WaitingAlarm", "FailuresAlarm", "BacklogAlarm"} & realtime.keys()
    assert not [name for name in stack(AlertEmail="no").resources if name.endswith("Alarm") or name == "Alerts"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fallbacks", "num_pools"), [("", 0), ("ml.g6e.2xlarge", 2), ("ml.g6e.2xlarge,ml.g7.2xlarge", 3)]
)
def test_configuration_is_a_valid_request(fallbacks: str, num_pools: int) -> None:
    """The configuration of the endpoint is a valid CreateEndpointConfig request, also with machines to fall back on."""
    properties = stack(FallbackTypes=fallbacks).resources["Configuration"][1]
    validated("sagemaker", "CreateEndpointConfigInput", {"EndpointConfigName": "x", **properties})
    [variant] = properties["ProductionVariants"]
    pools = variant.get("InstancePools", [])
    assert [pool["Priority"] for pool in pools] == list(range(1, num_pools + 1))
    known = (
        botocore.session.get_session().get_service_model("sagemaker").shape_for("ProductionVariantInstanceType").enum
    )
    assert {each["InstanceType"] for each in pools or [variant]} <= set(known)


def test_idle_gpu_is_told() -> None:
    """An alarm tells of a GPU that is billed and idle: for half an hour, or a day if an instance always runs."""
    seconds = []
    for given in ({}, ASYNC):
        alarm = stack(**given).resources["GpuIdleAlarm"][1]
        assert (alarm["Namespace"], alarm["MetricName"]) == ("/aws/sagemaker/Endpoints", "GPUUtilization")
        assert (alarm["Threshold"], alarm["ComparisonOperator"]) == (20, "LessThanThreshold")
        seconds.append(alarm["Period"] * alarm["EvaluationPeriods"])
    assert seconds == [86_400, 1800]


PUBLISHED = {
    "GPUUtilization", "Invocations", "Invocation5XXErrors", "ModelLatency", "HasBacklogWithoutCapacity",
    "InvocationFailures",
    "ApproximateAgeOfOldestRequest", "ApproximateBacklogSizePerInstance",
}  # fmt: skip
"""Metrics of AWS/SageMaker, and of /aws/sagemaker/Endpoints the first: docs.aws.amazon.com/sagemaker/latest/dg/
monitoring-cloudwatch.html, and async-inference-monitor.html for the last four."""


def test_metrics_are_published() -> None:
    """Alarms and policies use metrics that SageMaker publishes."""
    assert set(re.findall(r"MetricName: (\w+)", (ENDPOINT / "template.yaml").read_text())) == PUBLISHED


NEEDS = {
    "s3:ListBucket", "s3:GetObject", "ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage",
    "ecr:GetDownloadUrlForLayer", "ecr:GetAuthorizationToken",
    "logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams",
    "logs:PutLogEvents", "cloudwatch:PutMetricData",
}  # fmt: skip
"""Actions of AWS's policy for CreateModel, with the weights in S3 (sagemaker/latest/dg/sagemaker-roles.html)."""
ASYNC_NEEDS = {"s3:PutObject", "s3:AbortMultipartUpload"}
VPC_NEEDS = {
    "ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission", "ec2:DescribeDhcpOptions", "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups", "ec2:DescribeSubnets", "ec2:DescribeVpcs",
}  # fmt: skip
WITHOUT_RESOURCES = {"ecr:GetAuthorizationToken", "cloudwatch:PutMetricData"} | {
    each for each in VPC_NEEDS if each.startswith("ec2:Describe")
}


@pytest.mark.parametrize(
    ("given", "needs"),
    [
        ({}, NEEDS),
        ({"Mode": "async"}, NEEDS | ASYNC_NEEDS),
        (ASYNC, NEEDS | ASYNC_NEEDS | {"sns:Publish"}),
        (ALL, NEEDS | VPC_NEEDS | {"kms:Decrypt", "kms:GenerateDataKey", "kms:CreateGrant"}),
    ],
    ids=["realtime", "async", "topics", "all"],
)
def test_role_allows_what_the_endpoint_needs(given: dict[str, str], needs: set[str]) -> None:
    """The role allows exactly the actions that the settings need, on named resources where the action has any."""
    [policy] = stack(**given).resources["Role"][1]["Policies"]
    found = set()
    for statement in policy["PolicyDocument"]["Statement"]:
        actions = {statement["Action"]} if isinstance(statement["Action"], str) else set(statement["Action"])
        assert (statement["Resource"] == "*") <= (actions <= WITHOUT_RESOURCES)
        found |= actions
    assert found == needs


def test_callers_may_only_call() -> None:
    """The policy for callers allows to call this endpoint; with async, to put requests and to get answers."""
    actions = []
    for given in ({}, ASYNC):
        statements = stack(**given).resources["Callers"][1]["PolicyDocument"]["Statement"]
        actions.append([each["Action"] for each in statements])
        assert all(str(each["Resource"]).count("endpoint/") for each in statements)
    assert actions == [
        [["sagemaker:InvokeEndpoint", "sagemaker:InvokeEndpointWithResponseStream"]],
        [["sagemaker:InvokeEndpointAsync"], "s3:PutObject", "s3:GetObject"],
    ]


# ── the container ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_image_serves_at_sagemakers_port() -> None:
    """SageMaker runs the image with the argument "serve", which is a command of its entry point. The variables of the
    template make it listen at port 8080 for every machine, with the file beside the weights.
    """
    assert 'ENTRYPOINT ["/usr/bin/tini", "--", "voxbatch"]' in (ROOT / "Dockerfile").read_text()
    variables = {
        name: value for name, value in environment_of(stack().resources).items() if name.startswith("VOXBATCH_")
    }
    names = {"VOXBATCH_PORT": "port", "VOXBATCH_HOST": "host", "VOXBATCH_SERVING_PROPERTIES": "serving_properties"}
    assert variables.keys() == names.keys()
    options = {each.name: each.envvar for each in cli.commands["serve"].params}
    for variable, name in names.items():
        known = options[name]
        assert variable in ([known] if isinstance(known, str) else known or [])
    assert (variables["VOXBATCH_HOST"], variables["VOXBATCH_PORT"]) == ("0.0.0.0", "8080")


def test_serving_properties_fit_the_machine() -> None:
    """voxbatch reads each key of the file, and an L4 holds 2 recordings of 30 minutes, or 16 of 5, as the file says."""
    read = serving_properties.read(str(ENDPOINT / "serving.properties"))
    assert (read.model, read.without_effect, read.unknown) == ("/opt/ml/model", (), ())
    encoder = {"dim": 1280, "n_layers": 32, "head_dim": 64, "hidden_dim": 5120, "n_heads": 20, "n_kv_heads": 20}
    params = {  # params.json of Voxtral-Mini-3B-2507
        "dim": 3072, "n_layers": 30, "hidden_dim": 8192, "head_dim": 128, "n_heads": 32, "n_kv_heads": 8,
        "vocab_size": 131_072, "multimodal": {"whisper_model_args": {"encoder_args": {**encoder, "sliding_window": 0}}},
    }  # fmt: skip
    gpu = GPU_SPECS["NVIDIA L4"]
    limit = float(read.options["gpu_memory_utilization"]) * gpu.total_bytes
    plan = limit - gpu.reserved_bytes - UNCOUNTED_BYTES - step_bytes(8192)
    assert Footprint(params, int(read.options["max_model_len"])).fitting(plan) == 2
    five_minutes = 10 * 375 + 512
    assert Footprint(params, five_minutes).fitting(plan) >= int(read.options["max_num_seqs"]) == 16


# ── the documentation ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_commands_of_the_page_are_known() -> None:
    """Each `aws` command of docs/serving.md is an operation with these parameters. The page has each setting."""
    page = (ROOT / "docs" / "serving.md").read_text()
    lines = re.findall(r"^\$ (aws (?:[^\n]*\\\n)*[^\n]*)", page, re.MULTILINE)
    fake = FakeAws("")
    known = 0
    for line in lines:
        service, command, *rest = shlex.split(line.replace("\\\n", " "), comments=True)[1:]
        if (service, command) in {("s3", "cp"), ("logs", "tail")}:  # commands of the program, not of the services
            continue
        known += 1
        flags = dict(pairs(rest))
        flags.pop("--query", None)
        parameters(fake.operation(service, command), flags)
    assert known >= 2
    settings = re.findall(r"^: \"\$\{(\w+):=", (ENDPOINT / "settings.sh").read_text(), re.MULTILINE)
    assert [name for name in settings if name not in page] == []
