"""Tests that docs/runbook.md covers each alert, that gcloud and AWS's models accept its commands, and that the
dashboard is valid.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import subprocess
from pathlib import Path

import botocore.session
import discovery
import pytest
from botocore import xform_name
from cloudrun_deployment import ask_gcloud
from conftest import ROOT, environment

DOCS = ROOT / "docs"
PAGE = (DOCS / "runbook.md").read_text()
PLACES = (DOCS / "kubernetes-slurm-batch.md").read_text()
DASHBOARD = json.loads((ROOT / "jobs" / "cloudrun" / "terraform" / "jobs" / "dashboard.json").read_text())


def shown(page: str, program: str) -> list[list[str]]:
    """Return the arguments of each command of a program that a page shows, at a prompt or in its text."""
    lines = re.findall(rf"^\$ {program} (.*)$|`{program} ([^`]+)`", page.replace("\\\n", " "), re.MULTILINE)
    return [shlex.split(prompt or inline, comments=True) for prompt, inline in lines]


def rows(page: str, column: int) -> set[str]:
    """Return the cells of a column of a page's tables, without code marks."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {cells[column].strip(" `") for cells in lines if len(cells) > column}


def test_each_alert_has_a_row() -> None:
    """The runbook has a row for each alert that the pages of Cloud Run, the service and SageMaker list."""
    google = "".join((DOCS / name).read_text() for name in ("cloud-run.md", "serving.md"))
    tables = re.findall(r"^\| alert \| when \|\n\|---\|---\|\n((?:\|.*\n)+)", google, re.MULTILINE)
    alerts = {cell for table in tables for cell in rows(table, 0)}
    alerts |= set(re.findall(r"\| (?:rule|alarm) `(voxbatch-\w+(?:-\w+)?)` \|", (DOCS / "sagemaker.md").read_text()))
    endpoint = (ROOT / "jobs" / "sagemaker" / "endpoint" / "template.yaml").read_text()
    alarms = re.findall(r'AlarmName: !Sub "\$\{Name\}(.+)"(?:\n.+)+AlarmActions: \[!Ref Alerts\]', endpoint)
    alerts |= {f"voxbatch{name}" for name in alarms}
    assert {"failed items", "service errors", "voxbatch-dead", "voxbatch-endpoint-gpu-idle"} <= alerts
    assert alerts - rows(PAGE, 0) == set()


@pytest.mark.slow
def test_real_gcloud_accepts_the_commands_of_the_runbook() -> None:
    """gcloud's parser accepts each command of the runbook, and those of the page about other places."""
    commands = [
        [argument.replace("my-project", "my-project-1") for argument in command]
        for command in shown(PAGE, "gcloud") + shown(PLACES.replace("PROJECT", "my-project"), "gcloud")
    ]
    assert len(commands) > 40
    assert ask_gcloud({"commands": commands}) == []


def test_logs_are_read_by_a_command_that_shows_json() -> None:
    """`gcloud run … logs read` ends with a TypeError at a line of JSON, which is what voxbatch writes on Cloud Run."""
    pages = [*DOCS.glob("*.md"), *(ROOT / "jobs" / "cloudrun").rglob("*.sh"), *(ROOT / "jobs").rglob("*.tf")]
    assert [path.name for path in pages if re.search("logs read ", path.read_text())] == []


@pytest.mark.slow
def test_aws_has_the_commands_of_the_runbook() -> None:
    """Each command of aws is an operation of the published model, with these parameters."""
    session = botocore.session.get_session()
    own = (["logs", "tail"], ["s3", "cp"], ["s3", "ls"])  # commands of the program that are no operations
    commands = [command for command in shown(PAGE, "aws") if command[:2] not in own]
    assert len(commands) > 5
    for service, operation, *arguments in commands:
        model = session.get_service_model(service)
        (found,) = [model.operation_model(name) for name in model.operation_names if xform_name(name, "-") == operation]
        known = {"--" + xform_name(name, "-") for name in found.input_shape.members}
        assert {argument for argument in arguments if argument.startswith("--")} - {"--query", "--output"} <= known


def test_dead_letters_are_replayed(tmp_path: Path) -> None:
    """The documented command publishes each dead letter again: a notification with the attributes that the listener
    reads, a message as it was. Names with spaces, commas and quotes stay whole. jq names one that is no JSON.
    """
    (command,) = re.findall(r"```bash\n(gcloud pubsub.*?)```", PAGE, re.DOTALL)
    notification = {
        "eventType": "OBJECT_FINALIZE",
        "bucketId": "b",
        "objectId": "in/it's a, b.jsonl",
        "objectGeneration": "7",
    }
    of_night = {"voxbatch_subscription": "projects/p/subscriptions/voxbatch-nightly"}
    asked = {"manifest": "gs://b/in/day 1.jsonl", "output": "gs://o/out/day"}
    letters = [
        {"attributes": {"voxbatch_reason": "no JSON"}, "data": base64.b64encode(b"day.jsonl").decode()},
        {
            "attributes": {**notification, **of_night, "voxbatch_reason": "no\nitems"},
            "data": base64.b64encode(b"{\n}").decode(),
        },
        {
            "attributes": {"voxbatch_reason": "x"},
            "data": base64.b64encode(json.dumps(asked, indent=1).encode()).decode(),
        },
    ]
    (tmp_path / "pulled.json").write_text(json.dumps([{"ackId": "a", "message": letter} for letter in letters]))
    (tmp_path / "gcloud").write_text(
        '#!/bin/sh\nif [ "$2" = subscriptions ]; then cat pulled.json; else printf "%s\\n" "$@" END >>published; fi\n'
    )
    (tmp_path / "gcloud").chmod(0o755)
    env = environment(PATH=f"{tmp_path}:/usr/bin:/bin")
    ran = subprocess.run(["bash", "-ec", command], cwd=tmp_path, env=env, capture_output=True, text=True)
    if "jq: command not found" in ran.stderr:
        pytest.skip("takes jq")
    assert (ran.returncode, ran.stderr.count("\n"), "'day.jsonl'" in ran.stderr) == (0, 1, True)
    first, second, _ = (tmp_path / "published").read_text().split("END\n")
    attributes = "~~".join(f"{name}={value}" for name, value in notification.items())
    publish = ["pubsub", "topics", "publish", "voxbatch-uploads"]
    assert first.splitlines() == [*publish[:3], "voxbatch-nightly", "--message={}", f"--attribute=^~~^{attributes}"]
    *words, message = second.splitlines()
    assert words == publish
    assert json.loads(message.removeprefix("--message=")) == asked
    assert len((tmp_path / "dead-letters.jsonl").read_text().splitlines()) == 3


def test_dashboard_is_valid() -> None:
    """The dashboard is valid by Google's API description, no tile overlaps another, and the runbook names its
    objectives.
    """
    assert discovery.api("monitoring.v1").faults(DASHBOARD, "Dashboard") == []
    tiles = DASHBOARD["mosaicLayout"]["tiles"]
    cells = [
        (tile.get("xPos", 0) + x, tile.get("yPos", 0) + y)
        for tile in tiles
        for x in range(tile["width"])
        for y in range(tile["height"])
    ]
    assert len(set(cells)) == len(cells)
    titles = [tile["widget"]["title"] for tile in tiles]
    objectives = {title.removeprefix("Objective: ") for title in titles if title.startswith("Objective: ")}
    assert objectives <= rows(PAGE, 0)
    assert len(objectives) == 2
