"""A fake `aws` program that validates and records commands, and forwards them to a local server (moto).

It accepts a command only if the published model of the service has it with these flags, and their values fit the
shapes. moto makes the stacks of CloudFormation, except for the kinds of resources that it does not know.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import jmespath
from botocore import xform_name
from botocore.exceptions import ClientError
from botocore.model import OperationModel, ServiceModel, Shape
from botocore.validate import ParamValidator
from cloudformation import InvalidStack, Stack, changes, load
from fake_program import fake_program

GLOBAL = {"--query", "--output", "--region"}
SERVICES = {"s3api": "s3"}
RENAMED = {("Subscribe", "--notification-endpoint"): "Endpoint"}
"""Flags that the real program names otherwise, because it has a global flag --endpoint-url."""
UNPARSED, REFUSED = 252, 254
"""Exit codes of the real program."""
DEPLOY_FLAGS = {
    "--stack-name", "--template-file", "--capabilities", "--no-fail-on-empty-changeset", "--parameter-overrides",
    "--tags", "--no-execute-changeset",
}  # fmt: skip
"""Flags of `cloudformation deploy`, which is no operation of the service: those of it that the scripts use."""
PSEUDO = {
    "AWS::Partition": "aws", "AWS::Region": "eu-central-1", "AWS::AccountId": "123456789012",
    "AWS::URLSuffix": "amazonaws.com",
}  # fmt: skip
UNMADE = {
    "AWS::SageMaker::EndpointConfig", "AWS::SageMaker::Endpoint", "AWS::IAM::ManagedPolicy", "AWS::IAM::Policy",
}  # fmt: skip
"""Kinds of resources that moto refuses: its list of machines ends before the G6, and it writes AWS::NoValue as null
into the statements of a policy, which it then finds invalid."""


class Unparsed(Exception):
    """A command that the real program does not accept."""


@dataclass(frozen=True)
class MadeStack:
    """A stack of CloudFormation."""

    template: Mapping[str, Any]
    given: Mapping[str, str]
    tags: Mapping[str, str]
    stack: Stack = field(compare=False)


@dataclass
class FakeAws:
    """A fake `aws` for a PATH, in front of a server."""

    endpoint: str
    log: list[list[str]] = field(default_factory=list)
    deny: str = ""
    """The service:operation that is denied, such as iam:create-role."""
    quotas: dict[str, float] = field(default_factory=dict)
    """Service quotas of SageMaker by name: moto has none."""
    on_build: Callable[[dict[str, str]], None] = lambda variables: None
    """The work of a build, given its variables: moto's builds do nothing, and succeed."""
    on_run: Callable[[dict[str, str]], None] = lambda parameters: None
    """The work of a run of the pipeline, given its parameters: moto's do nothing, and succeed."""
    stacks: dict[str, MadeStack] = field(default_factory=dict)
    plans: dict[str, tuple[str, MadeStack]] = field(default_factory=dict)
    """Change sets, neither executed nor deleted, by ARN: the name of the stack, and the stack that it will be."""
    _clients: dict[str, Any] = field(default_factory=dict)
    _models: dict[str, ServiceModel] = field(default_factory=dict)
    _events: set[str] = field(default_factory=set)
    """Buckets whose events go to EventBridge: moto accepts that setting but does not report it."""

    def answer(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        """Execute a command and return exit code, standard output and standard error."""
        service, command, rest = arguments[0], arguments[1], arguments[2:]
        if (service, command) == ("configure", "get"):
            return 1, "", ""
        self.log.append(list(arguments))
        if self.deny == f"{service}:{command}":
            said = f"An error occurred (AccessDenied) when calling the {command} operation"
            return REFUSED, "", f"\n{said}: User: x is not authorized\n"
        if (service, command) == ("s3", "cp"):
            return self._copy(*(word for word in rest if not word.startswith("--")))
        if (service, command, *rest[:-1]) == ("s3", "rm", "--recursive", "--only-show-errors"):
            return self._empty(rest[-1].removeprefix("s3://"))
        if (service, command) in {("cloudformation", "deploy"), ("cloudformation", "wait")}:
            return self._waiter(rest) if command == "wait" else self._deploy(dict(pairs(rest)))
        try:
            operation, flags = self.operation(service, command), dict(pairs(rest))
            settings = {flag: flags.pop(flag)[0] for flag in GLOBAL & flags.keys()}
            found = parameters(operation, flags)
        except Unparsed as e:
            return UNPARSED, "", f"\n{e}\n"
        try:
            return 0, shown(self._call(operation, found), settings), ""
        except ClientError as e:
            return REFUSED, "", f"\n{e}\n"

    def operation(self, service: str, command: str) -> OperationModel:
        """Return the operation of a command.

        Raises:
            Unparsed: there is none.
        """
        name = SERVICES.get(service, service)
        if name not in self._models:
            self._models[name] = botocore.session.get_session().get_service_model(name)
        names = {xform_name(each, "-"): each for each in self._models[name].operation_names}
        if command not in names:
            raise Unparsed(f"argument operation: Invalid choice: {command}")
        return self._models[name].operation_model(names[command])

    def _deploy(self, flags: Mapping[str, list[str]]) -> tuple[int, str, str]:
        """Make a change set, as `aws cloudformation deploy --no-execute-changeset` does."""
        if (unknown := flags.keys() - DEPLOY_FLAGS) or "--no-execute-changeset" not in flags:
            return UNPARSED, "", f"\nUnknown options: {', '.join(unknown)}\n"
        [name], [template] = flags["--stack-name"], flags["--template-file"]
        before = self.stacks.get(name)
        overrides = dict(each.split("=", 1) for each in flags.get("--parameter-overrides", []))
        given = {**(before.given if before else {}), **overrides}
        tags = dict(each.split("=", 1) for each in flags.get("--tags", []))
        try:
            body = load(Path(template))
            made = MadeStack(body, given, tags, Stack(body, given, PSEUDO))
        except InvalidStack as e:
            said = "An error occurred (ValidationError) when calling the CreateChangeSet operation"
            return REFUSED, "", f"\n{said}: {e}\n"
        if before and before.tags == tags and not changes(before.stack, made.stack):
            return 0, f"\nNo changes to deploy. Stack {name} is up to date\n", ""
        plan = f"arn:aws:cloudformation:eu-central-1:123456789012:changeSet/awscli-cloudformation/{len(self.log)}"
        self.plans[plan] = (name, made)
        said = "Changeset created successfully. Run the following command to review changes:"
        return 0, f"\n{said}\naws cloudformation describe-change-set --change-set-name {plan}\n", ""

    def _execute(self, name: str, made: MadeStack) -> None:
        """Create or change a stack as its change set says."""
        before = self.stacks.get(name)
        client = self.client("cloudformation")
        (client.update_stack if before else client.create_stack)(
            StackName=name, TemplateBody=makeable(made.template), Capabilities=["CAPABILITY_NAMED_IAM"],
            Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in made.given.items()],
        )  # fmt: skip
        self._make_the_rest(made.stack, before.stack if before else None)
        self.stacks[name] = made

    def _make_the_rest(self, stack: Stack, before: Stack | None) -> None:
        """Make the resources that moto's CloudFormation does not know, with the properties of the template."""
        for name, (kind, properties) in stack.resources.items():
            is_new = before is None or name not in before.resources
            if kind == "AWS::SageMaker::Pipeline":
                definition = properties["PipelineDefinition"]["PipelineDefinitionBody"]
                request = {key: properties[key] for key in ("PipelineName", "RoleArn")}
                client = self.client("sagemaker")
                (client.create_pipeline if is_new else client.update_pipeline)(**request, PipelineDefinition=definition)
            for role in properties["Roles"] if kind == "AWS::IAM::Policy" else ():
                document = json.dumps(properties["PolicyDocument"])
                policy = {"RoleName": role, "PolicyName": properties["PolicyName"]}
                self.client("iam").put_role_policy(**policy, PolicyDocument=document)
            if kind == "AWS::CodeBuild::Project" and is_new:
                self.client("codebuild").create_project(**lower(properties))

    def _remove_the_rest(self, stack: Stack) -> None:
        for kind, properties in stack.resources.values():
            if kind == "AWS::SageMaker::Pipeline":
                self.client("sagemaker").delete_pipeline(
                    PipelineName=properties["PipelineName"], ClientRequestToken="x" * 32
                )
            for role in properties["Roles"] if kind == "AWS::IAM::Policy" else ():
                self.client("iam").delete_role_policy(RoleName=role, PolicyName=properties["PolicyName"])
            if kind == "AWS::CodeBuild::Project":
                self.client("codebuild").delete_project(name=properties["Name"])

    def _waiter(self, rest: Sequence[str]) -> tuple[int, str, str]:
        state, flag, name = rest
        states = (
            ("stack-create-complete", "stack-update-complete") if name in self.stacks else ("stack-delete-complete",)
        )
        is_reached = flag == "--stack-name" and state in states
        return (0, "", "") if is_reached else (255, "", "\nWaiter failed\n")

    def _copy(self, source: str, target: str) -> tuple[int, str, str]:
        """Copy one file, as `aws s3 cp` does."""
        try:
            if target.startswith("s3://"):
                self.client("s3").upload_file(source, *target.removeprefix("s3://").split("/", 1))
            else:
                self.client("s3").download_file(*source.removeprefix("s3://").split("/", 1), target)
        except ClientError as e:
            return 1, "", f"\n{e}\n"
        return 0, "", ""

    def _empty(self, bucket: str) -> tuple[int, str, str]:
        """Delete all objects of a bucket without versions, as `aws s3 rm --recursive` does."""
        for page in self.client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for each in page.get("Contents", []):
                self.client("s3").delete_object(Bucket=bucket, Key=each["Key"])
        return 0, "", ""

    def client(self, name: str) -> Any:
        """Return a client of the server."""
        if name not in self._clients:
            keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "eu-central-1"}
            self._clients[name] = boto3.client(name, endpoint_url=self.endpoint, **keys)
        return self._clients[name]

    def _call(self, operation: OperationModel, found: Mapping[str, Any]) -> dict[str, Any]:
        if operation.name == "ListServiceQuotas":
            named = self.quotas.items()
            return {"Quotas": [{"QuotaName": name, "QuotaCode": "L-1", "Value": value} for name, value in named]}
        if plan := found.get("ChangeSetName"):
            name, planned = self.plans[plan]
            if operation.name == "DescribeChangeSet":
                before = self.stacks[name].stack if name in self.stacks else None
                return {"Changes": [{"ResourceChange": change} for change in changes(before, planned.stack)]}
            if operation.name == "ExecuteChangeSet":
                self._execute(name, planned)
            del self.plans[plan]
            return {}
        if operation.name == "DeleteStack" and (made := self.stacks.pop(found["StackName"], None)):
            self._remove_the_rest(made.stack)
        answer = getattr(self.client(operation.service_model.service_name), xform_name(operation.name))(**found)
        answer.pop("ResponseMetadata", None)
        if operation.name == "StartBuild":
            self.on_build({each["name"]: each["value"] for each in found["environmentVariablesOverride"]})
        if operation.name == "StartPipelineExecution":
            self.on_run({each["Name"]: each["Value"] for each in found["PipelineParameters"]})
        if operation.name == "PutBucketNotificationConfiguration":
            self._events.add(found["Bucket"])
        if operation.name == "GetBucketNotificationConfiguration" and found["Bucket"] in self._events:
            answer["EventBridgeConfiguration"] = {}
        return dict(answer)

    @contextmanager
    def on_path(self, folder: Path) -> Iterator[str]:
        """Yield the folder to put first on PATH; it also contains this Python."""
        (folder / "python3").symlink_to(Path(sys.executable).resolve())
        with fake_program(folder / "aws", lambda arguments, *_: self.answer(arguments)):
            yield str(folder)


def makeable(template: Mapping[str, Any]) -> str:
    """Return the part of a template that moto can make."""
    resources = {name: each for name, each in template["Resources"].items() if each["Type"] not in UNMADE}
    return json.dumps({**template, "Resources": resources, "Outputs": {}})


def pairs(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag with its values."""
    at = 0
    while at < len(arguments):
        flag, values = arguments[at], []
        if not flag.startswith("--"):
            raise Unparsed(f"Unknown options: {flag}")
        at += 1
        while at < len(arguments) and not arguments[at].startswith("--"):
            values.append(arguments[at])
            at += 1
        yield flag, values


def value(shape: Shape, flag: str, given: list[str]) -> Any:
    """Return the value of a flag by the type of its shape."""
    if shape.type_name == "boolean":
        return True
    if shape.type_name == "list" and not (given and given[0].startswith("[")):
        return given
    if len(given) != 1:
        raise Unparsed(f"argument {flag}: expected one argument")
    if shape.type_name in {"structure", "list", "map"}:
        try:
            return json.loads(given[0])
        except ValueError as e:
            raise Unparsed(f"Error parsing parameter '{flag}': {e}") from e
    if shape.type_name == "blob":
        return Path(given[0]).read_bytes()
    if shape.type_name in {"float", "double"}:
        return float(given[0])
    return int(given[0]) if shape.type_name in {"integer", "long"} else given[0]


def parameters(operation: OperationModel, flags: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the parameters of an operation.

    Raises:
        Unparsed: a flag is unknown, or its value does not fit.
    """
    shape = operation.input_shape
    known = {f"--{xform_name(name, '-')}": name for name in (shape.members if shape else {})}
    for (name, flag), member in RENAMED.items():
        if name == operation.name:
            known = {each: value for each, value in known.items() if value != member} | {flag: member}
    if unknown := [flag for flag in flags if flag not in known]:
        raise Unparsed(f"Unknown options: {', '.join(unknown)}")
    found = {known[flag]: value(shape.members[known[flag]], flag, given) for flag, given in flags.items()}
    if shape:
        tokens = {each: "x" * 32 for each in shape.members if each in operation.idempotent_members}
        report = ParamValidator().validate({**tokens, **found}, shape)  # the real program generates idempotency tokens
        if report.has_errors():
            raise Unparsed(f"Parameter validation failed:\n{report.generate_report()}")
    return found


def shown(answer: dict[str, Any], settings: Mapping[str, str]) -> str:
    """Return the answer as the real program prints it, with --query and --output applied."""
    if "--query" in settings:
        chosen = jmespath.search(settings["--query"], answer)
        if settings.get("--output") == "text":
            rows = chosen if isinstance(chosen, list) and chosen and isinstance(chosen[0], list) else [chosen]
            return "".join("\t".join(map(str, row if isinstance(row, list) else [row])) + "\n" for row in rows)
        return f"{json.dumps(chosen, default=str)}\n"
    return f"{json.dumps(answer, default=str)}\n" if answer else ""


def validated(service: str, shape: str, value: Mapping[str, Any]) -> None:
    """Assert that a request matches the service model that AWS publishes."""
    model = botocore.session.get_session().get_service_model(service)
    report = ParamValidator().validate(value, model.shape_for(shape))
    assert not report.has_errors(), report.generate_report()


def lower(node: Any) -> Any:
    """Return properties of a resource of CodeBuild or Batch as a request of its API, which has the same names in lower
    case."""
    if isinstance(node, list):
        return [lower(each) for each in node]
    if not isinstance(node, dict):
        return node
    names = {"BuildSpec": "buildspec"}
    return {names.get(key, key[0].lower() + key[1:]): lower(value) for key, value in node.items()}
