"""An interpreter for the part of the Google Cloud Workflows syntax that jobs/cloudrun/workflow.yaml uses; it rejects
everything else.

Steps: assign, call, switch, try (one call, with retry and except), raise, return. A predicate of a retry is a
subworkflow. Expressions: the syntax that `evaluate` accepts, strings in double quotes, and only the functions in
FUNCTIONS. Google's runtime is not available for tests: this module follows its documentation.
"""

from __future__ import annotations

import ast
import itertools
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import discovery

Step = dict[str, Any]
Cloud = Callable[[str, dict[str, Any]], None]
"""A function that receives each call: a method id and its arguments. It raises Error if the call fails."""

EXPRESSION = re.compile(r"^\$\{(.*)\}$", re.DOTALL)
LONGEST = 400  # Google's limit on the characters of an expression
KEYS = ({"assign"}, {"call", "args"}, {"switch"}, {"try", "retry", "except"}, {"raise"}, {"return"})
"""The keys of each kind of step."""
CONDITION = {"condition", "return"}
RETRY, BACKOFF, EXCEPT = (
    {"predicate", "max_retries", "backoff"},
    {"initial_delay", "max_delay", "multiplier"},
    {"as", "steps"},
)
FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "json.encode_to_string": (lambda value: json.dumps(value, separators=(",", ":"), sort_keys=True), 1),
    "len": (len, 1),
    "not": (operator.not_, 1),
    "text.match_regex": (lambda source, pattern: re.search(pattern, source) is not None, 2),
    "text.substring": (lambda source, start, end: source[start:end], 3),
}
OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.LtE: operator.le, ast.GtE: operator.ge,
    ast.In: lambda key, where: key in where,
}  # fmt: skip


class Bad(Exception):
    """An error that Google would report at deployment or at run time."""


class Error(Exception):
    """An error of a call or a raise, which the workflow can catch. Uncaught, it fails the execution.

    Attributes:
        value: a map with tags and a message, and with the HTTP status as code; or the text that was raised.
    """

    def __init__(self, value: Any):
        super().__init__(value)
        self.value = value


class Ended(Exception):
    """Raised when a routine returns.

    Attributes:
        value: the returned value.
    """

    def __init__(self, value: Any):
        super().__init__(value)
        self.value = value


# ── expressions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def tree(text: str) -> ast.expr:
    """Return the syntax tree of an expression.

    Raises:
        Bad: the expression is too long, or is no expression.
    """
    if len(text) > LONGEST:
        raise Bad(f"longer than {LONGEST} characters: {text}")
    if "'" in text:
        raise Bad(f"strings stand in double quotes: {text}")
    try:
        # `not` is a function here and a keyword in Python
        return ast.parse(re.sub(r"\bnot\(", "not_(", text), mode="eval").body
    except SyntaxError as e:
        raise Bad(f"{text}: {e}") from e


def dotted(node: ast.expr) -> str:
    """Return the dotted name of a called function."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id.rstrip("_")
    raise Bad(f"only functions are called, not {ast.dump(node)}")


def evaluate(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression, with `names` as its variables."""
    match node:
        case ast.Constant(value=str() | int() | float() as value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.Attribute(value=inner, attr=key):
            return evaluate(inner, names)[key]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return same_kind(OPERATORS[type(op)], evaluate(left, names), evaluate(right, names))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
            return OPERATORS[type(op)](evaluate(left, names), evaluate(right, names))
        case ast.BoolOp(op=op, values=values):  # the second value is not evaluated if the first one decides
            parts = (evaluate(each, names) for each in values)
            return all(parts) if isinstance(op, ast.And) else any(parts)
        case ast.Call(func=func, args=args, keywords=[]):
            does, arity = FUNCTIONS.get(dotted(func), (None, 0))
            if does is None or len(args) != arity:
                raise Bad(f"{dotted(func)} with {len(args)} arguments is not known")
            return does(*(evaluate(each, names) for each in args))
    raise Bad(f"not an expression of Workflows: {ast.unparse(node)}")


def same_kind(does: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Apply an operator to two values, which must both be strings or both not."""
    if isinstance(left, str) != isinstance(right, str):
        raise Bad(f"a text and no text: {left!r}, {right!r}")
    return does(left, right)


def filled(value: Any, names: Mapping[str, Any]) -> Any:
    """Return a value of the file with its expressions evaluated."""
    if isinstance(value, dict):
        return {key: filled(each, names) for key, each in value.items()}
    if isinstance(value, str) and (found := EXPRESSION.match(value)):
        return evaluate(tree(found[1]), names)
    if isinstance(value, str) and "${" in value:
        raise Bad(f"an expression is the whole value or none of it: {value}")
    return value


# ── running ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Run:
    """One run of a workflow with its environment variables and a fake cloud.

    Attributes:
        waited: the seconds before each retry, which pass at once.
    """

    def __init__(self, environment: dict[str, str], cloud: Cloud):
        self.environment, self.cloud = environment, cloud
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
            self.block(self.workflow[name]["steps"], {parameter: argument})
        except Ended as e:
            return e.value
        return None

    def block(self, steps: list[Step], names: dict[str, Any]) -> None:
        """Run steps in order."""
        for named in steps:
            (step,) = named.values()
            self.step(step, names)

    def step(self, step: Step, names: dict[str, Any]) -> None:
        if not any(step.keys() <= keys for keys in KEYS):
            raise Bad(f"no step of Workflows: {sorted(step)}")
        if "try" in step:
            self.attempt(step, names)
        for condition in step.get("switch", []):
            if condition.keys() != CONDITION:
                raise Bad(f"no condition of Workflows: {sorted(condition)}")
            if self.fill(condition["condition"], names):
                raise Ended(self.fill(condition["return"], names))
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
        retry, handler = step["retry"], step["except"]
        backoff = retry["backoff"]
        if (retry.keys(), backoff.keys(), handler.keys()) != (RETRY, BACKOFF, EXCEPT) or "call" not in step["try"]:
            raise Bad(f"no try of Workflows: {step}")
        for retries in itertools.count():
            try:
                self.step(step["try"], names)
            except Error as e:
                if retries >= retry["max_retries"] or not self.predicate(retry["predicate"], e.value):
                    self.block(handler["steps"], {**names, handler["as"]: e.value})
                    return
            else:
                return
            self.waited.append(min(backoff["initial_delay"] * backoff["multiplier"] ** retries, backoff["max_delay"]))

    def predicate(self, expression: str, error: Any) -> bool:
        """Return the result of the subworkflow that an expression names: whether an error is retried."""
        return self.routine(EXPRESSION.sub(r"\1", expression), error) is True

    def fill(self, value: Any, names: dict[str, Any]) -> Any:
        if isinstance(value, str) and (found := re.fullmatch(r'\$\{sys\.get_env\("(\w+)"\)\}', value)):
            return self.environment[found[1]]
        return filled(value, names)

    def call(self, name: str, arguments: dict[str, Any]) -> None:
        """Check a connector call against the discovery document, then make it."""
        api, called = connector(name)
        takes = api.method(called)
        sent = {key: value for key, value in arguments.items() if key != "connector_params"}
        needed = {key for key, parameter in takes["parameters"].items() if parameter.get("required")}
        if not needed <= sent.keys() <= {*takes["parameters"], "body"}:
            raise Bad(f"{name} takes {sorted(takes['parameters'])} and needs {sorted(needed)}, not {sorted(sent)}")
        for key, value in sent.items():
            if key == "body":
                if wrong := api.faults(value, takes["request"]["$ref"]):
                    raise Bad(f"{name}: {'; '.join(wrong)}")
            elif (pattern := takes["parameters"][key].get("pattern")) and not re.match(pattern, value):
                raise Bad(f"{name}: {key}={value} is not {pattern}")
        self.cloud(called, sent)


def connector(name: str) -> tuple[discovery.Api, str]:
    """Return the API and the method id of a connector: `googleapis.run.v2.projects.x` → API `run.v2`, method
    `run.projects.x`.
    """
    googleapis, service, version, *rest = name.split(".")
    assert googleapis == "googleapis"
    return discovery.api(f"{service}.{version}"), ".".join([service, *rest])
