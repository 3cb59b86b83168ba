#!/usr/bin/env bash
# Good guess: moto's CloudFormation makes a compute environment of AWS Batch from a template that leaves out ServiceRole and
#   ComputeEnvironmentName: AWS's schema of the resource requires neither, and cfn-lint accepts the template.
# What happens: create_stack raises KeyError: 'ServiceRole' in moto; its server answers 500 with an HTML page, which botocore
#   cannot read as an error (ResponseParserError). With a role of our own, it makes the environment.
# Date: 2026-11-29. Source: found by running moto==5.2.5.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile "moto[batch,cloudformation,ec2,iam]==5.2.5" "cfn-lint>=1.0"
cd "$folder"
cat >template.yaml <<'YAML'
Parameters:
  Subnet: {Type: "AWS::EC2::Subnet::Id"}
  Group: {Type: "AWS::EC2::SecurityGroup::Id"}
Resources:
  Host:
    Type: AWS::IAM::Role
    Properties:
      AssumeRolePolicyDocument:
        Version: "2012-10-17"
        Statement: [{Effect: Allow, Principal: {Service: ec2.amazonaws.com}, Action: "sts:AssumeRole"}]
  Profile: {Type: "AWS::IAM::InstanceProfile", Properties: {Roles: [!Ref Host]}}
  Environment:
    Type: AWS::Batch::ComputeEnvironment
    Properties:
      Type: MANAGED
      ComputeResources:
        Type: EC2
        MinvCpus: 0
        MaxvCpus: 4
        InstanceTypes: [m5.large]
        Subnets: [!Ref Subnet]
        SecurityGroupIds: [!Ref Group]
        InstanceRole: !GetAtt Profile.Arn
YAML
"$folder/venv/bin/cfn-lint" template.yaml && echo "cfn-lint: no fault"
"$folder/venv/bin/python" - <<'PYTHON' || exit 1
import sys
from importlib.metadata import version
from pathlib import Path

import boto3
from moto import mock_aws

print("versions:", {name: version(name) for name in ("moto", "botocore", "cfn-lint")})
TEMPLATE = Path("template.yaml").read_text()
ROLE = "      ServiceRole: !GetAtt Host.Arn\n      ComputeEnvironmentName: machines\n      Type: MANAGED\n"


@mock_aws
def made(template):
    """Return the number of compute environments of a stack, or the name of the error."""
    own = {"region_name": "eu-central-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    ec2 = boto3.client("ec2", **own)
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    try:
        boto3.client("cloudformation", **own).create_stack(
            StackName="s", TemplateBody=template, Capabilities=["CAPABILITY_IAM"],
            Parameters=[
                {"ParameterKey": "Subnet", "ParameterValue": subnet},
                {"ParameterKey": "Group", "ParameterValue": group},
            ],
        )
    except KeyError as e:
        return f"KeyError: {e}"
    return len(boto3.client("batch", **own).describe_compute_environments()["computeEnvironments"])


without, with_role = made(TEMPLATE), made(TEMPLATE.replace("      Type: MANAGED\n", ROLE))
print("without ServiceRole:", without)
print("with a role and a name:", with_role)
same = without == "KeyError: 'ServiceRole'" and with_role == 1

print("as described" if same else "THE BEHAVIOUR HAS CHANGED")
sys.exit(0 if same else 1)
PYTHON
