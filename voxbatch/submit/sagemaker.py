"""SageMaker Processing: a job of so many instances, each of which takes a shard.

Through boto3, which finds credentials and AWS_ENDPOINT_URL_SAGEMAKER by itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from voxbatch.errors import BusyError, ConfigError, StartError, VoxbatchError
from voxbatch.storage.refusal import short
from voxbatch.submit.order import Order, Request, Started

REGION = "AWS_REGION"
"""Which other clients of AWS and its own containers know; boto3 itself takes AWS_DEFAULT_REGION."""
INSTANCE_TYPE = "ml.g6.2xlarge"
"""8 CPU, 32 GiB and one L4, as on Cloud Run."""
GPUS_OF = {
    "g5": "NVIDIA A10G", "g6": "NVIDIA L4", "g6e": "NVIDIA L40S", "p4de": "NVIDIA A100-SXM4-80GB",
    "p5": "NVIDIA H100 80GB HBM3", "p5e": "NVIDIA H200", "p5en": "NVIDIA H200",
}  # fmt: skip
"""By an instance's family, as NVML names them (AWS's pages of accelerated instances)."""
GPU_COUNTS = {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8, "p4de.24xlarge": 8}
"""By an instance's size, or family and size where that is otherwise; one in those not named."""
VOLUME_GB = 100
"""Holds Voxtral Small's 48 GB of weights twice; an instance with a disk of its own gives that instead."""
MOST_ARGUMENTS = MOST_VARIABLES = 100
MOST_CHARACTERS = 256
"""Of an argument, a variable's name, or its value."""
LEAST_LIMIT_S, MOST_LIMIT_S = 24 * 3600, 777_600
"""A job may take nine days, says the API."""
ATTEMPTS = 3
CONNECT_S, READ_S = 10, 60
_IMAGE = re.compile(r"\S{1,255}")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+")
_INSTANCE_TYPE = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9]+")
_REGION = re.compile(r"[a-z0-9][a-z0-9-]*")
_LOGIN = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose an AWS_PROFILE, or give the machine a role"
_LACKS = {
    "start": "sagemaker:CreateProcessingJob and sagemaker:AddTags, or iam:PassRole on the role",
    "look for": "sagemaker:ListProcessingJobs (--again starts it without looking)",
}
_CREDENTIALS = ("UnrecognizedClientException", "InvalidClientTokenId", "ExpiredTokenException", "ExpiredToken",
                "InvalidSignatureException", "IncompleteSignature", "MissingAuthenticationToken")  # fmt: skip
_LATER = ("ThrottlingException", "Throttling", "TooManyRequestsException", "ConflictException", "InternalFailure",
          "ServiceUnavailable")  # fmt: skip


@dataclass(frozen=True, slots=True)
class SageMaker:
    """See Target."""

    image: str
    """URI in ECR."""
    role: str
    """ARN, of the role that the job has."""
    instance_type: str = INSTANCE_TYPE
    region: str | None = None
    """None leaves it to the environment and to boto3."""
    volume_gb: int = VOLUME_GB

    title: ClassVar[str] = "SageMaker Processing"
    most_tasks: ClassVar[int] = 100
    task_hours: ClassVar[float] = 4.0
    """No limit is near; an instance that takes ten minutes to come, with image and model, is at work for the rest."""

    def __post_init__(self) -> None:
        for name, value, rule, example in (
            ("--image", self.image, _IMAGE, "the address of an image in ECR"),
            ("--role", self.role, _ROLE, "a role's ARN: arn:aws:iam::123456789012:role/voxbatch"),
            ("--instance-type", self.instance_type, _INSTANCE_TYPE, f"a type such as {INSTANCE_TYPE}"),
            ("--region", self.region or "x", _REGION, "a region such as us-east-1"),
        ):
            if not rule.fullmatch(value):
                raise ConfigError(f"{name} {value!r}: give {example}")
        if not 1 <= self.volume_gb <= 16_384:
            raise ConfigError(f"volume-gb is {self.volume_gb}; it must be from 1 to 16,384")

    def machine(self, engine: str) -> str:
        return self.instance_type

    def engine(self) -> str:
        return "vllm" if self.instance_type.startswith(("ml.g", "ml.p")) else "faster-whisper"

    def gpus(self, engine: str) -> tuple[str, int] | None:
        _, family, size = self.instance_type.split(".")
        name = GPUS_OF.get(family)
        count = GPU_COUNTS.get(f"{family}.{size}") or GPU_COUNTS.get(size, 1)
        return (name, count) if name and engine == "vllm" else None

    def limit_s(self, engine: str, task_hours: float, wall_s: float | None) -> int:
        """Three times what is expected, and a day at least: it only has to end what hangs."""
        return round(min(MOST_LIMIT_S, max(LEAST_LIMIT_S, 3 * max(task_hours * 3600, wall_s or 0))))

    def request(self, order: Order) -> Request:
        _check(order)
        name = f"voxbatch-{order.digest}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        cluster = {"InstanceCount": order.tasks, "InstanceType": self.instance_type, "VolumeSizeInGB": self.volume_gb}
        body = {
            "ProcessingJobName": name,
            "ProcessingResources": {"ClusterConfig": cluster},
            "StoppingCondition": {"MaxRuntimeInSeconds": order.limit_s or LEAST_LIMIT_S},
            "AppSpecification": {"ImageUri": self.image, "ContainerArguments": order.arguments},
            "RoleArn": self.role,
            "Tags": [{"Key": "voxbatch", "Value": order.digest}],
        }
        if order.environment:
            body["Environment"] = dict(order.environment)
        return Request(
            f"sagemaker:CreateProcessingJob in {self.region or os.environ.get(REGION) or 'the default region'}", body
        )

    def start(self, order: Order, again: bool = False) -> Started:
        return _Api(self).start(order, again)


def _check(order: Order) -> None:
    """Raises ConfigError for what SageMaker would not take."""
    if (count := len(order.arguments)) > MOST_ARGUMENTS:
        raise ConfigError(f"the run has {count} arguments; SageMaker takes {MOST_ARGUMENTS}: leave some out")
    if (count := len(order.environment)) > MOST_VARIABLES:
        raise ConfigError(f"the job has {count} variables; SageMaker takes {MOST_VARIABLES}: leave some out")
    if not 1 <= order.tasks <= SageMaker.most_tasks:
        raise ConfigError(f"tasks is {order.tasks:,}; SageMaker Processing takes from 1 to {SageMaker.most_tasks}")
    variables = [each for pair in order.environment.items() for each in pair]
    for text in (*order.arguments, *variables):
        if len(text) > MOST_CHARACTERS:
            raise ConfigError(
                f"{text[:60]!r}… has {len(text)} characters; SageMaker takes {MOST_CHARACTERS} an argument or a "
                "variable: choose a shorter one"
            )
    for name in order.environment:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name):
            raise ConfigError(f"--env {name!r}: a variable's name has letters, digits and underscores")


class _Api:
    def __init__(self, settings: SageMaker):
        self._settings, self._what = settings, "a SageMaker Processing job"
        with self._errors("start"):
            import boto3
            from botocore.config import Config

            retries = {"mode": "standard", "total_max_attempts": ATTEMPTS}
            session = boto3.Session(region_name=settings.region or os.environ.get(REGION))
            self._client = session.client(
                "sagemaker", config=Config(retries=retries, connect_timeout=CONNECT_S, read_timeout=READ_S)
            )
        self._region = str(self._client.meta.region_name)
        self._what += f" in {self._region}"

    def start(self, order: Order, again: bool) -> Started:
        body = self._settings.request(order).body
        if not again and (running := self._running(order)):
            return self._started(running, was_running=True)
        name = body["ProcessingJobName"]
        with self._errors("start"):
            try:
                self._client.create_processing_job(**body)
            except self._client.exceptions.ResourceInUse:  # the reply to an earlier attempt of this call was lost
                return self._started(name, was_running=True)
        return self._started(name)

    def _running(self, order: Order) -> str | None:
        """The name of a job that does the same and has not ended: names hold the order's digest."""
        with self._errors("look for"):
            pages = self._client.get_paginator("list_processing_jobs").paginate(
                NameContains=order.digest, StatusEquals="InProgress"
            )
            found = [each["ProcessingJobName"] for page in pages for each in page["ProcessingJobSummaries"]]
        return found[0] if found else None

    def _started(self, name: str, was_running: bool = False) -> Started:
        page = f"https://{self._region}.console.aws.amazon.com/sagemaker/home?region={self._region}"
        return Started(name, f"{page}#/processing-jobs/{name}", was_running)

    @contextlib.contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        what = f"cannot {verb} {self._what}"
        try:
            import boto3  # noqa: F401  botocore may be there without it
            from botocore import exceptions as botocore
        except ImportError as e:
            install = "pip install 'voxbatch[s3]'"
            raise StartError(f"{what}: the client library is not installed ({e}): {install}") from e
        try:
            yield
        except botocore.ClientError as e:
            raise self._refusal(what, verb, e) from e
        except botocore.NoRegionError as e:
            raise ConfigError(f"{what}: which region is not known: give --region, or set {REGION}") from e
        except (botocore.NoCredentialsError, botocore.PartialCredentialsError, botocore.ProfileNotFound) as e:
            raise StartError(f"{what}: no usable credentials ({short(e)}): {_LOGIN}") from e
        except (botocore.ConnectionError, botocore.HTTPClientError) as e:
            raise BusyError(
                f"{what}: the connection failed ({short(e)}): check the network and --region, and submit it again: "
                "what has begun by then is found, not started twice"
            ) from e
        except (botocore.ParamValidationError, ValueError) as e:  # an endpoint or a region that can be none
            raise ConfigError(f"{what}: {short(e)}") from e
        except botocore.BotoCoreError as e:
            raise StartError(f"{what}: {short(e)}") from e

    def _refusal(self, what: str, verb: str, error: Any) -> VoxbatchError:
        code, said = error.response["Error"]["Code"], short(error.response["Error"].get("Message", ""))
        status = int(error.response["ResponseMetadata"].get("HTTPStatusCode", 0))
        if code in _CREDENTIALS:
            return StartError(f"{what}: the credentials are not valid (any more) ({code}): {_LOGIN}")
        if code in ("AccessDeniedException", "AccessDenied"):
            return StartError(f"{what}: permission denied: {_LACKS[verb]} is missing; SageMaker says: {said}")
        if code == "ResourceLimitExceeded":
            return StartError(
                f"{what}: the account's quota does not admit it: take fewer --tasks or another --instance-type, or ask "
                f"for more under Service Quotas; SageMaker says: {said}"
            )
        if code in _LATER or status >= 500:
            return BusyError(f"{what}: SageMaker is busy ({code}: {said}): submit it again")
        return ConfigError(f"{what}: SageMaker refuses the request ({code}: {said})")
