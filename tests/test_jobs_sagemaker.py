"""Tests for the job files of SageMaker. Scripts work and can be run twice; the platform accepts the descriptions; the
nightly run takes only what is new.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import servers
from botocore.exceptions import ClientError
from cloudformation import Stack, load
from conftest import ROOT, ManifestWriter, Recorder, Voxbatch, environment
from fake_aws import FakeAws, validated
from test_tasks import FAST, container

SAGEMAKER = ROOT / "jobs" / "sagemaker"


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


render = module(SAGEMAKER / "render.py")
submit = module(SAGEMAKER / "submit.py")

# ── SageMaker: deploy.sh and teardown.sh ──────────────────────────────────────────────────────────────────────────────

ACCOUNT, REGION = "123456789012", "eu-central-1"
IN, OUT = f"voxbatch-in-{ACCOUNT}-{REGION}", f"voxbatch-out-{ACCOUNT}-{REGION}"
LOOKS = ("get-", "describe-", "list-", "head-")
EMAIL = "speech@example.org"


class Deployment:
    """The scripts deploy.sh and teardown.sh, run against a server with the real `aws` program or the fake one."""

    def __init__(self, endpoint: str, path: str, fake: FakeAws | None):
        self.endpoint, self.path, self.fake = endpoint, path, fake

    def run(self, script: str, *arguments: str, code: int = 0, **settings: str) -> list[str]:
        """Run a script, check its exit code, and return the lines of its output."""
        env = environment(
            PATH=f"{self.path}:{os.environ['PATH']}" if self.path else os.environ["PATH"],
            AWS_ENDPOINT_URL=self.endpoint, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", AWS_REGION=REGION,
            AWS_CONFIG_FILE="/dev/null", AWS_SHARED_CREDENTIALS_FILE="/dev/null", SETTLE_SECONDS="0",
            **{"ALERT_EMAIL": EMAIL, **settings},
        )  # fmt: skip
        command = [str(SAGEMAKER / script), *arguments]
        done = subprocess.run(command, env=env, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=240)
        assert done.returncode == code, done.stdout + done.stderr
        return (done.stdout + done.stderr).splitlines()

    def client(self, service: str) -> Any:
        import boto3

        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": REGION}
        return boto3.client(service, endpoint_url=self.endpoint, **keys)

    def push(self) -> str:
        """Put an image into the repository, as docker does, and return its digest."""
        manifest = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json"}
        digest = f"sha256:{os.urandom(32).hex()}"
        body = json.dumps({**manifest, "config": {"digest": digest, "size": 1, "mediaType": "x"}, "layers": []})
        name = {"repositoryName": "voxbatch", "imageTag": "latest", "imageDigest": digest}
        put = self.client("ecr").put_image(**name, imageManifest=body)
        return str(put["image"]["imageId"]["imageDigest"])


def did(lines: list[str]) -> list[str]:
    """Return the lines that report a resource as made, changed or removed."""
    return [line for line in lines if line.startswith(("made", "changed", "gone"))]


@pytest.fixture
def moto() -> Iterator[str]:
    """Start a separate moto server, so that the shared server of the test suite keeps no resources of a deployment."""
    with servers.amazon_server() as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.fixture
def deployment(moto: str, tmp_path: Path) -> Iterator[Deployment]:
    fake = FakeAws(moto)
    with fake.on_path(tmp_path) as folder:
        yield Deployment(moto, folder, fake)


def check_deployed(there: Deployment, digest: str) -> None:
    """Assert that the resources on the server match what the scripts describe, with the image of this digest."""
    sagemaker = there.client("sagemaker").describe_pipeline(PipelineName="voxbatch")
    definition = json.loads(sagemaker["PipelineDefinition"])
    assert {each["Name"]: each.get("DefaultValue") for each in definition["Parameters"]} == {
        "Bucket": IN, "Key": None, "Output": f"s3://{OUT}", "OutputName": None, "Update": "0", "InstanceCount": 1,
        "InstanceType": "ml.g6.2xlarge", "DiskGB": 100, "MaxSeconds": 86400,
        "Image": f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/voxbatch@{digest}",
    }  # fmt: skip
    events = there.client("events")
    assert json.loads(events.describe_rule(Name="voxbatch-uploads")["EventPattern"])["detail"]["bucket"]["name"] == [IN]
    target = events.list_targets_by_rule(Rule="voxbatch-uploads")["Targets"][0]
    assert target["SageMakerPipelineParameters"]["PipelineParameterList"][1] == {
        "Name": "Key",
        "Value": "$.detail.object.key",
    }
    roles = {role["RoleName"] for role in there.client("iam").list_roles()["Roles"]}
    assert roles == {"voxbatch-run", "voxbatch-pipeline", "voxbatch-start"}


@pytest.mark.slow
def test_deploy_creates_all_and_a_second_run_changes_nothing(deployment: Deployment) -> None:
    """deploy.sh creates all resources; a second run changes nothing, and a changed setting changes only its own
    resources. It makes nothing before it knows who is told of failures, and stops until there is an image. What others
    put on the bucket (notifications, policies) stays, and teardown.sh leaves nothing but data.
    """
    there, fake = deployment, deployment.fake
    assert fake is not None
    there.client("s3").create_bucket(Bucket=IN, CreateBucketConfiguration={"LocationConstraint": REGION})
    topic = there.client("sns").create_topic(Name="other")["TopicArn"]
    other = {"TopicConfigurations": [{"Id": "other", "TopicArn": topic, "Events": ["s3:ObjectRemoved:*"]}]}
    there.client("s3").put_bucket_notification_configuration(Bucket=IN, NotificationConfiguration=other)

    theirs = {"Sid": "Theirs", "Effect": "Deny", "Principal": "*", "Action": "s3:DeleteBucket",
              "Resource": f"arn:aws:s3:::{IN}"}  # fmt: skip
    policy = json.dumps({"Version": "2012-10-17", "Statement": theirs})
    there.client("s3").put_bucket_policy(Bucket=IN, Policy=policy)

    refused = there.run("deploy.sh", code=1, ALERT_EMAIL="")
    assert refused[-1].endswith("set ALERT_EMAIL to a mail address, or ALERTS=no")
    assert [command for command in fake.log if not command[1].startswith(LOOKS)] == []
    early = there.run("deploy.sh", code=1)
    assert did(early) == ["made     repository voxbatch"]
    assert early[-1] == "jobs/sagemaker: there is no image yet"
    assert "docker push" in early[-2]
    digest = there.push()
    first = there.run("deploy.sh")
    assert f"kept     bucket {IN}" in first
    check_deployed(there, digest)
    for bucket in (IN, OUT):
        block = there.client("s3").get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
        assert set(block.values()) == {True}
        found = json.loads(there.client("s3").get_bucket_policy(Bucket=bucket)["Policy"])["Statement"]
        assert found[-1]["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        assert found[:-1] == ([theirs] if bucket == IN else [])
    kept = there.client("s3").get_bucket_notification_configuration(Bucket=IN)["TopicConfigurations"]
    assert [each["Id"] for each in kept] == ["other"]

    fake.log.clear()
    assert did(there.run("deploy.sh")) == []
    assert [command for command in fake.log if not command[1].startswith(LOOKS)] == []

    wide = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
    there.client("iam").put_role_policy(RoleName="voxbatch-start", PolicyName="voxbatch", PolicyDocument=wide)
    night: dict[str, Any] = {"SCHEDULE": "cron(0 2 * * ? *)", "INSTANCE_COUNT": "4", "VOXBATCH_PROFILE": "small-24b"}
    assert did(there.run("deploy.sh", **night)) == [
        "changed  policy of role voxbatch-start",
        "changed  pipeline voxbatch",
        "changed  rule voxbatch-nightly",
        "changed  target of rule voxbatch-nightly",
    ]
    assert did(there.run("deploy.sh", **night, ALERT_EMAIL="")) == []
    there.push()
    assert did(there.run("deploy.sh", ALERTS="no", ALERT_EMAIL="")) == [
        "changed  pipeline voxbatch",
        "gone     rule voxbatch-nightly",
        "gone     rule voxbatch-failed-runs",
        "gone     rule voxbatch-failed-jobs",
        "gone     alarm voxbatch-dead",
        "gone     topic voxbatch-alerts",
    ]

    with pytest.raises(ClientError, match="Forbidden"):  # this connection has no TLS
        there.client("s3").put_object(Bucket=OUT, Key="calls/transcripts.jsonl", Body=b"{}")
    there.client("s3").delete_bucket_policy(Bucket=OUT)
    there.client("s3").put_object(Bucket=OUT, Key="calls/transcripts.jsonl", Body=b"{}")
    assert len(did(there.run("teardown.sh"))) == 6
    assert did(there.run("teardown.sh")) == []
    last = there.run("teardown.sh", "--all")
    assert did(last) == ["gone     repository voxbatch and its images", f"gone     bucket {IN}"]
    assert f"kept     bucket {OUT}: it is not empty; aws s3 rb --force s3://{OUT} deletes all that is in it" in last


@pytest.mark.slow
def test_real_aws_cli_accepts_every_command(moto: str, tmp_path: Path) -> None:
    """The real AWS CLI accepts every command of both scripts and reports no difference at the second run. The exception
    is the one setting that the test server accepts but does not report.
    """
    real = shutil.which("aws")
    if real is None or not os.environ.get("VOXBATCH_TEST_AWS_CLI"):
        pytest.skip("takes the AWS CLI, some minutes, and VOXBATCH_TEST_AWS_CLI=1")
    # Version 1 of the AWS CLI ignores AWS_ENDPOINT_URL for queues, which have an address of their own.
    (tmp_path / "aws").write_text(f'#!/bin/sh\nexec {real} --endpoint-url {moto} "$@"\n')
    (tmp_path / "aws").chmod(0o755)
    there = Deployment(moto, str(tmp_path), None)
    night: dict[str, Any] = {"SCHEDULE": "rate(1 day)"}
    there.run("deploy.sh", code=1)
    digest = there.push()
    there.run("deploy.sh", **night)
    check_deployed(there, digest)
    untold = f"changed  events of bucket {IN}: now go to EventBridge"
    assert [line for line in did(there.run("deploy.sh", **night)) if line != untold] == []
    assert len(did(there.run("teardown.sh", "--all"))) == 14
    assert did(there.run("teardown.sh", "--all")) == []


@pytest.mark.slow
def test_deploy_stops_at_a_missing_permission(deployment: Deployment) -> None:
    """deploy.sh stops at once at a missing permission, with the command and the reason. Deployed again with the
    permission, it continues.
    """
    assert deployment.fake is not None
    deployment.client("ecr").create_repository(repositoryName="voxbatch")
    deployment.push()
    denials = {"ecr:describe-repositories": 0, "iam:create-role": 7, "sagemaker:list-pipelines": 8}
    for denied, made in denials.items():
        deployment.fake.deny = denied
        lines = deployment.run("deploy.sh", code=1)
        assert len(did(lines)) == made
        command = denied.replace(":", " ")
        assert lines[-1].startswith(f"jobs/sagemaker: no permission for aws {command}: An error occurred")
        assert lines[-1].endswith("(docs/sagemaker.md lists the permissions that deploying needs)")
    deployment.fake.deny = ""
    assert did(deployment.run("deploy.sh"))[0] == "made     pipeline voxbatch"


SECRET = f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:hub-AbCdEf"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1"
ALL_SETTINGS: dict[str, Any] = {
    "KMS_KEY": KEY, "VOLUME_KMS_KEY": KEY, "INSTANCE_TYPE": "ml.c6i.2xlarge", "SUBNETS": "subnet-1,subnet-2",
    "SECURITY_GROUPS": "sg-1", "TAGS": "team=speech,cost=42", "HUB_TOKEN_SECRET": SECRET,
    "SCHEDULE": "cron(0 2 * * ? *)", "VOXBATCH_FORMATS": "srt,vtt",
}  # fmt: skip


@pytest.mark.slow
def test_settings_of_an_account_reach_all_resources(deployment: Deployment) -> None:
    """Keys, subnets, tags and the hub token's secret are in the pipeline, the roles and the buckets. Failed and stopped
    runs, jobs of `submit`, and dead events reach the topic of the alerts. A second run changes nothing.
    """
    assert deployment.fake is not None
    deployment.run("deploy.sh", code=1)
    digest = deployment.push()
    deployment.run("deploy.sh", **ALL_SETTINGS)
    assert did(deployment.run("deploy.sh", **ALL_SETTINGS)) == []
    pipeline = deployment.client("sagemaker").describe_pipeline(PipelineName="voxbatch")["PipelineDefinition"]
    step = json.loads(pipeline)["Steps"][0]["Arguments"]
    assert step["NetworkConfig"] == {"VpcConfig": {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]}}
    assert step["ProcessingResources"]["ClusterConfig"]["VolumeKmsKeyId"] == KEY
    tags = {"team": "speech", "cost": "42"}
    assert {each["Key"]: each["Value"] for each in step["Tags"]} == tags
    found = deployment.client("iam").list_role_tags(RoleName="voxbatch-run")["Tags"]
    assert {each["Key"]: each["Value"] for each in found} == tags
    assert list(deployment.fake.tags.values()) == [tags] * 11
    policy = deployment.client("iam").get_role_policy(RoleName="voxbatch-run", PolicyName="voxbatch")["PolicyDocument"]
    mine = {each["Sid"]: each for each in policy["Statement"]}
    assert mine["ReadHubToken"]["Resource"] == SECRET
    assert {"UseKeyOfBuckets", "UseKeyOfDisks", "JoinSubnets", "SeeSubnets"} <= mine.keys()
    rules = deployment.client("s3").get_bucket_encryption(Bucket=OUT)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rules[0]["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": KEY}
    topic = f"arn:aws:sns:{REGION}:{ACCOUNT}:voxbatch-alerts"
    listed = deployment.client("sns").list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    assert [(each["Protocol"], each["Endpoint"]) for each in listed] == [("email", EMAIL)]
    [alarm] = deployment.client("cloudwatch").describe_alarms(AlarmNames=["voxbatch-dead"])["MetricAlarms"]
    assert (alarm["AlarmActions"], alarm["Dimensions"]) == ([topic], [{"Name": "QueueName", "Value": "voxbatch-dead"}])
    for rule in ("voxbatch-failed-runs", "voxbatch-failed-jobs"):
        [target] = deployment.client("events").list_targets_by_rule(Rule=rule)["Targets"]
        assert target["Arn"] == topic

    # template.yaml describes the same resources, policies statement by statement, in both directions.
    assert deployed(deployment) == described(load(SAGEMAKER / "template.yaml"), **template_parameters(digest))


@pytest.mark.slow
def test_hub_token_comes_from_the_secret(moto: str, tmp_path: Path) -> None:
    """voxbatch receives the hub token from Secrets Manager. The job's description has the secret's ARN and no token. A
    job that may not read it ends before voxbatch starts.
    """
    secrets = Deployment(moto, "", None).client("secretsmanager")
    arn = secrets.create_secret(Name="hub", SecretString="hf_token of ours")["ARN"]
    pipeline = rendered("pipeline.json", HUB_TOKEN_SECRET=arn)
    assert "hf_token" not in json.dumps(pipeline)
    step = filled(pipeline["Steps"][0]["Arguments"], {each["Name"]: "x" for each in pipeline["Parameters"]})
    assert all(len(each) <= 256 for each in step["AppSpecification"]["ContainerEntrypoint"])
    (tmp_path / "voxbatch").write_text('#!/bin/sh\nprintf "%s\\n" "$HF_TOKEN" "$$" "$@"\n')
    (tmp_path / "voxbatch").chmod(0o755)
    (tmp_path / "python3").symlink_to(sys.executable)
    keys = {"AWS_ENDPOINT_URL": moto, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    env = environment(**step["Environment"], **keys, PATH=f"{tmp_path}:{os.environ['PATH']}")
    command = step["AppSpecification"]["ContainerEntrypoint"]
    process = subprocess.Popen(command, env=env, stdout=-1, text=True)
    said = process.communicate()[0].splitlines()
    assert said == ["hf_token of ours", str(process.pid), "run", "s3://x/x", "-o", "x/x"]
    secrets.delete_secret(SecretId=arn, ForceDeleteWithoutRecovery=True)
    failed = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "ResourceNotFoundException" in failed.stderr


@pytest.mark.slow
def test_invalid_settings_are_refused(deployment: Deployment) -> None:
    """Invalid settings are refused with the reason, before any resource is made."""
    for settings, message in (
        ({"OUT_BUCKET": IN}, f"IN_BUCKET and OUT_BUCKET are both {IN}: outputs are .jsonl too, and would start runs"),
        ({"UPLOADS": "uploads"}, "UPLOADS is 'uploads'; it must end in / and hold no *"),
        ({"NAME": "Vox_batch"}, "NAME is 'Vox_batch'; small letters, digits and single - are allowed"),
        (
            {"SCHEDULE": "rate(1 day)", "NIGHTLY": "uploads/n.jsonl"},
            "(uploads/n.jsonl) and UPLOADS (uploads/) lie one in",
        ),
        ({"SCHEDULE": "rate(1 day)", "UPLOADS": "nightly/in/"}, "(nightly/) and UPLOADS (nightly/in/) lie one in"),
        ({"NIGHTLY": "nightly"}, "NIGHTLY is 'nightly'; it must be a folder, with / at its end, or a manifest"),
        ({"VOXBATCH_MODEL": "s3://" + "m" * 300}, "VOXBATCH_MODEL has 305 characters; SageMaker takes 256"),
        ({"INSTANCE_COUNT": "many"}, "INSTANCE_COUNT is 'many'; it must be a whole number from 1"),
        ({"SUBNETS": "subnet-1"}, "SUBNETS ('subnet-1') and SECURITY_GROUPS ('') belong together"),
        ({"HUB_TOKEN_SECRET": "hf_x"}, "it must be a secret's ARN, and never the token itself"),
        ({"KMS_KEY": "alias/x"}, "KMS_KEY is 'alias/x'; it must be a key's ARN"),
        ({"VOLUME_KMS_KEY": f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1"}, "an ml.g6.2xlarge has disks of its own"),
        ({"TAGS": "team"}, "TAGS is 'team'; it must be NAME=VALUE,NAME=VALUE"),
    ):
        lines = deployment.run("deploy.sh", code=1, **settings)
        assert (did(lines), message in "\n".join(lines)) == ([], True), lines
    assert "takes nothing, or --all" in deployment.run("teardown.sh", "--everything", code=1)[0]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("iam make-role", "Invalid choice: make-role"),
        ("iam get-role --role x", "Unknown options: --role"),
        ("iam get-role", 'Missing required parameter in input: "RoleName"'),
        ("sqs create-queue --queue-name q --attributes {", "Error parsing parameter '--attributes'"),
        (
            'ecr describe-images --repository-name r --image-ids [{"tag":"x"}]',
            'Unknown parameter in imageIds[0]: "tag"',
        ),
    ],
)
def test_fake_aws_rejects_invalid_commands(command: str, message: str) -> None:
    """The fake `aws` program rejects commands that the real program rejects."""
    code, _, said = FakeAws("http://127.0.0.1:1").answer(command.split())
    assert (code, message in said) == (252, True)


# ── SageMaker: descriptions ───────────────────────────────────────────────────────────────────────────────────────────

SETTINGS = {
    "NAME": "voxbatch", "REGION": REGION, "ACCOUNT": ACCOUNT, "PARTITION": "aws", "IN_BUCKET": "in",
    "OUT_BUCKET": "out", "RUN_ROLE": "voxbatch-run", "START_ROLE": "voxbatch-start", "DEAD_QUEUE": "voxbatch-dead",
    "UPLOADS": "uploads/", "UPLOADS_RULE": "voxbatch-uploads", "NIGHTLY_RULE": "voxbatch-nightly",
    "NIGHTLY": "nightly/", "NIGHTLY_OUT": "nightly", "NIGHTLY_TYPE": "ml.g6.12xlarge", "MAX_SECONDS": "86400",
    "INSTANCE_TYPE": "ml.g6.2xlarge", "INSTANCE_COUNT": "4", "DISK_GB": "100", "IMAGE": "i:latest",
    "ALERT_TOPIC": "voxbatch-alerts", "DEAD_ALARM": "voxbatch-dead", "FAILED_RUNS_RULE": "voxbatch-failed-runs",
    "FAILED_JOBS_RULE": "voxbatch-failed-jobs", "BUCKET": "in", **dict.fromkeys(
        ("TAGS", "SUBNETS", "SECURITY_GROUPS", "KMS_KEY", "VOLUME_KMS_KEY", "HUB_TOKEN_SECRET"), ""
    ),
}  # fmt: skip


def rendered(name: str, **more: str) -> Any:
    return render.render((SAGEMAKER / name).read_text(), {**SETTINGS, **more})


WITHOUT_RESOURCES = {
    "ecr:GetAuthorizationToken", "cloudwatch:PutMetricData", "ec2:DescribeDhcpOptions", "ec2:DescribeSubnets",
    "ec2:DescribeNetworkInterfaces", "ec2:DescribeSecurityGroups", "ec2:DescribeVpcs",
}  # fmt: skip
"""Actions that support no resource, according to AWS's table of actions."""
OPTIONAL = {
    "SUBNETS": "subnet-1,subnet-2", "SECURITY_GROUPS": "sg-1", "TAGS": "team=speech", "KMS_KEY": KEY,
    "VOLUME_KMS_KEY": KEY, "HUB_TOKEN_SECRET": SECRET,
}  # fmt: skip


@pytest.mark.parametrize("path", sorted((SAGEMAKER / "policies").glob("*.json")), ids=lambda path: path.stem)
def test_policies_name_actions_and_resources(path: Path) -> None:
    """Each statement allows named actions on named resources, but for the one that denies buckets without TLS. "*" is
    used only for actions that support no resource, and the condition of each trust policy limits the service to this
    account. Without the optional settings, no statement has an empty resource.
    """
    few, policy = rendered(f"policies/{path.name}"), rendered(f"policies/{path.name}", **OPTIONAL)
    assert policy["Version"] == "2012-10-17"
    assert all(few["Statement"].count(each) <= 1 and "If" not in each for each in policy["Statement"])
    assert all(each.get("Resource", "x") for each in few["Statement"])
    for statement in policy["Statement"]:
        assert set(statement) <= {"Sid", "Effect", "Action", "Resource", "Principal", "Condition"}
        assert ("Principal" in statement) == (path.stem.endswith("-trust") or path.stem in {"dead", "bucket", "alerts"})
        if statement["Effect"] == "Deny":
            assert (path.stem, statement["Action"]) == ("bucket", "s3:*")
            continue
        actions = {statement["Action"]} if isinstance(statement["Action"], str) else set(statement["Action"])
        assert all(re.fullmatch(r"[a-z0-9]+:[A-Z][A-Za-z]+", action) for action in actions)
        if "Principal" in statement:
            assert set(statement["Principal"]) == {"Service"}
            assert statement["Condition"]
        given = statement.get("Resource", [])
        resources = [given] if isinstance(given, str) else given
        assert ("*" in resources) <= (actions <= WITHOUT_RESOURCES)
        assert all(each == "*" or each.startswith("arn:aws:") for each in resources)


EXCEPTIONS = {
    "Step.SERVICE_FAULT", "Step.THROTTLING", "SageMaker.JOB_INTERNAL_ERROR", "SageMaker.CAPACITY_ERROR",
    "SageMaker.RESOURCE_LIMIT",
}  # fmt: skip
"""Types that AWS's SDK for pipelines sends. AWS's guide has SageMaker.JOB_CAPACITY_ERROR for the fourth."""


def test_retry_policies_have_the_form_of_aws_own_client() -> None:
    """Each retry policy has a list of types that AWS's SDK knows, and attempts or a time within their limits."""
    [step] = rendered("pipeline.json")["Steps"]
    for policy in step["RetryPolicies"]:
        assert isinstance(policy["ExceptionType"], list)
        assert set(policy["ExceptionType"]) <= EXCEPTIONS
        assert ("MaxAttempts" in policy) != ("ExpireAfterMin" in policy)
        assert (policy.get("MaxAttempts", 1) <= 20, policy.get("ExpireAfterMin", 1) <= 14_400) == (True, True)
    assert {each for policy in step["RetryPolicies"] for each in policy["ExceptionType"]} == EXCEPTIONS


def test_pipeline_step_is_a_valid_request() -> None:
    """The step of the pipeline, with its parameters filled in, is a valid CreateProcessingJob request."""
    pipeline = rendered("pipeline.json", VOXBATCH_FORMATS="srt,vtt", VOXBATCH_LANGUAGE="", **OPTIONAL)
    given = {each["Name"]: each.get("DefaultValue", "x") for each in pipeline["Parameters"]}
    assert {type(given[name]) for name in ("InstanceCount", "DiskGB", "MaxSeconds")} == {int}
    step = filled(pipeline["Steps"][0]["Arguments"], given)
    validated("sagemaker", "CreateProcessingJobRequest", {"ProcessingJobName": "x", **step})
    assert step["Environment"]["VOXBATCH_FORMATS"] == "srt,vtt"
    assert "VOXBATCH_LANGUAGE" not in step["Environment"]
    assert all(len(each) <= 256 for each in step["AppSpecification"]["ContainerEntrypoint"])


def filled(node: Any, given: Mapping[str, Any]) -> Any:
    """Return `node` with each {"Get": "Parameters.X"} replaced; other computed values are not supported here."""
    if isinstance(node, dict) and set(node) == {"Get"}:
        return given[node["Get"].removeprefix("Parameters.")]
    if isinstance(node, dict):
        assert not any(key.startswith("Std:") for key in node)
        return {key: filled(value, given) for key, value in node.items()}
    return [filled(each, given) for each in node] if isinstance(node, list) else node


@pytest.mark.parametrize(
    ("key", "name", "out"),
    [
        ("uploads/a b's.jsonl", "uploads/a b's.jsonl", "uploads/a b's"),
        ("uploads/$(id).jsonl.gz", "uploads/$(id).jsonl.gz", "uploads/$(id)"),
        ("nightly/", "nightly", "nightly"),
        ("calls/today.jsonl.gz", "calls/today.jsonl.gz", "calls/today"),
    ],
)
def test_pipeline_passes_source_and_out_unchanged(tmp_path: Path, key: str, name: str, out: str) -> None:
    """The command of the pipeline passes SOURCE and OUT/NAME unchanged, whatever characters the key has. voxbatch
    replaces the shell, so that it receives the signals.
    """
    program = tmp_path / "voxbatch"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$$" "$@"\n')
    program.chmod(0o755)
    pipeline = rendered("pipeline.json")
    step = filled(pipeline["Steps"][0]["Arguments"], {each["Name"]: "x" for each in pipeline["Parameters"]})
    env = {"SOURCE_BUCKET": "in", "SOURCE_KEY": key, "OUTPUT_IN": "s3://out", "OUTPUT_NAME": name}
    assert env.keys() < step["Environment"].keys()
    env["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    process = subprocess.Popen(step["AppSpecification"]["ContainerEntrypoint"], env=env, stdout=-1, text=True)
    said = process.communicate()[0].splitlines()
    assert said == [str(process.pid), "run", f"s3://in/{key}", "-o", f"s3://out/{out}"]


def test_only_uploaded_manifests_start_a_run() -> None:
    """Only uploaded manifests start a run, and EventBridge accepts the targets."""
    pattern = rendered("rules/uploads.json")["detail"]["object"]["key"]
    keys = {
        "uploads/a.jsonl": True, "uploads/2026/11/a.jsonl.gz": True, "uploads/a.wav": False, "a.jsonl": False,
        "nightly/a.jsonl": False, "uploads/a.jsonl.tmp": False,
    }  # fmt: skip
    assert {key: any(fnmatchcase(key, each["wildcard"]) for each in pattern) for key in keys} == keys
    for rule in ("failed-runs", "failed-jobs"):
        validated("events", "PutTargetsRequest", {"Rule": rule, "Targets": rendered(f"rules/{rule}-target.json")})
    names = {each["Name"]: "DefaultValue" in each for each in rendered("pipeline.json")["Parameters"]}
    for rule in ("uploads", "nightly"):
        targets = rendered(f"rules/{rule}-target.json")
        validated("events", "PutTargetsRequest", {"Rule": rule, "Targets": targets})
        given = {each["Name"] for each in targets[0]["SageMakerPipelineParameters"]["PipelineParameterList"]}
        assert {name for name, has_default in names.items() if not has_default} <= given <= names.keys()


# ── SageMaker: template.yaml ──────────────────────────────────────────────────────────────────────────────────────────

Resources = dict[tuple[str, str], Any]
"""The parts of a deployment: the properties that count by kind and name."""


def deployed(there: Deployment) -> Resources:
    """Return what deploy.sh has made on the server."""
    assert there.fake is not None
    found: Resources = {}
    iam, sqs, events, s3 = (there.client(name) for name in ("iam", "sqs", "events", "s3"))
    for role in iam.list_roles()["Roles"]:
        name = role["RoleName"]
        [policy] = iam.list_role_policies(RoleName=name)["PolicyNames"]
        document = iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]
        found["role", name] = (role["AssumeRolePolicyDocument"], policy, document)
    for bucket in (each["Name"] for each in s3.list_buckets()["Buckets"]):
        rule = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"][0]
        found["bucket", bucket] = (
            s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"],
            json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"]),
            rule["ApplyServerSideEncryptionByDefault"] | {"key": rule["BucketKeyEnabled"]},
            there.fake.has_events(bucket),
        )
    for url in sqs.list_queues()["QueueUrls"]:
        has = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        found["queue", url.rpartition("/")[2]] = (int(has["MessageRetentionPeriod"]), json.loads(has["Policy"]))
    for rule in events.list_rules()["Rules"]:
        starts = json.loads(rule["EventPattern"]) if "EventPattern" in rule else rule["ScheduleExpression"]
        found["rule", rule["Name"]] = (starts, events.list_targets_by_rule(Rule=rule["Name"])["Targets"])
    sns, sagemaker = there.client("sns"), there.client("sagemaker")
    for arn in (each["TopicArn"] for each in sns.list_topics()["Topics"]):
        listed = sns.list_subscriptions_by_topic(TopicArn=arn)["Subscriptions"]
        policy = json.loads(sns.get_topic_attributes(TopicArn=arn)["Attributes"]["Policy"])
        found["topic", arn.rpartition(":")[2]] = ([(each["Protocol"], each["Endpoint"]) for each in listed], policy)
    for alarm in there.client("cloudwatch").describe_alarms()["MetricAlarms"]:
        found["alarm", alarm["AlarmName"]] = {name: alarm[name] for name in ALARM}
    for each in sagemaker.list_pipelines()["PipelineSummaries"]:
        pipeline = sagemaker.describe_pipeline(PipelineName=each["PipelineName"])
        found["pipeline", each["PipelineName"]] = (json.loads(pipeline["PipelineDefinition"]), pipeline["RoleArn"])
    for each in there.client("ecr").describe_repositories()["repositories"]:
        found["repository", each["repositoryName"]] = each["imageScanningConfiguration"]
    return found


ALARM = (
    "AlarmActions", "AlarmDescription", "Namespace", "MetricName", "Dimensions", "Statistic", "Period",
    "EvaluationPeriods", "Threshold", "ComparisonOperator", "TreatMissingData",
)  # fmt: skip


def described(template: Any, **given: Any) -> Resources:
    """Return what a stack of the template has, in the same form."""
    account = {"AWS::AccountId": ACCOUNT, "AWS::Region": REGION, "AWS::Partition": "aws"}
    stack = Stack(template, given, {**account, "AWS::URLSuffix": "amazonaws.com"}).resources.values()
    of_type: dict[str, list[Any]] = {}
    for kind, properties in stack:
        of_type.setdefault(kind.split("::", 1)[1], []).append(properties)
    found: Resources = {}
    for each in of_type.get("IAM::Role", []):
        [policy] = each["Policies"]
        trust = each["AssumeRolePolicyDocument"]
        found["role", each["RoleName"]] = (trust, policy["PolicyName"], policy["PolicyDocument"])
    policies = {each["Bucket"]: each["PolicyDocument"] for each in of_type.get("S3::BucketPolicy", [])}
    for each in of_type.get("S3::Bucket", []):
        [rule] = each["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        notified = each.get("NotificationConfiguration", {}).get("EventBridgeConfiguration", {})
        found["bucket", each["BucketName"]] = (
            each["PublicAccessBlockConfiguration"],
            policies.get(each["BucketName"]),
            rule["ServerSideEncryptionByDefault"] | {"key": rule["BucketKeyEnabled"]},
            bool(notified),
        )
    policies = {name: each["PolicyDocument"] for each in of_type.get("SQS::QueuePolicy", []) for name in each["Queues"]}
    for each in of_type.get("SQS::Queue", []):
        found["queue", each["QueueName"]] = (each["MessageRetentionPeriod"], policies.get(each["QueueName"]))
    for each in of_type.get("Events::Rule", []):
        assert each["State"] == "ENABLED"
        found["rule", each["Name"]] = (each.get("EventPattern") or each["ScheduleExpression"], each["Targets"])
    policies = {name: each["PolicyDocument"] for each in of_type.get("SNS::TopicPolicy", []) for name in each["Topics"]}
    for each in of_type.get("SNS::Topic", []):
        told = [(one["Protocol"], one["Endpoint"]) for one in each["Subscription"]]
        found["topic", each["TopicName"]] = (told, policies.get(each["TopicName"]))
    for each in of_type.get("CloudWatch::Alarm", []):
        found["alarm", each["AlarmName"]] = {name: each[name] for name in ALARM}
    for each in of_type.get("SageMaker::Pipeline", []):
        definition = json.loads(each["PipelineDefinition"]["PipelineDefinitionBody"])
        found["pipeline", each["PipelineName"]] = (definition, each["RoleArn"])
    for each in of_type.get("ECR::Repository", []):
        scanning = {key[0].lower() + key[1:]: value for key, value in each["ImageScanningConfiguration"].items()}
        found["repository", each["RepositoryName"]] = scanning
    return found


def test_cfn_lint_finds_no_fault() -> None:
    """cfn-lint, which has AWS's schema of each resource, finds no fault in the template."""
    program = Path(sys.executable).with_name("cfn-lint")
    if not program.exists():
        pytest.skip("cfn-lint is not installed")
    done = subprocess.run([program, SAGEMAKER / "template.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def template_parameters(digest: str) -> dict[str, Any]:
    """Return the parameters of a stack that has ALL_SETTINGS."""
    return {
        "ImageDigest": digest, "AlertEmail": EMAIL, "KmsKey": KEY, "VolumeKmsKey": KEY, "Subnets": "subnet-1,subnet-2",
        "InstanceType": "ml.c6i.2xlarge", "NightlyType": "ml.c6i.2xlarge", "SecurityGroups": "sg-1",
        "HubTokenSecret": SECRET, "Schedule": ALL_SETTINGS["SCHEDULE"], "Options": '"VOXBATCH_FORMATS": "srt,vtt",',
        "Tags": '{"Key": "team", "Value": "speech"}, {"Key": "cost", "Value": "42"}',
    }  # fmt: skip


def test_stack_without_an_image_starts_nothing() -> None:
    """A stack without an image has no pipeline and no rules that start it; AlertEmail=no makes no topic.

    The comparison with deploy.sh would notice each resource that the template lacks.
    """
    template = load(SAGEMAKER / "template.yaml")
    all_of_it = described(template, **template_parameters("sha256:" + "0" * 64))
    first = described(template, **{**template_parameters(""), "AlertEmail": "no"})
    gone = {("pipeline", "voxbatch"), ("alarm", "voxbatch-dead"), ("topic", "voxbatch-alerts")}
    rules = {("rule", f"voxbatch-{name}") for name in ("uploads", "nightly", "failed-runs", "failed-jobs")}
    assert all_of_it.keys() - first.keys() == gone | rules
    for name in template["Resources"]:
        fewer = {key: each for key, each in template["Resources"].items() if key != name}
        found: Resources = {}
        with contextlib.suppress(KeyError):  # another resource names it
            found = described({**template, "Resources": fewer}, **template_parameters("sha256:" + "0" * 64))
        assert found != all_of_it


# ── SageMaker: submit.py ──────────────────────────────────────────────────────────────────────────────────────────────

ARN = f"arn:aws:iam::{ACCOUNT}:role/voxbatch-run"
ASKED = ("s3://in/calls.jsonl", "-o", "s3://out/calls", "--image", "i:1", "--role", ARN)


def requested(*arguments: str) -> dict[str, Any]:
    """Return the request of submit.py for these arguments, checked against the service model."""
    body = submit.request(submit.options(arguments))
    validated("sagemaker", "CreateProcessingJobRequest", body)
    return dict(body)


def test_submit_sends_valid_requests() -> None:
    """Each way to divide the work is a valid CreateProcessingJob request."""
    body = requested(*ASKED, "--hosts", "4", "--", "--profile", "small-24b")
    said = body["AppSpecification"]["ContainerArguments"]
    assert said == ["run", "s3://in/calls.jsonl", "-o", "s3://out/calls", "--exit-zero", "--profile", "small-24b"]
    assert body["ProcessingResources"]["ClusterConfig"]["InstanceCount"] == 4
    assert re.fullmatch(r"voxbatch-calls-\d{8}-\d{6}", body["ProcessingJobName"])
    body = requested("s3://in/rec/", *ASKED[1:], "--by-key", "--name", "n")
    assert body["AppSpecification"] == {
        "ImageUri": "i:1",
        "ContainerEntrypoint": ["sh", "/opt/ml/processing/input/code/entry.sh"],
    }
    spread = [each["S3Input"]["S3DataDistributionType"] for each in body["ProcessingInputs"]]
    assert spread == ["ShardedByS3Key", "FullyReplicated"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("calls.jsonl", *ASKED[1:]), "calls.jsonl is no address such as s3://bucket/key"),
        ((*ASKED, "--hosts", "0"), "--hosts is 0; SageMaker takes 1 to 100"),
        ((*ASKED, "--", "x" * 257), "has 257 characters; SageMaker takes 256 in an argument"),
    ],
)
def test_submit_refuses_what_sagemaker_refuses(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """submit.py refuses what SageMaker would refuse."""
    with pytest.raises(SystemExit) as caught:
        submit.request(submit.options(arguments))
    assert message in capsys.readouterr().err + str(caught.value)


@pytest.mark.slow
def test_submit_creates_the_job_and_uploads_the_script(
    moto: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """submit.py creates the job and uploads the script that its hosts run."""
    for name, value in {"ENDPOINT_URL": moto, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    there = Deployment(moto, "", None)
    there.client("s3").create_bucket(Bucket="out", CreateBucketConfiguration={"LocationConstraint": REGION})
    submit.main(["s3://in/rec/", *ASKED[1:], "--by-key", "--name", "n", "--region", REGION])
    job = there.client("sagemaker").describe_processing_job(ProcessingJobName="n")
    assert job["ProcessingJobArn"] in capsys.readouterr().out
    script = there.client("s3").get_object(Bucket="out", Key="calls/code/entry.sh")["Body"].read()
    assert script == (SAGEMAKER / "entry.sh").read_bytes()


# ── SageMaker: entry.sh ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Return a PATH on which `voxbatch` is the version of this checkout."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "voxbatch").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m voxbatch "$@"\n')
    (folder / "voxbatch").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def entry(base: Path, path: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run entry.sh with the SageMaker files below `base`."""
    env = environment(SAGEMAKER_BASE_DIR=str(base), PATH=path)
    return subprocess.run([SAGEMAKER / "entry.sh", *options], env=env, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_hosts_of_the_pipeline_give_the_bytes_of_one_process(
    moto: str, tmp_path: Path, manifest: ManifestWriter, voxbatch: Voxbatch, program: str
) -> None:
    """Three hosts that run the pipeline's job produce the bytes of one process in the bucket. A second run of the same
    event changes nothing.
    """
    path = manifest(*[0.5 + i / 10 for i in range(7)], None, text="one two", lang="en")
    assert voxbatch("run", path, "-o", "alone", *FAST).returncode == 3
    names = ("transcripts.jsonl", *(f"srt/r{i}.srt" for i in range(7)))
    alone = {name: (tmp_path / "alone" / name).read_bytes() for name in names}
    client = Deployment(moto, "", None).client("s3")
    for bucket in ("calls-in", "calls-out"):
        client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
    for file in (path, *tmp_path.glob("*.wav")):
        client.upload_file(str(file), "calls-in", f"uploads/{file.name}")
    pipeline = rendered("pipeline.json", IN_BUCKET="calls-in", OUT_BUCKET="calls-out")
    given = {each["Name"]: each.get("DefaultValue", "uploads/m.jsonl") for each in pipeline["Parameters"]}
    step = filled(pipeline["Steps"][0]["Arguments"], given)
    keys = {"AWS_ENDPOINT_URL": moto, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "PATH": program}
    hosts = ["algo-1", "algo-2", "algo-3"]
    bases = [container(tmp_path / host, host, hosts, ProcessingJobName="pipelines-x") for host in hosts]
    command = [*step["AppSpecification"]["ContainerEntrypoint"], *FAST]
    for _ in range(2):
        environments = [environment(**step["Environment"], **keys, SAGEMAKER_BASE_DIR=base) for base in bases]
        jobs = [subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=-1) for env in environments]
        said = [job.communicate(timeout=120)[1] for job in jobs]
        assert [job.returncode for job in jobs] == [0, 0, 0], said
        found = {name: client.get_object(Bucket="calls-out", Key=f"uploads/m/{name}")["Body"].read() for name in names}
        name = names[0]  # only its `audio_filepath` depends on where the recordings are
        found[name] = found[name].replace(b'"s3://calls-in/uploads/', f'"{tmp_path}/'.encode())
        assert found == alone


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="takes root and setpriv")
@pytest.mark.parametrize("owner", [10001, 0])
def test_user_of_the_image_needs_no_folder_of_the_host(moto: str, tmp_path: Path, program: str, owner: int) -> None:
    """If the container's user cannot write SageMaker's folder, the job ends with the same exit code, and the reason is
    in its log alone. Otherwise it is also the ExitMessage.
    """
    base = tmp_path / "host"
    container(base, "algo-1", ["algo-1"])
    os.chown(base, owner, 0)
    base.chmod(0o755)
    pipeline = rendered("pipeline.json")
    given = {each["Name"]: "missing.jsonl" for each in pipeline["Parameters"]} | {"Update": "0", "Output": "s3://out"}
    step = filled(pipeline["Steps"][0]["Arguments"], given)
    keys = {"AWS_ENDPOINT_URL": moto, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "PATH": program}
    limited = ["setpriv", "--bounding-set=-dac_override"]  # root without its right to write everywhere
    env = environment(**step["Environment"], **keys, SAGEMAKER_BASE_DIR=str(base))
    command = [*limited, *step["AppSpecification"]["ContainerEntrypoint"]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd="/", timeout=120)
    assert done.returncode == 1, done.stderr
    assert "s3://missing.jsonl/missing.jsonl" in json.loads(done.stderr.splitlines()[-1])["text"]
    assert (base / "output" / "message").exists() == (owner == 0)


# ── SageMaker: nights ─────────────────────────────────────────────────────────────────────────────────────────────────


class Nights:
    """The nightly run: the job that the nightly rule starts, as processes in front of two buckets."""

    def __init__(self, endpoint: str, tmp_path: Path, path: str):
        self.folder, self.path, self.count = tmp_path, path, 0
        self.there = Deployment(endpoint, "", None)
        self.s3 = self.there.client("s3")
        for bucket in ("in", "out"):
            self.s3.create_bucket(Bucket=f"calls-{bucket}", CreateBucketConfiguration={"LocationConstraint": REGION})

    def upload(self, name: str, path: Path) -> None:
        self.s3.upload_file(str(path), "calls-in", f"nightly/{name}")

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start the container of one execution, with the parameters that the nightly rule gives."""
        buckets = {"IN_BUCKET": "calls-in", "OUT_BUCKET": "calls-out"}
        pipeline, [target] = rendered("pipeline.json", **buckets), rendered("rules/nightly-target.json", **buckets)
        given = {each["Name"]: each.get("DefaultValue") for each in pipeline["Parameters"]}
        said = target["SageMakerPipelineParameters"]["PipelineParameterList"]
        given |= {each["Name"]: each["Value"].replace("$.time", f"night {self.count}") for each in said}
        step = filled(pipeline["Steps"][0]["Arguments"], given)
        hosts = [f"algo-{number + 1}" for number in range(int(given["InstanceCount"]))]
        assert hosts == ["algo-1"]
        self.count += 1
        base = container(self.folder / f"execution-{self.count}", hosts[0], hosts)
        keys = {"AWS_ENDPOINT_URL": self.there.endpoint, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        env = environment(**step["Environment"], **keys, PATH=self.path, SAGEMAKER_BASE_DIR=base)
        command = [*step["AppSpecification"]["ContainerEntrypoint"], *FAST, *options]
        return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=-1, text=True)

    def run(self, *options: str) -> str:
        """Do one night and return its log. It succeeds."""
        process = self.start(*options)
        said = process.communicate(timeout=120)[1]
        assert process.returncode == 0, said
        return said

    def parts(self) -> int:
        found = self.s3.list_objects_v2(Bucket="calls-out", Prefix="nightly/parts/").get("Contents", [])
        return sum("/part-" in each["Key"] for each in found)

    def lines(self) -> dict[str, bytes]:
        """Return the line of each transcript by id. No id comes twice."""
        body = self.s3.get_object(Bucket="calls-out", Key="nightly/transcripts.jsonl")["Body"].read()
        found = [(json.loads(line)["id"], line) for line in body.splitlines()]
        assert len(dict(found)) == len(found)
        return dict(found)


def num_new(said: str) -> int:
    """Return the number of items that one night has transcribed."""
    events = [json.loads(line) for line in said.splitlines()]
    return sum(int(event["done"]) for event in events if event["message"] == "run_finished")


@pytest.mark.slow
def test_a_night_takes_only_what_is_new(moto: str, tmp_path: Path, recording: Recorder, program: str) -> None:
    """Each night transcribes what no night before has finished. The second night is killed in its work, and a recording
    arrives meanwhile; the third is started twice. Nothing is lost or done twice, a recording that was replaced is done
    again, and removed ones keep their transcripts. A night without recordings succeeds and changes nothing.
    """
    nights = Nights(moto, tmp_path, program)
    assert "holds no recordings; it is empty; nothing to do" in nights.run()
    for name in "abc":
        nights.upload(f"{name}.wav", recording(f"{name}.wav", 1.1))
    assert num_new(nights.run()) == 3
    first = nights.lines()
    assert set(first) == {"a.wav", "b.wav", "c.wav"}

    for name in "defghi":
        nights.upload(f"{name}.wav", recording(f"{name}.wav", 1.6))
    nights.upload("b.wav", recording("other.wav", 2.6))
    nights.s3.delete_object(Bucket="calls-in", Key="nightly/c.wav")
    slow = ("--part-items", "1", "--engine-option", "concurrency=1", "--engine-option", "delay_s=1")
    killed, before = nights.start(*slow), nights.parts()
    limit = time.monotonic() + 60
    while nights.parts() < before + 3:
        assert killed.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.05)
    nights.upload("late.wav", recording("late.wav", 1.1))
    killed.kill()
    killed.communicate()
    committed = nights.parts()

    twice = [nights.start() for _ in range(2)]
    said = [each.communicate(timeout=120)[1] for each in twice]
    assert 0 in [each.returncode for each in twice], said
    third = nights.lines()
    assert set(third) == {*first, *(f"{name}.wav" for name in "defghi"), "late.wav"}
    assert {name: third[name] for name in ("a.wav", "c.wav")} == {name: first[name] for name in ("a.wav", "c.wav")}
    assert json.loads(third["b.wav"])["audio_duration"] == 2.6
    assert committed >= 3

    assert num_new(nights.run()) == 0
    for name in third:
        nights.s3.delete_object(Bucket="calls-in", Key=f"nightly/{name}")
    assert "nothing to do" in nights.run()
    assert nights.lines() == third


INPUTS = [
    {
        "InputName": "recordings",
        "S3Input": {"LocalPath": "/opt/ml/processing/input/recordings", "S3DataDistributionType": "ShardedByS3Key"},
    }
]


@pytest.mark.slow
def test_hosts_with_own_files_write_to_own_folders(tmp_path: Path, recording: Recorder, program: str) -> None:
    """With files of its own, each host transcribes them into its own folder. A host without files does nothing, and a
    failed item does not fail the job.
    """
    hosts = {"algo-1": ("a.wav", "b.wav"), "algo-2": ("c.wav",), "algo-3": ()}
    for host, names in hosts.items():
        base = tmp_path / host
        container(base, host, list(hosts), ProcessingInputs=INPUTS)
        (base / "processing" / "input" / "recordings").mkdir(parents=True)
        for name in names:
            recording(name, 0.5, base / "processing" / "input" / "recordings")
    (tmp_path / "algo-2" / "processing" / "input" / "recordings" / "bad.wav").write_bytes(b"no audio")
    for host, names in hosts.items():
        done = entry(tmp_path / host, program, *FAST)
        assert done.returncode == 0, done.stderr
        out = tmp_path / host / "processing" / "output" / host
        if names:
            summary = json.loads((out / "summary.json").read_text())
            assert (summary["done"], summary["failed"]) == (len(names), int(host == "algo-2"))
        else:
            assert "algo-3 was given no files: fewer objects than hosts" in done.stderr
            assert list(out.iterdir()) == []


@pytest.mark.slow
def test_host_that_cannot_start_writes_the_exit_message(tmp_path: Path, program: str) -> None:
    """A host that cannot start exits with 2 and writes the reason as the job's ExitMessage; voxbatch's own exit codes
    are passed on.
    """
    base = tmp_path / "host"
    assert "resourceconfig.json is not there" in entry(base, program).stderr
    container(base, "algo-1", ["algo-1"])
    message = base / "output" / "message"
    for reason in ("input/recordings is not there: the job needs an input with that LocalPath",):
        assert entry(base, program).returncode == 2
        assert reason in message.read_text()
    (base / "processing" / "input" / "recordings").mkdir(parents=True)
    (base / "processing" / "input" / "recordings" / "a.wav").write_bytes(b"x")
    done = entry(base, program, "--engine", "x")
    assert (done.returncode, message.read_text()[:21]) == (2, "engine 'x' is unknown")


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may write everywhere")
def test_host_without_write_permission_reports_it(tmp_path: Path) -> None:
    """If the user of the image may not write to the host's folders, entry.sh gives that as the reason."""
    base = tmp_path / "host"
    container(base, "algo-1", ["algo-1"])
    (base / "processing" / "input" / "recordings").mkdir(parents=True)
    for folder in (*base.parents, base):
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o755)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    script = tmp_path / "entry.sh"
    script.write_bytes((SAGEMAKER / "entry.sh").read_bytes())
    env = {"PATH": "/usr/bin:/bin", "SAGEMAKER_BASE_DIR": str(base)}
    done = subprocess.run([*nobody, "sh", script], env=env, capture_output=True, text=True, cwd="/")
    assert done.returncode == 2
    assert "to use the host's folders the image must run as root; s3:// needs none" in done.stderr
