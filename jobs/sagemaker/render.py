"""Print one of this folder's JSON files with the settings filled in, on one line, so that two results can be compared.

    REGION=eu-central-1 … python3 render.py policies/run.json
    aws iam get-role-policy … | python3 render.py -            # standard input, only in the same form
    aws s3api get-bucket-policy … | python3 render.py policies/bucket.json into -     # the statements joined

The script needs only Python. ${NAME} stands for an environment variable, and $$ for $. An object with "If": "NAME" in a
list stays only if that setting is not empty. In the pipeline, parameters of type Integer become numbers, each
VOXBATCH_… variable of the environment is passed to the container, and the settings of network, disk key, tags and hub
token are added if they are given.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

LONGEST = 256
"""Maximum characters of a variable's value in SageMaker."""
WITH_TOKEN = [
    "sh",
    "-euc",
    'HF_TOKEN=$(python3 -c "$0"); export HF_TOKEN; exec "$@"',
    "import boto3, os; arn = os.environ['HF_TOKEN_SECRET']; "  # noqa: ISC004 -- one word
    "print(boto3.client('secretsmanager').get_secret_value(SecretId=arn)['SecretString'])",
]
"""Words before the container's command, which read the hub token from Secrets Manager: no job's description has it."""


def render(text: str, settings: Mapping[str, str]) -> Any:
    """Return the document with the settings filled in.

    Raises:
        KeyError: a setting is missing.
        SystemExit: the value of a variable is too long.
    """
    document = _chosen(json.loads(Template(text).substitute(settings)), settings)
    if isinstance(document, dict) and "Steps" in document:
        _numbers(document["Parameters"])
        for step in document["Steps"]:
            _add_settings(step["Arguments"], settings)
    return document


def canonical(document: Any) -> str:
    """Return a document as JSON on one line, with sorted keys."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def joined(policy: Any, ours: Any) -> Any:
    """Return a policy with our statements in place of those with the same Sid. All others stay."""
    statements = policy.get("Statement", [])
    statements = statements if isinstance(statements, list) else [statements]
    names = {each["Sid"] for each in ours["Statement"]}
    others = [each for each in statements if each.get("Sid") not in names]
    return {**ours, **policy, "Statement": [*others, *ours["Statement"]]}


def tags(text: str) -> list[dict[str, str]]:
    """Return "team=speech,cost=42" as a list of tags.

    Raises:
        SystemExit: the text is no list of tags.
    """
    pairs = [each.partition("=") for each in text.split(",") if each]
    if not all(name and separator for name, separator, _ in pairs):
        raise SystemExit(f"TAGS is {text!r}; it must be NAME=VALUE,NAME=VALUE")
    return [{"Key": name, "Value": value} for name, _, value in pairs]


def _chosen(node: Any, settings: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _chosen(value, settings) for key, value in node.items() if key != "If"}
    if not isinstance(node, list):
        return node
    kept = [each for each in node if not isinstance(each, dict) or "If" not in each or settings.get(each["If"])]
    return [_chosen(each, settings) for each in kept]


def _numbers(parameters: list[dict[str, Any]]) -> None:
    for each in parameters:
        if each["Type"] == "Integer":
            each["DefaultValue"] = int(each["DefaultValue"])


def _add_settings(arguments: dict[str, Any], settings: Mapping[str, str]) -> None:
    arguments["Environment"].update(_options(settings))
    if secret := settings.get("HUB_TOKEN_SECRET"):
        arguments["Environment"]["HF_TOKEN_SECRET"] = secret
        arguments["AppSpecification"]["ContainerEntrypoint"][:0] = WITH_TOKEN
    if subnets := settings.get("SUBNETS"):
        groups = settings["SECURITY_GROUPS"].split(",")
        arguments["NetworkConfig"] = {"VpcConfig": {"Subnets": subnets.split(","), "SecurityGroupIds": groups}}
    if key := settings.get("VOLUME_KMS_KEY"):
        arguments["ProcessingResources"]["ClusterConfig"]["VolumeKmsKeyId"] = key
    if given := tags(settings.get("TAGS", "")):
        arguments["Tags"] = given


def _options(settings: Mapping[str, str]) -> dict[str, str]:
    options = {name: value for name, value in settings.items() if name.startswith("VOXBATCH_") and value}
    for name, value in options.items():
        if len(value) > LONGEST:
            raise SystemExit(f"{name} has {len(value)} characters; SageMaker takes {LONGEST}")
    return options


def main(name: str, *into: str) -> None:
    """Print what is asked for; `tags` and `untagged` are for deploy.sh alone."""
    if name == "tags":
        print(canonical(tags(os.environ["TAGS"])))
        return
    if name == "untagged":
        has = dict(json.loads(sys.stdin.read()))
        print(*(each for each in into if any(tag not in has.get(each, ()) for tag in tags(os.environ["TAGS"]))))
        return
    found = json.loads(sys.stdin.read() or "{}") if "-" in (name, *into) else None
    found = json.loads(found) if isinstance(found, str) else found
    if name == "-":
        print(canonical(found))
        return
    document = render(Path(name).read_text(encoding="utf-8"), os.environ)
    print(canonical(joined(found, document) if into else document))


if __name__ == "__main__":
    main(*sys.argv[1:])
