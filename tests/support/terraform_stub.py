"""A fake terraform that records each call with its variables, and remembers which modules are applied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fake_program import fake_program

OUTPUTS = {
    "foundation": {"channel": "projects/p/notificationChannels/1"},
    "jobs": {"job": "projects/p/locations/europe-west1/jobs/voxbatch"},
    "service": {"url": "https://voxbatch-serve-42.europe-west1.run.app"},
}
"""Outputs of the applied modules, beside alert_email."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line: `terraform -chdir=…/jobs apply -target=a` → module jobs, verb apply, arguments [-target=a].

    Attributes:
        variables: the values of TF_VAR_….
    """

    module: str
    verb: str
    arguments: list[str]
    variables: dict[str, str]
    environment: str


@dataclass
class Terraform:
    """The commands so far, and the modules whose state has something: their variables, and the resources that a test
    has put there or an import has added.
    """

    commands: list[Command] = field(default_factory=list)
    applied: dict[str, dict[str, str]] = field(default_factory=dict)
    imported: set[str] = field(default_factory=set)
    version: str = "1.5.7"
    errors: list[str] = field(default_factory=list)
    """Errors of the next applies; "" for one that succeeds."""
    losses: str = ""
    """Lines that the text of each plan has."""
    targets: bool = False
    """True if the last plan is only for some resources."""

    def __call__(self, argv: list[str], stdin: str, environment: str) -> tuple[int, str, str]:
        """Run one command and return exit code, standard output and standard error."""
        if argv == ["version"]:
            return 0, f"Terraform v{self.version}\non linux_amd64\n", ""
        variables = dict(
            re.findall(r'^declare -x TF_VAR_(\w+)="(.*?)"$', environment.replace('\\"', "'"), re.MULTILINE)
        )
        arguments = [re.sub(r"(^|=)/\S*/plan$", r"\1plan", argument) for argument in argv[2:]]
        command = Command(Path(argv[0].removeprefix("-chdir=")).name, argv[1], arguments, variables, environment)
        self.commands.append(command)
        module = command.module
        match command.verb:
            case "apply" if self.errors and (error := self.errors.pop(0)):
                return 1, "", error
            case "plan":
                self.targets = any(argument.startswith("-target") for argument in arguments)
            case "show":
                return 0, self.losses, ""
            case "apply" if not self.targets:
                self.applied[module] = variables
            case "destroy":
                del self.applied[module]
            case "import":
                self.imported.add(command.arguments[-2])
            case "output":
                return self._output(module, arguments[-1])
            case "state" if command.arguments[0] == "list":
                asked = command.arguments[1:]
                there = self.imported & set(asked) if asked else ({module} if module in self.applied else set())
                return 0, "".join(f"{each}\n" for each in there), ""
        return 0, "", ""

    def _output(self, module: str, name: str) -> tuple[int, str, str]:
        outputs = {**OUTPUTS[module], "alert_email": self.applied.get(module, {}).get("alert_email", "")}
        if module not in self.applied or not outputs.get(name):
            return 1, "", f'Error: Output "{name}" not found'
        return 0, outputs[name], ""

    def made(self, *verbs: str) -> list[str]:
        """Return the commands with these verbs, as `MODULE VERB ARGUMENT…`; by default those that change something."""
        changing = ("apply", "destroy", "import", "state rm")
        lines = [f"{each.module} {each.verb} {' '.join(each.arguments)}" for each in self.commands]
        return [line for line in lines if line.split(" ", 1)[1].startswith(verbs or changing)]


@contextmanager
def terraform(programs: Path) -> Iterator[Terraform]:
    """Install a fake terraform in the folder `programs`."""
    stub = Terraform()
    with fake_program(programs / "terraform", stub):
        yield stub
