"""An interpreter for the part of the Google Cloud Workflows syntax that jobs/cloudrun/workflow.yaml uses; it rejects
everything else.

Steps: assign, call, switch, for, try (one call, with retry and except), raise, return, next. A predicate of a retry is
a subworkflow. Expressions: the syntax that `evaluate` accepts, strings in double
quotes, and only the functions in FUNCTIONS. Google's runtime is not available for tests: this module follows its
documentation.
"""

from __future__ import annotations

import ast
import itertools
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import discovery

Step = dict[str, Any]
Cloud = Callable[[str, dict[str, Any]], Any]
"""A function of a method id and its arguments that returns the answer."""

EXPRESSION = re.compile(r"^\$\{(.*)\}$", re.DOTALL)
LONGEST = 400  # Google's limit on the characters of an expression
KINDS = {
    "assign": {"assign", "next"},
    "call": {"call", "args", "result", "next"},
    "switch": {"switch", "next"},
    "for": {"for"},
    "try": {"try", "retry", "except"},
    "raise": {"raise"},
    "return": {"return"},
}
CONDITION = {"condition", "assign", "return", "next"}
RETRY, BACKOFF, EXCEPT = (
    {"predicate", "max_retries", "backoff"},
    {"initial_delay", "max_delay", "multiplier"},
    {"as", "steps"},
)
FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "default": (lambda value, other: other if value is None else value, 2),
    "json.encode_to_string": (lambda value: json.dumps(value, separators=(",", ":"), sort_keys=True), 1),
    "len": (len, 1),
    "map.get": (lambda where, key: where.get(key), 2),
    "not": (operator.not_, 1),
    "text.match_regex": (lambda source, pattern: re.search(pattern, source) is not None, 2),
    "text.substring": (lambda source, start, end: source[start:end], 3),
}
CONSTANTS = {"true": True, "false": False, "null": None}
OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.In: lambda key, where: key in where,
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
            return CONSTANTS[name] if name in CONSTANTS else names[name]
        case ast.Attribute(value=inner, attr=key):
            return evaluate(inner, names)[key]
        case ast.Subscript(value=inner, slice=key):
            return evaluate(inner, names)[evaluate(key, names)]
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
    if isinstance(value, list):
        return [filled(each, names) for each in value]
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
        self.steps_taken = 0

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

    def block(self, steps: list[Step], names: dict[str, Any]) -> str | None:
        """Run steps in order or as their `next` says; return a `next` that is outside of this block."""
        order = [next(iter(step)) for step in steps]
        at = 0
        while at < len(steps):
            self.steps_taken += 1
            assert self.steps_taken < 10_000, "it runs for ever"
            (step,) = steps[at].values()
            to = self.step(step, names)
            if to is not None and to not in order:
                return to
            at = order.index(to) if to is not None else at + 1
        return None

    def step(self, step: Step, names: dict[str, Any]) -> str | None:
        if "for" in step:
            return self.loop(step["for"], names)
        if "try" in step:
            return self.attempt(step, names)
        if "switch" in step:
            step = next((c for c in step["switch"] if self.fill(c["condition"], names)), {"next": step.get("next")})
        for pair in step.get("assign", []):
            ((name, value),) = pair.items()
            names[name] = self.fill(value, names)
        if "call" in step:
            answer = self.call(step["call"], self.fill(step["args"], names))
            names.update({step["result"]: answer} if "result" in step else {})
        if "return" in step:
            raise Ended(self.fill(step["return"], names))
        if "raise" in step:
            raise Error(self.fill(step["raise"], names))
        to: str | None = step.get("next")
        return to

    def loop(self, loop: Step, names: dict[str, Any]) -> str | None:
        for each in self.fill(loop["in"], names):
            to = self.block(loop["steps"], {**names, loop["value"]: each})
            if to == "break":
                return None
            if to not in (None, "continue"):
                return to
        return None

    def attempt(self, step: Step, names: dict[str, Any]) -> str | None:
        """Run the call of a try step: first, then as often as its retry allows; at last, its except steps."""
        retry, handler = step.get("retry"), step.get("except")
        for retries in itertools.count():
            try:
                return self.step(step["try"], names)
            except Error as e:
                if not retry or retries >= retry["max_retries"] or not self.predicate(retry["predicate"], e.value):
                    if handler is None:
                        raise
                    return self.block(handler["steps"], {**names, handler["as"]: e.value})
            backoff = retry["backoff"]
            self.waited.append(min(backoff["initial_delay"] * backoff["multiplier"] ** retries, backoff["max_delay"]))
        raise AssertionError

    def predicate(self, expression: str, error: Any) -> bool:
        """Return the result of the subworkflow that an expression names: whether an error is retried."""
        return self.routine(EXPRESSION.sub(r"\1", expression), error) is True

    def fill(self, value: Any, names: dict[str, Any]) -> Any:
        if isinstance(value, str) and (found := re.fullmatch(r'\$\{sys\.get_env\("(\w+)"\)\}', value)):
            return self.environment[found[1]]
        return filled(value, names)

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Check a connector call against the discovery document, then answer it."""
        api, called = connector(name)
        takes = api.method(called)
        sent = {key: value for key, value in arguments.items() if key != "connector_params"}
        for key, value in sent.items():
            if key == "body":
                if wrong := api.faults(value, takes["request"]["$ref"]):
                    raise Bad(f"{name}: {'; '.join(wrong)}")
            elif (pattern := takes["parameters"][key].get("pattern")) and not re.match(pattern, value):
                raise Bad(f"{name}: {key}={value} is not {pattern}")
        return self.cloud(called, sent)


def connector(name: str) -> tuple[discovery.Api, str]:
    """Return the API and the method id of a connector: `googleapis.run.v2.projects.x` → API `run.v2`, method
    `run.projects.x`.
    """
    googleapis, service, version, *rest = name.split(".")
    assert googleapis == "googleapis"
    return discovery.api(f"{service}.{version}"), ".".join([service, *rest])


# ── checks without running ────────────────────────────────────────────────────────────────────────────────────────────


def problems(workflow: dict[str, Any]) -> list[str]:
    """Return the faults that Google would report: unknown words, missing steps, undefined names."""
    found: list[str] = []
    for routine in workflow.values():
        known = {*routine["params"], *_set_names(routine["steps"]), *set(workflow) - {"main"}, *CONSTANTS}
        found += _block_problems(routine["steps"], {"end"}, known)
    return found


def _set_names(steps: list[Step]) -> Iterator[str]:
    for step in _inner(steps):
        for pair in step.get("assign", []):
            yield from pair
        if "result" in step:
            yield step["result"]
        if "for" in step:
            yield step["for"]["value"]
        if "except" in step:
            yield step["except"].get("as", "")


def _inner(steps: list[Step]) -> Iterator[Step]:
    for each in steps:
        for step in each.values():
            yield step
            yield from step.get("switch", [])
            yield from _inner(step["for"]["steps"] if "for" in step else [])
            yield from [step["try"]] if "try" in step else []
            yield from _inner(step["except"]["steps"] if "except" in step else [])


def _block_problems(steps: list[Step], around: set[str], known: set[str]) -> Iterator[str]:
    names = [name for step in steps for name in step]
    yield from (f"two steps are called {name}" for name in {n for n in names if names.count(n) > 1})
    reachable = around | set(names)
    for each in steps:
        for name, step in each.items():
            yield from _step_problems(name, step, reachable, known)


def _step_problems(name: str, step: Step, reachable: set[str], known: set[str]) -> Iterator[str]:
    kinds = [kind for kind in KINDS if kind in step]
    if len(kinds) != 1 or not set(step) <= KINDS[kinds[0]]:
        yield f"{name}: no step of Workflows: {sorted(step)}"
        return
    for condition in step.get("switch", []):
        if "condition" not in condition or not set(condition) <= CONDITION:
            yield f"{name}: no condition of Workflows: {sorted(condition)}"
    for part in [step, *step.get("switch", [])]:
        if part.get("next", "end") not in reachable:
            yield f"{name}: there is no step {part['next']} to go to"
    if "for" in step:
        yield from _block_problems(step["for"]["steps"], {"continue", "break", *reachable}, known)
    if "try" in step:
        yield from _try_problems(name, step, reachable, known)
    if "call" in step:
        yield from _call_problems(name, step)
    own = {k: v for k, v in step.items() if k not in ("for", "try", "except")} | {"in": step.get("for", {}).get("in")}
    for text in _expressions(own):
        yield from (f"{name}: nothing sets {unknown}" for unknown in _names(tree(text)) - known)


def _try_problems(name: str, step: Step, reachable: set[str], known: set[str]) -> Iterator[str]:
    retry, handler = step.get("retry"), step.get("except")
    if "call" not in step["try"] or (retry is None and handler is None):
        yield f"{name}: no try of Workflows: {sorted(step)}"
        return
    yield from _step_problems(name, step["try"], reachable, known)
    if retry is not None and (set(retry) != RETRY or set(retry["backoff"]) != BACKOFF):
        yield f"{name}: no retry of Workflows: {sorted(retry)}"
    if handler is not None and set(handler) != EXCEPT:
        yield f"{name}: no except of Workflows: {sorted(handler)}"
    elif handler is not None:
        yield from _block_problems(handler["steps"], reachable, known)


def _call_problems(name: str, step: Step) -> Iterator[str]:
    api, called = connector(step["call"])
    takes = api.method(called)
    allowed = {*takes["parameters"], "connector_params", *({"body"} if "request" in takes else set())}
    yield from (f"{name}: {step['call']} takes no {key}" for key in set(step["args"]) - allowed)
    needed = {key for key, each in takes["parameters"].items() if each.get("required")}
    yield from (f"{name}: {step['call']} needs {key}" for key in needed - set(step["args"]))


def _expressions(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _expressions(each)
    elif isinstance(value, str) and (found := EXPRESSION.match(value)):
        yield found[1]


def _names(node: ast.expr) -> set[str]:
    """Return the variables of an expression, and its unknown functions."""
    functions = {id(part) for call in ast.walk(node) if isinstance(call, ast.Call) for part in ast.walk(call.func)}
    calls = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
    unknown = {dotted(call.func) for call in calls if dotted(call.func) not in {*FUNCTIONS, "sys.get_env"}}
    return unknown | {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in functions}
