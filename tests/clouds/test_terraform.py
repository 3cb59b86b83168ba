"""Tests for jobs/cloudrun/terraform.

Terraform evaluates the modules, without a provider (tests/support/terraform.py). The result is compared with Google's
published API descriptions. `terraform validate`, which .github/workflows/ci.yml runs, checks the arguments against the
provider's schema.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import cloudrun_plan
import discovery
import hcl2
import pytest
import servers
import terraform
from cloudrun_deployment import declared
from cloudrun_plan import PROJECT, REGION, REQUIRED, bindings, container, document, of_kind, planned, variables_of
from conftest import ROOT, understood

MODULES = ROOT / "jobs" / "cloudrun" / "terraform"
NAMES = ("foundation", "jobs", "service")

pytestmark = pytest.mark.skipif(terraform.terraform() is None, reason="terraform is not installed")

SCHEMAS = {
    "google_cloud_run_v2_job": ("run.v2", "GoogleCloudRunV2Job"),
    "google_cloud_run_v2_worker_pool": ("run.v2", "GoogleCloudRunV2WorkerPool"),
    "google_cloud_run_v2_service": ("run.v2", "GoogleCloudRunV2Service"),
    "google_pubsub_subscription": ("pubsub.v1", "Subscription"),
    "google_cloud_scheduler_job": ("cloudscheduler.v1", "Job"),
    "google_workflows_workflow": ("workflows.v1", "Workflow"),
    "google_logging_metric": ("logging.v2", "LogMetric"),
    "google_monitoring_alert_policy": ("monitoring.v3", "AlertPolicy"),
    "google_monitoring_notification_channel": ("monitoring.v3", "NotificationChannel"),
}
"""Schemas of Google's APIs whose fields the arguments of a resource are."""
WORKER = {"uploads": "worker", "nightly": False}


@pytest.mark.slow
@pytest.mark.parametrize(("module", "variables"), [("foundation", {}), ("jobs", {}), ("jobs", WORKER), ("service", {})])
def test_resources_are_valid(module: str, variables: dict[str, Any]) -> None:
    """No resource has an unknown, missing or mistyped field by the descriptions of Google's APIs."""
    checked = set()
    for address, values in planned(module, **variables).resources.items():
        kind = address.partition(".")[0]
        if kind in SCHEMAS:
            api, schema = SCHEMAS[kind]
            assert discovery.api(api).faults(document(values), schema) == [], address
            checked.add(kind)
    assert checked


@pytest.mark.slow
def test_nothing_is_public() -> None:
    """Each bucket has uniform access and refuses to be public, and to be destroyed with what it holds; and no module
    but that of the service knows other members than accounts of this project or of Google's.
    """
    for module, variables in (("foundation", {}), ("jobs", {}), ("jobs", WORKER), ("service", {})):
        plan = planned(module, **variables)
        for bucket in of_kind(plan, "google_storage_bucket"):
            access = (bucket["uniform_bucket_level_access"], bucket["public_access_prevention"], bucket["location"])
            assert access == (True, "enforced", REGION.upper())
            assert not bucket.get("force_destroy")
        members = {member for member, _, _ in bindings(plan)}
        assert not [each for each in members if "all" in each]
        assert module == "service" or all(re.match(r"voxbatch-|gcp-sa-|gs-project-accounts$", each) for each in members)


@pytest.mark.slow
def test_googles_own_accounts_have_their_roles() -> None:
    """The service agents that Terraform makes get the roles that Google would give them at a first use. Those of
    Pub/Sub and Cloud Storage may also publish and forward dead letters.
    """
    agents = {each for each in bindings(planned("jobs")) if not each[0].startswith("voxbatch-")}
    place, topics = f"projects/{PROJECT}", "pubsub topics/voxbatch"
    assert agents == {
        *((f"gcp-sa-{name}", f"roles/{name}.serviceAgent", place)
          for name in ("eventarc", "cloudscheduler", "workflows", "pubsub")),
        ("gcp-sa-pubsub", "roles/pubsub.publisher", f"{topics}-dead"),
        ("gcp-sa-pubsub", "roles/pubsub.subscriber", "pubsub subscriptions/voxbatch-uploads"),
        ("gs-project-accounts", "roles/pubsub.publisher", f"{topics}-uploads"),
        ("gs-project-accounts", "roles/pubsub.publisher", f"{topics}-nightly"),
    }  # fmt: skip
    without = {agent for agent, role, _ in bindings(planned("jobs", **WORKER)) if role.endswith("serviceAgent")}
    assert without == {"gcp-sa-cloudscheduler", "gcp-sa-pubsub"}


@pytest.mark.slow
def test_tasks_with_strangers_audio_cannot_write_kernels() -> None:
    """Compiled kernels are code: only the job that runs our own recording writes them, and it reads no upload."""
    for variables in ({}, WORKER):
        on = {
            (account, role)
            for account, role, resource in bindings(planned("jobs", **variables))
            if resource == f"storage buckets/{PROJECT}-voxbatch-kernels"
        }
        readers = {"voxbatch-run", *(["voxbatch-listen"] if variables else [])}
        assert on == {("voxbatch-kernels", "roles/storage.objectUser")} | {
            (account, "roles/storage.objectViewer") for account in readers
        }
    plan = planned("jobs")
    assert f"storage buckets/{PROJECT}-voxbatch-in" not in {
        at for who, _, at in bindings(plan) if who == "voxbatch-kernels"
    }
    jobs = {job["name"]: variables_of(job)["VOXBATCH_KERNEL_CACHE"] for job in of_kind(plan, "google_cloud_run_v2_job")
            if "nvidia.com/gpu" in container(job)["resources"][0]["limits"]}  # fmt: skip
    assert jobs == dict.fromkeys(("voxbatch", "voxbatch-kernels"), f"gs://{PROJECT}-voxbatch-kernels/compiled")


@pytest.mark.slow
def test_two_tasks_and_a_dispatcher_fit_into_the_quotas_of_a_new_project() -> None:
    """A new project may use 40 GiB and 20 vCPU of Cloud Run in a region."""
    limits = {job["name"]: container(job)["resources"][0]["limits"] for job in
              of_kind(planned("jobs"), "google_cloud_run_v2_job")}  # fmt: skip
    used = [limits["voxbatch"], limits["voxbatch"], limits["voxbatch-dispatch"]]
    assert sum(int(each["memory"].removesuffix("Gi")) for each in used) <= 40
    assert sum(int(each["cpu"]) for each in used) <= 20
    assert limits["voxbatch"] == {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "1"}


@pytest.mark.slow
def test_settings_reach_the_jobs() -> None:
    """Time limit, attempts, memory, disk, model, token, price and folders are those of the variables."""
    plan = planned(
        "jobs", task_timeout=43200, max_retries=2, tasks=8, parallelism=4, memory_gib=32, disk_gib=0, usd_per_hour=1.5,
        prefix_uploads="calls/new/", hub_token=False, model="", bucket_out="texts", schedule="30 3 * * 1-5",
        max_tasks=20, max_usd=50, max_usd_per_day=70, budget_usd=900, billing_account="0A-1B-2C",
    )  # fmt: skip
    jobs = {job["name"]: job for job in of_kind(plan, "google_cloud_run_v2_job")}
    (execution,) = jobs["voxbatch"]["template"]
    (task,) = execution["template"]
    assert (execution["task_count"], execution["parallelism"], task["timeout"], task["max_retries"]) == (
        8,
        4,
        "43200s",
        2,
    )
    assert (task["volumes"], container(jobs["voxbatch"])["resources"][0]["limits"]["memory"]) == ([], "32Gi")
    assert variables_of(jobs["voxbatch"]) == {
        "VOXBATCH_EXIT_ZERO": "true", "VOXBATCH_USD_PER_HOUR": "1.5",
        "VOXBATCH_KERNEL_CACHE": f"gs://{PROJECT}-voxbatch-kernels/compiled",
    }  # fmt: skip
    assert f"gs://{PROJECT}-voxbatch-in/calls/new/" in container(jobs["voxbatch-dispatch"])["args"]
    assert "gs://texts/out" in container(jobs["voxbatch-dispatch"])["args"]
    for dispatcher in ("voxbatch-dispatch", "voxbatch-nightly"):
        limits = ["--max-tasks", "20", "--usd-per-hour", "1.5", "--max-usd-per-day", "70", "--max-usd", "50"]
        assert container(jobs[dispatcher])["args"][-8:] == limits
    (budget,) = of_kind(plan, "google_billing_budget")
    assert budget["amount"] == [{"specified_amount": [{"units": "900"}]}]
    assert budget["all_updates_rule"][0]["monitoring_notification_channels"] == [cloudrun_plan.CHANNEL]
    (workflow,) = of_kind(plan, "google_workflows_workflow")
    assert workflow["user_env_vars"]["PREFIX"] == "calls/new/"
    assert {each["schedule"] for each in of_kind(plan, "google_cloud_scheduler_job")} == {"0 * * * *", "30 3 * * 1-5"}
    usual = {job["name"]: job for job in of_kind(planned("jobs"), "google_cloud_run_v2_job")}["voxbatch"]
    assert (
        variables_of(usual).items() >= {"HF_TOKEN": "voxbatch-hf-token", "VOXBATCH_MODEL": cloudrun_plan.MODELS}.items()
    )
    (task,) = usual["template"][0]["template"]
    assert task["volumes"] == [{"name": "cache", "empty_dir": [{"medium": "DISK", "size_limit": "20Gi"}]}]


@pytest.mark.slow
def test_container_arguments_are_voxbatch_commands() -> None:
    """Each container keeps the image's entry point, its arguments are a voxbatch command, and its VOXBATCH_… variables
    are options of a command. The job that transcribes runs doctor if an execution has no arguments.
    """
    from voxbatch.cli import cli

    known = {"HF_TOKEN"}
    for name in ("run", "listen", "serve"):
        for param in cli.commands[name].params:
            known |= {param.envvar} if isinstance(param.envvar, str) else set(param.envvar or ())
    for plan in (planned("jobs"), planned("jobs", **WORKER), planned("service")):
        for values in plan.resources.values():
            if "template" in values:
                assert "command" not in container(values)
                understood(*container(values)["args"])
                assert variables_of(values).keys() <= known
    gpu = planned("jobs").resources['google_cloud_run_v2_job.gpu["voxbatch"]']
    assert container(gpu)["args"] == ["doctor"]


@pytest.mark.slow
def test_recordings_that_wait_for_their_night_are_not_dead_lettered() -> None:
    """An upload has 20 deliveries. One to the nightly folder has as many as its schedule needs: each night that leaves
    it for the next one counts. Both wait for 31 days, and what can never be run goes to the dead letters.
    """
    plan = planned("jobs")
    kept = {each["name"]: each for each in of_kind(plan, "google_pubsub_subscription")}
    (policy,) = kept["voxbatch-uploads"]["dead_letter_policy"]
    topic = f"projects/{PROJECT}/topics/voxbatch-dead"
    assert policy == {"dead_letter_topic": topic, "max_delivery_attempts": 20}
    assert kept["voxbatch-nightly"]["dead_letter_policy"] == []
    nightly = {job["name"]: container(job)["args"] for job in of_kind(plan, "google_cloud_run_v2_job")}[
        "voxbatch-nightly"
    ]
    assert nightly[nightly.index("--dead-letter") + 1] == topic
    for each in kept.values():
        assert (each["message_retention_duration"], each["expiration_policy"]) == ("2678400s", [{"ttl": ""}])


@pytest.mark.slow
def test_scheduler_posts_a_valid_request() -> None:
    """Cloud Scheduler posts a valid RunJobRequest as voxbatch-start, to the nightly job and every hour to the
    dispatcher.
    """
    targets = {each["name"]: each["http_target"][0] for each in of_kind(planned("jobs"), "google_cloud_scheduler_job")}
    start = f"voxbatch-start@{PROJECT}.iam.gserviceaccount.com"
    for name, job in (("voxbatch-nightly", "voxbatch-nightly"), ("voxbatch-sweep", "voxbatch-dispatch")):
        target = targets[name]
        path = target["uri"].removeprefix("https://run.googleapis.com/")
        assert path == f"v2/projects/{PROJECT}/locations/{REGION}/jobs/{job}:run"
        called = discovery.api("run.v2").called(target["http_method"], path)
        assert called
        assert called["id"] == "run.projects.locations.jobs.run"
        assert (target["body"], target["oauth_token"]) == ("e30=", [{"service_account_email": start}])  # {} in base64


@pytest.mark.slow
def test_alerts_use_metrics_that_exist() -> None:
    """Each alert tells the channel, and uses one resource type and a metric that Google publishes or the module makes,
    with an aligner for its type. Those that cost money, or turn callers away, until somebody acts are critical.
    """
    counters = {
        "run.googleapis.com/job/completed_execution_count", "workflows.googleapis.com/finished_execution_count",
        "run.googleapis.com/job/running_executions",
        "pubsub.googleapis.com/subscription/num_undelivered_messages", "run.googleapis.com/request_count",
        "pubsub.googleapis.com/subscription/oldest_unacked_message_age",
        "logging.googleapis.com/user/voxbatch_failed_items",
    }  # fmt: skip
    distributions = {
        "run.googleapis.com/request_latencies", "run.googleapis.com/container/gpu/utilizations",
        "logging.googleapis.com/user/voxbatch_starved_seconds",
    }  # fmt: skip
    assert {each["name"] for each in of_kind(planned("jobs"), "google_logging_metric")} == {
        "voxbatch_failed_items", "voxbatch_starved_seconds",
    }  # fmt: skip
    alerts = [each for name in ("jobs", "service") for each in
              of_kind(planned(name), "google_monitoring_alert_policy")]  # fmt: skip
    assert len(alerts) == 11
    urgent = {alert["display_name"].removeprefix("voxbatch: ") for alert in alerts if alert["severity"] == "CRITICAL"}
    assert urgent == {"long executions", "service errors"}
    for alert in alerts:
        assert alert["notification_channels"] == ["projects/p/notificationChannels/7"]
        for condition in alert["conditions"]:
            for threshold in condition.get("condition_threshold", []):
                (metric,) = re.findall(r'metric\.type="([^"]+)"', threshold["filter"])
                assert metric in counters | distributions
                assert len(re.findall(r'resource\.type="', threshold["filter"])) == 1
                aligner = threshold["aggregations"][0]["per_series_aligner"]
                assert metric in counters or re.match("ALIGN_(PERCENTILE_|DELTA)", aligner)
            if "condition_matched_log" in condition:  # Monitoring requires a limit, and no other condition
                assert len(alert["conditions"]) == len(alert["alert_strategy"][0]["notification_rate_limit"]) == 1
                assert "roles/cloudscheduler.serviceAgent" in alert["documentation"][0]["content"]
    (dashboard,) = of_kind(planned("jobs"), "google_monitoring_dashboard")
    assert json.loads(dashboard["dashboard_json"])["displayName"] == "voxbatch"
    assert dashboard["project"] == PROJECT
    without = {address.partition(".")[0] for address in planned("jobs", alerts=False, channel="").resources}
    assert without.isdisjoint(
        {"google_logging_metric", "google_monitoring_alert_policy", "google_monitoring_dashboard"}
    )


@pytest.mark.slow
def test_registry_forgets_old_images() -> None:
    """Untagged images go after 30 days, and the last five builds, of two images each, stay."""
    (repository,) = of_kind(planned("foundation"), "google_artifact_registry_repository")
    keep, delete = repository["cleanup_policies"]
    assert (keep["action"], keep["most_recent_versions"]) == ("KEEP", [{"keep_count": 10}])
    assert (delete["action"], delete["condition"]) == ("DELETE", [{"tag_state": "UNTAGGED", "older_than": "2592000s"}])


@pytest.mark.slow
def test_scanning_of_a_whole_project_is_asked_for() -> None:
    """The API that scans every image of the project, for everybody and for money, is off unless it is asked for."""
    assert "containerscanning.googleapis.com" not in apis(planned("foundation"))
    assert "containerscanning.googleapis.com" in apis(planned("foundation", scan=True))


def apis(plan: terraform.Plan) -> set[str]:
    """Return the APIs that a module enables."""
    return {each["service"] for each in of_kind(plan, "google_project_service")}


# ── the modules as a configuration ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_invalid_variable_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    """Each invalid variable is refused with its name, its value and the values that are allowed."""
    with pytest.raises(terraform.Refused) as refused:
        terraform.evaluate(
            MODULES / "jobs", tmp_path / "module", project="P", image="i", region="Paris", uploads="both", tasks=0,
            schedule="at night", parallelism=-1, max_retries=11, task_timeout=50_000, usd_per_hour=-1, memory_gib=8,
            disk_gib=1, prefix_uploads="/in", prefix_nightly="in/nightly/",
        )  # fmt: skip
    told = " ".join(re.sub(r"[│╷╵]", " ", str(refused.value)).split())
    for message in (
        'project is the id of a project, such as my-project-1; this is "P".',
        'region is a region of Cloud Run that has L4s, such as europe-west1; this is "Paris".',
        'uploads is one of workflow, worker, none; this is "both".',
        'schedule has the five fields of cron, such as 0 2 * * *; this is "at night".',
        "tasks is a whole number from 1 to 10000; this is 0.",
        "parallelism is a whole number from 0 to 10000; this is -1.",
        "max_retries is a whole number from 0 to 10; this is 11.",
        "task_timeout is a whole number of seconds from 60 to 43200; this is 50000.",
        "memory_gib is a whole number from 16, which an L4 requires, to 32; this is 8.",
        "disk_gib is a whole number from 10, or 0 for no disk; this is 1.",
        "usd_per_hour is a price, such as 1.306; this is -1.",
        'prefix_uploads is a folder of the bucket, such as in/; this is "/in".',
    ):
        assert message in told, told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "variables", "message"),
    [
        ("jobs", {"channel": ""}, "alerts need a receiver: set channel, or alerts = false"),
        ("service", {"channel": ""}, "alerts need a receiver: set channel, or alerts = false"),
        ("jobs", {"prefix_uploads": "in/", "prefix_nightly": "in/nightly/"}, "lie in each other, so that an upload"),
    ],
)
def test_variables_that_contradict_each_other_are_refused(
    module: str, variables: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """A pair of values that cannot be together is refused before anything is made."""
    with pytest.raises(terraform.Refused, match=message):
        terraform.evaluate(MODULES / module, tmp_path / "module", project=PROJECT, **{**REQUIRED[module], **variables})


def test_files_are_in_canonical_format() -> None:
    """`terraform fmt` has nothing to change."""
    formatted = terraform.run(MODULES, "fmt", "-check", "-diff", "-recursive")
    assert (formatted.returncode, formatted.stdout, formatted.stderr) == (0, "", "")


@pytest.mark.slow
def test_state_has_no_secret_value() -> None:
    """No resource or data source writes or reads the value of a secret: all of them are in the state."""
    kinds = {each.type for name in NAMES for each in terraform.resources(MODULES / name) if "secret" in each.type}
    assert kinds == {"google_secret_manager_secret", "google_secret_manager_secret_iam_member"}


@pytest.mark.slow
def test_state_is_kept_in_the_bucket(tmp_path: Path) -> None:
    """Terraform's own backend keeps the state of a module in the bucket that deploy.sh names, and locks it there; the
    next plan finds nothing to change.
    """
    module = terraform.stand_in(MODULES / "foundation", tmp_path / "copy", project=PROJECT)
    with servers.google_server() as store:
        store.make("state")
        variables = {"GOOGLE_OAUTH_ACCESS_TOKEN": "t", "GOOGLE_STORAGE_CUSTOM_ENDPOINT": f"{store.url}/storage/v1/"}
        options = (
            "-input=false",
            "-reconfigure",
            "-backend-config=bucket=state",
            "-backend-config=prefix=voxbatch/foundation",
        )
        for words in (("init", *options), ("apply", "-input=false", "-auto-approve"), ("plan", "-detailed-exitcode")):
            done = terraform.run(module, *words, **variables)
            assert done.returncode == 0, done.stdout + done.stderr
        state, _ = store.look("state", "voxbatch/foundation/default.tfstate")
    assert json.loads(state)["outputs"].keys() == {"channel", "alert_email"}
    assert not list(module.glob("*.tfstate"))


@pytest.mark.slow
def test_upgrade_that_replaces_a_subscription_asks(tmp_path: Path) -> None:
    """A deployment of before the night had a topic of its own: its subscription is on the topic of the uploads. So it
    is replaced, with the messages that wait for their night, and deploy.sh stops without a yes.
    """
    module = terraform.stand_in(MODULES / "jobs", tmp_path / "copy", project=PROJECT, **REQUIRED["jobs"])
    for path in module.glob("*.tf"):
        path.write_text(terraform.BACKEND.sub("", path.read_text(encoding="utf-8")))
    now = (module / "stand_ins.tf").read_text()
    before = re.sub(r"(google_pubsub_topic\w*)\[each\.key\]", r'\1["voxbatch-uploads"]', now)
    assert before != now
    (module / "stand_ins.tf").write_text(before)
    applied = terraform.run(module, "apply", "-auto-approve", "-input=false")
    assert applied.returncode == 0, applied.stderr
    (module / "stand_ins.tf").write_text(now)
    replacing = terraform.run(module, "plan", "-input=false", "-out=plan")
    assert replacing.returncode == 0, replacing.stderr
    text = terraform.run(module, "show", "plan").stdout
    for resource in terraform.resources(MODULES / "jobs"):
        text = text.replace(f"terraform_data.{resource.stand_in}", resource.address)
    (tmp_path / "text").write_text(text)
    script = f"""
        source {MODULES.parent}/settings.sh; source {MODULES.parent}/terraform.sh
        WORK={tmp_path}; terraform_in() {{ cat {tmp_path}/text; }}; confirm_losses jobs </dev/null
    """
    asked = subprocess.run(["bash", "-euc", script], capture_output=True, text=True)
    losses = re.findall(r"^ *# (.*)$", asked.stdout, re.MULTILINE)
    assert losses == ['google_pubsub_subscription.uploads["voxbatch-nightly"] must be replaced']
    assert asked.returncode == 1
    assert "nothing of the module jobs was changed" in asked.stderr
    allowed = subprocess.run(["bash", "-euc", "REPLACE=yes;" + script], capture_output=True, text=True)
    assert (allowed.returncode, allowed.stdout) == (0, "")


def test_documented_configuration_gives_variables_of_the_modules() -> None:
    """The configuration in docs/cloud-run.md can be read, and each argument of its modules is a variable."""
    page = (ROOT / "docs" / "cloud-run.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```hcl\n(.*?)```", page, re.DOTALL)
    modules = {name.strip('"'): body for each in hcl2.loads(text)["module"] for name, body in each.items()}
    assert modules.keys() == {"foundation", "jobs"}
    for name, body in modules.items():
        assert set(body) - {"source", "__is_block__"} <= declared(name)
