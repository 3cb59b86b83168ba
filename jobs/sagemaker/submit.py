"""Start one run of voxbatch as a SageMaker Processing job; this script needs only boto3.

    python submit.py s3://IN/calls.jsonl -o s3://OUT/calls --image IMAGE --role ARN --hosts 4 -- --profile small-24b
    python submit.py s3://IN/recordings/ -o s3://OUT/calls --image IMAGE --role ARN --hosts 4 --by-key

The options after -- are options of `voxbatch run`. Each host does one shard of the manifest: it reads recordings from
the bucket and writes to the bucket. So a killed job continues when it is submitted again.

With --by-key, SageMaker instead copies the files to the hosts' disks, each file to one host (ShardedByS3Key), and
entry.sh transcribes the files of its host. If voxbatch is installed, `voxbatch submit --target sagemaker` also
calculates the number of hosts, the time and the cost.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

INSIDE = "/opt/ml/processing"
ENTRY = Path(__file__).with_name("entry.sh")
LONGEST = 256
"""Maximum characters of an argument in SageMaker."""


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; the options after -- become `run` of the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="s3:// address of a manifest, or of a folder of recordings with / at its end")
    parser.add_argument("-o", "--out", required=True, help="s3:// address of the outputs")
    parser.add_argument("--image", required=True, help="in ECR: ACCOUNT.dkr.ecr.REGION.amazonaws.com/voxbatch:TAG")
    parser.add_argument("--role", required=True, help="ARN of the role of the job: RunRole in template.yaml")
    parser.add_argument("--hosts", type=int, default=1, help="from 1 to 100 [1]")
    parser.add_argument("--instance-type", default="ml.g6.2xlarge", help="[ml.g6.2xlarge: one L4]")
    parser.add_argument("--disk-gb", type=int, default=100, help="of each host [100]")
    parser.add_argument("--max-hours", type=float, default=24, help="then SageMaker stops the job [24]")
    parser.add_argument("--by-key", action="store_true", help="deal the files of SOURCE out to the hosts' disks")
    parser.add_argument("--name", help="of the job; default: voxbatch-NAME-TIME")
    parser.add_argument("--region", help="default: the one of your AWS settings")
    parser.add_argument("--dry-run", action="store_true", help="print the request, send nothing")
    at = arguments.index("--") if "--" in arguments else len(arguments)
    found = parser.parse_args(arguments[:at])
    found.run = list(arguments[at + 1 :])
    for each in (found.source, found.out):
        if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]+/.+", each):
            parser.error(f"{each} is no address such as s3://bucket/key")
    if not 1 <= found.hosts <= 100:
        parser.error(f"--hosts is {found.hosts}; SageMaker takes 1 to 100")
    return found


def job_name(out: str) -> str:
    """Return a job name that is unique, as SageMaker requires."""
    last = re.sub(r"[^A-Za-z0-9]+", "-", out.rstrip("/").rpartition("/")[2]).strip("-")[:30] or "run"
    return f"voxbatch-{last}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}".replace("--", "-")


def request(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the body of the request CreateProcessingJob.

    Raises:
        SystemExit: an argument is too long.
    """
    body: dict[str, Any] = {
        "ProcessingJobName": asked.name or job_name(asked.out),
        "AppSpecification": {"ImageUri": asked.image},
        "ProcessingResources": {
            "ClusterConfig": {
                "InstanceCount": asked.hosts,
                "InstanceType": asked.instance_type,
                "VolumeSizeInGB": asked.disk_gb,
            }
        },
        "RoleArn": asked.role,
        "StoppingCondition": {"MaxRuntimeInSeconds": round(asked.max_hours * 3600)},
    }
    if asked.by_key:
        body |= _by_key(asked)
    arguments = asked.run if asked.by_key else ["run", asked.source, "-o", asked.out, "--exit-zero", *asked.run]
    if too_long := [each for each in arguments if len(each) > LONGEST]:
        raise SystemExit(f"{too_long[0]} has {len(too_long[0])} characters; SageMaker takes {LONGEST} in an argument")
    if arguments:
        body["AppSpecification"]["ContainerArguments"] = arguments
    return body


def _by_key(asked: argparse.Namespace) -> dict[str, Any]:
    inputs = [_input("recordings", asked.source, "ShardedByS3Key"), _input("code", code(asked), "FullyReplicated")]
    outputs = {"S3Uri": asked.out, "LocalPath": f"{INSIDE}/output", "S3UploadMode": "EndOfJob"}
    return {
        "AppSpecification": {
            "ImageUri": asked.image,
            "ContainerEntrypoint": ["sh", f"{INSIDE}/input/code/{ENTRY.name}"],
        },
        "ProcessingInputs": inputs,
        "ProcessingOutputConfig": {"Outputs": [{"OutputName": "transcripts", "S3Output": outputs}]},
    }


def _input(name: str, uri: str, spread: str) -> dict[str, Any]:
    place = {"S3Uri": uri, "LocalPath": f"{INSIDE}/input/{name}", "S3DataType": "S3Prefix", "S3InputMode": "File"}
    return {"InputName": name, "S3Input": {**place, "S3DataDistributionType": spread}}


def code(asked: argparse.Namespace) -> str:
    """Return the address of entry.sh in the bucket."""
    return f"{asked.out.rstrip('/')}/code/{ENTRY.name}"


def main(arguments: Sequence[str]) -> None:
    """Send the request, or print it for --dry-run."""
    asked = options(arguments)
    body = request(asked)
    if asked.dry_run:
        print(json.dumps(body, indent=2))
        return
    import boto3

    if asked.by_key:
        bucket, _, key = code(asked).removeprefix("s3://").partition("/")
        boto3.client("s3", region_name=asked.region).put_object(Bucket=bucket, Key=key, Body=ENTRY.read_bytes())
    arn = boto3.client("sagemaker", region_name=asked.region).create_processing_job(**body)["ProcessingJobArn"]
    print(f"{arn}\naws sagemaker describe-processing-job --processing-job-name {body['ProcessingJobName']}")


if __name__ == "__main__":
    main(sys.argv[1:])
