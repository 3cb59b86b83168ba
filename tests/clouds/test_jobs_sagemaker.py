"""Tests for the job files of SageMaker. Scripts work and can be run twice; the platform accepts the descriptions; the
nightly run takes only what is new.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import yaml
from botocore.exceptions import ClientError
from cloudformation import Stack, load
from conftest import ROOT, ManifestWriter, Recorder, Voxbatch, environment, understood
from fake_aws import FakeAws, pairs, parameters, validated
from outputs import FAST
from sagemaker_deployment import (
    ACCOUNT,
    KEY,
    REGION,
    SAGEMAKER,
    Deployment,
    container,
    did,
    jobs_stack,
    pipeline_of,
    step_of,
)
from scripts import imported

submit = imported(SAGEMAKER / "submit.py")

# ── SageMaker: deploy.sh and teardown.sh ──────────────────────────────────────────────────────────────────────────────

IN, OUT, MODELS = (f"voxbatch-{name}-{ACCOUNT}-{REGION}" for name in ("in", "out", "models"))


@pytest.fixture
def deployment(moto: str, tmp_path: Path) -> Iterator[Deployment]:
    fake = FakeAws(moto)
    with fake.on_path(tmp_path) as folder:
        yield Deployment(moto, folder, fake)


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Return a PATH on which `voxbatch` is the version of this checkout."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "voxbatch").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m voxbatch "$@"\n')
    (folder / "voxbatch").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def image_of(there: Deployment) -> str:
    """Return the image that the pipeline runs."""
    pipeline = there.client("sagemaker").describe_pipeline(PipelineName="voxbatch")
    parameters = json.loads(pipeline["PipelineDefinition"])["Parameters"]
    [image] = [parameter["DefaultValue"] for parameter in parameters if parameter["Name"] == "Image"]
    return str(image)


def address(digest: str) -> str:
    return f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/voxbatch@{digest}"


@pytest.mark.slow
def test_one_command_builds_deploys_and_tries(deployment: Deployment, tmp_path: Path, program: str) -> None:
    """From an empty account, deploy.sh makes the stack, builds the image, starts the pipeline with it, and prints what
    its job hears in a recording. A second run changes nothing. A setting changes the pipeline alone, and a push nothing
    until deploy.sh runs. teardown.sh leaves the data, on which the next deployment builds.
    """
    there, fake = deployment, deployment.fake
    builds: list[dict[str, str]] = []

    def build(variables: dict[str, str]) -> None:
        there.client("s3").download_file(MODELS, "source.zip", str(tmp_path / "source.zip"))
        builds.append({**variables, "digest": there.push()})

    def run(parameters: dict[str, str]) -> None:
        pipeline = json.loads(
            there.client("sagemaker").describe_pipeline(PipelineName="voxbatch")["PipelineDefinition"]
        )
        step = step_of(pipeline, **parameters)
        base = container(tmp_path / "host", "algo-1", ["algo-1"])
        env = environment(**step["Environment"], **login(there.endpoint), PATH=program, SAGEMAKER_BASE_DIR=base)
        command = [*step["AppSpecification"]["ContainerEntrypoint"], *FAST]
        subprocess.run(command, env=env, check=True, capture_output=True, timeout=120)

    fake.on_build, fake.on_run = build, run
    fake.quotas = {"ml.g6.2xlarge for processing job usage": 4.0}
    lines = there.run("deploy.sh")
    assert did(lines) == ["changed  stack voxbatch"] * 2
    assert [line for line in lines if line.startswith("ready    it heard: ")]
    assert lines[-1] == f"ready    aws s3 cp calls.jsonl s3://{IN}/uploads/ → s3://{OUT}/uploads/calls/"
    [built] = builds
    assert (built["STEP"], built["TAG"], image_of(there)) == ("image", "latest", address(built["digest"]))

    there.changes()
    assert did(there.run("deploy.sh", ALERT_EMAIL="")) == []
    assert fake.plans == {}
    assert [command[:2] for command in there.changes()] == [["cloudformation", "deploy"]]
    night: dict[str, Any] = {"SCHEDULE": "cron(0 2 * * ? *)", "INSTANCE_COUNT": "4", "VOXBATCH_PROFILE": "small-24b"}
    digest = there.push()
    assert did(there.run("deploy.sh", **night)) == ["changed  stack voxbatch"]
    assert image_of(there) == address(digest)
    assert "NightlyRule" in fake.stacks["voxbatch"].stack.resources

    there.changes()
    lines = there.run("teardown.sh", "--dry-run", "--with-data")
    assert [line for line in lines if line.startswith("plan")] == [
        "plan     remove stack voxbatch",
        "plan     remove repository voxbatch and its images",
        *(f"plan     remove {what}bucket {name}" for name in (IN, OUT, MODELS) for what in ("all that is in ", "")),
    ]
    assert there.changes() == []
    there.client("s3").create_bucket(Bucket="calls", CreateBucketConfiguration={"LocationConstraint": REGION})
    lines = there.run("teardown.sh", IN_BUCKET="calls")
    assert did(lines) == ["gone     stack voxbatch", "gone     repository voxbatch and its images"]
    assert (
        "kept     bucket calls: a setting named it; aws s3 rb --force s3://calls deletes it with all that is in it"
        in lines
    )
    assert f"kept     bucket {OUT}: there is something in it; --with-data deletes it, too" in lines
    assert did(there.run("teardown.sh")) == []
    assert did(there.run("deploy.sh", VERIFY="no")) == [
        "changed  stack voxbatch",
        "changed  stack voxbatch",
        f"changed  events of bucket {IN}: now go to EventBridge",
    ]
    assert not {"Recordings", "Transcripts", "Models"} & fake.stacks["voxbatch"].stack.resources.keys()
    assert did(there.run("deploy.sh", VERIFY="no")) == []
    assert did(there.run("teardown.sh", "--with-data")) == [
        "gone     stack voxbatch",
        "gone     repository voxbatch and its images",
        *(f"gone     {what}bucket {name}" for name in (IN, OUT, MODELS) for what in ("all that is in ", "")),
    ]
    assert [bucket["Name"] for bucket in there.client("s3").list_buckets()["Buckets"]] == ["calls"]


@pytest.mark.slow
def test_build_makes_the_image_of_the_source(deployment: Deployment, tmp_path: Path) -> None:
    """CodeBuild finds all that the Dockerfile copies in the source. build.sh signs in, builds without provenance, tries
    the image, and pushes it last; it fails if the image has no vLLM.
    """

    def build(_: dict[str, str]) -> None:
        deployment.push()

    deployment.fake.on_build = build
    deployment.run("deploy.sh", VERIFY="no", BASE_IMAGE="mirror/vllm:1")
    [command] = [command for command in deployment.fake.log if command[:2] == ["codebuild", "start-build"]]
    variables = {
        each["name"]: each["value"]
        for each in json.loads(command[command.index("--environment-variables-override") + 1])
    }
    assert variables == {"STEP": "image", "TAG": "latest", "BASE_IMAGE": "mirror/vllm:1"}
    [project] = deployment.client("codebuild").batch_get_projects(names=["voxbatch"])["projects"]
    variables |= {each["name"]: each["value"] for each in project["environment"]["environmentVariables"]}
    buildspec = yaml.safe_load(project["source"]["buildspec"])
    [line] = buildspec["phases"]["build"]["commands"]

    deployment.client("s3").download_file(MODELS, "source.zip", str(tmp_path / "source.zip"))
    source = tmp_path / "source"
    with zipfile.ZipFile(tmp_path / "source.zip") as archive:
        archive.extractall(source)
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )*(.*) \S+$", (source / "Dockerfile").read_text(), re.MULTILINE)
    assert len(copied) >= 5
    assert [name for names in copied for name in names.split() if not (source / name).exists()] == []

    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("aws", "docker"):
        text = f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/log"\ncase "$*" in *doctor) echo "$DOCTOR"; exit 1 ;; esac\n'
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    env = environment(**variables, PATH=f"{programs}:{os.environ['PATH']}", DOCTOR="ok       vllm 0.32.0")
    subprocess.run(["bash", "-c", line], cwd=source, env=env, check=True, capture_output=True)
    repository = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/voxbatch"
    log = (tmp_path / "log").read_text().splitlines()
    assert {
        "aws ecr get-login-password",
        f"docker login --username AWS --password-stdin {repository.partition('/')[0]}",
    } == set(log[:2])
    assert "--provenance=false" in log[2]
    assert "--build-arg BASE_IMAGE=mirror/vllm:1 ." in log[2]
    assert log[3:] == [
        f"docker run --rm --network none {repository}:latest doctor",
        f"docker push --quiet {repository}:latest",
    ]
    failed = subprocess.run(
        ["bash", "-c", line], cwd=source, env={**env, "DOCTOR": "failed   vllm"}, capture_output=True
    )
    assert failed.returncode == 1
    assert "docker push" not in "".join((tmp_path / "log").read_text().splitlines()[len(log) :])


@pytest.mark.slow
def test_weights_are_brought_once(deployment: Deployment) -> None:
    """MODEL brings the weights into the models bucket by a build, once, and the runs read them there."""
    there, fake = deployment, deployment.fake
    models: list[str] = []

    def build(variables: dict[str, str]) -> None:
        if variables["STEP"] == "weights":
            models.append(variables["MODEL"])
            there.client("s3").put_object(Bucket=MODELS, Key=f"{models[-1]}/consolidated.safetensors", Body=b"x")
        else:
            there.push()

    fake.on_build = build
    there.run("deploy.sh", MODEL="owner/name", VERIFY="no")
    assert did(there.run("deploy.sh", MODEL="owner/name")) == []
    assert models == ["owner/name"]
    step = pipeline_of(fake.stacks["voxbatch"].stack)["Steps"][0]
    assert step["Arguments"]["Environment"]["VOXBATCH_MODEL"] == f"s3://{MODELS}/owner/name/"


@pytest.mark.slow
def test_deploy_says_what_is_missing(deployment: Deployment) -> None:
    """Nothing is made before it is known who is told of failures. A quota that is too small is told with the command
    that asks for more. A missing permission stops with the command; BUILD=no with those that push an image. Deployed
    again with the permission, it continues, and keeps what others have put on a bucket.
    """
    there, fake = deployment, deployment.fake
    refused = there.run("deploy.sh", code=1, ALERT_EMAIL="")
    assert refused[-1].endswith("set ALERT_EMAIL to a mail address, or ALERTS=no")
    fake.quotas = {"ml.g6.2xlarge for processing job usage": 0.0}
    for denied in ("ecr:describe-repositories", "cloudformation:deploy"):
        fake.deny = denied
        lines = there.run("deploy.sh", code=1)
        assert did(lines) == []
        command = denied.replace(":", " ")
        assert lines[-1].startswith(f"jobs/sagemaker: no permission for aws {command}: An error occurred")
        assert lines[-1].endswith("(docs/sagemaker.md lists the permissions that deploying needs)")
    assert there.client("s3").list_buckets()["Buckets"] == []
    fake.deny = ""

    topic = there.client("sns").create_topic(Name="other")["TopicArn"]
    other = {"TopicConfigurations": [{"Id": "other", "TopicArn": topic, "Events": ["s3:ObjectRemoved:*"]}]}
    there.client("s3").create_bucket(Bucket=IN, CreateBucketConfiguration={"LocationConstraint": REGION})
    there.client("s3").put_bucket_notification_configuration(Bucket=IN, NotificationConfiguration=other)
    lines = there.run("deploy.sh", code=1, BUILD="no")
    assert lines[-1] == "jobs/sagemaker: there is no image yet"
    assert "docker push" in lines[-2]
    there.push()
    lines = there.run("deploy.sh", VERIFY="yes")
    assert f"changed  events of bucket {IN}: now go to EventBridge" in lines
    kept = there.client("s3").get_bucket_notification_configuration(Bucket=IN)["TopicConfigurations"]
    assert [each["Id"] for each in kept] == ["other"]
    [at] = [at for at, line in enumerate(lines) if line.startswith("warning  the quota 'ml.g6.2xlarge for processing")]
    service, command, *rest = shlex.split(lines[at + 1])[1:]
    parameters(fake.operation(service, command), dict(pairs(rest)))
    assert not [line for line in lines if "trial" in line]


@pytest.mark.slow
def test_kernels_are_compiled_once_by_a_role_of_their_own(deployment: Deployment) -> None:
    """With KERNELS, one run of a recording of ours has the role that writes kernels, and all runs read them. A place
    that runs write, or strangers, is refused.
    """
    there, fake = deployment, deployment.fake
    there.run("deploy.sh", code=1, BUILD="no")
    there.push()
    runs: list[dict[str, str]] = []

    def run(parameters: dict[str, str]) -> None:
        runs.append(parameters)
        there.client("s3").put_object(Bucket=MODELS, Key="kernels/compiled/3f2a.tar.gz", Body=b"")

    fake.on_run = run
    fake.quotas = {"ml.g6.2xlarge for processing job usage": 4.0}
    there.run("deploy.sh", KERNELS="yes")
    submit = there.run("deploy.sh", KERNELS="yes")[-2].removeprefix("ready    voxbatch ")
    understood(*shlex.split(submit))
    assert f"--role arn:aws:iam::{ACCOUNT}:role/voxbatch-run --kernel-cache s3://{MODELS}/kernels/compiled" in submit
    assert f"--image {image_of(there)} " in submit
    [compiled] = runs
    assert compiled["Role"] == f"arn:aws:iam::{ACCOUNT}:role/voxbatch-kernels"
    assert (compiled["Bucket"], compiled["Key"]) == (MODELS, "kernels/source/kernels.jsonl")
    lines = there.client("s3").get_object(Bucket=MODELS, Key=compiled["Key"])["Body"].read().splitlines()
    assert {json.loads(line)["audio_filepath"] for line in lines} == {"weather.flac"}
    step = step_of(pipeline_of(fake.stacks["voxbatch"].stack))
    assert step["Environment"]["VOXBATCH_KERNEL_CACHE"] == f"s3://{MODELS}/kernels/compiled"
    assert step["RoleArn"] == f"arn:aws:iam::{ACCOUNT}:role/voxbatch-run"
    for place in (f"s3://{OUT}/kernels", f"s3://{IN}"):
        lines = there.run("deploy.sh", code=1, VOXBATCH_KERNEL_CACHE=place)
        assert any("kernels are code" in line for line in lines), lines
        lines = there.run("deploy.sh", code=1, VOXBATCH_MODEL=place)
        assert any("a model may hold code" in line for line in lines), lines


@pytest.mark.slow
def test_settings_live_with_the_stack(deployment: Deployment) -> None:
    """`HOURS_PER_HOST=100 deploy.sh` changes the hours and nothing else: schedule, folders, machines, model and options
    stay, and the script says what is changed. An empty setting goes back to the default. A dry run and a refused one
    change nothing. A quota that limits the hosts is not remembered. teardown.sh finds the buckets.
    """
    there, fake = deployment, deployment.fake
    there.run("deploy.sh", code=1, BUILD="no", OUT_BUCKET="texts", MODELS_BUCKET="weights")
    there.push()
    there.client("s3").put_object(Bucket="weights", Key="owner/name/a.safetensors", Body=b"x")
    fake.quotas = {"ml.g5.xlarge for processing job usage": 3.0}
    chosen: dict[str, Any] = {
        "SCHEDULE": "cron(0 2 * * ? *)", "NIGHTLY": "days/", "UPLOADS": "new/", "INSTANCE_TYPE": "ml.g5.xlarge",
        "INSTANCE_COUNT": "8", "MAX_HOURS": "5", "TAGS": "team=speech,cost=4 2", "MODEL": "owner/name",
        "KERNELS": "yes", "ALERT_EMAIL": "night@example.org", "VOXBATCH_FORMATS": "srt,vtt",
    }  # fmt: skip
    there.client("s3").put_object(Bucket="weights", Key="kernels/compiled/1.tar.gz", Body=b"x")
    there.run("deploy.sh", **chosen)
    before = fake.stacks["voxbatch"].given
    assert (before["InstanceCount"], before["OutBucket"]) == ("3", "texts")
    fake.quotas = {}
    lines = there.run("deploy.sh", HOURS_PER_HOST="100", ALERT_EMAIL="")
    assert fake.stacks["voxbatch"].given == {
        **before,
        "InstanceCount": "8", "HoursPerHost": "100", "Settings": "HOURS_PER_HOST=100\n" + before["Settings"],
    }  # fmt: skip
    lines = there.run("deploy.sh", HOURS_PER_HOST="50", ALERT_EMAIL="")
    assert "kept     settings of stack voxbatch, except HOURS_PER_HOST=50 (was 100)" in lines
    now = fake.stacks["voxbatch"].given
    there.run("deploy.sh", "--dry-run", HOURS_PER_HOST="7", ALERT_EMAIL="")
    there.run("deploy.sh", code=1, MAX_HOURS="0", ALERT_EMAIL="")
    assert (fake.stacks["voxbatch"].given, fake.plans) == (now, {})
    there.run("deploy.sh", MAX_HOURS="", ALERT_EMAIL="")
    assert fake.stacks["voxbatch"].given["MaxSeconds"] == "86400"
    plan = there.run("deploy.sh", "--dry-run", SCHEDULE="", ALERT_EMAIL="")  # moto cannot remove the rule
    assert "kept     settings of stack voxbatch, except SCHEDULE= (was cron(0 2 * * ? *))" in plan
    assert ["Remove", "None", "AWS::Events::Rule", "NightlyRule"] in [line.split() for line in plan]
    assert did(there.run("deploy.sh", ALERT_EMAIL="")) == []
    lines = there.run("teardown.sh")
    assert (
        "kept     bucket texts: a setting named it; aws s3 rb --force s3://texts deletes it with all that is in it"
        in lines
    )


@pytest.mark.slow
def test_defaults_and_builds_take_no_notice_of_what_is_remembered(deployment: Deployment) -> None:
    """--defaults forgets all settings; a build takes no notice of the digest of a rollback."""
    there, fake = deployment, deployment.fake
    there.run("deploy.sh", code=1, BUILD="no")
    digest = there.push()
    there.run("deploy.sh", IMAGE_TAG=digest, DISK_GB="200")
    assert fake.stacks["voxbatch"].given["Settings"] == f"DISK_GB=200\nIMAGE_TAG={digest}\n"

    def build(_: dict[str, str]) -> None:
        there.push()

    fake.on_build = build
    there.run("deploy.sh", BUILD="yes", VERIFY="no")
    assert "IMAGE_TAG" not in fake.stacks["voxbatch"].given["Settings"]
    there.run("deploy.sh", "--defaults")
    assert fake.stacks["voxbatch"].given["DiskGB"] == "100"
    assert "--dry-run (show what would change)" in there.run("deploy.sh", "--all", code=1)[-1]


@pytest.mark.slow
def test_plan_is_shown_and_losses_need_a_yes(deployment: Deployment) -> None:
    """The plan names each resource that changes. A plan that replaces a bucket is not executed without REPLACE=yes. A
    dry run of the first deployment leaves no stack.
    """
    there, fake = deployment, deployment.fake
    lines = there.run("deploy.sh", "--dry-run")
    assert "         Add\tNone\tAWS::S3::Bucket\tRecordings" in lines
    assert lines[-1] == "plan     then a build of: image; and the stack gets the pipeline with the image"
    assert (fake.stacks, fake.plans, there.client("s3").list_buckets()["Buckets"]) == ({}, {}, [])
    there.run("deploy.sh", code=1, BUILD="no")
    there.push()
    there.run("deploy.sh")
    before = fake.stacks["voxbatch"]
    lines = there.run("deploy.sh", "--dry-run", HOURS_PER_HOST="7")
    assert lines.count("         Modify\tFalse\tAWS::Lambda::Function\tUploadsFunction") == 1
    lines = there.run("deploy.sh", IN_BUCKET="others", code=1)
    assert lines.count("         Modify\tTrue\tAWS::S3::Bucket\tRecordings") == 2
    assert lines[-1].endswith("look after what is in there and set REPLACE=yes")
    assert (fake.stacks["voxbatch"], fake.plans) == (before, {})
    there.run("deploy.sh", IN_BUCKET="others", REPLACE="yes")
    assert fake.stacks["voxbatch"].given["InBucket"] == "others"


SECRET = f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:hub-AbCdEf"


@pytest.mark.slow
def test_settings_reach_the_stack(deployment: Deployment) -> None:
    """Keys, subnets, tags, options and fallbacks of settings.sh are parameters of the stack, and so in the job."""
    fake = deployment.fake
    deployment.run("deploy.sh", code=1, BUILD="no")
    deployment.push()
    deployment.run(
        "deploy.sh", KMS_KEY=KEY, VOLUME_KMS_KEY=KEY, INSTANCE_TYPE="ml.c6i.2xlarge", SUBNETS="subnet-1,subnet-2",
        FALLBACK_TYPES="ml.c7i.2xlarge,ml.m7i.2xlarge", SECURITY_GROUPS="sg-1", TAGS="team=speech,cost=42",
        HUB_TOKEN_SECRET=SECRET, SCHEDULE="cron(0 2 * * ? *)", VOXBATCH_FORMATS="srt,vtt", MAX_HOURS="2",
    )  # fmt: skip
    made = fake.stacks["voxbatch"]
    assert made.tags == {"team": "speech", "cost": "42"}
    step = step_of(pipeline_of(made.stack))
    validated("sagemaker", "CreateProcessingJobRequest", {"ProcessingJobName": "x", **step})
    assert step["NetworkConfig"] == {"VpcConfig": {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]}}
    cluster = step["ProcessingResources"]["ClusterConfig"]
    preferred = ("ml.c6i.2xlarge", "ml.c7i.2xlarge", "ml.m7i.2xlarge")
    assert cluster["InstancePreferences"] == [{"InstanceType": each} for each in preferred]
    assert (cluster["VolumeKmsKeyId"], "InstanceType" in cluster) == (KEY, False)
    assert {each["Key"]: each["Value"] for each in step["Tags"]} == made.tags
    assert (step["Environment"]["VOXBATCH_FORMATS"], step["Environment"]["HF_TOKEN_SECRET"]) == ("srt,vtt", SECRET)
    assert step["StoppingCondition"] == {"MaxRuntimeInSeconds": 7200}


@pytest.mark.slow
def test_hub_token_comes_from_the_secret(moto: str, tmp_path: Path) -> None:
    """voxbatch receives the hub token from Secrets Manager. The job's description has the secret's ARN and no token. A
    job that may not read it ends before voxbatch starts.
    """
    secrets = Deployment(moto).client("secretsmanager")
    arn = secrets.create_secret(Name="hub", SecretString="hf_token of ours")["ARN"]
    pipeline = pipeline_of(jobs_stack(HubTokenSecret=arn))
    assert "hf_token" not in json.dumps(pipeline)
    step = step_of(pipeline)
    assert all(len(each) <= 256 for each in step["AppSpecification"]["ContainerEntrypoint"])
    # through a link, the Python of an environment would not find the packages; in an image, python3 itself is on PATH
    python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    for name, script in {"voxbatch": '#!/bin/sh\nprintf "%s\\n" "$HF_TOKEN" "$$" "$@"\n', "python3": python}.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    env = environment(**step["Environment"], **login(moto), PATH=f"{tmp_path}:{os.environ['PATH']}")
    command = step["AppSpecification"]["ContainerEntrypoint"]
    process = subprocess.Popen(command, env=env, stdout=-1, text=True)
    said = process.communicate()[0].splitlines()
    assert said == ["hf_token of ours", str(process.pid), "run", "s3://calls-in/x", "-o", "s3://calls-out/x"]
    secrets.delete_secret(SecretId=arn, ForceDeleteWithoutRecovery=True)
    failed = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "ResourceNotFoundException" in failed.stderr


@pytest.mark.parametrize(
    ("script", "setting"),
    [
        ("deploy.sh", "INSTANCE_COUNT=4"),
        ("teardown.sh", "NAME=voxbatch"),
        ("endpoint/deploy.sh", "MAX_INSTANCES=1"),
        ("endpoint/teardown.sh", "MODE=realtime"),
    ],
)
def test_help_needs_no_account(script: str, setting: str, tmp_path: Path) -> None:
    """`--help` prints the use, the options and the settings with their defaults, without the AWS CLI, an account or a
    region.
    """
    command = ["bash", str(SAGEMAKER / script), "--help"]
    ran = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path, capture_output=True, text=True)
    lines = ran.stdout.splitlines()
    assert (ran.returncode, ran.stderr, lines[0]) == (
        0,
        "",
        f"usage: [NAME=VALUE …] jobs/sagemaker/{script} [OPTION …]",
    )
    assert "--dry-run" in ran.stdout
    assert ("--defaults" in ran.stdout) or "teardown" in script
    assert [line for line in lines if line.startswith(f"{setting} ")]
    assert "shellcheck" not in ran.stdout


@pytest.mark.slow
def test_invalid_settings_are_refused(deployment: Deployment) -> None:
    """Invalid settings are refused with the reason, before any resource is made."""
    for settings, message in (
        ({"OUT_BUCKET": IN}, "IN_BUCKET and OUT_BUCKET must differ: outputs are .jsonl too, and would start runs"),
        ({"UPLOADS": "uploads"}, "Parameter Uploads failed to satisfy constraint: it must end in / and hold no *"),
        ({"NAME": "Vox_batch"}, "Parameter Name failed to satisfy constraint: small letters, digits and single -"),
        (
            {"SCHEDULE": "rate(1 day)", "NIGHTLY": "uploads/n.jsonl"},
            "(uploads/n.jsonl) and UPLOADS (uploads/) lie one in",
        ),
        ({"SCHEDULE": "rate(1 day)", "UPLOADS": "nightly/in/"}, "(nightly/) and UPLOADS (nightly/in/) lie one in"),
        ({"SCHEDULE": "0 2 * * *"}, "SCHEDULE is '0 2 * * *'; AWS takes cron(0 2 * * ? *), in UTC, or rate(1 day)"),
        ({"NIGHTLY": "nightly"}, "Parameter Nightly failed to satisfy constraint: it must be a folder, with / at its"),
        (
            {"VOXBATCH_MODEL": "s3://" + "m" * 300},
            "Parameter Options failed to satisfy constraint: the value of an option",
        ),
        ({"INSTANCE_COUNT": "many"}, "Parameter 'InstanceCount' must be a number."),
        ({"MAX_HOURS": "0"}, "MAX_HOURS is '0'; it must be a whole number from 1"),
        ({"SUBNETS": "subnet-1"}, "SUBNETS and SECURITY_GROUPS belong together"),
        ({"HUB_TOKEN_SECRET": "hf_x"}, "it must be a secret's ARN, and never the token itself"),
        ({"KMS_KEY": "alias/x"}, "Parameter KmsKey failed to satisfy constraint: it must be a key's ARN"),
        ({"VOLUME_KMS_KEY": KEY}, "an ml.g6.2xlarge has disks of its own"),
        ({"FALLBACK_TYPES": "a,b,c,d,e"}, "a run takes up to four of them"),
        ({"TAGS": "team"}, "TAGS is 'team'; it must be NAME=VALUE,NAME=VALUE"),
        ({"BUILD": "maybe"}, "BUILD is 'maybe'; it must be yes, no or empty"),
    ):
        lines = deployment.run("deploy.sh", code=1, **settings)
        assert (did(lines), message in "\n".join(lines)) == ([], True), lines
    for script, word in (("teardown.sh", "--all"), ("teardown.sh", "plan"), ("endpoint/teardown.sh", "--with-data")):
        [line] = deployment.run(script, word, code=1)
        assert line.startswith("jobs/sagemaker: teardown.sh takes --dry-run (show what would be removed)")
        assert line.endswith(f"; it was given: {word}")
    [line] = deployment.run("teardown.sh", code=1, OUTBUCKET="texts")
    assert "OUTBUCKET is no setting, and nothing reads it: did you mean OUT_BUCKET?" in line


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("iam get-role --role x", "Unknown options: --role"),
        ("iam get-role", 'Missing required parameter in input: "RoleName"'),
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

WITHOUT_RESOURCES = {
    "ecr:GetAuthorizationToken", "cloudwatch:PutMetricData", "ec2:DescribeDhcpOptions", "ec2:DescribeSubnets",
    "ec2:DescribeNetworkInterfaces", "ec2:DescribeSecurityGroups", "ec2:DescribeVpcs",
}  # fmt: skip
"""Actions that support no resource, according to AWS's table of actions."""
OPTIONAL = {
    "Subnets": "subnet-1,subnet-2", "SecurityGroups": "sg-1", "Tags": '{"Key": "team", "Value": "speech"}',
    "KmsKey": KEY, "VolumeKmsKey": KEY, "HubTokenSecret": SECRET, "Schedule": "rate(1 day)",
}  # fmt: skip


def statements(stack: Stack) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the statements of all policies, with the logical name of their resource."""
    for name, (kind, properties) in stack.resources.items():
        documents = [properties["PolicyDocument"]] if "PolicyDocument" in properties else []
        if kind == "AWS::IAM::Role":
            documents = [
                properties["AssumeRolePolicyDocument"],
                *(each["PolicyDocument"] for each in properties["Policies"]),
            ]
        for document in documents:
            assert document["Version"] == "2012-10-17"
            yield from ((name, statement) for statement in document["Statement"])


def test_policies_name_actions_and_resources() -> None:
    """Each statement allows named actions on named resources, but for those that deny: buckets without TLS, and to the
    build what others execute. "*" is used only for actions that support no resource, and the condition of each trust
    policy limits the service to this account. Without the optional settings, a stack has fewer statements and no empty
    resource.
    """
    few, every = list(statements(jobs_stack())), list(statements(jobs_stack(**OPTIONAL)))
    assert len(few) < len(every)
    assert all(statement.get("Resource", "x") for _, statement in few)
    for name, statement in every:
        if statement["Effect"] == "Deny":
            if name == "BuildRole":
                assert statement["Action"] == "s3:PutObject"
                names = [resource.rpartition(":::")[2].partition("/")[2] for resource in statement["Resource"]]
                assert names == ["kernels/*", "source.zip"]
            else:
                assert (name[-6:], statement["Action"]) == ("Policy", "s3:*")
            continue
        actions = {statement["Action"]} if isinstance(statement["Action"], str) else set(statement["Action"])
        assert all(re.fullmatch(r"[a-z0-9]+:[A-Z][A-Za-z0-9]+", action) for action in actions)
        if "Principal" in statement:
            assert set(statement["Principal"]) == {"Service"}
            assert statement["Condition"]
        given = statement.get("Resource", [])
        resources = [given] if isinstance(given, str) else given
        assert ("*" in resources) <= (actions <= WITHOUT_RESOURCES)
        assert all(each == "*" or each.startswith("arn:aws:") for each in resources)


def test_buckets_refuse_connections_without_tls(moto: str) -> None:
    """The policy of the buckets denies a connection without TLS."""
    policies = {
        name: properties for name, (_, properties) in jobs_stack().resources.items() if name.endswith("sPolicy")
    }
    buckets = {name: properties["PolicyDocument"] for name, properties in policies.items() if "Bucket" in properties}
    assert buckets.keys() == {"RecordingsPolicy", "TranscriptsPolicy", "ModelsPolicy"}
    s3 = Deployment(moto).client("s3")
    s3.create_bucket(Bucket="calls-in", CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_bucket_policy(Bucket="calls-in", Policy=json.dumps(buckets["RecordingsPolicy"]))
    with pytest.raises(ClientError, match="Forbidden"):
        s3.put_object(Bucket="calls-in", Key="a", Body=b"")


EXCEPTIONS = {
    "Step.SERVICE_FAULT", "Step.THROTTLING", "SageMaker.JOB_INTERNAL_ERROR", "SageMaker.CAPACITY_ERROR",
    "SageMaker.RESOURCE_LIMIT",
}  # fmt: skip
"""Types that AWS's SDK for pipelines sends. AWS's guide has SageMaker.JOB_CAPACITY_ERROR for the fourth."""


def test_retry_policies_have_the_form_of_aws_own_client() -> None:
    """Each retry policy has a list of types that AWS's SDK knows, and attempts or a time within their limits."""
    [step] = pipeline_of(jobs_stack())["Steps"]
    for policy in step["RetryPolicies"]:
        assert isinstance(policy["ExceptionType"], list)
        assert set(policy["ExceptionType"]) <= EXCEPTIONS
        assert ("MaxAttempts" in policy) != ("ExpireAfterMin" in policy)
        assert (policy.get("MaxAttempts", 1) <= 20, policy.get("ExpireAfterMin", 1) <= 14_400) == (True, True)
    assert {each for policy in step["RetryPolicies"] for each in policy["ExceptionType"]} == EXCEPTIONS


@pytest.mark.slow
@pytest.mark.parametrize(
    "given", [{}, {**OPTIONAL, "FallbackTypes": "ml.g6e.2xlarge,ml.g7.2xlarge"}], ids=["few", "all"]
)
def test_pipeline_step_is_a_valid_request(given: dict[str, str]) -> None:
    """The step of the pipeline, with its parameters filled in, is a valid CreateProcessingJob request."""
    pipeline = pipeline_of(jobs_stack(**given))
    defaults = {parameter["Name"]: parameter.get("DefaultValue") for parameter in pipeline["Parameters"]}
    assert {type(defaults[name]) for name in ("InstanceCount", "DiskGB", "MaxSeconds")} == {int}
    step = step_of(pipeline)
    validated("sagemaker", "CreateProcessingJobRequest", {"ProcessingJobName": "x", **step})
    assert all(len(each) <= 256 for each in step["AppSpecification"]["ContainerEntrypoint"])
    cluster = step["ProcessingResources"]["ClusterConfig"]
    assert ("InstanceType" in cluster) != ("InstancePreferences" in cluster)
    known = botocore.session.get_session().get_service_model("sagemaker").shape_for("ProcessingInstanceType").enum
    assert {each["InstanceType"] for each in cluster.get("InstancePreferences", [cluster])} <= set(known)


def login(endpoint: str) -> dict[str, str]:
    """Return the variables that lead a client of AWS to the test server."""
    return {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


@pytest.mark.parametrize(
    ("key", "name", "out"),
    [
        ("uploads/a b's.jsonl", "uploads/a b's.jsonl", "uploads/a b's"),
        ("uploads/$(id).jsonl.gz", "uploads/$(id).jsonl.gz", "uploads/$(id)"),
        ("nightly/", "nightly/", "nightly"),
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
    step = step_of(pipeline_of(jobs_stack()))
    env = {"SOURCE_BUCKET": "in", "SOURCE_KEY": key, "OUTPUT_IN": "s3://out", "OUTPUT_NAME": name}
    assert env.keys() < step["Environment"].keys()
    env["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    process = subprocess.Popen(step["AppSpecification"]["ContainerEntrypoint"], env=env, stdout=-1, text=True)
    said = process.communicate()[0].splitlines()
    assert said == [str(process.pid), "run", f"s3://in/{key}", "-o", f"s3://out/{out}"]


@pytest.mark.slow
def test_only_uploaded_manifests_start_a_run() -> None:
    """Only uploaded manifests start a run, and EventBridge accepts the rules and their targets."""
    stack = jobs_stack(**OPTIONAL)
    pattern = stack.resources["UploadsRule"][1]["EventPattern"]["detail"]["object"]["key"]
    keys = {
        "uploads/a.jsonl": True, "uploads/2026/11/a.jsonl.gz": True, "uploads/a.wav": False, "a.jsonl": False,
        "nightly/a.jsonl": False, "uploads/a.jsonl.tmp": False,
    }  # fmt: skip
    assert {key: any(fnmatchcase(key, each["wildcard"]) for each in pattern) for key in keys} == keys
    rules = {name: properties for name, (kind, properties) in stack.resources.items() if kind == "AWS::Events::Rule"}
    assert len(rules) == 4
    names = {each["Name"]: "DefaultValue" in each for each in pipeline_of(stack)["Parameters"]}
    for name, properties in rules.items():
        validated("events", "PutTargetsRequest", {"Rule": name, "Targets": properties["Targets"]})
        [target] = properties["Targets"]
        if name == "NightlyRule":
            given = {each["Name"] for each in target["SageMakerPipelineParameters"]["PipelineParameterList"]}
            assert {name for name, has_default in names.items() if not has_default} <= given <= names.keys()


def uploads_function() -> dict[str, Any]:
    """Return the names that the code of the function defines."""
    defined: dict[str, Any] = {}
    exec(jobs_stack().resources["UploadsFunction"][1]["Code"]["ZipFile"], defined)
    return defined


@pytest.mark.parametrize(
    ("lines", "hosts"),
    [
        ([], 1),
        ([{"duration": 3600}] * 3, 1),
        ([{"duration": 36_000}] * 101, 3),
        ([{"duration": 36_000}] * 5000, 8),
        ([{"duration": 900_000}] * 3, 2),
        ([{"duration": 900_000}] * 2, 2),
        ([{"duration": 36_000}, {}] * 51, 3),
        ([{}] * 5000, 1),
        ([{"duration": "36000"}, {"duration": -1}, {"duration": 1e300}, {"duration": True}], 1),
    ],
)
def test_hosts_follow_the_hours(lines: list[dict[str, Any]], hosts: int) -> None:
    """There is a host for each 400 hours, at most one for an item, and at most as many as are allowed."""
    manifest = [json.dumps(line).encode() + b"\n" for line in lines]
    assert uploads_function()["hosts"](manifest, 400.0, 8) == hosts


@pytest.mark.parametrize("line", [b"no json\n", b"[1]\n", b"\xff\n"])
def test_a_manifest_that_is_none_has_one_host(line: bytes) -> None:
    """The host says what is wrong."""
    assert uploads_function()["hosts"]([b'{"duration": 9000000}\n', line], 400.0, 8) == 1


@pytest.mark.slow
@pytest.mark.parametrize("key", ["uploads/a b's.jsonl", "uploads/2026/day.jsonl.gz"])
def test_an_upload_starts_the_pipeline_with_its_hosts(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """The function of the stack starts its pipeline for the uploaded manifest, with a host for each 100 hours."""
    there, fake = deployment, deployment.fake
    there.run("deploy.sh", code=1, BUILD="no")
    there.push()
    there.run("deploy.sh", INSTANCE_COUNT="8", HOURS_PER_HOST="100", HOSTS_PER_DAY="9")
    manifest = b'{"audio_filepath": "a.wav", "duration": 36000}\n' * 50
    there.client("s3").put_object(Bucket=IN, Key=key, Body=gzip.compress(manifest) if ".gz" in key else manifest)
    properties = fake.stacks["voxbatch"].stack.resources["UploadsFunction"][1]
    for name, value in {**login(there.endpoint), **properties["Environment"]["Variables"]}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    event = {"id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718", "detail": {"bucket": {"name": IN}, "object": {"key": key}}}
    uploads_function()["start"](event, None)
    client = there.client("sagemaker")
    [run] = client.list_pipeline_executions(PipelineName="voxbatch")["PipelineExecutionSummaries"]
    arn = run["PipelineExecutionArn"]
    parameters = client.list_pipeline_parameters_for_execution(PipelineExecutionArn=arn)["PipelineParameters"]
    assert {parameter["Name"]: parameter["Value"] for parameter in parameters} == {
        "Bucket": IN, "Key": key, "OutputName": key, "InstanceCount": "5",
    }  # fmt: skip
    assert run["PipelineExecutionDisplayName"] == "5-hosts-6a7e8feb"
    refused = (
        "5 hosts, and the runs of this day \\(UTC\\) had 5; HOSTS_PER_DAY is 9: .* raise HOSTS_PER_DAY of deploy.sh"
    )
    with pytest.raises(RuntimeError, match=refused):
        uploads_function()["start"]({**event, "id": "7b7e8feb-b491-4cf7-a9f1-bf3703467718"}, None)
    client.start_pipeline_execution(PipelineName="voxbatch", PipelineParameters=[])  # a night has one host
    monkeypatch.setenv("HOSTS_PER_DAY", "10")
    with pytest.raises(RuntimeError, match="had 6; HOSTS_PER_DAY is 10"):
        uploads_function()["start"]({**event, "id": "7b7e8feb-b491-4cf7-a9f1-bf3703467718"}, None)
    monkeypatch.setenv("HOSTS_PER_DAY", "11")
    uploads_function()["start"]({**event, "id": "7b7e8feb-b491-4cf7-a9f1-bf3703467718"}, None)
    assert len(client.list_pipeline_executions(PipelineName="voxbatch")["PipelineExecutionSummaries"]) == 3
    uploads_function()["start"](event, None)  # an event that comes twice is asked for by its token, and not refused


@pytest.mark.slow
def test_uploads_at_once_start_no_more_hosts_than_a_day_has(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day of nine hosts has room for four of ten uploads of two hosts each that come at once; no more start."""
    there = deployment
    there.run("deploy.sh", code=1, BUILD="no")
    there.push()
    there.run("deploy.sh", INSTANCE_COUNT="8", HOURS_PER_HOST="100", HOSTS_PER_DAY="9")
    manifest = b'{"audio_filepath": "a.wav", "duration": 360000}\n' * 2
    there.client("s3").put_object(Bucket=IN, Key="uploads/a.jsonl", Body=manifest)
    properties = there.fake.stacks["voxbatch"].stack.resources["UploadsFunction"][1]
    for name, value in {**login(there.endpoint), **properties["Environment"]["Variables"]}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    start, together, detail = uploads_function()["start"], threading.Barrier(10), {"bucket": {"name": IN}}

    def upload(number: int) -> str:
        """Return the reason for which an upload has not started its run, or ""."""
        event = {
            "id": f"{number:08d}-eb91-4cf7-a9f1-bf3703467718",
            "detail": {**detail, "object": {"key": "uploads/a.jsonl"}},
        }
        together.wait()
        try:
            start(event, None)
        except RuntimeError as e:
            return str(e)
        return ""

    with ThreadPoolExecutor(10) as threads:
        reasons = [*threads.map(upload, range(10))]
    runs = there.client("sagemaker").list_pipeline_executions(PipelineName="voxbatch")["PipelineExecutionSummaries"]
    assert (reasons.count(""), len(runs)) == (4, 4), reasons
    assert all(
        "needs 2 hosts, and the runs of this day (UTC) had 8; HOSTS_PER_DAY is 9" in text for text in reasons if text
    )


# ── SageMaker: template.yaml ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("template", ["template.yaml", "endpoint/template.yaml"])
def test_cfn_lint_finds_no_fault(template: str) -> None:
    """cfn-lint, which has AWS's schema of each resource, finds no fault in the template."""
    program = Path(sys.executable).with_name("cfn-lint")
    if not program.exists():
        pytest.skip("cfn-lint is not installed")
    done = subprocess.run([program, SAGEMAKER / template], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_stack_without_an_image_starts_nothing() -> None:
    """A stack without an image has no pipeline and no rules that start it; AlertEmail=no makes no topic."""
    gone = (
        jobs_stack(Schedule="rate(1 day)").resources.keys()
        - jobs_stack(ImageDigest="", AlertEmail="no").resources.keys()
    )
    rules = {"UploadsRule", "NightlyRule", "FailedRunsRule", "FailedJobsRule"}
    function = {"UploadsFunction", "UploadsRetries", "UploadsPermission"}
    alarms = {"DeadAlarm", "FailedItems", "FailedItemsAlarm"}
    assert gone == {"Pipeline", "Alerts", "AlertsPolicy", *alarms, *function, *rules}


@pytest.mark.slow
@pytest.mark.parametrize("template", [SAGEMAKER / "template.yaml", ROOT / "jobs" / "aws-batch" / "template.yaml"])
def test_alarm_counts_the_failed_items_of_a_run(
    template: Path, tmp_path: Path, manifest: ManifestWriter, voxbatch: Voxbatch
) -> None:
    """The filter takes one line of the log of a run with failed items, and no other line; the alarm has its metric."""
    resources = load(template)["Resources"]
    [transformation] = resources["FailedItems"]["Properties"]["MetricTransformations"]
    alarm = resources["FailedItemsAlarm"]["Properties"]
    assert (alarm["Namespace"], alarm["MetricName"]) == tuple(
        transformation[key] for key in ("MetricNamespace", "MetricName")
    )
    terms = re.findall(r'\(\$\.(\w+) (=|>) ("?)(\w+)\3\)', resources["FailedItems"]["Properties"]["FilterPattern"])

    def counted(line: str) -> list[int]:
        event = json.loads(line)
        holds = [
            event.get(key) == word if sign == "=" else event.get(key, 0) > int(word) for key, sign, _, word in terms
        ]
        return [event[transformation["MetricValue"].removeprefix("$.")]] if all(holds) else []

    assert len(terms) == 2
    for seconds, failed in ((None, [1]), (0.5, [])):
        out = f"out-{seconds}"
        done = voxbatch("run", manifest(0.6, seconds), "-o", out, "--log-format", "json", *FAST)
        assert [number for line in done.stderr.splitlines() for number in counted(line)] == failed


# ── SageMaker: submit.py ──────────────────────────────────────────────────────────────────────────────────────────────

ARN = f"arn:aws:iam::{ACCOUNT}:role/voxbatch-run"
ASKED = ("s3://in/calls.jsonl", "-o", "s3://out/calls", "--image", "i:1", "--role", ARN)


def requested(*arguments: str) -> dict[str, Any]:
    """Return the request of submit.py for these arguments, checked against the service model."""
    body = submit.request(submit.options(arguments))
    validated("sagemaker", "CreateProcessingJobRequest", body)
    return dict(body)


@pytest.mark.slow
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
    there = Deployment(moto)
    there.client("s3").create_bucket(Bucket="out", CreateBucketConfiguration={"LocationConstraint": REGION})
    submit.main(["s3://in/rec/", *ASKED[1:], "--by-key", "--name", "n", "--region", REGION])
    job = there.client("sagemaker").describe_processing_job(ProcessingJobName="n")
    assert job["ProcessingJobArn"] in capsys.readouterr().out
    script = there.client("s3").get_object(Bucket="out", Key="calls/code/entry.sh")["Body"].read()
    assert script == (SAGEMAKER / "entry.sh").read_bytes()


# ── SageMaker: entry.sh ───────────────────────────────────────────────────────────────────────────────────────────────


def entry(base: Path, path: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run entry.sh with the SageMaker files below `base`."""
    env = environment(SAGEMAKER_BASE_DIR=str(base), PATH=path)
    return subprocess.run([SAGEMAKER / "entry.sh", *options], env=env, capture_output=True, text=True, timeout=240)


def test_hosts_of_the_pipeline_give_the_bytes_of_one_process(
    moto: str, tmp_path: Path, manifest: ManifestWriter, voxbatch: Voxbatch, program: str
) -> None:
    """Three hosts that run the pipeline's job produce the bytes of one process in the bucket."""
    path = manifest(*[0.5 + i / 10 for i in range(7)], None, text="one two", lang="en")
    assert voxbatch("run", path, "-o", "alone", *FAST).returncode == 3
    names = ("transcripts.jsonl", *(f"srt/r{i}.srt" for i in range(7)))
    alone = {name: (tmp_path / "alone" / name).read_bytes() for name in names}
    client = Deployment(moto).client("s3")
    for bucket in ("calls-in", "calls-out"):
        client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
    for file in (path, *tmp_path.glob("*.wav")):
        client.upload_file(str(file), "calls-in", f"uploads/{file.name}")
    step = step_of(pipeline_of(jobs_stack()), Key="uploads/m.jsonl", OutputName="uploads/m.jsonl")
    variables = {**step["Environment"], **login(moto), "PATH": program}
    hosts = ["algo-1", "algo-2", "algo-3"]
    bases = [container(tmp_path / host, host, hosts, ProcessingJobName="pipelines-x") for host in hosts]
    command = [*step["AppSpecification"]["ContainerEntrypoint"], *FAST]
    environments = [environment(**variables, SAGEMAKER_BASE_DIR=base) for base in bases]
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
    step = step_of(pipeline_of(jobs_stack()), Key="missing.jsonl")
    limited = ["setpriv", "--bounding-set=-dac_override"]  # root without its right to write everywhere
    env = environment(**step["Environment"], **login(moto), PATH=program, SAGEMAKER_BASE_DIR=str(base))
    command = [*limited, *step["AppSpecification"]["ContainerEntrypoint"]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd="/", timeout=120)
    assert done.returncode == 2, done.stderr
    assert "s3://calls-in/missing.jsonl" in json.loads(done.stderr.splitlines()[-1])["text"]
    assert (base / "output" / "message").exists() == (owner == 0)


# ── SageMaker: nights ─────────────────────────────────────────────────────────────────────────────────────────────────


class Nights:
    """The nightly run: the job that the nightly rule starts, as a process in front of two buckets."""

    def __init__(self, endpoint: str, tmp_path: Path, path: str):
        self.folder, self.path, self.count = tmp_path, path, 0
        self.there = Deployment(endpoint)
        self.s3 = self.there.client("s3")
        for bucket in ("in", "out"):
            self.s3.create_bucket(Bucket=f"calls-{bucket}", CreateBucketConfiguration={"LocationConstraint": REGION})

    def upload(self, name: str, path: Path) -> None:
        self.s3.upload_file(str(path), "calls-in", f"nightly/{name}")

    def run(self) -> str:
        """Run the container of one execution, with the parameters that the nightly rule gives, and return its log. It
        succeeds.
        """
        stack = jobs_stack(Schedule="rate(1 day)")
        [target] = stack.resources["NightlyRule"][1]["Targets"]
        given = {each["Name"]: each["Value"] for each in target["SageMakerPipelineParameters"]["PipelineParameterList"]}
        assert int(given["InstanceCount"]) == 1
        step = step_of(pipeline_of(stack), **given)
        self.count += 1
        base = container(self.folder / f"execution-{self.count}", "algo-1", ["algo-1"])
        env = environment(**step["Environment"], **login(self.there.endpoint), PATH=self.path, SAGEMAKER_BASE_DIR=base)
        command = [*step["AppSpecification"]["ContainerEntrypoint"], *FAST]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stderr

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
    """Each night transcribes what no night before has finished: new recordings, and those that were replaced. Removed
    ones keep their transcripts. A night without recordings succeeds. test_growing.py has nights that are killed or
    started twice.
    """
    nights = Nights(moto, tmp_path, program)
    assert "holds no recordings; it is empty; nothing to do" in nights.run()
    for name in "abc":
        nights.upload(f"{name}.wav", recording(f"{name}.wav", 1.1))
    assert num_new(nights.run()) == 3
    first = nights.lines()
    assert set(first) == {"a.wav", "b.wav", "c.wav"}

    nights.upload("d.wav", recording("d.wav", 1.6))
    nights.upload("b.wav", recording("other.wav", 2.6))
    nights.s3.delete_object(Bucket="calls-in", Key="nightly/c.wav")
    assert num_new(nights.run()) == 2
    second = nights.lines()
    assert set(second) == {*first, "d.wav"}
    assert {name: second[name] for name in ("a.wav", "c.wav")} == {name: first[name] for name in ("a.wav", "c.wav")}
    assert json.loads(second["b.wav"])["audio_duration"] == 2.6


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
    assert entry(base, program).returncode == 2
    assert "input/recordings is not there: the job needs an input with that LocalPath" in message.read_text()
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
