#!/usr/bin/env bash
# Good guess: describe_stack_resources of moto leaves out a resource whose Condition is false, as CloudFormation does: it is not
#   part of the stack.
# What happens: the resource is listed as CREATE_COMPLETE, without LogicalResourceId and ResourceType, which every entry of the
#   service has: a loop that reads them ends in a KeyError. list_stack_resources lists it with an empty LogicalResourceId.
# Date: 2026-11-29. Source: found by running moto==5.2.5.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile "moto[cloudformation,logs,sqs]==5.2.5"
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import json
import sys
from importlib.metadata import version

import boto3
from moto import mock_aws

print("versions:", {name: version(name) for name in ("moto", "botocore")})
OWN = {"region_name": "eu-central-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
TEMPLATE = {
    "Parameters": {"Dead": {"Type": "String", "Default": "no"}},
    "Conditions": {"HasDead": {"Fn::Equals": [{"Ref": "Dead"}, "yes"]}},
    "Resources": {
        "Queue": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "calls"}},
        "Letters": {"Type": "AWS::SQS::Queue", "Condition": "HasDead", "Properties": {"QueueName": "dead"}},
    },
}

with mock_aws():
    cloudformation, sqs = boto3.client("cloudformation", **OWN), boto3.client("sqs", **OWN)
    cloudformation.create_stack(StackName="s", TemplateBody=json.dumps(TEMPLATE))
    described = cloudformation.describe_stack_resources(StackName="s")["StackResources"]
    summaries = cloudformation.list_stack_resources(StackName="s")["StackResourceSummaries"]
    queues = len(sqs.list_queues()["QueueUrls"])
names = [resource.get("LogicalResourceId") for resource in described]
listed = [resource.get("LogicalResourceId") for resource in summaries]
print(f"queues: {queues}; described: {names}; listed: {listed}; states: {[r['ResourceStatus'] for r in described]}")
same = queues == 1 and names == ["Queue", None] and listed == ["Queue", ""]

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
