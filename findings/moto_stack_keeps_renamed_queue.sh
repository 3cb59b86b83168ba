#!/usr/bin/env bash
# Good guess: a CloudFormation stack in moto whose template gives its SQS queue another QueueName has a new, empty queue after
#   update_stack: AWS documents a replacement for this property, and moto replaces an SNS topic so.
# What happens: the update ends as UPDATE_COMPLETE, get_template gives the new name, and the queue is the old one with its
#   messages. A test of an update that would lose messages passes.
# Date: 2026-11-29. Source: found by running moto==5.2.5.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile "moto[cloudformation,sns,sqs]==5.2.5"
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import json
import sys
from importlib.metadata import version

import boto3
from moto import mock_aws

print("versions:", {name: version(name) for name in ("moto", "botocore")})
OWN = {"region_name": "eu-central-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}


def template(name):
    resources = {
        "Queue": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": name}},
        "Topic": {"Type": "AWS::SNS::Topic", "Properties": {"TopicName": name}},
    }
    return json.dumps({"Resources": resources})


with mock_aws():
    cloudformation, sqs, sns = (boto3.client(name, **OWN) for name in ("cloudformation", "sqs", "sns"))
    cloudformation.create_stack(StackName="s", TemplateBody=template("calls"))
    [url] = sqs.list_queues()["QueueUrls"]
    sqs.send_message(QueueUrl=url, MessageBody="waiting")
    cloudformation.update_stack(StackName="s", TemplateBody=template("letters"))
    status = cloudformation.describe_stacks(StackName="s")["Stacks"][0]["StackStatus"]
    queues = [address.rpartition("/")[2] for address in sqs.list_queues()["QueueUrls"]]
    topics = [topic["TopicArn"].rpartition(":")[2] for topic in sns.list_topics()["Topics"]]
    bodies = [message["Body"] for message in sqs.receive_message(QueueUrl=url).get("Messages", [])]
print(f"{status}: queues {queues}, topics {topics}; messages in the queue calls: {bodies}")
same = (status, queues, topics, bodies) == ("UPDATE_COMPLETE", ["calls"], ["letters"], ["waiting"])

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
