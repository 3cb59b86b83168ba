"""A fake gcloud with a memory: `describe` and `list` show what earlier commands made.

Each call is recorded, so that tests can compare it with the real gcloud. The fake knows only the commands of
jobs/cloudrun, and none of Google's rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from fake_program import fake_program

Thing = dict[str, Any]

GROUPS = (  # the longer of two groups with the same start comes first
    "billing projects",
    "storage buckets", "storage", "run jobs executions", "run jobs", "run services", "services",
    "artifacts docker images", "artifacts sbom", "artifacts vulnerabilities", "secrets versions", "secrets", "auth",
    "config", "builds", "logging",
)  # fmt: skip
READING = {"describe", "list", "get", "get-iam-policy", "ls", "access", "cat", "read", "print-access-token"}


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
        self.flags: dict[str, str] = {}
        for word in words:
            if word.startswith("--"):
                name, _, value = word[2:].partition("=")
                self.flags[name] = value

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
    "run services": "Cannot find service [voxbatch-serve]",
    "storage buckets": "gs://bucket not found: 404.",
}


def make_bucket(call: Call, world: World, stdin: str) -> None:
    if call.key in world.things:
        raise Refused("HTTPError 409: Your previous request to create the named bucket succeeded.")
    world.things[call.key] = {"name": call.names[0].removeprefix("gs://"), "location": call.flags["location"].upper()}


def describe(call: Call, world: World, stdin: str) -> Thing | None:
    return found(world, call.key)


def yaml_of(path: Path) -> Thing:
    thing: Thing = yaml.safe_load(path.read_text())
    return thing


def add_version(call: Call, world: World, stdin: str) -> None:
    world.things.setdefault("versions", []).append(stdin)


def remove_objects(call: Call, world: World, stdin: str) -> None:
    name, _, inside = call.names[0].removeprefix("gs://").partition("/")
    world.things.pop("objects/" + name, None)
    if not inside:
        world.things.pop("storage buckets/" + name, None)


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


def copy_object(call: Call, world: World, stdin: str) -> None:
    for source in call.names[:-1]:
        place = call.names[-1].removeprefix("gs://")
        name = place + Path(source).name if place.endswith("/") else place
        text = Path(source).read_text() if place.endswith(("/settings", "/service-settings")) else Path(source).name
        world.things[f"object {name}"] = text


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
    ("auth", "print-access-token"): lambda *_: "ya29.token",
    ("config", "get"): lambda call, *_: {"project": "configured", "account": "me@example.org"}[call.names[0]],
    ("storage buckets", "create"): make_bucket,
    ("storage buckets", "describe"): describe,
    ("storage buckets", "update"): describe,
    ("storage", "ls"): list_objects,
    ("storage", "rm"): remove_objects,
    ("storage", "cp"): copy_object,
    ("storage", "cat"): cat,
    ("secrets", "describe"): describe,
    ("secrets versions", "add"): add_version,
    ("secrets versions", "access"): access,
    ("builds", "submit"): submit,
    ("builds", "describe"): next_state,
    ("artifacts docker images", "describe"): lambda call, world, _: found(world, "image"),
    ("artifacts sbom", "export"): lambda *_: None,
    ("artifacts vulnerabilities", "list"): lambda call, world, _: list(world.things.get("vulnerabilities", [])),
    ("run jobs", "execute"): execute,
    ("run jobs executions", "describe"): next_state,
    ("run jobs executions", "cancel"): lambda *_: None,
    ("run services", "get-iam-policy"): lambda call, world, _: {"bindings": found(world, call.key)},
    ("billing projects", "describe"): lambda *_: {"billingAccountName": "billingAccounts/0A-1B-2C"},
    ("logging", "read"): lambda call, world, _: list(world.things.get("log", [])),
}


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


# ── the program ───────────────────────────────────────────────────────────────────────────────────────────────────────


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
        """Run one command and return exit code, standard output and standard error."""
        call, resource, out, error, code = Call(argv), None, "", "", 0
        kept = self.kept(argv)
        try:
            if self.trouble and self.trouble.befalls(call):
                raise Refused(self.trouble.say)
            does = COMMANDS.get((call.group, call.verb))
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
        return code, out, error

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


@contextmanager
def gcloud(programs: Path, files: Path) -> Iterator[Gcloud]:
    """Install a fake gcloud in the folder `programs`; copies of the files that it receives are stored in `files`."""
    files.mkdir()
    stub = Gcloud(files)
    with fake_program(programs / "gcloud", stub):
        yield stub
