"""Tests for jobs/aws-batch and its page: the template makes a queue for the job, and the documented commands fit it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest
from cloudformation import Stack, load
from conftest import ROOT, understood
from fake_aws import DEPLOY_FLAGS, GLOBAL, PSEUDO, FakeAws, lower, pairs, parameters
from sagemaker_deployment import ACCOUNT, REGION, jobs_stack

TEMPLATE = ROOT / "jobs" / "aws-batch" / "template.yaml"
PARAMETERS = {"InBucket": "calls-in", "OutBucket": "calls-out", "Vpc": "vpc-1", "Subnets": "subnet-1,subnet-2"}
IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/voxbatch-batch:1"
MOST_ATTEMPTS = 10
"""Retries of a job of AWS Batch: https://docs.aws.amazon.com/batch/latest/APIReference/API_RetryStrategy.html"""


def documented(folder: Path) -> list[list[str]]:
    """Return the arguments with which the shell calls `aws` for the commands of the page, those inside of others
    included."""
    page = (ROOT / "docs" / "kubernetes-slurm-batch.md").read_text()
    section = page.partition("## AWS Batch\n")[2].partition("\n## ")[0]
    prose, *blocks = re.split(r"```(?:bash)?\n", section)
    prose += "".join(blocks[1::2])
    script = [*blocks[::2], *re.findall(r"`(aws [^`]+)`", prose)]
    for name in ("aws", "docker"):
        (folder / name).write_text(f"#!/bin/sh\nprintf '%s\\n' $# \"$@\" >>{folder}/{name}.log\necho x\n")
        (folder / name).chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-euc", "\n".join(script)], env=env, check=True, capture_output=True)
    words = iter((folder / "aws.log").read_text().splitlines())
    return [[next(words) for _ in range(int(count))] for count in words]


def test_documented_commands_are_valid(tmp_path: Path) -> None:
    """AWS's models of the services have each command of the page, with its flags and values. The stack gets a value of
    each parameter without a default, and no unknown one.
    """
    fake = FakeAws("http://127.0.0.1:1")
    submitted: list[dict[str, Any]] = []
    for service, command, *rest in documented(tmp_path):
        if service == "s3" or command == "get-login-password":
            continue  # of the CLI alone
        flags = dict(pairs(rest))
        if (service, command) == ("cloudformation", "deploy"):
            assert flags.keys() <= DEPLOY_FLAGS
            names = {words.partition("=")[0] for words in flags["--parameter-overrides"]}
            known = load(TEMPLATE)["Parameters"]
            assert {name for name in known if "Default" not in known[name]} <= names <= known.keys()
            continue
        own = {flag: longhand(flag, words) for flag, words in flags.items() if flag not in GLOBAL}
        request = parameters(fake.operation(service, command), own)
        if command == "submit-job":
            submitted.append(request)
    single, array = submitted
    count = {"name": "VOXBATCH_TASK_COUNT", "value": str(array["arrayProperties"]["size"])}
    assert count in array["containerOverrides"]["environment"]
    job = made()["Job"]
    for request in (single, array):
        assert request["parameters"].keys() == job["Parameters"].keys()
        assert (request["jobQueue"], request["jobDefinition"]) == ("voxbatch-batch", job["JobDefinitionName"])
    understood(*(word.replace("Ref::", "") for word in job["ContainerProperties"]["Command"]))


def longhand(flag: str, words: list[str]) -> list[str]:
    """Return a value in the CLI's shorthand as JSON: "source=a,out=b" → {"source": "a", "out": "b"}."""
    if not re.fullmatch(r"\w+=[^{}]*", words[0]):
        return words
    members: dict[str, Any] = dict(member.split("=", 1) for member in words[0].split(","))
    if flag == "--filters":
        members["Values"] = [members["Values"]]
        return [json.dumps([members])]
    return [json.dumps(members)]


def made(**parameters: str) -> dict[str, Any]:
    """Return the properties of the template's resources, by their logical names."""
    stack = Stack(load(TEMPLATE), {**PARAMETERS, **parameters}, PSEUDO)
    return {name: properties for name, (_, properties) in stack.resources.items()}


def test_a_child_has_as_many_attempts_as_batch_allows() -> None:
    """Each reclaimed machine costs an attempt, and so does an item that kills its container. Exit code 2 ends it."""
    strategy = made()["Job"]["RetryStrategy"]
    assert strategy["Attempts"] == MOST_ATTEMPTS
    assert strategy["EvaluateOnExit"][0] == {"OnExitCode": "2", "Action": "EXIT"}
    assert strategy["EvaluateOnExit"][-1] == {"OnExitCode": "*", "Action": "RETRY"}


def test_nothing_has_a_name_of_sagemaker() -> None:
    """Both stacks can be in one account: no resource of one has the name of a resource of the other."""
    own = set(names(made(InBucket="a-in", OutBucket="a-out")))
    others = set(names({name: properties for name, (_, properties) in jobs_stack().resources.items()}))
    assert own
    assert not own & others


def names(resources: dict[str, Any]) -> list[str]:
    return [
        value
        for properties in resources.values()
        for key, value in properties.items()
        if key.endswith("Name") and isinstance(value, str) and key != "PolicyName"
    ]


def test_buckets_and_images_are_hardened() -> None:
    """A tag of the repository never changes, a key encrypts both buckets, whatever comes without TLS is refused, and
    jobs only read the bucket of models."""
    stack = made(KmsKey="arn:aws:kms:eu-central-1:123456789012:key/1", ModelsBucket="calls-models")
    assert stack["Repository"]["ImageTagMutability"] == "IMMUTABLE"
    for bucket, policy in (("Recordings", "RecordingsPolicy"), ("Transcripts", "TranscriptsPolicy")):
        [rule] = stack[bucket]["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "aws:kms"
        [denial] = stack[policy]["PolicyDocument"]["Statement"]
        assert (denial["Effect"], denial["Action"]) == ("Deny", "s3:*")
        assert denial["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        assert {place.partition(":::")[2].rstrip("/*") for place in denial["Resource"]} == {stack[bucket]["BucketName"]}
    statements = {each["Sid"]: each for each in stack["JobRole"]["Policies"][0]["PolicyDocument"]["Statement"]}
    assert statements["ReadModels"]["Action"] == ["s3:GetObject", "s3:ListBucket"]
    assert statements["UseKeyOfBuckets"]["Resource"].endswith(":key/1")
    assert not {"BucketEncryption"} & made()["Recordings"].keys()


def test_alerts_are_made_for_an_address() -> None:
    """A stack without AlertEmail makes nothing that tells anybody. A failed array sends one message for all."""
    alerts = {"Alerts", "AlertsPolicy", "FailedJobsRule", "FailedItems", "FailedItemsAlarm"}
    assert made(AlertEmail="ops@example.org").keys() - made().keys() == alerts
    detail = made(AlertEmail="ops@example.org")["FailedJobsRule"]["EventPattern"]["detail"]
    assert (detail["status"], detail["arrayProperties"]) == (["FAILED"], {"index": [{"exists": False}]})
    assert made()["Job"]["ContainerProperties"]["LogConfiguration"]["Options"] == {"awslogs-group": "voxbatch-batch"}


@pytest.mark.slow
def test_cfn_lint_finds_no_fault() -> None:
    """cfn-lint, which has AWS's schema of each resource, finds no fault in the template."""
    program = Path(sys.executable).with_name("cfn-lint")
    if not program.exists():
        pytest.skip("cfn-lint is not installed")
    done = subprocess.run([program, TEMPLATE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("capacity", ["SPOT", "EC2"])
def test_stack_has_a_queue_that_takes_the_job(moto: str, capacity: str) -> None:
    """In an account with only its default network, the template makes roles and a network, and Batch makes machines, a
    queue and a job of its other resources.

    moto's CloudFormation makes no compute environment without a name and a service role, and its list of machines ends
    before the G6. So the test sends these resources as requests, with other machines. It also lists resources whose
    condition is false, without their names.
    """
    login = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": REGION, "endpoint_url": moto}
    ec2, iam, batch, stacks = (boto3.client(name, **login) for name in ("ec2", "iam", "batch", "cloudformation"))
    [vpc] = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    subnets = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
    network = {"Vpc": vpc["VpcId"], "Subnets": ",".join(subnet["SubnetId"] for subnet in subnets)}
    values = {**PARAMETERS, **network, "Capacity": capacity, "InstanceTypes": "g4dn.xlarge,g4dn.2xlarge"}
    template = load(TEMPLATE)
    template["Resources"] = {
        name: resource for name, resource in template["Resources"].items() if "::Batch::" not in resource["Type"]
    }
    stacks.create_stack(
        StackName="voxbatch-batch", TemplateBody=json.dumps(template), Capabilities=["CAPABILITY_NAMED_IAM"],
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()],
    )  # fmt: skip
    [stack] = stacks.describe_stacks(StackName="voxbatch-batch")["Stacks"]
    assert {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]} == {"Image": IMAGE}
    own = stacks.describe_stack_resources(StackName="voxbatch-batch")["StackResources"]
    ids = {
        resource["LogicalResourceId"]: resource["PhysicalResourceId"]
        for resource in own
        if "PhysicalResourceId" in resource
    }
    profile = iam.get_instance_profile(InstanceProfileName="voxbatch-batch-host")["InstanceProfile"]
    assert [role["RoleName"] for role in profile["Roles"]] == ["voxbatch-batch-host"]

    environment, queue, job = (lower(made(**values)[name]) for name in ("Environment", "Queue", "Job"))
    for name in ("replaceComputeEnvironment", "updatePolicy"):  # of CloudFormation alone
        del environment[name]
    machines = environment["computeResources"]
    del machines["updateToLatestImageVersion"]  # of an update alone
    machines |= {"instanceRole": profile["Arn"], "securityGroupIds": [ids["Firewall"]]}
    machines["launchTemplate"]["launchTemplateId"] = ids["Machine"]
    role = {"serviceRole": f"arn:aws:iam::{ACCOUNT}:role/voxbatch-batch-host"}  # AWS has a role of its own
    batch.create_compute_environment(computeEnvironmentName="machines", **environment, **role)
    queue["computeEnvironmentOrder"][0]["computeEnvironment"] = "machines"
    batch.create_job_queue(**queue)
    batch.register_job_definition(**job | {"parameters": made()["Job"]["Parameters"]})
    [environment] = batch.describe_compute_environments()["computeEnvironments"]
    assert (environment["computeResources"]["type"], environment["status"]) == (capacity, "VALID")
    [definition] = batch.describe_job_definitions()["jobDefinitions"]
    assert (definition["containerProperties"]["image"], definition["retryStrategy"]["attempts"]) == (IMAGE, 10)
    assert batch.submit_job(jobName="calls", jobQueue="voxbatch-batch", jobDefinition="voxbatch-batch")["jobId"]
