"""Tests for the job files of Kubernetes, Slurm, Batch and other places, and for the form of all scripts. The platforms
accept the descriptions.
"""

from __future__ import annotations

import ast
import copy
import inspect
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import discovery
import pytest
import yaml
from cloudrun_plan import of_kind, planned
from conftest import ROOT, ManifestWriter, Voxbatch, environment, understood
from holds import Hold
from outputs import FAST, outputs

import voxbatch.ray
from voxbatch.runner.progress import FINAL_COMMIT_TIMEOUT_S
from voxbatch.storage import Stores

JOBS = ROOT / "jobs"
SAGEMAKER = JOBS / "sagemaker"
SCRIPTS = sorted(path for path in JOBS.rglob("*") if path.suffix in {".sh", ".sbatch"})


# ── scripts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_scripts_are_executable() -> None:
    """All scripts are executable, except for those that are only sourced."""
    sourced = {
        str(path.relative_to(SAGEMAKER))
        for path in SCRIPTS
        if SAGEMAKER in path.parents and not os.access(path, os.X_OK)
    }
    assert sourced == {"common.sh", "settings.sh", "endpoint/settings.sh"}
    assert os.access(JOBS / "slurm" / "submit.sh", os.X_OK)


@pytest.mark.parametrize(
    ("script", "name", "meant"),
    [
        ("cloudrun/deploy.sh", "MAXTASKS", "MAX_TASKS"),
        ("cloudrun/deploy.sh", "max_usd", "MAX_USD"),
        ("cloudrun/deploy.sh", "MEMORY_GB", "MEMORY_GIB"),
        ("cloudrun/service/deploy.sh", "CONCURENCY", "CONCURRENCY"),
        ("cloudrun/teardown.sh", "BUCKETIN", "BUCKET_IN"),
        ("cloudrun/deploy.sh", "REIGON", "REGION"),
        ("sagemaker/deploy.sh", "BUIDL", "BUILD"),
        ("sagemaker/deploy.sh", "INSTANCES_COUNT", "INSTANCE_COUNT"),
        ("sagemaker/deploy.sh", "MAX_HUORS", "MAX_HOURS"),
        ("sagemaker/endpoint/deploy.sh", "FALLBACK_TYPE", "FALLBACK_TYPES"),
    ],
)
def test_a_mistyped_setting_is_refused(script: str, name: str, meant: str, tmp_path: Path) -> None:
    """A deploy.sh stops before any change at an exported name that is nearly that of a setting, and says which."""
    for program, answer in (("aws", "123456789012"), ("gcloud", ""), ("terraform", "Terraform v1.9.0")):
        (tmp_path / program).write_text(f"#!/bin/sh\necho {answer}\n")
        (tmp_path / program).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "AWS_REGION": "eu-west-1", "TAG": "v1", "MODELS": "2", name: "4"}
    ran = subprocess.run(["bash", str(JOBS / script)], env=env, capture_output=True, text=True)
    message = f"{name} is no setting, and nothing reads it: did you mean {meant}? If not: unset {name}"
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.strip().partition(": ")[2] == message


# ── Kubernetes ────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def manifests() -> dict[str, Any]:
    """Return the parsed Kubernetes manifests by file name."""
    files = sorted((JOBS / "kubernetes" / "base").glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text()) for file in files if file.stem != "kustomization"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["base", "gke", "eks", "gke-spot", "eks-spot"])
def test_kubernetes_manifests_are_valid(name: str) -> None:
    """Each manifest is valid under the schema of Kubernetes 1.30, which allows no unknown field."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    made = by_kind(name)
    assert made.keys() == {"ServiceAccount", "Job", "CronJob", "Deployment", "NetworkPolicy"}
    for manifest in made.values():
        kubernetes_validate.validate(manifest, "1.30", strict=True)


@pytest.mark.slow
def test_ray_job_has_a_machine_for_each_actor() -> None:
    """The pods of jobs/ray/rayjob.yaml are valid, its call of `voxbatch.ray.run` is, and each of its actors has a
    worker pod with a GPU and enough CPUs. The images have the Ray that the tests ran. The pods have an account of their
    own, to which the page gives the right on the bucket.
    """
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    account, job = yaml.safe_load_all((JOBS / "ray" / "rayjob.yaml").read_text())
    kubernetes_validate.validate(account, "1.30", strict=True)
    assert f"/ns/default/sa/{account['metadata']['name']}\n" in (ROOT / "docs" / "ray.md").read_text()
    spec = job["spec"]
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    for template in (group["template"], spec["rayClusterSpec"]["headGroupSpec"]["template"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, "1.30", strict=True)
        assert template["spec"]["serviceAccountName"] == account["metadata"]["name"]
        version = (ROOT / "requirements-optional.txt").read_text().partition("ray[data]==")[2].split()[0]
        assert template["spec"]["containers"][0]["image"].startswith(f"rayproject/ray:{version}-py312")
    code = shlex.split(spec["entrypoint"])[2].partition("print(")[2].removesuffix(")")
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    keywords = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}
    inspect.signature(voxbatch.ray.run).bind(*map(ast.literal_eval, call.args), **keywords)
    assert keywords["concurrency"] == group["maxReplicas"]
    requests = group["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert (requests["nvidia.com/gpu"], int(requests["cpu"]) >= keywords["num_cpus"]) == ("1", True)


def jobs() -> dict[str, Any]:
    return {"job": manifests()["job"]["spec"], "cronjob": manifests()["cronjob"]["spec"]["jobTemplate"]["spec"]}


def container_of(spec: Mapping[str, Any]) -> Any:
    return spec["template"]["spec"]["containers"][0]


def test_kubernetes_job_counts_pods_and_ends_at_exit_code_2() -> None:
    """The number of tasks equals the number of pods, exit code 2 ends the job, and a disruption counts as no failure.
    The rules of the API server beyond the schema hold, too.
    """
    spec = jobs()["job"]
    variables = {each["name"]: each.get("value") for each in container_of(spec)["env"]}
    assert variables["VOXBATCH_TASK_COUNT"] == str(spec["completions"])
    assert spec["completionMode"] == "Indexed"
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # podFailurePolicy requires it
    rules = spec["podFailurePolicy"]["rules"]
    said = [(rule["action"], rule.get("onExitCodes", {}).get("values")) for rule in rules]
    assert said == [("FailJob", [2]), ("Ignore", None), ("Ignore", [143])]
    named = {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule}
    assert named == {container_of(spec)["name"]}


def test_nightly_job_differs_only_in_its_command_and_its_one_pod() -> None:
    """The nightly job differs from the one-off job only in its label, its command, and in the number of its pods."""
    job, nightly = copy.deepcopy(jobs()["job"]), copy.deepcopy(jobs()["cronjob"])
    pods = []
    for spec in (job, nightly):
        del container_of(spec)["args"], spec["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        pods.append({spec.pop("completions"), spec.pop("parallelism"), int(container_of(spec)["env"].pop(0)["value"])})
    assert pods == [{8}, {1}]
    assert job == nightly


def test_nights_transcribe_what_is_new(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """Each night the command of the CronJob transcribes what no night before has done, into the same OUT."""
    manifest(0.5, 0.6, 0.7)
    recordings = sorted(tmp_path.glob("*.wav"))
    nightly, out = tmp_path / "nightly", tmp_path / "nightly-out"
    nightly.mkdir()
    inner = container_of(jobs()["cronjob"])
    command = [argument.replace("s3://BUCKET", str(tmp_path)) for argument in inner["args"]]
    env = {"JOB_COMPLETION_INDEX": "0", "VOXBATCH_TASK_COUNT": inner["env"][0]["value"]}
    for night, files in enumerate(([], recordings[:2], recordings[2:], [])):
        for file in files:
            file.rename(nightly / file.name)
        ran = voxbatch(*command, *FAST, "--log-format", "json", env=env)
        assert ran.returncode == 0, ran.stderr
        finished = [line for line in map(json.loads, ran.stderr.splitlines()) if line["message"] == "run_finished"]
        assert [line["done"] for line in finished] == [[], [2], [1], [0]][night]
    assert len((out / "transcripts.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("name", ["job", "listen"])
def test_kubernetes_pods_are_confined(name: str) -> None:
    """Pods run without root and can write only to their own mounted folders."""
    spec = manifests()[name]["spec"]
    pod, inner = spec["template"]["spec"], container_of(spec)
    assert pod["securityContext"]["runAsNonRoot"]
    assert inner["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    mounts = {each["name"]: each["mountPath"] for each in inner["volumeMounts"]}
    assert mounts == {"scratch": "/scratch", "cache": "/cache", "shm": "/dev/shm"}
    assert {each["name"] for each in pod["volumes"]} == set(mounts)
    variables = {each["name"]: each.get("value") for each in inner["env"]}
    assert (variables["TMPDIR"], variables["HOME"]) == ("/scratch", "/scratch")
    assert inner["resources"]["limits"]["nvidia.com/gpu"] == "1"


def by_kind(name: str) -> dict[str, Any]:
    """Return the manifests of the base or of an overlay, by kind."""
    return {manifest["kind"]: manifest for manifest in manifests().values()} if name == "base" else overlay(name)


KUSTOMIZE = next((each for each in (["kustomize", "build"], ["kubectl", "kustomize"]) if shutil.which(each[0])), None)


@cache
def overlay(name: str) -> dict[str, Any]:
    """Return the manifests that the real Kustomize makes of an overlay, by kind."""
    if KUSTOMIZE is None:
        pytest.skip("takes kustomize or kubectl")
    done = subprocess.run([*KUSTOMIZE, JOBS / "kubernetes" / "overlays" / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}


def pods(manifests: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specs of the pods of Jobs, CronJobs and Deployments, by kind."""
    found = {}
    for manifest in manifests.values():
        spec = manifest.get("spec", {})
        if template := spec.get("jobTemplate", {}).get("spec", spec).get("template"):
            found[manifest["kind"]] = template["spec"]
    return found


def size(text: str) -> float:
    """Return a quantity of Kubernetes in its unit, or in bytes: "6" → 6, "10Gi" → 10 x 2^30."""
    return float(text[:-2]) * 2**30 if text.endswith("Gi") else float(text)


def autopilot_faults(pod: Mapping[str, Any]) -> set[str]:
    """Return what GKE Autopilot refuses or changes in a pod with a GPU, by the stricter reading of its documentation:
    the GPU is named by a node selector, requests equal limits, and ephemeral storage is at most 10 GiB.
    """
    (inner,) = pod["containers"]
    requests, limits = inner["resources"]["requests"], inner["resources"]["limits"]
    faults = set() if "cloud.google.com/gke-accelerator" in pod.get("nodeSelector", {}) else {"no GPU is named"}
    faults |= {
        f"{name}: request and limit differ" for name in requests | limits if requests.get(name) != limits.get(name)
    }
    if size(requests["ephemeral-storage"]) > 10 * 2**30:
        faults.add("ephemeral storage above 10 GiB")
    return faults


def test_kubectl_accepts_the_commands_of_the_overlays() -> None:
    """kubectl has the options of each documented command, and each selector chooses one object of the overlay: a run is
    deleted and made again without the account, the nights or the worker. (`kubectl replace` takes no selector.)
    """
    page = (ROOT / "docs" / "kubernetes-slurm-batch.md").read_text()
    commands = re.findall(r"^\$ (kubectl .*-k overlays/gke .*)$", page, re.MULTILINE)
    assert len(commands) == 6
    made = overlay("gke").values()
    for command in commands:
        words = shlex.split(command, comments=True)
        if shutil.which("kubectl"):
            subprocess.run([*words, "--help"], check=True, capture_output=True, cwd=JOBS / "kubernetes")
        label, _, value = words[-1].partition("=")
        assert [each["metadata"]["labels"][label] for each in made].count(value) == 1, command


def test_pods_reach_names_credentials_and_https_alone() -> None:
    """The network policy is of all pods of the base. It lets nothing in, and out only to DNS and HTTPS, and to the
    node's own addresses for credentials."""
    base = by_kind("base")
    policy = base["NetworkPolicy"]["spec"]
    (selected,) = policy["podSelector"]["matchExpressions"]
    templates = [base["Job"], base["CronJob"]["spec"]["jobTemplate"], base["Deployment"]]
    labels = [template["spec"]["template"]["metadata"]["labels"] for template in templates]
    assert {label[selected["key"]] for label in labels} == {*selected["values"]}
    assert (selected["operator"], policy["policyTypes"], policy.get("ingress")) == ("In", ["Ingress", "Egress"], None)
    anywhere, near = policy["egress"]
    assert anywhere.keys() == {"ports"}
    assert {(port["protocol"], port["port"]) for port in anywhere["ports"]} == {("UDP", 53), ("TCP", 53), ("TCP", 443)}
    (block,) = near["to"]
    assert ip_network(block["ipBlock"]["cidr"]).is_link_local


@pytest.mark.parametrize("name", ["gke", "eks"])
def test_kubernetes_overlays_change_only_the_node(name: str) -> None:
    """All pods of an overlay differ from the base in the same things only: the node, the resources and the disks. A
    finished pod, which keeps its disks, is deleted within an hour.
    """
    made = overlay(name)
    base, changed = pods(by_kind("base")), pods(made)
    for kind, pod in copy.deepcopy(changed).items():
        same = [pod["nodeSelector"], pod["volumes"], pod["containers"][0]["resources"]]
        job = changed["Job"]
        assert same == [job["nodeSelector"], job["volumes"], job["containers"][0]["resources"]]
        del pod["nodeSelector"]
        pod["volumes"] = base[kind]["volumes"]
        pod["containers"][0]["resources"] = base[kind]["containers"][0]["resources"]
        assert pod == base[kind]
    lives = [made["Job"]["spec"], made["CronJob"]["spec"]["jobTemplate"]["spec"]]
    assert [spec["ttlSecondsAfterFinished"] for spec in lives] == [3600, 3600]
    (annotation,) = made["ServiceAccount"]["metadata"]["annotations"]
    assert annotation.startswith({"gke": "iam.gke.io", "eks": "eks.amazonaws.com"}[name])
    assert len({each["metadata"]["labels"]["app.kubernetes.io/component"] for each in made.values()}) == 5


@pytest.mark.parametrize(
    ("name", "label"), [("gke", "cloud.google.com/gke-spot=true"), ("eks", "eks.amazonaws.com/capacityType=SPOT")]
)
def test_spot_changes_only_the_kind_of_node(name: str, label: str) -> None:
    """The pods of a Spot overlay differ from those of the plain one in one more label of the node, and ask for no more
    time to stop than the cloud gives.
    """
    plain, spot = (pods(copy.deepcopy(overlay(overlay_name))) for overlay_name in (name, f"{name}-spot"))
    key, value = label.split("=")
    assert spot.keys() == {"Job", "CronJob", "Deployment"}
    for kind, pod in spot.items():
        assert pod["nodeSelector"].pop(key) == value
        patience_s, usual_s = (spec.pop("terminationGracePeriodSeconds") for spec in (pod, plain[kind]))
        assert FINAL_COMMIT_TIMEOUT_S < patience_s <= usual_s
        assert pod == plain[kind]


def test_gke_listens_to_messages_that_cloud_run_leaves() -> None:
    """The worker has a subscription, a folder of uploads and a folder of outputs that the jobs of Cloud Run do not
    have, and the page makes this subscription for this folder.
    """
    settings = container_of(manifests()["listen"]["spec"])["env"]
    variables = {variable["name"]: variable.get("value") for variable in settings}
    subscriptions = of_kind(planned("jobs"), "google_pubsub_subscription")
    taken = {subscription["name"] for subscription in subscriptions}
    filters = " ".join(subscription.get("filter", "") for subscription in subscriptions)
    folder = variables["VOXBATCH_PREFIX"].removeprefix("gs://BUCKET-IN/")
    assert variables["VOXBATCH_SUBSCRIPTION"] not in taken
    assert folder
    assert f'"{folder}"' not in filters
    assert variables["VOXBATCH_OUT"].removeprefix("gs://BUCKET-OUT") not in {"", "/", "/out"}
    page = (JOBS / "kubernetes" / "README.md").read_text()
    assert f"--topic=voxbatch-gke --event-types=OBJECT_FINALIZE --object-prefix={folder}" in page
    assert f"subscriptions create {variables['VOXBATCH_SUBSCRIPTION']} --topic=voxbatch-gke" in page


def test_gke_autopilot_accepts_the_pods_of_its_overlay() -> None:
    """Autopilot takes each pod of the overlay as it is, and none of the base."""
    assert [autopilot_faults(pod) for pod in pods(overlay("gke")).values()] == [set()] * 3
    for pod in pods(by_kind("base")).values():
        assert {
            "no GPU is named",
            "ephemeral storage above 10 GiB",
            "memory: request and limit differ",
        } <= autopilot_faults(pod)


@pytest.mark.parametrize("name", ["base", "gke", "eks"])
def test_kubernetes_pods_fit_their_own_limits(name: str) -> None:
    """The requests of a pod are within its limits, its folders in memory and on the node's disk fit into the limits of
    memory and of ephemeral storage, and it tolerates the usual taint of GPU nodes.
    """
    for pod in pods(by_kind(name)).values():
        resources = pod["containers"][0]["resources"]
        limits = {key: size(text) for key, text in resources["limits"].items()}
        assert all(size(text) <= limits.get(key, math.inf) for key, text in resources["requests"].items())
        empty = [each["emptyDir"] for each in pod["volumes"] if "emptyDir" in each]
        in_memory = sum(size(each["sizeLimit"]) for each in empty if each.get("medium") == "Memory")
        on_disk = sum(size(each["sizeLimit"]) for each in empty if "medium" not in each)
        assert in_memory < limits["memory"] / 2
        assert on_disk <= limits["ephemeral-storage"]
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]


# ── Google Batch, SkyPilot, Modal, Hugging Face Jobs, a machine with systemd ──────────────────────────────────────────


def test_google_batch_accepts_the_job() -> None:
    """The job is a valid request by Google's API description, has a machine with an L4, and is never retried after exit
    code 2. Its command is one of voxbatch.
    """
    job = json.loads((JOBS / "google-batch.json").read_text())
    assert discovery.api("batch.v1").faults(job, "Job") == []
    (group,) = job["taskGroups"]
    assert group["taskSpec"]["lifecyclePolicies"] == [{"action": "FAIL_TASK", "actionCondition": {"exitCodes": [2]}}]
    assert job["allocationPolicy"]["instances"][0]["policy"]["machineType"].startswith("g2-")
    understood(*group["taskSpec"]["runnables"][0]["container"]["commands"])


@pytest.mark.parametrize(("file", "commands"), [("skypilot.yaml", "run"), ("dstack/task.yaml", "commands")])
def test_task_of_a_broker_runs_a_command_of_voxbatch_on_each_node(file: str, commands: str) -> None:
    """The task runs voxbatch, which reads the number of its node, and installs extras that exist."""
    text = (JOBS / file).read_text()
    lines = yaml.safe_load(text)[commands]
    program, *arguments = shlex.split((lines.splitlines() if isinstance(lines, str) else lines)[-1])
    assert program == "voxbatch"
    understood(*arguments)
    assert "--shard" not in arguments
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (installed,) = re.findall(r"'(?:\.|/src)\[(.*)\]'", text)
    assert set(installed.split(",")) <= set(extras)


@pytest.mark.parametrize("name", ["modal_app", "huggingface_jobs"])
def test_snippets_start_one_command_for_each_shard(name: str) -> None:
    """The list with the command of a snippet is a command of `voxbatch`, and names its shard, because neither platform
    tells a container its number.
    """
    tree = ast.parse((JOBS / f"{name}.py").read_text())
    lists = [
        node for node in ast.walk(tree) if isinstance(node, ast.List) and ast.unparse(node).startswith("['voxbatch'")
    ]
    (command,) = [[item.value if isinstance(item, ast.Constant) else "3/8" for item in node.elts] for node in lists]
    assert "--shard" in command
    understood(*map(str, command[1:]))


def test_systemd_accepts_the_service_and_the_timer(tmp_path: Path) -> None:
    """systemd verifies the units, and the service's command is one of voxbatch."""
    service = (JOBS / "vm" / "voxbatch.service").read_text()
    (command,) = re.findall(r"^ExecStart=/opt/voxbatch/bin/voxbatch (.*)$", service, re.MULTILINE)
    understood(*shlex.split(command))
    if not shutil.which("systemd-analyze"):
        pytest.skip("takes systemd-analyze")
    (tmp_path / "voxbatch.service").write_text(service.replace("/opt/voxbatch/bin/voxbatch", "/bin/true"))
    shutil.copy(JOBS / "vm" / "voxbatch.timer", tmp_path)
    units = sorted(tmp_path.iterdir())
    verified = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")


# ── Slurm ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

ARRAY = JOBS / "slurm" / "array.sbatch"
SLOWLY = ("--engine-option", "delay_s=0.3", "--engine-option", "concurrency=1", "--part-items", "1")
TASKS = 3


@pytest.fixture
def whole(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> dict[str, bytes | None]:
    """Return the outputs of m.jsonl that one process produces."""
    path = manifest(*[0.5 + i / 100 for i in range(23)], None, text="one two", lang="en")
    assert voxbatch("run", path, "-o", "alone", *FAST).returncode == 3
    return outputs(Stores().out(str(tmp_path / "alone")))


class Array:
    """Tasks of a job array, each in its own session as under Slurm; a fake `scontrol` logs its arguments. The tasks
    wait after their first result until `hold` is released.
    """

    def __init__(self, folder: Path):
        self.folder, self.hold = folder, Hold(folder / "hold")
        tools = folder / "tools"
        tools.mkdir()
        (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >>{folder}/scontrol.log\n')
        (tools / "squeue").write_text(f"#!/bin/sh\ncat {folder}/state || echo RUNNING\n")
        for tool in tools.iterdir():
            tool.chmod(0o755)
        self.started: list[subprocess.Popen[bytes]] = []

    def begin(self, index: int, restarts: int = 0) -> subprocess.Popen[bytes]:
        """Start a task of the array; `restarts` is Slurm's count of restarts."""
        array = {"ARRAY_JOB_ID": 17, "ARRAY_TASK_ID": index + 5, "ARRAY_TASK_COUNT": TASKS, "ARRAY_TASK_MIN": 5}
        array |= {"ARRAY_TASK_MAX": 4 + TASKS, "ARRAY_TASK_STEP": 1, "JOB_ID": 20 + index}
        array |= {"RESTART_COUNT": restarts} if restarts else {}
        env = environment(
            PATH=f"{self.folder / 'tools'}:{os.environ['PATH']}",
            VOXBATCH=f"{sys.executable} -m voxbatch",
            TMPDIR=str(self.folder / "scratch"),
            **{f"SLURM_{name}": str(value) for name, value in array.items()},
        )
        command = ["bash", str(ARRAY), "m.jsonl", "-o", "out", *FAST, *SLOWLY, *self.hold.options]
        with open(self.folder / f"task-{index}.log", "ab") as log:
            process = subprocess.Popen(
                command, env=env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        self.started.append(process)
        return process

    def requeued(self) -> list[str]:
        """Return the recorded arguments of `scontrol`, one line per call."""
        log = self.folder / "scontrol.log"
        return log.read_text().splitlines() if log.exists() else []

    def committed(self, index: int) -> bool:
        """Return whether the task has committed a part."""
        return any((self.folder / "out" / "parts").glob(f"shard-{index:05}-of-*/part-*.jsonl"))


@pytest.fixture
def array(tmp_path: Path) -> Iterator[Array]:
    found = Array(tmp_path)
    yield found
    for process in found.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_slurm_tasks_requeue_themselves(array: Array, whole: dict[str, bytes | None], tmp_path: Path) -> None:
    """A task whose time is up requeues itself; a preempted task, whose processes are all signalled at once, leaves that
    to Slurm. Restarted, the tasks produce the bytes of one process.
    """
    tasks = [array.begin(index) for index in range(TASKS)]
    for index, number, state in ((0, signal.SIGUSR1, "RUNNING"), (1, signal.SIGTERM, "COMPLETING")):
        while not array.committed(index):
            assert tasks[index].poll() is None, (tmp_path / f"task-{index}.log").read_text()
            time.sleep(0.02)
        (tmp_path / "state").write_text(state)
        (os.kill if index == 0 else os.killpg)(tasks[index].pid, number)
        assert tasks[index].wait(200) == 143, (tmp_path / f"task-{index}.log").read_text()
    assert array.requeued() == ["requeue 20"]
    array.hold.release()
    again = [array.begin(index, restarts=1) for index in (0, 1)]
    assert {process.wait(200) for process in (tasks[2], *again)} <= {0, 3}
    assert outputs(Stores().out(str(tmp_path / "out"))) == whole
    assert "Slurm array, execution 17, attempt 1)" in (tmp_path / "task-0.log").read_text()
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.slow
def test_slurm_task_commits_by_any_signal_to_its_shell(array: Array, manifest: ManifestWriter) -> None:
    """The user may name another signal: sbatch --signal=B:USR2@60. The task commits and requeues itself."""
    manifest(*[0.5] * 30)
    task = array.begin(0)
    while not array.committed(0):
        assert task.poll() is None, (array.folder / "task-0.log").read_text()
        time.sleep(0.02)
    os.kill(task.pid, signal.SIGUSR2)
    assert task.wait(200) == 143, (array.folder / "task-0.log").read_text()
    assert "interrupted; " in (array.folder / "task-0.log").read_text()
    assert array.requeued() == ["requeue 20"]


@pytest.mark.parametrize(
    ("code", "requeued"), [(138, True), (130, True), (143, True), (137, False), (1, False), (2, False)]
)
def test_slurm_task_ended_by_a_signal_of_srun_is_requeued(array: Array, code: int, requeued: bool) -> None:
    """sbatch --signal=USR1@60, without B:, reaches voxbatch under srun, and ends it: the task requeues itself. A task
    that was killed for its memory, or that failed, does not. The steps of srun have all cores of the task.
    """
    (array.folder / "tools" / "srun").write_text(f"#!/bin/sh\necho cores $SRUN_CPUS_PER_TASK\nexit {code}\n")
    (array.folder / "tools" / "srun").chmod(0o755)
    env = environment(
        PATH=f"{array.folder / 'tools'}:{os.environ['PATH']}", VOXBATCH="srun voxbatch", SLURM_JOB_ID="20",
        SLURM_CPUS_PER_TASK="8", TMPDIR=str(array.folder),
    )  # fmt: skip
    done = subprocess.run(
        ["bash", ARRAY, "m.jsonl", "-o", "out"], env=env, cwd=array.folder, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (code, "cores 8\n")
    assert array.requeued() == ["requeue 20"] * requeued


def plan_of(line: str, folder: Path) -> dict[str, str]:
    """Return an environment in which `voxbatch … --dry-run` prints the line and sbatch prints its arguments."""
    for name, text in {"voxbatch": f"echo 'items    9'\necho '{line}'", "sbatch": 'printf "%s\\n" "$@"'}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return environment(PATH=f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("audio", "options", "array"),
    [
        ("audio    59:59", (), "0-0"),
        ("audio    100.0 hours", (), "0-0"),
        ("audio    100.1 hours at least", (), "0-1"),
        ("audio    12,345.6 hours", (), "0-63"),
        ("audio    12.0 hours", ("--hours-per-task", "2"), "0-5"),
        ("", ("--tasks", "8"), "0-7"),
    ],
)
def test_slurm_submit_calculates_the_number_of_tasks(
    tmp_path: Path, audio: str, options: tuple[str, ...], array: str
) -> None:
    """The number of tasks follows from the hours of audio or from --tasks; sbatch receives its own options and voxbatch
    the others.
    """
    command = [str(JOBS / "slurm" / "submit.sh"), *options, "m.jsonl", "-o", "out", "--limit", "9", "--", "--time=1:00"]
    done = subprocess.run(command, env=plan_of(audio, tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"--array={array}", "--time=1:00", str(ARRAY), "m.jsonl", "-o", "out", "--limit", "9",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say what to transcribe"),
        (("m.jsonl",), "say -o OUT"),
        (("--tasks", "0", "m.jsonl", "-o", "out"), "--tasks is '0'; it must be a whole number from 1 to 99999"),
        (("--hours-per-task", "x", "m.jsonl", "-o", "o"), "--hours-per-task is 'x'; it must be a whole number from 1"),
    ],
)
def test_slurm_submit_refuses_invalid_arguments(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """Invalid arguments are refused with exit code 2."""
    command = [str(JOBS / "slurm" / "submit.sh"), *arguments]
    done = subprocess.run(command, env=plan_of("", tmp_path), capture_output=True, text=True)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_slurm_submit_reads_a_real_dry_run(manifest: ManifestWriter, tmp_path: Path) -> None:
    """submit.sh finds the line with the hours in the real output of --dry-run."""
    path = manifest(0.5)
    path.write_text("".join(json.dumps({"audio_filepath": f"{i}.wav", "duration": 36000}) + "\n" for i in range(25)))
    env = plan_of("", tmp_path) | {"VOXBATCH": f"{sys.executable} -m voxbatch"}
    done = subprocess.run([JOBS / "slurm" / "submit.sh", path, "-o", "out"], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[:1] == ["--array=0-2"], done.stderr
