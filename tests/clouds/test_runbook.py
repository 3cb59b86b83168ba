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
KUBERNETES = ROOT / "jobs" / "kubernetes" / "README.md"
PLACES = (DOCS / "kubernetes-slurm-batch.md").read_text() + KUBERNETES.read_text()
DASHBOARD = json.loads((ROOT / "jobs" / "cloudrun" / "terraform" / "jobs" / "dashboard.json").read_text())


def shown(page: str, program: str) -> list[list[str]]:
    """Return the arguments of each command of a program that a page shows, at a prompt, in its text or in a loop."""
    forms = rf"^\$ {program} (.*)$|`{program} ([^`]+)`|\$\({program} (.+?)\);|do {program} ([^;]+);"
    lines = re.findall(forms, page.replace("\\\n", " "), re.MULTILINE)
    return [shlex.split("".join(groups), comments=True) for groups in lines]


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


def test_logs_are_read_as_far_back_as_an_alert_may_be() -> None:
    """Each command that reads a log has a start: without it, gcloud shows one day, and AWS reads all from the first."""
    pages = {path.name: path.read_text() for path in DOCS.glob("*.md")}
    google = [(name, command) for name, page in pages.items() for command in shown(page, "gcloud logging read")]
    assert len(google) > 8
    assert [found for found in google if not any(word.startswith("--freshness=") for word in found[1])] == []
    amazon = [command for page in pages.values() for command in shown(page, "aws logs filter-log-events")]
    assert amazon
    assert [command for command in amazon if "--start-time" not in command] == []


STOPPED = """#!/bin/bash
case "$*" in
    "sagemaker list-pipeline-executions "*) printf 'arn:1\tarn:2\n' ;;
    "sagemaker list-processing-jobs "*) printf 'voxbatch-a\n' ;;
    *) echo "$*" >>stopped ;;
esac
"""


def test_everything_on_sagemaker_stops(tmp_path: Path) -> None:
    """The documented commands disable both rules, then stop each run of the pipeline and each other running job."""
    section = PAGE.partition("### Stop everything on SageMaker\n")[2].partition("```\n")[0]
    commands = re.findall(r"^\$ (.+)$", section, re.MULTILINE)
    (tmp_path / "aws").write_text(STOPPED)
    (tmp_path / "aws").chmod(0o755)
    env = environment(PATH=f"{tmp_path}:/usr/bin:/bin")
    subprocess.run(["bash", "-euc", "\n".join(commands)], cwd=tmp_path, env=env, check=True)
    assert (tmp_path / "stopped").read_text().splitlines() == [
        "events disable-rule --name voxbatch-uploads",
        "events disable-rule --name voxbatch-nightly",
        "sagemaker stop-pipeline-execution --pipeline-execution-arn arn:1",
        "sagemaker stop-pipeline-execution --pipeline-execution-arn arn:2",
        "sagemaker stop-processing-job --processing-job-name voxbatch-a",
    ]


@pytest.mark.slow
def test_aws_has_the_commands_of_the_runbook() -> None:
    """Each command of aws is an operation of the published model, with these parameters."""
    session = botocore.session.get_session()
    # Commands of the program that are no operations.
    own = (["logs", "tail"], ["s3", "cp"], ["s3", "ls"], ["cloudformation", "deploy"])
    commands = [command for command in shown(PAGE + PLACES, "aws") if command[:2] not in own]
    assert len(commands) > 5
    for service, operation, *arguments in commands:
        model = session.get_service_model(service)
        (found,) = [model.operation_model(name) for name in model.operation_names if xform_name(name, "-") == operation]
        arguments = arguments[: arguments.index(">")] if ">" in arguments else arguments
        known = {"--" + xform_name(name, "-") for name in found.input_shape.members}
        assert {argument for argument in arguments if argument.startswith("--")} - {"--query", "--output"} <= known


OBJECT = 'in/it\'s a, b~~objectGeneration=8 "$(touch pwned)" `touch pwned` $HOME\n; touch pwned.jsonl'
"""A name with all that a shell, or gcloud's own lists of values, would take for more than text."""
STAND_IN = """#!/bin/bash
case "$2 $3" in
    "subscriptions pull") cat pulled.json ;;
    "topics publish") [[ "$5" == --flags-file=- ]] && jq -c --arg topic "$4" '{$topic, flags: .}' >>published ;;
    "subscriptions ack") [[ -s published ]] && echo "$5" >>acknowledged ;;
esac
"""


def letter(ack_id: str, data: bytes, **attributes: str) -> dict[str, object]:
    """Return a message of voxbatch-dead as `gcloud pubsub subscriptions pull` prints it."""
    message = {"data": base64.b64encode(data).decode(), "attributes": attributes, "messageId": ack_id * 3}
    return {"ackId": ack_id, "message": message if attributes else {**message, "attributes": None}}


def test_dead_letters_are_replayed(tmp_path: Path) -> None:
    """The documented script publishes each dead letter again, and acknowledges it then: a notification with the
    attributes that the listener reads, a message byte by byte. No text of a letter is run or parsed. A letter that is
    no JSON, or that gcloud could not pass on unchanged, stays.
    """
    (script,) = re.findall(r"^\$ (jobs/cloudrun/replay\w+\.sh)", PAGE, re.MULTILINE)
    notification = {"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": OBJECT, "objectGeneration": "7"}
    night = "projects/p/subscriptions/voxbatch-nightly"
    asked = json.dumps({"manifest": "gs://b/in/day 1.jsonl", "output": f"gs://o/out/{OBJECT}"}, indent=1) + "\n"
    letters = [
        letter("A", b"day.jsonl", voxbatch_reason="no JSON"),
        letter("B", b"{\n}", **notification, voxbatch_subscription=night, voxbatch_reason="no\nitems"),
        letter("C", asked.encode(), voxbatch_reason="x", voxbatch_subscription="--flags-file=/etc/passwd"),
        letter("D", b'{"manifest": "\xff"}', voxbatch_reason="x"),
        letter("E", b'{"manifest": "gs://b/c"}'),
    ]
    (tmp_path / "pulled.json").write_text(json.dumps(letters))
    (tmp_path / "gcloud").write_text(STAND_IN)
    (tmp_path / "gcloud").chmod(0o755)
    env = environment(PATH=f"{tmp_path}:/usr/bin:/bin")
    ran = subprocess.run([ROOT / script], cwd=tmp_path, env=env, capture_output=True, text=True)
    if "jq: command not found" in ran.stderr:
        pytest.skip("takes jq")
    assert (ran.returncode, re.findall("stays: (.+)", ran.stderr)) == (0, ['"AAA"', '"DDD"'])
    assert [json.loads(line) for line in (tmp_path / "published").read_text().splitlines()] == [
        {"topic": "voxbatch-nightly", "flags": {"--message": "{}", "--attribute": notification}},
        {"topic": "voxbatch-uploads", "flags": {"--message": asked}},
        {"topic": "voxbatch-uploads", "flags": {"--message": '{"manifest": "gs://b/c"}'}},
    ]
    assert (tmp_path / "acknowledged").read_text().splitlines() == ["--ack-ids=B", "--ack-ids=C", "--ack-ids=E"]
    copied = [json.loads(line)["ackId"] for line in (tmp_path / "dead-letters.jsonl").read_text().splitlines()]
    assert copied == ["B", "C", "E"]
    assert not list(tmp_path.glob("pwned*"))


def test_no_page_or_script_evaluates_text() -> None:
    """No script of jobs/ and no code of a page runs text as a command: `eval`, or a shell that is given a string."""
    places = [path for path in (ROOT / "jobs").rglob("*") if path.is_file() and path.suffix != ".pyc"] + list(
        DOCS.glob("*.md")
    )
    completion = 'eval "$(_VOXBATCH_COMPLETE=bash_source voxbatch)"'
    texts = {path.name: path.read_text().replace(completion, "") for path in places}
    evaluated = re.compile(r"\beval\b [\"$]|\b(ba)?sh -c [\"]?\$|xargs .*sh -c")
    assert [name for name, text in texts.items() if evaluated.search(text)] == []


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
