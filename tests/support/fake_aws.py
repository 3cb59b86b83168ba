"""A fake `aws` program that validates and records commands, and forwards them to a local server (moto).

It accepts a command only if the published model of the service has it with these flags, and their values fit the
shapes. It keeps stacks of CloudFormation itself, because moto does not know all of their resources. The program on PATH
only sends its arguments over a socket, so that a script of fifty commands takes seconds.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
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
from cloudformation import Stack, load

PROGRAM = """#!{python} -IS
import json, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({address!r})
    line.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    code, out, error = json.loads(line.makefile().read())
sys.stdout.write(out)
sys.stderr.write(error)
sys.exit(code)
"""
GLOBAL = {"--query", "--output", "--region"}
SERVICES = {"s3api": "s3"}
RENAMED = {("Subscribe", "--notification-endpoint"): "Endpoint"}
"""Flags that the real program names otherwise, because it has a global flag --endpoint-url."""
UNPARSED, REFUSED = 252, 254
"""Exit codes of the real program."""
DEPLOY_FLAGS = {
    "--stack-name", "--template-file", "--capabilities", "--no-fail-on-empty-changeset", "--parameter-overrides",
    "--tags",
}  # fmt: skip
"""Flags of `cloudformation deploy`, which is no operation of the service: those of it that the scripts use."""
PSEUDO = {
    "AWS::Partition": "aws", "AWS::Region": "eu-central-1", "AWS::AccountId": "123456789012",
    "AWS::URLSuffix": "amazonaws.com",
}  # fmt: skip


class Unparsed(Exception):
    """A command that the real program does not accept."""


@dataclass(frozen=True)
class MadeStack:
    """A stack of CloudFormation."""

    text: str
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
    _clients: dict[str, Any] = field(default_factory=dict)
    _models: dict[str, ServiceModel] = field(default_factory=dict)
    _events: set[str] = field(default_factory=set)
    """Buckets whose events go to EventBridge: moto accepts that setting but does not report it."""
    tags: dict[str, dict[str, str]] = field(default_factory=dict)
    """Tags by ARN: moto's Resource Groups Tagging API does not know every service."""
    stacks: dict[str, MadeStack] = field(default_factory=dict)

    def answer(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        """Execute a command and return exit code, standard output and standard error."""
        service, command, rest = arguments[0], arguments[1], arguments[2:]
        if (service, command) == ("configure", "get"):
            return 1, "", ""
        self.log.append(list(arguments))
        if (service, command) in {("cloudformation", "deploy"), ("cloudformation", "wait")}:
            return self._waiter(rest) if command == "wait" else self._deploy(dict(pairs(rest)))
        try:
            operation, flags = self.operation(service, command), dict(pairs(rest))
            settings = {flag: flags.pop(flag)[0] for flag in GLOBAL & flags.keys()}
            found = parameters(operation, flags)
        except Unparsed as e:
            return UNPARSED, "", f"\n{e}\n"
        if self.deny == f"{service}:{command}":
            said = f"An error occurred (AccessDenied) when calling the {operation.name} operation"
            return REFUSED, "", f"\n{said}: User: x is not authorized\n"
        try:
            return 0, shown(self._call(operation, found), settings), ""
        except ClientError as e:
            return REFUSED, "", f"\n{e}\n"

    def has_events(self, bucket: str) -> bool:
        """Return whether the events of a bucket go to EventBridge."""
        return bucket in self._events

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
        """Create or change a stack, as `aws cloudformation deploy` does."""
        if unknown := flags.keys() - DEPLOY_FLAGS:
            return UNPARSED, "", f"\nUnknown options: {', '.join(unknown)}\n"
        [name], [template] = flags["--stack-name"], flags["--template-file"]
        given = dict(each.split("=", 1) for each in flags.get("--parameter-overrides", []))
        tags = dict(each.split("=", 1) for each in flags.get("--tags", []))
        made = MadeStack(Path(template).read_text(), given, tags, Stack(load(Path(template)), given, PSEUDO))
        if name in self.stacks and self.stacks[name] == made:
            return 0, f"\nNo changes to deploy. Stack {name} is up to date\n", ""
        self.stacks[name] = made
        return 0, f"\nWaiting for stack create/update to complete\nSuccessfully created/updated stack - {name}\n", ""

    def _waiter(self, rest: Sequence[str]) -> tuple[int, str, str]:
        gone = rest[0] == "stack-delete-complete" and rest[1] == "--stack-name" and rest[2] not in self.stacks
        return (0, "", "") if gone else (255, "", "\nWaiter failed\n")

    def _stack(self, operation: OperationModel, name: str) -> dict[str, Any]:
        if operation.name == "DeleteStack":
            self.stacks.pop(name, None)
            return {}
        assert operation.name == "DescribeStacks"
        if name not in self.stacks:
            said = {"Code": "ValidationError", "Message": f"Stack with id {name} does not exist"}
            raise ClientError({"Error": said}, operation.name)
        given = [{"ParameterKey": key, "ParameterValue": each} for key, each in self.stacks[name].given.items()]
        return {"Stacks": [{"StackName": name, "StackStatus": "UPDATE_COMPLETE", "Parameters": given}]}

    def _call(self, operation: OperationModel, found: Mapping[str, Any]) -> dict[str, Any]:
        name = operation.service_model.service_name
        if name == "cloudformation":
            return self._stack(operation, found["StackName"])
        if name == "resourcegroupstaggingapi":
            return self._tagging(operation.name, found)
        if name not in self._clients:
            keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "eu-central-1"}
            self._clients[name] = boto3.client(name, endpoint_url=self.endpoint, **keys)
        with self._with_tls(self._clients[name], operation.name, found):
            answer = getattr(self._clients[name], xform_name(operation.name))(**found)
        answer.pop("ResponseMetadata", None)
        if operation.name == "PutBucketNotificationConfiguration":
            self._events.add(found["Bucket"])
        if operation.name == "GetBucketNotificationConfiguration" and found["Bucket"] in self._events:
            answer["EventBridgeConfiguration"] = {}
        return dict(answer)

    @contextmanager
    def _with_tls(self, client: Any, operation: str, found: Mapping[str, Any]) -> Iterator[None]:
        """Take the policy from a bucket while an object is read or written: moto does not look at the condition of a
        statement, and would deny all that the scripts' policy denies to connections without TLS.
        """
        if operation not in {"HeadObject", "PutObject", "DeleteObject"}:
            yield
            return
        policy = None
        with suppress(ClientError):
            policy = client.get_bucket_policy(Bucket=found["Bucket"])["Policy"]
            client.delete_bucket_policy(Bucket=found["Bucket"])
        try:
            yield
        finally:
            if policy is not None:
                client.put_bucket_policy(Bucket=found["Bucket"], Policy=policy)

    def _tagging(self, operation: str, found: Mapping[str, Any]) -> dict[str, Any]:
        if operation == "TagResources":
            for arn in found["ResourceARNList"]:
                self.tags.setdefault(arn, {}).update(found["Tags"])
            return {"FailedResourcesMap": {}}
        given = {arn: self.tags[arn] for arn in found["ResourceARNList"] if arn in self.tags}
        tags = {arn: [{"Key": key, "Value": value} for key, value in each.items()] for arn, each in given.items()}
        return {"ResourceTagMappingList": [{"ResourceARN": arn, "Tags": each} for arn, each in tags.items()]}

    @contextmanager
    def on_path(self, folder: Path) -> Iterator[str]:
        """Yield the folder to put first on PATH; it also contains this Python."""
        address = str(folder / "aws.socket")
        program = folder / "aws"
        program.write_text(PROGRAM.format(python=sys.executable, address=address))
        program.chmod(0o755)
        (folder / "python3").symlink_to(Path(sys.executable).resolve())
        with closing(socket.socket(socket.AF_UNIX)) as door:
            door.bind(address)
            door.listen()
            thread = threading.Thread(target=self._serve, args=(door,))
            thread.start()
            try:
                yield str(folder)
            finally:
                door.shutdown(socket.SHUT_RDWR)
                thread.join()

    def _serve(self, door: socket.socket) -> None:
        while True:
            try:
                line, _ = door.accept()
            except OSError:
                return
            with line, line.makefile() as asked:
                line.sendall(json.dumps(self.answer(json.loads(asked.readline()))).encode())


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
            return "\t".join(map(str, chosen)) + "\n" if isinstance(chosen, list) else f"{chosen}\n"
        return f"{json.dumps(chosen, default=str)}\n"
    return f"{json.dumps(answer, default=str)}\n" if answer else ""


def validated(service: str, shape: str, value: Mapping[str, Any]) -> None:
    """Assert that a request matches the service model that AWS publishes."""
    model = botocore.session.get_session().get_service_model(service)
    report = ParamValidator().validate(value, model.shape_for(shape))
    assert not report.has_errors(), report.generate_report()
