"""A fake gcloud with a memory: `describe` and `list` show the resources that earlier commands created.

The program on PATH is a short bash script that sends its arguments to the test process. Each call is recorded, so that
tests can compare it with the real gcloud. The fake knows only the commands of jobs/cloudrun, and none of Google's
rules.
"""

from __future__ import annotations

import re
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Thing = dict[str, Any]

GROUPS = (  # the longer of two groups with the same start comes first
    "storage buckets notifications", "storage buckets", "storage", "beta run worker-pools", "run jobs executions",
    "run jobs", "run services", "beta services identity", "services", "alpha monitoring policies",
    "beta monitoring channels", "logging metrics", "artifacts docker images", "artifacts repositories",
    "pubsub subscriptions", "pubsub topics",
    "iam service-accounts", "secrets versions", "secrets", "eventarc triggers", "scheduler jobs create",
    "scheduler jobs update", "scheduler jobs", "workflows", "projects", "config", "builds", "artifacts sbom",
    "artifacts vulnerabilities", "logging",
)  # fmt: skip
READING = {"describe", "list", "get", "get-iam-policy", "ls", "access", "service-agent", "cat", "read"}
AGENT = "service-42@gs-project-accounts.iam.gserviceaccount.com"


class Refused(Exception):
    """The error message of gcloud before it exits with 1."""


class Absent(Refused):
    """A missing resource."""


# ── one call ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Call:
    """The words of a command line: `pubsub topics create t --labels=a=b` → group, verb, names, flags."""

    def __init__(self, argv: list[str]):
        line = " ".join(argv) + " "
        self.argv = argv
        self.group = next((g for g in GROUPS if line.startswith(g + " ")), "")
        words = argv[len(self.group.split()) :]
        plain = [word for word in words if not word.startswith("--")]
        self.verb, self.names = (plain[0], plain[1:]) if plain else ("", [])
        if self.group in ("scheduler jobs create", "scheduler jobs update"):  # their verb stands before `http`
            self.group, self.verb = self.group.rsplit(" ", 1)
        self.flags: dict[str, str] = {}
        self.filters: list[str] = []
        for word in words:
            if word.startswith("--"):
                name, _, value = word[2:].partition("=")
                self.flags[name] = value
                if name == "event-filters":
                    self.filters.append(value)

    @property
    def reads(self) -> bool:
        """Tell whether the command only reads."""
        return self.verb in READING

    @property
    def key(self) -> str:
        """Return the key of a resource, whose name may be given in full, as an address, or short."""
        return f"{self.group}/{self.names[0].removeprefix('gs://').rsplit('/', 1)[-1].split('@')[0]}"


class World:
    """All resources that were created."""

    def __init__(self) -> None:
        self.things: dict[str, Any] = {}

    def under(self, prefix: str) -> list[Thing]:
        """Return the resources whose key starts with `prefix`."""
        return [thing for key, thing in self.things.items() if key.startswith(prefix)]


# ── the effect of each command; the answer is the resource that gcloud would show ─────────────────────────────────────


def found(world: World, key: str) -> Thing:
    """Return the resource of this key.

    Raises:
        Absent: there is none.
    """
    if key not in world.things:
        raise Absent(NOT_FOUND.get(key.split("/", 1)[0], "NOT_FOUND: Requested entity was not found."))
    thing: Thing = world.things[key]
    return thing


NOT_FOUND = {
    "run jobs": "Cannot find job [voxbatch].",
    "run services": "Cannot find service [voxbatch-serve]",
    "beta run worker-pools": "Cannot find worker pool [voxbatch-listen]",
    "storage buckets": "gs://bucket not found: 404.",
}


def shown_fields(call: Call) -> Thing:
    """Return what gcloud adds to the flags when it shows the resource."""
    show = SHOWN.get(call.group)
    return show(call) if show else {}


def create(call: Call, world: World, stdin: str) -> Thing | None:
    if call.key in world.things:
        raise Refused("ALREADY_EXISTS: Resource already exists in the project.")
    world.things[call.key] = {"flags": call.flags, **shown_fields(call)}
    return None


def update(call: Call, world: World, stdin: str) -> Thing | None:
    found(world, call.key)
    world.things[call.key] = {"flags": call.flags, **shown_fields(call)}
    return None


def describe(call: Call, world: World, stdin: str) -> Thing | None:
    return found(world, call.key)


def delete(call: Call, world: World, stdin: str) -> Thing | None:
    found(world, call.key)
    del world.things[call.key]
    world.things.pop("policy:" + call.key, None)
    return None


def shown_bucket(call: Call) -> Thing:
    return {
        "name": call.names[0].removeprefix("gs://"),
        "location": call.flags.get("location", "europe-west1").upper(),
        "uniform_bucket_level_access": "uniform-bucket-level-access" in call.flags,
        "public_access_prevention": "enforced" if "public-access-prevention" in call.flags else "inherited",
    }


def seconds(duration: str) -> str:
    """Convert a duration such as `31d` to seconds with the unit: `2678400s`."""
    return f"{int(duration[:-1]) * {'s': 1, 'd': 86400}[duration[-1]]}s"


def shown_subscription(call: Call) -> Thing:
    flags = call.flags
    thing: Thing = {
        "ackDeadlineSeconds": int(flags["ack-deadline"]),
        "messageRetentionDuration": seconds(flags["message-retention-duration"]),
        "expirationPolicy": {} if flags["expiration-period"] == "never" else {"ttl": flags["expiration-period"]},
    }
    if "dead-letter-topic" in flags:
        most = int(flags["max-delivery-attempts"])
        thing["deadLetterPolicy"] = {"deadLetterTopic": flags["dead-letter-topic"], "maxDeliveryAttempts": most}
        thing["retryPolicy"] = {"minimumBackoff": flags["min-retry-delay"], "maximumBackoff": flags["max-retry-delay"]}
    return thing


def shown_labelled(call: Call) -> Thing:
    labels = dict(pair.split("=", 1) for pair in call.flags.get("labels", "").split(",") if pair)
    return {"name": call.names[0], "labels": labels, "filters": call.filters}


def shown_file(flag: str) -> Callable[[Call], Thing]:
    """Return a function that reads the resource from the file of this flag."""

    def shown(call: Call) -> Thing:
        return yaml_of(Path(call.flags[flag]))

    return shown


def shown_schedule(call: Call) -> Thing:
    body = Path(call.flags["message-body-from-file"]).read_text()
    return {"name": call.names[-1], "description": call.flags["description"], "body": body}


SHOWN: dict[str, Callable[[Call], Thing]] = {
    "storage buckets": shown_bucket,
    "pubsub subscriptions": shown_subscription,
    "eventarc triggers": shown_labelled,
    "workflows": shown_labelled,
    "scheduler jobs": shown_schedule,
    "logging metrics": shown_file("config-from-file"),
}


def yaml_of(path: Path) -> Thing:
    thing: Thing = yaml.safe_load(path.read_text())
    return thing


def replace(call: Call, world: World, stdin: str) -> Thing | None:
    thing = yaml_of(Path(call.names[0]))
    world.things[f"{call.group}/{thing['metadata']['name']}"] = thing
    return None


def describe_service(call: Call, world: World, stdin: str) -> Thing | None:
    return {**found(world, call.key), "status": {"url": "https://voxbatch-serve-42.europe-west1.run.app"}}


def deploy_workflow(call: Call, world: World, stdin: str) -> Thing | None:
    world.things[call.key] = {"flags": call.flags, **shown_labelled(call)}
    return None


def bind(call: Call, world: World, stdin: str) -> Thing | None:
    """Add or remove an IAM binding."""
    if call.group != "projects":
        found(world, call.key)
    bindings = world.things.setdefault("policy:" + call.key, [])
    wanted = {"role": call.flags["role"], "members": [call.flags["member"]]}
    there = [b for b in bindings if b != wanted]
    world.things["policy:" + call.key] = there if call.verb.startswith("remove") else [*there, wanted]
    return None


def get_policy(call: Call, world: World, stdin: str) -> Thing | None:
    if call.group != "projects":
        found(world, call.key)
    return {"bindings": world.things.get("policy:" + call.key, [])}


def add_version(call: Call, world: World, stdin: str) -> Thing | None:
    found(world, call.key.replace(" versions", ""))
    world.things.setdefault("versions", []).append(stdin)
    return None


def notify(call: Call, world: World, stdin: str) -> Thing | None:
    number = world.things["notifications made"] = world.things.get("notifications made", 0) + 1
    world.things[f"notification/{number}"] = {
        "Bucket URL": call.names[0] + "/",
        "Notification Configuration": {
            "id": str(number),
            "topic": "//pubsub.googleapis.com/" + call.flags["topic"],
            "object_name_prefix": call.flags["object-prefix"],
            "event_types": [call.flags["event-types"]],
        },
    }
    return None


def delete_notification(call: Call, world: World, stdin: str) -> Thing | None:
    del world.things["notification/" + call.names[0].rsplit("/", 1)[-1]]
    return None


def put_policy(call: Call, world: World, stdin: str) -> Thing | None:
    thing = yaml_of(Path(call.flags["policy-from-file"]))
    number = max([0, *(int(each["name"].rpartition("/")[2]) for each in world.under("alert/"))]) + 1
    thing["name"] = call.names[0] if call.names else f"projects/p/alertPolicies/{number}"
    world.things["alert/" + thing["name"]] = thing
    return None


def delete_policy(call: Call, world: World, stdin: str) -> Thing | None:
    del world.things["alert/" + call.names[0]]
    return None


def list_policies(call: Call, world: World, stdin: str) -> list[Thing]:
    (name,) = re.findall(r'^displayName="(.*)"$', call.flags["filter"])
    return [thing for thing in world.under("alert/") if thing["displayName"] == name]


def make_channel(call: Call, world: World, stdin: str) -> Thing | None:
    number = len(world.under("channel/")) + 1
    labels = dict(pair.split("=", 1) for pair in call.flags["channel-labels"].split(","))
    name = f"projects/p/notificationChannels/{number}"
    world.things["channel/" + name] = {"name": name, "type": call.flags["type"], "labels": labels}
    return None


def delete_channel(call: Call, world: World, stdin: str) -> Thing | None:
    del world.things["channel/" + call.names[0]]
    return None


def remove_objects(call: Call, world: World, stdin: str) -> Thing | None:
    name = call.names[0].removeprefix("gs://")
    del world.things["storage buckets/" + name], world.things["objects/" + name]
    return None


def list_objects(call: Call, world: World, stdin: str) -> str:
    name = call.names[0].removeprefix("gs://")
    if not world.things.get("objects/" + name):
        raise Absent("One or more URLs matched no objects.")
    return "\n".join(world.things["objects/" + name])


def access(call: Call, world: World, stdin: str) -> str:
    """Return the latest version of the secret."""
    if not world.things.get("versions"):
        raise Absent("NOT_FOUND: Secret [projects/42/secrets/voxbatch-hf-token] has no versions.")
    latest: str = world.things["versions"][-1]
    return latest


def submit(call: Call, world: World, stdin: str) -> Thing | None:
    """Start a build, which goes through the states that the test put into "build states", and put its image."""
    thing: Thing = {"id": "b-1", "flags": call.flags, "config": yaml_of(Path(call.flags["config"]))}
    steps = [step["id"] for step in thing["config"]["steps"]]
    states = world.things.setdefault("build states", ["QUEUED", "WORKING", "SUCCESS"])
    thing["states"] = [built(state, steps) for state in states]
    world.things["builds/b-1"] = thing
    return thing


def built(state: str, steps: list[str]) -> Thing:
    """Return a build in this state: `WORKING`, or `FAILURE push` with the step that failed."""
    status, _, at = state.partition(" ")
    if status in ("QUEUED", "PENDING"):
        return {"status": status, "steps": [{"id": step} for step in steps]}
    at = at or (steps[0] if status == "WORKING" else "")
    before = steps[: steps.index(at)] if at else steps
    rows = [{"id": step, "status": "SUCCESS"} for step in before]
    return {"status": status, "steps": rows + ([{"id": at, "status": status}] if at else [])}


def next_state(call: Call, world: World, stdin: str) -> Thing | None:
    """Return the next of the resource's states; the last one stays."""
    states = found(world, call.key)["states"]
    return dict(states.pop(0) if len(states) > 1 else states[0])


def execute(call: Call, world: World, stdin: str) -> Thing | None:
    """Start an execution, which goes through the states that the test put into "execution states", and leave the
    outputs of a run.
    """
    number = world.things["executions made"] = world.things.get("executions made", 0) + 1
    states = world.things.get("execution states", ["Unknown", "True"])
    world.things[f"run jobs executions/voxbatch-{number}"] = {"flags": call.flags, "states": [*map(executed, states)]}
    arguments = call.flags["args"].split(",")
    if arguments[0] == "run":
        out = arguments[arguments.index("-o") + 1].removeprefix("gs://")
        for name, text in world.things.get("outputs of a run", {}).items():
            world.things[f"object {out}/{name}"] = text
    return {"metadata": {"name": f"voxbatch-{number}"}}


def executed(state: str) -> Thing:
    """Return an execution whose condition Completed has this status: `False REASON`, or `Retried` after one retry."""
    status, _, why = state.partition(" ")
    completed = {"type": "Completed", "status": "Unknown" if status == "Retried" else status, "message": why}
    ended = {} if status in ("Unknown", "Retried") else {"completionTime": "2026-11-24T00:03:20.5Z"}
    conditions = [completed, {"type": "ResourcesAvailable", "status": "True"}]
    thing = {"conditions": conditions, "startTime": "2026-11-23T23:59:50Z", **ended}
    return {"status": {**thing, **({"retriedCount": 1} if status == "Retried" else {})}}


def copy_object(call: Call, world: World, stdin: str) -> Thing | None:
    world.things["object " + call.names[1].removeprefix("gs://")] = call.names[0].rpartition("/")[2]
    return None


def cat(call: Call, world: World, stdin: str) -> str:
    name = call.names[0].removeprefix("gs://")
    if f"object {name}" not in world.things:
        raise Absent("The following URLs matched no objects or files:\n" + call.names[0])
    return str(world.things[f"object {name}"])


Answer = Thing | list[Thing] | str | None
COMMANDS: dict[tuple[str, str], Callable[[Call, World, str], Answer]] = {
    ("services", "enable"): lambda call, world, _: world.things.update(
        apis=sorted({*world.things.get("apis", []), *call.names})
    ),
    ("services", "list"): lambda call, world, _: [{"config": {"name": n}} for n in world.things.get("apis", [])],
    ("beta services identity", "create"): lambda *_: None,
    ("projects", "describe"): lambda *_: {"projectNumber": "42"},
    ("storage", "service-agent"): lambda *_: AGENT,
    ("storage", "ls"): list_objects,
    ("storage", "rm"): remove_objects,
    ("storage", "cp"): copy_object,
    ("storage", "cat"): cat,
    ("builds", "submit"): submit,
    ("builds", "describe"): next_state,
    ("run jobs", "execute"): execute,
    ("run jobs executions", "describe"): next_state,
    ("run jobs executions", "cancel"): lambda *_: None,
    ("artifacts sbom", "export"): lambda *_: None,
    ("artifacts vulnerabilities", "list"): lambda call, world, _: list(world.things.get("vulnerabilities", [])),
    ("logging", "read"): lambda call, world, _: list(world.things.get("log", [])),
    ("config", "get"): lambda call, *_: {"project": "configured", "account": "me@example.org"}[call.names[0]],
    ("artifacts docker images", "describe"): lambda call, world, _: found(world, "image"),
    ("secrets versions", "add"): add_version,
    ("secrets versions", "access"): access,
    ("storage buckets notifications", "create"): notify,
    ("storage buckets notifications", "list"): lambda call, world, _: world.under("notification/"),
    ("storage buckets notifications", "delete"): delete_notification,
    ("alpha monitoring policies", "create"): put_policy,
    ("alpha monitoring policies", "update"): put_policy,
    ("alpha monitoring policies", "list"): list_policies,
    ("alpha monitoring policies", "delete"): delete_policy,
    ("beta monitoring channels", "create"): make_channel,
    ("beta monitoring channels", "list"): lambda call, world, _: world.under("channel/"),
    ("beta monitoring channels", "delete"): delete_channel,
    ("run jobs", "replace"): replace,
    ("run services", "replace"): replace,
    ("run services", "describe"): describe_service,
    ("beta run worker-pools", "replace"): replace,
    ("workflows", "deploy"): deploy_workflow,
}
COMMON: dict[str, Callable[[Call, World, str], Answer]] = {
    "create": create, "update": update, "describe": describe, "delete": delete, "get-iam-policy": get_policy,
    "add-iam-policy-binding": bind, "remove-iam-policy-binding": bind,
}  # fmt: skip


# ── the output ────────────────────────────────────────────────────────────────────────────────────────────────────────

FORMAT = re.compile(r'^value(?:\[separator="(?P<separator>.*?)"\])?\((?P<fields>.*)\)$', re.DOTALL)


def shown(answer: Answer, flags: dict[str, str]) -> str:
    """Return the answer in the form of --flatten and --format. value() is the only supported format."""
    if isinstance(answer, str):
        return answer + "\n"
    rows = answer if isinstance(answer, list) else [answer] if answer is not None else []
    if flags.get("flatten") == "bindings[].members":
        rows = [
            {"bindings": {**b, "members": m}} for row in rows for b in row.get("bindings", []) for m in b["members"]
        ]
    elif flags.get("flatten", "").endswith("[]"):
        rows = [flat for row in rows for flat in flattened(row, flags["flatten"].removesuffix("[]").split("."))]
    if not rows or "format" not in flags:
        return ""
    form = FORMAT.match(flags["format"])
    assert form, f"the stub does not know the format {flags['format']}"
    fields = [field.strip() for field in form["fields"].split(",")]
    separator = form["separator"] if form["separator"] is not None else "\t"
    return "".join(separator.join(value(row, field) for field in fields) + "\n" for row in rows)


def flattened(row: Thing, path: list[str]) -> list[Thing]:
    """Return a copy of the row for each element of the list at this path, with the element in its place."""
    if len(path) == 1:
        return [{**row, path[0]: each} for each in row.get(path[0]) or [None]]
    return [{**row, path[0]: each} for each in flattened(row[path[0]], path[1:])]


def value(row: Any, field: str) -> str:
    """Return a field of a resource as gcloud's value() format prints it."""
    parts = [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|([^."]+)', field)]
    lower = parts[-1] == "lower()"
    for part in parts[: len(parts) - lower]:
        row = row.get(part) if isinstance(row, dict) else None
    text = "" if row is None else str(row)
    return text.lower() if lower else text


# ── the program and its server ────────────────────────────────────────────────────────────────────────────────────────

CLIENT = """#!/usr/bin/env bash
stdin=""
case " $* " in *" --data-file=- "*) IFS= read -r -d '' stdin ;; esac
exec 3<>"/dev/tcp/127.0.0.1/PORT"
printf '%s\\0' "$#" "$@" "$stdin" "$(export -p)" >&3
IFS= read -r -d '' code <&3
IFS= read -r -d '' error <&3
IFS= read -r -d '' out <&3
printf '%s' "$error" >&2
printf '%s' "$out"
exit "$code"
"""


@dataclass
class Trouble:
    """A fault: the next `times` commands that match `at` fail with the message `say`, after `skip` successful ones."""

    at: str
    say: str
    times: int = 1
    skip: int = 0
    changing_only: bool = False

    def befalls(self, call: Call) -> bool:
        """Return whether this call fails, and count it."""
        if self.times == 0 or (self.changing_only and call.reads) or not re.search(self.at, " ".join(call.argv)):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass
class Gcloud:
    """The state of the fake gcloud, its recorded calls, and the planned fault."""

    folder: Path
    world: World = field(default_factory=World)
    record: list[Thing] = field(default_factory=list)
    trouble: Trouble | None = None

    def __call__(self, argv: list[str], stdin: str, environment: str) -> tuple[int, str, str]:
        """Run one command and return exit code, standard error and standard output."""
        call, resource, out, error, code = Call(argv), None, "", "", 0
        kept = self.kept(argv)
        try:
            if self.trouble and self.trouble.befalls(call):
                raise Refused(self.trouble.say)
            does = COMMANDS.get((call.group, call.verb)) or COMMON.get(call.verb)
            if does is None or not call.group:
                raise Refused(f"the stub does not know: {' '.join(argv)}")
            resource = does(call, self.world, stdin)
            out = shown(resource, call.flags)
        except Refused as e:
            error, code = f"ERROR: (gcloud.{'.'.join([*call.group.split(), call.verb])}) {e}\n", 1
        self.record.append({
            "argv": argv, "kept": kept, "reads": call.reads, "stdin": stdin, "environment": environment,
            "flags": call.flags, "resource": resource, "out": out, "rc": code,
        })  # fmt: skip
        return code, error, out

    def kept(self, argv: list[str]) -> list[str]:
        """Return the same words with copies of the files that they name, because the scripts delete their files at the
        end.
        """
        words = []
        for word in argv:
            flag, _, path = word.rpartition("=") if word.startswith("--") else ("", "", word)
            if path.startswith("/") and Path(path).is_file():
                copy = self.folder / f"{len(list(self.folder.iterdir()))}-{Path(path).name}"
                copy.write_bytes(Path(path).read_bytes())
                word = f"{flag}={copy}" if flag else str(copy)
            words.append(word)
        return words


class _Server(socketserver.TCPServer):
    """A server for one call at a time, because the scripts issue them one after the other."""

    gcloud: Gcloud
    allow_reuse_address = True


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def word(self) -> str:
        """Read one argument, which ends in a NUL byte."""
        text = bytearray()
        while (byte := self.rfile.read(1)) != b"\0":
            text += byte
        return text.decode()

    def handle(self) -> None:
        argv = [self.word() for _ in range(int(self.word()))]
        answer = self.server.gcloud(argv, self.word(), self.word())
        self.wfile.write("".join(f"{part}\0" for part in answer).encode())


@contextmanager
def gcloud(programs: Path, files: Path) -> Iterator[Gcloud]:
    """Install a fake gcloud in the folder `programs`; copies of the files that it receives are stored in `files`."""
    files.mkdir()
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.gcloud = Gcloud(files)
        (programs / "gcloud").write_text(CLIENT.replace("PORT", str(server.server_address[1])))
        (programs / "gcloud").chmod(0o755)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.gcloud
        server.shutdown()
        thread.join()
