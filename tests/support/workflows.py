"""An interpreter for the part of the Google Cloud Workflows syntax that jobs/cloudrun/workflow.yaml uses; it rejects
other steps and functions.

Steps: assign, call, switch, try (one call, with except and perhaps retry), raise, return. Calls: a connector,
sys.sleep, and http.post for an object of Cloud Storage. A predicate of a retry is a subworkflow. Python evaluates the
expressions, because the two languages agree in what the file uses, except for the function `not`. Google's runtime is
not available for tests: this module follows its documentation.
"""

from __future__ import annotations

import itertools
import json
import operator
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import discovery

Step = dict[str, Any]
Cloud = Callable[[str, dict[str, Any]], None]
"""A function that receives each call: a method id and its arguments. It raises Error if the call fails."""

EXPRESSION = re.compile(r"^\$\{(.*)\}$", re.DOTALL)
LONGEST = 400  # Google's limit on the characters of an expression
KEYS = ({"assign"}, {"call", "args"}, {"switch"}, {"try", "retry", "except"}, {"try", "except"}, {"raise"}, {"return"})
"""The keys of each kind of step."""
NO_RETRY: Step = {"max_retries": 0, "backoff": {}, "predicate": ""}


class Map(dict[str, Any]):
    """A map whose keys are attributes in expressions."""

    __getattr__ = dict.__getitem__


def _value_at(source: Any, keys: list[str]) -> Any:
    """Return the value at the path of keys; None if one is missing."""
    for key in keys:
        source = source.get(key) if isinstance(source, dict) else None
    return source


FUNCTIONS = {
    "default": lambda value, other: other if value is None else value,
    "map": SimpleNamespace(get=_value_at),
    "json": Map(encode_to_string=lambda value: json.dumps(value, separators=(",", ":"), sort_keys=True)),
    "int": int,
    "len": len,
    "not_": operator.not_,
    "string": str,
    "text": Map(
        match_regex=lambda source, pattern: re.search(pattern, source) is not None,
        substring=lambda source, start, end: source[start:end],
    ),
}


class Error(Exception):
    """An error of a call or a raise, which the workflow can catch. Uncaught, it fails the execution.

    Attributes:
        value: a map with tags and a message, and with the HTTP status as code; or the text that was raised.
    """

    def __init__(self, value: Any):
        super().__init__(value)
        self.value = mapped(value)


class Ended(Exception):
    """Raised when a routine returns; its argument is the returned value."""


def mapped(value: Any) -> Any:
    """Return a value with its objects as maps."""
    return Map({key: mapped(part) for key, part in value.items()}) if isinstance(value, dict) else value


class Run:
    """One run of a workflow with its environment variables and a fake cloud.

    Attributes:
        waited: the seconds before each retry, which pass at once.
        now: the time in seconds since 1970, which sys.sleep puts forward.
        steps: the number of steps that Google bills: each assignment, call and step of another kind.
    """

    def __init__(self, environment: dict[str, str], cloud: Cloud):
        self.now, self.steps = 1_795_212_030.5, 0
        clock = Map(get_env=environment.__getitem__, now=lambda: self.now)
        self._known = {"__builtins__": {}, "sys": clock, **FUNCTIONS}
        self.cloud = cloud
        self.workflow: dict[str, Any] = {}
        self.waited: list[float] = []

    def main(self, workflow: dict[str, Any], argument: Any) -> Any:
        """Run the workflow with its argument and return the result.

        Raises:
            Error: the execution fails.
        """
        self.workflow = workflow
        return self.routine("main", argument)

    def routine(self, name: str, argument: Any) -> Any:
        """Run the main workflow or a subworkflow with its argument and return the result."""
        (parameter,) = self.workflow[name]["params"]
        try:
            self.block(self.workflow[name]["steps"], {parameter: mapped(argument)})
        except Ended as e:
            return e.args[0]
        return None

    def block(self, steps: list[Step], names: dict[str, Any]) -> None:
        """Run steps in order."""
        for named in steps:
            (step,) = named.values()
            self.step(step, names)

    def step(self, step: Step, names: dict[str, Any]) -> None:
        assert any(step.keys() <= keys for keys in KEYS), f"no step of Workflows: {sorted(step)}"
        self.steps += len(step.get("assign", "1"))
        if "try" in step:
            self.attempt(step, names)
        for condition in step.get("switch", []):
            if self.fill(condition["condition"], names):
                if "return" in condition:
                    raise Ended(self.fill(condition["return"], names))
                self.block(condition["steps"], names)
                break
        for pair in step.get("assign", []):
            ((name, value),) = pair.items()
            names[name] = self.fill(value, names)
        if "call" in step:
            self.call(step["call"], self.fill(step["args"], names))
        if "return" in step:
            raise Ended(self.fill(step["return"], names))
        if "raise" in step:
            raise Error(self.fill(step["raise"], names))

    def attempt(self, step: Step, names: dict[str, Any]) -> None:
        """Run the call of a try step: first, then as often as its retry allows; at last, its except steps."""
        retry, handler = step.get("retry", NO_RETRY), step["except"]
        backoff, predicate = retry["backoff"], EXPRESSION.sub(r"\1", retry["predicate"])
        for retries in itertools.count():
            try:
                self.step(step["try"], names)
            except Error as e:
                if retries >= retry["max_retries"] or self.routine(predicate, e.value) is not True:
                    self.block(handler["steps"], {**names, handler["as"]: e.value})
                    return
            else:
                return
            self.waited.append(min(backoff["initial_delay"] * backoff["multiplier"] ** retries, backoff["max_delay"]))

    def fill(self, value: Any, names: dict[str, Any]) -> Any:
        """Return a value of the file with its expressions evaluated."""
        if isinstance(value, dict):
            return {key: self.fill(part, names) for key, part in value.items()}
        if not isinstance(value, str) or "${" not in value:
            return value
        match = EXPRESSION.match(value)
        assert match, f"an expression is the whole value or none of it: {value}"
        assert len(match[1]) <= LONGEST
        assert "'" not in match[1], "strings stand in double quotes"
        return eval(re.sub(r"\bnot\(", "not_(", match[1]), {**self._known, **names})

    def call(self, name: str, arguments: dict[str, Any]) -> None:
        """Check a call against the discovery document of the API, then make it."""
        if name == "sys.sleep":
            self.now += arguments["seconds"]
            return
        if name == "http.post":
            self.post(**arguments)
            return
        googleapis, service, version, *rest = name.split(".")  # googleapis.run.v2.projects.x: run.projects.x of run.v2
        assert googleapis == "googleapis"
        api, called = discovery.api(f"{service}.{version}"), ".".join([service, *rest])
        takes = api.method(called)
        sent = {key: value for key, value in arguments.items() if key != "connector_params"}
        needed = {key for key, parameter in takes["parameters"].items() if parameter.get("required")}
        assert needed <= sent.keys() <= {*takes["parameters"], "body"}, name
        assert api.faults(sent["body"], takes["request"]["$ref"]) == []
        for key in sent.keys() - {"body"}:
            assert re.match(takes["parameters"][key].get("pattern", ""), sent[key]), f"{name}: {key}={sent[key]}"
        self.cloud(called, sent)

    def post(self, url: str, query: dict[str, str], auth: dict[str, str]) -> None:
        """Check a request that uploads an object of Cloud Storage, then make it."""
        assert auth == {"type": "OAuth2"}
        host, path = "https://storage.googleapis.com/upload", urlsplit(url).path.removeprefix("/upload")
        assert url == f"{host}{path}"
        method = discovery.api("storage.v1").called("POST", path.removeprefix("/storage/v1/"))
        assert method
        assert query.keys() - {"uploadType"} <= method["parameters"].keys()
        self.cloud(method["id"], {"bucket": path.split("/")[4], **query})
