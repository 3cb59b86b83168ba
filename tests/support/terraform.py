"""Evaluation of a Terraform module without its providers.

Terraform itself evaluates the module: variables and their validation, locals, functions, `for_each`, dynamic blocks.
Only the resources are replaced: each becomes a `terraform_data`, a resource of Terraform's own that holds any value and
creates nothing. The attributes that Google would compute are added to it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import hcl2
from hcl2.utils import SerializationOptions

Values = dict[str, Any]
META = {"count", "depends_on", "for_each", "lifecycle", "provider"}
"""Arguments of every resource. Terraform itself reads them."""
TOP_BLOCK = re.compile(r"^(?:resource|data) .*?^}\n|^  required_providers .*?^  }\n", re.DOTALL | re.MULTILINE)
"""The blocks that are replaced, as `terraform fmt` lays them out."""
BACKEND = re.compile(r"^  backend .*\n", re.MULTILINE)
AS_TEXT = SerializationOptions(with_comments=False, wrap_objects=True, wrap_tuples=True)

PROJECT_NUMBER = 42
COMPUTED = {
    "google_service_account": {
        "email": '"${%(account_id)s}@${%(project)s}.iam.gserviceaccount.com"',
        "member": '"serviceAccount:${%(account_id)s}@${%(project)s}.iam.gserviceaccount.com"',
    },
    "google_artifact_registry_repository": {"name": "%(repository_id)s"},
    "google_pubsub_topic": {"id": '"projects/${%(project)s}/topics/${%(name)s}"'},
    "google_pubsub_subscription": {"id": '"projects/${%(project)s}/subscriptions/${%(name)s}"'},
    "google_cloud_run_v2_job": {"id": '"projects/${%(project)s}/locations/${%(location)s}/jobs/${%(name)s}"'},
    "google_cloud_run_v2_service": {"uri": f'"https://${{%(name)s}}-{PROJECT_NUMBER}.${{%(location)s}}.run.app"'},
    "google_workflows_workflow": {"id": '"projects/${%(project)s}/locations/${%(region)s}/workflows/${%(name)s}"'},
    "google_monitoring_notification_channel": {"id": '"projects/${%(project)s}/notificationChannels/7"'},
    "google_project_service_identity": {
        "member": f'"serviceAccount:service-{PROJECT_NUMBER}@gcp-sa-'
        '${trimsuffix(%(service)s, ".googleapis.com")}.iam.gserviceaccount.com"'
    },
    "google_storage_project_service_account": {
        "member": f'"serviceAccount:service-{PROJECT_NUMBER}@gs-project-accounts.iam.gserviceaccount.com"'
    },
}
"""Attributes that Google computes, as expressions of the resource's own arguments."""

REPLACING = {"google_pubsub_subscription": ("name", "topic", "filter")}
"""Arguments that Google's provider can only change by replacing the resource, where a test needs them."""


class Refused(Exception):
    """The error messages of Terraform."""


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Block:
    """A block `NAME { … }`: its arguments as expressions, and its blocks.

    Attributes:
        repeat: the `for_each` of a dynamic block; None for a block that is written once.
    """

    name: str
    arguments: dict[str, str]
    blocks: list[Block]
    repeat: str | None = None


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource or data source: `resource "TYPE" "NAME" { … }`."""

    mode: str
    type: str
    name: str
    body: Block

    @property
    def address(self) -> str:
        return f"{'data.' if self.mode == 'data' else ''}{self.type}.{self.name}"

    @property
    def stand_in(self) -> str:
        """Return the name of the terraform_data that takes the resource's place."""
        return f"{self.mode}__{self.type}__{self.name}"


@cache
def resources(module: Path) -> tuple[Resource, ...]:
    """Return the resources and data sources of a module."""
    found = []
    for path in sorted(module.glob("*.tf")):
        file = hcl2.loads(path.read_text(encoding="utf-8"), serialization_options=AS_TEXT)
        for mode in ("resource", "data"):
            for labelled in file.get(mode, []):
                ((kind, named),) = _inner(labelled)
                ((name, body),) = _inner(named)
                found.append(Resource(mode, kind, name, _block(name, body)))
    return tuple(found)


def _inner(block: Values) -> list[tuple[str, Any]]:
    return [(key.strip('"'), value) for key, value in block.items() if key != "__is_block__"]


def _block(name: str, body: Values, repeat: str | None = None) -> Block:
    arguments: dict[str, str] = {}
    blocks = []
    for key, value in _inner(body):
        if key == "dynamic":
            for labelled in value:
                ((inner, dynamic),) = _inner(labelled)
                blocks.append(_block(inner, dynamic["content"][0], _expression(dynamic["for_each"])))
        elif isinstance(value, list):
            blocks += [_block(key, each) for each in value]
        else:
            arguments[key] = _expression(value)
    return Block(name, arguments, blocks, repeat)


def _expression(value: Any) -> str:
    """Return a parsed value in Terraform's language: `"text"`, `true`, `var.a + 1`."""
    if isinstance(value, str):
        return value[2:-1] if value.startswith("${") else value
    return json.dumps(value)


# ── evaluation ────────────────────────────────────────────────────────────────────────────────────────────────────────


def terraform() -> str | None:
    """Return the path of Terraform, or None."""
    return shutil.which("terraform")


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Terraform with these variables, without the configuration of the person who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    environment = {**kept, "CHECKPOINT_DISABLE": "1", "TF_CLI_CONFIG_FILE": os.devnull, **variables}
    command = [terraform() or "terraform", *words, "-no-color"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """The resources that Terraform would make.

    Attributes:
        resources: the arguments by address, such as `google_pubsub_topic.topic["voxbatch-dead"]`. Nested blocks are
            lists of objects. Arguments that are null are left out.
        outputs: the module's outputs.
    """

    resources: dict[str, Values]
    outputs: Values


def stand_in(module: Path, folder: Path, **variables: Any) -> Path:
    """Return the folder of a copy of a module whose resources are replaced, with these variables."""
    shutil.copytree(module, folder, ignore=shutil.ignore_patterns(".terraform*"))
    names = {each.address: each.stand_in for each in resources(module)}
    for path in folder.glob("*.tf"):
        path.write_text(_rewired(TOP_BLOCK.sub("", path.read_text(encoding="utf-8")), names, "local"))
    (folder / "stand_ins.tf").write_text("".join(_stand_in(each, names) for each in resources(module)))
    (folder / "terraform.tfvars.json").write_text(json.dumps(variables))
    return folder


def evaluate(module: Path, folder: Path, **variables: Any) -> Plan:
    """Return what a module would make with these variables.

    Args:
        folder: the place for a copy of the module.

    Raises:
        Refused: Terraform refuses the module or the variables.
    """
    copy = stand_in(module, folder, **variables)
    for path in copy.glob("*.tf"):  # the state stays in the folder
        path.write_text(BACKEND.sub("", path.read_text(encoding="utf-8")))
    applied = run(copy, "apply", "-auto-approve", "-input=false")
    if applied.returncode != 0:
        raise Refused(applied.stderr)
    state: Values = json.loads((copy / "terraform.tfstate").read_text(encoding="utf-8"))
    addresses = {each.stand_in: each.address for each in resources(module)}
    made = {
        f"{addresses[each['name']]}{_index(instance)}": _without_null(instance["attributes"]["output"]["value"])
        for each in state["resources"]
        for instance in each["instances"]
    }
    return Plan(made, {name: each["value"] for name, each in state["outputs"].items()})


def _rewired(text: str, names: dict[str, str], what: str) -> str:
    """Return an expression with each address of a resource replaced by its stand-in."""
    for address in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.]){re.escape(address)}\b", f"{what}.{names[address]}", text)
    return text


def _stand_in(resource: Resource, names: dict[str, str]) -> str:
    """Return the terraform_data of a resource, and a local value with what the resource's address stands for."""
    body, this = resource.body.arguments, f"terraform_data.{resource.stand_in}"
    known = {name: text for name, text in body.items() if name not in META}
    computed = {name: text % known for name, text in COMPUTED.get(resource.type, {}).items()}
    blocks = [block for block in resource.body.blocks if block.name not in META]
    values = _object(Block(resource.name, {**known, **computed}, blocks))
    lines = [f"{name} = {_rewired(body[name], names, 'local')}" for name in ("for_each", "count") if name in body]
    if "depends_on" in body:
        lines.append(f"depends_on = {_rewired(body['depends_on'], names, 'terraform_data')}")
    lines.append(f"input = {_rewired(values, names, 'local')}")
    if fixed := [known[name] for name in REPLACING.get(resource.type, ()) if name in known]:
        lines.append(f"triggers_replace = [{_rewired(', '.join(fixed), names, 'local')}]")
    conditions = [
        condition for block in resource.body.blocks if block.name == "lifecycle" for condition in block.blocks
    ]
    for condition in conditions:
        arguments = (f"{name} = {_rewired(text, names, 'local')}" for name, text in condition.arguments.items())
        lines += ["lifecycle {", f"{condition.name} {{", *arguments, "}", "}"]
    local = f"{this}.output"
    if "for_each" in body:
        local = f"{{ for key, each in {this} : key => each.output }}"
    elif "count" in body:
        local = f"{this}[*].output"
    whole = ['resource "terraform_data" "' + resource.stand_in + '" {', *lines, "}"]
    return "\n".join([*whole, "locals {", f"{resource.stand_in} = {local}", "}", ""])


def _object(block: Block) -> str:
    """Return a block as an object: its arguments, and a list of objects for each name of a nested block."""
    lists: dict[str, list[str]] = {}
    for each in block.blocks:
        text = f"[{_object(each)}]"
        if each.repeat is not None:  # the iterator of a dynamic block has the block's name, and a key and a value
            items = f"[for k, v in {each.repeat} : {{ key = k, value = v }}]"
            text = f"[for {each.name} in {items} : {_object(each)}]"
        lists.setdefault(each.name, []).append(text)
    fields = {**block.arguments, **{name: f"concat({', '.join(texts)})" for name, texts in lists.items()}}
    return "{ " + ", ".join(f"{name} = {text}" for name, text in fields.items()) + " }"


def _index(instance: Values) -> str:
    return f"[{json.dumps(instance['index_key'])}]" if "index_key" in instance else ""


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(each) for key, each in value.items() if each is not None}
    return [_without_null(each) for each in value] if isinstance(value, list) else value
