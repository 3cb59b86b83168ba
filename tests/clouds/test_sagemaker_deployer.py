"""Tests of jobs/sagemaker/deployer.json, the policy of who deploys: it allows what the scripts call, and what
CloudFormation calls for each resource of the stack, which are in the resource schemas of AWS that cfn-lint brings.
"""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import pytest
from botocore import xform_name
from conftest import ROOT
from sagemaker_deployment import SAGEMAKER, jobs_stack

POLICY = SAGEMAKER / "deployer.json"
SCRIPTS = ("common.sh", "deploy.sh", "teardown.sh")
COMMAND = re.compile(r"(?:\bcall|\baws|\bfound (?:'[^']*'|\S+)) ([a-z0-9-]+) ([a-z][a-z0-9-]+)")
PREFIXES = {"s3api": "s3", "service-quotas": "servicequotas"}
"""Names of services in actions, where a command has another one."""
SPECIAL = {
    "s3 cp": {"s3:PutObject", "s3:GetObject"},
    "s3api head-bucket": {"s3:ListBucket"},
    "s3api list-objects-v2": {"s3:ListBucket"},
    "s3api get-bucket-notification-configuration": {"s3:GetBucketNotification"},
    "s3api put-bucket-notification-configuration": {"s3:PutBucketNotification"},
    "cloudformation deploy": {"cloudformation:CreateChangeSet", "cloudformation:GetTemplateSummary"},
    "cloudformation wait": {"cloudformation:DescribeStacks"},
}
"""Actions of the commands that are no operation of this name."""
ADVICE = {
    "s3 rb",
    "logs tail",
    "configure get",
    "ecr get-login-password",
    "service-quotas request-service-quota-increase",
}
"""Commands that the scripts only print, or that call nothing."""
SERVICES = {"s3", "s3api", "sts", "cloudformation", "ecr", "logs", "codebuild", "sagemaker", "iam", "service-quotas"}
"""Services of the commands: others are words of messages."""
UNUSED = re.compile(
    r"s3:(DeleteObject|PutObjectAcl|REST.*)|iam:.*(User|Group)Policy|iam:.*Boundary|logs:(Create|Delete)?LogDelivery"
)
"""Actions of the schemas that only settings need which the template does not have: reports of inventories, policies of
users, limits of roles."""
RESOURCES = {
    "AWS::CloudWatch::Alarm": "arn:aws:cloudwatch:r:1:alarm:{AlarmName}",
    "AWS::ECR::Repository": "arn:aws:ecr:r:1:repository/{RepositoryName}",
    "AWS::Events::Rule": "arn:aws:events:r:1:rule/{Name}",
    "AWS::IAM::Role": "arn:aws:iam::1:role/{RoleName}",
    "AWS::Lambda::Function": "arn:aws:lambda:r:1:function:{FunctionName}",
    "AWS::Logs::LogGroup": "arn:aws:logs:r:1:log-group:{LogGroupName}",
    "AWS::Logs::MetricFilter": "arn:aws:logs:r:1:log-group:{LogGroupName}",
    "AWS::S3::Bucket": "arn:aws:s3:::{BucketName}",
    "AWS::SNS::Topic": "arn:aws:sns:r:1:{TopicName}",
    "AWS::SQS::Queue": "arn:aws:sqs:r:1:{QueueName}",
    "AWS::SageMaker::Pipeline": "arn:aws:sagemaker:r:1:pipeline/{PipelineName}",
}
"""Names of the resources whose schemas tell their actions."""


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def allows(action: str, resource: str = "") -> bool:
    """Return whether the policy allows an action on a resource, or on any."""
    return any(
        any(fnmatch.fnmatchcase(action, pattern) for pattern in listed(statement["Action"]))
        and (not resource or any(fnmatch.fnmatchcase(resource, pattern) for pattern in listed(statement["Resource"])))
        for statement in json.loads(POLICY.read_text())["Statement"]
    )


def actions_of(service: str, command: str) -> set[str]:
    """Return the actions of a command of `aws`: "logs create-log-group" is logs:CreateLogGroup."""
    if special := SPECIAL.get(f"{service} {command}"):
        return special
    model = botocore.session.get_session().get_service_model({"s3api": "s3"}.get(service, service))
    [operation] = [name for name in model.operation_names if xform_name(name, "-") == command]
    return {f"{PREFIXES.get(service, service)}:{operation}"}


def test_the_policy_allows_what_the_scripts_call() -> None:
    """Each command of the scripts is allowed."""
    text = "".join((SAGEMAKER / name).read_text() for name in SCRIPTS)
    commands = {match.groups() for match in COMMAND.finditer(text)} - {tuple(name.split()) for name in ADVICE}
    commands = {(service, command) for service, command in commands if service in SERVICES}
    assert len(commands) > 20
    needed = {action for service, command in commands for action in actions_of(service, command)}
    assert sorted(action for action in needed if not allows(action)) == []


def schema(kind: str) -> Any:
    """Return AWS's schema of a kind of resource."""
    cfnlint = pytest.importorskip("cfnlint.data")
    schemas = Path(cfnlint.__path__[0]) / "schemas"
    name = json.loads((schemas / "providers" / "us-east-1.json").read_text())[kind]
    return json.loads((schemas / "resources" / f"{name}.json").read_text())


def test_the_policy_allows_what_the_stack_needs() -> None:
    """CloudFormation may create, read, change and delete each resource of the stack with the names of its default
    settings, as the schemas say; and nothing but looks is allowed on all resources.
    """
    buckets = {f"{name}Bucket": f"voxbatch-{name.lower()}-1-r" for name in ("In", "Out", "Models")}
    made = {f"Make{name}": "yes" for name in (*buckets, "Repository")}
    stack = jobs_stack(**buckets, Schedule="rate(1 day)", **made)
    missing, seen = set(), set()
    for kind, properties in stack.resources.values():
        if kind not in RESOURCES:
            continue
        seen.add(kind)
        resource, service = RESOURCES[kind].format(**properties), RESOURCES[kind].split(":")[2]
        handlers = schema(kind)["handlers"]
        actions = {
            action for step in ("create", "read", "update", "delete") for action in handlers[step]["permissions"]
        }
        needed = {action for action in actions if action.startswith(f"{service}:") and not UNUSED.fullmatch(action)}
        missing |= {(action, resource) for action in needed if not allows(action, resource)}
    assert seen == RESOURCES.keys()
    assert sorted(missing) == []
    for statement in json.loads(POLICY.read_text())["Statement"]:
        if "*" in listed(statement["Resource"]):
            assert all(re.match(r"\w+:(Describe|List|GetCaller)", action) for action in statement["Action"])


def test_aws_accepts_the_policy_and_the_page_names_it(moto: str) -> None:
    """The file is a valid policy, which the command of the page makes, and short enough for one."""
    own = {"region_name": "eu-central-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    made = boto3.client("iam", endpoint_url=moto, **own).create_policy(
        PolicyName="voxbatch-deployer", PolicyDocument=POLICY.read_text()
    )
    assert made["Policy"]["Arn"].endswith(":policy/voxbatch-deployer")
    assert len(re.sub(r"\s", "", POLICY.read_text())) <= 6144
    page = (ROOT / "docs" / "sagemaker.md").read_text()
    assert "--policy-name voxbatch-deployer --policy-document file://jobs/sagemaker/deployer.json" in page
