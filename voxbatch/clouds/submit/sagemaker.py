"""SageMaker Processing: a job with several instances, each of which does one shard.

The client is boto3, which finds credentials and AWS_ENDPOINT_URL_SAGEMAKER itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from voxbatch.clouds.submit.submission import GPU_START, ApiRequest, StartedRun, StartTime, Submission
from voxbatch.engines import uses_gpu
from voxbatch.errors import BusyError, ConfigError, StartError, VoxbatchError
from voxbatch.stores.http_errors import one_line

REGION = "AWS_REGION"
"""The region's variable in other AWS clients and in AWS's own containers; boto3 itself reads AWS_DEFAULT_REGION."""
INSTANCE_TYPE = "ml.g6.2xlarge"
"""8 CPU, 32 GiB and one L4, as on Cloud Run."""
GPU_NAMES = {
    "g5": "NVIDIA A10G", "g6": "NVIDIA L4", "g6e": "NVIDIA L40S", "p4de": "NVIDIA A100-SXM4-80GB",
    "p5": "NVIDIA H100 80GB HBM3", "p5e": "NVIDIA H200", "p5en": "NVIDIA H200",
}  # fmt: skip
"""NVML's name of the GPU, by family of instance (from AWS's pages on accelerated instances)."""
GPU_COUNTS = {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8, "p4de.24xlarge": 8}
"""Number of GPUs, by size of instance, or by family and size where they differ; other sizes have one."""
VOLUME_GB = 100
"""Disk size: it holds Voxtral Small's 48 GB of weights twice. An instance that has its own disk uses that instead."""
MAX_ARGUMENTS = MAX_VARIABLES = 100
MAX_CHARACTERS = 256
"""Maximum characters of an argument, of a variable's name, and of its value."""
MIN_LIMIT_S, MAX_LIMIT_S = 24 * 3600, 777_600
"""Range of the time limit, in seconds: from one day to the API's maximum of nine days."""
ATTEMPTS = 3
CONNECT_S, READ_S = 10, 60
EXIT_ZERO = {"VOXBATCH_EXIT_ZERO": "1"}
"""Variable of each job, as in jobs/cloudrun and jobs/sagemaker: failed items are in OUT, and must not fail the job."""
_IMAGE = re.compile(r"\d{12}\.dkr[.-]ecr[a-z0-9.-]*/[a-z0-9][a-z0-9._/-]*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+")
_INSTANCE_TYPE = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9]+")
_TAGS = re.compile(r"(?:[^=,]+=[^=,]*(?:,(?=.)|$))*")
_REGION = re.compile(r"[a-z0-9][a-z0-9-]*")
_LOGIN = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose an AWS_PROFILE, or give the machine a role"
_PERMISSIONS = {
    "start": "sagemaker:CreateProcessingJob and sagemaker:AddTags, or iam:PassRole on the role",
    "list": "sagemaker:ListProcessingJobs, DescribeProcessingJob, ListPipelines and ListPipelineExecutions, or "
    "sqs:GetQueueUrl and GetQueueAttributes",
    "look for": "sagemaker:ListProcessingJobs (--again starts it without looking)",
}
_BAD_CREDENTIALS = ("UnrecognizedClientException", "InvalidClientTokenId", "ExpiredTokenException", "ExpiredToken",
                "InvalidSignatureException", "IncompleteSignature", "MissingAuthenticationToken")  # fmt: skip
_BUSY = ("ThrottlingException", "Throttling", "TooManyRequestsException", "ConflictException", "InternalFailure",
          "ServiceUnavailable")  # fmt: skip


@dataclass(frozen=True, slots=True)
class SageMaker:
    """A SageMaker Processing job as a Target."""

    image: str
    """URI in ECR."""
    role: str
    """ARN of the job's role."""
    instance_type: str = INSTANCE_TYPE
    region: str | None = None
    """None leaves the region to the environment and to boto3."""
    volume_gb: int = VOLUME_GB
    volume_kms_key: str = ""
    """ARN or id of the key that encrypts the disks. Empty: SageMaker's own."""
    subnets: str = ""
    """Subnets of a VPC, separated by commas. Empty: no VPC."""
    security_groups: str = ""
    """Security groups, separated by commas, with `subnets`."""
    tags: str = ""
    """Tags of the job: NAME=VALUE,NAME=VALUE."""

    title: ClassVar[str] = "SageMaker Processing"
    max_tasks: ClassVar[int] = 100
    tasks_of_new_project: ClassVar[int | None] = None
    job_limit_s: ClassVar[int | None] = None
    task_hours: ClassVar[float] = 4.0
    """No limit is near. If an instance needs ten minutes to start with image and model, it still works for the rest."""

    def __post_init__(self) -> None:
        for name, value, rule, example in (
            ("--image", self.image, _IMAGE, "an image in ECR: ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG"),
            ("--role", self.role, _ROLE, "a role's ARN: arn:aws:iam::123456789012:role/voxbatch"),
            ("--instance-type", self.instance_type, _INSTANCE_TYPE, f"a type such as {INSTANCE_TYPE}"),
            ("--region", self.region or "x", _REGION, "a region such as us-east-1"),
        ):
            if not rule.fullmatch(value):
                raise ConfigError(f"{name} {value!r}: give {example}")
        if not 1 <= self.volume_gb <= 16_384:
            raise ConfigError(f"volume-gb is {self.volume_gb}; it must be from 1 to 16,384")
        if bool(self.subnets) != bool(self.security_groups):
            raise ConfigError("--subnets and --security-groups belong together: give both, or neither")
        if not _TAGS.fullmatch(self.tags):
            raise ConfigError(f"--tags {self.tags!r}: give NAME=VALUE, several separated by commas")

    def machine(self, engine: str) -> str:
        """Return the instance type, which is its own entry in the price table."""
        return self.instance_type

    def engine(self) -> str:
        """Return vllm for instances with a GPU, else faster-whisper."""
        return "vllm" if self.instance_type.startswith(("ml.g", "ml.p")) else "faster-whisper"

    def gpus(self, engine: str) -> tuple[str, int] | None:
        """Return the GPUs of the instance type; None if the engine uses none or the type is unknown."""
        _, family, size = self.instance_type.split(".")
        name = GPU_NAMES.get(family)
        count = GPU_COUNTS.get(f"{family}.{size}") or GPU_COUNTS.get(size, 1)
        return (name, count) if name and uses_gpu(engine) else None

    def start_time(self, engine: str) -> StartTime | None:
        """Return the modelled start of a task with a GPU, which is assumed to equal Cloud Run's, or None without a
        GPU.
        """
        return GPU_START if uses_gpu(engine) else None

    def limit_s(self, engine: str, task_hours: float, wall_s: float | None) -> int:
        """Return three times the expected time, and at least one day: the limit only ends tasks that hang."""
        return round(min(MAX_LIMIT_S, max(MIN_LIMIT_S, 3 * max(task_hours * 3600, wall_s or 0))))

    def request(self, submission: Submission) -> ApiRequest:
        """Return the request that creates the job.

        Raises:
            ConfigError: SageMaker does not accept the submission.
        """
        _check(submission)
        name = f"voxbatch-{submission.digest}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        cluster: dict[str, Any] = {
            "InstanceCount": submission.tasks,
            "InstanceType": self.instance_type,
            "VolumeSizeInGB": self.volume_gb,
        }
        body: dict[str, Any] = {
            "ProcessingJobName": name,
            "ProcessingResources": {"ClusterConfig": cluster},
            "StoppingCondition": {"MaxRuntimeInSeconds": submission.limit_s or MIN_LIMIT_S},
            "AppSpecification": {"ImageUri": self.image, "ContainerArguments": submission.arguments},
            "Environment": {**EXIT_ZERO, **submission.environment},
            "RoleArn": self.role,
            "Tags": [{"Key": "voxbatch", "Value": submission.digest}],
        }
        if self.volume_kms_key:
            cluster["VolumeKmsKeyId"] = self.volume_kms_key
        if self.subnets:
            groups = self.security_groups.split(",")
            body["NetworkConfig"] = {"VpcConfig": {"Subnets": self.subnets.split(","), "SecurityGroupIds": groups}}
        if self.tags:
            pairs = [tag.split("=") for tag in self.tags.split(",")]
            body["Tags"] += [{"Key": key, "Value": value} for key, value in pairs]
        return ApiRequest(
            f"sagemaker:CreateProcessingJob in {self.region or os.environ.get(REGION) or 'the default region'}", body
        )

    def connect(self) -> SageMakerApi:
        """Return the API in the region of this target.

        Raises:
            ConfigError: the region is unknown.
            StartError: the client library is missing.
        """
        return SageMakerApi(self)


def _check(submission: Submission) -> None:
    """Check a submission against SageMaker's limits.

    Raises:
        ConfigError: an argument or a variable exceeds a limit.
    """
    if (count := len(submission.arguments)) > MAX_ARGUMENTS:
        raise ConfigError(f"the run has {count} arguments; SageMaker takes {MAX_ARGUMENTS}: leave some out")
    if (count := len({**EXIT_ZERO, **submission.environment})) > MAX_VARIABLES:
        raise ConfigError(f"the job has {count} variables; SageMaker takes {MAX_VARIABLES}: leave some out")
    variables = [entry for pair in submission.environment.items() for entry in pair]
    for text in (*submission.arguments, *variables):
        if len(text) > MAX_CHARACTERS:
            raise ConfigError(
                f"{text[:60]!r}… has {len(text)} characters; SageMaker takes {MAX_CHARACTERS} an argument or a "
                "variable: choose a shorter one"
            )
    for name in submission.environment:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name):
            raise ConfigError(f"--env {name!r}: a variable's name has letters, digits and underscores")


class SageMakerApi:
    """The API in one region."""

    def __init__(self, settings: SageMaker):
        self._settings = settings
        self._client = client("sagemaker", settings.region, "cannot start a SageMaker Processing job")
        self._region = str(self._client.meta.region_name)
        self._what = f"a SageMaker Processing job in {self._region}"

    def start(self, submission: Submission, again: bool) -> StartedRun:
        """Create the job, or return the running one that has the same arguments.

        The name of a job contains the digest of its submission's arguments.
        """
        body = self._settings.request(submission).body
        if not again:
            with errors(f"cannot look for {self._what}", "look for"):
                pages = self._client.get_paginator("list_processing_jobs").paginate(
                    NameContains=submission.digest, StatusEquals="InProgress"
                )
                running = [job["ProcessingJobName"] for page in pages for job in page["ProcessingJobSummaries"]]
            if running:
                return self._started(running[0], was_running=True)
        name = body["ProcessingJobName"]
        with errors(f"cannot start {self._what}", "start"):
            try:
                self._client.create_processing_job(**body)
            except self._client.exceptions.ResourceInUse:  # boto3 retried: an earlier attempt's reply was lost
                return self._started(name, was_running=True)
        return self._started(name)

    def _started(self, name: str, was_running: bool = False) -> StartedRun:
        page = f"https://{self._region}.console.aws.amazon.com/sagemaker/home?region={self._region}"
        return StartedRun(name, f"{page}#/processing-jobs/{name}", was_running)


def client(service: str, region: str | None, failure: str) -> Any:
    """Return boto3's client of a service in a region; None leaves the region to the environment and to boto3.

    Args:
        failure: begin of the message of an error.

    Raises:
        ConfigError: the region is unknown.
        StartError: the client library is missing.
    """
    with errors(failure, "start"):
        import boto3
        from botocore.config import Config

        retries = {"mode": "standard", "total_max_attempts": ATTEMPTS}
        config = Config(retries=retries, connect_timeout=CONNECT_S, read_timeout=READ_S)
        return boto3.Session(region_name=region or os.environ.get(REGION)).client(service, config=config)


@contextlib.contextmanager
def errors(failure: str, verb: str) -> Iterator[None]:
    """Turn boto3's errors into errors of voxbatch that begin with `failure` and say how to fix it. `verb` is one of
    _PERMISSIONS."""
    try:
        import boto3  # noqa: F401 botocore may be installed without boto3
        from botocore import exceptions as botocore
    except ImportError as e:
        install = "pip install 'voxbatch[s3]'"
        raise StartError(f"{failure}: the client library is not installed ({e}): {install}") from e
    try:
        yield
    except botocore.ClientError as e:
        raise _api_error(failure, verb, e) from e
    except botocore.NoRegionError as e:
        raise ConfigError(f"{failure}: which region is not known: give --region, or set {REGION}") from e
    except (botocore.NoCredentialsError, botocore.PartialCredentialsError, botocore.ProfileNotFound) as e:
        raise StartError(f"{failure}: no usable credentials ({one_line(e)}): {_LOGIN}") from e
    except (botocore.ConnectionError, botocore.HTTPClientError) as e:
        raise BusyError(
            f"{failure}: the connection failed ({one_line(e)}): check the network and --region, and try again: "
            "nothing is started twice"
        ) from e
    except (botocore.ParamValidationError, ValueError) as e:  # an invalid endpoint or region
        raise ConfigError(f"{failure}: {one_line(e)}") from e
    except botocore.BotoCoreError as e:
        raise StartError(f"{failure}: {one_line(e)}") from e


def _api_error(failure: str, verb: str, error: Any) -> VoxbatchError:
    """Return the voxbatch error for an error code of SageMaker."""
    code, message = error.response["Error"]["Code"], one_line(error.response["Error"].get("Message", ""))
    status = int(error.response["ResponseMetadata"].get("HTTPStatusCode", 0))
    if code in _BAD_CREDENTIALS:
        return StartError(f"{failure}: the credentials are invalid or have expired ({code}): {_LOGIN}")
    if code in ("AccessDeniedException", "AccessDenied"):
        return StartError(f"{failure}: permission denied: {_PERMISSIONS[verb]} is missing; AWS says: {message}")
    if code == "ResourceLimitExceeded":
        return StartError(
            f"{failure}: the account's quota does not admit it: take fewer --tasks or another --instance-type, or "
            f"ask for more under Service Quotas; SageMaker says: {message}"
        )
    if code in _BUSY or status >= 500:
        return BusyError(f"{failure}: AWS is busy ({code}: {message}): try again")
    return ConfigError(f"{failure}: AWS refuses the request ({code}: {message})")
