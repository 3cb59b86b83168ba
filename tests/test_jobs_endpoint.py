"""Tests for jobs/sagemaker/endpoint.

The scripts run against the fake `aws`, which keeps the stack. The resources of the stack are checked against AWS's
service models and schemas, and the numbers against voxbatch's own.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import servers
from cloudformation import Stack, load
from conftest import ROOT
from fake_aws import PSEUDO, FakeAws, pairs, parameters, validated
from test_jobs_sagemaker import ACCOUNT, EMAIL, KEY, LOOKS, REGION, SAGEMAKER, Deployment, did

from voxbatch.cli import cli
from voxbatch.engines.vllm import serving_properties
from voxbatch.engines.vllm.gpu_specs import GPU_SPECS
from voxbatch.engines.vllm.memory import UNCOUNTED_BYTES, Footprint, step_bytes

ENDPOINT = SAGEMAKER / "endpoint"
BUCKET = f"voxbatch-models-{ACCOUNT}-{REGION}"
IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/voxbatch@sha256:{'0' * 64}"
TOPIC = f"arn:aws:sns:{REGION}:{ACCOUNT}:answers"


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with servers.amazon_server() as server:
        fake = FakeAws(f"http://127.0.0.1:{server.port}")
        with fake.on_path(tmp_path) as folder:
            yield Deployment(fake.endpoint, folder, fake)


def ready(there: Deployment) -> None:
    """Deploy until image and weights are missing, and bring both."""
    assert did(there.run("endpoint/deploy.sh", code=1)) == ["made     repository voxbatch"]
    there.push()
    lines = there.run("endpoint/deploy.sh", code=1)
    assert f"made     bucket {BUCKET}" in lines
    assert lines[-1] == "jobs/sagemaker: there are no weights yet"
    assert lines[-2].strip() == f"aws s3 cp --recursive voxtral s3://{BUCKET}/voxtral-mini-3b/"
    there.client("s3").delete_bucket_policy(Bucket=BUCKET)  # this connection has no TLS
    there.client("s3").put_object(Bucket=BUCKET, Key="voxtral-mini-3b/consolidated.safetensors", Body=b"x")


def changes(there: Deployment) -> list[list[str]]:
    """Return the commands since the last call of this function that change something."""
    assert there.fake is not None
    found = [each for each in there.fake.log if not each[1].startswith(LOOKS)]
    there.fake.log.clear()
    return found


@pytest.mark.slow
def test_deploy_creates_all_and_a_second_run_changes_nothing(deployment: Deployment, tmp_path: Path) -> None:
    """deploy.sh stops for the image and the weights, and makes the rest. A second run changes nothing; another
    serving.properties makes a new model. teardown.sh leaves nothing but data, and --all only what is not empty.
    """
    there, fake = deployment, deployment.fake
    assert fake is not None
    ready(there)
    assert "changed  stack voxbatch-endpoint" in there.run("endpoint/deploy.sh")
    made = fake.stacks["voxbatch-endpoint"].stack.resources
    changes(there)
    lines = there.run("endpoint/deploy.sh", ALERT_EMAIL="")
    assert (did(lines), changes(there)[0][:2]) == ([], ["cloudformation", "deploy"])
    assert "kept     stack voxbatch-endpoint" in lines

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

    lines = there.run("endpoint/teardown.sh")
    assert did(lines) == ["gone     stack voxbatch-endpoint", "gone     serving.properties"]
    assert f"kept     bucket {BUCKET} (--all deletes it if it is empty)" in lines
    assert fake.stacks == {}
    lines = there.run("endpoint/teardown.sh", "--all")
    assert did(lines) == ["gone     repository voxbatch and its images"]
    assert f"kept     bucket {BUCKET}: it is not empty" in "\n".join(lines)
    there.client("s3").delete_bucket_policy(Bucket=BUCKET)
    there.client("s3").delete_object(Bucket=BUCKET, Key="voxtral-mini-3b/consolidated.safetensors")
    assert did(there.run("endpoint/teardown.sh", "--all")) == [f"gone     bucket {BUCKET}"]
    assert did(there.run("endpoint/teardown.sh", "--all")) == []
    assert there.client("s3").list_buckets()["Buckets"] == []


def environment_of(resources: dict[str, Any]) -> dict[str, str]:
    """Return the environment of the container."""
    found: dict[str, str] = resources["Model"][1]["PrimaryContainer"]["Environment"]
    return found


@pytest.mark.slow
def test_pipeline_and_endpoint_leave_each_others_image(deployment: Deployment) -> None:
    """The repository stays while the endpoint or the pipeline uses its image, whichever is removed first."""
    there = deployment
    ready(there)
    there.run("endpoint/deploy.sh")
    there.run("deploy.sh")
    assert "kept     repository voxbatch: the endpoint uses it" in there.run("teardown.sh", "--all")
    there.run("deploy.sh")
    assert "kept     repository voxbatch: the pipeline uses it" in there.run("endpoint/teardown.sh", "--all")
    assert "gone     repository voxbatch and its images" in there.run("teardown.sh", "--all")


@pytest.mark.slow
def test_invalid_settings_are_refused(deployment: Deployment, tmp_path: Path) -> None:
    """Invalid settings are refused with the reason, before any resource is made."""
    (tmp_path / "a").write_text("option.model_id=s3://b/m/\n")
    (tmp_path / "b").write_text("option.model_id = /opt/ml/model\noption.max_rolling_batch_size=0\n")
    for settings, message in (
        ({"MODE": "both"}, "MODE is 'both'; it must be realtime or async"),
        ({"MAX_INSTANCES": "0"}, "MAX_INSTANCES is '0'; it must be a whole number from 1"),
        ({"MODEL_PREFIX": "/m/"}, "MODEL_PREFIX is '/m/'; it must end in / and not begin with it"),
        ({"SUCCESS_TOPIC": TOPIC}, "SUCCESS_TOPIC: only MODE=async has notifications"),
        ({"ERROR_TOPIC": "answers", "MODE": "async"}, "ERROR_TOPIC is 'answers'; it must be a topic's ARN"),
        ({"SERVING_PROPERTIES": "none"}, "SERVING_PROPERTIES is 'none'; there is no such file"),
        ({"SERVING_PROPERTIES": str(tmp_path / "a")}, "has no line option.model_id=/opt/ml/model"),
        ({"SERVING_PROPERTIES": str(tmp_path / "b")}, "has no line option.max_rolling_batch_size=N, from 1"),
        ({"ALERT_EMAIL": ""}, "nobody would be told of errors: set ALERT_EMAIL to a mail address, or ALERTS=no"),
        ({"VOLUME_KMS_KEY": KEY}, "an ml.g6.2xlarge has disks of its own"),
    ):
        lines = deployment.run("endpoint/deploy.sh", code=1, **settings)
        assert (did(lines), message in "\n".join(lines)) == ([], True), lines
    assert "takes nothing, or --all" in deployment.run("endpoint/teardown.sh", "--everything", code=1)[0]


# ── the stack ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def stack(**given: str) -> Stack:
    """Return the stack with these parameters."""
    needed = {
        "Image": IMAGE, "Bucket": BUCKET, "ModelPrefix": "voxtral-mini-3b/", "Properties": "0" * 64,
        "Concurrency": "16", "AlertEmail": EMAIL,
    }  # fmt: skip
    return Stack(load(ENDPOINT / "template.yaml"), {**needed, **given}, PSEUDO)


ALL = {"Subnets": "subnet-1,subnet-2", "SecurityGroups": "sg-1", "KmsKey": KEY, "VolumeKmsKey": KEY}
ASYNC = {"Mode": "async", "SuccessTopic": TOPIC, "ErrorTopic": TOPIC}
REQUESTS = {
    "AWS::SageMaker::Model": ("sagemaker", "CreateModelInput", {"ModelName": "m"}),
    "AWS::SageMaker::EndpointConfig": ("sagemaker", "CreateEndpointConfigInput", {"EndpointConfigName": "c"}),
    "AWS::SageMaker::Endpoint": ("sagemaker", "UpdateEndpointInput", {}),
    "AWS::ApplicationAutoScaling::ScalableTarget": ("application-autoscaling", "RegisterScalableTargetRequest", {}),
    "AWS::CloudWatch::Alarm": ("cloudwatch", "PutMetricAlarmInput", {}),
}
"""The request that CloudFormation makes for each kind of resource, with what the template leaves to it."""


def typed(node: Any) -> Any:
    """Return a document with numbers in place of digits, as CloudFormation passes parameters of type Number on."""
    if isinstance(node, dict):
        return {key: value if key == "Environment" else typed(value) for key, value in node.items()}
    if isinstance(node, list):
        return [typed(each) for each in node]
    return int(node) if isinstance(node, str) and node.isdigit() else node


@pytest.mark.parametrize("given", [{}, ALL, ASYNC, {**ASYNC, **ALL}], ids=["realtime", "all", "async", "async-all"])
def test_resources_are_valid_requests(given: dict[str, str]) -> None:
    """Each resource of the stack is a valid request by AWS's service models."""
    resources = stack(**given).resources
    target = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": "x",
        "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
    }
    for kind, properties in resources.values():
        if kind in REQUESTS:
            service, shape, more = REQUESTS[kind]
            validated(service, shape, typed({**properties, **more}))
        elif kind == "AWS::ApplicationAutoScaling::ScalingPolicy":
            request = {**properties, **target}
            assert request.pop("ScalingTargetId") == "Scaling"
            validated("application-autoscaling", "PutScalingPolicyRequest", typed(request))
        else:
            assert kind in {"AWS::IAM::Role", "AWS::IAM::ManagedPolicy", "AWS::SNS::Topic"}
    if given.get("Mode") == "async":
        client = resources["Configuration"][1]["AsyncInferenceConfig"]["ClientConfig"]
        assert client == {"MaxConcurrentInvocationsPerInstance": "16"}
    [variant] = resources["Configuration"][1]["ProductionVariants"]
    assert variant["ContainerStartupHealthCheckTimeoutInSeconds"] == 1800
    source = resources["Model"][1]["PrimaryContainer"]["ModelDataSource"]["S3DataSource"]
    assert source == {
        "S3Uri": f"s3://{BUCKET}/voxtral-mini-3b/", "S3DataType": "S3Prefix", "CompressionType": "None",
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


PUBLISHED = {
    "Invocations", "Invocation5XXErrors", "ModelLatency", "HasBacklogWithoutCapacity", "InvocationFailures",
    "ApproximateAgeOfOldestRequest", "ApproximateBacklogSizePerInstance",
}  # fmt: skip
"""Metrics of AWS/SageMaker: docs.aws.amazon.com/sagemaker/latest/dg/monitoring-cloudwatch.html, and
async-inference-monitor.html for the last four."""


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


def test_cfn_lint_finds_no_fault() -> None:
    """cfn-lint, which has AWS's schema of each resource, finds no fault in the template."""
    program = Path(sys.executable).with_name("cfn-lint")
    if not program.exists():
        pytest.skip("cfn-lint is not installed")
    done = subprocess.run([program, ENDPOINT / "template.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert (ENDPOINT / "template.yaml").stat().st_size <= 51_200  # the limit of a template that is not in a bucket


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
    assert Footprint(params, False, int(read.options["max_model_len"])).fitting(plan) == 2
    five_minutes = 10 * 375 + 512
    assert Footprint(params, False, five_minutes).fitting(plan) >= int(read.options["max_num_seqs"]) == 16


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
